"""An upper level whose smoothness is unbounded, as AdamBO's theory allows and bounded-smoothness theory does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adambo.testing.known_problem import KnownProblem, normal, two_tensors


class UnboundedSmooth(KnownProblem):
    r"""Exponential growth in `x`, so that ∇²phi has no bound, but one in terms of ∇phi.

        g(x, y) = ½ Σ_k a_k (y_k − b_k x_k)²          f(x, y) = Σ_k cosh(x_k − e_k) + ½ (y_k − b_k e_k)²

        y*(x) = b x      ∇phi(x) = sinh(x − e) + b² (x − e)      optimum e

    In each coordinate |phi″| = cosh + b² ≤ (1 + b²) + |phi′|: (L0, L1)-smooth with L0 = 1 + b², L1 = 1, and not
    L-smooth for any L.

    Args:
        dim: Dimension of `x` and of `y`.
        seed: Seeds a, b and e.
        distance: How far from the optimum the start lies in each coordinate.

    Example:
        >>> known = UnboundedSmooth(dim=2)
        >>> bool((known.gradient(known.x0).abs() > 50).all())
        True
    """

    def __init__(self, dim: int = 3, seed: int = 0, distance: float = 5.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.a = 1.0 + torch.rand(dim, generator=generator, dtype=torch.float64)
        self.b = 0.5 + torch.rand(dim, generator=generator, dtype=torch.float64)
        self.e = normal(dim, generator=generator)
        self.x0 = self.e + distance
        self.y0 = torch.zeros_like(self.e)
        self.x_shapes = self.y_shapes = two_tensors(dim)

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        return (torch.cosh(x - self.e) + (y - self.b * self.e).square() / 2).sum()

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        return (self.a * (y - self.b * x).square()).sum() / 2

    def y_star(self, x: Tensor) -> Tensor:
        return self.b * x

    def phi(self, x: Tensor) -> Tensor:
        return (torch.cosh(x - self.e) + (self.b * (x - self.e)).square() / 2).sum()

    def gradient(self, x: Tensor) -> Tensor:
        return torch.sinh(x - self.e) + self.b.square() * (x - self.e)

    @property
    def optimum(self) -> Tensor:
        return self.e
