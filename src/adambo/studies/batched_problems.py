"""Many small problems with known answers at once: their oracles in closed form, one line of an array per run.

A study of rates makes millions of steps on problems of three or four dimensions, of which a step of the library spends
nearly all its time in autograd's bookkeeping. Here all runs of a method move together, in NumPy. The tests hold every
oracle against the library's, and every method of `batched_methods` against its solver, to 1e-12.

Arrays of vectors are (runs, dimension). Samples are numbers, one per run; `POPULATION` stands for the mean of all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adambo.testing import KnownProblem, StochasticQuadratic, StochasticUnboundedSmooth

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
POPULATION = -1


class BatchedProblem(ABC):
    """The oracles of one problem per run.

    Attributes:
        x0, y0: Where the runs start.
        samples: How many each problem has.
        smoothness: A bound on the eigenvalues of ∇²yy G of every sample of every run, the step of Neumann series its
            inverse. Deviations are scaled to the same largest norm for every seed of a noise, so that it is the same
            whatever seeds run together, and with it the numbers of a seed.
    """

    x0: Array
    y0: Array
    samples: int
    smoothness: float

    @abstractmethod
    def f_x(self, x: Array, y: Array, i: Indices) -> Array:
        """∇x F."""

    @abstractmethod
    def f_y(self, x: Array, y: Array, i: Indices) -> Array:
        """∇y F."""

    @abstractmethod
    def g_x(self, x: Array, y: Array, i: Indices) -> Array:
        """∇x G."""

    @abstractmethod
    def g_y(self, x: Array, y: Array, i: Indices) -> Array:
        """∇y G."""

    @abstractmethod
    def hessian(self, x: Array, y: Array, v: Array, i: Indices) -> Array:
        """∇²yy G v."""

    @abstractmethod
    def cross(self, x: Array, y: Array, v: Array, i: Indices) -> Array:
        """∇²xy G v."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """∇phi, of the population."""

    @property
    def everything(self) -> Indices:
        """The population, for each run."""
        return np.full(len(self.x0), POPULATION)


class BatchedQuadratics(BatchedProblem):
    """`StochasticQuadratic`s; the formulas are in its description.

    Args:
        problems: One per run, of the same sizes.

    Example:
        >>> batched = BatchedQuadratics([StochasticQuadratic(seed=k) for k in range(5)])
        >>> batched.gradient(batched.x0).shape
        (5, 3)
    """

    def __init__(self, problems: Sequence[StochasticQuadratic]) -> None:
        self.x0, self.y0 = _stacked([p.x0 for p in problems]), _stacked([p.y0 for p in problems])
        self.samples = problems[0].samples
        spread = [p.L + float(torch.linalg.matrix_norm(p.A_i - p.A, ord=2).max()) for p in problems]
        self.smoothness = round(max(spread), 12)
        self.B, self.C, self.c, self.d, self.e = (
            _stacked([getattr(p, name) for p in problems]) for name in ("B", "C", "c", "d", "e")
        )
        self.A_i = _with_population([p.A_i for p in problems])
        self.N_i, self.b_i, self.d_i, self.e_i = (
            _with_population([getattr(p, name) for p in problems]) for name in ("N_i", "b_i", "d_i", "e_i")
        )
        self.BT, self.CT, self.NT_i = (np.swapaxes(m, -1, -2) for m in (self.B, self.C, self.N_i))
        self.runs = np.arange(len(problems))

    def f_x(self, x: Array, y: Array, i: Indices) -> Array:
        return _times(self.C, x - self.e) + self.e_i[self.runs, i]

    def f_y(self, x: Array, y: Array, i: Indices) -> Array:
        return y - self.d + self.d_i[self.runs, i]

    def g_x(self, x: Array, y: Array, i: Indices) -> Array:
        return _times(self.NT_i[self.runs, i], y) - _times(
            self.BT, _times(self.A_i[self.runs, i], self._residual(x, y))
        )

    def g_y(self, x: Array, y: Array, i: Indices) -> Array:
        slope = self.b_i[self.runs, i] + _times(self.N_i[self.runs, i], x)
        return _times(self.A_i[self.runs, i], self._residual(x, y)) + slope

    def hessian(self, x: Array, y: Array, v: Array, i: Indices) -> Array:
        return _times(self.A_i[self.runs, i], v)

    def cross(self, x: Array, y: Array, v: Array, i: Indices) -> Array:
        return _times(self.NT_i[self.runs, i], v) - _times(self.BT, _times(self.A_i[self.runs, i], v))

    def gradient(self, x: Array) -> Array:
        return _times(self.BT, _times(self.B, x) + self.c - self.d) + _times(self.C, x - self.e)

    def _residual(self, x: Array, y: Array) -> Array:
        return y - _times(self.B, x) - self.c


class BatchedUnboundedSmooth(BatchedProblem):
    """`StochasticUnboundedSmooth`s; the formulas are in its description.

    Args:
        problems: One per run, of the same sizes.

    Example:
        >>> batched = BatchedUnboundedSmooth([StochasticUnboundedSmooth(seed=k) for k in range(5)])
        >>> bool((np.abs(batched.gradient(batched.x0)) > 50).all())
        True
    """

    def __init__(self, problems: Sequence[StochasticUnboundedSmooth]) -> None:
        self.x0, self.y0 = _stacked([p.x0 for p in problems]), _stacked([p.y0 for p in problems])
        self.samples = problems[0].samples
        self.a, self.b, self.e = (_stacked([getattr(p, name) for p in problems]) for name in ("a", "b", "e"))
        self.s_i, self.t_i, self.d_i, self.e_i = (
            _with_population([getattr(p, name) for p in problems]) for name in ("s_i", "t_i", "d_i", "e_i")
        )
        self.smoothness = round(2.0 + float(np.abs(self.s_i).max()), 12)  # a < 2
        self.runs = np.arange(len(problems))

    def f_x(self, x: Array, y: Array, i: Indices) -> Array:
        return np.sinh(x - self.e) + self.e_i[self.runs, i]

    def f_y(self, x: Array, y: Array, i: Indices) -> Array:
        return y - self.b * self.e + self.d_i[self.runs, i]

    def g_x(self, x: Array, y: Array, i: Indices) -> Array:
        r = y - self.b * x
        return -self.b * (self.a * r + self.s_i[self.runs, i] * np.sin(r))

    def g_y(self, x: Array, y: Array, i: Indices) -> Array:
        r = y - self.b * x
        return self.a * r + self.s_i[self.runs, i] * np.sin(r) + self.t_i[self.runs, i]

    def hessian(self, x: Array, y: Array, v: Array, i: Indices) -> Array:
        return (self.a + self.s_i[self.runs, i] * np.cos(y - self.b * x)) * v

    def cross(self, x: Array, y: Array, v: Array, i: Indices) -> Array:
        return -self.b * self.hessian(x, y, v, i)

    def gradient(self, x: Array) -> Array:
        return np.sinh(x - self.e) + self.b**2 * (x - self.e)


def batched(problems: Sequence[KnownProblem]) -> BatchedProblem:
    """The oracles of problems of one kind."""
    quadratics = [p for p in problems if isinstance(p, StochasticQuadratic)]
    return BatchedQuadratics(quadratics) if quadratics else BatchedUnboundedSmooth(problems)  # type: ignore[arg-type]


def _stacked(tensors: Sequence[Tensor]) -> Array:
    return np.stack([t.numpy() for t in tensors])


def _with_population(tensors: Sequence[Tensor]) -> Array:
    """(runs, samples + 1, …): the last sample is the mean of the others."""
    return _stacked([torch.cat([t, t.mean(dim=0, keepdim=True)]) for t in tensors])


def _times(matrices: Array, vectors: Array) -> Array:
    return (matrices @ vectors[:, :, None])[:, :, 0]
