"""A running solution z of ∇²yy g z = ∇y f, moved a little in every step."""

from __future__ import annotations

from typing import Any

from adambo.draw import Needs
from adambo.errors import SettingError, StateError
from adambo.guard import Guard
from adambo.inverse.base import Inverse, unpacked
from adambo.point import Point
from adambo.vectors import Vector, add_, added, zeros


class LinearSystem(Inverse):
    r"""Stochastic gradient descent on ½⟨z, Hz⟩ − ⟨z, v⟩, started where the last step ended (at first: 0).

        z ← z − ν (∇²yy g(·; ζ_i) z − v)      i = 1 … steps

    With tasks, each task keeps its own z.

    Args:
        lr: ν, below 2/λ_max.
        steps: Products per step, each on its own batch.

    Example:
        >>> LinearSystem(lr=0.1, steps=2).needs.hessian
        2
    """

    def __init__(self, lr: float, steps: int = 1) -> None:
        if not 0 < lr < float("inf") or steps < 1:
            raise SettingError(f"LinearSystem needs lr > 0 and steps ≥ 1, but was given lr={lr} and steps={steps}.")
        self.lr, self.steps = lr, steps
        self.needs = Needs(hessian=steps)
        self._z: Vector | None = None

    def solve(self, point: Point, v: Vector) -> Vector:
        z = zeros(v) if self._z is None else point.y.of_state(self._z)
        for index in range(self.steps):
            residual = point.hessian(z, index)
            z = added(z, residual, -self.lr)
            add_(z, v, self.lr)
        return z

    def accept(self, point: Point, z: Vector, guard: Guard) -> None:
        if self._z is None:
            self._z = zeros(point.problem.y)
        point.y.write_state(self._z, guard.masked(z, point.y.of_state(self._z)))
        point.y.share(self._z)

    def state_dict(self) -> dict[str, Any]:
        return {"z": self._z}

    def load_state_dict(self, state: dict[str, Any], y: Vector) -> None:
        z = unpacked(state, {"z"}, "LinearSystem")["z"]
        if z is not None and [t.shape for t in z] != [t.shape for t in y]:
            raise StateError(f"The state has z of shapes {[tuple(t.shape) for t in z]}, which are not those of y.")
        self._z = z
