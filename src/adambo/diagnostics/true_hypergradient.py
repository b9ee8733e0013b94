"""The hypergradient at y*(x), and the one that a solver has with its own y and z, both on one draw."""

from __future__ import annotations

import copy
from typing import NamedTuple

from adambo.algorithms.base import Algorithm
from adambo.algorithms.running_z import RunningZ
from adambo.diagnostics.lower_solution import conjugate_gradients, lower_solution
from adambo.errors import CurvatureError
from adambo.inverse import LinearSystem, Neumann
from adambo.point import Point
from adambo.vectors import Vector, added, clones, norm

PROBE = 1e-3  # length of the way over which the first smoothness is measured, relative to 1 + ‖x‖
AUTOMATIC = "the automatic step"
TURNS = 3  # of its direction towards the steepest one


class Accuracy(NamedTuple):
    """How well the lower level and linear systems are solved; see `lower_solution`."""

    tolerance: float
    most: int
    to_the_end: bool


class TrueHypergradient(NamedTuple):
    """∇Φ at one x: y*(x), Φ = f(x, y*(x)), its gradient; the largest curvature seen, and whether all were solved."""

    y: Vector
    upper_loss: float
    h: Vector
    curvature: float
    solved: bool


def true_hypergradient(point: Point, accuracy: Accuracy) -> TrueHypergradient | None:
    """∇Φ at the x of `point`; y*(x) is looked for from its y, where it stays. None where g has no minimum in sight."""
    tolerance, most, to_the_end = accuracy
    y, found_y, curvature = lower_solution(point, tolerance=tolerance, most=most, to_the_end=to_the_end)
    if y is None:
        return None
    with point.elsewhere(y=y) as there:
        f = float(there.f.detach())
        h, found = exact_hypergradient(there, accuracy)
    return TrueHypergradient(y, f, h, max(curvature, found[0]), found_y and found[1])


def exact_hypergradient(point: Point, accuracy: Accuracy) -> tuple[Vector, tuple[float, bool]]:
    """∇x f − ∇²xy g z with an accurate z, at the y of `point`; the curvature seen, and whether z was found."""
    found = conjugate_gradients(point, point.f_y, tolerance=accuracy.tolerance, most=accuracy.most)
    return added(point.f_x, point.cross(found.z), -1.0), (found.curvature, found.solved)


def smoothness_here(point: Point, h: Vector, accuracy: Accuracy) -> float:
    """‖∇Φ(x + d) − ∇Φ(x)‖ / ‖d‖ for a short d, which starts along ∇Φ and turns to where ∇Φ changes fastest."""
    x, way, found = clones(point.problem.x), h, 0.0
    length = PROBE * (1.0 + float(norm(x)))
    for _ in range(TURNS):
        size = float(norm(way))
        if not 0 < size < float("inf"):
            break
        moved = added(x, way, length / size)
        with point.elsewhere(x=moved) as there:
            truth = true_hypergradient(there, accuracy)
        if truth is None:
            break
        way = added(truth.h, h, -1.0)
        found = max(found, float(norm(way)) / length)
    return found


def solver_z(solver: Algorithm, point: Point) -> Vector | None:
    """The z that the next step would begin with, on the draw of `point`; None where the method has none."""
    if isinstance(solver, RunningZ):
        return solver.recall("z", point)
    inverse = solver.inverse
    if inverse is None:
        return None
    if isinstance(inverse, Neumann):
        try:
            # On one batch, the expectation of all samplings is the same: that of the shared one, and it is cheapest.
            series = inverse.on_one_batch()
        except CurvatureError:
            return None  # no step has been made yet, so it is not known
        return series.solve_again(point, point.f_y)  # the solver says what is to be said of the step
    return copy.deepcopy(inverse).solve(point, point.f_y)


def step_of_z(solver: Algorithm) -> tuple[float | None, str]:
    """The step size with which the solver improves z, and the setting it comes from."""
    if isinstance(solver, RunningZ):
        return solver.z_lr, "z_lr"
    if isinstance(solver.inverse, LinearSystem):
        return solver.inverse.lr, "LinearSystem(lr=)"
    if isinstance(solver.inverse, Neumann):
        try:
            return (
                solver.inverse.step,
                AUTOMATIC if solver.inverse.is_automatic else f"{type(solver.inverse).__name__}(step=)",
            )
        except CurvatureError:
            pass
    return None, ""
