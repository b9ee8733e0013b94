"""A recorded run made again: what is different now, and whether it ends where the seeds of the record end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adambo.errors import RunError
from adambo.experiments import runner
from adambo.experiments.configure import Configured, of_run
from adambo.report.curves import inferred_metric
from adambo.report.records import Record, shown
from adambo.reproduction.archive import COUNTED
from adambo.reproduction.labels import RUN, label_of
from adambo.reproduction.spread import Spread, spread_of
from adambo.training.manifest import manifest
from adambo.training.run_folder import RunFolder

DEVIATIONS = 2.0


@dataclass(frozen=True)
class Recorded:
    """A run of the record, and the seeds of the same label beside it, itself among them."""

    run: RunFolder
    record: Record
    seeds: list[Record]

    @classmethod
    def open(cls, path: Path) -> Recorded:
        """Raises RunError if there is no such run, or it did not come to an end with which one could compare."""
        run = RunFolder.open(path)
        record = Record.read(run)
        if record.state not in COUNTED:
            raise RunError(f"The run {path} is {record.state}, so there is no end to compare with: name another one.")
        beside = [record]
        if RUN.fullmatch(path.resolve().name):
            label = label_of(path.resolve())
            folders = sorted(config.parent for config in path.resolve().parent.glob(f"{label}-seed*/config.yaml"))
            others = [folder for folder in folders if RUN.fullmatch(folder.name) and label_of(folder) == label]
            beside += [Record.read(RunFolder.open(each)) for each in others if each != path.resolve()]
        return cls(run, record, [each for each in beside if each.state in COUNTED])

    def configured(self, changes: Mapping[str, Any]) -> Configured:
        """What it was made with; `changes` say where it is made now: data_dir, device, threads."""
        return of_run(self.run).changed(**changes) if changes else of_run(self.run)

    def folder(self, out: Path) -> Path:
        """<out>/<case>/<run>, with -2, -3, … if there is one already."""
        path = self.run.path.resolve()
        wished = out / path.parent.name / path.name
        folder, number = wished, 1
        while folder.exists():
            number += 1
            folder = wished.with_name(f"{wished.name}-{number}")
        return folder

    def changes(self, configured: Configured) -> list[str]:
        """A sentence for each version and each data file that is not what it was."""
        then, now = self.run.manifest, manifest(runner.data_files(configured), ())
        found = []
        for name, version in (then.get("versions") or {}).items():
            here = now["versions"].get(name, "not installed")
            if here != version:
                found.append(f"The run was made with {name} {version}; here it is {here}.")
        for name, digest in (then.get("data") or {}).items():
            here = now["data"].get(name)
            if here is None:
                found.append(f"The run was made with the data file {name}, which is not read here.")
            elif here != digest:
                found.append(f"The data file {name} is not the one that the run was made with.")
        return found


@dataclass(frozen=True)
class Comparison:
    """One score of a run then and now, among the seeds of the record."""

    name: str
    then: float
    now: float
    seeds: Spread

    @property
    def range(self) -> tuple[float, float] | None:
        """The wider one of mean ± 2 standard deviations and smallest to largest; None for a single seed."""
        deviation = self.seeds.deviation
        if deviation is None:
            return None
        spread = (self.seeds.mean - DEVIATIONS * deviation, self.seeds.mean + DEVIATIONS * deviation)
        extremes = (min(self.seeds.values), max(self.seeds.values))
        return max(spread, extremes, key=lambda ends: ends[1] - ends[0])

    @property
    def within(self) -> bool | None:
        """None where nothing can be said: there is one seed, and the repetition differs from it."""
        if self.range is None:
            return True if self.now == self.then else None
        return self.range[0] <= self.now <= self.range[1]

    def __str__(self) -> str:
        text = f"{self.name}: then {self.then:.4f}, now {self.now:.4f}; "
        if self.range is None:
            same = "the same" if self.within else "there is no spread to judge by"
            return f"{text}no other seed is recorded beside it, and {same}."
        low, high = self.range
        place = "within" if self.within else "OUTSIDE"
        return f"{text}{len(self.seeds.values)} seeds have {self.seeds}, from {low:.4f} to {high:.4f}: {place}."


def compared(recorded: Recorded, again: Record) -> list[Comparison]:
    """Final and best test score.

    Raises:
        RunError: If one of the runs has no test score.
    """
    metric = shown(recorded.record.manifest.get("experiment.metric") or inferred_metric([recorded.record]))
    found = []
    for name, pick in (("final", Record.last), ("best", Record.best)):
        then, now = (pick(record, "test", metric) for record in (recorded.record, again))
        seeds = spread_of(pick(record, "test", metric) for record in recorded.seeds)
        if then is None or now is None or seeds is None:
            raise RunError(f"{recorded.run.path} or its repetition has no test {metric}, so they cannot be compared.")
        found.append(Comparison(f"{name} test {metric}", then, now, seeds))
    return found
