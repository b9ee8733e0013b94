"""VR-AdamBO: AdamBO with a variance-reduced first moment and an accelerated lower level. Our own reconstruction.

No paper states this algorithm. Commented-out lines in the source of the AdamBO paper mention its name and its parts:
variance reduction in the first moment, bias correction of the second moment only, AccBO's lower level. The update here
is VRAdam (Li, Rakhlin, Jadbabaie; NeurIPS 2023) fed with hypergradients. No convergence claim is made for it.

    symbol           here
    η, γ             lr, lower_lr
    α, ν             nesterov, averaging: as in AccBO
    β, β_sq, λ       beta, beta_sq, eps
    N, I             lower_steps, period of option 2
    Q, s             Neumann(terms=, step=)
    S_1              the number of estimates in draw.snapshot of the first step
    T_0              the number of batches given to warm_start, for SNAG
    ξ, ζ, ζ⁰, ζ^(j)  draw.upper, draw.lower, draw.cross, draw.hessian

Oracle calls per step: 2 ∇x f, 2 ∇y f, 2(Q−1) ∇²yy g, 2 ∇²xy g (half of these in the first step, times S_1 with a
snapshot); and 1 ∇y g (option 1), or N ∇y g in every I-th step (option 2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adambo.algorithms.accelerated import AcceleratedLower
from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate
from adambo.algorithms.settings import checked_inverse, checked_weight
from adambo.draw import Draw
from adambo.errors import SampleError
from adambo.inverse import Inverse, Neumann
from adambo.point import Point
from adambo.problem import Problem
from adambo.updates import VRAdam
from adambo.vectors import Vector, add_, zeros


class VRAdamBO(AcceleratedLower):
    r"""One step; E_t(x, y) is the hypergradient estimate from the draw of step t, the same at both points:

        y_{t+1}, ŷ_{t+1}  by Nesterov steps and averaging at x_t, as in AccBO
        h_t     = E_t(x_t, ŷ_t)
        m_t     = h_t + (1 − β) (m_{t−1} − E_t(x_{t−1}, ŷ_{t−1}))        m_1 = h_1
        v_t     = (1 − β_sq) v_{t−1} + β_sq h_t²                          v_0 = 0
        x_{t+1} = x_t − η m_t / (√(v_t/(1 − (1 − β_sq)^t)) + λ)           m is not bias-corrected

    If the draw of the first step has a `snapshot`, h_1 is the mean of the estimates from it: estimate i takes
    snapshot.upper[i], snapshot.cross[i] and the i-th block of needs.hessian batches. One large batch is one estimate.

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        nesterov, averaging: α and ν.
        beta, beta_sq, eps: β, β_sq and λ.
        option: How y moves: 1, one Nesterov step per step; 2, N of them in every I-th step. See AccBO.
        lower_steps, period: N and I of option 2; option 1 does not use them.
        inverse: How z is estimated; None is Neumann(terms=3, samples="chained").

    Example:
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = VRAdamBO(problem, lr=0.02, lower_lr=0.3, beta_sq=0.1)
        >>> for _ in range(300):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "Adam with a variance-reduced first moment above, averaged Nesterov steps below (ours)"
    cost: ClassVar = "2 ∇x f, 2 ∇y f, 1 ∇y g (option 2: N/I), 2(Q−1) ∇²yy g, 2 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-4,
        lower_lr: float = 5e-3,
        nesterov: float = 0.5,
        averaging: float = 0.5,
        beta: float = 0.1,
        beta_sq: float = 1e-3,
        eps: float = 1e-8,
        option: Literal[1, 2] = 1,
        lower_steps: int = 3,
        period: int = 2,
        inverse: Inverse | None = None,
    ) -> None:
        super().__init__(
            problem,
            upper_optimizer=VRAdam(
                problem.x, checked_rate(lr, "lr"), checked_weight(beta, "beta"), checked_weight(beta_sq, "beta_sq"), eps
            ),
            lower_lr=lower_lr,
            nesterov=nesterov,
            averaging=averaging,
            option=option,
            lower_steps=lower_steps,
            period=period,
            inverse=checked_inverse(inverse, Neumann(terms=3, samples="chained")),
        )

    def advance(self, draw: Draw) -> Info:
        snapshot = draw.snapshot if self.steps == 0 else None
        draw = self.without_idle_batches(draw if snapshot is None else replace(draw, upper=(), cross=(), hessian=()))
        point = self.problem.at(draw, self.ledger, masks=self.same_masks(draw))
        with self.undone_on_failure(point) as before:
            y_hat = self.recall("y_hat", point, first=point.y.values())
            if snapshot is not None:
                here, z, f = self._mean_estimate(snapshot, draw.level)  # x.grad <- h_1
            else:
                with point.elsewhere(y=y_hat) as here:
                    z, f = self.solve(here), here.f
                    here.backward(z)  # x.grad <- h_t
            y_hat_prev = self.recall("y_hat_prev", point, first=y_hat)
            self.upper_optimizer.look_back(self.hypergradient_at_previous(point, y_hat_prev))
            losses, y_prev = self.accelerate(point)  # y_{t+1}
            lower_loss = self.lower_loss(losses, here)
            remembered = {"y_hat": self.averaged(y_hat, point.y.values()), "y_hat_prev": y_hat}
            if self.option == 1:
                remembered["y_prev"] = y_prev
            self.commit(point, before, **remembered)  # m_t, v_t, x_{t+1}
            self.inverse.accept(here, z, self.guard)  # here may be about other tasks than the draw
        moments = {"m": self.upper_state("m"), "v": self.upper_state("v")}
        moments["v_hat"] = self.upper_state("v", kept=lambda group: 1 - group["beta_sq"])
        return Info(self, f, lower_loss, z=z, y_hat=remembered["y_hat"], k=draw.level, **moments)

    def _mean_estimate(self, snapshot: Draw, level: int | None) -> tuple[Point, Vector, Tensor]:
        """x.grad ← the mean of E(x_1, y_1) over the snapshot; returns the last point, its z, and the mean of f."""
        snapshot = replace(snapshot, lower=(), level=level if snapshot.level is None else snapshot.level)
        count, each = len(snapshot.upper), self.needs.hessian
        if not count or len(snapshot.cross) < count or len(snapshot.hessian) < count * each:
            raise SampleError(
                f"The snapshot of VRAdamBO's first step holds {count} upper, {len(snapshot.cross)} cross and "
                f"{len(snapshot.hessian)} hessian batches. An estimate takes one upper, one cross and {each} hessian "
                f"batches: give n, n and {each}n of them; Draw.of(upper, lower, solver.needs) is one estimate."
            )
        masks, h, losses = self.same_masks(snapshot), zeros(self.problem.x), []
        for i in range(count):
            blocks = {"upper": slice(i, i + 1), "cross": slice(i, i + 1), "hessian": slice(i * each, (i + 1) * each)}
            part = replace(snapshot, **{role: getattr(snapshot, role)[block] for role, block in blocks.items()})
            here = self.problem.at(part.trimmed(replace(self.needs, lower=0), "A snapshot"), self.ledger, masks=masks)
            z = self.solve(here) if i == 0 else self.solve_again(here)  # one Neumann step for all of them
            self.guard.watch("the upper loss", here.f)
            add_(h, here.hypergradient(z), 1.0 / count)
            losses.append(here.f.detach())
        for p, direction in zip(self.problem.x, h, strict=True):
            p.grad = direction
        return here, z, torch.stack(losses).mean()
