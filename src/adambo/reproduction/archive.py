"""The records of `results/`: which runs there are of a case, how long a step takes alone, what searches tried.

results/paper/CASE/<algorithm>-seed<k>/              and likewise tuned, effects, monitored: one folder per run
results/lambda-sensitivity/<experiment>/adambo-eps<value>-seed<k>/
results/search/CASE/<label>.jsonl                    {"about": {...}}, then one line per trial
results/speed/CASE.jsonl                             {"label": ..., "ms_per_step": ..., "precision": ...} per line
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from adambo.errors import RunError
from adambo.experiments.catalogue import EXPERIMENTS, Experiment
from adambo.experiments.config import defaults
from adambo.report.curves import OF_THE_ALGORITHM, Curve, Group, by_size, differing, inferred_metric
from adambo.report.palette import ALGORITHMS, styles
from adambo.report.records import Record, number, shown
from adambo.reproduction.labels import READINGS, label_of, palette_place, seed_of, written_label
from adambo.training.forms import lines_of
from adambo.training.run_folder import RunFolder

CASES = {
    "bert-trec-shared": "bert-trec, one head for all tasks",
    "bert-trec-per-task": "bert-trec, one head per task",
    "rnn-snli-shared": "rnn-snli, one head for all tasks",
    "rnn-snli-per-task": "rnn-snli, one head per task",
    "auc-transformer": "auc-transformer",
    "auc-rnn": "auc-rnn",
}
SEARCHED = {  # the same, where variants with one head per task stand beside the others
    name: f"{said} unless a label says per-task" if name.endswith("-shared") else said for name, said in CASES.items()
}
EXAMINED = {  # beside what the paper has
    **CASES,
    "rnn-snli-small": "rnn-snli at width 256, one head for all tasks",
    "bert-trec-small": "bert-trec with 2 layers of width 256, one head per task",
    "bert-trec-small-shared": "bert-trec with 2 layers of width 256, one head for all tasks",
}
STUDIED = ("auc-rnn", "auc-transformer", "bert-trec")  # experiments in which λ is varied
COUNTED = ("finished", "diverged")  # how a run may have ended that enters tables and figures
NO_MATTER = (*OF_THE_ALGORITHM, "device", "threads")
PLACES = {
    "paper": CASES, "tuned": CASES, "effects": EXAMINED, "monitored": EXAMINED, "lambda-sensitivity": STUDIED
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The runs of one case, a curve per label.

    Attributes:
        group: The curves, as reports draw them. `seconds` of their evaluations are steps times the time of a step
            alone; where that is not known they have none.
        labels: The label of each curve, as its folder has it.
        speeds: Milliseconds per step alone, by label.
        left_out: "slip-seed2 (interrupted)": runs that did not come to an end of their own.
    """

    group: Group
    labels: tuple[str, ...]
    speeds: dict[str, float]
    left_out: tuple[str, ...]

    def curve(self, label: str) -> Curve | None:
        """That of a label, if it has runs."""
        return dict(zip(self.labels, self.group.curves, strict=True)).get(label)

    @property
    def chance(self) -> float:
        """What guessing gets; a half where the records do not say."""
        return 0.5 if self.group.chance is None else self.group.chance

    @property
    def unlike(self) -> list[str]:
        """What the runs do not agree in, beside the settings of their algorithms: who compares them should know."""
        return [key for key in _differing(self.group.records) if not key.startswith("settings.")]

    @property
    def mixed(self) -> list[str]:
        """Curves whose seeds differ in more than their seed, with the settings: "SLIP (settings.lr)"."""
        found = {curve.label: _differing(curve.records, OF_THE_ALGORITHM) for curve in self.group.curves}
        return [f"{label} ({', '.join(keys)})" for label, keys in found.items() if keys]

    @property
    def machines(self) -> list[str]:
        """Of which machine the curves are that were not made on that of most: "SLIP on AMD EPYC, 2 cores"."""
        found = {
            curve.label: " and ".join(dict.fromkeys(record.machine for record in curve.records if record.machine))
            for curve in self.group.curves
        }
        usual = Counter(found.values()).most_common(1)[0][0]
        return [f"{label} on {machine}" for label, machine in found.items() if machine not in ("", usual)]

    @property
    def seeds(self) -> str:
        """Which seeds each label has, where they differ: "0, 1, 2: SLIP, SABA; 1: AdamBO". Data differ by seed."""
        having: dict[str, list[str]] = {}
        for curve in self.group.curves:
            having.setdefault(", ".join(shown(record.seed) for record in curve.records), []).append(curve.label)
        parts = [f"{seeds}: {', '.join(labels)}" for seeds, labels in having.items()]
        return "; ".join(parts) if len(parts) > 1 else ""

    @property
    def untimed(self) -> list[str]:
        """Written names of the curves whose seconds are not known."""
        return [c.label for label, c in zip(self.labels, self.group.curves, strict=True) if label not in self.speeds]


def whole(run: RunFolder) -> Record:
    """The record of a run.

    Raises:
        RunError: If it has lost evaluations.
    """
    record = Record.read(run)
    judged, made = (record.evaluations[-1]["step"] if record.evaluations else 0), run.status.get("step")
    if record.finished and made is not None and judged != made:
        raise RunError(
            f"{run.path} is damaged: it was finished at step {made}, but its metrics.jsonl ends at step {judged}. "
            "Bring the record back (git restore), or leave it out."
        )
    return record


@dataclass(frozen=True)
class Archive:
    """A folder of records; nothing is read before it is asked for."""

    path: Path

    def cases(self, kind: str) -> list[str]:
        """The cases of which there are runs (or searches), in the order of `CASES`.

        Raises:
            RunError: For a folder that is no case: its runs would appear nowhere.
        """
        places = PLACES.get(kind, CASES)
        folder = self.path / kind
        there = {child.name for child in folder.iterdir() if child.is_dir()} if folder.is_dir() else set()
        unknown = sorted(there - set(places))
        if unknown:
            raise RunError(f"{folder / unknown[0]} is no case: rename it to one of {', '.join(places)}.")
        pattern = "*.jsonl" if kind == "search" else "*/"
        return [name for name in places if name in there and any((folder / name).glob(pattern))]

    def case(self, kind: str, name: str) -> Case | None:
        """The runs of a case; None if there are none.

        Raises:
            RunError: For a record that is damaged, or a folder whose name does not tell label and seed.
        """
        if (kind, name) not in self._read:
            self._read[kind, name] = self._case(kind, name)
        return self._read[kind, name]

    @cached_property
    def _read(self) -> dict[tuple[str, str], Case | None]:
        return {}

    def _case(self, kind: str, name: str) -> Case | None:
        folder = self.path / kind / name
        runs: dict[str, list[Record]] = {}
        left_out = []
        for path in sorted(each for each in folder.glob("*") if each.is_dir()):
            run, label = RunFolder.open(path), label_of(path)
            record = completed(whole(run))
            if "versions.adambo" not in record.manifest:
                raise RunError(f"{path} is damaged: its manifest.json does not say which version made it.")
            if shown(record.seed) != seed_of(path):
                raise RunError(f"{path} holds a run with the seed {shown(record.seed)}: give the folder that name.")
            if label in ALGORITHMS and label != record.algorithm:
                raise RunError(f"{path} is named after {label} but holds a run of {record.algorithm}: rename it.")
            if record.state in COUNTED:
                runs.setdefault(label, []).append(record)
            else:
                left_out.append(f"{path.name} ({record.state})")
        if not runs:
            return None
        speeds = self._speeds(name)
        algorithms = {label: records[0].algorithm for label, records in runs.items()}
        labels = tuple(sorted(runs, key=lambda label: (palette_place(algorithms[label]), len(label), label)))
        known = {label: speed for label in labels if (speed := _speed(speeds, label, runs[label])) is not None}
        # A variant has a look of its own: four curves in one hue cannot be told apart among ten others. Another order
        # of a method's updates has the hue of the method.
        several = len(set(algorithms.values())) > 1
        looks = styles([label if several and label not in READINGS else algorithms[label] for label in labels])
        curves = [
            Curve(
                written_label(label, algorithms[label]), algorithms[label], {},
                sorted((timed(r, known.get(label)) for r in runs[label]), key=lambda r: (by_size(r.seed), r.folder)),
                style,
            )
            for label, style in zip(labels, looks, strict=True)
        ]  # fmt: skip
        return Case(_group(name, curves), labels, known, tuple(left_out))

    def _speeds(self, case: str) -> list[dict[str, Any]]:
        path = self.path / "speed" / f"{case}.jsonl"
        speeds = lines_of(path) if path.exists() else []
        for line in speeds:
            if not isinstance(line.get("label"), str) or not (number(line.get("ms_per_step")) or 0) > 0:
                raise RunError(f"{path} is damaged: every line needs a label and ms_per_step, a number above 0.")
        return speeds


def completed(record: Record) -> Record:
    """With a value for every field that the experiment has got since the run was made."""
    experiment = EXPERIMENTS.get(record.experiment)
    if not isinstance(experiment, Experiment):
        return record
    return replace(record, config=defaults(experiment.config) | record.config)


def timed(record: Record, ms_per_step: float | None) -> Record:
    """With seconds that are steps times the time of a step alone.

    Those of the record are not used: runs that share a GPU slow each other down.
    """
    evaluations = []
    for evaluation in record.evaluations:
        rest = {key: value for key, value in evaluation.items() if key != "seconds"}
        known = {} if ms_per_step is None else {"seconds": evaluation["step"] * ms_per_step / 1000}
        evaluations.append(rest | known)
    return replace(record, evaluations=evaluations)


def _speed(speeds: Iterable[dict[str, Any]], label: str, records: list[Record]) -> float | None:
    """That of the label in the precision of its runs; of two measurements, the later."""
    precisions = {shown(record.config.get("precision")) for record in records}
    fitting = [s for s in speeds if s["label"] == label and precisions <= {shown(s.get("precision"))}]
    return number(fitting[-1]["ms_per_step"]) if fitting else None


def _differing(records: list[Record], also: tuple[str, ...] = ()) -> list[str]:
    """The settings in which runs differ, of those that all of them have: a run may be older than a setting."""
    configs = [record.config for record in records]
    everywhere = set(configs[0]).intersection(*configs)
    return [key for key in differing(configs) if key in everywhere and (key not in NO_MATTER or key in also)]


def _group(name: str, curves: list[Curve]) -> Group:
    records = [record for curve in curves for record in curve.records]
    metrics = {shown(metric) for record in records if (metric := record.manifest.get("experiment.metric"))}
    chances = {chance for record in records if (chance := number(record.manifest.get("experiment.chance"))) is not None}
    if len(metrics) > 1 or len(chances) > 1:
        raise RunError(f"The runs of {name} differ in their metric or its chance level, so no table can compare them.")
    return Group(name, next(iter(metrics), None) or inferred_metric(records), next(iter(chances), None), curves)
