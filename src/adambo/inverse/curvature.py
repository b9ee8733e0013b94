"""The largest eigenvalue of the lower Hessian, by power iteration on Hessian-vector products."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from adambo.errors import CurvatureError, NonFiniteError
from adambo.guard import Guard
from adambo.inverse.base import unpacked
from adambo.lower_variable import TableRows
from adambo.point import Point
from adambo.vectors import as_blocks, from_blocks

FIRST_PRODUCTS = 20
LATER_PRODUCTS = 3
PERIOD = 128
KEPT = 0.9


class Curvature:
    """An estimate of λ_max(∇²yy g), kept up to date.

    It is made with 20 products in the first step, and refreshed with 3 more (from the vector found last) in the steps
    1, 2, 4, 8, … and then every 128 steps. Those steps read one number on the host; no other step does. Batches, and
    with tasks the rows themselves, differ from step to step, so an estimate falls slowly: a refresh takes the larger
    of what it found and 0.9 times the last value. With tasks each row has its own iteration, of 20 products at every
    refresh, and the largest counts; a step that sees a task for the first time refreshes too (where the ids of the
    tasks are on a GPU, asking for them would make it wait, and the schedule alone decides).

    An estimate holds from the step that makes it, but is forgotten if that step fails.
    """

    def __init__(self) -> None:
        self.largest: float | None = None
        self._direction: Tensor | None = None
        self._seen: frozenset[int] = frozenset()
        self._accepted: tuple[float | None, Tensor | None, frozenset[int]] = (None, None, self._seen)

    def begin_step(self) -> None:
        """Go back to what the last successful step knew."""
        self.largest, self._direction, self._seen = self._accepted

    def accept(self, guard: Guard) -> None:
        """The step was written, or masked: then a measurement of its own is forgotten (and only then one waits)."""
        if self._direction is not self._accepted[1] and not guard.has_masked():
            self._accepted = (self.largest, self._direction, self._seen)

    def is_due(self, point: Point, step: int) -> bool:
        return self.largest is None or _is_scheduled(step) or self._is_new(point)

    def _is_new(self, point: Point) -> bool:
        return point.y.tasks_of_all is not None and not point.y.tasks_of_all <= self._seen

    def estimate(self, point: Point, step: int) -> float:
        """Refresh the estimate at `point`; returns what was found there."""
        blocks, like = point.y.blocks, point.f_y
        u, products = self._direction, LATER_PRODUCTS
        if u is None or isinstance(point.y, TableRows):
            u, products = _start(point), FIRST_PRODUCTS
        rayleigh = growth = torch.zeros(())
        for _ in range(products):
            u = u / torch.linalg.vector_norm(u, dim=1, keepdim=True).clamp_min(torch.finfo(u.dtype).tiny)
            product = as_blocks(point.curvature(from_blocks(u, like)), blocks)
            rayleigh, growth = (u * product).sum(dim=1), torch.linalg.vector_norm(product, dim=1)
            u = product
        found = point.problem.processes.worst(torch.stack([-rayleigh.min(), growth.max()]))
        lowest, largest = -float(found[0]), float(found[1])
        if not largest < float("inf"):
            raise NonFiniteError(
                "The lower loss, or its Hessian, is NaN or infinite at this point, so it can choose no step size. "
                "Nothing was changed. Look at the lower batch, and for a kink in the loss (sqrt or norm at zero)."
            )
        if largest == 0.0:
            raise CurvatureError(
                "The lower loss has no curvature in y at this point (its Hessian is zero), so the lower problem has no "
                "unique solution and ∇²yy g no inverse. Add a regulariser such as mu/2 · ‖y‖² to the lower loss."
            )
        if lowest < 0:
            warnings.warn(
                f"The lower loss is not convex in y here: its dominant curvature is {lowest:.3g}. A Neumann series "
                "grows along such directions; add a regulariser to the lower loss, or use few terms.",
                RuntimeWarning,
                stacklevel=2,
            )
        kept = (KEPT if _is_scheduled(step) else 1.0) * (self.largest or 0.0)
        self.largest, self._direction = max(largest, kept), u
        self._seen |= point.y.tasks_of_all or frozenset()  # all processes measure together
        return largest

    def state_dict(self) -> dict[str, Any]:
        largest, direction, seen = self._accepted
        return {"largest": largest, "direction": direction, "seen": sorted(seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = unpacked(state, {"largest", "direction", "seen"}, "a curvature estimate")
        self._accepted = (state["largest"], state["direction"], frozenset(state["seen"]))
        self.begin_step()


def _is_scheduled(step: int) -> bool:
    return step % PERIOD == 0 or (step < PERIOD and step & (step - 1) == 0)


def _start(point: Point) -> Tensor:
    # A generator of its own: the random numbers of the user's program stay as they were.
    generator = torch.Generator().manual_seed(0)
    line = as_blocks(point.f_y, point.y.blocks)
    row = torch.randn(line.shape[1], generator=generator, dtype=torch.float64).to(line)
    return row.expand_as(line)
