"""How long a method takes to 90 % of what the best one reaches, counted from chance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from adambo.report.curves import Curve
from adambo.report.records import Record, inside, number
from adambo.reproduction.archive import Case
from adambo.reproduction.spread import Form, Order, Spread, best, difference, over_seeds

SHARE = 0.9


@dataclass(frozen=True)
class Arrivals:
    """When each seed of a curve first scores `threshold`, in epochs or in seconds alone.

    Attributes:
        times: Of the seeds that reach it.
        ends: Where the others end, without having reached it; a run that diverged, where it was to end.
        staying: How many of the seeds that reach it are still there at the end. Crossing once is arrival, and says
            nothing about what comes after.
    """

    times: tuple[float, ...]
    ends: tuple[float, ...]
    staying: int

    @property
    def all(self) -> bool:
        return not self.ends

    @property
    def seeds(self) -> int:
        return len(self.times) + len(self.ends)

    def written(self, form: Form, remark: str = "") -> str:
        """The mean, or how many seeds do not reach it; and how many are still there at the end.

        Example:
            >>> Arrivals((2.0, 4.0), (), 1).written(lambda mean: ".1f")
            '3.0 ± 1.4 (1 of 2 stay)'
            >>> Arrivals((2.0,), (9.0, 9.0), 1).written(str), Arrivals((), (9.0,), 0).written(str)
            ('not reached (2 of 3; 1 stay)', 'not reached (1 of 1)')
        """
        if self.all:
            said, remarks = Spread(self.times).written(form), [f"{self.staying} of {self.seeds} stay"]
        else:
            said, remarks = "not reached", [f"{len(self.ends)} of {self.seeds}"]
            remarks += [f"{self.staying} stay"] if self.times else []
        return f"{said} ({'; '.join([remark] * bool(remark) + remarks)})"

    def sooner_than(self, other: Arrivals) -> Order:
        """Whether it is: "higher" if it is the sooner one, "lower" if the later, "within" the spread of known times.

        A seed that does not arrive would have done so after its end, if ever: its end is too early a time, which can
        show that the other method is sooner, never that its own is.
        """
        if not self.times and not other.times:
            return "undecided"
        if min(self.seeds, other.seeds) < 2:
            return "undecided"  # a single seed has no spread
        # One that never arrives is the later one if it had at least as long: a cheap method ends after fewer seconds.
        if self.all and not other.times and min(other.ends) >= max(self.times):
            return "higher"
        if other.all and not self.times and min(self.ends) >= max(other.times):
            return "lower"
        lead = difference(Spread(other.times + other.ends), Spread(self.times + self.ends)).over()
        shown = {"higher": self.all, "lower": other.all, "within": self.all and other.all}
        return lead if shown.get(lead) else "undecided"


def threshold(case: Case, curves: Iterable[Curve] | None = None) -> float | None:
    """chance + 0.9 (best − chance), best being the highest mean of the seeds' best test scores of any curve.

    None if no curve is better than chance, or than a network before its first step: everything would have arrived
    before it began.
    """
    shown = list(case.group.curves if curves is None else curves)
    highest = _highest(best(curve, "test", case.group.metric) for curve in shown)
    untrained = _highest(over_seeds(curve, lambda record: _at_once(record, case.group.metric)) for curve in shown)
    if highest is None or highest <= max(case.chance, case.chance if untrained is None else untrained):
        return None
    return case.chance + SHARE * (highest - case.chance)


def arrivals(curve: Curve, axis: str, metric: str, at: float) -> Arrivals | None:
    """Of a curve along `axis`, "epoch" or "seconds"; None where the axis is not known, as seconds may not be."""
    if any(record.evaluations and record.cost(axis) is None for record in curve.records):
        return None
    times, ends, staying = [], [], 0
    longest = max((_end(record, axis) for record in curve.records), default=0.0) or inf
    for record in curve.records:
        arrival = _first(record, axis, metric, at)
        if arrival is None:
            # One that diverged before its first evaluation had the budget of the other seeds.
            ends.append(_end(record, axis) or longest)
        else:
            times.append(arrival)
            staying += _stays(record, metric, at)
    return Arrivals(tuple(times), tuple(ends), staying)


def _stays(record: Record, metric: str, at: float) -> bool:
    """Whether it ends there; a run that diverged has not come to its end."""
    score = record.last("test", metric)
    return record.state != "diverged" and score is not None and score >= at


def _end(record: Record, axis: str) -> float:
    """Of a run that diverged, the end it was made for: given all that time, it would not have arrived either."""
    end, epoch, planned = (record.cost(axis) or 0.0), record.cost("epoch"), number(record.config.get("epochs"))
    if axis == "epoch" and record.state == "diverged" and planned:
        return planned
    return end * max(1.0, planned / epoch) if record.state == "diverged" and planned and epoch else end


def _highest(spreads: Iterable[Spread | None]) -> float | None:
    return max((spread.mean for spread in spreads if spread is not None), default=None)


def _at_once(record: Record, metric: str) -> float | None:
    """The test score before the first step."""
    before = [evaluation for evaluation in record.evaluations if number(evaluation.get("step")) == 0]
    return number(inside(before[0], "test").get(metric)) if before else None


def _first(record: Record, axis: str, metric: str, at: float) -> float | None:
    for evaluation in record.evaluations:
        score = number(inside(evaluation, "test").get(metric))
        if score is not None and score >= at:
            return number(evaluation.get(axis))
    return None
