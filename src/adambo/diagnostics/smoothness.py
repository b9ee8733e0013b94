"""Measuring how fast the gradients of one's own upper loss change, and whether that grows with their norm.

AdamBO's theory asks of f no bound on its second derivatives, but one that may grow with the gradient:

    ‖∇f(z) − ∇f(z')‖ ≤ (L0 + L1 ‖∇f(z)‖) ‖z − z'‖        z = (x, y), z' near z, separately for ∇x f and ∇y f
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any, TypeVar, get_args

from adambo.algorithms.base import Algorithm
from adambo.diagnostics.place import (
    Place,
    change_of,
    coarsest_rounding,
    finite_norm,
    parameter_rounding,
    positive_length,
    random_like,
)
from adambo.diagnostics.smoothness_fit import Quantity, SmoothnessFit, SmoothnessRecord, fit_smoothness
from adambo.draw import Draw
from adambo.errors import SampleError, SettingError, StateError, WholeTableUsed
from adambo.inverse import ConjugateGradient, Inverse
from adambo.ledger import Ledger
from adambo.masks import SameMasks
from adambo.point import Point
from adambo.problem import Problem
from adambo.vectors import Vector, added, clones

CLEAR = 30.0  # times the rounding of a gradient: a change below that is not told from it
NUDGES = 10.0  # times what a nudge by rounding changes, likewise
T = TypeVar("T")


class SmoothnessProbe:
    """Records local smoothness against gradient norm along training; fits (L0, L1) to it, and draws it.

    Both points of a measurement see the same batch and the same dropout, so noise cancels. Nothing of the problem is
    changed: parameters, gradients, buffers and random numbers are afterwards what they were. All distances are those of
    z = (x, y), with tasks of x and the rows that the draw is about; while y moves much farther than x, as it does
    before it is near y*(x), little is learnt of ∇x f: give the solver a warm start. A measurement takes one evaluation
    more than it has points, to see what rounding alone changes.

    Args:
        solver_or_problem: Whose upper loss is measured; a solver also tells the number of the step.
        draw: Where `measure` and `measure_here` get none: one upper batch, and a cross (or lower) batch for the
            hypergradient, which then serves every lower role.
        of: The gradients to measure: "grad_x_f", "grad_y_f", "hypergradient" (∇x f − ∇²xy g z at the y that there is;
            it is ∇Φ where y = y*(x)).
        inverse: Finds z, for the hypergradient; None is `ConjugateGradient(10)`. The probe works with a copy.
        seed: Of directions, and of dropout where the draw has none.
        ledger: Where oracle calls are counted; None is a new one, `probe.ledger`.

    Raises:
        SettingError: If an argument cannot be used, for `x` in pieces (FSDP2), and for tasks on several processes.

    Example:
        >>> import torch
        >>> x, y = torch.full((2,), 6.0, requires_grad=True), torch.zeros(2, requires_grad=True)
        >>> problem = Problem(lambda b: x.cosh().sum() + y.square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> probe = SmoothnessProbe(problem, Draw(upper=(0,)))
        >>> for _ in range(20):
        ...     probe.visit()
        ...     with torch.no_grad():
        ...         _ = x.mul_(0.85)
        ...     _ = probe.measure()
        >>> probe.fit().verdict
        'grows with the gradient norm'
    """

    def __init__(
        self,
        solver_or_problem: Algorithm | Problem,
        draw: Draw | None = None,
        *,
        of: Sequence[Quantity] = ("grad_x_f", "grad_y_f"),
        inverse: Inverse | None = None,
        seed: int = 0,
        ledger: Ledger | None = None,
    ) -> None:
        if not isinstance(solver_or_problem, Algorithm | Problem):
            raise SettingError(
                f"SmoothnessProbe takes a solver or a problem, but came {type(solver_or_problem).__name__}."
            )
        self._solver = solver_or_problem if isinstance(solver_or_problem, Algorithm) else None
        self.problem = solver_or_problem.problem if isinstance(solver_or_problem, Algorithm) else solver_or_problem
        known = get_args(Quantity)
        if isinstance(of, str) or not of or any(name not in known for name in of):
            raise SettingError(f"of={of!r} names no gradients: give a sequence of some of {', '.join(known)}.")
        if not isinstance(seed, int):
            raise SettingError(f"seed={seed!r} is not a whole number.")
        if not isinstance(inverse, Inverse | None):
            raise SettingError(f"inverse={inverse!r} is no adambo.Inverse, such as adambo.ConjugateGradient(10).")
        if self.problem.x_is_sharded or (self.problem.tasks is not None and self.problem.processes.active):
            raise SettingError(
                "SmoothnessProbe needs all of x, and all rows of y, on one process, but x is in pieces (FSDP2), or "
                "there are tasks on several processes. Measure the same model in a run of one process."
            )
        self.of: tuple[Quantity, ...] = tuple(dict.fromkeys(of))
        self.inverse = copy.deepcopy(inverse) if inverse is not None else ConjugateGradient(10)
        self.seed, self.ledger = seed, Ledger() if ledger is None else ledger
        self.draw = None if draw is None else self._trimmed(draw)
        self._records: list[SmoothnessRecord] = []
        self._visited: Place | None = None
        self._measurements = 0

    def visit(self) -> None:
        """Remember the present point, with which the next `measure` compares. It holds a copy of x and y."""
        self._visited = Place(clones(self.problem.x), clones(self.problem.y))

    def measure(self, draw: Draw | None = None, *, points: int = 1, step: int | None = None) -> list[SmoothnessRecord]:
        """Compare the last visited point z with the present one z', which is then the last visited.

        Args:
            draw: The batches, for both points: a fixed draw, or that of the step between them.
            points: How many points of the segment from z to z' are tried, z' being the last; the largest change per
                distance counts.
            step: Its number in the records; None: the steps of the solver, or the measurements so far.

        Raises:
            StateError: If no point has been visited, or the parameters have not moved since.
            NonFiniteError: If a gradient is.
        """
        if not isinstance(points, int) or points < 1:
            raise SettingError(f"points={points!r}: give a whole number, 1 or more.")
        visited = self._visited
        if visited is None:
            raise StateError(
                "measure compares two points, but none has been visited before this one. Call probe.visit() before the "
                "step and probe.measure(draw) after it; probe.measure_here(draw) does with one point."
            )

        def compared(point: Point) -> list[SmoothnessRecord]:
            start = Place(visited.x, point.y.of_state(visited.y))
            end = Place(clones(self.problem.x), point.y.values())
            way = end.beyond(start)
            if way.length == 0:
                raise StateError(
                    "x and y (of the tasks of the draw) have not moved since the last visited point, so nothing can be "
                    "said about the change of a gradient between them. Make a step before measuring."
                )
            between = [start.moved(*way, k / points) for k in range(1, points)]
            return self._compared(point, start, [*between, end], step)

        found = self._attempt(compared, draw)
        self.visit()
        return self._recorded(found)

    def measure_here(
        self,
        draw: Draw | None = None,
        *,
        lengths: Sequence[float] | None = None,
        refinements: int = 0,
        step: int | None = None,
    ) -> list[SmoothnessRecord]:
        """The local smoothness at the present point alone: steps of given lengths along the negative gradient of f.

        Args:
            draw: The batches.
            lengths: Of the steps in (x, y); the largest change per distance counts. None: three, up to a thousandth of
                1 + ‖z‖.
            refinements: How often the direction turns to that in which ∇f = (∇x f, ∇y f) has just changed: power
                iteration on ∇²f, from the gradient and some noise. With 10 or so, directions of small curvature no
                longer hide a large one.
            step: As in `measure`.

        Raises:
            StateError: If the gradient is zero, and so has no direction.
            NonFiniteError: If a gradient is.
        """
        if lengths is not None and not _are_lengths(lengths):
            raise SettingError(f"lengths={lengths!r}: give one or more positive numbers in a sequence, as (1e-3,).")
        if not isinstance(refinements, int) or refinements < 0:
            raise SettingError(f"refinements={refinements!r}: give a whole number, 0 or more.")

        def compared(point: Point) -> list[SmoothnessRecord]:
            here = Place(clones(self.problem.x), point.y.values())
            size = 1.0 + here.length
            used = [size * part for part in (0.25e-3, 0.5e-3, 1e-3)] if lengths is None else lengths
            gradient = self._upper_gradient(point, here)
            way = Place([-t for t in gradient.x], [-t for t in gradient.y])
            if refinements:  # the gradient may have nothing of the steep directions, for example because they are done
                way = way.moved(*random_like(way, self.seed), positive_length(way))
            for _ in range(refinements):
                there = here.moved(*way, max(used) / positive_length(way))
                change = self._upper_gradient(point, there).beyond(gradient)
                way = change if change.length > 0 else way  # a linear f has no steep direction
            return self._compared(
                point, here, [here.moved(*way, length / positive_length(way)) for length in used], step, refinements
            )

        return self._recorded(self._attempt(compared, draw))

    def records(self) -> list[dict[str, Any]]:
        """All measurements as plain data, for the record of a run; `fit_smoothness` reads them again."""
        return [asdict(record) for record in self._records]

    def fit(self, of: Quantity | None = None, *, seed: int = 0) -> SmoothnessFit:
        """(L0, L1) of one gradient (None: the first that is measured); see `SmoothnessFit`.

        Raises:
            SampleError: If there are fewer than 8 points.
        """
        return fit_smoothness(self._records, self.of[0] if of is None else of, seed=seed)

    def figure(self, path: str | PathLike[str], of: Quantity | None = None, *, seed: int = 0) -> SmoothnessFit:
        """Draw the points and their fit as a PNG at `path`; returns the fit. It needs matplotlib."""
        from adambo.diagnostics.smoothness_figure import write_figure  # matplotlib is not for everyone

        fit = self.fit(of, seed=seed)
        write_figure(path, self._records, fit)
        return fit

    def _attempt(self, compared: Callable[[Point], T], draw: Draw | None) -> T:
        """Once more, with whole tables, if a loss needs them."""
        draw = self.draw if draw is None else self._trimmed(draw)
        if draw is None:
            raise SampleError("The probe has no draw: give one here, or SmoothnessProbe(..., draw=...) for all times.")
        self.ledger.begin_step()
        counts = vars(self.ledger).copy()
        try:
            return compared(self._point(draw))
        except WholeTableUsed as reason:
            self.problem.differentiate_whole_tables(reason)
            vars(self.ledger).update(counts)
            self.ledger.begin_step()
            return compared(self._point(draw))

    def _point(self, draw: Draw) -> Point:
        masks = SameMasks(draw, self.seed if draw.seed is None else draw.seed, self.problem.device)
        return self.problem.at(draw, self.ledger, masks=masks)

    def _trimmed(self, draw: Draw) -> Draw:
        if not isinstance(draw, Draw) or not draw.upper:
            raise SampleError("SmoothnessProbe needs a draw with an upper batch: Draw(upper=(batch,)), or a solver's.")
        if "hypergradient" not in self.of:
            return Draw(upper=(draw.upper[0],), seed=draw.seed)
        if not draw.cross and not draw.lower:
            raise SampleError("The hypergradient needs a lower batch as well: Draw(upper=(batch,), cross=(batch,)).")
        lower = draw.cross[0] if draw.cross else draw.lower[0]
        products = max(1, self.inverse.needs.hessian)
        level = self.inverse.draw_level(0)  # the same at all times: one estimator
        return Draw((draw.upper[0],), (), (lower,), (lower,) * products, level=level, seed=draw.seed)

    def _compared(
        self, point: Point, start: Place, ends: Sequence[Place], step: int | None, refinements: int = 0
    ) -> list[SmoothnessRecord]:
        number = step if step is not None else self._measurements if self._solver is None else self._solver.steps
        rounding = coarsest_rounding(self.problem)
        distances = [end.beyond(start).length for end in ends]
        if min(distances) == 0:
            raise SettingError("A step is so short that it changes no parameter: give larger lengths=.")
        before = self._gradients(point, start)
        sizes = {name: finite_norm(before[name], name) for name in self.of}
        # A gradient is a sum in which much may cancel, as near a minimum, so that its rounding is no share of its norm:
        # a nudge by as much as z is rounded shows it. Autocast rounds more; but a nudge stays short beside the steps.
        fine, coarse = (eps * (1.0 + start.length) for eps in (parameter_rounding(self.problem), rounding))
        nudge = min(coarse, max(fine, min(distances) / (2 * NUDGES)))
        nudged = self._gradients(point, start.moved(*random_like(start, self.seed), nudge), again=True)
        hidden = {name: NUDGES * change_of(before[name], nudged[name]) for name in self.of}
        best: dict[Quantity, tuple[bool, float, float]] = {}
        for end, distance in zip(ends, distances, strict=True):
            there = self._gradients(point, end, again=True)
            for name in self.of:
                size = max(sizes[name], finite_norm(there[name], name))
                change = change_of(before[name], there[name])
                resolved = change > max(hidden[name], CLEAR * rounding * size)
                best[name] = max(best.get(name, (False, -1.0, 0.0)), (resolved, change / distance, distance))
        return [
            SmoothnessRecord(number, name, sizes[name], smoothness, distance, resolved, refinements)
            for name, (resolved, smoothness, distance) in best.items()
        ]

    def _recorded(self, found: list[SmoothnessRecord]) -> list[SmoothnessRecord]:
        self._records += found
        self._measurements += 1
        return found

    def _gradients(self, point: Point, place: Place, again: bool = False) -> dict[Quantity, Vector]:
        """The gradients on the draw of `point`, at other values; `again` if the inverse is to be the same as before."""
        with point.elsewhere(clones(place.x), place.y) as there:
            found: dict[Quantity, Vector] = {}
            if "hypergradient" in self.of:
                if not again:
                    self.inverse.prepare(there, 0)
                z = (self.inverse.solve_again if again else self.inverse.solve)(there, there.f_y)
                found["hypergradient"] = added(there.f_x, there.cross(z), -1.0)
            if "grad_x_f" in self.of:
                found["grad_x_f"] = clones(there.f_x)
            if "grad_y_f" in self.of:
                found["grad_y_f"] = clones(there.f_y)
            return found

    def _upper_gradient(self, point: Point, place: Place) -> Place:
        with point.elsewhere(clones(place.x), place.y) as there:  # buffers come back, as in all evaluations here
            return Place(clones(there.f_x), clones(there.f_y))


def _are_lengths(lengths: object) -> bool:
    if not isinstance(lengths, Sequence) or isinstance(lengths, str) or not lengths:
        return False
    return all(isinstance(length, int | float) and 0 < length < math.inf for length in lengths)
