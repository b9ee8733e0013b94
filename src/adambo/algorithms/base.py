"""What all algorithms share: taking draws, lower steps, writing a step in one go, saving and loading."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import SGD, Optimizer

from adambo.algorithms.info import Info
from adambo.draws import Batch, Draw, Needs
from adambo.encodings import Encodings
from adambo.errors import SampleError, SettingError, StateError
from adambo.guard import Guard, LowerState, undone_on_failure
from adambo.inverse import Inverse
from adambo.ledger import Ledger
from adambo.lower_variable import LowerVariable, WholeTableUsed
from adambo.point import Point
from adambo.problem import Problem
from adambo.processes import is_sharded, whole_or_local
from adambo.vectors import Vector, copy_

T = TypeVar("T")


class Algorithm(ABC):
    """A bilevel method. A subclass says what it `needs` and defines `advance`, one step as its paper writes it.

    Args:
        problem: What is optimised.
        needs: The most batches that one step can use.
        upper_optimizer: Moves `x` along what lies in `x.grad`.
        lower_optimizer: Moves `y`.
        inverse: Where the algorithm has one.
    """

    ABSENT: Any = object()  # stands for a lower batch that was not given: None is a fine batch

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
        self.upper_optimizer = _fitting(upper_optimizer, problem.x, "upper_optimizer", "x")
        self.lower_optimizer = _fitting(lower_optimizer, problem.y, "lower_optimizer", "y")
        if problem.tasks is not None:
            _check_plain(lower_optimizer)
        self.inverse = inverse
        self.ledger = Ledger()
        self.steps = 0
        self.guard = Guard(problem.device, problem.processes)

    @abstractmethod
    def advance(self, draw: Draw) -> Info:
        """One step. The draw holds just what `needs` says."""

    def step(self, draw: Draw | Batch, lower_batch: Batch = ABSENT) -> Info:
        """One step with a draw, or with one upper and one lower batch that serve every role.

        Raises:
            AdamboError: With everything as it was before the call. On CUDA a non-finite loss is reported by a later
                call; see `check`.
        """
        draw = self._taken(draw, lower_batch)
        self.upper_optimizer.zero_grad()  # before the forward pass: the last gradient need not be in memory during it
        info = self._attempt(self.advance, draw)
        self.steps += 1
        return info

    def warm_start(self, lower_batches: Iterable[Batch]) -> None:
        """One lower step per batch, at the current x (Algorithm 2 of the paper). No batch, no step."""
        self._report_lost_steps()
        self.ledger.begin_step()
        self.guard.begin_step()
        last = None
        with undone_on_failure(LowerVariable(self.problem.y, self.problem.processes), self.lower_optimizer) as saved:
            for batch in lower_batches:
                if last is None or batch is not last.lower[0]:
                    last = Draw(lower=(batch,))
                    encodings = self.problem.encodings(last)
                    self.ledger.begin_step()
                self._attempt(self._warm_step, last, encodings)
            if not self.guard.on_host:
                copy_(self.problem.y, self.guard.masked(self.problem.y, saved.values))
        self.guard.end_step()

    def check(self) -> None:
        """Wait for the device, and raise if a step up to now met a value that is not finite."""
        self._report_lost_steps(wait=True)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the next steps depend on, parameters included; the draw stream has its own."""
        return copy.deepcopy(
            {
                "algorithm": type(self).__name__,
                "steps": self.steps,
                "x": [p.detach() for p in self.problem.x],
                "y": [p.detach() for p in self.problem.y],
                "upper_optimizer": self.upper_optimizer.state_dict(),
                "lower_optimizer": self.lower_optimizer.state_dict(),
                "inverse": None if self.inverse is None else self.inverse.state_dict(),
                "ledger": self.ledger.as_dict(),
                "own": self.own_state(),
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            StateError: If it belongs to another algorithm or problem; nothing is loaded then.
        """
        before = self.state_dict()
        try:
            self._check_state(state)
            self._load(state)
        except StateError:
            self._load(before)
            raise
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            self._load(before)
            raise StateError(
                f"The state cannot be read: {type(error).__name__}: {error}. It is damaged, or was not made by "
                "solver.state_dict(); nothing was loaded."
            ) from error

    def own_state(self) -> dict[str, Any]:
        """State of a subclass, beyond what every algorithm has."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        if state:
            raise StateError(f"{type(self).__name__} has no state of its own, but {sorted(state)} were given.")

    def solve(self, point: Point) -> Vector:
        """z ≈ [∇²yy g]⁻¹ ∇y f at `point`."""
        assert self.inverse is not None
        self.guard.admit("The upper loss", point.f)
        self.inverse.prepare(point, self.steps)
        return self.inverse.solve(point, point.f_y)

    def descend(self, point: Point) -> Tensor:
        """The lower steps of the draw, one per lower batch, from where `y` is; returns g before the first."""
        losses = []
        for index in range(len(point.draw.lower)):
            here = point if index == 0 else point.after_move()
            g, gradient = here.lower_gradient(index)
            self.guard.admit("The lower loss", g, *gradient)
            point.y.descend(gradient, self.lower_optimizer, self.guard.apply)
            losses.append(g)
        return losses[0]

    def commit(self, point: Point, before: LowerState) -> None:
        """All values of the step are known and `x.grad` is filled: write the step, or nothing of it."""
        self.guard.admit("The hypergradient", *[whole_or_local(p.grad) for p in self.problem.x if p.grad is not None])
        self.guard.settle(self.upper_optimizer, self.lower_optimizer)
        if not self.guard.on_host:
            point.y.assign(self.guard.masked(point.y.values(), before.values))
        self.guard.apply(self.upper_optimizer)
        self.finish(point)

    def finish(self, point: Point) -> None:
        """Make the new y, and what the inverse found, those of the next step."""
        point.y.write_back()
        if self.inverse is not None:
            self.inverse.accept(point, self.guard)
        self.guard.end_step()

    def _taken(self, draw: Draw | Batch, lower_batch: Batch = ABSENT) -> Draw:
        self._report_lost_steps()
        self.ledger.begin_step()
        self.guard.begin_step()
        if lower_batch is not self.ABSENT:
            return Draw.of(draw, lower_batch, self.needs, self._level())
        if not isinstance(draw, Draw):
            raise SampleError(
                f"step takes a Draw, or two batches, but was given one {type(draw).__name__}. Use "
                "solver.step(upper_batch, lower_batch), or build draws with adambo.draws."
            )
        if draw.level is None:
            draw = replace(draw, level=self._level())
        return draw.trimmed(self.needs, type(self).__name__)

    def _level(self) -> int | None:
        return self.inverse.draw_level() if self.inverse is not None and self.needs.levels else None

    def _attempt(self, action: Callable[..., T], *arguments: Any) -> T:
        counts = vars(self.ledger).copy()
        try:
            return action(*arguments)
        except WholeTableUsed as reason:
            vars(self.ledger).update(counts)  # the attempt that follows counts anew
            self.ledger.begin_step()
            self.problem.differentiate_whole_tables(reason)
            return action(*arguments)

    def _warm_step(self, draw: Draw, encodings: Encodings | None) -> None:
        point = self.problem.at(draw, self.ledger, encodings)
        self.descend(point)
        self.guard.settle(self.lower_optimizer)
        point.y.write_back()

    def _report_lost_steps(self, wait: bool = False) -> None:
        lost = self.guard.steps_lost(wait)
        if lost:
            self.steps -= lost
            raise self.guard.reset()

    def _check_state(self, state: dict[str, Any]) -> None:
        names = {"algorithm", "steps", "x", "y", "upper_optimizer", "lower_optimizer", "inverse", "ledger", "own"}
        if not isinstance(state, dict) or set(state) != names:
            came = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise StateError(f"The state of a solver has {sorted(names)}, but this one has {came}.")
        if state["algorithm"] != type(self).__name__:
            raise StateError(
                f"This state was saved by {state['algorithm']}; it cannot continue as {type(self).__name__}."
            )
        for name in ("x", "y"):
            mine, saved = ([tuple(t.shape) for t in part] for part in (getattr(self.problem, name), state[name]))
            if mine != saved:
                raise StateError(
                    f"The state has {name} of shapes {saved}, but the problem has {mine}. Build the problem with the "
                    "same model before loading."
                )
        for name in ("upper_optimizer", "lower_optimizer"):
            _check_optimizer_state(getattr(self, name), state[name], name)
        if (state["inverse"] is None) != (self.inverse is None):
            raise StateError("The state and this solver do not agree on whether there is an inverse.")

    def _load(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        if self.inverse is not None:
            self.inverse.load_state_dict(state["inverse"])
        self.load_own_state(state["own"])
        self.upper_optimizer.load_state_dict(state["upper_optimizer"])
        self.lower_optimizer.load_state_dict(state["lower_optimizer"])
        self.ledger.load(state["ledger"])
        copy_(self.problem.x, state["x"])
        copy_(self.problem.y, state["y"])
        self.steps = int(state["steps"])


def _check_optimizer_state(optimizer: Optimizer, state: dict[str, Any], name: str) -> None:
    mine, saved = (
        [(len(group["params"]), sorted(group)) for group in groups]
        for groups in (optimizer.param_groups, state["param_groups"])
    )
    if mine != saved:
        raise StateError(
            f"The state's {name} has {[n for n, _ in saved]} parameters in its groups and other settings than this "
            f"{type(optimizer).__name__}, which has {[n for n, _ in mine]}. Build the solver with the same optimiser."
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, own in state["state"].items():
        for key, value in own.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise StateError(
                    f"The state's {name} holds {key} of shape {tuple(value.shape)} for a parameter of shape "
                    f"{tuple(parameters[index].shape)}. It belongs to another model."
                )


def sgd(parameters: Vector, lr: float, name: str = "lower_lr") -> SGD:
    """Plain SGD; fused on CUDA, where the fused kernel can be masked without a synchronisation."""
    return SGD(parameters, lr=checked_rate(lr, name), fused=fused(parameters))


def checked_rate(lr: float, name: str) -> float:
    if not (isinstance(lr, int | float) and 0 <= lr < float("inf")):
        raise SettingError(f"{name}={lr!r} is not a step size: give a finite number, 0 or larger.")
    return lr


def fused(parameters: Vector) -> bool | None:
    """What to say to torch.optim about its fused kernels."""
    return True if all(p.is_cuda and not is_sharded(p) for p in parameters) else None


def _fitting(optimizer: Optimizer, parameters: Vector, name: str, variable: str) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise SettingError(f"{name} is a {type(optimizer).__name__}, not a torch.optim.Optimizer.")
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if {id(p) for p in held} != {id(p) for p in parameters}:
        raise SettingError(
            f"{name} holds {len(held)} tensors which are not the {len(parameters)} of {variable}. It must move all of "
            f"{variable} and nothing else: build it from problem.{variable}."
        )
    return optimizer


def _check_plain(optimizer: Optimizer) -> None:
    plain = isinstance(optimizer, SGD) and all(
        not (group["momentum"] or group["weight_decay"] or group["maximize"]) for group in optimizer.param_groups
    )
    if not plain:
        raise SettingError(
            f"lower_optimizer={type(optimizer).__name__} keeps or decays something for every row of a stacked y, also "
            "for tasks that are not in the batch. Use torch.optim.SGD without momentum and weight decay."
        )
