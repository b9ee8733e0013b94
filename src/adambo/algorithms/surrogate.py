"""Steps in two halves, for frameworks that own `backward()` and `optimizer.step()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info
from adambo.draws import Batch, Draw
from adambo.errors import StateError
from adambo.guard import LowerState, undone_on_failure
from adambo.point import Point
from adambo.vectors import Vector, scaled


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
        if self._pending:
            raise StateError("A surrogate waits for its update(); finish it before a step that does everything itself.")
        return super().step(draw, lower_batch)

    step.__doc__ = Algorithm.step.__doc__

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._pending = ()

    def surrogate(self, draw: Draw | Batch, lower_batch: Batch = Algorithm.ABSENT) -> Tensor:
        """The scalar S whose gradient in x is the hypergradient, for frameworks that own `backward()`:

            S = solver.surrogate(draw); S.backward(); solver.upper_optimizer.step(); solver.update()

        y_{t+1} is computed here, at (x_t, y_t), and written by `update`. Several surrogates before one update
        accumulate as gradients do: x.grad adds up, and y takes the mean of the lower gradients. With
        `hypergradient_at="updated"`, y must already be y_{t+1} when S is differentiated, so it is written here.
        With several processes, averaging x.grad is left to what owns the backward pass (DDP, FSDP2).
        """
        if self._pending and (self.lower_steps > 1 or self.hypergradient_at == "updated"):
            raise StateError(
                f"A surrogate waits for update(), and with lower_steps={self.lower_steps}, hypergradient_at="
                f"'{self.hypergradient_at}' there is no mean of two of them: each starts from the same y. Call "
                "update() after every surrogate, or accumulate with lower_steps=1, hypergradient_at='current'."
            )
        return self._attempt(self._surrogate, self._taken(draw, lower_batch))

    def update(self) -> None:
        """Write the y_{t+1} of the surrogates since the last update."""
        if not self._pending:
            raise StateError("update() finds nothing to write: call surrogate(draw) and S.backward() first.")
        point = self._pending[-1].point
        with undone_on_failure(point.y, self.lower_optimizer) as before:
            _move_lower(self, self._pending)
            if not self.guard.on_host:
                point.y.assign(self.guard.masked(point.y.values(), before.values))
        for pending in self._pending:
            self.finish(pending.point)
        for p in self.problem.y:
            p.grad = None  # what S.backward() left there is no lower gradient
        self._pending = ()
        self.steps += 1

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
            self.guard.admit("The surrogate", S)
            if self.lower_steps == 1 and self.hypergradient_at == "current":
                g, gradient = point.lower_gradient()
                self.guard.admit("The lower loss", g, *gradient)
            self.guard.settle(self.lower_optimizer)
        self._pending = (*self._pending, _Pending(point, gradient, after))
        return S


@dataclass
class _Pending:
    """A surrogate whose y_{t+1} is not written yet: a lower gradient, or the state after several lower steps."""

    point: Point
    gradient: Vector | None
    after: LowerState | None


def _move_lower(solver: SurrogateSteps, pending: tuple[_Pending, ...]) -> None:
    last = pending[-1]
    if last.after is not None:
        last.after.restore()
    elif last.gradient is not None and solver.problem.tasks is None:
        total = [sum(parts[1:], start=parts[0]) for parts in zip(*[p.gradient or [] for p in pending], strict=True)]
        last.point.y.descend(scaled(total, 1 / len(pending)), solver.lower_optimizer, solver.guard.apply)
    elif last.gradient is not None:
        for p in pending:
            p.point.y.descend(p.gradient or [], solver.lower_optimizer, solver.guard.apply)
