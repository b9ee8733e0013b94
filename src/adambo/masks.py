"""Dropout that draws the same mask whenever one batch is evaluated again.

Recursive methods subtract two evaluations of one sample. That cancels noise only if dropout is the same in both, so a
draw carries a seed, and every distinct batch object of it has a sub-seed of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from adambo.draw import ROLES, Batch, Draw

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that multiples of it differ modulo 2^63


class SameMasks:
    """Seeds torch's generators before each evaluation of a batch, and puts them back afterwards.

    Args:
        draw: Its batches get sub-seeds in the order of their first appearance: upper, lower, cross, hessian.
        seed: Where they follow from.
        device: Where the losses are computed.
    """

    def __init__(self, draw: Draw, seed: int, device: torch.device) -> None:
        self._draw, self._seed = draw, seed
        self._sub_seeds: dict[int, int] | None = None
        self._generators: list[Any] = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generators.append(torch.cuda.default_generators[index])

    @contextmanager
    def of(self, batch: Batch) -> Iterator[None]:
        """Evaluate `batch` inside."""
        before = [generator.get_state() for generator in self._generators]
        for generator in self._generators:
            generator.manual_seed(self._sub_seed(batch))
        try:
            yield
        finally:
            for generator, state in zip(self._generators, before, strict=True):
                generator.set_state(state)

    def _sub_seed(self, batch: Batch) -> int:
        if self._sub_seeds is None:
            distinct = dict.fromkeys(id(b) for role in ROLES for b in getattr(self._draw, role))
            self._sub_seeds = {key: (self._seed + place * _STRIDE) % 2**63 for place, key in enumerate(distinct)}
        return self._sub_seeds[id(batch)]
