"""The search of one label of a plan, trial by trial; its record is all that it has to know."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState, create_trial

from adambo.experiments.configure import Configured
from adambo.experiments.finalists import finalists
from adambo.experiments.first_trials import even_points, preset_point
from adambo.experiments.sweep import BAD_SETTINGS, Search, check_ranges, distribution, score
from adambo.experiments.trial_record import TrialRecord
from adambo.experiments.workers import Job, Result
from adambo.reproduction.plan import Searches
from adambo.reproduction.searches import searches as searches_of
from adambo.sources import key_of

RETRIES = 3
SEED = 0  # of even points and of the sampler: the same for all labels


class Retries:
    """Runs that lacked memory are tried again, for those beside them may have ended; but not for ever."""

    def __init__(self) -> None:
        self._made: Counter[Path] = Counter()

    def wanted(self, result: Result) -> bool:
        """Whether to try it once more."""
        self._made[result.job.folder] += result.out_of_memory
        return result.out_of_memory and self._made[result.job.folder] <= RETRIES


class PlannedSearch:
    """Trials: the preset, points that are spread evenly, then what Optuna suggests; at last preset and best again.

    The preset and the even points may be made side by side. After them one trial is made at a time, so that each
    suggestion knows all that came before.

    Args:
        entry: Which search.
        label: Of whom.
        results: Folder of records; this one becomes search/<case>/<label>.jsonl in it.
        work: Where trials are made.
        command: For the record.
    """

    def __init__(self, entry: Searches, label: str, results: Path, work: Path, command: tuple[str, ...] = ()) -> None:
        self._entry, self.label = entry, label
        self._folder = results / "search" / entry.place
        self._file = self._folder / f"{label}.jsonl"

        def make(values: Any) -> Configured:
            return entry.configured(label, {"epochs": entry.epochs, **values})

        self._search = Search(
            make, entry.ranges_of(label), "validation", work / "search" / entry.place / label, command
        )
        check_ranges(self._search)
        first = preset_point(self._search)
        points = even_points(self._search, entry.evenly, SEED)
        self._has_preset = first is not None
        self._first_points = [*([] if first is None else [first]), *points][: entry.trials]
        self._running: dict[str, tuple[int, dict[str, Any]]] = {}
        self._begun: set[str] = set()  # which are not begun a second time, unless they lacked memory
        self._again = Retries()

    @property
    def begun(self) -> int:
        """Trials that were made or are being made."""
        return len(self._trials()) + len(self._running)

    @property
    def left(self) -> int:
        """Trials that are to be made."""
        first, again = self._rounds()
        lacking = self._entry.trials - len(first)
        return lacking + self._entry.again if lacking else len(self._to_make_again(first, again))

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The values that won, when all trials have been made; None before, or if every trial has failed."""
        if self.left or self._running:
            return None
        (found,) = (each for each in searches_of(self._folder) if each.label == self.label)
        return None if found.chosen is None else found.chosen["values"]

    def next(self) -> Job | None:
        """A trial that can be begun now."""
        first, again = self._rounds()
        made = {trial["trial"] for trial in first}
        for number, point in enumerate(self._first_points):
            if number not in made and self._name(number) not in self._begun:
                return self._job(number, point)
        if len(first) < self._entry.trials:
            number = next(k for k in range(self._entry.trials) if k not in made)
            waits = self._running or self._name(number) in self._begun
            return None if waits else self._job(number, self._suggested(first))
        for trial in self._to_make_again(first, again):
            if self._name(trial["trial"], True) not in self._begun:
                return self._job(trial["trial"], trial["values"], again=True)
        return None

    def _to_make_again(self, first: list[dict[str, Any]], again: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The preset and then the best, until `again` of them have come to their end: short runs can mislead."""
        ranked = finalists(first, len(first))
        ranked.sort(key=lambda trial: not (self._has_preset and trial["trial"] == 0))
        done = {trial["trial"] for trial in again}
        lacking = self._entry.again - sum(trial["score"] is not None for trial in again)
        return [trial for trial in ranked if trial["trial"] not in done][: max(0, lacking)]

    def ended(self, result: Result) -> None:
        """File a trial; one that was interrupted, or failed for no fault of its settings, is left to a later call."""
        name = result.job.folder.name
        number, values = self._running.pop(name)
        if self._again.wanted(result):
            self._begun.discard(name)
            return
        again = name.startswith("again")
        if result.state in ("finished", "diverged"):
            found = (
                score(result.job.folder, "validation", result.job.configured) if result.state == "finished" else None
            )
            self._record().add(number, values, result.state, result.reason, result.job.folder, found, again)
            shutil.rmtree(result.job.folder)
        elif result.refused is not None and issubclass(result.refused, BAD_SETTINGS) and not result.out_of_memory:
            self._record().add(number, values, "failed", result.reason, again=again)
            shutil.rmtree(result.job.folder, ignore_errors=True)

    def _job(self, number: int, values: dict[str, Any], again: bool = False) -> Job:
        name = self._name(number, again)
        self._running[name] = number, values
        self._begun.add(name)
        whole = {"epochs": self._entry.configured(self.label, {}).config.epochs} if again else {}
        configured = self._search.configured({**values, **whole})
        said = f"search/{self._entry.place} {self.label}, trial {number}{' again' if again else ''}"
        return Job(said, configured, self._search.folder / name, self._search.command)

    @staticmethod
    def _name(number: int, again: bool = False) -> str:
        return f"{'again' if again else 'trial'}-{number:05d}"

    def _suggested(self, made: list[dict[str, Any]]) -> dict[str, Any]:
        """By a study that has seen all trials, in their order: the same whenever it is asked."""
        distributions: dict[str, BaseDistribution] = {
            key: distribution(key, range_, self._search) for key, range_ in self._search.ranges.items()
        }
        sampler = optuna.samplers.TPESampler(
            seed=key_of(SEED, "sampler", len(made)) % 2**32, n_startup_trials=len(self._first_points)
        )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in sorted(made, key=lambda each: each["trial"]):
            has = trial["score"] is not None
            study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if has else TrialState.PRUNED,
                    params=trial["values"],
                    distributions=distributions,
                    value=trial["score"],
                )
            )
        return dict(study.ask(distributions).params)

    def _trials(self) -> list[dict[str, Any]]:
        return self._record().read() if self._file.exists() else []

    def _rounds(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Trials of the first round, and those that were made again; of two with one number, the first."""
        trials = {(bool(each.get("again")), each["trial"]): each for each in reversed(self._trials())}
        first, again = (
            [trial for (is_again, _), trial in sorted(trials.items()) if is_again == wanted] for wanted in (False, True)
        )
        return first, again

    def _record(self) -> TrialRecord:
        search = self._search
        return TrialRecord(self._file, search.configured({}), search.ranges, search.objective, search.command)
