"""For methods that evaluate every draw twice: at the current point, and at the one before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from adambo.algorithms.base import Algorithm
from adambo.algorithms.state import check_forms
from adambo.errors import StateError
from adambo.point import Point
from adambo.processes import whole_or_local
from adambo.updates import RecursiveMomentum
from adambo.vectors import Vector, clones


class TwoPoints(Algorithm):
    """Both evaluations see the same batches, the same dropout masks and the same truncation level.

    Between steps one extra copy of x is held, x_{t−1}.
    """

    upper_optimizer: RecursiveMomentum
    _x_prev: Vector | None = None

    def at_previous(self, point: Point, y: Vector) -> AbstractContextManager[Point]:
        """The draw of `point` at x_{t−1}, and at `y`; from the second step on."""
        if self._x_prev is None:
            raise StateError("The state has steps behind it, but no x of the step before. It is damaged.")
        return point.elsewhere(self._x_prev, y)

    def hypergradient_at_previous(self, point: Point, y: Vector) -> Vector | None:
        """The estimate from the draw of `point` at (x_{t−1}, y); None in the first step, which has no point before."""
        if self.steps == 0:
            return None
        with self.at_previous(point, y) as previous:
            return self.watched(previous.hypergradient(self.solve_again(previous)))

    def solve_again(self, previous: Point) -> Vector:
        """z at the previous point, with the Neumann step of the current one."""
        assert self.inverse is not None
        return self.inverse.solve_again(previous, previous.f_y)

    def watched(self, h: Vector) -> Vector:
        self.guard.watch("the hypergradient at the previous point", *[whole_or_local(t) for t in h])
        return h

    def _before_x_moves(self) -> None:
        here = clones(self.problem.x)
        self._x_here = here if self._x_prev is None else self.guard.masked(here, self._x_prev)

    def _after_x_moved(self) -> None:
        self._x_prev = self._x_here  # not before: a hook of the optimiser may have raised
        del self._x_here

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"x_prev": self._x_prev}

    def load_own_state(self, own: dict[str, Any]) -> None:
        x_prev = own.pop("x_prev")
        if x_prev is not None:
            check_forms(x_prev, self.problem.x, "x_prev")
        self._x_prev = x_prev
        super().load_own_state(own)
