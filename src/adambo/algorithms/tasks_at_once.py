"""The meta-gradients of many tasks in one pass, by `torch.vmap` over adapted copies of all parameters.

Going from task to task, MAML launches thousands of small kernels for each; on a GPU that is all it does. Side by side,
the tasks of a step are one batch of matrix products, each with weights of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from adambo.draw import Batch, Draw, is_empty
from adambo.errors import ProblemError, SampleError, SettingError
from adambo.kernels import explained, twice_differentiable
from adambo.problem import EncoderHeadProblem, Problem
from adambo.vectors import Vector, added, scaled
from adambo.vmapped import RightUnderVmap

Values = Mapping[str, Tensor]


class Together(NamedTuple):
    """What the tasks of a step say.

    Attributes:
        meta: The mean of their meta-gradients in θ.
        losses: (task, 1 + S): F(θ_S), G(θ_0), …, G(θ_{S−1}) of each.
        adapted: θ_S of the last one.
    """

    meta: Vector
    losses: Tensor
    adapted: Vector


class TasksAtOnce:
    """Adapts and differentiates all tasks of a step side by side.

    Args:
        problem: Its x and y are given as modules, whose parameters are exchanged for those of the tasks. Batches are
            pytrees of tensors, and losses do nothing that `torch.vmap` cannot follow.
        theta: All of x and y.
        most: How many tasks side by side, at the most.

    Raises:
        SettingError: If the problem is not so.
    """

    def __init__(self, problem: Problem, theta: Vector, most: int | None = None) -> None:
        self._problem, self._live, self._most = problem, _Live(problem), most
        names = {id(p): name for name, p in self._live.named_parameters()}
        if any(id(p) not in names for p in theta):
            raise SettingError(
                "at_once=True gives every task parameters of its own, so x and y must be given as modules, through "
                "which the losses read them. Give modules (nn.ParameterList for loose tensors), or leave at_once out."
            )
        if problem.processes.active:
            raise SettingError("at_once=True works in one process. Leave it out, or use one process.")
        if isinstance(problem, EncoderHeadProblem) and problem.microbatches > 1:
            raise SettingError(
                f"microbatches={problem.microbatches} would divide what at_once=True puts side by side. Leave one of "
                "them out; at_once=5 goes through five tasks at a time."
            )
        self._theta = {names[id(p)]: p for p in theta}
        self._looked_through = 0

    def run(self, draws: Sequence[Draw], rate: float | Tensor, first_order: bool) -> Together:
        """θ_{s+1} = θ_s − rate ∇G(θ_s; ζ_s) for each draw, and the gradient of F(θ_S; ξ) in θ_0, means over draws.

        Raises:
            ProblemError: If the losses cannot be followed, or read parameters on another way than through modules.
            SampleError: For batches that cannot stand side by side.
        """
        size = self._most or len(draws)
        groups = [draws[k : k + size] for k in range(0, len(draws), size)]
        stacked = [_side_by_side(group) for group in groups]
        try:
            with twice_differentiable(), RightUnderVmap():
                self._look_through(draws[0])
                found = [self._of_group(*batches, rate, first_order) for batches in stacked]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            known = explained(error, self._problem.modules)
            if known is not error:
                raise known from error
            said = str(error).partition("\n")[0]
            raise ProblemError(f"torch.vmap cannot follow these losses: {said} Leave at_once out.") from error
        shares = [len(group) / len(draws) for group in groups]
        meta = scaled(found[0].meta, shares[0])
        for each, share in zip(found[1:], shares[1:], strict=True):
            meta = added(meta, each.meta, share)
        return Together(meta, torch.cat([each.losses for each in found]), found[-1].adapted)

    def _of_group(self, lower: Sequence[Batch], upper: Batch, rate: float | Tensor, first_order: bool) -> Together:
        def adapted(start: Values, lower: Sequence[Batch], upper: Batch) -> tuple[Tensor, tuple[Tensor, Values]]:
            values, losses = start, []
            for batch in lower:
                slope, loss = grad_and_value(self._loss)(values, "lower", batch)
                if first_order:
                    slope = {name: part.detach() for name, part in slope.items()}
                values = {name: part - rate * slope[name] for name, part in values.items()}
                losses.append(loss)
            return self._loss(values, "upper", upper), (torch.stack(losses), values)

        def mean(start: Values) -> tuple[Tensor, tuple[Tensor, Values]]:
            over_tasks = vmap(adapted, in_dims=(None, 0, 0), randomness="different")
            f, (g, values) = over_tasks(start, lower, upper)
            return f.mean(), (torch.cat([f[:, None], g], 1), {name: part[-1] for name, part in values.items()})

        theta = {name: p.detach() for name, p in self._theta.items()}
        meta, (losses, last) = grad(mean, has_aux=True)(theta)
        # A view would keep the parameters of all tasks alive.
        return Together(list(meta.values()), losses.detach(), [part.detach().clone() for part in last.values()])

    def _look_through(self, draw: Draw) -> None:
        """Once: whether the losses depend on the parameters that stand in the modules, and on no others of θ.

        One that holds a parameter by itself would go on with that of all tasks. (So it is in a copy of a solver, whose
        losses are still those of the original: the number says whom it was looked at for.)
        """
        if self._looked_through == id(self):
            return
        own = list(self._theta.values())
        theirs = {name: p.detach().requires_grad_() for name, p in self._theta.items()}
        devices = [self._problem.device] if self._problem.device.type == "cuda" else []
        n_y = len(self._problem.y)
        for name, batch in (("lower", draw.lower[0]), ("upper", draw.upper[0])):
            with torch.enable_grad(), torch.random.fork_rng(devices):
                loss = self._loss(theirs, name, batch)
                found = torch.autograd.grad(loss, [*theirs.values(), *own], allow_unused=True)
            past = [place for place, part in zip(self._theta, found[len(own) :], strict=True) if part is not None]
            if past:
                raise ProblemError(
                    f"The {name} loss reads {past[0].partition('.')[2]} past its module, so at_once=True cannot give "
                    "every task its own. Read parameters as attributes of modules when the loss is called (not from a "
                    "variable or a list made before), or leave at_once out."
                )
            if all(part is None for part in found[len(own) - n_y : len(own)]):
                raise ProblemError(
                    f"The {name} loss does not depend on y. Both levels meet in y; make sure that the loss uses the "
                    "parameters given as y, and that nothing detaches them. (A copy of a solver has the losses of the "
                    "original, and so its parameters.)"
                )
        self._looked_through = id(self)

    def _loss(self, values: Values, name: str, batch: Batch) -> Tensor:
        return functional_call(self._live, dict(values), (name, batch))  # type: ignore[no-any-return]


class _Live(nn.Module):
    """The losses of a problem as a module, in which its parameters can be exchanged."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.parts = nn.ModuleList(problem.modules)
        self._losses = [problem]  # in a list, so that it is no part of the module

    def forward(self, name: str, batch: Batch) -> Tensor:
        (problem,) = self._losses
        function = problem.upper if name == "upper" else problem.lower
        features = [problem.encoder(batch)] if isinstance(problem, EncoderHeadProblem) else []
        loss = function(*features, problem.losses.seen(batch))
        if not isinstance(loss, Tensor) or loss.dim():
            came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ProblemError(f"The {name} loss returned {came}, but a loss is one number.")
        return loss


def _side_by_side(draws: Sequence[Draw]) -> tuple[list[Any], Any]:
    """The lower batches of each inner step, and the upper ones."""
    lower = zip(*(draw.lower for draw in draws), strict=True)
    return [_stacked(batches) for batches in lower], _stacked([draw.upper[0] for draw in draws])


def _stacked(batches: Sequence[Batch]) -> Any:
    """The batches of all tasks as one, with tasks along a new first axis of every tensor."""
    if any(is_empty(batch) for batch in batches):
        raise SampleError("A task has an empty batch, on which a mean is undefined. Leave such tasks out.")
    flat = [tree_flatten(batch) for batch in batches]
    form = flat[0][1]
    kinds = [[(tuple(t.shape), t.dtype) if isinstance(t, Tensor) else type(t) for t in leaves] for leaves, _ in flat]
    of_tensors = kinds[0] and all(isinstance(kind, tuple) for kind in kinds[0])
    if not of_tensors or any(each != form for _, each in flat) or any(kind != kinds[0] for kind in kinds):
        raise SampleError(
            "at_once=True puts the batches of all tasks side by side, so they are tensors (or tuples, lists and "
            f"dictionaries of tensors alone) of equal shapes and types, but a step has {kinds}. Pad them alike, or "
            "leave at_once out."
        )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return tree_unflatten([torch.stack(column) for column in columns], form)
