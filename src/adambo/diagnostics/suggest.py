"""Starting values for AdamBO's settings, from what is measured of a problem, with the reason for each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from adambo.algorithms.settings import checked_count
from adambo.diagnostics.constants import EstimatedConstants, estimate_constants
from adambo.diagnostics.rates import Rates
from adambo.diagnostics.series_length import series_errors
from adambo.diagnostics.short_runs import Pace, ShortRuns, settle, untouched
from adambo.diagnostics.suggestion import (
    LAG,
    LENGTHS,
    MISSING,
    SAFETY,
    Suggestion,
    reason_of_lower_steps,
    reason_of_rate,
    reason_of_step,
    reason_of_terms,
)
from adambo.draw import Draw
from adambo.errors import CurvatureError, SampleError, SettingError
from adambo.ledger import Ledger
from adambo.problem import Problem

MOST_DRAWS = 64
JUDGING = 4  # one of so many draws judges, and takes no part in the short runs
MEASURED = 8  # draws for the curvature and for the length of the series
PRODUCTS = 64  # with the mean Hessian
SETTLING = (64, 512)  # lower steps, three times the condition number where that is between
THRIFTY = 3  # terms of a series that is tried first


def suggest(
    problem: Problem,
    draws: Iterable[Draw],
    *,
    steps: int = 1000,
    trial_steps: int | None = None,
    most: int = 64,
    judge: Callable[[], float] | None = None,
    ledger: Ledger | None = None,
    seed: int = 0,
) -> Suggestion:
    r"""Starting values for AdamBO on this problem, from its current parameters. Nothing of it is changed.

        step = lower_lr = 1 / (1.25 l_g1)      both contract errors by I − step · ∇²yy g
        terms                                  so many that a tenth of ∇²xy g z is missing at most
        lower_steps                            so many that y makes that number of steps in a quarter of the run
        lr                                     the smallest rate that gains nearly as much as the best in a short run

    Where these numbers of terms and lower steps gain less than 2 % over three terms and one lower step, the latter are
    taken: they cost less.

    The short runs are of AdamBO with the other settings, from here, at powers of ten and some rates between. They are
    judged in their last third, by the upper loss at y*(x) on every fourth draw, which they do not see. Where what
    matters is something else (an accuracy; an AUC, for which the loss stands in, and may fall while the AUC gets
    worse), give `judge`.

    It costs about eleven times `trial_steps`: five runs of `steps`, where those are no more than 500. All of it is
    counted in the ledger.

    Args:
        problem: The problem, in one process, where the run shall begin (after a warm start, if there is one).
        draws: A sequence of draws, or a stream; 64 at most are used. Their batches serve again where a role has too
            few: `adambo.draws(..., needs=Needs(upper=1, lower=1, cross=1, hessian=1))` is enough.
        steps: How long the run will be.
        trial_steps: How long the short runs are. None: half of it, at least 20 and at most 250.
        most: The most terms, and the most lower steps, that a step may take.
        judge: Says how bad the current parameters are (a validation error, say), where that is not the upper loss.
            Where no rate gains anything by it, the upper loss judges after all.
        ledger: Where oracle calls are counted; what `judge` does is its own.
        seed: Of everything random.

    Raises:
        SettingError: If the arguments cannot be used.
        SampleError: If there is no draw, or one lacks an upper or a lower batch.
        CurvatureError: If the lower loss is not curved at all.
        NonFiniteError: If a gradient is NaN or infinite where the problem is now.

    Example:
        >>> from adambo.testing import Quadratic
        >>> found = suggest(Quadratic(mu=1.0, L=4.0).problem(), [Draw((0,), (0,))], steps=40)
        >>> print(found.reasons["lower_lr"])
        1/(1.25 l_g1): the largest eigenvalue of ∇²yy g is 4, the smallest 1.
    """
    _check(problem, judge)
    steps, most = checked_count(steps, "steps"), checked_count(most, "most")
    trial_steps = max(20, min(250, steps // 2)) if trial_steps is None else checked_count(trial_steps, "trial_steps")
    trial_steps = min(steps, trial_steps)
    taken, own = _taken(draws), Ledger()
    measured = taken[:MEASURED]
    constants = estimate_constants(problem, measured, max_products=PRODUCTS, probes=2, ledger=own, seed=seed)
    if not constants.l_g1.value > 0:
        raise CurvatureError("The lower loss is linear in y here, so it has no minimum. Add a regulariser to it.")
    step = 1 / (SAFETY * constants.l_g1.value)
    settling = _settling(constants)
    series = _series(problem, measured, step, settling, own, seed)
    terms = next((length for length, missing in series.items() if missing <= MISSING or length >= most), most)
    interval = _steps_between_visits(problem, taken)
    wanted = math.ceil(min(terms, most) * interval / (LAG * steps))
    measured_pace = Pace(step, min(terms, most), min(wanted, most))
    thrifty = Pace(step, min(measured_pace.terms, THRIFTY), 1)
    trained, judging = _divided(taken)

    def runs(pace: Pace, by: Sequence[Draw] | Callable[[], float]) -> ShortRuns:
        return ShortRuns(problem, trained, by, pace, steps=trial_steps, settling=settling, ledger=own, seed=seed)

    by = judge or judging
    pace, rates = thrifty, Rates(runs(thrifty, by).loss_after)
    if judge is not None and not rates.gain(rates.best) > 0:  # as of an accuracy that stays what it was
        by, rates = judging, Rates(runs(thrifty, judging).loss_after)
    if measured_pace != thrifty:
        longer = Rates(runs(measured_pace, by).loss_after, around=rates.chosen)
        if longer.is_clearly_better_than(rates):
            pace, rates = measured_pace, longer
    if ledger is not None:
        ledger.add(own)
    by_what = "the upper loss" if by is judging else "the judge's number"
    reasons = {
        "lr": reason_of_rate(rates, trial_steps, by_what),
        "lower_lr": reason_of_step(constants),
        "step": "The same: a term of the series and a lower step contract alike. It follows the curvature ('auto').",
        "terms": reason_of_terms(series, pace.terms, measured_pace.terms, constants),
        "lower_steps": reason_of_lower_steps(pace, measured_pace, interval, steps, wanted),
    }
    return Suggestion(
        lr=rates.chosen,
        lower_lr=step,
        step=step,
        terms=pace.terms,
        lower_steps=pace.lower_steps,
        reasons=reasons,
        steps=steps,
        trial_steps=trial_steps,
        constants=constants,
        series=series,
        losses=dict(sorted(rates.losses.items())),
    )


def _check(problem: Problem, judge: Callable[[], float] | None) -> None:
    if not isinstance(problem, Problem):
        raise SettingError(f"suggest takes a problem (solver.problem), but came {type(problem).__name__}.")
    if problem.processes.active or problem.x_is_sharded:
        raise SettingError(
            "This problem is shared by several processes, but settings are suggested in one. Build it with group=None "
            "for that, from the same losses and parameters."
        )
    if judge is not None and not callable(judge):
        raise SettingError(f"judge={judge!r} cannot be called; it is a function without arguments that gives a number.")


def _taken(draws: Iterable[Draw]) -> list[Draw]:
    if not isinstance(draws, Iterable):
        raise SampleError(f"suggest takes several draws, but came {type(draws).__name__}. Give a list, or a stream.")
    taken = list(islice(draws, MOST_DRAWS))
    if not taken:
        raise SampleError("suggest found no draw. Give a list of some, or a stream: adambo.draws(...) has no end.")
    for draw in taken:
        if not isinstance(draw, Draw) or not draw.upper or not (draw.lower or draw.cross or draw.hessian):
            raise SampleError(
                "suggest needs an upper and a lower batch in every draw: Draw(upper=(batch,), lower=(batch,))."
            )
    return taken


def _divided(taken: list[Draw]) -> tuple[list[Draw], list[Draw]]:
    """Those to run on and those to judge by; the same ones where there are very few."""
    if len(taken) < JUDGING:
        return taken, taken
    return [draw for k, draw in enumerate(taken) if k % JUDGING], taken[::JUDGING]


def _settling(constants: EstimatedConstants) -> int:
    """Lower steps that lead y close to y*(x), where there is one and that is affordable."""
    fewest, most = SETTLING
    if constants.mu.value <= 0:
        return fewest
    return math.ceil(min(most, max(fewest, 3 * constants.l_g1.value / constants.mu.value)))


def _series(
    problem: Problem, draws: Sequence[Draw], step: float, settling: int, ledger: Ledger, seed: int
) -> dict[int, float]:
    """What ∇²xy g z misses by number of terms, near y*(x)."""
    with untouched(problem, seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver = Pace(step, 1, 1).solver(problem, 0.0)
        try:
            settle(solver, draws, settling)
        finally:
            ledger.add(solver.ledger)
        return dict(zip(LENGTHS, series_errors(problem, draws, step, LENGTHS, ledger, seed), strict=True))


def _steps_between_visits(problem: Problem, draws: Sequence[Draw]) -> float:
    """Of a task; without tasks, y moves in every step."""
    if problem.tasks is None:
        return 1.0
    rows = sum(problem.lower_variable(draw).blocks for draw in draws)
    return len(problem.y[0]) * len(draws) / rows
