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
from collections.abc import Sequence

import torch
from torch import Tensor

from adambo.errors import SettingError
from adambo.theory.constants import is_number

Numbers = Tensor | Sequence[float]


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

    Example:
        >>> averages(0.5, [0.0, 3.0])
        tensor([0., 2.], dtype=torch.float64)
    """
    V = torch.as_tensor(values, dtype=torch.float64)
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

    Args:
        u_norms: ‖û_t‖, of the momentum that would have been at y_t*; n numbers along the last axis.
        smoothness: L̂_t = L_0 + L_1 max_{k ≤ t} ‖∇Φ(x_k)‖.
        squared_errors: V_t = ‖y_t − y_t*‖².
        beta, eta, lam: β, η and λ of Adam.

    Raises:
        SettingError: If the three are not norms of the same steps.

    Example:
        >>> step_bound([1.0, 0.0], [1.0, 1.0], [0.0, 1.9], beta=0.1, eta=1.0, lam=1.0)
        tensor([2.0000, 2.0000], dtype=torch.float64)
    """
    u, L, V = recorded(u_norms=u_norms, smoothness=smoothness, squared_errors=squared_errors)
    return 2.0 * (eta / lam) ** 2 * (u**2 + L**2 * averages(beta, V))


def recorded(**sequences: Numbers) -> list[Tensor]:
    """The numbers of a run in float64, one per step along the last axis.

    Raises:
        SettingError: If they are not norms, or not of the same number of steps.
    """
    tensors = {name: torch.as_tensor(numbers, dtype=torch.float64) for name, numbers in sequences.items()}
    if len({t.shape[-1:] for t in tensors.values()}) > 1 or any(t.ndim == 0 for t in tensors.values()):
        shapes = ", ".join(f"{name} has the shape {tuple(t.shape)}" for name, t in tensors.items())
        raise SettingError(f"{shapes}: give one number of each per step, along the last axis.")
    for name, t in tensors.items():
        if not bool(((t >= 0.0) & t.isfinite()).all()):
            raise SettingError(f"{name} holds a number that is negative or not finite, which no norm is.")
    return list(tensors.values())


def _check(beta: float, t: int) -> None:
    if not is_number(beta) or not 0.0 < beta <= 1.0:
        raise SettingError(f"beta={beta!r} is no weight of a new sample: it lies above 0 and is at most 1.")
    if isinstance(t, bool) or not isinstance(t, int) or t < 1:
        raise SettingError(f"t={t!r} is no step: steps are whole numbers that count from 1.")
