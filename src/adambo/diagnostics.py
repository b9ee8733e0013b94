"""Holding the hypergradient of one's own problem against first-order finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from adambo.draws import Draw
from adambo.errors import SettingError
from adambo.inverse import ConjugateGradient, Inverse
from adambo.ledger import Ledger
from adambo.point import Point
from adambo.problem import Problem
from adambo.vectors import Vector, added, clones, dot, norm, scaled


@dataclass(frozen=True)
class HypergradientCheck:
    """What `check_hypergradient` found; all numbers are relative errors, the worst over the directions tried.

    Attributes:
        hessian: ∇²yy g · v against central differences of ∇y g in y.
        cross: ⟨∇²xy g · v, u⟩ against central differences of ∇y g in x.
        hypergradient: ⟨∇x f − ∇²xy g z, u⟩ with an accurate z, against the change of f along (u, dy), where dy is how
            y must move to keep ∇y g constant. Computed from losses and first gradients.
        estimate: The hypergradient with the z of the inverse, against the one with an accurate z.
        residual: ‖∇²yy g z − ∇y f‖ / ‖∇y f‖ for the z of the inverse.
        tolerance: What rounding and differences may cost in this precision.
    """

    hessian: float
    cross: float
    hypergradient: float
    estimate: float
    residual: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the derivatives are right. How good the inverse is stands in `estimate` and `residual`."""
        return max(self.hessian, self.cross, self.hypergradient) <= self.tolerance


def check_hypergradient(
    problem: Problem, draw: Draw, inverse: Inverse | None = None, *, directions: int = 3, seed: int = 0
) -> HypergradientCheck:
    """Compare the hypergradient of `problem` on `draw` with finite differences of its losses. Nothing is changed.

    The losses must be deterministic (dropout off) and smooth; float64 gives the sharpest answer.

    Args:
        problem: The problem, at its current parameters.
        draw: At least one upper and one cross batch; the cross batch serves every lower role here.
        inverse: The inverse to judge; None judges accurate conjugate gradients.
        directions: How many random directions are tried.
        seed: Seeds the directions.

    Example:
        >>> x = torch.ones(2, dtype=torch.double, requires_grad=True)
        >>> y = torch.zeros(2, dtype=torch.double, requires_grad=True)
        >>> problem = Problem(
        ...     upper=lambda b: (y - 1).square().sum() + x.sum(), lower=lambda b: ((y - x.exp()) ** 2).sum(), x=x, y=y)
        >>> check_hypergradient(problem, Draw(upper=(0,), cross=(0,))).passed
        True
    """
    if not draw.upper or not draw.cross or directions < 1:
        raise SettingError(
            "check_hypergradient needs an upper and a cross batch in the draw, and at least 1 direction."
        )
    products = 1 if inverse is None else max(1, inverse.needs.hessian)
    draw = Draw(draw.upper[:1], draw.cross[:1], draw.cross[:1], (draw.cross[0],) * products, level=draw.level)
    point = problem.at(draw)
    accurate = ConjugateGradient(iterations=_iterations(point), tolerance=1e-14)
    z = accurate.solve(point, point.f_y)
    h = problem.at(draw).hypergradient(z)
    estimate_z = z
    if inverse is not None:
        inverse.prepare(point, 0)
        estimate_z = inverse.solve(point, point.f_y)
    estimate = problem.at(draw).hypergradient(estimate_z)

    generator = torch.Generator().manual_seed(seed)
    errors: dict[str, list[Tensor]] = {"hessian": [], "cross": [], "hypergradient": []}
    for _ in range(directions):
        u, v = _direction(problem.x, generator), _direction(point.f_y, generator)
        bent, slope = _slope(problem, draw, y=v), _slope(problem, draw, x=u)
        point = problem.at(draw)  # anew: its graph would not survive the displacements before
        errors["hessian"].append(norm(added(point.hessian(v), bent, -1.0)) / _positive(norm(bent)))
        without_v, with_v = problem.at(draw).hypergradient(scaled(v, 0.0)), problem.at(draw).hypergradient(v)
        product = dot(added(without_v, with_v, -1.0), u)
        errors["cross"].append((product - dot(slope, v)).abs() / _positive(norm(slope)))
        dy = scaled(accurate.solve(point, slope), -1.0)
        change = _change_of_upper(problem, draw, u, dy)
        # A direction may happen to be almost orthogonal to h, so the scale is that of h, spread over all directions.
        size = torch.maximum(change.abs(), norm(h) / sum(p.numel() for p in problem.x) ** 0.5)
        errors["hypergradient"].append((dot(h, u) - change).abs() / _positive(size))
    point = problem.at(draw)
    worst = {name: float(torch.stack(found).max()) for name, found in errors.items()}
    return HypergradientCheck(
        **worst,
        estimate=float(norm(added(estimate, h, -1.0)) / _positive(norm(h))),
        residual=float(norm(added(point.hessian(estimate_z), point.f_y, -1.0)) / _positive(norm(point.f_y))),
        tolerance=10 * _epsilon(problem) ** 0.5,
    )


def _iterations(point: Point) -> int:
    return min(1000, 4 * sum(t.numel() for t in point.f_y) // point.y.blocks + 4)


def _slope(problem: Problem, draw: Draw, x: Vector | None = None, y: Vector | None = None) -> Vector:
    """The derivative of ∇y g along (x, y), by central differences."""
    step = _step(problem)
    found = []
    for sign in (1.0, -1.0):
        with _displaced(problem, draw, sign * step, x, y) as point:
            found.append(point.lower_gradient()[1])
    return scaled(added(found[0], found[1], -1.0), 1.0 / (2.0 * step))


def _change_of_upper(problem: Problem, draw: Draw, x: Vector, y: Vector) -> Tensor:
    """The derivative of f along (x, y), by central differences."""
    step = _step(problem)
    found = []
    for sign in (1.0, -1.0):
        with _displaced(problem, draw, sign * step, x, y) as point:
            found.append(problem.processes.average([point.f.detach()])[0])
    return (found[0] - found[1]) / (2.0 * step)


@contextmanager
def _displaced(problem: Problem, draw: Draw, step: float, x: Vector | None, y: Vector | None) -> Iterator[Point]:
    """The point reached from here by `step` along (x, y); values come back bit for bit."""
    variable = problem.lower_variable(draw)
    here = variable.values()
    there = None if x is None else added(clones(problem.x), x, step)
    with problem.moved_to(x=there):
        if y is not None:
            variable.assign(added(here, y, step))
        try:
            yield Point(problem, draw, variable, problem.encodings(draw), Ledger())
        finally:
            variable.assign(here)


def _direction(like: Vector, generator: torch.Generator) -> Vector:
    u = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.detach()) for t in like]
    return scaled(u, 1.0 / float(norm(u)))


def _step(problem: Problem) -> float:
    return float(_epsilon(problem) ** (1 / 3) * (1.0 + float(norm(clones(problem.x + problem.y)))))


def _epsilon(problem: Problem) -> float:
    return torch.finfo(problem.y[0].dtype).eps


def _positive(size: Tensor) -> Tensor:
    return size.clamp_min(torch.finfo(size.dtype).tiny)
