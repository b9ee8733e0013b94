"""The averages of a method against the horizon, and the slopes of its seeds."""

from __future__ import annotations

import numpy as np

from adambo.studies.batched_problems import Array
from adambo.studies.interval import Interval, geometric

FITTED = 5  # of the horizons, the largest
NOISE, NOISES, NO_NOISE = 0.5, (0.05, 0.2, 0.8), 1e-3
RATIOS = ("β/4", "β", "4β")


class Curve:
    """Averages against horizons, (horizons, seeds), and the slopes of those seeds that did not diverge."""

    def __init__(self, horizons: list[int], averaged: list[list[list[float]]]) -> None:
        self.norm, self.square, self.end = (np.array([each[k] for each in averaged]) for k in range(3))
        self.finite = np.isfinite(self.square).all(axis=0)
        self.diverged = int((~self.finite).sum())
        self.slopes, self.square_slopes = (self._slopes(horizons, values) for values in (self.norm, self.square))
        self.last = geometric(self.norm[-1, self.finite].tolist()) if self.finite.any() else None

    def _slopes(self, horizons: list[int], values: Array) -> list[float]:
        if not self.finite.any():
            return []
        fits: list[float] = np.polyfit(np.log(horizons[-FITTED:]), np.log(values[-FITTED:, self.finite]), 1)[0].tolist()
        return fits

    @property
    def slope(self) -> Interval | None:
        return Interval.of(self.slopes) if self.slopes else None

    @property
    def square_slope(self) -> Interval | None:
        return Interval.of(self.square_slopes) if self.square_slopes else None

    @property
    def cells(self) -> list[str]:
        seen = [found.text() if found else "–" for found in (self.slope, self.square_slope, self.last)]
        return [*seen, f"{self.diverged} of {len(self.finite)}"]


Curves = dict[tuple[str, str, float], Curve]


def practical(ratio: str) -> str:
    """The name of AdamBO with a tiny λ and η in this ratio to β."""
    return f"AdamBO, λ = 1e-8, η = {ratio}"
