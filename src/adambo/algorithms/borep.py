"""BO-REP (Hao, Gong, Liu; ICLR 2024): normalised momentum above, periodic lower rounds inside a ball below.

    paper            here
    x, y, z          problem.x, problem.y, solver.recall("z", point); z = +[∇²yy g]⁻¹ ∇y f
    η, γ, ν          lr, lower_lr, z_lr
    β                beta, the weight of the new hypergradient
    N, I, R          lower_steps, period, radius
    T_0              the number of batches given to warm_start (the paper's initialisation refinement)
    ξ, ζ, ζ', ζ⁰     draw.upper, draw.lower, draw.hessian, draw.cross

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇²yy g, 1 ∇²xy g, and N ∇y g in every I-th step.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_count, checked_weight
from adambo.draw import Draw, Needs
from adambo.errors import SettingError
from adambo.lower_variable import LowerVariable
from adambo.point import Point
from adambo.problem import Problem
from adambo.updates import Norm, NormalizedMomentum
from adambo.vectors import Vector, as_blocks, from_blocks


class BOREP(RunningZ):
    r"""One step. If t is a multiple of I, first a round of N lower steps, in a ball about the y it starts from:

        y ← Proj_{ball(y_t, R)}(y − γ ∇y g(x_t, y))      N times; y_{t+1} is the last, and y_t in all other steps

    Then, everything taken at (x_t, y_{t+1}, z_t):

        z_{t+1} = z_t − ν (∇²yy g z_t − ∇y f)
        m_{t+1} = (1 − β) m_t + β (∇x f − ∇²xy g z_t)
        x_{t+1} = x_t − η m_{t+1}/‖m_{t+1}‖

    In the steps without a round `info.lower_loss` is that of the cross batch, and lower batches of a lazy stream are
    never made. With tasks, each row has a ball of its own.

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size.
        beta: β.
        lower_steps, period, radius: N, I, R; the ball is Euclidean, over all tensors of y together.
        norm: "global": one norm over all tensors of x. "per_tensor": each tensor has its own, and moves by η.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = BOREP(problem, lr=0.005, lower_lr=0.3)
        >>> for _ in range(400):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "normalised momentum above, rounds of SGD below in every I-th step, a running z"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, N/I ∇y g, 1 ∇²yy g, 1 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 5e-3,
        z_lr: float | None = None,
        beta: float = 0.1,
        lower_steps: int = 3,
        period: int = 2,
        radius: float = inf,
        norm: Norm = "global",
    ) -> None:
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=checked_count(lower_steps, "lower_steps"), cross=1, hessian=1),
            upper_optimizer=NormalizedMomentum(
                problem.x, checked_rate(lr, "lr"), checked_weight(beta, "beta"), norm=norm
            ),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )
        self.period, self.radius = checked_count(period, "period"), _checked_radius(radius)

    def advance(self, draw: Draw) -> Info:
        if self.steps % self.period:  # y rests: what nobody looks at is never made
            draw = replace(draw, lower=())
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            lower_loss, active = self._lower_round(point, centre=before.values)
            if len(draw.lower):
                point = point.after_move()
            self.guard.watch("the upper loss", point.f)
            z = self.recall("z", point)
            z_next = self.z_step(z, point.hessian(z), point.f_y)
            point.backward(z)  # x.grad <- ∇x f − ∇²xy g z_t
            self.commit(point, before, z=z_next)  # m_{t+1}, x_{t+1}: NormalizedMomentum
        return Info(self, point.f, lower_loss, z=z_next, m=self.upper_state("m"), projections=active)

    def _lower_round(self, point: Point, centre: Vector) -> tuple[Tensor, Tensor]:
        """The lower steps of the draw; g before the first, and in how many of them the ball held y back."""
        active = torch.zeros((), dtype=torch.int64, device=self.problem.device)
        if not point.draw.lower:
            self.guard.watch("the lower loss", point.g)
            return point.g, active
        if self.radius == inf:
            return self.descend(point), active
        for index in range(len(point.draw.lower)):
            here = point if index == 0 else point.after_move()
            gradient = here.lower_gradient(index)
            if index == 0:
                loss = here.lower_loss()
            self.guard.watch("the lower loss", *here.lower_values(index), *gradient)
            point.y.descend(gradient, self.lower_optimizer, self.guard.apply)
            active += _project(point.y, centre, self.radius)
        return loss, active


def _project(y: LowerVariable, centre: Vector, radius: float) -> Tensor:
    """Bring y back into the ball, row by row; whether a row was outside (on the device, where nobody waits for it)."""
    values = y.values()
    moved, start = as_blocks(values, y.blocks), as_blocks(centre, y.blocks)
    distance = torch.linalg.vector_norm(moved - start, dim=1, keepdim=True)
    outside: Tensor = distance > radius
    y.assign(from_blocks(torch.where(outside, start + (moved - start) * (radius / distance), moved), values))
    return outside.any()


def _checked_radius(radius: float) -> float:
    if not isinstance(radius, int | float) or isinstance(radius, bool) or not radius > 0:
        raise SettingError(
            f"radius={radius!r} is that of the ball in which a lower round stays; y could not move in it. Give a "
            "number above 0, or math.inf for no ball."
        )
    return radius
