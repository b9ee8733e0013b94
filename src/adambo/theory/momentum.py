"""The weights with which Adam's bias-corrected momentum averages the past, and the step that it allows.

m̂_t = (1 − α_t) m̂_{t−1} + α_t h_t = Σ_{j ≤ t} d_{t,j} h_j

paper            here
β                beta: the weight of the new sample, 1 − β_1 of torch.optim.Adam
α_t              momentum_weight(beta, t)
d_{t,1} … d_{t,t}    averaging_weights(beta, t)
Σ_{j ≤ t} d_{t,j} V_j    averages(beta, V)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adambo.errors import SettingError
from adambo.theory.checks import (
    Numbers,
    as_numbers,
    check_beta,
    check_not_negative,
    check_positive,
    check_whole,
    recorded,
)


def momentum_weight(beta: float, t: int) -> float:
    """α_t = β / (1 − (1 − β)^t): 1 in the first step, and β in the end.

    Args:
        beta: Weight of the new sample, 0 < β ≤ 1.
        t: The step, counted from 1.

    Raises:
        SettingError: If `beta` is not in (0, 1], or `t` not a step.

    Example:
        >>> [round(momentum_weight(0.1, t), 4) for t in (1, 2, 100)]
        [1.0, 0.5263, 0.1]
    """
    _check(beta, t)
    if beta == 1.0 or t == 1:
        return 1.0
    # expm1 and log1p: for β = 1e-11, as the theorem has it, 1 − (1 − β)^t would be rounding errors.
    return beta / -math.expm1(t * math.log1p(-beta))


def averaging_weights(beta: float, t: int) -> Tensor:
    """d_{t,j} = α_t (1 − β)^{t−j} for j = 1 … t, which sum to 1; d_{t,0} = 0 is left out.

    Args:
        beta: Weight of the new sample, 0 < β ≤ 1.
        t: The step, counted from 1; the length of what is returned.

    Returns:
        A float64 tensor, oldest first.

    Raises:
        SettingError: If `beta` is not in (0, 1], or `t` not a step.

    Example:
        >>> averaging_weights(0.5, 3)
        tensor([0.1429, 0.2857, 0.5714], dtype=torch.float64)
    """
    _check(beta, t)
    ages = torch.arange(t - 1, -1, -1, dtype=torch.float64)
    if beta == 1.0:
        return (ages == 0).double()
    return momentum_weight(beta, t) * torch.exp(ages * math.log1p(-beta))


def averages(beta: float, values: Numbers) -> Tensor:
    """Σ_{j ≤ t} d_{t,j} V_j for t = 1 … n, without forming the n² weights.

    Args:
        beta: Weight of the new sample, 0 < β ≤ 1.
        values: V_1 … V_n along the last axis.

    Returns:
        A float64 tensor of the shape of `values`.

    Raises:
        SettingError: If `beta` is not in (0, 1], or `values` are not finite numbers along an axis.

    Example:
        >>> averages(0.5, [0.0, 3.0])
        tensor([0., 2.], dtype=torch.float64)
    """
    check_beta(beta)
    V = as_numbers("values", values)
    if V.ndim == 0 or not bool(V.isfinite().all()):
        raise SettingError(f"values={values!r} are to be averaged: give finite numbers, along the last axis.")
    mean, means = V.new_zeros(V.shape[:-1]), []
    for t, value in enumerate(V.unbind(-1), start=1):
        mean = torch.lerp(mean, value, momentum_weight(beta, t))
        means.append(mean)
    return torch.stack(means, dim=-1) if means else V


def step_bound(
    u_norms: Numbers, smoothness: Numbers, squared_errors: Numbers, *, beta: float, eta: float, lam: float
) -> Tensor:
    r"""The squared steps ‖x_{t+1} − x_t‖² that the lemma on the lower-level error allows, for t = 1 … n.

        (2η²/λ²) (‖û_t‖² + L̂_t² Σ_{j ≤ t} d_{t,j} V_j)

    That Adam's steps are within it while V_j ≤ r² needs the constants of `ProblemConstants` to hold for every sample,
    ‖∇y F(x, y*(x); ξ)‖ ≤ l_{f,0} among them: û_t and Adam's momentum are made of the same samples.

    Args:
        u_norms: ‖û_t‖, of the momentum that would have been at y_t*; n numbers along the last axis.
        smoothness: L̂_t = L_0 + L_1 max_{k ≤ t} ‖∇Φ(x_k)‖.
        squared_errors: V_t = ‖y_t − y_t*‖².
        beta, eta, lam: β, η and λ of Adam.

    Raises:
        SettingError: If the three are not norms of the same steps, or Adam has no such settings.

    Example:
        >>> step_bound([1.0, 0.0], [1.0, 1.0], [0.0, 1.9], beta=0.1, eta=1.0, lam=1.0)
        tensor([2.0000, 2.0000], dtype=torch.float64)
    """
    check_not_negative(eta=eta)
    check_positive({"lam": lam})
    u, L, V = recorded(u_norms=u_norms, smoothness=smoothness, squared_errors=squared_errors)
    return 2.0 * (eta / lam) ** 2 * (u**2 + L**2 * averages(beta, V))


def _check(beta: float, t: int) -> None:
    check_beta(beta)
    check_whole(1, t=t)
    check_positive({"t": t})
