"""Quadratic problems: every quantity has a closed form, in any dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adambo.testing.known_problem import KnownProblem, centred, mean_of, normal, spd, two_tensors


class Quadratic(KnownProblem):
    r"""A strongly convex quadratic at both levels.

        g(x, y) = ½ (y − Bx − c)ᵀ A (y − Bx − c)
        f(x, y) = ½ ‖y − d‖² + ½ (x − e)ᵀ C (x − e)

        y*(x) = Bx + c        ∇phi(x) = Bᵀ(Bx + c − d) + C(x − e)

    Args:
        dx, dy: Dimensions of `x` and `y`; each is divided into two tensors where it is larger than 1.
        seed: Seeds the matrices and the start.
        mu, L: The smallest and the largest eigenvalue of A (in one dimension, A = L).
        distance: How far from zero the start (x0, y0) lies, about.

    Example:
        >>> known = Quadratic(dx=3, dy=4, seed=0)
        >>> bool(known.gradient(known.optimum).norm() < 1e-12)
        True
        >>> [tuple(p.shape) for p in known.problem().y]
        [(2,), (2, 1)]
    """

    def __init__(
        self, dx: int = 3, dy: int = 4, seed: int = 0, mu: float = 1.0, L: float = 4.0, distance: float = 1.0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.A = spd(dy, mu, L, generator)
        self.B = normal(dy, dx, generator=generator) / dx**0.5
        self.C = spd(dx, 0.5, 1.0, generator)
        self.c, self.d = (normal(dy, generator=generator) for _ in range(2))
        self.e = normal(dx, generator=generator)
        self.x0 = distance * normal(dx, generator=generator)
        self.y0 = distance * normal(dy, generator=generator)
        self.x_shapes, self.y_shapes = two_tensors(dx), two_tensors(dy)
        self.mu, self.L = mu, L

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        return (y - self.d).square().sum() / 2 + _form(self.C, x - self.e) / 2

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        return _form(self.A, y - self.y_star(x)) / 2

    def y_star(self, x: Tensor) -> Tensor:
        return torch.mv(self.B, x) + self.c

    def phi(self, x: Tensor) -> Tensor:
        return (self.y_star(x) - self.d).square().sum() / 2 + _form(self.C, x - self.e) / 2

    def gradient(self, x: Tensor) -> Tensor:
        return torch.mv(self.B.T, self.B @ x + self.c - self.d) + torch.mv(self.C, x - self.e)

    @property
    def optimum(self) -> Tensor:
        return self.resting_point(torch.linalg.inv(self.A))

    def resting_point(self, P: Tensor) -> Tensor:
        """The x at which a method rests that uses the matrix P in place of A⁻¹, with y = y*(x).

        It solves C(x − e) + BᵀA P (Bx + c − d) = 0. With P = A⁻¹ it is the optimum; a truncated series rests elsewhere.
        """
        pull = self.B.T @ self.A @ P
        x: Tensor = torch.linalg.solve(pull @ self.B + self.C, pull @ (self.d - self.c) + self.C @ self.e)
        return x


class StochasticQuadratic(Quadratic):
    r"""n samples whose mean is a `Quadratic`, few enough to enumerate every expectation.

        G_i = ½ rᵀ A_i r + ⟨y, b_i + N_i x⟩,   r = y − Bx − c
        F_i = f + ⟨y, d_i⟩ + ⟨x, e_i⟩

    The means of A_i, b_i, N_i, d_i, e_i are A, 0, 0, 0, 0, so all closed forms are those of the population. A batch is
    an integer i, a list of integers (their mean), or None (the population).

    Args:
        samples: n.
        noise: Size of the deviations; ‖A_i − A‖ ≤ noise · mu, so below 1 every sample is strongly convex.

    Example:
        >>> known = StochasticQuadratic(dx=2, dy=2, seed=0, samples=3)
        >>> x, y = known.x0, known.y0
        >>> everything = known.lower(x, y, [0, 1, 2])
        >>> bool((everything - known.lower(x, y)).abs() < 1e-12)
        True
    """

    def __init__(
        self,
        dx: int = 3,
        dy: int = 4,
        seed: int = 0,
        mu: float = 1.0,
        L: float = 4.0,
        distance: float = 1.0,
        samples: int = 4,
        noise: float = 0.5,
    ) -> None:
        super().__init__(dx, dy, seed, mu, L, distance)
        generator = torch.Generator().manual_seed(seed + 1)
        self.samples = samples
        bends = normal(samples, dy, dy, generator=generator)
        bends = centred(bends + bends.mT)
        bends *= noise * mu / torch.linalg.matrix_norm(bends, ord=2).max().clamp_min(1e-300)
        self.A_i = self.A + bends
        self.N_i = noise * centred(normal(samples, dy, dx, generator=generator)) / dx**0.5
        self.b_i, self.d_i = (noise * centred(normal(samples, dy, generator=generator)) for _ in range(2))
        self.e_i = noise * centred(normal(samples, dx, generator=generator))

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        f = super().upper(x, y)
        return f if batch is None else f + y.dot(mean_of(self.d_i, batch)) + x.dot(mean_of(self.e_i, batch))

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        if batch is None:
            return super().lower(x, y)
        slope = mean_of(self.b_i, batch) + mean_of(self.N_i, batch) @ x
        return _form(mean_of(self.A_i, batch), y - self.y_star(x)) / 2 + y.dot(slope)

    def batch(self, generator: torch.Generator) -> list[int]:
        """One sample, as a source for `adambo.draws`; every call gives a new object."""
        return [int(torch.randint(self.samples, (), generator=generator))]


class AtRest(Quadratic):
    """A quadratic that starts at its solution x = y = z = 0, where every gradient is exactly zero.

    A method that moves by as much as one bit from here adds something that is not in its formulas. The solution is the
    origin because averages such as 0.9 y + 0.1 y return y exactly only there.

    Example:
        >>> known = AtRest()
        >>> known.gradient(known.x0).tolist()
        [0.0, 0.0, 0.0]
    """

    def __init__(self, dx: int = 3, dy: int = 4, seed: int = 0) -> None:
        super().__init__(dx, dy, seed)
        for vector in (self.c, self.d, self.e, self.x0, self.y0):
            vector.zero_()


def _form(matrix: Tensor, v: Tensor) -> Tensor:
    """vᵀ matrix v"""
    return v.dot(torch.mv(matrix, v))
