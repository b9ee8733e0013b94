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

from adambo.draw import Batch, Draw
from adambo.errors import SampleError, SettingError
from adambo.kernels import plain_layer_norm, twice_differentiable
from adambo.problem import EncoderHeadProblem, Problem
from adambo.vectors import Vector, added, scaled

NORMALISED = (nn.modules.batchnorm._NormBase, nn.GroupNorm)  # which vmap differentiates wrongly, or not at all
Values = Mapping[str, Tensor]


class Together(NamedTuple):
    """What the tasks of a step say.

    Attributes:
        meta: The mean of their meta-gradients in θ.
        losses: (task, 2): F(θ_S) and G(θ_0) of each.
        adapted: θ_S of the last one.
    """

    meta: Vector
    losses: Tensor
    adapted: Vector


class TasksAtOnce:
    """Adapts and differentiates all tasks of a step side by side.

    Args:
        problem: Its x and y are given as modules, whose parameters are exchanged for those of the tasks. Losses treat
            batches as pytrees of tensors, and do nothing that `torch.vmap` cannot follow.
        theta: All of x and y.
        most: How many tasks side by side, at the most.

    Raises:
        SettingError: If the problem is not so.
    """

    def __init__(self, problem: Problem, theta: Vector, most: int | None = None) -> None:
        self._live, self._most = _Live(problem), most
        names = {id(p): name for name, p in self._live.named_parameters()}
        if any(id(p) not in names for p in theta):
            raise SettingError(
                "at_once=True gives every task parameters of its own, so x and y must be given as modules, through "
                "which the losses read them. Give modules (nn.ParameterList for loose tensors), or leave at_once out."
            )
        if problem.processes.active:
            raise SettingError("at_once=True works in one process. Leave it out, or use one process.")
        normalised = [type(layer).__name__ for layer in self._live.modules() if isinstance(layer, NORMALISED)]
        if normalised:
            raise SettingError(
                f"at_once=True cannot serve {normalised[0]}: its second derivative under torch.vmap is wrong. Use "
                "LayerNorm, or leave at_once out."
            )
        self._theta = {names[id(p)]: p for p in theta}

    def run(self, draws: Sequence[Draw], rate: float | Tensor, first_order: bool) -> Together:
        """θ_{s+1} = θ_s − rate ∇G(θ_s; ζ_s) for each draw, and the gradient of F(θ_S; ξ) in θ_0, means over draws."""
        size = self._most or len(draws)
        groups = [draws[k : k + size] for k in range(0, len(draws), size)]
        found = [self._of_group(group, rate, first_order) for group in groups]
        shares = [len(group) / len(draws) for group in groups]
        meta = scaled(found[0].meta, shares[0])
        for each, share in zip(found[1:], shares[1:], strict=True):
            meta = added(meta, each.meta, share)
        return Together(meta, torch.cat([each.losses for each in found]), found[-1].adapted)

    def _of_group(self, draws: Sequence[Draw], rate: float | Tensor, first_order: bool) -> Together:
        steps = len(draws[0].lower)
        lower = [_stacked([draw.lower[s] for draw in draws]) for s in range(steps)]
        upper = _stacked([draw.upper[0] for draw in draws])
        theta = {name: p.detach() for name, p in self._theta.items()}

        def adapted(start: Values, lower: Sequence[Batch], upper: Batch) -> tuple[Tensor, tuple[Tensor, Values]]:
            values, losses = start, []
            for batch in lower:
                slope, loss = grad_and_value(self._lower)(values, batch)
                if first_order:
                    slope = {name: part.detach() for name, part in slope.items()}
                values = {name: part - rate * slope[name] for name, part in values.items()}
                losses.append(loss)
            return self._upper(values, upper), (losses[0], values)

        def mean(start: Values) -> tuple[Tensor, tuple[Tensor, Values]]:
            over_tasks = vmap(adapted, in_dims=(None, 0, 0), randomness="different")
            f, (g, values) = over_tasks(start, lower, upper)
            return f.mean(), (torch.stack([f, g], 1), {name: part[-1] for name, part in values.items()})

        with twice_differentiable(), plain_layer_norm():
            meta, (losses, last) = grad(mean, has_aux=True)(theta)
        return Together(list(meta.values()), losses.detach(), [part.detach() for part in last.values()])

    def _lower(self, values: Values, batch: Batch) -> Tensor:
        return functional_call(self._live, dict(values), ("lower", batch))  # type: ignore[no-any-return]

    def _upper(self, values: Values, batch: Batch) -> Tensor:
        return functional_call(self._live, dict(values), ("upper", batch))  # type: ignore[no-any-return]


class _Live(nn.Module):
    """The losses of a problem as a module, in which its parameters can be exchanged."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.parts = nn.ModuleList(problem.modules)
        self._losses = [problem]  # in a list, so that it is no part of the module

    def forward(self, name: str, batch: Batch) -> Tensor:
        (problem,) = self._losses
        function = problem.upper if name == "upper" else problem.lower
        seen = problem.losses.seen(batch)
        features = [problem.encoder(batch)] if isinstance(problem, EncoderHeadProblem) else []
        return function(*features, seen)


def _stacked(batches: Sequence[Batch]) -> Any:
    """The batches of all tasks as one, with tasks along a new first axis of every tensor."""
    flat = [tree_flatten(batch) for batch in batches]
    (first, form), columns = flat[0], list(zip(*(leaves for leaves, _ in flat), strict=False))
    shapes = [[t.shape if isinstance(t, Tensor) else None for t in leaves] for leaves, _ in flat]
    if any(each != form for _, each in flat) or any(s != shapes[0] for s in shapes) or None in shapes[0] or not first:
        raise SampleError(
            "at_once=True puts the batches of all tasks side by side, so they are tensors (or tuples, lists and "
            f"dictionaries of tensors) of equal shapes, but a step has the shapes {shapes}. Pad them alike, or leave "
            "at_once out."
        )
    return tree_unflatten([torch.stack(column) for column in columns], form)
