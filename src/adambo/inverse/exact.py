"""The truth, for small y: the Hessian is built and factorised."""

from __future__ import annotations

import torch

from adambo.draw import Needs
from adambo.errors import CurvatureError
from adambo.inverse.base import Inverse
from adambo.point import Point
from adambo.vectors import Vector, as_blocks, from_blocks


class Exact(Inverse):
    """z = [∇²yy g]⁻¹ v on one Hessian batch, by a dense solve: dim(y) Hessian-vector products per step.

    Args:
        limit: The largest dimension of `y` (per task) for which the Hessian is built.

    Example:
        >>> Exact().needs.hessian
        1
    """

    def __init__(self, limit: int = 2048) -> None:
        self.limit = limit
        self.needs = Needs(hessian=1)

    def solve(self, point: Point, v: Vector) -> Vector:
        right = as_blocks(v, point.y.blocks)
        blocks, dim = right.shape
        if dim > self.limit:
            raise CurvatureError(
                f"Exact() would build a {dim}×{dim} Hessian per lower problem, above its limit of {self.limit}. Use "
                "ConjugateGradient, or raise the limit with Exact(limit=...)."
            )
        columns = []
        for k in range(dim):
            unit = torch.zeros_like(right)
            unit[:, k] = 1.0
            columns.append(as_blocks(point.hessian(from_blocks(unit, v)), blocks))
        hessian = torch.stack(columns, dim=2)
        z, failed = torch.linalg.solve_ex(hessian, right.unsqueeze(2))
        # A singular block becomes NaN, which the guard reports; asking here would make a GPU wait.
        z = z.squeeze(2).masked_fill((failed != 0).view(-1, 1), float("nan"))
        return from_blocks(z, v)
