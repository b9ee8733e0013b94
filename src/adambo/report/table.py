"""The table of a group: one row per curve, means and standard deviations over the seeds that finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from adambo.report.curves import SPLITS, Curve, Group
from adambo.report.records import Record, inside, number, printable, shown

METRIC_NAMES = {"auc": "AUC", "auroc": "AUROC", "f1": "F1"}


class Cell(NamedTuple):
    """`value` sorts; `complete` is false where no run finished, and the numbers are those before it stopped."""

    text: str
    value: float | None
    complete: bool = True


@dataclass(frozen=True)
class Column:
    """One number of a run, and its form: how a mean of this size, and its deviation, are written."""

    title: str
    of: Callable[[Record], float | None]
    form: Callable[[float], str]

    def cell(self, curve: Curve) -> Cell:
        records = curve.finished or curve.records
        numbers = [value for value in map(self.of, records) if value is not None]
        if not numbers:
            return Cell("–", None)
        mean, spread = fmean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0
        text = format(mean, self.form(mean)) + (f" ± {format(spread, self.form(mean))}" if spread else "")
        return Cell(text, mean, complete=bool(curve.finished))


def columns(group: Group) -> list[Column]:
    """The metric at the end and at its best, the costs, and whatever else was scored."""
    name = metric_name(group.metric)
    chosen = [
        *(Column(f"final {split} {name}", score(Record.last, split, group.metric), score_form) for split in SPLITS),
        *(Column(f"best {split} {name}", score(Record.best, split, group.metric), score_form) for split in SPLITS),
        Column("epochs", lambda record: record.cost("epoch"), lambda mean: ",.0f" if mean == int(mean) else ",.1f"),
        Column("seconds", lambda record: record.cost("seconds"), seconds_form),
        Column("oracle calls", lambda record: record.cost("oracle_calls"), lambda mean: ",.0f"),
    ]
    for split, metric in extra_scores(group):
        title = f"final {printable(split)} {metric_name(printable(metric))}"
        chosen.append(Column(title, score(Record.last, split, metric), score_form))
    return chosen


def extra_scores(group: Group) -> list[tuple[str, str]]:
    """(split, metric) of every other score in the record: losses, validation, weights, ..."""
    found: dict[tuple[str, str], None] = {}
    for record in group.records:
        for evaluation in record.evaluations[-1:]:
            for split in evaluation:
                if split == "oracles":
                    continue
                scores = inside(evaluation, split)
                found.update({(split, metric): None for metric in scores if number(scores[metric]) is not None})
    main = {(split, group.metric) for split in SPLITS}
    return [pair for pair in found if pair not in main]


def score(
    pick: Callable[[Record, str, str], float | None], split: str, metric: str
) -> Callable[[Record], float | None]:
    return lambda record: pick(record, split, metric)


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def score_form(mean: float) -> str:
    return ".4f" if abs(mean) < 1000 else ".4g"


def seconds_form(mean: float) -> str:
    return ",.0f" if mean >= 100 else ".1f" if mean >= 10 else ".2f"


def sign(curve: Curve) -> str:
    """A cross if a run stopped, dots if one still runs, else a tick."""
    return "✕" if any(record.stopped for record in curve.records) else "…" if curve.failures else "✓"


def state_text(curve: Curve) -> str:
    """Such as "2 finished, 1 diverged"."""
    done = f"{len(curve.finished)} finished" if curve.finished else ""
    return ", ".join(part for part in (done, curve.failures) if part)


def reasons(curve: Curve, brief: bool = False) -> list[str]:
    """Why runs stopped, a sentence for each reason: "failed: no memory (seed 0 after epoch 4, seed 1 at once)".

    Brief ones have the first sentence of a reason, and not what could be done.
    """
    whose: dict[str, list[str]] = {}
    for record in curve.records:
        if record.stopped:
            epoch = record.cost("epoch")
            where = "before its first evaluation" if epoch is None else f"after epoch {epoch:.4g}"
            reason = record.reason.partition(". ")[0] if brief else record.reason
            why = f"{record.state}: {reason}" if reason else record.state
            whose.setdefault(why, []).append(f"seed {shown(record.seed)} {where}")
    return [f"{why} ({', '.join(runs)})" for why, runs in whose.items()]
