"""Keeps a step from writing anything once a loss is not finite, without making an accelerator wait.

The values of a step are collected as they appear and judged together, just before the step is written. On a CPU a bad
one raises there. On CUDA the verdict stays on the device as one number, `bad`; it masks the updates of this and all
later steps (so the state stays what it was), a copy of it travels to the host in the background, and the error is
raised by the first call that finds it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adambo.errors import NonFiniteError
from adambo.lower_variable import LowerVariable
from adambo.processes import Processes
from adambo.vectors import Vector, one

_ADVICE = (
    "Nothing was changed: parameters, optimiser state and step count are those before the step. Look at the batch "
    "first; if it is sound, the run diverges: lower the learning rates."
)


HYPERGRADIENT = "the hypergradient"
SMALL = 2**16  # elements


class Guard:
    """Watches the values of one solver.

    Args:
        device: Where the parameters live.
        processes: All processes stop when one of them has to.
    """

    def __init__(self, device: torch.device, processes: Processes) -> None:
        self.processes = processes
        self.on_host = device.type != "cuda"
        self._admitted: dict[str, list[Tensor]] = {}
        self._verdict = torch.zeros(2, device=device)  # whether a value was bad, and how many steps were lost by it
        if not self.on_host:
            self._report = torch.zeros(2, pin_memory=True)
            self._arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @property
    def bad(self) -> Tensor:
        """1 on the device where a value was bad."""
        return self._verdict[0]

    def begin_step(self) -> None:
        """Forget what a failed step may have left."""
        self._admitted.clear()

    def watch(self, what: str, *tensors: Tensor) -> None:
        """Note `tensors`, called `what`, as values that must be finite before anything is written."""
        self._admitted.setdefault(what, []).extend(tensors)

    def settle(self, *optimizers: Optimizer) -> None:
        """The last word before a step is written: judge what was admitted.

        Optimisers that cannot be masked on the device (only the fused ones can) cost one synchronisation here.

        Raises:
            NonFiniteError: On the host. On CUDA the verdict masks the updates instead.
        """
        values = [t for tensors in self._admitted.values() for t in tensors]
        if self.on_host and not self.processes.active:
            if not _finite(values):
                raise self._error()
            return
        if values[0].is_cuda:
            gradients = self._admitted.get(HYPERGRADIENT, [])
            small = [t for t in gradients if t.numel() <= SMALL]
            others = [t for what, tensors in self._admitted.items() if what != HYPERGRADIENT for t in tensors]
            _judge(small, [*others, *(t for t in gradients if t.numel() > SMALL)], self.bad)
        elif not _finite(values):
            self.bad.fill_(1)
        if self.processes.active:
            self.bad.copy_(self.processes.worst(self.bad))
        if (self.on_host or not all(_takes_found_inf(optimizer) for optimizer in optimizers)) and self.bad:
            self.bad.zero_()
            raise self._error()

    def apply(self, optimizer: Optimizer) -> None:
        """`optimizer.step()`, which does nothing where a value was bad."""
        if self.on_host or not _takes_found_inf(optimizer):
            optimizer.step()
            return
        optimizer.found_inf = self.bad  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf  # type: ignore[attr-defined]

    def masked(self, values: Sequence[Tensor], saved: Sequence[Tensor]) -> Vector:
        """`values`, or `saved` where a value of the step was bad."""
        if self.on_host:
            return list(values)
        bad = self.bad > 0
        return [torch.where(bad, old, new) for new, old in zip(values, saved, strict=True)]

    def has_masked(self) -> bool:
        """Whether the step was masked, for those who can wait for the answer."""
        return not self.on_host and bool(self.bad)

    def end_step(self, counted: bool = True) -> None:
        """Let the values go, and send the verdict to the host in the background; nobody waits for it."""
        for tensors in self._admitted.values():
            tensors.clear()
        if not self.on_host:
            if counted:
                self._verdict[1] += self._verdict[0]
            self._report.copy_(self._verdict, non_blocking=True)
            self._arrived.record()

    def steps_lost(self, wait: bool = False) -> int | None:
        """How many counted steps were masked, if the host knows of a bad value (`wait`: if there is one)."""
        if self.on_host:
            return None
        if wait:
            self._arrived.synchronize()
        return int(self._report[1]) if self._arrived.query() and self._report[0] else None

    def clear(self) -> None:
        """Forget the bad value."""
        self._verdict.zero_()
        if not self.on_host:
            self._arrived.synchronize()  # a report on its way would bring it back
            self._report.zero_()

    def late_error(self) -> NonFiniteError:
        """What to raise for a bad value that an earlier step has met."""
        return NonFiniteError(
            f"In an earlier step one of these was NaN or infinite: {', '.join(self._admitted)}. That step and the ones "
            f"queued behind it were masked on the device. {_ADVICE}"
        )

    def _error(self) -> NonFiniteError:
        bad = [what for what, tensors in self._admitted.items() if not _finite(tensors)]
        named = ", ".join(bad) or "a value on another process"
        return NonFiniteError(f"Not a finite number (NaN or infinite): {named}. No step can be made from it. {_ADVICE}")


class LowerState:
    """The values of `y` and of its optimiser at one moment, to come back to."""

    def __init__(self, y: LowerVariable, optimizer: Optimizer) -> None:
        self.y, self._optimizer = y, optimizer
        self.values = y.values()
        self._state = {p: _copied(own) for p, own in optimizer.state.items()}

    def restore(self, where: Guard | None = None) -> None:
        """Come back to it; with a guard, only if the guard has seen a bad value (decided on the device)."""
        if where is not None:
            self.y.assign_where(where.bad > 0, self.values)
            return
        self.y.assign(self.values)
        self._optimizer.state.clear()
        self._optimizer.state.update({p: _copied(own) for p, own in self._state.items()})


@contextmanager
def undone_on_failure(y: LowerVariable, optimizer: Optimizer) -> Iterator[LowerState]:
    """Put `y` and its optimiser back if the block raises; yields what they were on entry."""
    saved = LowerState(y, optimizer)
    try:
        yield saved
    except BaseException:
        saved.restore()
        raise


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


@torch.no_grad()
def _finite(values: Sequence[Tensor]) -> bool:
    # A sum is finite exactly when all its terms are, short of overflow, and on a CPU it is the fastest pass there is.
    return all(math.isfinite(t.sum(dtype=_WIDE.get(t.dtype))) for t in values)


@torch.no_grad()
def _judge(small: list[Tensor], others: list[Tensor], bad: Tensor) -> None:
    """bad ← 1 if one of the values is not finite; on the device.

    Norms only read memory, but give the host a tensor for each tensor. The many small gradients of a network, and
    the norms of the others, are left to what gradient scaling uses: one call, that also multiplies them with 1.
    """
    norms = [torch.stack(torch._foreach_norm(others, math.inf))] if others else []
    torch._amp_foreach_non_finite_check_and_unscale_([*small, *norms], bad, one(bad))


_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _takes_found_inf(optimizer: Optimizer) -> bool:
    if getattr(optimizer, "masks_on_device", False):  # the rules of updates.py
        return True
    return all(group.get("fused") for group in optimizer.param_groups)
