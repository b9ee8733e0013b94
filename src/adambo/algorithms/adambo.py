"""AdamBO (Gong, Hao, Liu; ICML 2025): Adam on the upper variable, SGD on the lower one, in a single loop.

    paper            here
    x, y             problem.x, problem.y
    η, γ             lr, lower_lr
    β, β_sq, λ       beta, beta_sq, eps
    Q, 1/l_g1        Neumann(terms=, step=)
    T_0              the number of batches given to warm_start
    ξ, ζ, ζ⁰, ζ^(q,j)  draw.upper, draw.lower, draw.cross, draw.hessian

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇²xy g, `lower_steps` ∇y g, and the Hessian products of the inverse: Q − 1
(chained, prefix, shared), Q(Q−1)/2 (independent, the paper's) or k ~ U{0 … Q−1} (random).
"""

from __future__ import annotations

import warnings
from typing import ClassVar, Literal

from torch.optim import Adam, Optimizer

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, fused, sgd
from adambo.algorithms.settings import checked_choice, checked_count, checked_inverse
from adambo.algorithms.surrogate import SurrogateSteps
from adambo.draw import Draw, Needs
from adambo.errors import SettingError
from adambo.inverse import Inverse, Neumann
from adambo.problem import Problem


class AdamBO(SurrogateSteps):
    r"""One step, everything taken at (x_t, y_t):

        z_t     = Neumann(∇²yy g, ∇y f)
        h_t     = ∇x f − ∇²xy g z_t
        y_{t+1} = y_t − γ ∇y g
        x_{t+1} = Adam(x_t, h_t)

    With `lower_steps=N`, N such steps lead from y_t to y_{t+1}, all at x_t. With `hypergradient_at="updated"` they
    come first, and z_t and h_t are taken at (x_t, y_{t+1}); the paper's is "current".

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        beta, beta_sq, eps: β, β_sq and λ: `torch.optim.Adam(betas=(1 − beta, 1 − beta_sq), eps=eps)` exactly. These
            are the paper's weights of the *new* value, one minus what PyTorch calls betas.
        inverse: How z is estimated; None is Neumann(terms=3, step="auto", samples="chained"). The paper's estimator
            is samples="independent".
        lower_steps: N.
        hypergradient_at: "current" or "updated".
        upper_optimizer, lower_optimizer: torch.optim objects to use as they are, instead of Adam and SGD with the
            settings above.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = AdamBO(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    summary: ClassVar = "Adam above, SGD below, a Neumann series between; proved for unbounded smoothness"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, N ∇y g, Q−1 ∇²yy g, 1 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-4,
        lower_lr: float = 5e-3,
        beta: float = 0.1,
        beta_sq: float = 1e-3,
        eps: float = 1e-8,
        inverse: Inverse | None = None,
        lower_steps: int = 1,
        hypergradient_at: Literal["current", "updated"] = "current",
        upper_optimizer: Optimizer | None = None,
        lower_optimizer: Optimizer | None = None,
    ) -> None:
        _check_moments(beta, beta_sq, eps)
        inverse = checked_inverse(inverse, Neumann(terms=3, step="auto", samples="chained"))
        self.lower_steps = checked_count(lower_steps, "lower_steps")
        self.hypergradient_at = checked_choice(hypergradient_at, "hypergradient_at", ("current", "updated"))
        if upper_optimizer is None:
            upper_optimizer = Adam(
                problem.x, checked_rate(lr, "lr"), betas=(1 - beta, 1 - beta_sq), eps=eps, fused=fused(problem.x)
            )
        if lower_optimizer is None:
            lower_optimizer = sgd(problem.y, lower_lr)
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=lower_steps, cross=1) + inverse.needs,
            upper_optimizer=upper_optimizer,
            lower_optimizer=lower_optimizer,
            inverse=inverse,
        )

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            if self.hypergradient_at == "updated":
                lower_loss = self.descend(point)  # y_{t+1}
                point = point.after_move()
            z = self.solve(point)
            point.backward(z)  # x.grad <- ∇x f − ∇²xy g z
            if self.hypergradient_at == "current":
                lower_loss = self.descend(point)  # the hypergradient was taken at y_t, not at y_{t+1}
            self.commit(point, before, solved=z)  # x_{t+1} = Adam(x_t, x.grad)
        moments = {"m": self.upper_state("exp_avg"), "v": self.upper_state("exp_avg_sq")}
        moments["m_hat"] = self.upper_state("exp_avg", kept=lambda group: group["betas"][0])
        moments["v_hat"] = self.upper_state("exp_avg_sq", kept=lambda group: group["betas"][1])
        return Info(self, point.f, lower_loss, z=z, **moments)


def _check_moments(beta: float, beta_sq: float, eps: float) -> None:
    for name, value in (("beta", beta), ("beta_sq", beta_sq), ("eps", eps)):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SettingError(f"{name}={value!r} is not a number.")
    if not 0 < beta <= 1:
        raise SettingError(
            f"beta={beta} is the weight of the new hypergradient in the first moment; it lies in (0, 1]."
        )
    if not 0 < beta_sq <= 1:
        raise SettingError(
            f"beta_sq={beta_sq} is the weight of the new square in the second moment; it lies in (0, 1]. The theorem "
            "allows beta_sq = 0 as a limit (the plain mean of all squares), but torch.optim.Adam rejects betas[1] = 1; "
            "use a small number such as 1e-6."
        )
    if beta >= 0.8 and 0.9 <= beta_sq < 1:
        warnings.warn(
            f"beta={beta}, beta_sq={beta_sq} look like PyTorch's betas. Here they are the weights of the new value, "
            f"one minus that: beta={1 - beta:.4g}, beta_sq={1 - beta_sq:.4g}.",
            UserWarning,
            stacklevel=3,
        )
    if not 0 <= eps < float("inf"):
        raise SettingError(f"eps={eps} is added to a square root; it is 0 or larger, and finite.")
