"""What an algorithm asks of an inverse."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

from adambo.draw import Needs
from adambo.errors import StateError
from adambo.guard import Guard
from adambo.point import Point
from adambo.vectors import Vector


class Inverse(ABC):
    """Solves ∇²yy g z = v approximately. Subclasses give `needs` and `solve`; the rest is for those with a memory.

    One object belongs to one solver: a second solver takes a copy, as it was before the first used it.
    """

    needs: Needs
    _unused: Inverse | None = None

    def taken(self) -> Inverse:
        """The object for one solver."""
        if self._unused is not None:
            return copy.deepcopy(self._unused).taken()
        self._unused = copy.deepcopy(self)
        return self

    @property
    def largest_curvature(self) -> float | None:
        """The largest eigenvalue of the lower Hessian, where it has been measured."""
        return None

    def prepare(self, point: Point, step: int) -> None:
        """Learn what is needed of the Hessian before step number `step` solves anything with it."""

    def draw_level(self, step: int) -> int | None:
        """The truncation level of step number `step`, for a draw that has none; None where there are no levels."""
        return None

    @abstractmethod
    def solve(self, point: Point, v: Vector) -> Vector:
        """z ≈ [∇²yy g]⁻¹ v at `point`."""

    def solve_again(self, point: Point, v: Vector) -> Vector:
        """The same at another point of the same draw, with all that `solve` has settled: one estimator for both."""
        return self.solve(point, v)

    def accept(self, point: Point, z: Vector, guard: Guard) -> None:
        """The step has succeeded: what `solve` found at `point` may be remembered."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], y: Vector) -> None:
        """Continue from `state`, for a lower variable like `y`."""
        if state:
            raise StateError(f"{type(self).__name__} has no state, but {sorted(state)} were given.")


def unpacked(state: dict[str, Any], names: set[str], owner: str) -> dict[str, Any]:
    """`state`, after checking that it has just these names."""
    if set(state) != names:
        raise StateError(f"The state of {owner} has {sorted(names)}, but {sorted(state)} were given.")
    return state
