"""Hyper-representation: an encoder (x) on whose features a linear head (y) learns a task from a few examples.

    min over x  mean_i query_loss_i(x, y_i*(x))        y_i*(x) = argmin over y_i  support_loss_i(x, y_i) + mu/2 |y_i|²

`adapter="per_task"` gives every task a head of its own, which persists between visits; `adapter="shared"` has one head
for all of them, whose lower loss is the mean over the tasks of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node, tree_flatten, tree_unflatten

from adambo.problem import EncoderHeadProblem


@dataclass(frozen=True, eq=False)
class Episodes:
    """Some tasks, with their support and query examples; one object, so the encoder works once for both losses.

    Attributes:
        ids: Which tasks, (task,).
        inputs: What the encoder takes: all examples, task by task.
        labels: (task, example); in each task the support examples come first.
        support: How many they are.
    """

    ids: Tensor
    inputs: Any
    labels: Tensor
    support: int


class Targets(NamedTuple):
    """What the losses see of episodes."""

    ids: Tensor
    labels: Tensor
    support: int


class Heads(NamedTuple):
    """Linear classifiers: weights (head, class, feature) and biases (head, class)."""

    weights: Tensor
    biases: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """(task, class, example) of features (task, example, feature); a single head serves all tasks."""
        weights, biases = self
        if len(weights) != len(features):
            weights, biases = (part.expand(len(features), *part.shape[1:]) for part in self)
        return torch.baddbmm(biases.unsqueeze(2), weights, features.transpose(1, 2))

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of each task."""
        return nn.functional.cross_entropy(self.logits(features), labels, reduction="none").mean(1)

    def squared_norm(self) -> Tensor:
        return self.weights.square().sum() + self.biases.square().sum()


def _of_parts(parts: Iterable[Any], support: Any) -> Episodes:
    ids, inputs, labels = parts
    return Episodes(ids, inputs, labels, support)


register_pytree_node(
    Episodes, lambda episodes: ([episodes.ids, episodes.inputs, episodes.labels], episodes.support), _of_parts
)


def hyper_representation(
    encode: Callable[[Any], Tensor],
    x: nn.Module,
    heads: Heads,
    mu: float,
    adapter: Literal["per_task", "shared"] = "per_task",
    microbatches: int = 1,
    concatenate: bool = False,
) -> EncoderHeadProblem:
    """The problem of an encoder and heads that start at the values of `heads`, which it moves.

    Args:
        encode: inputs of `Episodes` -> features (task · example, feature).
        x: The modules that `encode` uses.
        heads: One per task, or a single one for "shared" (and for MAML and ANIL, which learn an initial head).
        mu: Weight of the regulariser.
        adapter: See above.
        microbatches: Into how many parts the tasks of a batch are divided for the encoder, to save memory.
        concatenate: Encode all batches of a step together, for ANIL those of all tasks; their inputs are tensors, or
            tuples of tensors, that can be joined.

    Example:
        >>> encoder, heads = nn.Linear(4, 3), Heads(nn.Parameter(torch.zeros(6, 2, 3)), nn.Parameter(torch.zeros(6, 2)))
        >>> problem = hyper_representation(encoder, encoder, heads, mu=0.1)
        >>> labels = torch.tensor([[0, 1, 0, 1]]).expand(2, 4)
        >>> episodes = Episodes(torch.tensor([1, 4]), torch.randn(8, 4), labels, support=2)
        >>> from adambo import AdamBO
        >>> info = AdamBO(problem).step(episodes, episodes)
    """
    per_task = adapter == "per_task"
    # A module, in which parameters can be exchanged for those of a task; it would make parameters of other tensors.
    are_parameters = all(isinstance(part, nn.Parameter) and part.requires_grad for part in heads)
    kept: Any = nn.ParameterList(heads) if are_parameters else list(heads)

    def of(targets: Targets) -> Heads:
        weights, biases = kept
        return Heads(weights[targets.ids], biases[targets.ids]) if per_task else Heads(weights, biases)

    def encoded(episodes: Episodes) -> Tensor:
        features = encode(episodes.inputs)
        return features.view(*episodes.labels.shape, features.shape[-1])

    def query_loss(features: Tensor, targets: Targets) -> Tensor:
        n = targets.support
        return of(targets).losses(features[:, n:], targets.labels[:, n:]).mean()

    def support_loss(features: Tensor, targets: Targets) -> Tensor:
        n, head = targets.support, of(targets)
        losses = head.losses(features[:, :n], targets.labels[:, :n])
        # Summed over tasks, so that the lower step size means the same for any number of them; one head has one loss.
        return (losses.sum() if per_task else losses.mean()) + mu / 2 * head.squared_norm()

    return EncoderHeadProblem(
        encoder=encoded,
        upper=query_loss,
        lower=support_loss,
        x=x,
        y=kept,
        tasks=(lambda episodes: episodes.ids) if per_task else None,
        concatenate=_joined if concatenate else False,
        microbatches=microbatches,
        divide=_divided,
        losses_see=lambda episodes: Targets(episodes.ids, episodes.labels, episodes.support),
    )


def _joined(batches: list[Episodes]) -> tuple[Episodes, list[int]]:
    """All tasks in one episode, and how many each had."""
    ids, labels = (torch.cat([getattr(each, name) for each in batches]) for name in ("ids", "labels"))
    flat = [tree_flatten(each.inputs) for each in batches]
    columns = zip(*[leaves for leaves, _ in flat], strict=True)
    inputs = tree_unflatten([torch.cat(column) for column in columns], flat[0][1])
    return Episodes(ids, inputs, labels, batches[0].support), [len(each.ids) for each in batches]


def _divided(episodes: Episodes, parts: int) -> list[Episodes]:
    """The same tasks in several episodes."""
    parts = min(parts, len(episodes.ids))
    each = episodes.labels.shape[1]
    ids, labels = episodes.ids.tensor_split(parts), episodes.labels.tensor_split(parts)
    ends = list(accumulate(each * len(part) for part in ids))
    leaves, form = tree_flatten(episodes.inputs)
    columns = zip(*[leaf.tensor_split(ends[:-1]) for leaf in leaves], strict=True)
    inputs = [tree_unflatten(list(column), form) for column in columns]
    return [Episodes(*part, episodes.support) for part in zip(ids, inputs, labels, strict=True)]


@torch.no_grad()
def fine_tuned(
    heads: Heads, features: Tensor, labels: Tensor, mu: float, steps: int, lr: float | Literal["auto"] = "auto"
) -> Heads:
    """Copies of the heads after gradient steps on the support loss of each task, the encoder frozen.

    Args:
        heads: One per task, or one for all to start from. They stay as they are.
        features: Of the support examples, (task, example, feature).
        labels: Theirs, (task, example).
        mu: Weight of the regulariser.
        steps: How many steps.
        lr: Their size. "auto" is 1/l for each task, with l = max |(feature, 1)|²/2 + mu, which bounds the curvature of
            its support loss, since the Hessian of a softmax has norm 1/2 at most.
    """
    weights, biases = (part.expand(len(features), *part.shape[1:]).clone() for part in heads)
    target = nn.functional.one_hot(labels, biases.shape[1]).to(features.dtype).transpose(1, 2)
    rate = 1 / ((features.square().sum(2) + 1).amax(1) / 2 + mu) if lr == "auto" else features.new_full((1,), lr)
    for _ in range(steps):
        residual = (Heads(weights, biases).logits(features).softmax(1) - target) / features.shape[1]
        weights -= rate.view(-1, 1, 1) * (residual @ features + mu * weights)
        biases -= rate.view(-1, 1) * (residual.sum(2) + mu * biases)
    return Heads(weights, biases)
