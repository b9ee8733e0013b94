"""For methods that learn where to start: a few gradient steps lead from there to a task, and the task judges them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.settings import checked_choice, checked_count, refuse_sharded_x
from adambo.draw import Batch, Draw, Needs
from adambo.encodings import Cut, Encodings, Ending
from adambo.errors import ProblemError, SampleError, SettingError
from adambo.kernels import explained
from adambo.masks import SameMasks
from adambo.problem import Problem
from adambo.products import gradient, product
from adambo.vectors import Vector, added, scaled, zero_filled, zeros

_STRIDE = 0xD1B54A32D192ED03  # between the seeds of tasks; odd, since generators on a CPU see the low 32 bits alone


class Adapted(NamedTuple):
    """What one task says: φ_S, the meta-gradient v in θ, F(θ_S), and G(θ_0)."""

    phi: Vector
    v: Vector
    f: Tensor
    g: Tensor


class MetaLearning(Algorithm):
    r"""θ = (x, y) is learnt; φ, all of θ or y alone, is what the inner steps move, in every task from the same θ_t:

        φ_{s+1} = φ_s − γ ∇φ G(θ_s; ζ_s)             s = 0 … S−1
        v = ∇θ F(θ_S; ξ)
        v ← v − γ ∇θ⟨∇φ G(θ_s; ζ_s), v_φ⟩            s = S−1 … 0, not in first order
        θ_{t+1} = θ_t − η · mean of v over the tasks

    The losses are functions of live modules, so the way back visits every θ_s again: values are exchanged in place, and
    the sample is evaluated anew, with the dropout masks that it had on the way out. Afterwards θ is bit for bit what it
    was. Running statistics (BatchNorm) learn from the first inner loss of a task, at θ_t; what evaluations elsewhere do
    to them is undone.

    `lower_optimizer` carries γ, so that schedulers work; inner steps are plain SGD. A warm start is no part of these
    methods: where one is asked for, it pre-trains the initial head y on the batches given.

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        inner_steps: S.
        first_order: Leave the second derivatives out.
    """

    adapts_x: ClassVar[bool]  # whether φ is all of θ

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 1e-2,
        inner_steps: int = 1,
        first_order: bool = False,
    ) -> None:
        name = type(self).__name__
        if problem.tasks is not None:
            raise SettingError(
                f"{name} learns one initial head, from which every task starts, but the problem has tasks=, a head per "
                "task. Give y as one head, leave tasks= out, and call step with a list of draws, one per task."
            )
        refuse_sharded_x(problem, f"{name} needs several gradients in x per step")
        self.theta = [*problem.x, *problem.y]
        self.phi = self.theta if self.adapts_x else problem.y
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=checked_count(inner_steps, "inner_steps")),
            upper_optimizer=sgd(self.theta, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
        )
        self.inner_steps = inner_steps
        self.first_order = checked_choice(first_order, "first_order", (False, True))

    def _moved_above(self) -> Vector:
        return self.theta

    def step(self, draw: Draw | Batch | Sequence[Draw], lower_batch: Batch = Algorithm.ABSENT) -> Info:
        """One step with a draw, with one upper and one lower batch, or with a list of draws, one per task.

        The tasks of a list all start from the same x and y; the mean of their meta-gradients makes one step. With
        several processes each has its part of the examples of every task: gradients are averaged as they are formed.

        Raises:
            AdamboError: With everything as it was before the call. On CUDA a non-finite loss is reported by a later
                call; see `check`.
        """
        if lower_batch is self.ABSENT and isinstance(draw, list | tuple):
            draws = [self._begin(each) for each in _checked(draw)]
        else:
            draws = [self._begin(draw, lower_batch)]
        for p in self.theta:
            p.grad = None
        info = self._attempt(self.advance, *draws)
        self.steps += 1
        return info

    def advance(self, draw: Draw, *others: Draw) -> Info:
        draws, n_y = (draw, *others), len(self.problem.y)  # the last n_y tensors of θ are y
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            meta, losses, phi = self._over_tasks(draws)
            self.guard.watch("the meta-gradient of y", *meta[-n_y:])
            self.lower_optimizer.step()  # moves nothing, having no gradients; a scheduler wants a step before its own
            try:
                for p, part in zip(self.theta, meta, strict=True):
                    p.grad = part
                self.commit(point, before)  # θ_{t+1}
            finally:
                for p in self.problem.y:
                    p.grad = None
        upper_loss, lower_loss = losses.mean(dim=0)
        told: dict[str, Any] = {"x_adapted": phi[:-n_y]} if self.adapts_x else {}
        told |= {"y_adapted": phi[-n_y:], "meta_y": meta[-n_y:]}
        return Info(self, upper_loss, lower_loss, meta_x=lambda: [p.grad for p in self.problem.x], **told)

    def _over_tasks(self, draws: Sequence[Draw]) -> tuple[Vector, Tensor, Vector]:
        """The mean meta-gradient in θ, (task, 2) with F(θ_S) and G(θ_0), and φ_S of the last task."""
        mean = MeanOfTasks(self.problem, len(draws), is_averaged=self.adapts_x)
        together, losses = self._encoded_together(draws), []
        for place, each in enumerate(draws):
            task = Task(self, each, place, together)
            adapted = self._adapt(task)
            mean.add(task, adapted.v)
            losses.append(torch.stack([adapted.f, adapted.g]))
        return mean.in_theta(), torch.stack(losses), adapted.phi

    def _encoded_together(self, draws: Sequence[Draw]) -> Encodings | None:
        """Where x rests and the problem joins batches, one call of the encoder serves all tasks."""
        if self.adapts_x or not self.problem.concatenate or len(draws) == 1:
            return None
        upper = tuple(batch for draw in draws for batch in draw.upper)
        lower = tuple(batch for draw in draws for batch in draw.lower)
        all_of_them = Draw(upper, lower=lower) if self.first_order else Draw(upper, cross=lower)
        return self.problem.encodings(all_of_them, SameMasks(all_of_them, self._seed(draws[0], 0), self.problem.device))

    def _seed(self, draw: Draw, place: int) -> int:
        """Of the dropout in the task of this place."""
        return torch.initial_seed() + self.steps + place * _STRIDE if draw.seed is None else draw.seed

    def _adapt(self, task: Task) -> Adapted:
        rate = -self.lower_optimizer.param_groups[0]["lr"]
        path: list[Vector] = []  # φ_1, φ_2, …; φ_0 is where the parameters are
        losses = []
        for s in range(self.inner_steps):
            with self._at(path, s) if s else nullcontext():  # at θ_0 running statistics learn
                g, g_phi = self._inner_gradient(task, s)
            path.append(added(path[-1] if path else [p.detach() for p in self.phi], g_phi, rate))
            losses.append(g)
        with self._at(path, self.inner_steps):
            f, v = self._outer_gradient(task)
        if not self.first_order:
            for s in reversed(range(self.inner_steps)):
                with self._at(path, s):
                    second = self._product(task, s, v)
                v = added(v, second, rate)
        self.guard.watch("the upper loss", f)
        self.guard.watch("the lower loss", *losses)
        return Adapted(path[-1], v, f, losses[0])

    def _at(self, path: list[Vector], s: int) -> AbstractContextManager[None]:
        """Be at θ_s while the block runs."""
        if s == 0:
            return self.problem.moved_to()
        phi, n_y = path[s - 1], len(self.problem.y)
        return self.problem.moved_to(phi[:-n_y] or None, phi[-n_y:])

    def _inner_gradient(self, task: Task, s: int) -> tuple[Tensor, Vector]:
        """G and ∇φ G on ζ_s, at the current values."""
        self.ledger.grad_y_g += 1
        g = task.loss("lower", task.draw.lower[s], ending="x" if self.adapts_x else "y")
        if not task.is_cut:
            return g.detach(), self._filled(gradient(g, self.phi), self.phi, name="lower")
        parts = gradient(g, self.theta)
        task.notice(parts)
        return g.detach(), self._filled(parts[-len(self.phi) :], self.phi, name="lower")

    def _outer_gradient(self, task: Task) -> tuple[Tensor, Vector]:
        """F and ∇θ F on ξ, at the current values."""
        self.ledger.grad_x_f += 1
        self.ledger.grad_y_f += 1
        f = task.loss("upper", task.draw.upper[0])
        leaves = [cut.leaf for cut in task.cuts]
        parts = gradient(f, [*leaves, *self.theta], keep_graph=task.is_cut)
        if task.is_cut:
            task.notice(parts[len(leaves) :])
            if not task.reaches_x:
                parts = [*parts[: len(leaves)], *parts[-len(self.problem.y) :]]
        return f.detach(), self._filled(parts, task.along, name="upper")

    def _product(self, task: Task, s: int, v: Vector) -> Vector:
        """∇θ⟨∇φ G, v_φ⟩ on ζ_s, at the current values; for x, where the graph ends at them, stand the features."""
        self.ledger.hessian_vector += 1
        g = task.loss("lower", task.draw.lower[s])
        try:
            g_phi = gradient(g, self.phi, differentiable=True)
            # Left out: tensors that G is linear in, or does not depend on.
            pairs = [
                (p, w) for p, w in zip(g_phi, v[-len(self.phi) :], strict=True) if p is not None and p.requires_grad
            ]
            if not pairs:
                return zeros(task.along)
            parts, weights = zip(*pairs, strict=True)
            found = product(parts, task.along, weights, keep_graph=task.is_cut)
        except RuntimeError as error:
            raise explained(error, self.problem.modules) from error
        return self._filled(found, task.along)

    def _filled(self, parts: Sequence[Tensor | None], like: Vector, name: str | None = None) -> Vector:
        """Zeros for what a loss does not depend on; of φ, whose part goes into the next product, the mean over
        processes. The rest (features, which every process has of its own, and an x that rests) is averaged at the end.
        """
        if name is not None and all(part is None for part in parts[-len(self.problem.y) :]):
            raise ProblemError(
                f"The {name} loss does not depend on y. Both levels meet in y; make sure that the loss uses the "
                "parameters given as y, and that nothing detaches them."
            )
        filled = zero_filled(parts, like)
        return [*filled[: -len(self.phi)], *self.problem.processes.average(filled[-len(self.phi) :])]


class Task:
    """One draw: its losses wherever θ is, with the same dropout and, where x rests, the same features.

    Where x rests, graphs of losses end at the features: `cuts` says where, `along` is what a loss is differentiated in
    (the features, y, and x only if a loss reaches it on another way), and the way from the features to x is gone once
    for all losses, and for all tasks if their features were made in one call.

    Args:
        solver: Whose task it is.
        draw: The batches.
        place: In the list of the step.
        together: The features of all tasks, where they were encoded in one call.
    """

    def __init__(self, solver: MetaLearning, draw: Draw, place: int, together: Encodings | None) -> None:
        self.draw, self._problem, self._ledger = draw, solver.problem, solver.ledger
        self._y = solver.problem.lower_variable(draw)
        self._masks = None
        if not solver.first_order:  # which evaluates no sample twice
            self._masks = SameMasks(draw, solver._seed(draw, place), solver.problem.device)
        self._features, self.shares_features = together, together is not None
        if together is None and not solver.adapts_x:
            # Batches in the role of `cross` are encoded with a graph, as the second derivatives in x need it.
            with_graph = replace(draw, lower=(), cross=draw.lower)
            self._features = solver.problem.encodings(draw if solver.first_order else with_graph, self._masks)
        self.is_cut = self._features is not None
        self.reaches_x = not self.is_cut
        self._reached = (*draw.upper, *(() if solver.first_order else draw.lower))

    @cached_property
    def cuts(self) -> list[Cut]:
        """Asked for at θ_S, after the losses: what is encoded when, and what running statistics learn from, is theirs
        to say.
        """
        if self._features is None:
            return []
        found = {id(cut.leaf): cut for batch in self._reached for cut in self._features.cuts_of(batch)}
        return list(found.values())

    def notice(self, parts: Sequence[Tensor | None]) -> None:
        """Of a gradient in θ: whether a loss reaches x on another way than through the features."""
        self.reaches_x |= any(part is not None for part in parts[: len(self._problem.x)])

    @property
    def along(self) -> Vector:
        problem = self._problem
        return [*(cut.leaf for cut in self.cuts), *(problem.x if self.reaches_x else ()), *problem.y]

    def loss(self, name: str, batch: Batch, ending: Ending = "x") -> Tensor:
        self._ledger.read(name, batch)
        if self._features is not None and ending == "x":
            ending = "features"
        # In the role of `upper`, whichever it has, a batch is encoded with a graph.
        features = self._features or self._problem.encodings(Draw(upper=(batch,)), self._masks)
        return self._problem.evaluate(name, batch, self._y, features, ending, self._masks)


class MeanOfTasks:
    """The mean of the tasks' meta-gradients, in θ.

    Args:
        problem: Whose θ.
        tasks: How many will be added.
        is_averaged: Whether their parts in x are means over processes already.
    """

    def __init__(self, problem: Problem, tasks: int, is_averaged: bool) -> None:
        self._problem, self._weight, self._is_averaged = problem, 1 / tasks, is_averaged
        self._x: Vector = []
        self._y: Vector = []
        # By the id of its leaf, which it keeps alive so that no other gets that id: a cut, and the gradient there.
        self._behind: dict[int, tuple[Cut, Tensor]] = {}

    def add(self, task: Task, v: Vector) -> None:
        """`v` is along what the task is differentiated in."""
        n_y = len(self._problem.y)
        self._y = self._added(self._y, v[-n_y:])
        if task.reaches_x:
            self._x = self._added(self._x, v[len(task.cuts) : -n_y])
        for cut, part in zip(task.cuts, v, strict=False):
            weighted, known = part * self._weight, self._behind.get(id(cut.leaf))
            self._behind[id(cut.leaf)] = (cut, weighted if known is None else known[1] + weighted)
        if not task.shares_features:  # waiting would only keep the activations of all tasks in memory
            self._go_back()

    def _added(self, known: Vector, parts: Vector) -> Vector:
        return added(known, parts, self._weight) if known else scaled(parts, self._weight)

    def _go_back(self) -> None:
        """From the features to x."""
        if self._behind:
            cuts, weights = zip(*self._behind.values(), strict=True)
            self._behind = {}
            # Kept, for tasks may share what lies behind their features; without a task, it goes.
            found = product([cut.feature for cut in cuts], self._problem.x, weights)
            filled = zero_filled(found, self._problem.x)
            self._x = added(self._x, filled) if self._x else filled

    def in_theta(self) -> Vector:
        self._go_back()
        x = self._x or zeros(self._problem.x)
        return [*(x if self._is_averaged else self._problem.processes.average(x)), *self._y]


def _checked(draws: Sequence[Any]) -> Sequence[Draw]:
    if not draws:
        raise SampleError("step was given an empty list, and so no task to learn from. Give one draw per task.")
    others = sorted({type(draw).__name__ for draw in draws if not isinstance(draw, Draw)})
    if others:
        raise SampleError(
            f"step takes a list of Draws, one per task, but this one holds {', '.join(others)}. For a pair of "
            "batches give Draw.of(upper, lower, solver.needs); for a single task call solver.step(upper, lower)."
        )
    return draws
