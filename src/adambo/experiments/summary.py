"""What many runs came to, as a table: one row for all seeds of an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from adambo.errors import RunError
from adambo.experiments.compare import Result
from adambo.experiments.configure import experiment_named
from adambo.training.run_folder import RunFolder


def table(results: Sequence[Result]) -> Table:
    """Mean and standard deviation over seeds of what the last evaluations say, of runs that are finished."""
    shown = Table(box=None, pad_edge=False)
    for column in ("run", "seeds", "train", "test", "seconds", "oracle calls"):
        shown.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    for label in dict.fromkeys(result.job.label for result in results):
        runs = [result for result in results if result.job.label == label]
        metric = experiment_named(runs[0].job.configured.experiment).metric
        last = [evaluation for run in runs if (evaluation := _last(run)[0]) is not None]
        seeds = str(len(last)) if len(last) == len(runs) else f"{len(last)} of {len(runs)}"
        scores = [spread([_score(one, split, metric) for one in last]) for split in ("train", "test")]
        costs = [
            spread([one.get(cost) for one in last], digits) for cost, digits in (("seconds", 1), ("oracle_calls", 0))
        ]
        shown.add_row(label, seeds, *scores, *costs)
    return shown


def failures(results: Sequence[Result]) -> list[str]:
    """A sentence for each run that has not finished, or of which there is no record."""
    unlike = [(result, *_why(result)) for result in results]
    return [f"{result.job.name}: {state}. {reason}" for result, state, reason in unlike if state != "finished"]


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


def _why(result: Result) -> tuple[str, str]:
    """State and reason; a run that cannot show what it came to has failed, whatever it says."""
    trouble = _last(result)[1]
    return (result.state, result.reason) if trouble is None else ("failed", trouble)


def _last(result: Result) -> tuple[dict[str, Any] | None, str | None]:
    """The last evaluation of a run that is finished; or none, and why there is none."""
    if result.state != "finished":
        return None, None
    try:
        evaluations = RunFolder.open(result.job.folder).evaluations
    except RunError as error:
        return None, str(error)
    if not evaluations:
        return None, f"{result.job.folder / 'metrics.jsonl'} is missing or empty, though the run is finished."
    return evaluations[-1], None
