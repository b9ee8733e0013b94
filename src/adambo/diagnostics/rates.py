"""Which rate to take, by what short runs at different ones have gained."""

from __future__ import annotations

import math
from collections.abc import Callable

FIRST = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LIMITS = (1e-9, 1e9)
NEARLY = 0.95  # of the gain of the best rate
CLEARLY = 1.02  # times the gain of another way of running


class Rates:
    """The smallest rate that gains nearly as much as the best. A smaller rate is the safer one in a longer run.

    Powers of ten are tried, beyond the first five where those do not have a best or a smallest good one between them;
    and then the rate halfway to each neighbour of the one chosen.

    Args:
        loss_after: The loss after a run at a rate, infinite if it failed; at 0, x rests.
        around: Try only this rate and the two beside it.

    Example:
        >>> found = Rates(lambda rate: abs(math.log10(rate) + 2.4) if rate else 9.0)
        >>> round(found.chosen, 5), len(found.losses)
        (0.00316, 8)
    """

    def __init__(self, loss_after: Callable[[float], float], around: float | None = None) -> None:
        self.losses = {0.0: loss_after(0.0)}  # y goes its way without x too
        for rate in FIRST if around is None else (around,):
            self.losses[rate] = loss_after(rate)
        while around is None and (beyond := self._beyond()) is not None:
            self.losses[beyond] = loss_after(beyond)
        middle = self.chosen
        for rate in (middle / math.sqrt(10), middle * math.sqrt(10)):
            self.losses[rate] = loss_after(rate)

    @property
    def tried(self) -> list[float]:
        return sorted(rate for rate in self.losses if rate)

    @property
    def best(self) -> float:
        return min(self.tried, key=lambda rate: self.losses[rate])

    def gain(self, rate: float) -> float:
        """How much lower the loss is than after a run in which x rests."""
        return self.losses[0.0] - self.losses[rate]

    @property
    def chosen(self) -> float:
        """The best of all, if none gains anything."""
        least = NEARLY * self.gain(self.best)
        return next(rate for rate in self.tried if self.gain(rate) >= least) if least > 0 else self.best

    def is_clearly_better_than(self, other: Rates) -> bool:
        return self.gain(self.best) > CLEARLY * other.gain(other.best)

    def _beyond(self) -> float | None:
        """The next power of ten on the side where one is missing."""
        low, high = self.tried[0], self.tried[-1]
        if self.chosen == low and low > LIMITS[0] and self.gain(low) > 0:
            return low / 10
        return high * 10 if self.best == high and high < LIMITS[1] else None
