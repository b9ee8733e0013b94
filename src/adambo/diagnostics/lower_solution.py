"""The lower level solved at one point: conjugate gradients that stop when they are done, and Newton's method."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adambo.point import Point
from adambo.vectors import Vector, added, as_blocks, from_blocks, norm

MOST_NEWTON_STEPS = 30
MOST_HALVINGS = 12


class LinearSolution(NamedTuple):
    """What conjugate gradients found of ∇²yy g z = v.

    Attributes:
        z: The solution.
        curvature: The largest Ritz value: a lower bound of the largest eigenvalue of ∇²yy g that v touches.
        solved: Whether the tolerance was reached; not so where g is not convex, or the products were too few.
    """

    z: Vector
    curvature: float
    solved: bool


def conjugate_gradients(
    point: Point, v: Vector, *, tolerance: float, most: int, start: Vector | None = None
) -> LinearSolution:
    """Solve ∇²yy g z = v to ‖residual‖ ≤ tolerance · ‖v‖, in each task by itself, with `most` products at most.

    The coefficients of conjugate gradients are those of Lanczos' method, which gives the curvature for nothing.

    Args:
        point: With a Hessian batch.
        v: The right-hand side.
        tolerance: Relative; where rounding is coarser than that, rounding counts.
        most: Products.
        start: Where to begin; zero, if there is nothing better.
    """
    blocks = point.y.blocks
    right = as_blocks(v, blocks)
    allowed = max(tolerance, 10 * torch.finfo(right.dtype).eps) ** 2 * _dots(right, right)
    z, r = torch.zeros_like(right), right
    if start is not None:
        z = as_blocks(start, blocks).clone()
        r = right - as_blocks(point.hessian(start), blocks)
    p, rr, straight = r, _dots(r, r), torch.ones_like(allowed, dtype=torch.bool)
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for _ in range(most):
        if not bool(((rr > allowed) & straight).any()):
            break
        product = as_blocks(point.hessian(from_blocks(p, v)), blocks)
        bend = _dots(p, product)
        straight = straight & (bend > 0)  # in a direction that does not bend upwards there is nothing to minimise
        moving = (rr > allowed) & straight
        alpha = torch.where(moving, rr / torch.where(moving, bend, 1.0), 0.0)
        z, r = z + alpha * p, r - alpha * product
        new = _dots(r, r)
        beta = torch.where(moving, new / torch.where(moving, rr, 1.0), 0.0)
        p, rr = r + beta * p, torch.where(moving, new, rr)
        alphas.append(alpha)
        betas.append(beta)
    return LinearSolution(from_blocks(z, v), _largest_ritz_value(alphas, betas), bool((rr <= allowed).all()))


def lower_solution(point: Point, *, tolerance: float, most: int, to_the_end: bool) -> tuple[Vector | None, bool, float]:
    """y near y*(x): after one Newton step, or to a distance of about tolerance · (1 + ‖y‖).

    A step that would raise g is halved. One step is exact for a quadratic g, and right to first order for all others.

    Args:
        point: Where to start, with lower and Hessian batches. It stays where it is.
        tolerance: As above; the linear systems are solved to it as well.
        most: Products for each linear system.
        to_the_end: Repeat the step until the tolerance is reached, thirty times at most.

    Returns:
        y (None where g is not convex, so that no step leads down), whether it is as accurate as was asked for, and the
        curvature seen at the start.
    """
    y, solved, curvature = point.y.values(), False, 0.0
    rounding = 10 * max(float(torch.finfo(t.dtype).eps) for t in y)
    for number in range(MOST_NEWTON_STEPS if to_the_end else 1):
        with point.elsewhere(y=y) as here:
            g, found = (
                float(here.lower_loss()),
                conjugate_gradients(here, here.lower_gradient(), tolerance=tolerance, most=most),
            )
        curvature = found.curvature if number == 0 else curvature
        length, part = float(norm(found.z)), 1.0
        if length == 0 and not found.solved:
            return None, False, curvature
        for _ in range(MOST_HALVINGS):
            moved = added(y, found.z, -part)
            with point.elsewhere(y=moved) as there:
                lower = float(there.lower_loss())
            if lower <= g + rounding * abs(g):
                break
            part /= 2
        else:
            near = length <= tolerance * (1.0 + float(norm(y)))
            return (y if near else None), near, curvature
        lost = rounding * float(norm(y)) > tolerance * (1.0 + float(norm(moved)))  # of y*, in a step from far away
        y, solved = moved, found.solved and not lost
        if to_the_end and found.solved and part * length <= max(tolerance, rounding) * (1.0 + float(norm(y))):
            return y, True, curvature
    return y, solved and not to_the_end, curvature


def _largest_ritz_value(alphas: list[Tensor], betas: list[Tensor]) -> float:
    """The largest eigenvalue of Lanczos' tridiagonal matrix, over all tasks."""
    if not alphas:
        return 0.0
    alpha, beta = torch.cat(alphas, dim=1).double(), torch.cat(betas, dim=1).double()
    inverse = torch.where(alpha > 0, 1.0 / torch.where(alpha > 0, alpha, 1.0), 0.0)
    diagonal = inverse.clone()
    diagonal[:, 1:] += beta[:, :-1] * inverse[:, :-1]
    diagonal = torch.where(alpha > 0, diagonal, 0.0)
    beside = beta[:, :-1].sqrt() * inverse[:, :-1] * (alpha[:, 1:] > 0)
    matrix = torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    if not bool(torch.isfinite(matrix).all()):
        return float("nan")
    return float(torch.linalg.eigvalsh(matrix).max())


def _dots(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1, keepdim=True)
