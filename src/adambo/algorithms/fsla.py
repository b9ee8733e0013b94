"""FSLA (Li, Gu, Huang; AAAI 2022): one step of y, one of the linear system, and recursive momentum above.

    symbol           here
    x, y, z          problem.x, problem.y, solver.recall("z", point); z = +[∇²yy g]⁻¹ ∇y f
    η, γ, ν          lr, lower_lr, z_lr
    m, ρ             info.m; rho, the weight of the new estimate
    ξ, ζ, ζ', ζ⁰     draw.upper, draw.lower, draw.hessian, draw.cross

Oracle calls per step: 2 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 2 ∇²xy g; one of each in the first.
"""

from __future__ import annotations

from typing import ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_weight
from adambo.algorithms.two_points import TwoPoints
from adambo.draw import Draw, Needs
from adambo.point import Point
from adambo.problem import Problem
from adambo.updates import RecursiveMomentum
from adambo.vectors import Vector


class FSLA(RunningZ, TwoPoints):
    r"""One step; h_t(x, y, z) = ∇x f − ∇²xy g z is taken on the draw of step t, the same at both points:

        y_{t+1} = y_t − γ ∇y g(x_t, y_t)
        z_{t+1} = z_t − ν (∇²yy g z_t − ∇y f)          at (x_t, y_{t+1})
        m_t     = h_t(x_t, y_{t+1}, z_{t+1}) + (1 − ρ) (m_{t−1} − h_t(x_{t−1}, y_t, z_t))
        x_{t+1} = x_t − η m_t

    In the first step m_0 = h_0. With tasks, y_t and z_t are what the rows hold when the step begins.

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size.
        rho: ρ; 1 is plain SGD along h_t.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = FSLA(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    summary: ClassVar = "recursive (STORM) momentum above, SGD below, a running solution z of the linear system"
    cost: ClassVar = "2 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 2 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 5e-3,
        lower_lr: float = 5e-3,
        z_lr: float | None = None,
        rho: float = 0.6,
    ) -> None:
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, cross=1, hessian=1),
            upper_optimizer=RecursiveMomentum(problem.x, checked_rate(lr, "lr"), beta=checked_weight(rho, "rho")),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger, masks=self.same_masks(draw))
        with self.undone_on_failure(point) as before:
            lower_loss = self.descend(point)  # y_{t+1}
            point = point.after_move()
            self.guard.watch("the upper loss", point.f)
            z = self.recall("z", point)
            z_next = self.z_step(z, point.hessian(z), point.f_y)
            point.backward(z_next)  # x.grad <- h_t(x_t, y_{t+1}, z_{t+1})
            self.upper_optimizer.look_back(self.hypergradient_at_previous(point, y=before.values))
            self.commit(point, before, z=z_next)  # m_t, x_{t+1}
        return Info(self, point.f, lower_loss, z=z_next, m=self.upper_state("m"))

    def solve_again(self, previous: Point) -> Vector:
        """z_t, what the memory still holds: nothing is solved anew at (x_{t−1}, y_t)."""
        return self.recall("z", previous)
