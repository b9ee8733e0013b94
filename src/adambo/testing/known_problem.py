"""What the problems with known answers share: flat vectors for the mathematics, several tensors for PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adambo.problem import Problem
from adambo.vectors import Vector

Shapes = Sequence[tuple[int, ...]]


class KnownProblem(ABC):
    """A bilevel problem in float64 whose answers are known without this library.

    The mathematics is in flat vectors: `upper(x, y, batch)` and `lower(x, y, batch)` are pure functions of them, and
    `y_star`, `phi`, `gradient` and `optimum` are the truth. `problem()` builds a `Problem` over fresh parameters that
    start at (x0, y0); `flat(problem.x)` leads back.

    Attributes:
        x0, y0: Where a fresh problem starts, flat.
        x_shapes, y_shapes: The tensors into which they are divided.
    """

    x0: Tensor
    y0: Tensor
    x_shapes: Shapes
    y_shapes: Shapes

    @abstractmethod
    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        """f on a batch; None is the whole population."""

    @abstractmethod
    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        """g on a batch; None is the whole population."""

    @abstractmethod
    def y_star(self, x: Tensor) -> Tensor:
        """argmin over y of g(x, y)."""

    @abstractmethod
    def phi(self, x: Tensor) -> Tensor:
        """f(x, y*(x))."""

    @abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """∇phi(x)."""

    @property
    @abstractmethod
    def optimum(self) -> Tensor:
        """argmin over x of phi(x)."""

    def problem(self) -> Problem:
        """A `Problem` over fresh parameters."""
        x, y = self.parameters()
        return Problem(
            upper=lambda batch: self.upper(flat(x), flat(y), batch),
            lower=lambda batch: self.lower(flat(x), flat(y), batch),
            x=x,
            y=y,
        )

    def parameters(self) -> tuple[Vector, Vector]:
        """Fresh leaves with the values (x0, y0)."""
        return (
            [t.requires_grad_() for t in divided(self.x0, self.x_shapes)],
            [t.requires_grad_() for t in divided(self.y0, self.y_shapes)],
        )


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of `tensors` in one vector, differentiable.

    Example:
        >>> flat([torch.zeros(2), torch.ones(2, 1)])
        tensor([0., 0., 1., 1.])
    """
    return torch.cat([t.reshape(-1) for t in tensors])


def divided(vector: Tensor, shapes: Shapes) -> Vector:
    """A copy of `vector` as tensors of these shapes: the inverse of `flat`."""
    parts = torch.split(vector.detach().clone(), [torch.Size(shape).numel() for shape in shapes])
    return [part.reshape(shape).clone() for part, shape in zip(parts, shapes, strict=True)]


def two_tensors(size: int) -> Shapes:
    """Shapes of two tensors with `size` numbers together, a vector and a column; of one tensor if size is 1.

    Example:
        >>> two_tensors(5), two_tensors(1)
        ([(3,), (2, 1)], [(1,)])
    """
    return [(1,)] if size == 1 else [(size - size // 2,), (size // 2, 1)]


def spd(size: int, smallest: float, largest: float, generator: torch.Generator) -> Tensor:
    """A symmetric matrix in a random basis; its eigenvalues fill [smallest, largest] and reach `largest`.

    Example:
        >>> matrix = spd(3, 1.0, 5.0, torch.Generator().manual_seed(0))
        >>> [round(float(e), 6) for e in torch.linalg.eigvalsh(matrix)]
        [1.0, 3.0, 5.0]
    """
    basis, _ = torch.linalg.qr(normal(size, size, generator=generator))
    matrix: Tensor = basis * torch.linspace(largest, smallest, size, dtype=torch.float64) @ basis.T
    return (matrix + matrix.T) / 2


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def centred(values: Tensor) -> Tensor:
    """`values` less their mean along the first axis: deviations of samples whose mean is the population."""
    return values - values.mean(dim=0)


def mean_of(values: Tensor, batch: int | list[int]) -> Tensor:
    """The mean over a batch of samples, which are lines of `values`; one sample may be named by its number."""
    return values[batch] if isinstance(batch, int) else values[batch].mean(dim=0)
