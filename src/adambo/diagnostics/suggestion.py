"""Suggested settings, and the sentences that give the reason for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from adambo.diagnostics.constants import EstimatedConstants
from adambo.diagnostics.rates import CLEARLY, NEARLY, Rates
from adambo.diagnostics.short_runs import Pace
from adambo.inverse import Neumann

SAFETY = 1.25  # by which the curvature may grow before the step exceeds one over it
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of the series, in terms
MISSING = 0.1  # the part of ∇²xy g z that a series may miss
LAG = 0.25  # the part of the run by which y may lag behind x


@dataclass(frozen=True)
class Suggestion:
    """What `suggest` found: settings for `AdamBO`, a reason for each, and the numbers behind them.

    Attributes:
        lr, lower_lr: The rates of Adam on x and of SGD on y.
        step, terms: Of the Neumann series. The step is that of the start: as "auto", it follows the curvature.
        lower_steps: SGD steps on y in each step.
        reasons: A sentence for each of these, by name.
        steps, trial_steps: Of the run that it is for, and of the short runs.
        constants: The curvature of the lower level and the noise.
        series: The part of ∇²xy g z that is missing after so many terms.
        losses: How bad the end of a short run was, by lr; at 0, x rests and y goes its way.

    Example:
        >>> from adambo import AdamBO, Draw
        >>> from adambo.testing import Quadratic
        >>> problem = Quadratic(mu=1.0, L=4.0).problem()
        >>> from adambo.diagnostics import suggest
        >>> found = suggest(problem, [Draw((0,), (0,))], steps=40)
        >>> solver = AdamBO(problem, **found.settings())
        >>> round(found.lower_lr, 4), found.terms, found.lower_steps
        (0.2, 3, 1)
    """

    lr: float
    lower_lr: float
    step: float
    terms: int
    lower_steps: int
    reasons: dict[str, str]
    steps: int
    trial_steps: int
    constants: EstimatedConstants
    series: dict[int, float]
    losses: dict[float, float]

    def settings(self) -> dict[str, Any]:
        """Keyword arguments, for `AdamBO(problem, **suggestion.settings())`."""
        return {
            "lr": self.lr,
            "lower_lr": self.lower_lr,
            "lower_steps": self.lower_steps,
            "inverse": Neumann(terms=self.terms, step="auto"),
        }

    def __str__(self) -> str:
        lines = [f"{'setting':<12} {'value':>9}  why"]
        lines += [f"{name:<12} {getattr(self, name):>9.4g}  {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def reason_of_rate(rates: Rates, trial_steps: int, what: str) -> str:
    start, end, tried = rates.losses[0.0], rates.losses[rates.chosen], rates.tried
    if not rates.gain(rates.chosen) > 0:
        return (
            f"NOTHING HELPED: no rate from {tried[0]:.2g} to {tried[-1]:.2g} brought {what} below {start:.4g}, where "
            f"it is after {trial_steps} steps of y alone. Give more trial_steps, or look at the problem with "
            "check_hypergradient."
        )
    best = "the best"
    if rates.chosen != rates.best:
        best = f"at least {100 * NEARLY:.0f} % of what {rates.best:.2g} gained, the best"
    return (
        f"In {trial_steps} steps, {rates.chosen:.2g} brought {what} to {end:.4g} (y alone: {start:.4g}): {best} of "
        f"{len(tried)} rates. A smaller one is the safer one."
    )


def reason_of_step(constants: EstimatedConstants) -> str:
    mu, l_g1 = constants.mu, constants.l_g1.value
    reason = f"1/({SAFETY:g} l_g1): the largest eigenvalue of ∇²yy g is {l_g1:.4g}, the smallest {mu.value:.2g}."
    if mu.low > 0:
        return reason
    return reason + (" NOT CONVEX in y here: add a regulariser." if mu.value <= 0 else " (It may be zero.)")


def reason_of_terms(series: dict[int, float], terms: int, tried: int, constants: EstimatedConstants) -> str:
    missing = next(part for length, part in reversed(series.items()) if length <= terms)
    reason = f"With so many, {100 * missing:.0f} % of ∇²xy g z is missing."
    if terms < tried:
        more = f"{100 * (CLEARLY - 1):.0f} %"
        return f"{reason} Short runs with {tried} terms were tried, and did not bring the loss down by {more} more."
    if missing <= MISSING:
        return f"{reason} {100 * MISSING:.0f} % may be."
    condition = constants.l_g1.value / constants.mu.value if constants.mu.value > 0 else math.inf
    enough = next((length for length, part in series.items() if part <= MISSING), f"more than {LENGTHS[-1]}")
    return (
        f"CUT to `most`. {reason} {100 * MISSING:.0f} % may be, which takes {enough} terms "
        f"for a condition number of {condition:.3g}; raise `most`, or look at inverse=ConjugateGradient()."
    )


def reason_of_lower_steps(pace: Pace, measured: Pace, interval: float, steps: int, wanted: int) -> str:
    if pace.lower_steps < measured.lower_steps:
        return f"{measured.lower_steps} were tried with {measured.terms} terms, and were not worth it."
    visits = "" if interval == 1.0 else f" From one visit of a task to the next it is {interval:.3g} steps."
    reason = f"y makes {pace.terms} steps, as many as the series, in {LAG * steps:.3g} steps of x or fewer.{visits}"
    return reason if pace.lower_steps == wanted else f"CUT to `most` from {wanted}. {reason}"
