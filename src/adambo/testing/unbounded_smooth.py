"""Upper levels whose smoothness is unbounded, as AdamBO's theory allows and bounded-smoothness theory does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adambo.testing.known_problem import KnownProblem, centred, mean_of, normal, two_tensors


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


class StochasticUnboundedSmooth(UnboundedSmooth):
    r"""n samples whose mean is an `UnboundedSmooth`, with noise of the kind that AdamBO's theorem assumes.

        G_i = g + Σ_k s_ik (1 − cos(y_k − b_k x_k)) + ⟨y, t_i⟩        F_i = f + ⟨y, d_i⟩ + ⟨x, e_i⟩

    The means of s_i, t_i, d_i, e_i are 0, so all closed forms are those of the population. The deviations of ∇x F,
    ∇y F, ∇y G, ∇²yy G and ∇²xy G are bounded for all (x, y), however fast phi grows; those of a `StochasticQuadratic`
    grow with x and y. A batch is an integer i, a list of integers (their mean), or None (the population).

    One assumption fails all the same: ∇y f(x, y*(x)) = b (x − e) is bounded only as long as x is.

    Args:
        samples: n.
        noise: Size of the deviations; |s_ik| ≤ noise and a ≥ 1, so below 1 every sample is strongly convex.

    Example:
        >>> known = StochasticUnboundedSmooth(dim=2, samples=3)
        >>> x, y = known.x0, known.y0
        >>> bool((known.lower(x, y, [0, 1, 2]) - known.lower(x, y)).abs() < 1e-12)
        True
        >>> bool((known.curvatures(x, y, 0) > 0.5).all())
        True
    """

    def __init__(
        self, dim: int = 3, seed: int = 0, distance: float = 5.0, samples: int = 4, noise: float = 0.5
    ) -> None:
        super().__init__(dim, seed, distance)
        generator = torch.Generator().manual_seed(seed + 1)
        self.samples = samples
        self.s_i, self.t_i, self.d_i, self.e_i = (
            noise * centred(normal(samples, dim, generator=generator)) for _ in range(4)
        )
        self.s_i *= noise / self.s_i.abs().max().clamp_min(1e-300)

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        f = super().upper(x, y)
        return f if batch is None else f + y.dot(mean_of(self.d_i, batch)) + x.dot(mean_of(self.e_i, batch))

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        g = super().lower(x, y)
        if batch is None:
            return g
        waves = mean_of(self.s_i, batch).dot(1.0 - torch.cos(y - self.y_star(x)))
        return g + waves + y.dot(mean_of(self.t_i, batch))

    def curvatures(self, x: Tensor, y: Tensor, batch: int | list[int]) -> Tensor:
        """The eigenvalues of ∇²yy G on a batch, which is diagonal."""
        return self.a + mean_of(self.s_i, batch) * torch.cos(y - self.y_star(x))

    def batch(self, generator: torch.Generator) -> list[int]:
        """One sample, as a source for `adambo.draws`; every call gives a new object."""
        return [int(torch.randint(self.samples, (), generator=generator))]
