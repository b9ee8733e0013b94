"""Numbers over seeds: mean and deviation, differences with their standard error, and when one is called higher."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from adambo.report.curves import Curve
from adambo.report.records import Record

FACTOR = 2.0  # standard errors by which means must differ
SEEDS = 3  # of either side, below which there is no verdict
RULE = (
    "One mean is called higher than another if they differ by more than 2 standard errors of the difference (Welch: "
    "√(s₁²/n₁ + s₂²/n₂), s with n − 1). With three seeds that is a rule of thumb and not a level of 95 %, for which "
    "Student's t would ask for about 2.8 to 4.3 standard errors; and nothing is corrected for the number of "
    "comparisons. Neither higher nor lower is called level, or within the spread."
)
Order = Literal["higher", "lower", "within", "undecided"]  # within the spread; undecided: for want of numbers
Form = Callable[[float], str]


@dataclass(frozen=True)
class Spread:
    """The values of the seeds.

    Example:
        >>> spread = Spread((0.5, 0.7, 0.6))
        >>> round(spread.mean, 3), round(spread.deviation, 3), str(spread)
        (0.6, 0.1, '0.6000 ± 0.1000')
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """With n − 1; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    def written(self, form: Form) -> str:
        mean, deviation = self.mean, self.deviation
        return format(mean, form(mean)) + ("" if deviation is None else f" ± {format(deviation, form(mean))}")

    def __str__(self) -> str:
        return self.written(lambda mean: ".4f")


class Difference(NamedTuple):
    """Of two means; its standard error is None if one of them is of a single seed."""

    mean: float
    error: float | None

    def over(self, margin: float = 0.0) -> Order:
        """Whether it lies above `margin`, below it, or within the spread by the rule; undecided for a single seed.

        Example:
            >>> Difference(0.05, 0.02).over(), Difference(0.05, 0.03).over(), Difference(-0.1, 0.01).over()
            ('higher', 'within', 'lower')
            >>> Difference(2 / 3, 1 / 3 - 1e-13).over()  # but for rounding, as far off as the rule allows
            'within'
        """
        if self.error is None:
            return "undecided"
        off, allowed = abs(self.mean - margin), FACTOR * self.error
        if off <= allowed or math.isclose(off, allowed, abs_tol=1e-12):
            return "within"
        return "higher" if self.mean > margin else "lower"

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.4f}"
        return f"{'+' if self.mean >= 0 else '−'}{abs(self.mean):.4f}{error}"


def difference(one: Spread, other: Spread) -> Difference:
    """`one` minus `other`, with Welch's standard error.

    Example:
        >>> difference(Spread((0.6, 0.8)), Spread((0.5, 0.5)))
        Difference(mean=0.2, error=0.1)
    """
    errors = [None if spread.deviation is None else spread.deviation**2 / len(spread.values) for spread in (one, other)]
    known = [error for error in errors if error is not None]
    error = round(math.sqrt(sum(known)), 12) if len(known) == 2 else None
    return Difference(round(one.mean - other.mean, 12), error)


def over_seeds(curve: Curve, of: Callable[[Record], float | None]) -> Spread | None:
    """A number of every run of a curve that has it; one that diverged counts with what it had at last."""
    return spread_of(map(of, curve.records))


def spread_of(values: Iterable[float | None]) -> Spread | None:
    known = tuple(value for value in values if value is not None)
    return Spread(known) if known else None


def as_early(curve: Curve, epoch: float) -> Curve:
    """The curve up to an epoch, of the runs that were judged then."""
    runs = [record.until(epoch) for record in curve.records]
    return replace(curve, records=[run for run in runs if run.cost("epoch") == epoch])


def final(curve: Curve, split: str, metric: str) -> Spread | None:
    return over_seeds(curve, lambda record: record.last(split, metric))


def best(curve: Curve, split: str, metric: str) -> Spread | None:
    return over_seeds(curve, lambda record: record.best(split, metric))
