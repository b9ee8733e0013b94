"""SOBA (Dagréou, Ablin, Vaiter, Moreau; NeurIPS 2022): x, y and the solution of the linear system move all at once.

    paper            here
    x, z, v          problem.x, problem.y, −solver.recall("z", point); z = +[∇²yy g]⁻¹ ∇y f here, so signs differ
    γ, ρ             lr, and lower_lr = z_lr (η, γ, ν below)
    i, j             draw.lower, draw.upper: one lower and one upper sample per step

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_choice
from adambo.draw import Draw, Needs
from adambo.problem import Problem


class SOBA(RunningZ):
    r"""One step, everything taken at (x_t, y_t, z_t):

        y_{t+1} = y_t − γ ∇y g
        z_{t+1} = z_t − ν (∇²yy g z_t − ∇y f)
        x_{t+1} = x_t − η (∇x f − ∇²xy g z_t)

    The paper takes ∇y g, ∇²yy g and ∇²xy g on one lower sample, so that one forward pass of g serves all three.

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size, as in the paper.
        fresh: True draws a batch of its own for each of ∇y g, ∇²yy g and ∇²xy g.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = SOBA(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    summary: ClassVar = "SGD on x, y and a running solution z of the linear system, all at once"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 5e-3,
        z_lr: float | None = None,
        fresh: bool = False,
    ) -> None:
        self.fresh = checked_choice(fresh, "fresh", (False, True))
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, cross=1, hessian=1) if fresh else Needs(upper=1, lower=1),
            upper_optimizer=sgd(problem.x, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )

    def advance(self, draw: Draw) -> Info:
        if not self.fresh:
            draw = replace(draw, cross=draw.lower[:1], hessian=draw.lower[:1])
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            self.guard.watch("the upper loss", point.f)
            z = self.recall("z", point)
            z_next = self.z_step(z, point.hessian(z), point.f_y)
            point.backward(z)  # x.grad <- ∇x f − ∇²xy g z_t
            lower_loss = self.descend(point)  # y_{t+1}; everything else was taken at y_t
            self.commit(point, before, z=z_next)  # x_{t+1}
        return Info(self, point.f, lower_loss, z=z_next)
