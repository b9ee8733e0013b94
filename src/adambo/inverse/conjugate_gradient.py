"""Conjugate gradients on one Hessian batch: far fewer products than a Neumann series where y is ill-conditioned."""

from __future__ import annotations

import warnings

import torch

from adambo.draw import Needs
from adambo.errors import SettingError
from adambo.inverse.base import Inverse
from adambo.point import Point
from adambo.vectors import Vector, as_blocks, from_blocks


class ConjugateGradient(Inverse):
    r"""`iterations` steps of conjugate gradients for (∇²yy g + damping · I) z = v, from z = 0.

        r_0 = p_0 = v
        α = ⟨r, r⟩/⟨p, Hp⟩,   z ← z + α p,   r' = r − α Hp,   p ← r' + (⟨r', r'⟩/⟨r, r⟩) p

    All products use one batch, so on noisy data the result is biased, as every solver on one sample is. Each task has
    its own α. The number of products is fixed: no residual is read on the host; a problem that is solved early stays.

    Args:
        iterations: Products per step.
        tolerance: A task whose residual fell below `tolerance` · ‖v‖ stops moving.
        damping: Added to the Hessian, for lower losses that are not strongly convex.

    Example:
        >>> ConjugateGradient(iterations=5).needs.hessian
        1
    """

    def __init__(self, iterations: int = 10, tolerance: float = 1e-10, damping: float = 0.0) -> None:
        if iterations < 1 or tolerance < 0 or damping < 0:
            raise SettingError(
                f"ConjugateGradient needs iterations ≥ 1, tolerance ≥ 0 and damping ≥ 0, but was given {iterations}, "
                f"{tolerance} and {damping}."
            )
        self.iterations, self.tolerance, self.damping = iterations, tolerance, damping
        self.needs = Needs(hessian=1)

    def solve(self, point: Point, v: Vector) -> Vector:
        blocks = point.y.blocks
        r = p = as_blocks(v, blocks)
        z = torch.zeros_like(r)
        rr = start = curvature = _dots(r, r)
        for _ in range(self.iterations):
            product = as_blocks(point.hessian(from_blocks(p, v)), blocks) + self.damping * p
            curvature = _dots(p, product)
            moving = (rr > self.tolerance**2 * start) & ~(curvature <= 0)  # NaN moves on, and the guard finds it
            alpha = torch.where(moving, rr / torch.where(moving, curvature, 1.0), 0.0)
            z = z + alpha * p
            r = r - alpha * product
            new = _dots(r, r)
            p = r + torch.where(moving, new / torch.where(moving, rr, 1.0), 0.0) * p
            rr = new
        if not z.is_cuda and ((curvature <= 0) & (rr > self.tolerance**2 * start)).any():
            warnings.warn(
                "Conjugate gradients met a direction in which the lower loss is not convex, and stopped there: z is "
                "incomplete. Add a regulariser to the lower loss, or damping=... here.",
                RuntimeWarning,
                stacklevel=2,
            )
        return from_blocks(z, v)


def _dots(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum(dim=1, keepdim=True)
