"""SUSTAIN (Khanduri, Zeng, Hong, Wai, Wang, Yang; NeurIPS 2021): recursive momentum at both levels.

    paper            here
    x, y             problem.x, problem.y
    α_t, β_t         lr, lower_lr (η, γ elsewhere in this library)
    η^f, η^g         rho_f, rho_g, the weights of the new estimates
    K, 1/L_g         Neumann(terms=, step=, samples="random")
    ξ, ζ, ζ⁰, ζ^(j)  draw.upper, draw.lower, draw.cross, draw.hessian; k is draw.level

Oracle calls per step: 2 ∇x f, 2 ∇y f, 2 ∇y g, 2k ∇²yy g with k ~ U{0 … Q−1}, 2 ∇²xy g; half of that in the first.

The paper's decaying steps are an ordinary scheduler on each optimiser, stepped once per epoch e:

    decay = lambda e: (e + 2) ** (-1 / 3)
    schedulers = [LambdaLR(o, decay) for o in (solver.upper_optimizer, solver.lower_optimizer)]
"""

from __future__ import annotations

from typing import ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, sgd
from adambo.algorithms.settings import checked_inverse, checked_weight
from adambo.algorithms.two_points import TwoPoints
from adambo.draw import Draw, Needs
from adambo.inverse import Inverse, Neumann
from adambo.problem import Problem
from adambo.updates import RecursiveMomentum
from adambo.vectors import added


class SUSTAIN(TwoPoints):
    r"""One step; E_t(x, y) is the hypergradient estimate from the draw of step t, the same at both points:

        h_g = ∇y g(x_t, y_t) + (1 − ρ_g) (h_g − ∇y g(x_{t−1}, y_{t−1}))
        h_f = E_t(x_t, y_t)  + (1 − ρ_f) (h_f − E_t(x_{t−1}, y_{t−1}))
        x_{t+1} = x_t − η h_f,    y_{t+1} = y_t − γ h_g

    In the first step h_g = ∇y g and h_f = E. With tasks, h_g and y_{t−1} are those of a task's last visit, and its
    first visit is a plain step.

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        rho_f, rho_g: ρ_f and ρ_g; 1 is plain SGD.
        inverse: How z is estimated; None is Neumann(terms=3, samples="random").

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = SUSTAIN(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "recursive (STORM) momentum at both levels, from two evaluations of every sample"
    cost: ClassVar = "2 ∇x f, 2 ∇y f, 2 ∇y g, 2k ∇²yy g, 2 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 5e-3,
        lower_lr: float = 5e-3,
        rho_f: float = 0.6,
        rho_g: float = 0.6,
        inverse: Inverse | None = None,
    ) -> None:
        inverse = checked_inverse(inverse, Neumann(terms=3, samples="random"))
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, cross=1) + inverse.needs,
            upper_optimizer=RecursiveMomentum(problem.x, checked_rate(lr, "lr"), beta=checked_weight(rho_f, "rho_f")),
            lower_optimizer=sgd(problem.y, lower_lr),
            inverse=inverse,
        )
        self.rho_g = checked_weight(rho_g, "rho_g")

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger, masks=self.same_masks(draw))
        with self.undone_on_failure(point) as before:
            y = point.y.values()
            z = self.solve(point)
            point.backward(z)  # x.grad <- E_t(x_t, y_t)
            g_y, lower_loss = point.lower_gradient(), point.lower_loss()
            h_g, E_prev = g_y, None
            if self.steps > 0:
                with self.at_previous(point, self.recall("y_prev", point, first=y)) as previous:
                    E_prev = self.watched(previous.hypergradient(self.solve_again(previous)))
                    g_prev = previous.lower_gradient()
                # ∇y g + (1 − ρ_g) (h_g − ∇y g at the previous point). At a task's first visit the last two are equal,
                # so that nothing is corrected.
                h_g = added(g_y, added(self.recall("h_g", point, first=g_prev), g_prev, -1.0), 1 - self.rho_g)
            self.guard.watch("the lower loss", lower_loss, *h_g)
            point.y.descend(h_g, self.lower_optimizer, self.guard.apply)  # y_{t+1}
            self.upper_optimizer.look_back(E_prev)
            self.commit(point, before, solved=z, h_g=h_g, y_prev=y)  # h_f, x_{t+1}: RecursiveMomentum
        return Info(self, point.f, lower_loss, z=z, h_f=self.upper_state("m"), h_g=h_g, k=draw.level)
