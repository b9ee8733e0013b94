"""Steps in two halves, for frameworks that own `backward()` and `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info
from adambo.draw import Batch, Draw
from adambo.errors import StateError
from adambo.guard import LowerState, undone_on_failure
from adambo.lower_variable import LowerVariable, TableRows
from adambo.point import Point
from adambo.processes import is_sharded
from adambo.vectors import Vector


class SurrogateSteps(Algorithm):
    """An algorithm whose hypergradient is one backward pass, so that someone else may run it.

    Attributes:
        lower_steps: Lower steps per upper step.
        hypergradient_at: "current" or "updated": before or after the lower steps.
    """

    lower_steps: int
    hypergradient_at: str
    _pending: tuple[_Pending, ...] = ()

    def step(self, draw: Draw | Batch, lower_batch: Batch = Algorithm.ABSENT) -> Info:
        self._refuse_while_pending("a step that does everything itself")
        return super().step(draw, lower_batch)

    step.__doc__ = Algorithm.step.__doc__

    def warm_start(self, lower_batches: Iterable[Batch]) -> None:
        self._refuse_while_pending("a warm start")
        super().warm_start(lower_batches)

    warm_start.__doc__ = Algorithm.warm_start.__doc__

    def load_own_state(self, own: dict[str, Any]) -> None:
        super().load_own_state(own)
        self._pending = ()

    def surrogate(self, draw: Draw | Batch, lower_batch: Batch = Algorithm.ABSENT) -> Tensor:
        """The scalar S whose gradient in x is the hypergradient, for frameworks that own `backward()`:

            S = solver.surrogate(draw); S.backward(); solver.upper_optimizer.step(); solver.update()

        y_{t+1} is computed here, at (x_t, y_t), and written by `update`. Several surrogates before one update
        accumulate as gradients do: x.grad adds up (divide S by their number for a mean), and y takes the mean of the
        lower gradients; this needs `lower_steps=1` and `hypergradient_at="current"`. With
        `hypergradient_at="updated"`, y must already be y_{t+1} when S is differentiated, so it is written here.
        With several processes, averaging x.grad is left to what owns the backward pass (DDP, FSDP2).
        """
        if any(p.x_versions != self._x_versions() for p in self._pending):
            raise StateError(
                "x has moved since the last surrogate, but its y_{t+1} was not written. Call update() after "
                "upper_optimizer.step()."
            )
        if self._pending and (self.lower_steps > 1 or self.hypergradient_at == "updated"):
            raise StateError(
                f"A surrogate waits for update(), and with lower_steps={self.lower_steps}, hypergradient_at="
                f"'{self.hypergradient_at}' there is no mean of two of them: each starts from the same y. Call "
                "update() after every surrogate; AdamBO(lower_steps=1, hypergradient_at='current') can accumulate them."
            )
        return self._attempt(self._surrogate, self._begin(draw, lower_batch))

    def update(self) -> None:
        """Write the y_{t+1} of the surrogates since the last update."""
        if not self._pending:
            raise StateError("update() finds nothing to write: call surrogate(draw) and S.backward() first.")
        y = self._moved_by(self._pending)
        with undone_on_failure(y, self.lower_optimizer) as before:
            after, gradients = self._pending[-1].after, [p.gradient for p in self._pending if p.gradient is not None]
            if after is not None:
                after.restore()
            elif gradients:
                y.descend(_mean(gradients, self._pending, y), self.lower_optimizer, self.guard.apply)
            if not self.guard.on_host:
                before.restore(where=self.guard)
        y.write_back()
        for pending in self._pending:
            if self.inverse is not None:
                self.inverse.accept(pending.point, pending.z, self.guard)
        for p in (*self.problem.x, *self.problem.y):
            p.grad = None  # used up in x; and what S.backward() left in y is no lower gradient
        self.guard.end_step()
        self._pending = ()
        self.steps += 1

    def _moved_by(self, pending: tuple[_Pending, ...]) -> LowerVariable:
        """The part of y that several surrogates are about: with tasks, all rows that one of them names."""
        if len(pending) == 1 or self.problem.tasks is None:
            return pending[-1].point.y
        return TableRows(self.problem.y, self.problem.processes, torch.unique(_ids(pending)))

    def _surrogate(self, draw: Draw) -> Tensor:
        point = self.problem.at(draw, self.ledger)
        gradient: Vector | None = None
        after: LowerState | None = None
        with undone_on_failure(point.y, self.lower_optimizer) as before:
            if self.lower_steps > 1 or self.hypergradient_at == "updated":
                self.descend(point)
                point = point.after_move()
            if self.lower_steps > 1 and self.hypergradient_at == "current":
                after = LowerState(point.y, self.lower_optimizer)
                before.restore()
            z = self.solve(point)
            S = point.surrogate(z)
            self.guard.watch("the surrogate", S)
            if self.lower_steps == 1 and self.hypergradient_at == "current":
                gradient = point.lower_gradient()
                self.guard.watch("the lower loss", point.lower_loss(), *gradient)
            self.guard.settle(self.lower_optimizer)
        self._pending = (*self._pending, _Pending(point, z, gradient, after, self._x_versions()))
        return S

    @property
    def _waiting(self) -> int:  # type: ignore[override]
        return len(self._pending)

    def _x_versions(self) -> list[int]:
        return [p._version for p in self.problem.x if not is_sharded(p)]

    def _refuse_while_pending(self, what: str) -> None:
        if self._pending:
            raise StateError(f"A surrogate waits for its update(); finish it before {what}.")


@dataclass
class _Pending:
    """A surrogate whose y_{t+1} is not written yet: a lower gradient, or the state after several lower steps."""

    point: Point
    z: Vector
    gradient: Vector | None
    after: LowerState | None
    x_versions: list[int]


def _ids(pending: tuple[_Pending, ...]) -> Tensor:
    return torch.cat([p.point.y.ids for p in pending if isinstance(p.point.y, TableRows)])


def _mean(gradients: list[Vector], pending: tuple[_Pending, ...], y: LowerVariable) -> Vector:
    """The mean lower gradient; with tasks, each row's over the surrogates that name its task."""
    if len(gradients) == 1:
        return gradients[0]
    columns = zip(*gradients, strict=True)
    if not isinstance(y, TableRows):
        return [torch.stack(parts).mean(dim=0) for parts in columns]
    _, place, counts = torch.unique(_ids(pending), return_inverse=True, return_counts=True)
    pairs = zip(y.values(), columns, strict=True)
    sums = [torch.zeros_like(row).index_add_(0, place, torch.cat(parts)) for row, parts in pairs]
    return [total / counts.view(-1, *[1] * (total.dim() - 1)) for total in sums]
