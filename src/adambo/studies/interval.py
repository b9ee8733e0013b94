"""A number over several seeds: its mean with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from adambo.errors import SampleError


class Interval(NamedTuple):
    """The mean over seeds, and where 95 of 100 such intervals hold the true mean (Student's t).

    Attributes:
        mean: Of the seeds.
        low, high: Ends of the interval; infinite for one seed.
        seeds: How many.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The interval of one value per seed.

        Raises:
            SampleError: If there are none, or one is not finite.

        Example:
            >>> Interval.of([1.0, 2.0, 3.0]).text()
            '2 [−0.484, 4.48]'
        """
        from scipy.stats import t

        if not values or not all(map(math.isfinite, values)):
            raise SampleError(f"A mean over seeds needs one finite value or more, but came {list(values)}.")
        mean = fmean(values)
        if len(values) == 1:
            return cls(mean, -math.inf, math.inf, 1)
        half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, len(values))

    def text(self, digits: int = 3) -> str:
        """As tables show it.

        Example:
            >>> Interval(-0.2513, -0.2611, -0.2414, 10).text()
            '−0.251 [−0.261, −0.241]'
        """
        mean, low, high = (f"{value:.{digits}g}".replace("-", "−") for value in self[:3])
        return f"{mean} [{low}, {high}]"


def geometric(values: Sequence[float]) -> Interval:
    """The interval of the geometric mean, for numbers that differ by factors.

    Example:
        >>> round(geometric([1.0, 100.0]).mean, 6)
        10.0
    """
    if any(value <= 0 for value in values):
        raise SampleError(f"A geometric mean needs positive numbers, but came {list(values)}.")
    found = Interval.of([math.log(value) for value in values])
    low, high = (math.exp(min(end, 700.0)) for end in (found.low, found.high))
    return Interval(math.exp(found.mean), low, high if math.isfinite(found.high) else math.inf, found.seeds)
