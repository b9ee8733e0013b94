"""TTSA (Hong, Wai, Wang, Yang; SIAM J. Optim. 2023): one SGD step at each level, on two time scales.

    paper            here
    x, y             problem.x, problem.y
    α_k, β_k         lr, lower_lr (η, γ elsewhere in this library)
    t_max(k), c_h    Neumann(terms=, step=, samples="random"); the level is draw.level
    ξ⁽¹⁾, ξ⁽⁰⁾, …    draw.upper, draw.lower, draw.cross, draw.hessian

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇y g, k ∇²yy g with k ~ U{0 … Q−1}, 1 ∇²xy g.

The paper's steps fall as t^(−3/5) above and t^(−2/5) below, which an ordinary scheduler on each optimiser does:

    LambdaLR(solver.upper_optimizer, lambda t: (t + 1) ** -0.6)
    LambdaLR(solver.lower_optimizer, lambda t: (t + 1) ** -0.4)

Its projection of x onto a convex set is left out: x is free.
"""

from __future__ import annotations

from typing import ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.settings import checked_inverse
from adambo.algorithms.surrogate import SurrogateSteps
from adambo.draw import Draw, Needs
from adambo.inverse import Inverse, Neumann
from adambo.problem import Problem


class TTSA(SurrogateSteps):
    r"""One step, the lower level first:

        y_{t+1} = y_t − γ ∇y g(x_t, y_t)
        z_t     = s Q A(ζ^(k)) … A(ζ^(1)) ∇y f,   A(ζ) = I − s ∇²yy g(·; ζ),   k ~ U{0 … Q−1}
        x_{t+1} = x_t − η (∇x f − ∇²xy g z_t)           z_t and this at (x_t, y_{t+1})

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        inverse: How z is estimated; None is Neumann(terms=3, samples="random"). Its expectation is the series of Q
            terms; its variance is large.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = TTSA(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(100):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    summary: ClassVar = "one SGD step at each level, with a Neumann series cut off at random"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, 1 ∇y g, k ∇²yy g, 1 ∇²xy g"

    lower_steps = 1
    hypergradient_at = "updated"

    def __init__(
        self, problem: Problem, lr: float = 1e-2, lower_lr: float = 5e-3, inverse: Inverse | None = None
    ) -> None:
        inverse = checked_inverse(inverse, Neumann(terms=3, samples="random"))
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, cross=1) + inverse.needs,
            upper_optimizer=sgd(problem.x, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
            inverse=inverse,
        )

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            lower_loss = self.descend(point)  # y_{t+1}
            point = point.after_move()
            z = self.solve(point)
            point.backward(z)  # x.grad <- ∇x f − ∇²xy g z, at y_{t+1}
            self.commit(point, before, solved=z)  # x_{t+1}
        return Info(self, point.f, lower_loss, z=z, k=draw.level)
