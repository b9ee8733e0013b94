"""For methods that carry a solution z of the linear system ∇²yy g z = ∇y f along, and improve it in every step."""

from __future__ import annotations

from typing import Any

from adambo.algorithms.base import Algorithm
from adambo.algorithms.optimizers import checked_rate
from adambo.problem import Problem
from adambo.vectors import Vector, add_, added


class RunningZ(Algorithm):
    """The step size of z, and the step itself. z starts at zero, in each task by itself.

    Args:
        problem: What is optimised.
        z_lr: ν; None follows the step size of the lower optimiser.
        others: As for `Algorithm`.
    """

    def __init__(self, problem: Problem, *, z_lr: float | None, **others: Any) -> None:
        super().__init__(problem, **others)
        self._z_lr = None if z_lr is None else checked_rate(z_lr, "z_lr")

    @property
    def z_lr(self) -> float:
        if self._z_lr is not None:
            return self._z_lr
        rate: float = self.lower_optimizer.param_groups[0]["lr"]
        return rate

    def z_step(self, z: Vector, product: Vector, f_y: Vector) -> Vector:
        """z − ν (∇²yy g z − ∇y f)"""
        z_next = added(z, product, -self.z_lr)
        add_(z_next, f_y, self.z_lr)
        return z_next
