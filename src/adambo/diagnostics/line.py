"""A line L0 + L1 g through points (g, L), its scatter, and the line above most of them; L0, L1 ≥ 0."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

COVERED = 0.95
RESAMPLES = 1000
_AT_ONCE = 2_000_000  # numbers of all resamples that are drawn together


def fitted_lines(norms: Tensor, smoothness: Tensor, chosen: Tensor) -> Tensor:
    """(L0, L1) of each line of `chosen`, which are indices of points.

    With two numbers the constraints are simple: where the free minimum has one of them negative, it becomes zero.
    """
    g, L = norms[chosen], smoothness[chosen]
    g_mean, L_mean = g.mean(dim=1, keepdim=True), L.mean(dim=1, keepdim=True)
    spread = (g - g_mean).square().sum(dim=1)
    slope = ((g - g_mean) * (L - L_mean)).sum(dim=1) / spread
    slope = torch.where(spread > 0, slope, 0.0).clamp_min(0.0)
    level = (L_mean - slope.unsqueeze(1) * g_mean).squeeze(1)
    steepest = (g * L).sum(dim=1) / g.square().sum(dim=1)
    slope = torch.where(level < 0, steepest, slope)
    return torch.stack([level.clamp_min(0.0), slope], dim=1)


def log_slopes(norms: Tensor, smoothness: Tensor, chosen: Tensor) -> Tensor:
    """The slopes of log L against log ‖∇‖, of points where both are positive."""
    weight = ((norms > 0) & (smoothness > 0)).to(norms)[chosen]
    u, v = (values.clamp_min(torch.finfo(values.dtype).tiny).log()[chosen] for values in (norms, smoothness))
    total = weight.sum(dim=1, keepdim=True)
    u, v = (values - (weight * values).sum(dim=1, keepdim=True) / total for values in (u, v))
    spread = (weight * u * u).sum(dim=1)
    slope = (weight * u * v).sum(dim=1) / spread
    return torch.where(spread > 0, slope, 0.0)


def resampled(n: int, seed: int) -> Iterator[Tensor]:
    """Indices of points, a line for each resample: runs of neighbours, from anywhere."""
    generator = torch.Generator().manual_seed(seed)
    length = math.ceil(n ** (1 / 3))
    each = max(1, _AT_ONCE // n)
    for first in range(0, RESAMPLES, each):
        starts = torch.randint(n, (min(each, RESAMPLES - first), -(-n // length), 1), generator=generator)
        yield ((starts + torch.arange(length)) % n).flatten(1)[:, :n]


def upper_line(norms: Tensor, smoothness: Tensor) -> tuple[float, float]:
    """The line above 95 % of the points that is closest to them: quantile regression, L0, L1 ≥ 0.

    For a given L1 the best L0 is a quantile, and what is left to minimise is convex in L1.
    """

    def level(slope: float) -> float:
        return max(0.0, float(torch.quantile(smoothness - slope * norms, COVERED, interpolation="higher")))

    def cost(slope: float) -> float:
        above = smoothness - slope * norms - level(slope)
        return float(torch.maximum(COVERED * above, (COVERED - 1) * above).sum())

    left, right = 0.0, float((smoothness / norms)[norms > 0].max()) if (norms > 0).any() else 0.0
    for _ in range(150):
        third = (right - left) / 3
        if cost(left + third) <= cost(right - third):
            right -= third
        else:
            left += third
    L1 = min((0.0, (left + right) / 2), key=cost)
    L0 = level(L1)
    # With L0 at its bound the quantile is one by weight; 95 % of the points are to be below, one by one.
    bound = (L0 + L1 * norms).clamp_min(torch.finfo(norms.dtype).tiny)
    lift = max(1.0, float(torch.quantile(smoothness / bound, COVERED, interpolation="higher")))
    return L0 * lift, L1 * lift


def growth_of(lines: Tensor, low: float, high: float) -> Tensor:
    """How many times larger L0 + L1 g is at `high` than at `low`: infinitely, where it begins at zero."""
    bottom, top = (lines[..., 0] + lines[..., 1] * g for g in (low, high))
    return torch.where(top > bottom, top / bottom, 1.0)  # 1 also where L is zero at both


def interval(values: Tensor) -> tuple[float, float]:
    """What 95 % of the values lie between; some may be infinite, so that none are interpolated."""
    low = torch.quantile(values, 0.025, interpolation="lower")
    high = torch.quantile(values, 0.975, interpolation="higher")
    return float(low), float(high)
