"""A recorded run made again: what is different now, and whether it ends where the record does, but for the spread."""

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
from adambo.reproduction.archive import COUNTED, whole
from adambo.reproduction.labels import RUN, label_of
from adambo.reproduction.spread import Spread, spread_of
from adambo.training.manifest import manifest
from adambo.training.run_folder import RunFolder

DEVIATIONS = 2.0


@dataclass(frozen=True)
class Recorded:
    """A run of the record, and the other seeds of the same label beside it."""

    run: RunFolder
    record: Record
    others: list[Record]

    @classmethod
    def open(cls, path: Path) -> Recorded:
        """Raises RunError if there is no such run, or it did not come to an end with which one could compare."""
        runs = sorted(path.glob("*/config.yaml"))
        if runs and not (path / "config.yaml").exists():
            raise RunError(f"{path} is a folder of runs: name one of them, such as {runs[0].parent}.")
        run = RunFolder.open(path)
        record = whole(run)
        if record.state not in COUNTED:
            raise RunError(f"The run {path} is {record.state}, so there is no end to compare with: name another one.")
        if not any("test" in evaluation for evaluation in record.evaluations):
            raise RunError(f"The run {path} was not judged by the test split, by which one compares: name another one.")
        beside: list[Record] = []
        if RUN.fullmatch(path.resolve().name):
            label = label_of(path.resolve())
            folders = sorted(config.parent for config in path.resolve().parent.glob(f"{label}-seed*/config.yaml"))
            fitting = [folder for folder in folders if RUN.fullmatch(folder.name) and label_of(folder) == label]
            beside = [whole(RunFolder.open(each)) for each in fitting if each != path.resolve()]
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
        """A sentence for each version and each data file that is not what it was, and for a GPU that is not there."""
        then, now = self.run.manifest, manifest(runner.data_files(configured), ())
        found = []
        had_gpu = bool(self.record.manifest.get("hardware.gpus")) and self.run.config.get("device") != "cpu"
        if had_gpu and (not now["hardware"]["gpus"] or configured.config.device == "cpu"):
            found.append(
                f"The run was made on {self.record.machine}; here it is made on a CPU. At the paper's size that takes "
                "hours, and minutes for each evaluation, the first of which comes before the first step."
            )
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
    """One score of a run then and now, judged by the other seeds of its label.

    The record under test is no part of the spread: an odd one would widen what it is judged by.

    Example:
        >>> one = Comparison("final test AUC", 0.80, 0.81, Spread((0.79, 0.83)))
        >>> for part in str(one).split("; "): print(part)
        final test AUC: then 0.8000, now 0.8100 (now − then: +0.0100)
        2 other seeds have 0.8100 ± 0.0283, from 0.7900 to 0.8300
        0.0566 from then is allowed: within.
    """

    name: str
    then: float
    now: float
    others: Spread | None

    @property
    def allowed(self) -> float | None:
        """2 standard deviations of the other seeds, or 2 distances to the only one; None if there is none."""
        if self.others is None:
            return None
        deviation = self.others.deviation
        return DEVIATIONS * (abs(self.then - self.others.mean) if deviation is None else deviation)

    @property
    def within(self) -> bool | None:
        """None where nothing can be said: there is no other seed, and the repetition differs from the record."""
        if self.others is None or self.allowed is None:
            return True if self.now == self.then else None
        among = min(self.others.values) <= self.now <= max(self.others.values)
        return among or abs(self.now - self.then) <= self.allowed

    def __str__(self) -> str:
        text = f"{self.name}: then {self.then:.4f}, now {self.now:.4f} (now − then: {_signed(self.now - self.then)}); "
        if self.others is None or self.allowed is None:
            same = "it is the same" if self.within else "there is no spread to judge by"
            return f"{text}no other seed is recorded beside it, and {same}."
        values = self.others.values
        seeds = "1 other seed has" if len(values) == 1 else f"{len(values)} other seeds have"
        ends = "" if len(values) == 1 else f", from {min(values):.4f} to {max(values):.4f}"
        place = "within" if self.within else "OUTSIDE"
        return f"{text}{seeds} {self.others}{ends}; {self.allowed:.4f} from then is allowed: {place}."


def _signed(change: float) -> str:
    """With as many digits as scores have, unless they would hide that there is a change."""
    size = format(abs(change), ".4f" if change == 0 or abs(change) >= 5e-5 else ".0e")
    return f"{'−' if change < 0 else '+'}{size}"


def compared(recorded: Recorded, again: Record) -> list[Comparison]:
    """Final and best test score.

    Raises:
        RunError: If one of the runs has no test score.
    """
    metric = shown(recorded.record.manifest.get("experiment.metric") or inferred_metric([recorded.record]))
    found = []
    for name, pick in (("final", Record.last), ("best", Record.best)):
        then, now = (pick(record, "test", metric) for record in (recorded.record, again))
        if then is None or now is None:
            raise RunError(f"{recorded.run.path} or its repetition has no test {metric}, so they cannot be compared.")
        others = spread_of(pick(record, "test", metric) for record in recorded.others)
        found.append(Comparison(f"{name} test {metric}", then, now, others))
    return found
