"""AdamBO on a quadratic with Gaussian noise below, many runs at once, and what the bounds of its lower error need.

One quantile needs hundreds of runs, and their steps are thousands. So all runs of a problem are simulated together, as
rows of one tensor; the tests hold them against `adambo.AdamBO` step by step, to 1e-12.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from adambo.errors import SettingError
from adambo.testing import Quadratic
from adambo.theory import LowerLevel, momentum_weight

MU, SHARPEST, SIGMA, LAMBDA = 1.0, 1.5, 0.5, 1.0
COUPLING = 0.25  # K L² = β/4, the largest for which all bounds are proved
BETA_SQ = 1e-3
UPPER_NOISE = 0.3
TERMS = 10
FIRST_ERROR = 1.0


class Setting(NamedTuple):
    """One problem with the step sizes of the theorem.

    Attributes:
        known: The problem; its lower dimension is 2, so that noise of deviation σ/2 in each coordinate has
            Pr(‖noise‖ ≥ s) = exp(−2s²/σ²), within what the theorem assumes.
        level: Its constants, with γ = 2β/μ and the largest η that K L² = β/4 allows.
        series: The matrix P of the Neumann series.
        L: ‖J P‖, the Lipschitz constant of h in y: L̂_t of every step.
    """

    known: Quadratic
    level: LowerLevel
    series: Tensor
    L: float


class Runs(NamedTuple):
    """Records of all runs, one row each: V_1 … V_T, ‖û_1‖ … ‖û_{T−1}‖ and ‖x_{t+1} − x_t‖²."""

    errors: Tensor
    u_norms: Tensor
    squared_steps: Tensor


def setting(seed: int, beta: float) -> Setting:
    """The problem of a seed, with the step sizes that belong to β.

    Example:
        >>> found = setting(0, 0.01)
        >>> round(found.level.K * found.L**2 / 0.01, 9), found.level.gamma
        (0.25, 0.02)
    """
    known = Quadratic(dx=3, dy=2, seed=seed, mu=MU, L=SHARPEST)
    known.B = known.B / torch.linalg.matrix_norm(known.B, ord=2)
    cross = known.A @ known.B
    # Smoothness is joint in (x, y): the norm of the whole Hessian of g.
    joint = torch.cat([torch.cat([known.B.T @ cross, -cross.T], dim=1), torch.cat([-cross, known.A], dim=1)])
    l_g1 = float(torch.linalg.matrix_norm(joint, ord=2))
    if beta > MU / (4 * l_g1):
        raise SettingError(f"beta={beta} is above mu/(4 l_g1) = {MU / (4 * l_g1):.4g} of this problem.")
    factor = torch.eye(2, dtype=torch.float64) - known.A / SHARPEST
    series = sum((torch.linalg.matrix_power(factor, q) for q in range(TERMS)), torch.zeros_like(factor)) / SHARPEST
    L = float(torch.linalg.matrix_norm(cross.T @ series, ord=2))
    level = LowerLevel(mu=MU, l_g1=l_g1, sigma_g1=SIGMA, lam=LAMBDA, eta=1.0, beta=beta)
    eta = math.sqrt(COUPLING * beta / level.K) / L
    return Setting(known, LowerLevel(mu=MU, l_g1=l_g1, sigma_g1=SIGMA, lam=LAMBDA, eta=eta, beta=beta), series, L)


def start(given: Setting, runs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """x_1, the same for all runs, and y_1 at the distance √V_1 from y*(x_1) in a direction of its own."""
    x = given.known.x0.repeat(runs, 1)
    angle = 2 * math.pi * torch.rand(runs, dtype=torch.float64, generator=generator)
    away = torch.stack([angle.cos(), angle.sin()], dim=1)
    return x, minimisers(given.known, x) + math.sqrt(FIRST_ERROR) * away


def noises(runs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of ∇y G, and of (∇x F, ∇y F), in one step."""
    return (
        SIGMA / 2 * torch.randn(runs, 2, dtype=torch.float64, generator=generator),
        UPPER_NOISE * torch.randn(runs, 5, dtype=torch.float64, generator=generator),
    )


def minimisers(known: Quadratic, x: Tensor) -> Tensor:
    return torch.addmm(known.c, x, known.B.T)


def simulated(given: Setting, runs: int, steps: int, seed: int) -> Runs:
    """AdamBO's runs of `steps` errors V_1 … V_T; all oracles at (x_t, y_t), fresh noise in every role."""
    generator = torch.Generator().manual_seed(seed)
    known, level = given.known, given.level
    x, y = start(given, runs, generator)
    pull = known.A @ known.B
    m = torch.zeros_like(x)
    v, u = m.clone(), m.clone()
    record = Runs(*(torch.empty(runs, n, dtype=torch.float64) for n in (steps, steps - 1, steps - 1)))
    for t in range(1, steps + 1):
        target = minimisers(known, x)
        record.errors[:, t - 1] = (y - target).square().sum(1)
        if t == steps:
            break
        below, above = noises(runs, generator)
        own = (x - known.e) @ known.C + above[:, :3]  # ∇x F
        h, h_star = (own + (at - known.d + above[:, 3:]) @ given.series @ pull for at in (y, target))
        y = y - level.gamma * ((y - target) @ known.A + below)
        m = torch.lerp(m, h, momentum_weight(level.beta, t))
        u = torch.lerp(u, h_star, momentum_weight(level.beta, t))
        v = torch.lerp(v, h.square(), momentum_weight(BETA_SQ, t))
        step = level.eta * m / (v.sqrt() + level.lam)
        x = x - step
        record.u_norms[:, t - 1] = u.norm(dim=1)
        record.squared_steps[:, t - 1] = step.square().sum(1)
    return record


def adversary(level: LowerLevel, steps: int) -> Tensor:
    """V_1 … of g = ½(y − x)² without noise: one push û_1 = 1, then every step of x is the largest that the lemma
    allows with L̂_t = 1, and leads away from y.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.0, lam=1.0, eta=0.1, beta=0.1)
        >>> [round(float(V), 4) for V in adversary(level, 2)]
        [0.0, 0.02, 0.0163]
    """
    error, mean, errors = 0.0, 0.0, [0.0]
    for t in range(1, steps + 1):
        mean += momentum_weight(level.beta, t) * (error**2 - mean)
        pushed = (1.0 if t == 1 else 0.0) + mean
        error = (1.0 - level.gamma) * error + math.sqrt(2.0 * (level.eta / level.lam) ** 2 * pushed)
        errors.append(error**2)
    return torch.tensor(errors, dtype=torch.float64)


def coupled(share: float, beta: float = 0.1, sigma_g1: float = 0.0) -> LowerLevel:
    """The lower level of the counter-example: μ = 1, l_g1 = 2, and K L² = share · β for L = 1."""
    return LowerLevel(
        mu=1.0, l_g1=2.0, sigma_g1=sigma_g1, lam=1.0, eta=math.sqrt(share * beta * 2 * beta / 16), beta=beta
    )
