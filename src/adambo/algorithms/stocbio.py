"""StocBiO (Ji, Yang, Liang; ICML 2021): several lower steps, a Neumann series at their end, one SGD step above.

    paper            here
    x, y             problem.x, problem.y
    β, α             lr, lower_lr (η, γ elsewhere in this library)
    D                lower_steps
    Q, η             Neumann(products=, step=, samples="prefix"): Q products are Q + 1 terms
    D_F, S_t         draw.upper, draw.lower
    D_G, D_H         draw.cross, draw.hessian

Oracle calls per step: 1 ∇x f, 1 ∇y f, D ∇y g, Q ∇²yy g (Q products), 1 ∇²xy g.
"""

from __future__ import annotations

from typing import ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.settings import checked_count, checked_inverse
from adambo.algorithms.surrogate import SurrogateSteps
from adambo.draw import Draw, Needs
from adambo.inverse import Inverse, Neumann
from adambo.problem import Problem


class StocBiO(SurrogateSteps):
    r"""One step; y is carried over from the step before:

        y_{t+1} = y_t after D steps  y ← y − γ ∇y g(x_t, y), each on its own batch
        z_t     = s Σ_{j=0…Q} r_j,   r_0 = ∇y f,   r_j = r_{j−1} − s ∇²yy g r_{j−1}
        x_{t+1} = x_t − η (∇x f − ∇²xy g z_t)           z_t and this at (x_t, y_{t+1})

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        lower_steps: D.
        inverse: How z is estimated; None is Neumann(products=3, samples="prefix"), the paper's with Q = 3.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = StocBiO(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(100):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    summary: ClassVar = "SGD above, several SGD steps below, a Neumann series at their end"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, D ∇y g, Q ∇²yy g, 1 ∇²xy g"

    hypergradient_at = "updated"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 5e-3,
        lower_steps: int = 3,
        inverse: Inverse | None = None,
    ) -> None:
        inverse = checked_inverse(inverse, Neumann(products=3, samples="prefix"))
        self.lower_steps = checked_count(lower_steps, "lower_steps")
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=lower_steps, cross=1) + inverse.needs,
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
        return Info(self, point.f, lower_loss, z=z)
