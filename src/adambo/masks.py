"""Dropout that draws the same mask whenever one batch is evaluated again.

Recursive methods subtract two evaluations of one sample. That cancels noise only if dropout is the same in both, so a
draw carries a seed, and every distinct batch object of it has a sub-seed of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from adambo.draw import ROLES, Batch, Draw

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that multiples of it differ modulo 2^63


class Repeatable:
    """Notices whether something drew random numbers or wrote into a buffer: done again, it would come out differently.

    Args:
        device: Whose random numbers are looked at, besides those of the CPU.
        buffers: Of the modules that are used.
    """

    def __init__(self, device: torch.device, buffers: list[Tensor]) -> None:
        self._generators, self._buffers = _generators(device), buffers
        self._before = self._traces()

    def still(self) -> bool:
        """Whether nothing of that has happened since."""
        (state, *others), (state_now, *others_now) = self._before, self._traces()
        return torch.equal(state, state_now) and others == others_now

    def _traces(self) -> list[Any]:
        cpu, *cuda = self._generators
        return [cpu.get_state(), *(g.get_offset() for g in cuda), *(b._version for b in self._buffers)]


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
        self._generators = _generators(device)

    @contextmanager
    def of(self, batch: Batch) -> Iterator[None]:
        """Evaluate `batch` inside."""
        with _from_states(self._generators, ()):
            for generator in self._generators:
                generator.manual_seed(self._sub_seed(batch))
            yield

    def _sub_seed(self, batch: Batch) -> int:
        if self._sub_seeds is None:
            distinct = dict.fromkeys(id(b) for role in ROLES for b in getattr(self._draw, role))
            self._sub_seeds = {key: (self._seed + place * _STRIDE) % 2**63 for place, key in enumerate(distinct)}
        return self._sub_seeds[id(batch)]


def repeating() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for doing something now and once more later, with the same random numbers both times.

    (What `torch.utils.checkpoint` offers for this looks for devices in its arguments, and a batch may be any object.)
    """
    generators = [torch.default_generator, *torch.cuda.default_generators]
    return nullcontext(), _from_states(generators, [generator.get_state() for generator in generators])


@contextmanager
def _from_states(generators: Sequence[Any], states: Sequence[Tensor]) -> Iterator[None]:
    before = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, states, strict=False):  # none are given: seeds follow
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _generators(device: torch.device) -> list[Any]:
    generators: list[Any] = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators
