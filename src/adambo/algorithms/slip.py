"""SLIP (Gong, Hao, Liu; ICML 2024): normalised momentum above, one SGD step below, one step of the linear system.

    paper            here
    x, y, z          problem.x, problem.y, solver.recall("z", point); z = +[∇²yy g]⁻¹ ∇y f
    η, γ, ν          lr, lower_lr, z_lr
    β                beta, the weight of the new hypergradient
    T_0              the number of batches given to warm_start
    ξ, ζ, ζ', ζ⁰     draw.upper, draw.lower, draw.hessian, draw.cross

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_choice, checked_weight
from adambo.draw import Draw, Needs
from adambo.problem import Problem
from adambo.updates import Norm, NormalizedMomentum


class SLIP(RunningZ):
    r"""One step, everything taken at (x_t, y_t, z_t):

        y_{t+1} = y_t − γ ∇y g
        z_{t+1} = z_t − ν (∇²yy g z_t − ∇y f)
        m_{t+1} = (1 − β) m_t + β (∇x f − ∇²xy g z_t)
        x_{t+1} = x_t − η m_{t+1}/‖m_{t+1}‖

    With `order="gauss_seidel"` new values are used as soon as they are there: ∇y f and the hypergradient at y_{t+1},
    the hypergradient with z_{t+1}; the Hessian product stays at (y_t, z_t).

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size.
        beta: β.
        order: "jacobi", or "gauss_seidel".
        norm: "global": one norm over all tensors of x. "per_tensor": each tensor has its own, and moves by η.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = SLIP(problem, lr=0.02, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "normalised momentum above, SGD below, a running solution z of the linear system"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 5e-3,
        z_lr: float | None = None,
        beta: float = 0.1,
        order: Literal["jacobi", "gauss_seidel"] = "jacobi",
        norm: Norm = "global",
    ) -> None:
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, cross=1, hessian=1),
            upper_optimizer=NormalizedMomentum(
                problem.x, checked_rate(lr, "lr"), checked_weight(beta, "beta"), norm=norm
            ),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )
        self.order = checked_choice(order, "order", ("jacobi", "gauss_seidel"))

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            z = self.recall("z", point)
            if self.order == "jacobi":
                # The upper loss first: on a GPU its graph cannot be captured beside one that autograd holds.
                self.guard.watch("the upper loss", point.f)
                z_next = self.z_step(z, point.hessian(z), point.f_y)
                point.backward(z)  # x.grad <- ∇x f − ∇²xy g z_t
                lower_loss = self.descend(point)  # y_{t+1}; everything else was taken at y_t
            else:
                product = point.hessian(z)
                lower_loss = self.descend(point)  # y_{t+1}
                point = point.after_move()
                self.guard.watch("the upper loss", point.f)
                z_next = self.z_step(z, product, point.f_y)
                point.backward(z_next)
            self.commit(point, before, z=z_next)  # m_{t+1}, x_{t+1}: NormalizedMomentum
        return Info(self, point.f, lower_loss, z=z_next, m=self.upper_state("m"))
