"""What many runs came to, as a table: one row for all seeds of an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from adambo.errors import RunError
from adambo.experiments.configure import experiment_named
from adambo.experiments.workers import Result
from adambo.training.run_folder import RunFolder


def settled(results: Sequence[Result]) -> list[Result]:
    """The results, but a run that says it is finished and cannot show what it came to has failed."""
    return [
        result if (trouble := _trouble(result)) is None else replace(result, state="failed", reason=trouble)
        for result in results
    ]


def table(results: Sequence[Result]) -> Table:
    """Mean and standard deviation over seeds of what the last evaluations say, of runs that are finished."""
    results = settled(results)
    shown = Table(box=None, pad_edge=False)
    for column in ("run", "seeds", "train", "test", "seconds", "oracle calls"):
        shown.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    for label in dict.fromkeys(result.job.label for result in results):
        runs = [result for result in results if result.job.label == label]
        metric = experiment_named(runs[0].job.configured.experiment).metric
        last = [RunFolder.open(run.job.folder).evaluations[-1] for run in runs if run.state == "finished"]
        seeds = str(len(last)) if len(last) == len(runs) else f"{len(last)} of {len(runs)}"
        scores = [spread([_score(one, split, metric) for one in last]) for split in ("train", "test")]
        costs = [
            spread([one.get(cost) for one in last], digits) for cost, digits in (("seconds", 1), ("oracle_calls", 0))
        ]
        shown.add_row(label, seeds, *scores, *costs)
    return shown


def failures(results: Sequence[Result]) -> list[str]:
    """A sentence for each run that has not finished, or cannot show what it came to."""
    ended = settled(results)
    return [f"{result.job.name}: {result.state}. {result.reason}" for result in ended if result.state != "finished"]


def spread(values: Sequence[float | None], digits: int = 4) -> str:
    """Mean ± standard deviation.

    Example:
        >>> spread([0.5, 0.7]), spread([0.5]), spread([])
        ('0.6000 ± 0.1414', '0.5000', '–')
    """
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    text = f"{mean(known):,.{digits}f}"
    return f"{text} ± {stdev(known):,.{digits}f}" if len(known) > 1 else text


def _score(evaluation: dict[str, Any], split: str, metric: str) -> float | None:
    score: float | None = evaluation.get(split, {}).get(metric)
    return score


def _trouble(result: Result) -> str | None:
    """Why a run that is finished has no last evaluation; None if it has one, or is not finished."""
    if result.state != "finished":
        return None
    try:
        evaluations = RunFolder.open(result.job.folder).evaluations
    except RunError as error:
        return str(error)
    return None if evaluations else f"The run is finished, but {result.job.folder / 'metrics.jsonl'} is empty or gone."
