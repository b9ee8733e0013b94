"""Records become groups (one per experiment) of curves (one per label), each a mean over seeds with its spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from adambo.report.earlier_runs import completed
from adambo.report.palette import ALGORITHMS, Style, styles, written_name
from adambo.report.records import Points, Record, inside, number, shown

AXES = {"epoch": "epochs", "seconds": "seconds of training", "oracle_calls": "oracle calls"}
SPLITS = ("train", "test")
MONITORED = {
    "lower_error": "lower error ‖y − y*(x)‖",
    "residual": "residual of the linear system",
    "cosine": "cosine of the hypergradient to the true one",
    "bias": "bias of the hypergradient",
    "curvature": "curvature λ_max(∇²yy g)",
    "x_update": "update of x, relative to x",
    "y_update": "update of y, relative to y",
}
MAXIMAL_POINTS = 200
DIFFERENCES_IN_A_LABEL = 4
# What decides where a run is computed and how often it is looked at, not what comes out.
WITHOUT_EFFECT = ("seed", "data_dir", "checkpoint_every", "evaluate_every", "evaluate_on", "monitor_every")
OF_THE_ALGORITHM = ("algorithm", "warm_start", "decay", "snapshot_batch")
SYMBOLS = {"settings.eps": "λ (eps)", "settings.lr": "learning rate (lr)"}


class Band(NamedTuple):
    """A mean over the seeds that came so far (how many is in `seeds`), and their standard deviation (None for one)."""

    x: list[float]
    mean: list[float]
    spread: list[float | None]
    seeds: list[int]


class End(NamedTuple):
    """Where a run stopped before its end."""

    x: float
    y: float
    record: Record


@dataclass(frozen=True)
class Curve:
    """All runs that differ in nothing but their seed."""

    label: str
    algorithm: str
    differences: dict[str, Any]
    records: list[Record]
    style: Style

    @property
    def finished(self) -> list[Record]:
        return [record for record in self.records if record.finished]

    @property
    def failures(self) -> str:
        """What did not finish, such as "2 diverged, 1 unfinished"; empty if all did."""
        stopped = Counter(record.state for record in self.records if not record.finished)
        return ", ".join(f"{count} {state}" for state, count in sorted(stopped.items()))

    def band(self, axis: str, split: str, metric: str) -> Band:
        series = [(record.points(axis, split, metric), record.finished) for record in self.records]
        return average([(points, done) for points, done in series if points], costs=axis != "epoch")

    def measured(self, name: str) -> Band:
        """What the monitor measured, against steps."""
        series = [(points, record.finished) for record in self.records if (points := record.measured(name))]
        return average(series, costs=False)

    @property
    def warnings(self) -> list[str]:
        """Those of the monitor, each with the seed of its run."""
        return [f"Seed {shown(record.seed)}. {text}" for record in self.records for text in record.warnings]

    def ends(self, axis: str, split: str, metric: str) -> list[End]:
        stopped = [(record.points(axis, split, metric), record) for record in self.records if record.stopped]
        return [End(*points[-1], record) for points, record in stopped if points]

    def final(self, split: str, metric: str) -> tuple[float, float] | None:
        """Mean and standard deviation of the last scores of the runs that finished; None if none did."""
        scores = [score for record in self.finished if (score := record.last(split, metric)) is not None]
        return (fmean(scores), stdev(scores) if len(scores) > 1 else 0.0) if scores else None


class Study(NamedTuple):
    """Curves of one algorithm that differ in one number: the final score against that number."""

    key: str
    name: str
    values: list[float]
    curves: list[Curve]

    @property
    def logarithmic(self) -> bool:
        return min(self.values) > 0


@dataclass(frozen=True)
class Group:
    """One experiment."""

    experiment: str
    metric: str
    chance: float | None
    curves: list[Curve]

    @property
    def records(self) -> list[Record]:
        return [record for curve in self.curves for record in curve.records]

    @property
    def seeds(self) -> list[str]:
        return list(dict.fromkeys(shown(seed) for seed in sorted((r.seed for r in self.records), key=by_size)))

    @property
    def machines(self) -> list[str]:
        return sorted({record.machine for record in self.records if record.machine})

    @property
    def monitored(self) -> dict[str, str]:
        """What a monitor measured in any of the runs, by name and in words."""
        return {name: text for name, text in MONITORED.items() if any(r.measured(name) for r in self.records)}

    def logarithmic(self, axis: str) -> bool:
        """Costs that differ by more than ten times between curves are easier to see on a logarithmic axis."""
        ends = [record.cost(axis) or 0.0 for curve in self.curves for record in curve.finished]
        return axis != "epoch" and bool(ends) and min(ends) > 0 and max(ends) > 10 * min(ends)

    def studies(self) -> list[Study]:
        found = []
        for algorithm in dict.fromkeys(curve.algorithm for curve in self.curves):
            curves = [curve for curve in self.curves if curve.algorithm == algorithm]
            keys = list(curves[0].differences)
            values = [number(curve.differences.get(key)) for curve in curves for key in keys]
            numbers = [value for value in values if value is not None]
            if len(keys) == 1 and len(curves) > 1 and len(numbers) == len(curves):
                found.append(Study(keys[0], SYMBOLS.get(keys[0], short(keys[0])), numbers, curves))
        return found

    def notes(self) -> list[str]:
        """What a reader must know before comparing the curves."""
        notes = []
        if len(self.machines) > 1:
            notes.append("Seconds were measured on different machines: " + "; ".join(self.machines) + ".")
        for curve in self.curves:
            seeds = Counter(shown(record.seed) for record in curve.records)
            twice = [seed for seed, count in seeds.items() if count > 1]
            if twice:
                notes.append(f"{curve.label} has more than one run with seed {', '.join(twice)}; all enter its mean.")
            if curve.warnings:
                notes.append(f"{curve.label}: the monitor warned. {curve.warnings[0]}")
        unlike = [
            key
            for key in differing([record.config for record in self.records])
            if key not in OF_THE_ALGORITHM and not key.startswith("settings.")
        ]
        if unlike and len({curve.algorithm for curve in self.curves}) > 1:
            notes.append("Not all runs agree in " + ", ".join(unlike) + ": compare them with care.")
        return notes


def average(series: Sequence[tuple[Points, bool]], costs: bool) -> Band:
    """The mean at every place where any of the seeds was evaluated, of those that reached it; linear in between.

    Along costs (seconds, oracle calls) seeds end at slightly different places. One that finished keeps its last score
    until the last finished seed is done, so that the curve ends at the mean of the final scores; one that stopped
    early, for whatever reason, takes part up to where it stopped and no further.

    Args:
        series: The points of each seed, by place, at least one; and whether the seed finished.
        costs: Whether the places are costs.
    """
    if not series:
        return Band([], [], [], [])
    places = np.unique([x for points, _ in series for x, _ in points])
    if costs:
        places = places[places >= max(points[0][0] for points, _ in series)]
    if len(places) > MAXIMAL_POINTS:
        places = places[np.linspace(0, len(places) - 1, MAXIMAL_POINTS).round().astype(int)]
    rows = []
    for points, finished in series:
        x, y = np.array(points).T
        last = np.inf if costs and finished else x[-1]
        rows.append(np.where((places >= x[0]) & (places <= last), np.interp(places, x, y), np.nan))
    band = Band([], [], [], [])
    for place, column in zip(places, np.array(rows).T, strict=True):
        there = column[~np.isnan(column)]
        if len(there):
            band.x.append(float(place))
            band.mean.append(float(there.mean()))
            band.spread.append(float(there.std(ddof=1)) if len(there) > 1 else None)
            band.seeds.append(len(there))
    return band


def grouped(records: Iterable[Record]) -> list[Group]:
    """One group per experiment, in alphabetical order; in a group, curves in the palette's order of algorithms."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.experiment, []).append(record)
    return [group_of(experiment, groups[experiment]) for experiment in sorted(groups)]


class Variant(NamedTuple):
    """Runs of one algorithm with one configuration: a curve that has no look yet."""

    label: str
    algorithm: str
    differences: dict[str, Any]
    records: list[Record]


def group_of(experiment: str, records: list[Record]) -> Group:
    order, records = list(ALGORITHMS), completed(experiment, records)
    algorithms = sorted(
        {record.algorithm for record in records}, key=lambda n: (order.index(n) if n in order else len(order), n)
    )
    variants = [
        found for name in algorithms for found in variants_of(name, [r for r in records if r.algorithm == name])
    ]
    looks = styles([variant.algorithm for variant in variants])
    curves = [Curve(*variant, style) for variant, style in zip(variants, looks, strict=True)]
    metrics = (record.manifest.get("experiment.metric") for record in records)
    chances = (number(record.manifest.get("experiment.chance")) for record in records)
    metric = next((shown(name) for name in metrics if name), None) or inferred_metric(records)
    return Group(experiment, metric, next((c for c in chances if c is not None), None), curves)


def variants_of(algorithm: str, records: list[Record]) -> list[Variant]:
    """The runs of one algorithm, apart by what they differ in; told by preset where that says it all."""
    keys = differing([record.config for record in records])
    variants: dict[str, list[Record]] = {}
    for record in records:
        variants.setdefault(shown([record.config.get(key) for key in keys]), []).append(record)
    ordered = sorted(variants.values(), key=lambda runs: [by_size(runs[0].config.get(key)) for key in keys])
    presets = [sorted({record.preset for record in runs}) for runs in ordered]
    told_by_preset = len(keys) > 1 and len({tuple(names) for names in presets}) == len(ordered)
    found, taken = [], Counter[str]()
    for runs, names in zip(ordered, presets, strict=True):
        differences = {key: runs[0].config.get(key) for key in keys}
        label = ", ".join([written_name(algorithm), *(names if told_by_preset else described(differences))])
        taken[label] += 1
        label = f"{label} #{taken[label]}" if taken[label] > 1 else label
        runs.sort(key=lambda record: (by_size(record.seed), record.folder))
        found.append(Variant(label, algorithm, differences, runs))
    return found


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which not all agree, of those that matter."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in WITHOUT_EFFECT)
    return [key for key in keys if len({shown(config.get(key)) for config in configs}) > 1]


def described(differences: dict[str, Any]) -> list[str]:
    ends = Counter(short(key) for key in differences)
    names = [short(key) if ends[short(key)] == 1 else key for key in differences]
    rounded = (f"{value:.4g}" if isinstance(value, float) else shown(value) for value in differences.values())
    texts = [f"{name}={value}" for name, value in zip(names, rounded, strict=True)]
    more = len(texts) - DIFFERENCES_IN_A_LABEL
    return texts if more <= 0 else [*texts[:DIFFERENCES_IN_A_LABEL], f"{more} more"]


def short(key: str) -> str:
    return key.rpartition(".")[2]


def by_size(value: Any) -> tuple[int, float, str]:
    """Sorts numbers by size, before everything else by its text."""
    size = number(value)
    return (0, size, "") if size is not None else (1, 0.0, shown(value))


def inferred_metric(records: Sequence[Record]) -> str:
    """The first score of the test split, else of the training split."""
    for split in reversed(SPLITS):
        for record in records:
            for evaluation in record.evaluations:
                if inside(evaluation, split):
                    return shown(next(iter(inside(evaluation, split))))
    return "score"
