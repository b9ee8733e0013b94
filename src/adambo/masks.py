"""Dropout that draws the same mask whenever one batch is evaluated again.

Recursive methods subtract two evaluations of one sample. That cancels noise only if dropout is the same in both, so a
draw carries a seed, and every distinct batch object of it has a sub-seed of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from adambo.draw import ROLES, Batch, Draw

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that multiples of it differ modulo 2^63


class Repeatable(TorchFunctionMode):
    """Notices whether a loss is more than its graph shows, and would look different at another y.

    It is so if it draws random numbers, writes into a buffer, or looks at the value of something that depends on y
    without differentiating it: a comparison, a detached copy, a number read on the host, a hook.

    Args:
        device: Whose random numbers are looked at, besides those of the CPU.
        buffers: Of the modules that are used.

    Example:
        >>> y = torch.ones(2, requires_grad=True)
        >>> with Repeatable(y.device, []) as plain:
        ...     loss = y.square().sum()
        >>> with Repeatable(y.device, []) as masked:
        ...     loss = (y.square() * (y > 0)).sum()
        >>> plain.still(), masked.still()
        (True, False)
    """

    def __init__(self, device: torch.device, buffers: list[Tensor]) -> None:
        super().__init__()
        self._generators, self._buffers = _generators(device), buffers
        self._before = self._traces()
        self._looked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._looked:
            name = getattr(func, "__name__", "")
            blind = isinstance(result, Tensor) and not result.requires_grad and not _SHAPE_ONLY.fullmatch(name)
            self._looked = kwargs.get("generator") is not None or (
                (blind or name in _LOOKS)
                and any(isinstance(t, Tensor) and t.requires_grad for t in tree_leaves((args, kwargs)))
            )
        return result

    def still(self) -> bool:
        """Whether nothing of that has happened."""
        (state, *others), (state_now, *others_now) = self._before, self._traces()
        return not self._looked and torch.equal(state, state_now) and others == others_now

    def _traces(self) -> list[Any]:
        cpu, *cuda = self._generators
        return [cpu.get_state(), *(g.get_offset() for g in cuda), *(b._version for b in self._buffers)]


_SHAPE_ONLY = re.compile(r".*_like|new_.*")
_LOOKS = {"item", "tolist", "numpy", "register_hook", "__bool__", "__float__", "__int__", "__index__", "__array__"}


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
        with _FromStates(self._generators):
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
    return nullcontext(), _FromStates(generators, [generator.get_state() for generator in generators])


class _FromStates(AbstractContextManager[None]):
    """Inside, generators go on from these states (or from where they are); outside, from where they were. As often as
    one likes, one after the other.
    """

    def __init__(self, generators: Sequence[Any], states: Sequence[Tensor] = ()) -> None:
        self._generators, self._states = generators, states
        self._before: list[Tensor] = []

    def __enter__(self) -> None:
        self._before = [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, self._states, strict=False):
            generator.set_state(state)

    def __exit__(self, *error: object) -> None:
        for generator, state in zip(self._generators, self._before, strict=True):
            generator.set_state(state)


def _generators(device: torch.device) -> list[Any]:
    generators: list[Any] = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators
