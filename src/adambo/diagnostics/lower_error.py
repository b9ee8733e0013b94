"""Watching a run: how far y is from y*(x), how good z and the hypergradient are, and whether it is about to fail."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from adambo.algorithms.base import Algorithm
from adambo.diagnostics.monitor_warnings import (
    WINDOW,
    Earlier,
    LowerLevelDoesNotTrack,
    MonitorRecord,
    Rates,
    due_warnings,
)
from adambo.diagnostics.true_hypergradient import (
    Accuracy,
    exact_hypergradient,
    smoothness_here,
    solver_z,
    step_of_z,
    true_hypergradient,
)
from adambo.diagnostics.watched import check_solver, reference_of
from adambo.draw import Draw
from adambo.errors import SettingError, StateError, WholeTableUsed
from adambo.ledger import Ledger
from adambo.masks import SameMasks
from adambo.point import Point
from adambo.vectors import Vector, added, clones, dot, norm

MARKS = 4  # earlier places of y*(x) that are kept within the window
SURGE = 1.5  # a step's own hypergradient, in largest ones so far, that calls for a measurement at once
T = TypeVar("T")


class LowerErrorMonitor:
    """Measures, every few steps, what a bilevel run depends on, and warns before it diverges.

    Everything is measured on one reference draw, best a larger one than those of the steps: ‖y − y*(x)‖, the residual
    of the linear system, the hypergradient of the solver against ∇Φ, the size of updates (`MonitorRecord`). Where a
    run is about to fail, `warnings.warn` says so, and again only when it has been well for 50 steps in between:

        LowerLevelDoesNotTrack      the lower error grew 4× in 50 steps, and the hypergradient is wrong for it; or the
                                    upper loss climbs, because of such an error
        NeumannStepTooLarge         step of z · largest curvature ≥ 2: the series, or the iteration, expands
        UpperStepTooLarge           the upper loss is above its first value and ∇Φ 3× its first, on no steeper ground
        UpperSmoothnessExplodes     the same, and ∇Φ changes 4× as fast as at the start

    What is large is judged by where the run began: one that begins at its optimum, and leaves it with steps that do
    not shrink with the gradient, as Adam's, is warned of although it may only circle there.

    Nothing of the problem is changed: parameters, gradients, buffers and random numbers are what they were. y*(x) is
    that of the reference draw, so on noisy data `lower_error` has a floor. A measurement takes three linear systems in
    y, and three gradients in x; the first one some more, for the smoothness. With tasks, the rows are those that the
    reference names.

    Args:
        solver: What is watched.
        reference: One upper batch and a cross (or lower) batch, which serves every lower role.
        every: Steps from one measurement to the next. The first is at the first call of `observe`, whenever it is. A
            step whose own hypergradient is half as large again as any before is measured too, since failures can
            take fewer steps than `every` (on a CPU, where a copy of x is kept for it; a GPU would have to be waited
            for); and, everywhere, steps 1, 2, 4, 8, … below `every`.
        solve_lower: Look for y*(x) to `tolerance`; otherwise by one Newton step, which is right to first order.
        tolerance: Of linear systems, relative, and of y*(x).
        most_products: Hessian products for one linear system, at most.
        seed: Of dropout, where the reference has none.
        ledger: Where oracle calls are counted; None is a new one, `monitor.ledger`. The solver's is not touched.
        warn: False only records the warnings.

    Attributes:
        warnings: Those given so far: {"name": ..., "step": ..., "message": ...}.

    Raises:
        SettingError: If an argument cannot be used, for methods without a lower variable of their own (MAML, ANIL), for
            `x` in pieces (FSDP2), and for tasks on several processes.
        SampleError: If the reference lacks a batch.

    Example:
        >>> import torch
        >>> from adambo import AdamBO, Problem
        >>> x, y = torch.zeros(1, requires_grad=True), torch.full((1,), 0.5, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = AdamBO(problem, lr=0.05, lower_lr=0.3)
        >>> monitor = LowerErrorMonitor(solver, Draw(upper=(0,), cross=(0,)), every=20)
        >>> monitor.observe().lower_error
        0.5
        >>> for _ in range(100):
        ...     info = solver.step(0, 0)
        ...     record = monitor.observe()
        >>> record.step, round(record.cosine, 3), monitor.warnings
        (100, 1.0, [])
    """

    def __init__(
        self,
        solver: Algorithm,
        reference: Draw,
        *,
        every: int = 10,
        solve_lower: bool = False,
        tolerance: float = 1e-3,
        most_products: int = 100,
        seed: int = 0,
        ledger: Ledger | None = None,
        warn: bool = True,
    ) -> None:
        check_solver(solver)
        for name, value in (("every", every), ("most_products", most_products)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingError(f"{name}={value!r}: give a whole number, 1 or more.")
        if not isinstance(tolerance, float) or not 0 < tolerance < 1:
            raise SettingError(f"tolerance={tolerance!r} is relative: give a number between 0 and 1, such as 1e-3.")
        if not isinstance(seed, int) or not isinstance(ledger, Ledger | None):
            raise SettingError(f"seed={seed!r} is a whole number, ledger={ledger!r} an adambo.Ledger or None.")
        if not isinstance(solve_lower, bool) or not isinstance(warn, bool):
            raise SettingError(f"solve_lower={solve_lower!r} and warn={warn!r} are True or False.")
        self.solver, self.every, self.seed, self.warn = solver, every, seed, warn
        self.reference = reference_of(reference, solver)
        self.ledger = Ledger() if ledger is None else ledger
        self.warnings: list[dict[str, Any]] = []
        self._accuracy = Accuracy(tolerance, most_products, solve_lower)
        self._records: list[MonitorRecord] = []
        self._due: dict[str, int] = {}  # by kind of warning, the step at which there was last reason for it
        self._x_step: float | None = None
        self._target: Vector | None = None  # y*(x) of the last measurement
        self._first_gradient_norm: float | None = None
        self._largest_gradient_norm = 0.0
        self._marks: list[tuple[int, float, Vector]] = []  # step, lower error and y*(x)
        self._last: tuple[Vector, Vector] | None = None  # x and ∇Φ of the last measurement
        self._before: tuple[int, Vector, Vector] | None = None  # step, x and y: one step before a measurement

    def observe(self) -> MonitorRecord | None:
        """Call it after every step, and best once before the first; returns a record where it measured.

        Raises:
            AdamboError: If a loss cannot be evaluated on the reference.
        """
        step = self.solver.steps
        seen = self._records[-1].step if self._records else None
        record = None
        if self._first_gradient_norm is None and step > 0:
            self._first_gradient_norm = self._gradient_norm()
        on_host = self.solver.problem.device.type == "cpu"
        surges = on_host and self._surges()
        if step != seen and (seen is None or self.is_due(step) or surges):
            record = self._attempt(self._measured)
            self._records.append(record)
            self._judge(record)
        if on_host or self.is_due(step + 1):
            self._before = (step, clones(self.solver.problem.x), self._rows())
        return record

    def is_due(self, step: int) -> bool:
        """Whether it is measured after so many steps, whatever happens in them."""
        return step % self.every == 0 or (step < self.every and step.bit_count() == 1)

    def records(self) -> list[dict[str, Any]]:
        """All measurements as plain data, for the record of a run."""
        return [asdict(record) for record in self._records]

    def state_dict(self) -> dict[str, Any]:
        """All that later records and warnings depend on; tensors and plain values."""
        return {
            "records": self.records(),
            "warnings": [dict(warning) for warning in self.warnings],
            "due": dict(self._due),
            "marks": [{"step": step, "error": error, "y": clones(y)} for step, error, y in self._marks],
            "last": None if self._last is None else [clones(part) for part in self._last],
            "before": None if self._before is None else [self._before[0], *map(clones, self._before[1:])],
            "gradient_norms": [self._first_gradient_norm, self._largest_gradient_norm],
            "ledger": self.ledger.as_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            StateError: If it is not that of a monitor.
        """
        names = {"records", "warnings", "due", "marks", "last", "before", "gradient_norms", "ledger"}
        if not isinstance(state, dict) or set(state) != names:
            given = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise StateError(f"The state of a LowerErrorMonitor has {sorted(names)}, but came {given}.")
        self.ledger.load(state["ledger"])
        self._first_gradient_norm, self._largest_gradient_norm = state["gradient_norms"]
        self._records = [MonitorRecord(**record) for record in state["records"]]
        self.warnings = [dict(warning) for warning in state["warnings"]]
        self._due = dict(state["due"])
        self._marks = [(mark["step"], mark["error"], clones(mark["y"])) for mark in state["marks"]]
        self._last = None if state["last"] is None else (clones(state["last"][0]), clones(state["last"][1]))
        before = state["before"]
        self._before = None if before is None else (before[0], clones(before[1]), clones(before[2]))

    def _measured(self, point: Point) -> MonitorRecord:
        solver, problem = self.solver, self.solver.problem
        x, y = clones(problem.x), point.y.values()
        z, residual = solver_z(solver, point), None
        h, (curvature, solved) = exact_hypergradient(point, self._accuracy)
        own = None
        if z is not None:
            size = float(norm(point.f_y))
            off = float(norm(added(point.hessian(z), point.f_y, -1.0)))
            residual = off / size if size > 0 else off
            own = added(point.f_x, point.cross(z), -1.0)
        truth = true_hypergradient(point, self._accuracy)
        self._target = None if truth is None else truth.y
        if truth is None:
            unknown = dict.fromkeys((field.name for field in fields(MonitorRecord)), None)
            known = {"step": solver.steps, "residual": _finite(residual), "curvature": _finite(curvature)}
            return MonitorRecord(**(unknown | known | {"solved": False}))  # type: ignore[arg-type]
        size = float(norm(truth.h))
        if self._last is None:
            smoothness = smoothness_here(point, truth.h, self._accuracy)
        else:
            way = float(norm(added(x, self._last[0], -1.0)))
            smoothness = float(norm(added(truth.h, self._last[1], -1.0))) / way if way > 0 else math.nan
        error = float(norm(added(y, truth.y, -1.0)))
        self._last = (x, truth.h)
        self._remember(error, truth.y)
        lengths = {"x": float(norm(x)), "y": float(norm(y))}
        moved: dict[str, float] = {}
        if self._before is not None and self._before[0] == solver.steps - 1:
            pairs = {"x": (x, self._before[1]), "y": (y, self._before[2])}
            moved = {name: float(norm(added(now, then, -1.0))) for name, (now, then) in pairs.items()}
        self._x_step = moved.get("x")
        return MonitorRecord(
            step=solver.steps,
            upper_loss=_finite(truth.upper_loss),
            hypergradient_norm=_finite(size),
            lower_error=_finite(error),
            residual=_finite(residual),
            bias=None if own is None else _ratio(float(norm(added(own, truth.h, -1.0))), size),
            cosine=None if own is None else _ratio(float(dot(own, truth.h)), float(norm(own)) * size),
            lower_bias=_ratio(float(norm(added(h, truth.h, -1.0))), size),
            x_update=_ratio(moved["x"], lengths["x"]) if moved else None,
            y_update=_ratio(moved["y"], lengths["y"]) if moved else None,
            smoothness=_finite(smoothness),
            curvature=_finite(max(curvature, truth.curvature)),
            solved=solved and truth.solved,
        )

    def _remember(self, error: float, target: Vector) -> None:
        """Keep y*(x) for later comparisons, a few times in a window."""
        step, window = self.solver.steps, self._window
        self._marks = [mark for mark in self._marks if step - mark[0] <= window]
        if not self._marks or step - self._marks[-1][0] >= window // MARKS:
            self._marks.append((step, error, target))

    @property
    def _window(self) -> int:
        return max(WINDOW, 2 * self.every)

    def _judge(self, record: MonitorRecord) -> None:
        first = next((r for r in self._records if r.hypergradient_norm is not None), record)
        earlier = [
            Earlier(step, error, float(norm(added(self._target, y, -1.0))))
            for step, error, y in self._marks
            if step < record.step and self._target is not None
        ]
        for kind, message in due_warnings(record, first, earlier, self._rates()):
            if kind is LowerLevelDoesNotTrack and record.step % self.every != 0:
                continue  # a lower level takes its time to fall behind, and a surge may be of one batch
            quiet_since = self._due.get(kind.__name__)
            self._due[kind.__name__] = record.step
            if quiet_since is None or record.step - quiet_since > self._window:
                self.warnings.append({"name": kind.__name__, "step": record.step, "message": message})
                if self.warn:
                    warnings.warn(message, kind, stacklevel=3)

    def _rates(self) -> Rates:
        solver = self.solver
        z_step, z_setting = step_of_z(solver)
        return Rates(
            lr=max(float(group["lr"]) for group in solver.upper_optimizer.param_groups),
            lower_lr=max(float(group["lr"]) for group in solver.lower_optimizer.param_groups),
            lower_steps=max(1, solver.needs.lower),
            z_step=z_step,
            z_setting=z_setting,
            gradient_norm=self._gradient_norm(),
            first_gradient_norm=self._first_gradient_norm,
            x_step=self._x_step,
        )

    def _surges(self) -> bool:
        now, before = self._gradient_norm() or 0.0, self._largest_gradient_norm
        self._largest_gradient_norm = max(now, before)
        return before > 0 and now >= SURGE * before

    def _gradient_norm(self) -> float | None:
        gradients = [p.grad for p in self.solver.problem.x if p.grad is not None]
        return float(norm(gradients)) if gradients else None

    def _rows(self) -> Vector:
        return self.solver.problem.lower_variable(self.reference).values()

    def _attempt(self, measured: Callable[[Point], T]) -> T:
        """With buffers as they were afterwards; once more, with whole tables, if a loss needs them."""
        problem = self.solver.problem
        self.ledger.begin_step()
        counts = vars(self.ledger).copy()
        with problem.moved_to():
            try:
                return measured(self._point())
            except WholeTableUsed as reason:
                problem.differentiate_whole_tables(reason)
                vars(self.ledger).update(counts)
                return measured(self._point())

    def _point(self) -> Point:
        draw, problem = self.reference, self.solver.problem
        masks = SameMasks(draw, self.seed if draw.seed is None else draw.seed, problem.device)
        return problem.at(draw, self.ledger, masks=masks)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio(part: float, whole: float) -> float | None:
    """None where it is not a number; 0 / 0 is 0: nothing differs."""
    return 0.0 if part == 0 else _finite(part / whole) if whole > 0 else None
