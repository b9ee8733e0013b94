"""How far y_t is from y*(x_t): the warm start, and the bounds of the randomness-decoupling lemma.

paper                    here
‖y_t − y_t*‖²            V_t; first_error is V_1
‖û_t‖, t = 1 … T − 1     u_norms
L̂_t, t = 1 … T − 1       smoothness: L_0 + L_1 max_{k ≤ t} ‖∇Φ(x_k)‖
4η² l²_{g,1}/(λ² μ³ γ)   LowerLevel.K
1 − μγ/2                 1 − β, since γ = 2β/μ

The lemma's closed form does not follow from its one-step inequality

    (R)    V_{t+1} ≤ (1 − β) V_t + 2γ² σ²_{g,1} + K ‖û_t‖² + K L̂_t² Σ_{j ≤ t} d_{t,j} V_j      in exponential moments

and is false without a bound on K L². What to use is (R) itself, unrolled, or its contraction if K L² ≤ β/4. With
K L² ≤ β, Hölder's inequality makes one joint moment of the single ones; the lemma's induction joins them without it.

All need steps within `step_bound`, as Adam's are while ‖y_j − y_j*‖ ≤ r, if single samples are as `ProblemConstants`
says. The paper assumes that on the way to its proof; here a record ends at the first violation (`steps_within`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adambo.errors import SettingError
from adambo.theory.checks import (
    Numbers,
    Statement,
    as_numbers,
    check_not_negative,
    check_positive,
    check_probability,
    check_sgd,
    check_statement,
    check_whole,
    recorded,
)
from adambo.theory.constants import LowerLevel
from adambo.theory.momentum import momentum_weight


def warm_start_bound(
    squared_error: float, steps: int, delta: float, *, mu: float, l_g1: float, sigma_g1: float, gamma: float
) -> float:
    r"""‖y_1 − y_1*‖² after a warm start, with probability 1 − δ/4.

        (1 − μγ/2)^{T_0} ‖y_0 − y_0*‖² + (8γσ²_{g,1}/μ) ln(4e/δ)

    Args:
        squared_error: ‖y_0 − y_0*‖².
        steps: T_0.
        delta: δ.
        mu, l_g1, sigma_g1: Of the lower level; sigma_g1 = 0 is allowed.
        gamma: Learning rate of y, at most 1/(2 l_{g,1}).

    Raises:
        SettingError: If an argument cannot be, γ > 1/(2 l_{g,1}) among them.

    Example:
        >>> warm_start_bound(1.0, 100, 0.1, mu=1.0, l_g1=2.0, sigma_g1=0.0, gamma=0.2) == 0.9**100
        True
    """
    check_positive({"mu": mu, "l_g1": l_g1, "gamma": gamma})
    check_sgd(mu, l_g1, sigma_g1, gamma)
    check_whole(0, steps=steps)
    check_not_negative(squared_error=squared_error, steps=steps)
    check_probability(delta)
    shrunk: float = (1.0 - mu * gamma / 2.0) ** steps * squared_error
    return shrunk + 8.0 * gamma * sigma_g1**2 / mu * (1.0 + math.log(4.0 / delta))


def steps_within(squared_errors: Numbers, r: float) -> int:
    """How many steps of a run come before the first with ‖y_t − y_t*‖ > r, where no bound here says anything further.

    Args:
        squared_errors: ‖y_t − y_t*‖² of one run; an error that is NaN, as after divergence, is not within.
        r: Of the `DerivedConstants`.

    Raises:
        SettingError: If `r` is not positive and finite, or the errors are not those of one run.

    Example:
        >>> steps_within([0.5, 0.9, 1.1, 0.2], r=1.0), steps_within([0.5, math.nan], r=1.0)
        (2, 1)
    """
    check_positive({"r": r})
    errors = as_numbers("squared_errors", squared_errors)
    if errors.ndim != 1 or bool((errors < 0.0).any()):
        raise SettingError(
            f"squared_errors have the shape {tuple(errors.shape)}, or one is negative: give ‖y_t − y_t*‖² of one run, "
            "step by step; of a batch, one run after the other."
        )
    outside = ~(errors <= r * r)  # a power would be an error beyond float64, where a product is infinite
    return int(outside.nonzero()[0]) if outside.any() else len(outside)


def unrolled_recursion(level: LowerLevel, first_error: float | Tensor, u_norms: Numbers, smoothness: Numbers) -> Tensor:
    """U_1 … U_T: (R) with equality from U_1 = V_1, without the term for the probability.

    Args:
        level: The lower level.
        first_error: V_1.
        u_norms, smoothness: ‖û_t‖ and L̂_t, T − 1 numbers each; a batch of runs has them along the last axis.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.0, lam=1.0, eta=0.05, beta=0.1)
        >>> unrolled_recursion(level, 1.0, [0.0, 0.0], [0.5, 0.5])
        tensor([1.0000, 0.9500, 0.9037], dtype=torch.float64)
    """
    u, L = recorded(u_norms=u_norms, smoothness=smoothness)
    U = _first(first_error, u)
    mean, unrolled = torch.zeros_like(U), [U]
    for t in range(1, u.shape[-1] + 1):
        mean = torch.lerp(mean, U, momentum_weight(level.beta, t))
        pushed = u[..., t - 1] ** 2 + L[..., t - 1] ** 2 * mean
        U = (1.0 - level.beta) * U + 2.0 * (level.gamma * level.sigma_g1) ** 2 + level.K * pushed
        unrolled.append(U)
    return torch.stack(unrolled, dim=-1)


def recursion_error_bound(
    level: LowerLevel, first_error: float | Tensor, u_norms: Numbers, smoothness: Numbers, delta: float, *, L: float
) -> Tensor:
    """V_1 … V_T, all at once with probability 1 − δ: (R) unrolled, plus (8γσ²_{g,1}/μ) ln(T/δ).

    It holds also for x_t that depend on the samples of y, as Adam's do; the paper proves its lemma for a fixed sequence
    of x and applies it to such. V_t − U_t is bounded instead, where U_t is (R) unrolled along the path: it is fixed
    before the sample of step t is drawn.

    Args:
        level: The lower level.
        first_error: V_1.
        u_norms, smoothness: ‖û_t‖ and L̂_t, T − 1 numbers each; a batch of runs has them along the last axis.
        delta: δ.
        L: A number known before the run that no L̂_t exceeds, with K L² ≤ β.

    Raises:
        SettingError: If an L̂_t exceeds `L`, or K L² exceeds β.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.1, lam=1.0, eta=0.05, beta=0.1)
        >>> recursion_error_bound(level, 1.0, [0.0, 0.0], [0.5, 0.5], 0.1, L=0.5)
        tensor([1.0544, 1.0052, 0.9596], dtype=torch.float64)
    """
    T = _checked_length(level, u_norms, smoothness, L, 1.0)
    return unrolled_recursion(level, first_error, u_norms, smoothness) + level.variance * _ln_failures(T, delta)


def contraction_error_bound(
    level: LowerLevel, first_error: float | Tensor, u_norms: Numbers, smoothness: Numbers, delta: float, *, L: float
) -> Tensor:
    r"""V_1 … V_T, all at once with probability 1 − δ, in closed form where K L² ≤ β/4.

        (1 − β/2)^{t−1} V_1 + Σ_{i<t} (1 − β/2)^{t−1−i} (2γ²σ²_{g,1} + K ‖û_i‖²) + (8γσ²_{g,1}/μ) ln(T/δ)

    η ≤ λμβ/(2√2 l_{g,1} L) gives the condition. That (R) contracts so is proved for α_t = β, and was checked
    numerically for the true α_t.

    Args:
        level, first_error, u_norms, smoothness, delta: As in `recursion_error_bound`.
        L: A number known before the run that no L̂_t exceeds, with K L² ≤ β/4.

    Raises:
        SettingError: If an L̂_t exceeds `L`, or K L² exceeds β/4.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.1, lam=1.0, eta=0.01, beta=0.1)
        >>> contraction_error_bound(level, 1.0, [0.0, 0.0], [1.0, 1.0], 0.1, L=1.0)
        tensor([1.0544, 1.0052, 0.9585], dtype=torch.float64)
    """
    T = _checked_length(level, u_norms, smoothness, L, 0.25)
    u, _ = recorded(u_norms=u_norms, smoothness=smoothness)
    pushes = 2.0 * (level.gamma * level.sigma_g1) ** 2 + level.K * u**2
    return _discounted(1.0 - level.beta / 2.0, _first(first_error, u), pushes) + level.variance * _ln_failures(T, delta)


def printed_error_bound(
    level: LowerLevel, first_error: float | Tensor, u_norms: Numbers, smoothness: Numbers, delta: float
) -> Tensor:
    r"""V_1 … V_T as the paper prints it, for comparison: it does not follow from (R), and fails for some sequences.

        ρ^{t−1} V_1 + (8γσ²_{g,1}/μ) ln(eT/δ) + K Σ_{i<t} ρ^{t−1−i} ‖û_i‖²
            + (K²/β²) Σ_{i<t} ρ^{t−1−i} α_i L̂_i² ‖û_i‖² + K (V_1 + 4γσ²_{g,1}/μ) Σ_{i<t} ρ^{t−1−i} L̂_i²,   ρ = 1 − β

    Args:
        level, first_error, u_norms, smoothness, delta: As in `recursion_error_bound`.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.1, lam=1.0, eta=0.01, beta=0.1)
        >>> printed_error_bound(level, 1.0, [0.0, 0.0], [1.0, 1.0], 0.1)
        tensor([1.0704, 0.9785, 0.8957], dtype=torch.float64)
    """
    u, L = recorded(u_norms=u_norms, smoothness=smoothness)
    V, n = _first(first_error, u), u.shape[-1]
    alpha = torch.tensor([momentum_weight(level.beta, t) for t in range(1, n + 1)], dtype=torch.float64)
    drift = u**2 * (1.0 + level.K / level.beta**2 * alpha * L**2) + (V + level.variance / 2.0)[..., None] * L**2
    bound = _discounted(1.0 - level.beta, V, level.K * drift)
    return bound + level.variance * (1.0 + _ln_failures(n + 1, delta))


def uniform_error_bound(
    level: LowerLevel,
    first_error: float,
    *,
    L: float,
    C_u0: float,
    steps: float,
    delta: float,
    statement: Statement = "corrected",
) -> float:
    r"""ϱ², one bound of V_t for all t ≤ T, with probability 1 − δ/4, where ‖û_t‖ ≤ C_u0 and L̂_t ≤ L.

        corrected    V_1 + (8γσ²_{g,1}/μ) ln(4eT/δ) + 2 K C_u0²/β        needs K L² ≤ β/4
        printed      (1 + k) V_1 + (8γσ²_{g,1}/μ) (ln(4eT/δ) + k/2) + K C_u0²/β (1 + 16 k (2 + ln 1/β)),   k = K L²/β

    Args:
        level: The lower level.
        first_error: V_1.
        L, C_u0: As in `RunConstants`.
        steps: T.
        delta: δ.
        statement: Which of the two.

    Raises:
        SettingError: If K L² exceeds β/4 for the corrected one, or an argument cannot be.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.1, lam=1.0, eta=0.01, beta=0.1)
        >>> round(uniform_error_bound(level, 1.0, L=1.0, C_u0=1.0, steps=1000, delta=0.1), 6)
        1.345546
    """
    check_positive({"L": L, "C_u0": C_u0})
    check_not_negative(first_error=first_error)
    if isinstance(steps, bool) or not isinstance(steps, int | float) or not 1 <= steps < math.inf:
        raise SettingError(f"steps={steps!r}: a run has a finite number of steps, at least one.")
    check_probability(delta)
    check_statement(statement)
    variance = level.variance * (1.0 + math.log(4.0) + math.log(steps) - math.log(delta))
    drift = level.K * C_u0**2 / level.beta
    if statement == "corrected":
        _check_coupling(level, L, 0.25)
        return first_error + variance + 2.0 * drift
    k = level.K * L**2 / level.beta
    pushed = drift * (1.0 + 16.0 * k * (2.0 - math.log(level.beta)))
    return (1.0 + k) * first_error + variance + level.variance * k / 2.0 + pushed


def _first(first_error: float | Tensor, u: Tensor) -> Tensor:
    V = as_numbers("first_error", first_error)
    if not bool(((V >= 0.0) & V.isfinite()).all()):
        raise SettingError(f"first_error={first_error!r} is no squared distance: it is finite, and 0 or more.")
    try:
        return V.expand(u.shape[:-1])
    except RuntimeError as error:
        raise SettingError(
            f"first_error has the shape {tuple(V.shape)}, but the runs have {tuple(u.shape[:-1])}: give one number for "
            "all, or one for each run."
        ) from error


def _discounted(rate: float, first: Tensor, pushes: Tensor) -> Tensor:
    """rate^{t−1} first + Σ_{i<t} rate^{t−1−i} pushes_i for t = 1 … T."""
    sums = [first]
    for push in pushes.unbind(-1):
        sums.append(rate * sums[-1] + push)
    return torch.stack(sums, dim=-1)


def _checked_length(level: LowerLevel, u_norms: Numbers, smoothness: Numbers, L: float, share: float) -> int:
    u, smooth = recorded(u_norms=u_norms, smoothness=smoothness)
    check_positive({"L": L})
    if smooth.numel() and float(smooth.max()) > L:
        raise SettingError(
            f"L={L!r} is exceeded by a recorded smoothness of {float(smooth.max()):.6g}. The bound needs an L that "
            "was known before the run: give a larger one, or end the record before that step."
        )
    _check_coupling(level, L, share)
    return u.shape[-1] + 1


def _check_coupling(level: LowerLevel, L: float, share: float) -> None:
    coupling, allowed = level.K * (L * L), share * level.beta
    if coupling > allowed * (1.0 + 1e-12):  # one, and rounding
        condition = "β" if share == 1.0 else f"{share:g} β"
        raise SettingError(
            f"K L² = {coupling:.6g} exceeds {condition} = {allowed:.6g}: the errors of y may feed themselves through "
            f"x, and this bound is not proved. It needs eta ≤ {level.eta * math.sqrt(allowed / coupling):.3g}."
        )


def _ln_failures(T: int, delta: float) -> float:
    check_probability(delta)
    return math.log(T) - math.log(delta)
