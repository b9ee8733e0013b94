"""Which samples the steps of many runs draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from adambo.studies.batched_problems import Indices

CHUNK = 256  # steps whose samples are drawn at once


@dataclass(frozen=True)
class Samples:
    """The samples of one step.

    Attributes:
        upper, lower, cross, hessian: (count, runs) each.
        level: Of random truncation, (runs,).
    """

    upper: Indices
    lower: Indices
    cross: Indices
    hessian: Indices
    level: Indices


class Sampler:
    """Samples for the runs, drawn from one generator per run: runs of one seed see the same samples.

    Args:
        seeds: One per run.
        samples: How many a problem has.
        needs: Of the method.
        levels: Q, of which a level of random truncation is drawn.

    Example:
        >>> sampler = Sampler([0, 0, 1], samples=4, needs=(1, 2, 1, 5), levels=6)
        >>> [step.hessian.shape for step in sampler.steps(2)]
        [(5, 3), (5, 3)]
    """

    def __init__(self, seeds: Sequence[int], samples: int, needs: tuple[int, int, int, int], levels: int) -> None:
        self.distinct = sorted(set(seeds))
        self.where = np.searchsorted(self.distinct, seeds)
        self.samples, self.needs, self.levels = samples, needs, levels
        self.generators = [np.random.default_rng([0, seed]) for seed in self.distinct]

    def steps(self, count: int) -> Iterator[Samples]:
        """The samples of `count` steps."""
        ends = np.cumsum(self.needs)[:-1]
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            numbers = self._drawn(self.samples, size, sum(self.needs))
            levels = self._drawn(self.levels, size, 1)
            for drawn, level in zip(numbers, levels, strict=True):
                upper, lower, cross, hessian = np.split(drawn, ends)
                yield Samples(upper, lower, cross, hessian, level[0])

    def lower(self, count: int) -> Indices:
        """Samples of a warm start: (count, runs)."""
        return self._drawn(self.samples, count, 1)[:, 0]

    def _drawn(self, below: int, size: int, width: int) -> Indices:
        """(size, width, runs)."""
        drawn = [g.integers(below, size=(size, width)) for g in self.generators]
        return np.stack(drawn, axis=-1)[:, :, self.where]
