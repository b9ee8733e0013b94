"""What all algorithms share: taking draws, lower steps, writing a step in one go, saving and loading."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

from adambo.algorithms import state
from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import check_plain, fitting, has_hooks, optimizer_state, plain_rate
from adambo.draw import Batch, Draw, Needs
from adambo.encodings import Encodings
from adambo.errors import NonFiniteError, SampleError, SettingError, StateError, WholeTableUsed
from adambo.guard import HYPERGRADIENT, Guard, LowerState, undone_on_failure
from adambo.inverse import Inverse
from adambo.ledger import Ledger
from adambo.lower_memory import LowerMemory
from adambo.lower_variable import LowerVariable, TableRows
from adambo.masks import SameMasks
from adambo.point import Point
from adambo.problem import Problem
from adambo.processes import whole_or_local
from adambo.vectors import Vector, clones, copy_, forget_casts, zeros

T = TypeVar("T")


class _Absent:
    def __repr__(self) -> str:
        return "<not given>"


class Algorithm(ABC):
    """A bilevel method. A subclass says what it `needs` and defines `advance`, one step as its paper writes it.

    Attributes:
        problem: What is optimised.
        needs: The most batches that one step can use, for `adambo.draws`.
        upper_optimizer, lower_optimizer: The torch.optim objects that move x and y; schedulers and hooks (for example
            `register_step_pre_hook`, to clip gradients) go on them. (With tasks, rows of y are moved by hand at the
            rate of `lower_optimizer`: its hooks see no gradients.)
        inverse: Where z comes from, if that is not the method itself.
        ledger: The oracle calls so far.
        steps: The steps so far.
        memory: What the method keeps in the space of y between steps.
        summary, cost: Of the class: one line that says what it does, and one with its oracle calls per step.

    Args:
        problem: What is optimised.
        needs: The most batches that one step can use.
        upper_optimizer: Moves `x` along what lies in `x.grad`.
        lower_optimizer: Moves `y`.
        inverse: Where the algorithm has one.
    """

    ABSENT: Any = _Absent()  # stands for a lower batch that was not given: None is a fine batch

    summary: ClassVar[str] = ""
    cost: ClassVar[str] = ""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        given = [settings["problem"]] if "problem" in settings else arguments[:1]  # none at all when it is unpickled
        if given and not isinstance(given[0], Problem):
            raise SettingError(f"{cls.__name__} optimises an adambo.Problem, but came {type(given[0]).__name__}.")
        return super().__new__(cls)

    def __init__(
        self,
        problem: Problem,
        *,
        needs: Needs,
        upper_optimizer: Optimizer,
        lower_optimizer: Optimizer,
        inverse: Inverse | None = None,
    ) -> None:
        self.problem, self.needs = problem, needs
        self.upper_optimizer = fitting(upper_optimizer, self._moved_above(), "upper_optimizer", "x")
        self.lower_optimizer = fitting(lower_optimizer, problem.y, "lower_optimizer", "y")
        if problem.tasks is not None:
            check_plain(lower_optimizer)
        self.inverse = None if inverse is None else inverse.taken()
        self.ledger = Ledger()
        self.steps = self.begun = 0
        self._warned = False
        self.guard = Guard(problem.device, problem.processes)
        self.memory = LowerMemory(problem.y, len(problem.y[0]) if problem.tasks else None)

    def _moved_above(self) -> Vector:
        """What the upper optimiser moves."""
        return self.problem.x

    @abstractmethod
    def advance(self, draw: Draw) -> Info:
        """One step. The draw holds just what `needs` says."""

    def step(self, draw: Draw | Batch, lower_batch: Batch = ABSENT) -> Info:
        """One step with a draw, or with one upper and one lower batch that serve every role.

        Raises:
            AdamboError: With everything as it was before the call. On CUDA a non-finite loss is reported by a later
                call; see `check`.
        """
        draw = self._begin(draw, lower_batch)
        for p in self.problem.x:
            p.grad = None  # before the forward pass: the last gradient need not be in memory during it
        info = self._attempt(self.advance, draw)
        self.steps += 1
        return info

    def warm_start(self, lower_batches: Iterable[Batch]) -> None:
        """One lower step per batch, at the current x (Algorithm 2 of the paper). No batch, no step."""
        self._report_lost_steps()
        if isinstance(lower_batches, Tensor | str | bytes | dict) or not isinstance(lower_batches, Iterable):
            raise SampleError(
                f"warm_start takes a sequence of batches, but came one {type(lower_batches).__name__}. For one batch "
                "give [batch]."
            )
        last, saved = None, [] if self.problem.tasks else [LowerState(self._whole(), self.lower_optimizer)]
        visited, buffers = self.memory.visited(), clones(self.problem.buffers)
        try:
            for batch in lower_batches:
                if last is None or batch is not last.lower[0]:
                    last = Draw(lower=(batch,))
                    encodings = self.problem.encodings(last)
                    self.ledger.begin_step()
                    if self.problem.tasks:
                        saved.append(LowerState(self._whole(self.problem.tasks(batch)), self.lower_optimizer))
                self._attempt(self._warm_step, last, encodings)
        except BaseException as error:
            for state_before in reversed(saved):
                state_before.restore()
                if isinstance(error, NonFiniteError):  # which all processes raise together
                    state_before.y.write_back()
            self.memory.revisit(visited)
            copy_(self.problem.buffers, buffers)
            raise
        if not self.guard.on_host:
            for state_before in reversed(saved):
                state_before.restore(where=self.guard)
                state_before.y.write_back()
            self.memory.revisit(*self.guard.masked([self.memory.visited()], [visited]))
        self.guard.end_step(counted=False)

    def _whole(self, tasks: Any = None) -> LowerVariable:
        """The parameters themselves: all of y, or the rows of `tasks` in their tables."""
        y, processes = self.problem.y, self.problem.processes
        return LowerVariable(y, processes) if tasks is None else TableRows(y, processes, tasks)

    def check(self) -> None:
        """Wait for the device, and raise if a step up to now met a value that is not finite."""
        self._report_lost_steps(wait=True)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the next steps depend on: parameters, buffers of the modules given, optimisers, z.

        The draw stream has a state of its own; torch's random state (dropout) is yours to save, and a surrogate that
        waits for its update is not part of it.
        """
        return state.saved(self)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            StateError: If it belongs to another algorithm or problem; nothing is loaded then.
        """
        state.load(self, saved)

    def own_state(self) -> dict[str, Any]:
        """State of a subclass, beyond what every algorithm has."""
        return {}

    def load_own_state(self, own: dict[str, Any]) -> None:
        if own:
            raise StateError(f"{type(self).__name__} has no state of its own, but {sorted(own)} were given.")

    def undone_on_failure(self, point: Point) -> AbstractContextManager[LowerState]:
        """If the block raises, y and its optimiser go back to what they were; yields that."""
        return undone_on_failure(point.y, self.lower_optimizer)

    def same_masks(self, draw: Draw) -> SameMasks:
        """For methods that evaluate a batch at several points: the dropout masks of `draw`, the same at all of them.

        A draw without a seed gets it from torch's seed and the number of the step.
        """
        seed = torch.initial_seed() + self.steps if draw.seed is None else draw.seed
        return SameMasks(draw, seed, self.problem.device)

    def solve(self, point: Point) -> Vector:
        """z ≈ [∇²yy g]⁻¹ ∇y f at `point`."""
        assert self.inverse is not None
        self.guard.watch("the upper loss", point.f)
        self.inverse.prepare(point, self.steps)
        self._warn_of_divergence(self.inverse.largest_curvature)
        return self.inverse.solve(point, point.f_y)

    def descend(self, point: Point) -> Tensor:
        """The lower steps of the draw, one per lower batch, from where `y` is; returns g before the first."""
        rate = plain_rate(self.lower_optimizer) if len(point.draw.lower) > 1 else None
        if rate is not None and (y_next := point.lower_descent(rate)) is not None:
            g = point.lower_loss()
            point.y.assign(y_next)
            self.guard.watch("the lower loss", g, *point.y.leaves)
            self._count_lower_step()
            return g
        gradient, g = point.lower_gradient(), point.lower_loss()
        self.guard.watch("the lower loss", g, *gradient)
        point.y.descend(gradient, self.lower_optimizer, self.guard.apply)
        for index in range(1, len(point.draw.lower)):
            here = point.after_move()
            gradient = here.lower_gradient(index)
            self.guard.watch("the lower loss", *here.lower_values(index), *gradient)
            point.y.descend(gradient, self.lower_optimizer, self.guard.apply)
        return g

    def upper_state(self, name: str, kept: Callable[[dict[str, Any]], float] | None = None) -> Callable[[], Vector]:
        """What the upper optimiser keeps under `name`, looked up when it is asked for; see `optimizer_state`."""
        return lambda: optimizer_state(self.upper_optimizer, self.problem.x, name, kept)

    def recall(self, name: str, point: Point, first: Vector | None = None) -> Vector:
        """What the last visit to these rows of y gave to `commit` as `name`; at first, `first` or zeros."""
        return self.memory.read(name, point.y, zeros(point.y.values()) if first is None else first)

    def commit(self, point: Point, before: LowerState, *, solved: Vector | None = None, **remembered: Vector) -> None:
        """All values of the step are known and `x.grad` is filled: write the step, or nothing of it.

        In this order: judge the values; y, if it is masked; x; the rows of tasks; what is remembered or learnt.

        Args:
            point: Whose y has been moved.
            before: What `undone_on_failure` gave.
            solved: The z that the inverse found, for an inverse with a memory.
            remembered: What `recall` shall give under these names at the next visit.
        """
        gradients = [p.grad for p in self.problem.x if p.grad is not None]
        self.guard.watch(HYPERGRADIENT, *(map(whole_or_local, gradients) if self.problem.x_is_sharded else gradients))
        for name, values in remembered.items():
            self.guard.watch(name, *values)
        self.guard.settle(self.upper_optimizer, self.lower_optimizer)
        if not self.guard.on_host:
            before.restore(where=self.guard)
        self._before_x_moves()
        self.guard.apply(self.upper_optimizer)
        forget_casts(self.problem.x)
        self._after_x_moved()
        if self.problem.tasks is not None:
            self._count_lower_step()
        point.y.write_back()
        self.memory.write(point.y, remembered, self.guard)
        if self.inverse is not None and solved is not None:
            self.inverse.accept(point, solved, self.guard)
        self.guard.end_step()

    def _count_lower_step(self) -> None:
        """A step of the lower optimiser that moves nothing, since y was moved by hand: schedulers want to see one."""
        optimizer: Any = self.lower_optimizer
        if not has_hooks(optimizer):
            optimizer._opt_called = True  # by which they see it
            return
        for p in self.problem.y:
            p.grad = None
        optimizer.step()

    def _before_x_moves(self) -> None:
        """For methods that keep x_t: the step is good, and x still has its value."""

    def _after_x_moved(self) -> None:
        """The upper optimiser has made its step."""

    def _begin(self, draw: Draw | Batch, lower_batch: Batch = ABSENT) -> Draw:
        self._report_lost_steps()
        self.begun += 1
        self.ledger.begin_step()
        self.guard.begin_step()
        if isinstance(draw, DataLoader) or isinstance(lower_batch, DataLoader):
            raise SampleError(
                "A step takes batches, not a DataLoader. Make a stream of it: adambo.draws(upper, lower)."
            )
        if lower_batch is not self.ABSENT:
            if isinstance(draw, Draw) or isinstance(lower_batch, Draw):
                raise SampleError(
                    "step takes one Draw, or an upper and a lower batch, but came a Draw and something else. A draw "
                    "says all that a step needs: call solver.step(draw)."
                )
            draw = Draw.of(draw, lower_batch, self.needs)
        if not isinstance(draw, Draw):
            raise SampleError(
                f"step takes a Draw, or two batches, but was given one {type(draw).__name__}. Use "
                "solver.step(upper_batch, lower_batch), or build draws with adambo.draws."
            )
        if draw.level is None:
            draw = replace(draw, level=self._level())
        return draw.trimmed(self.needs, type(self).__name__)

    _waiting = 0  # draws taken that no step has used up yet

    def _level(self) -> int | None:
        return (
            self.inverse.draw_level(self.steps + self._waiting)
            if self.inverse is not None and self.needs.levels
            else None
        )

    def _attempt(self, action: Callable[..., T], *arguments: Any) -> T:
        """Do it; module buffers go back if it fails, and it is done again with whole tables if a loss needs them."""
        counts, buffers = vars(self.ledger).copy(), clones(self.problem.buffers) if self.guard.on_host else []
        while True:
            try:
                return action(*arguments)
            except BaseException as error:
                self.guard.begin_step()  # lets go of the graphs it holds
                if buffers:
                    copy_(self.problem.buffers, buffers)
                if not isinstance(error, WholeTableUsed):
                    raise
                vars(self.ledger).update(counts)  # the attempt that follows counts anew
                self.ledger.begin_step()
                self.problem.differentiate_whole_tables(error)

    def _warn_of_divergence(self, curvature: float | None) -> None:
        rate = max(float(group["lr"]) for group in self.lower_optimizer.param_groups)
        if curvature is not None and rate > 2.0 / curvature and type(self.lower_optimizer) is SGD and not self._warned:
            self._warned = True
            warnings.warn(
                f"The lower step size {rate:g} exceeds 2/λ_max = {2.0 / curvature:.3g} of the lower Hessian (measured "
                f"on a batch), beyond which gradient descent diverges. About {1.0 / curvature:.2g} is a good choice.",
                RuntimeWarning,
                stacklevel=2,
            )

    def warm_step(self, point: Point) -> None:
        """One step of a warm start."""
        self.descend(point)

    def _warm_step(self, draw: Draw, encodings: Encodings | None) -> None:
        self.guard.begin_step()
        point = self.problem.at(draw, self.ledger, encodings)
        self.warm_step(point)
        self.guard.settle(self.lower_optimizer)
        point.y.write_back()

    def _report_lost_steps(self, wait: bool = False) -> None:
        lost = self.guard.steps_lost(wait)
        if lost is not None:
            self.steps -= lost
            self.guard.clear()
            raise self.guard.late_error()
