"""Short runs of AdamBO from where a problem is, and how far each has brought the upper loss down."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import NamedTuple

import torch

from adambo.algorithms import AdamBO
from adambo.draw import Batch, Draw, Needs
from adambo.errors import CurvatureError, NonFiniteError
from adambo.inverse import Neumann
from adambo.ledger import Ledger
from adambo.problem import Problem
from adambo.vectors import clones

LAST_THIRD = (2 / 3, 5 / 6, 1.0)


class Pace(NamedTuple):
    """How AdamBO treats the lower level: everything but `lr`."""

    step: float
    terms: int
    lower_steps: int

    def solver(self, problem: Problem, lr: float) -> AdamBO:
        inverse = Neumann(terms=self.terms)
        return AdamBO(problem, lr=lr, lower_lr=self.step, inverse=inverse, lower_steps=self.lower_steps)


class ShortRuns:
    """Runs that differ in `lr` alone: same start, same draws, same dropout. After each, all is as it was before.

    At three points in its last third a run is judged, so that a lucky end counts for little: y is led to y*(x) for a
    moment, as well as `settling` lower steps can, and the upper loss is averaged over draws that the run has not seen.

    Args:
        problem: The problem.
        draws: For the steps, over and over if they are few.
        judging: Draws for the upper loss at the end, or a function that says how bad the problem's parameters are.
        pace: Of the lower level.
        steps: Of each run.
        settling: Lower steps before the upper loss is looked at; with tasks, of each task.
        ledger: Where oracle calls are counted.
        seed: Of dropout.
    """

    def __init__(
        self,
        problem: Problem,
        draws: Sequence[Draw],
        judging: Sequence[Draw] | Callable[[], float],
        pace: Pace,
        *,
        steps: int,
        settling: int,
        ledger: Ledger,
        seed: int = 0,
    ) -> None:
        self.problem, self.draws, self.judging, self.pace = problem, draws, judging, pace
        self.steps, self.settling, self.ledger, self.seed = steps, settling, ledger, seed

    def loss_after(self, lr: float) -> float:
        """How bad the last third of a run is; infinite if it does not get to its end."""
        with untouched(self.problem, self.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about rates that are too large: those are tried on purpose
            solver = self.pace.solver(self.problem, lr)
            try:
                points = [math.ceil(self.steps * part) for part in LAST_THIRD]
                losses = []
                for number, draw in enumerate(islice(cycle(self.draws), self.steps), start=1):
                    solver.step(filled(draw, solver.needs))
                    if number in points:
                        solver.check()
                        losses.append(self._judged(solver))
            except (NonFiniteError, CurvatureError):
                return math.inf
            finally:
                self.ledger.add(solver.ledger)
        loss = sum(losses) / len(losses)
        return loss if math.isfinite(loss) else math.inf

    def _judged(self, solver: AdamBO) -> float:
        if callable(self.judging):
            return float(self.judging())
        with self.problem.moved_to(y=clones(self.problem.y)):
            settle(solver, self.judging, self.settling)
            total = 0.0
            for draw in self.judging:
                self.ledger.begin_step()
                total += float(self.problem.at(draw, self.ledger).f.detach())
        return total / len(self.judging)


def settle(solver: AdamBO, draws: Sequence[Draw], steps: int) -> None:
    """So many lower steps at the current x, on the lower batches of `draws`; with tasks, so many for each of them."""
    if solver.problem.tasks is not None:
        for draw in draws:
            solver.warm_start(list(islice(cycle(lower_batches(draw)), steps)))
    else:
        batches = [lower_batches(draw)[0] for draw in draws]
        solver.warm_start(list(islice(cycle(batches), steps)))
    solver.check()


def lower_batches(draw: Draw) -> list[Batch]:
    """The distinct batches of all lower roles."""
    return list({id(b): b for role in (draw.lower, draw.cross, draw.hessian) for b in role}.values())


def filled(draw: Draw, needs: Needs) -> Draw:
    """The draw with as many batches of each role as are needed; too few serve several times."""
    others = lower_batches(draw)

    def role(batches: Sequence[Batch], count: int) -> tuple[Batch, ...]:
        return tuple(islice(cycle(batches or others), count))

    return Draw(
        upper=role(draw.upper, needs.upper),
        lower=role(draw.lower, needs.lower),
        cross=role(draw.cross, needs.cross),
        hessian=role(draw.hessian, needs.hessian),
        seed=draw.seed,
    )


@contextmanager
def untouched(problem: Problem, seed: int) -> Iterator[None]:
    """Parameters, buffers, gradients and torch's random numbers are afterwards what they were before."""
    parameters = [*problem.x, *problem.y]
    gradients = [p.grad for p in parameters]
    on_gpu = [problem.device] if problem.device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu), problem.moved_to(x=clones(problem.x), y=clones(problem.y)):
        torch.manual_seed(seed)
        for p in parameters:
            p.grad = None
        try:
            yield
        finally:
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
