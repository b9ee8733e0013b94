"""AccBO (Gong, Hao, Liu; NeurIPS 2024): normalised recursive momentum above, Nesterov steps below.

    paper            here (symbols as the AdamBO paper has them)
    η, γ             lr, lower_lr
    α                nesterov, the momentum of a lower step
    ν                averaging, the weight of the new y in ŷ
    β                beta, the weight of the new hypergradient
    N, I             lower_steps, period (Option II)
    Q, 1/l_g1, k     Neumann(terms=, step=, samples="random"), draw.level
    T_0              the number of batches given to warm_start, for SNAG
    ξ, ζ, ζ⁰, ζ^(j)  draw.upper, draw.lower, draw.cross, draw.hessian

Oracle calls per step: 2 ∇x f, 2 ∇y f, 2k ∇²yy g with k ~ U{0 … Q−1}, 2 ∇²xy g (half of these in the first step); and
1 ∇y g (option 1), or N ∇y g in every I-th step (option 2).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from adambo.algorithms.accelerated import AcceleratedLower
from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate
from adambo.algorithms.settings import checked_choice, checked_inverse, checked_weight
from adambo.draw import Draw
from adambo.inverse import Inverse, Neumann
from adambo.problem import Problem
from adambo.updates import Norm, RecursiveMomentum, checked_norm


class AccBO(AcceleratedLower):
    r"""One step; E_t(x, y) is the hypergradient estimate from the draw of step t, the same at both points:

        option 1:  w = y_t + α (y_t − y_{t−1}),   y_{t+1} = w − γ ∇y g(x_t, w)
        option 2:  if t mod I = 0:  y_{t+1} = y_t after N such steps at x_t, momentum restarted;   else y_{t+1} = y_t
        ŷ_{t+1} = (1 − ν) ŷ_t + ν y_{t+1}
        m_t     = E_t(x_t, ŷ_t) + (1 − β) (m_{t−1} − E_t(x_{t−1}, ŷ_{t−1}))        m_0 = E_0(x_0, ŷ_0)
        x_{t+1} = x_t − η m_t/‖m_t‖

    With `hypergradient_at="updated"` the two points are (x_t, ŷ_{t+1}) and (x_{t−1}, ŷ_t). At first ŷ = y_{−1} = y, for
    each task by itself. In a step that keeps y, the lower loss told is that of the cross batch at ŷ.

    Args:
        problem: What is optimised.
        lr, lower_lr: η, the length of an upper step, and γ.
        nesterov, averaging, beta: α, ν and β.
        option: 1, one lower step at a time, is what the experiments on AUC run, and is proved for one-dimensional
            quadratic lower levels only (AUC has one). Take 2 for any other lower level, if the theorem is to apply.
        lower_steps, period: N and I of option 2; option 1 does not use them.
        inverse: How z is estimated; None is Neumann(terms=3, samples="random").
        hypergradient_at: "current" or "updated".
        norm: "global": one norm over all tensors of x. "per_tensor": each tensor has its own, and moves by η.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = AccBO(problem, lr=0.02, lower_lr=0.2)
        >>> solver.warm_start([0, 0, 0])
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "normalised recursive (STORM) momentum above, averaged Nesterov steps below"
    cost: ClassVar = "2 ∇x f, 2 ∇y f, 1 ∇y g (option 2: N/I), 2k ∇²yy g, 2 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 5e-3,
        lower_lr: float = 5e-3,
        nesterov: float = 0.5,
        averaging: float = 0.5,
        beta: float = 0.1,
        option: Literal[1, 2] = 1,
        lower_steps: int = 3,
        period: int = 2,
        inverse: Inverse | None = None,
        hypergradient_at: Literal["current", "updated"] = "current",
        norm: Norm = "global",
    ) -> None:
        super().__init__(
            problem,
            upper_optimizer=RecursiveMomentum(
                problem.x, checked_rate(lr, "lr"), checked_weight(beta, "beta"), norm=checked_norm(norm)
            ),
            lower_lr=lower_lr,
            nesterov=nesterov,
            averaging=averaging,
            option=option,
            lower_steps=lower_steps,
            period=period,
            inverse=checked_inverse(inverse, Neumann(terms=3, samples="random")),
        )
        self.hypergradient_at = checked_choice(hypergradient_at, "hypergradient_at", ("current", "updated"))

    def advance(self, draw: Draw) -> Info:
        draw = self.without_idle_batches(draw)
        point = self.problem.at(draw, self.ledger, masks=self.same_masks(draw))
        with self.undone_on_failure(point) as before:
            y_hat = self.recall("y_hat", point, first=point.y.values())
            losses, y_prev = self.accelerate(point)  # y_{t+1}
            y_hat_next = self.averaged(y_hat, point.y.values())
            y_now, y_then = y_hat_next, y_hat
            if self.hypergradient_at == "current":
                y_now, y_then = y_hat, self.recall("y_hat_prev", point, first=y_hat)
            with point.elsewhere(y=y_now) as here:
                z = self.solve(here)
                here.backward(z)  # x.grad <- E_t(x_t, ŷ)
                lower_loss = self.lower_loss(losses, here)
            self.upper_optimizer.look_back(self.hypergradient_at_previous(point, y_then))
            remembered = {"y_hat": y_hat_next}
            if self.hypergradient_at == "current":
                remembered["y_hat_prev"] = y_hat
            if self.option == 1:
                remembered["y_prev"] = y_prev
            self.commit(point, before, solved=z, **remembered)  # m_t, x_{t+1}
        return Info(self, here.f, lower_loss, z=z, m=self.upper_state("m"), y_hat=y_hat_next, k=draw.level)
