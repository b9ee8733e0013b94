"""How long a method takes to 90 % of what the best one reaches, counted from chance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adambo.report.curves import Curve
from adambo.report.records import Record, inside, number
from adambo.reproduction.archive import Case
from adambo.reproduction.spread import Form, Order, Spread, best, difference

SHARE = 0.9


@dataclass(frozen=True)
class Arrivals:
    """When each seed of a curve first scores `threshold`, in epochs or in seconds alone.

    Attributes:
        times: Of the seeds that reach it.
        ends: Where the others end, without having reached it.
    """

    times: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def all(self) -> bool:
        return not self.ends

    def written(self, form: Form) -> str:
        """The mean, or how many seeds do not reach it.

        Example:
            >>> Arrivals((2.0, 4.0), ()).written(lambda mean: ".1f"), Arrivals((2.0,), (9.0, 9.0)).written(str)
            ('3.0 ± 1.4', 'not reached (2 of 3)')
        """
        if self.all:
            return Spread(self.times).written(form)
        return f"not reached ({len(self.ends)} of {len(self.times) + len(self.ends)})"

    def sooner_than(self, other: Arrivals) -> Order:
        """Whether it is: "higher" if it is the sooner one, "lower" if the later.

        A seed that does not arrive would have done so after its end, if ever: its end is too early a time, which can
        show that the other method is sooner, never that its own is.
        """
        if not self.times and not other.times:
            return "undecided"
        if min(len(self.times + self.ends), len(other.times + other.ends)) < 2:
            return "undecided"  # a single seed has no spread
        if self.all and not other.times:
            return "higher"
        if other.all and not self.times:
            return "lower"
        lead = difference(Spread(other.times + other.ends), Spread(self.times + self.ends)).over()
        shown = self.all if lead == "higher" else other.all
        return lead if shown else "undecided"


def threshold(case: Case, curves: Iterable[Curve] | None = None) -> float | None:
    """chance + 0.9 (best − chance), best being the highest mean of the seeds' best test scores of any curve.

    None if no curve is better than chance: everything would have arrived before it began.
    """
    scores = [best(curve, "test", case.group.metric) for curve in curves or case.group.curves]
    highest = max((spread.mean for spread in scores if spread is not None), default=None)
    if highest is None or highest <= case.chance:
        return None
    return case.chance + SHARE * (highest - case.chance)


def arrivals(curve: Curve, axis: str, metric: str, at: float) -> Arrivals | None:
    """Of a curve along `axis`, "epoch" or "seconds"; None where the axis is not known, as seconds may not be."""
    times, ends = [], []
    for record in curve.records:
        if record.cost(axis) is None:
            return None
        arrival = _first(record, axis, metric, at)
        if arrival is None:
            ends.append(record.cost(axis) or 0.0)
        else:
            times.append(arrival)
    return Arrivals(tuple(times), tuple(ends))


def _first(record: Record, axis: str, metric: str, at: float) -> float | None:
    for evaluation in record.evaluations:
        score = number(inside(evaluation, "test").get(metric))
        if score is not None and score >= at:
            return number(evaluation.get(axis))
    return None
