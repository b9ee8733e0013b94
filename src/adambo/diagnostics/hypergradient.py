"""Holding the hypergradient of one's own problem against first-order finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from adambo.draw import Draw
from adambo.errors import SettingError, WholeTableUsed
from adambo.inverse import ConjugateGradient, Exact, Inverse
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
            y must move to keep ∇y g constant. Computed from losses and first gradients. NaN or large, with small errors
            before it, where the lower Hessian is singular: the hypergradient is not defined there.
        estimate: The hypergradient with the z of the inverse, against the one with an accurate z: 0.9 means that 90 %
            of it is missing. More terms, or `ConjugateGradient`, bring it down.
        residual: ‖∇²yy g z − ∇y f‖ / ‖∇y f‖ for the z of the inverse.
        tolerance: What rounding and differences may cost in this precision.
    """

    hessian: float
    cross: float
    hypergradient: float
    estimate: float
    residual: float
    tolerance: float

    def __str__(self) -> str:
        numbers = ", ".join(f"{name}={value:.2g}" for name, value in vars(self).items())
        return f"{'passed' if self.passed else 'FAILED'}: {numbers}"

    @property
    def passed(self) -> bool:
        """Whether the derivatives are right. How good the inverse is stands in `estimate` and `residual`."""
        return all(error <= self.tolerance for error in (self.hessian, self.cross, self.hypergradient))


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
    if not isinstance(problem, Problem):
        raise SettingError(f"check_hypergradient takes a problem (solver.problem), but came {type(problem).__name__}.")
    if not isinstance(draw, Draw) or not draw.upper or not draw.cross or directions < 1:
        raise SettingError("check_hypergradient needs Draw(upper=(batch,), cross=(batch,)) and at least 1 direction.")
    with problem.moved_to():  # to the same point, but module buffers come back
        try:
            return _checked(problem, draw, inverse, directions, seed)
        except WholeTableUsed as reason:
            problem.differentiate_whole_tables(reason)
            return _checked(problem, draw, inverse, directions, seed)


def _checked(problem: Problem, draw: Draw, inverse: Inverse | None, directions: int, seed: int) -> HypergradientCheck:
    products = 1 if inverse is None else max(1, inverse.needs.hessian)
    draw = Draw(draw.upper[:1], draw.cross[:1], draw.cross[:1], (draw.cross[0],) * products, level=draw.level)
    point = problem.at(draw)
    dimension = sum(t.numel() for t in point.f_y) // point.y.blocks
    accurate = Exact() if dimension <= 512 else ConjugateGradient(iterations=1000, tolerance=1e-14)
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
        # Partly along h, so that the change of f is seen above rounding.
        u = _unit(added(_direction(problem.x, generator), _unit(h)))
        v = _direction(point.f_y, generator)
        bent, slope = _slope(problem, draw, y=v), _slope(problem, draw, x=u)
        point = problem.at(draw)  # anew: its graph would not survive the displacements before
        errors["hessian"].append(norm(added(point.hessian(v), bent, -1.0)) / _positive(norm(bent)))
        without_v, with_v = problem.at(draw).hypergradient(scaled(v, 0.0)), problem.at(draw).hypergradient(v)
        product = dot(added(without_v, with_v, -1.0), u)
        errors["cross"].append((product - dot(slope, v)).abs() / _positive(norm(slope)))
        dy = scaled(accurate.solve(point, slope), -1.0)
        change = _change_of_upper(problem, draw, u, dy)
        errors["hypergradient"].append((dot(h, u) - change).abs() / _positive(norm(h)))
    point = problem.at(draw)
    worst = {name: float(torch.stack(found).max()) for name, found in errors.items()}
    return HypergradientCheck(
        **worst,
        estimate=float(norm(added(estimate, h, -1.0)) / _positive(norm(h))),
        residual=float(norm(added(point.hessian(estimate_z), point.f_y, -1.0)) / _positive(norm(point.f_y))),
        tolerance=30 * _epsilon(problem) ** 0.5,
    )


def _slope(problem: Problem, draw: Draw, x: Vector | None = None, y: Vector | None = None) -> Vector:
    """The derivative of ∇y g along (x, y), by central differences."""
    step = _step(problem)
    found = []
    for sign in (1.0, -1.0):
        with _displaced(problem, draw, sign * step, x, y) as point:
            found.append(point.lower_gradient())
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
    return _unit([torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.detach()) for t in like])


def _unit(vector: Vector) -> Vector:
    return scaled(vector, 1.0 / max(float(norm(vector)), torch.finfo(torch.float64).tiny))


def _step(problem: Problem) -> float:
    """A displacement that balances rounding against curvature, for coordinates of the size that x and y have."""
    sizes = torch.cat([p.detach().double().abs().reshape(-1) for p in (*problem.x, *problem.y)])
    return float(_epsilon(problem) ** (1 / 3) * (1.0 + float(sizes.square().mean().sqrt())))


def _epsilon(problem: Problem) -> float:
    return max(torch.finfo(p.dtype).eps for p in (*problem.x, *problem.y))


def _positive(size: Tensor) -> Tensor:
    return size.clamp_min(torch.finfo(size.dtype).tiny)
