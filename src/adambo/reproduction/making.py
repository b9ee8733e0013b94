"""Makes what a folder of records lacks of its plan: it hands out the runs, and files what they come to.

All that is known is in the records, so it can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adambo.errors import AdamboError, ConfigError, RunError
from adambo.experiments import runner
from adambo.experiments.compare import other_settings, refuse_other_runs
from adambo.experiments.lines import line
from adambo.experiments.workers import Job, Result
from adambo.reproduction.archive import COUNTED
from adambo.reproduction.plan import UNRECORDED, Entry, Plan, Runs, Searches
from adambo.reproduction.planned_search import PlannedSearch, Retries
from adambo.training.run_folder import RunFolder

KEPT = ("manifest.json", "metrics.jsonl", "monitor.jsonl", "status.json", "config.yaml")  # what makes it a run: last
Found = dict[tuple[str, str], PlannedSearch]  # by case and label


class Making:
    """A source of jobs, see `adambo.experiments.workers.Source`.

    Args:
        plan: What there should be.
        results: The folder of records.
        work: Where runs are made; what has ended leaves it.
        console: For a line per run that has ended.
        only: Beginnings of places, such as paper/ or search/auc-rnn; all if there are none.
        begin_for: Seconds after which no run is begun.
        command: As it was typed, for the record of a search.

    Raises:
        ConfigError: If nothing in the plan has one of the beginnings.
        RunError: If there is a record of another run where one of the plan belongs.
    """

    def __init__(
        self,
        plan: Plan,
        results: Path,
        work: Path,
        console: Console,
        only: Sequence[str] = (),
        begin_for: float | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._console = console
        self._end = None if begin_for is None else time.monotonic() + begin_for
        searches: Found = {
            (entry.place, label): PlannedSearch(entry, label, results, work, tuple(command))
            for entry in plan.entries
            if isinstance(entry, Searches)
            for label in entry.labels
        }
        parts = [
            _Runs(entry, results, work, searches) if isinstance(entry, Runs) else _Searches(entry, searches)
            for entry in plan.entries
        ]
        for place in only:
            if not any(part.name.startswith(place) for part in parts):
                known = ", ".join(dict.fromkeys(part.name for part in parts))
                raise ConfigError(f"The plan has no place that begins with {place!r}: {known}.")
        self._parts = [part for part in parts if not only or part.name.startswith(tuple(only))]
        self._owners: dict[Path, _Runs | _Searches] = {}
        self._is_full = False

    def refuse_missing_data(self) -> None:
        """Raises DataError if a data set is missing that something would need."""
        for part in self._parts:
            if part.lacking():
                runner.refuse_missing_data(part.entry.configured(next(iter(part.entry.labels)), {}))

    def next(self) -> Job | None:
        if self._is_full or (self._end is not None and time.monotonic() >= self._end):
            return None
        for part in self._parts:
            if sum(owner is part for owner in self._owners.values()) == part.entry.at_once:
                continue
            while (job := part.next()) is not None:
                try:
                    refuse_other_runs([job])  # one that is gone on with
                except RunError as error:  # others go on
                    part.ended(Result(job, "failed", str(error)))
                    line(self._console, f"{job.name}: failed. {error}")
                    continue
                self._owners[job.folder] = part
                return job
        return None

    def ended(self, result: Result) -> None:
        said = f"{result.state}. {result.reason}"
        try:
            self._owners.pop(result.job.folder).ended(result)
        except (AdamboError, OSError) as error:
            said = f"{result.state}, but it could not be filed. {error}"
        # Where one finds no memory, nothing is begun before another one ends.
        self._is_full = result.out_of_memory and bool(self._owners)
        line(self._console, f"{result.job.name}: {said}")

    def lacking(self) -> list[str]:
        """A line for each entry of which something is to be made."""
        return [f"{part.name}: {said}" for part in self._parts if (said := part.lacking())]


class _Runs:
    """The runs of an entry; first all labels with the first seed."""

    def __init__(self, entry: Runs, results: Path, work: Path, searches: Found) -> None:
        self.entry, self.name = entry, entry.place
        self._results, self._work, self._searches = results / entry.place, work / entry.place, searches
        self._begun: set[tuple[str, int]] = set()  # which are not begun a second time, unless they lacked memory
        self._again = Retries()
        for label, seed in self._all():
            self._refuse_another(label, seed)

    def next(self) -> Job | None:
        for label, seed in self._open():
            chosen = self._chosen(label)
            if chosen is not None and (label, seed) not in self._begun:
                self._begun.add((label, seed))
                more = {**chosen, "seed": seed}
                configured, words = self.entry.configured(label, more), words_of(self.entry, label, more)
                return Job(f"{self.name} {label}", configured, self._folder(label, seed), tuple(words))
        return None

    def ended(self, result: Result) -> None:
        if result.state in COUNTED:
            _file(result.job.folder, self._results / result.job.folder.name)
        elif self._again.wanted(result):
            self._begun = {each for each in self._begun if self._folder(*each) != result.job.folder}

    def lacking(self) -> str:
        missing = self._open()
        unchosen = sum(self._chosen(label) is None for label, _ in missing)
        seeds: dict[str, list[str]] = {}
        for label, seed in missing:
            seeds.setdefault(label, []).append(str(seed))
        which = ", ".join(f"{label} ({', '.join(found)})" for label, found in seeds.items())
        said = f"{len(missing)} run{'s' * (len(missing) > 1)}: {which}" if missing else ""
        return f"{said}; {unchosen} of them wait{'s' * (unchosen == 1)} for a search" if unchosen else said

    def _all(self) -> list[tuple[str, int]]:
        return [(label, seed) for seed in self.entry.seeds for label in self.entry.labels]

    def _open(self) -> list[tuple[str, int]]:
        return [each for each in self._all() if not (self._record(*each) / "config.yaml").exists()]

    def _folder(self, label: str, seed: int) -> Path:
        return self._work / f"{label}-seed{seed}"

    def _record(self, label: str, seed: int) -> Path:
        return self._results / f"{label}-seed{seed}"

    def _chosen(self, label: str) -> dict[str, Any] | None:
        """What a search has chosen for the label; None if it has not."""
        return {} if self.entry.chosen is None else self._searches[self.entry.chosen, label].chosen

    def _refuse_another(self, label: str, seed: int) -> None:
        """Refuse a record that is not the run of the plan."""
        folder = self._record(label, seed)
        if not (folder / "config.yaml").exists():
            return
        chosen = self._chosen(label)
        if chosen is None:
            raise RunError(f"{folder} is there, but the search that is to choose its values has not come to an end.")
        there = RunFolder.open(folder).config
        more = {**chosen, "seed": seed, **{key: there.get(key) for key in UNRECORDED}}
        if said := other_settings(Job(label, self.entry.configured(label, more), folder)):
            raise RunError(f"{said} Bring the record back (git restore), or let the plan say what was made.")


class _Searches:
    """The searches of an entry."""

    def __init__(self, entry: Searches, searches: Found) -> None:
        self.entry, self.name = entry, f"search/{entry.place}"
        self._searches = {label: searches[entry.place, label] for label in entry.labels}

    def next(self) -> Job | None:
        # Whoever has the fewest trials goes first, so that all come to their end together.
        for search in sorted(self._searches.values(), key=lambda each: each.begun):
            job = search.next()
            if job is not None:
                return job
        return None

    def ended(self, result: Result) -> None:
        self._searches[result.job.folder.parent.name].ended(result)

    def lacking(self) -> str:
        left = {label: search.left for label, search in self._searches.items() if search.left}
        return f"{sum(left.values())} trials, of {', '.join(left)}" if left else ""


def words_of(entry: Entry, label: str, more: Mapping[str, Any]) -> list[str]:
    """The command that makes the same run.

    Example:
        >>> entry = Entry(place="paper/auc-rnn", experiment="auc-rnn", labels={"slip": {}}, values={"dropout": 0.1})
        >>> " ".join(words_of(entry, "slip", {"settings.lower_lr": 1e-6, "seed": 1}))
        'adambo run auc-rnn --algorithm slip --dropout 0.1 --settings.lower-lr 1e-06 --seed 1'
    """
    words = ["adambo", "run", entry.experiment]
    for key, value in {**entry.values_of(label), **more}.items():
        words += [f"--{key.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value)]
    return words


def _file(folder: Path, record: Path) -> None:
    """Let a run that has ended become a record: without checkpoints and events."""
    record.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (folder / name).exists():
            shutil.copyfile(folder / name, record / name)
    shutil.rmtree(folder)
