"""The lower Hessian on the batches of several draws, and its mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adambo.lower_variable import LowerVariable, TableRows
from adambo.point import Point
from adambo.vectors import Vector, as_blocks, from_blocks


def tasks_of(y: LowerVariable) -> Tensor:
    """The ids of the lower problems that a draw is about; without tasks there is one, of id 0."""
    return y.ids if isinstance(y, TableRows) else torch.zeros(1, dtype=torch.int64, device=y.leaves[0].device)


class SampledHessian:
    """∇²yy g on one batch of each draw. A vector is a matrix in float64, with one line per lower problem.

    The lower problems (tasks) are those that any draw names; the mean of a task is over the draws that name it. All
    products are in the precision of `y`.

    Args:
        points: One per draw, each with a Hessian batch. Their graphs stay in memory.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        named = [tasks_of(point.y) for point in points]
        self.tasks, places = torch.unique(torch.cat(named), return_inverse=True)
        self.places = places.split([len(ids) for ids in named])
        self.counts = torch.bincount(places, minlength=len(self.tasks)).unsqueeze(1)
        self._rows = [point.y.values() for point in points]
        self.like = as_blocks(self._rows[0], points[0].y.blocks)[:1].expand(len(self.tasks), -1)

    def __len__(self) -> int:
        return len(self.points)

    def of(self, draw: int, v: Tensor) -> Tensor:
        """The product with the Hessian of one draw; of `v` it has the lines of that draw."""
        point = self.points[draw]
        return as_blocks(point.curvature(as_vector(v, self._rows[draw])), point.y.blocks).double()

    def all(self, v: Tensor) -> list[Tensor]:
        """The products with the Hessians of all draws."""
        return [self.of(draw, v[places]) for draw, places in enumerate(self.places)]

    def mean_of(self, products: Sequence[Tensor]) -> Tensor:
        total = self._zeros()
        for places, product in zip(self.places, products, strict=True):
            total.index_add_(0, places, product)
        return total / self.counts

    def mean(self, v: Tensor) -> Tensor:
        """The product with the mean Hessian."""
        total = self._zeros()
        for draw, places in enumerate(self.places):
            total.index_add_(0, places, self.of(draw, v[places]))
        return total / self.counts

    def deviation(self, draw: int, v: Tensor) -> Tensor:
        """The product with the difference of one draw's Hessian from the mean; `v` has the lines of that draw."""
        own, total = self.places[draw], self._zeros()
        whole = self._zeros().index_copy_(0, own, v)
        product = self.of(draw, v)
        for other, places in enumerate(self.places):
            if other == draw:
                total.index_add_(0, own, product)
            elif bool(torch.isin(places, own).any()):
                total.index_add_(0, places, self.of(other, whole[places]))
        return product - (total / self.counts)[own]

    def flipped(self, signs: Sequence[float], v: Tensor) -> Tensor:
        """The product with the mean of ±(Hessian of a draw − mean Hessian), with one sign per draw.

        With random signs it is as large as the mean Hessian's own error, task by task; zero where a task comes once.
        """
        counts = self.counts.double()
        total, signed, balance = self._zeros(), self._zeros(), torch.zeros_like(counts)
        for draw, (sign, places) in enumerate(zip(signs, self.places, strict=True)):
            product = self.of(draw, v[places])
            total.index_add_(0, places, product)
            signed.index_add_(0, places, product, alpha=sign)
            balance[places] += sign
        lost = (counts / (counts - 1).clamp_min(1.0)).sqrt()
        return lost * (signed - balance * total / counts) / counts

    def is_compared(self, draw: int) -> bool:
        """Whether another draw is about one of its tasks too."""
        return bool((self.counts[self.places[draw]] > 1).any())

    def _zeros(self) -> Tensor:
        return torch.zeros(self.like.shape, dtype=torch.float64, device=self.like.device)


def as_vector(lines: Tensor, like: Vector) -> Vector:
    """A matrix in float64 as a vector of the shapes and precision of `like`."""
    return [part.to(t.dtype) for part, t in zip(from_blocks(lines, like), like, strict=True)]
