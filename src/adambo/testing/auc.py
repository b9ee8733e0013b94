"""Maximising the area under the ROC curve as a bilevel problem (a min-max problem, so g = −f)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adambo.testing.known_problem import KnownProblem, normal


class AUC(KnownProblem):
    r"""x = (w, a, b), y = α, linear scores s = ⟨w, features⟩, labels c = ±1, p = Pr(c = +1).

        F = (1−p)(s−a)² [c=+1] + p (s−b)² [c=−1] + 2(1+α)(p s [c=−1] − (1−p) s [c=+1]) − p(1−p) α²,    G = −F

        α*(x) = E[s | c=−1] − E[s | c=+1]        ∇²yy g = 2p(1−p), for every sample

    So a Neumann series with step 1/(2p(1−p)) is exact with one term, and ∇y f = 0 at α*, where ∇phi = ∇x f.

    Args:
        features: Number of features.
        positives, negatives: Examples of each label; p = positives / (positives + negatives).
        seed: Seeds the examples.

    Example:
        >>> known = AUC(positives=8, negatives=2)
        >>> round(known.curvature, 2)
        0.32
    """

    def __init__(self, features: int = 3, positives: int = 12, negatives: int = 8, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = positives + negatives
        self.p = positives / count
        self.labels = torch.ones(count, dtype=torch.float64)
        self.labels[positives:] = -1.0
        self.features = normal(count, features, generator=generator) + 0.5 * self.labels.unsqueeze(1)
        self.x0 = normal(features + 2, generator=generator)
        self.y0 = normal(1, generator=generator)
        self.x_shapes, self.y_shapes = [(features,), (), ()], [()]

    @property
    def curvature(self) -> float:
        """∇²yy g."""
        return 2 * self.p * (1 - self.p)

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        index = slice(None) if batch is None else batch
        scores, positive = self.features[index] @ x[:-2], self.labels[index] > 0
        a, b, alpha, p = x[-2], x[-1], y[0], self.p
        on_positive = (1 - p) * (scores - a).square() - 2 * (1 + alpha) * (1 - p) * scores
        on_negative = p * (scores - b).square() + 2 * (1 + alpha) * p * scores
        return torch.where(positive, on_positive, on_negative).mean() - p * (1 - p) * alpha.square()

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        return -self.upper(x, y, batch)

    def y_star(self, x: Tensor) -> Tensor:
        return self._gap @ x[:-2].unsqueeze(1)

    def phi(self, x: Tensor) -> Tensor:
        scores, positive = self.features @ x[:-2], self.labels > 0
        spread = (scores[positive] - x[-2]).square().mean() + (scores[~positive] - x[-1]).square().mean()
        gap = self.y_star(x)[0]
        return self.p * (1 - self.p) * (spread + gap.square() + 2 * gap)

    def gradient(self, x: Tensor) -> Tensor:
        positive, negative = self._split
        w, a, b = x[:-2], x[-2], x[-1]
        over, under = positive @ w - a, negative @ w - b
        in_w = positive.T @ over / len(positive) + negative.T @ under / len(negative) + (1 + self._gap @ w) * self._gap
        return self.curvature * torch.cat([in_w, -over.mean().reshape(1), -under.mean().reshape(1)])

    @property
    def optimum(self) -> Tensor:
        positive, negative = self._split
        spread = sum((torch.cov(part.T, correction=0) for part in (positive, negative)), start=torch.zeros(()))
        w = torch.linalg.solve(spread + torch.outer(self._gap, self._gap), -self._gap)
        return torch.cat([w, positive.mean(dim=0) @ w.unsqueeze(1), negative.mean(dim=0) @ w.unsqueeze(1)])

    @property
    def _split(self) -> tuple[Tensor, Tensor]:
        return self.features[self.labels > 0], self.features[self.labels < 0]

    @property
    def _gap(self) -> Tensor:
        """E[features | c=−1] − E[features | c=+1]."""
        positive, negative = self._split
        return negative.mean(dim=0) - positive.mean(dim=0)
