"""How many terms of the Neumann series are worth their price, by what further ones change in the hypergradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adambo.diagnostics.short_runs import filled
from adambo.draw import Draw, Needs
from adambo.inverse import ConjugateGradient
from adambo.ledger import Ledger
from adambo.masks import SameMasks
from adambo.problem import Problem
from adambo.vectors import Vector, add_, added, clones, norm, scaled

ITERATIONS = 100  # enough for condition numbers up to 1e3


def series_errors(
    problem: Problem, draws: Sequence[Draw], step: float, lengths: Sequence[int], ledger: Ledger, seed: int = 0
) -> list[float]:
    r"""‖p_Q − p‖ / ‖p‖ for each length Q, both averaged over the draws.

        p_Q = ∇²xy g z_Q        z_Q = s Σ_{q<Q} (I − s ∇²yy g)^q ∇y f        p = ∇²xy g [∇²yy g]⁻¹ ∇y f

    This is the part of the hypergradient ∇x f − ∇²xy g z that passes through y. It is not compared with ∇x f, which
    cancels it where a run comes to rest. One Hessian batch serves a whole series,
    and the inverse, which conjugate gradients approximate.

    Args:
        problem: The problem, at its current parameters.
        draws: To average over.
        step: s.
        lengths: Numbers of terms, rising.
        ledger: Where oracle calls are counted.
        seed: Of dropout, in draws without a seed.

    Example:
        >>> from adambo.testing import Quadratic
        >>> problem = Quadratic(mu=1.0, L=1.0).problem()
        >>> errors = series_errors(problem, [Draw((0,), (0,), (0,), (0,))], 0.5, [1, 2, 40], Ledger())
        >>> [round(error, 3) for error in errors]
        [0.5, 0.25, 0.0]
    """
    totals: list[Vector] = []
    for k, draw in enumerate(draws):
        parts = _parts_through_y(problem, draw, step, lengths, ledger, seed + k)
        if k == 0:
            totals = parts
        else:
            for total, part in zip(totals, parts, strict=True):
                add_(total, part)
    whole = totals.pop()
    size = norm(whole).clamp_min(torch.finfo(whole[0].dtype).tiny)
    return [float(norm(added(part, whole, -1.0)) / size) for part in totals]


def _parts_through_y(
    problem: Problem, draw: Draw, step: float, lengths: Sequence[int], ledger: Ledger, seed: int
) -> list[Vector]:
    """p_Q of one draw for each length, and p at the end."""
    draw = filled(draw, Needs(upper=1, lower=0, cross=1, hessian=1))
    masks = SameMasks(draw, seed if draw.seed is None else draw.seed, problem.device)
    ledger.begin_step()
    point = problem.at(draw, ledger, masks=masks)
    v = point.f_y
    term, z, found = scaled(v, step), scaled(v, step), []
    for q in range(1, lengths[-1] + 1):
        if q > 1:
            term = added(term, point.hessian(term), -step)
            add_(z, term)
        if q in lengths:
            found.append(clones(point.cross(z)))
    dimension = sum(t.numel() for t in v) // point.y.blocks
    inverse = ConjugateGradient(iterations=min(dimension, ITERATIONS), tolerance=1e-4)
    return [*found, clones(point.cross(inverse.solve(point, v)))]
