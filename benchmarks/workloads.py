"""What is optimised in the benchmarks: heads on a transformer, data hyper-cleaning, an L2 weight for each feature.

The data are random: what a step costs does not depend on what they mean. All sizes can be chosen, so that the same
problems also come small enough for dense linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = Sequence[Tensor]
Loss = Callable[[Tensor, Sequence[Tensor], Batch], Tensor]


@dataclass(frozen=True, eq=False)
class Workload:
    """A bilevel problem. Its losses are functions of what they see of x, of the tensors of y, and of a batch.

    Attributes:
        x, y: The upper and the lower variable.
        seen: What the losses of a batch see of x: the features of its examples where x is an encoder, else the one
            tensor of x.
        upper, lower: f(seen, y, batch) and g(seen, y, batch), with the tensors of y in the order of `y.parameters()`.
        upper_batch, lower_batch: The data of every step.
        tasks: How many heads are stacked in y along the first axis of its tensors; None where y is one lower variable.
    """

    x: nn.Module
    y: nn.Module
    seen: Callable[[Batch], Tensor]
    upper: Loss
    lower: Loss
    upper_batch: Batch
    lower_batch: Batch
    tasks: int | None = None

    @property
    def has_encoder(self) -> bool:
        return isinstance(self.x, Encoder)

    def seen_of_both(self) -> tuple[Tensor, Tensor]:
        """What the upper and the lower loss see of x, by one call of the encoder where there is one."""
        if not self.has_encoder:
            return self.seen(self.upper_batch), self.seen(self.lower_batch)
        features = self.seen([torch.cat([self.upper_batch[0], self.lower_batch[0]])])
        upper, lower = features.split([len(self.upper_batch[0]), len(self.lower_batch[0])])
        return upper, lower


class Encoder(nn.Module):
    """4 transformer layers, d = 256, mean over 24 tokens."""

    def __init__(self, width: int = 256, layers: int = 4, vocabulary: int = 1000, tokens: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.words(tokens) + self.places).mean(dim=1)


def sequences(
    examples: int = 100, vocabulary: int = 1000, tokens: int = 24, classes: int = 6
) -> tuple[list[Tensor], list[Tensor]]:
    """100 + 100 labelled sequences: the upper and the lower batch."""
    upper, lower = (
        [torch.randint(vocabulary, (examples, tokens)), torch.randint(classes, (examples,))] for _ in range(2)
    )
    return upper, lower


def shared_head(
    width: int = 256, layers: int = 4, vocabulary: int = 1000, tokens: int = 24, examples: int = 100, classes: int = 6
) -> Workload:
    """A transformer above, one linear head on its features below."""
    encoder, head = Encoder(width, layers, vocabulary, tokens), nn.Linear(width, classes)
    batches = sequences(examples, vocabulary, tokens, classes)

    def loss(features: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        return F.cross_entropy(F.linear(features, *y), batch[1])

    def regularised(features: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        return loss(features, y, batch) + 0.05 * (y[0].square().sum() + y[1].square().sum())

    return Workload(encoder, head, lambda batch: encoder(batch[0]), loss, regularised, *batches)


def task_heads(
    tasks: int = 20,
    width: int = 256,
    layers: int = 4,
    vocabulary: int = 1000,
    tokens: int = 24,
    examples: int = 5,
    classes: int = 6,
) -> Workload:
    """20 tasks of 5 + 5 sequences, each with its own head. f is their mean, g their sum."""
    encoder = Encoder(width, layers, vocabulary, tokens)
    batches = sequences(tasks * examples, vocabulary, tokens, classes)
    heads = nn.ParameterList([0.01 * torch.randn(tasks, classes, width), torch.zeros(tasks, classes)])

    def loss(features: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        by_task = features.view(len(y[0]), -1, features.shape[-1])
        logits = torch.baddbmm(y[1].unsqueeze(2), y[0], by_task.mT)  # (task, class, example)
        return F.cross_entropy(logits, batch[1].view(len(y[0]), -1))

    def regularised(features: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        return len(y[0]) * loss(features, y, batch) + 0.05 * (y[0].square().sum() + y[1].square().sum())

    return Workload(encoder, heads, lambda batch: encoder(batch[0]), loss, regularised, *batches, tasks)


def cleaning(
    inputs: int = 784,
    hidden: int = 300,
    classes: int = 10,
    examples: int = 256,
    weighed: int = 5000,
    penalty: float = 1e-3,
) -> Workload:
    """Data hyper-cleaning: an MLP 784-300-10 below, a weight for each of 5,000 training examples above."""
    weights = nn.Parameter(torch.zeros(weighed))
    network = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    clean = (torch.rand(examples, inputs), torch.randint(classes, (examples,)))
    noisy = (
        torch.rand(examples, inputs),
        torch.randint(classes, (examples,)),
        torch.randperm(weighed)[:examples],
    )

    def logits(y: Sequence[Tensor], batch: Batch) -> Tensor:
        return F.linear(F.relu(F.linear(batch[0], *y[:2])), *y[2:])

    def upper(weights: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        return F.cross_entropy(logits(y, batch), batch[1])

    def lower(weights: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        losses = F.cross_entropy(logits(y, batch), batch[1], reduction="none")
        return (torch.sigmoid(weights[batch[2]]) * losses).mean() + penalty * sum(t.square().sum() for t in y)

    return Workload(nn.ParameterList([weights]), network, lambda batch: weights, upper, lower, clean, noisy)


def feature_l2(features: int = 1000, examples: int = 256) -> Workload:
    """Hyperparameter optimisation: logistic regression below, an L2 weight for each of 1,000 features above."""
    log_penalties = nn.Parameter(torch.full((features,), -4.0))
    model = nn.Linear(features, 1, bias=False)
    held_out, training = ((torch.randn(examples, features), torch.rand(examples).round()) for _ in range(2))

    def upper(log_penalties: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(F.linear(batch[0], *y).squeeze(1), batch[1])

    def lower(log_penalties: Tensor, y: Sequence[Tensor], batch: Batch) -> Tensor:
        return upper(log_penalties, y, batch) + 0.5 * (log_penalties.exp() * y[0].square()).sum()

    return Workload(
        nn.ParameterList([log_penalties]), model, lambda batch: log_penalties, upper, lower, held_out, training
    )
