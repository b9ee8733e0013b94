"""How large the noise of a few samples is, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEVEL = 0.95
NORMAL = 1.96  # the deviations within which 95 % of a normal distribution lie
RESAMPLED = 1000
ONE_IN = 1000  # draws exceed the upper end of a bound that is estimated


@dataclass(frozen=True)
class Estimate:
    """A number, between which bounds it lies with a confidence of 95 %, and what there is to say about it.

    Example:
        >>> print(Estimate(0.5, 0.45, 0.55, "the mean of 20 draws"))
        0.5 [0.45, 0.55]
    """

    value: float
    low: float
    high: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def not_seen(reason: str) -> Estimate:
    return Estimate(math.nan, 0.0, math.inf, reason)


def largest(estimates: Sequence[Estimate]) -> Estimate:
    """The largest of several estimates, of which some may not have been possible; no end is lower than theirs."""
    seen = [e for e in estimates if not math.isnan(e.value)]
    if not seen:
        return estimates[0]
    top = max(seen, key=lambda e: e.value)
    return Estimate(top.value, max(e.low for e in seen), max(e.high for e in seen), top.note)


class Samples:
    """n vectors of one distribution: their mean, and how far they lie from it.

    The bootstrap is done on the n × n products of the deviations, whatever the length of the vectors.

    Args:
        vectors: A matrix, one line per sample; at least two.
        seed: Of the bootstrap.

    Example:
        >>> Samples(torch.tensor([[3.0], [5.0]])).norms.tolist()
        [1.0, 1.0]
    """

    def __init__(self, vectors: Tensor, seed: int = 0) -> None:
        vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
        self.count = len(vectors)
        self.mean = vectors.mean(dim=0)
        deviations = vectors - self.mean
        self._products = (deviations @ deviations.T).double().cpu()
        self.norms = self._products.diagonal().clamp_min(0.0).sqrt()
        self._weights = _resampled(self.count, seed)

    @property
    def lost(self) -> float:
        """√(n/(n−1)): deviations from the mean of the same samples are too short by this factor."""
        return math.sqrt(self.count / (self.count - 1))

    def error_of_mean(self) -> float:
        """‖mean − expectation‖, exceeded with a probability of 5 %, if the noise is normal."""
        moved = torch.einsum("bi,ij,bj->b", self._weights, self._products, self._weights)
        return few_draws(self.count) * self.lost * _quantile(moved.clamp_min(0.0).sqrt(), LEVEL)

    def norm_of_mean(self) -> Estimate:
        """‖expectation‖."""
        value, error = float(torch.linalg.vector_norm(self.mean)), self.error_of_mean()
        return Estimate(value, max(0.0, value - error), value + error)

    def bound(self) -> Estimate:
        """A bound of the noise: the largest seen; its upper end is one that one draw of 1,000 would exceed."""
        return bound_of(self.norms, self.error_of_mean())

    def sub_gaussian(self) -> Estimate:
        r"""The smallest σ with Pr(‖noise‖ ≥ s) ≤ 2 exp(−2s²/σ²) for all s, on these samples.

        They show little of a tail, so that the ends are those that the second moment tells. Integrated, the inequality
        says E‖noise‖² ≤ σ² (1 + ln 2)/2; and normal noise has σ² = 4 E‖noise‖² in one dimension, less in several.
        """
        value = float(sub_gaussian(self.norms, torch.full_like(self.norms, 1 / self.count)))
        centres = self._weights @ self._products
        squares = (centres * self._weights).sum(dim=1, keepdim=True) - 2 * centres + self._products.diagonal()
        found = self.lost * sub_gaussian(squares.clamp_min(0.0).sqrt(), self._weights)
        least, most = self._second_moment()
        low, high = math.sqrt(2 * least / (1 + math.log(2))), 2 * math.sqrt(most)
        return Estimate(value, min(value, low), max(value, high, _quantile(found, (1 + LEVEL) / 2)))

    def _second_moment(self) -> tuple[float, float]:
        """Between which numbers E‖noise‖² lies, if the noise is normal."""
        total = float(self._products.trace())
        if total == 0:
            return 0.0, 0.0
        # ‖noise‖² is a sum over directions: of so many, were they of equal variance.
        terms = max(1.0, 1 / float((self._products / total).square().sum())) * (self.count - 1)
        # Wilson and Hilferty's quantiles of χ², as shares of its mean; for one term, 0.1 is right.
        centre, reach = 1 - 2 / (9 * terms), NORMAL * math.sqrt(2 / (9 * terms))
        mean = total / (self.count - 1)
        return mean / (centre + reach) ** 3, mean / max(0.1, centre - reach) ** 3


def bound_of(norms: Tensor, error_of_mean: float) -> Estimate:
    """The largest of the norms of deviations from a mean; how it goes on beyond them, if it is sub-Gaussian."""
    count, value = len(norms), float(norms.max())
    sigma = float(sub_gaussian(norms, torch.full_like(norms, 1 / count)))
    rare = sigma * math.sqrt(math.log(2 * ONE_IN) / 2) * math.sqrt(count / (count - 1))
    return Estimate(value, max(0.0, value - error_of_mean), max(value, rare))


def sub_gaussian(norms: Tensor, weights: Tensor) -> Tensor:
    """The smallest σ with Pr(norm ≥ s) ≤ 2 exp(−2s²/σ²), where each norm has the probability that is its weight.

    Example:
        >>> norms = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> round(float(sub_gaussian(norms, torch.full_like(norms, 0.5)) ** 2), 6)  # 2 · 2² / ln(2 / 0.5)
        5.77078
    """
    ordered, order = norms.sort(dim=-1, descending=True)
    weights = weights.expand_as(norms).gather(-1, order)
    tail = weights.cumsum(dim=-1).clamp(torch.finfo(norms.dtype).tiny, 1.0)
    return torch.where(weights > 0, ordered * (2 / torch.log(2 / tail)).sqrt(), 0.0).amax(dim=-1)


def mean_error(numbers: Tensor, seed: int) -> float:
    """How far the mean of some numbers is from their expectation; exceeded with a probability of 5 %."""
    return Samples(numbers.reshape(-1, 1), seed).error_of_mean() if len(numbers) > 1 else 0.0


def few_draws(count: int) -> float:
    """How much wider than a normal interval Student's is, at 95 % and with so many samples.

    Example:
        >>> [round(few_draws(count), 2) for count in (2, 3, 5, 20)]
        [6.48, 2.19, 1.41, 1.07]
    """
    n = count - 1
    # Cornish and Fisher's series is right to 1 % from three degrees of freedom on.
    return (6.483, 2.195)[n - 1] if n < 3 else 1 + 1.2104 / n + 1.44 / n**2 + 1.304 / n**3


def _resampled(count: int, seed: int) -> Tensor:
    """The weights of the samples in draws with replacement, one line per draw."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(count, (RESAMPLED, count), generator=generator)
    weights = torch.zeros(RESAMPLED, count, dtype=torch.float64)
    return weights.scatter_add_(1, chosen, torch.full_like(weights, 1 / count))


def _quantile(values: Tensor, level: float) -> float:
    return float(torch.quantile(values, level))
