"""What every bilevel algorithm of this library has to do, as tests that an algorithm inherits.

    class TestMyMethod(AlgorithmContract):
        ledger_per_step = {"grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 1, "hessian_vector": 2, "cross_vector": 1}

        def make(self, problem, **settings):
            return MyMethod(problem, **settings)

Run it with pytest. Nothing here imports pytest: the methods are plain functions with assertions.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from adambo.algorithms import Algorithm
from adambo.draw import ROLES, Draw
from adambo.errors import NonFiniteError, SampleError
from adambo.problem import Problem
from adambo.stream import DrawStream, draws
from adambo.testing.comparison import copies, raises, same
from adambo.testing.known_problem import flat
from adambo.testing.quadratic import AtRest, Quadratic, StochasticQuadratic
from adambo.testing.softmax_head import RidgeSoftmaxHead
from adambo.testing.task_quadratics import TaskQuadratics

Make = Callable[[], Problem]


class AlgorithmContract(ABC):
    """Inherit, define `make`, and set what differs.

    Attributes:
        lr, lower_lr: Step sizes of all tests; the largest eigenvalue of the lower Hessians is at most 4.5.
        far_lr: The upper step size on the way to the optimum; in the second half it falls by a factor of 10⁴, so that
            normalised steps come to rest as well.
        steps_from_afar, tolerance: How many steps that takes, and how near they come.
        order_tolerance: By how much the order of the tasks in a batch may change x and y (sums are reordered).
        ledger_per_step: Oracle calls of one step. What is not named must be zero, except `samples` and
            `curvature_vector`, which are compared only if named. Override `expected_ledger` where steps differ.
        implicit: Whether x moves by the implicit hypergradient alone, so that a term of x in the lower loss does
            nothing. False for penalty methods.
        lower_level_moves_alone: Whether y moves with lr = 0 as well. False where lr moves both, as in meta-learning.
        stacks_tasks: Whether the method works on stacked lower variables.
        takes_encoder_head: Whether the method works on an `EncoderHeadProblem`.
    """

    lr: float = 0.05
    lower_lr: float = 0.1
    far_lr: float = 0.5
    steps_from_afar: int = 400
    tolerance: float = 1e-3
    order_tolerance: float = 1e-12
    ledger_per_step: ClassVar[dict[str, int]] = {}
    implicit: bool = True
    lower_level_moves_alone: bool = True
    stacks_tasks: bool = True
    takes_encoder_head: bool = True

    @abstractmethod
    def make(self, problem: Problem, **settings: Any) -> Algorithm:
        """The solver under test; settings are `lr` and `lower_lr`."""

    def expected_point(self, known: Quadratic) -> Tensor:
        """Where the method ends up; a truncated series rests at `known.resting_point(P)`."""
        return known.optimum

    def expected_ledger(self, steps: int) -> dict[str, int]:
        """The counts after `steps` steps on draws whose batches are all different objects (level 1, if any)."""
        return {name: steps * count for name, count in self.ledger_per_step.items()}

    # Rest and convergence ---------------------------------------------------------------------------------------------

    def test_rests_bit_for_bit_where_all_gradients_are_zero(self) -> None:
        solver = self._solver(AtRest().problem())
        x, y = copies(solver)
        for _ in range(5):
            solver.step(0, 0)
        assert same(copies(solver), (x, y))

    def test_reaches_the_optimum_from_afar(self) -> None:
        known = Quadratic(dx=2, dy=2, L=2.0)
        goal = self.expected_point(known)
        known.x0 = goal + 10.0
        solver = self._solver(known.problem(), lr=self.far_lr, lower_lr=0.4)
        for t in range(self.steps_from_afar):
            for group in solver.upper_optimizer.param_groups:
                group["lr"] = self.far_lr * min(1.0, 1e-4 ** (2 * t / self.steps_from_afar - 1))
            solver.step(0, 0)
        x, y = (flat(part) for part in copies(solver))
        assert (x - goal).norm() < self.tolerance
        assert (y - known.y_star(goal)).norm() < self.tolerance * (1 + float(torch.linalg.matrix_norm(known.B, 2)))

    def test_keeps_x_with_lr_zero(self) -> None:
        solver = self._solver(Quadratic().problem(), lr=0.0)
        (x, y), start = copies(solver), Quadratic().y0
        for _ in range(3):
            solver.step(0, 0)
        assert same(copies(solver)[0], x)
        if not self.lower_level_moves_alone:
            return
        assert not torch.equal(flat(copies(solver)[1]), start), "y moves all the same"
        assert torch.equal(flat(y), start)

    # State ------------------------------------------------------------------------------------------------------------

    def test_resumed_equals_uninterrupted_bit_for_bit(self) -> None:
        self._check_resume(lambda state: state)

    def test_resumed_from_a_file_equals_uninterrupted_bit_for_bit(self) -> None:
        self._check_resume(_through_a_file)

    def test_the_state_is_a_copy(self) -> None:
        solver, stream = self._run(StochasticQuadratic(), steps=2)
        state = solver.state_dict()
        kept = _through_a_file(state)
        solver.step(next(stream))
        assert same(state, kept)

    def test_an_empty_warm_start_does_nothing(self) -> None:
        solver, _ = self._run(StochasticQuadratic(), steps=2)
        before = solver.state_dict()
        solver.warm_start([])
        assert same(solver.state_dict(), before)

    # Samples and counts -----------------------------------------------------------------------------------------------

    def test_counts_its_oracle_calls_as_the_table_says(self) -> None:
        steps = 3
        solver, _ = self._run(StochasticQuadratic(), steps, level=1)
        expected = self.expected_ledger(steps)
        counts = solver.ledger.as_dict()
        for name in ("samples", "curvature_vector"):
            if name not in expected:
                del counts[name]
        assert counts == {name: expected.get(name, 0) for name in counts}

    def test_two_batches_mean_the_draw_that_reuses_them(self) -> None:
        known = StochasticQuadratic()
        one, other = self._solver(known.problem()), self._solver(known.problem())
        for t in range(3):
            one.step([t], [t + 1])
            other.step(Draw.of([t], [t + 1], other.needs))
        assert same(one.state_dict(), other.state_dict())

    def test_too_few_batches_are_refused_before_anything_changes(self) -> None:
        solver, stream = self._run(StochasticQuadratic(), steps=1)
        full, before = next(stream), solver.state_dict()
        for role in ROLES:
            if getattr(solver.needs, role):
                with raises(SampleError, role):
                    solver.step(_short_of(role, full))
                assert same(solver.state_dict(), before), f"a draw with too few {role} batches changed something"

    # Failure ----------------------------------------------------------------------------------------------------------

    def test_an_upper_loss_that_is_not_finite_stops_it_and_changes_nothing(self) -> None:
        self._check_failures("upper")

    def test_a_lower_loss_that_is_not_finite_stops_it_and_changes_nothing(self) -> None:
        self._check_failures("lower")

    # Invariances ------------------------------------------------------------------------------------------------------

    def test_a_term_of_x_alone_in_the_lower_loss_changes_nothing(self) -> None:
        if not self.implicit:
            return
        known = StochasticQuadratic()
        plain, _ = self._run(known, steps=4)
        problem = known.problem()
        lower = problem.lower
        problem.lower = lambda batch: lower(batch) + 1e6 * (7 * flat(problem.x)).sinh().sum()
        burdened = self._solver(problem)
        self._advance(burdened, self._stream(burdened, known), 4)
        assert same(copies(burdened), copies(plain))

    def test_an_encoder_and_a_head_are_the_same_problem(self) -> None:
        if not self.takes_encoder_head:
            return
        known = RidgeSoftmaxHead()
        plain, stated = self._solver(known.problem()), self._solver(known.encoder_head_problem())
        for _ in range(4):
            for solver in (plain, stated):
                solver.step(known.upper_batch, known.lower_batch)
        _assert_close(copies(stated), copies(plain))
        assert stated.ledger == plain.ledger

    def test_rows_of_unvisited_tasks_stay_bit_identical(self) -> None:
        for solver, known in self._task_solvers():
            before = solver.state_dict()["y"]
            for batch in ([0, 3], [3, 1], [0, 1]):
                _visit(solver, batch)
            assert not any(torch.equal(p[0], q[0]) for p, q in zip(solver.problem.y, before, strict=True))
            for task in set(range(known.count)) - {0, 1, 3}:
                assert same([p[task] for p in copies(solver)[1]], [q[task] for q in before])

    def test_the_order_of_the_tasks_in_a_batch_does_not_matter(self) -> None:
        for (one, _), (other, _) in zip(self._task_solvers(), self._task_solvers(), strict=True):
            for batch in ([0, 3, 4], [3, 1, 2], [0, 1, 3]):
                _visit(one, batch)
                _visit(other, batch[::-1])
            _assert_close(copies(other), copies(one), self.order_tolerance)

    def test_stacked_tasks_with_an_encoder_are_the_same_problem(self) -> None:
        solvers = [solver for solver, _ in self._task_solvers()]
        for batch in ([0, 3], [3, 1], [0, 1], [3, 1]):
            for solver in solvers:
                _visit(solver, batch)
        for solver in solvers[1:]:
            _assert_close(copies(solver), copies(solvers[0]))

    # How the tests are made -------------------------------------------------------------------------------------------

    def _solver(self, problem: Problem, **settings: Any) -> Algorithm:
        return self.make(problem, **({"lr": self.lr, "lower_lr": self.lower_lr} | settings))

    def _stream(self, solver: Algorithm, known: StochasticQuadratic, seed: int = 7) -> DrawStream:
        return draws(upper=known.batch, lower=known.batch, needs=solver.needs, seed=seed)

    def _run(
        self, known: StochasticQuadratic, steps: int, level: int | None = None
    ) -> tuple[Algorithm, Iterator[Draw]]:
        solver = self._solver(known.problem())
        stream = self._stream(solver, known)
        self._advance(solver, stream, steps, level)
        return solver, stream

    def _advance(self, solver: Algorithm, stream: Iterator[Draw], steps: int, level: int | None = None) -> None:
        for _ in range(steps):
            draw = next(stream)
            solver.step(draw if level is None else _at_level(draw, level if solver.needs.levels else None))

    def _check_resume(self, carried: Callable[[Any], Any]) -> None:
        known = StochasticQuadratic()
        whole, _ = self._run(known, steps=10)
        first = self._solver(known.problem())
        stream = self._stream(first, known)
        self._advance(first, stream, 4)
        state, place = carried(first.state_dict()), carried(stream.state_dict())

        second = self._solver(known.problem())
        stream = self._stream(second, known, seed=0)
        second.load_state_dict(state)
        stream.load_state_dict(place)
        self._advance(second, stream, 6)
        assert same(second.state_dict(), whole.state_dict())

    def _check_failures(self, level: str) -> None:
        for failing_step in (0, 3):
            for poison in (_plus(float("nan")), _plus(float("inf")), _times(float("nan")), _times(float("inf"))):
                self._check_failure(level, failing_step, poison)

    def _check_failure(self, level: str, failing_step: int, poison: Callable[[Tensor], Tensor]) -> None:
        known = StochasticQuadratic(dx=2, dy=2)
        untouched, _ = self._run(known, failing_step + 2)

        problem = known.problem()
        healthy = getattr(problem, level)
        solver = self._solver(problem)
        stream = self._stream(solver, known)
        self._advance(solver, stream, failing_step)
        before, draw = _without_ledger(solver), next(stream)
        setattr(problem, level, lambda batch: poison(healthy(batch)))
        with raises(NonFiniteError):
            solver.step(draw)
            solver.check()
        assert same(_without_ledger(solver), before), f"a bad {level} loss in step {failing_step} changed the state"

        setattr(problem, level, healthy)
        solver.step(draw)
        self._advance(solver, stream, 1)
        assert same(_without_ledger(solver), _without_ledger(untouched)), "the failed step left a trace"

    def _task_solvers(self) -> list[tuple[Algorithm, TaskQuadratics]]:
        """One solver for each form of the same stacked problem."""
        if not self.stacks_tasks:
            return []
        known = TaskQuadratics()
        forms: list[Make] = [known.problem]
        if self.takes_encoder_head:
            forms.append(known.encoder_head_problem)
        return [(self._solver(form()), known) for form in forms]


def _assert_close(a: Sequence[Sequence[Tensor]], b: Sequence[Sequence[Tensor]], tolerance: float = 1e-12) -> None:
    for part, other in zip(a, b, strict=True):
        torch.testing.assert_close(flat(part), flat(other), rtol=0.0, atol=tolerance)


def _visit(solver: Algorithm, tasks: list[int]) -> None:
    solver.step(Draw.of(list(tasks), list(tasks), solver.needs))


def _at_level(draw: Draw, level: int | None) -> Draw:
    return replace(draw, level=level)


def _short_of(role: str, draw: Draw) -> Draw:
    fewer: dict[str, Any] = {role: tuple(getattr(draw, role))[:-1]}
    return replace(draw, level=None, **fewer)


def _without_ledger(solver: Algorithm) -> dict[str, Any]:
    # Calls that were made are counted, also when their step failed.
    return {name: value for name, value in solver.state_dict().items() if name != "ledger"}


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _plus(poison: float) -> Callable[[Tensor], Tensor]:
    return lambda loss: loss + poison


def _times(poison: float) -> Callable[[Tensor], Tensor]:
    return lambda loss: loss * poison
