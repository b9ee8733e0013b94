"""MA-SOBA (Chen, Xiao, Balasubramanian; JMLR 2024): SOBA along a moving average of its hypergradients.

    symbol           here
    x, y, z          problem.x, problem.y, solver.recall("z", point); z = +[∇²yy g]⁻¹ ∇y f
    η, γ, ν          lr, lower_lr, z_lr
    m, β             info.m; beta, the weight of the new hypergradient
    ξ, ζ, ζ', ζ''    draw.upper, draw.lower, draw.hessian, draw.cross; one batch may serve the last three

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g.
"""

from __future__ import annotations

from typing import ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_choice, checked_weight
from adambo.draw import Draw, Needs
from adambo.problem import Problem
from adambo.updates import MovingAverage


class MASOBA(RunningZ):
    r"""One step, everything taken at (x_t, y_t, z_t):

        x_{t+1} = x_t − η m_t
        y_{t+1} = y_t − γ ∇y g
        z_{t+1} = z_t − ν (∇²yy g z_t − ∇y f)
        m_{t+1} = (1 − β) m_t + β (∇x f − ∇²xy g z_t)

    x moves along the m of the step before, so that the first step leaves it where it is. With `lagged=False`, as in
    published code, it moves along m_{t+1}; `beta=1` is then SOBA with fresh samples.

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size.
        beta: β.
        lagged: Whether x moves along m_t (the paper) or m_{t+1}. Along a direction of curvature λ the lagged form is
            stable for ηλ < 1, the other one up to ηλ = 2(2 − β)/β: 38 for β = 0.1.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = MASOBA(problem, lr=0.02, lower_lr=0.3)
        >>> for _ in range(300):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    summary: ClassVar = "SOBA along a moving average of the hypergradients"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 5e-3,
        z_lr: float | None = None,
        beta: float = 0.1,
        lagged: bool = True,
    ) -> None:
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, cross=1, hessian=1),
            upper_optimizer=MovingAverage(
                problem.x,
                checked_rate(lr, "lr"),
                checked_weight(beta, "beta"),
                lagged=checked_choice(lagged, "lagged", (True, False)),
            ),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            self.guard.watch("the upper loss", point.f)
            z = self.recall("z", point)
            z_next = self.z_step(z, point.hessian(z), point.f_y)
            point.backward(z)  # x.grad <- ∇x f − ∇²xy g z_t
            lower_loss = self.descend(point)  # y_{t+1}; everything else was taken at y_t
            self.commit(point, before, z=z_next)  # m_{t+1}, x_{t+1}
        return Info(self, point.f, lower_loss, z=z_next, m=self.upper_state("m"))
