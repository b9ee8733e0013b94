"""AUC maximisation as a bilevel problem: x = (network, a, b), y = alpha, and the lower loss is the negative upper one.

    F = (1−p)(s−a)² [positive] + p (s−b)² [negative] + 2(1+alpha)(p s [negative] − (1−p) s [positive]) − p(1−p) alpha²

with the score s of an example and the share p of positives. alpha*(x) = E[s | negative] − E[s | positive], and ∇²yy g
is 2p(1−p) for every batch: a Neumann series with step 1/(2p(1−p)) is exact after one term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adambo.encodings import divided, joined
from adambo.problem import EncoderHeadProblem


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs of the network, and 1.0 for the positive ones among them, 0.0 for the negative."""

    inputs: Any
    positive: Tensor

    def __len__(self) -> int:
        return len(self.positive)


class AucVariables(nn.Module):
    """The numbers a and b of the upper level and alpha of the lower one, all 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.alpha = (nn.Parameter(torch.zeros(())) for _ in range(3))


def auc_loss(
    scores: Tensor, positive: Tensor, a: Tensor, b: Tensor, alpha: Tensor, p: float, margin: float = 0.0
) -> Tensor:
    """The mean of F over a batch; `margin` adds the released code's 2(1+alpha) p(1−p) margin.

    Example:
        >>> zero = torch.zeros(())
        >>> loss = auc_loss(torch.tensor([0.2, 0.7]), torch.tensor([0.0, 1.0]), zero, zero, zero, p=0.5)
        >>> round(loss.item(), 4)
        -0.1175
    """
    negative = 1 - positive
    squares = (1 - p) * (scores - a).square() * positive + p * (scores - b).square() * negative
    gap = p * scores * negative - (1 - p) * scores * positive + p * (1 - p) * margin
    return (squares + 2 * (1 + alpha) * gap).mean() - p * (1 - p) * alpha.square()


def deep_auc(
    score: Callable[[Any], Tensor],
    network: nn.Module,
    variables: AucVariables,
    p: float,
    margin: float = 0.0,
    microbatches: int = 1,
    concatenate: bool = False,
) -> EncoderHeadProblem:
    """The problem of a network whose `score(inputs)` is one number per example; batches are `Examples`.

    With `microbatches` the network works through a batch in so many parts, to save memory. With `concatenate` it works
    on all batches of a step in one call; their inputs are tensors, or tuples of tensors, that can be joined.

    Example:
        >>> network, variables = nn.Linear(3, 1), AucVariables()
        >>> problem = deep_auc(lambda inputs: network(inputs).sigmoid().flatten(), network, variables, p=0.9)
        >>> batch = Examples(torch.randn(4, 3), torch.tensor([1.0, 1.0, 0.0, 1.0]))
        >>> from adambo import AdamBO
        >>> info = AdamBO(problem).step(batch, batch)
    """

    def encoded(batch: Examples) -> Tensor:
        # a and b belong to x, so they pass through the encoder: what comes after it sees features and alpha alone.
        scores = score(batch.inputs)
        return torch.stack([scores, variables.a.expand_as(scores), variables.b.expand_as(scores)], 1)

    def loss(features: Tensor, positive: Tensor) -> Tensor:
        scores, a, b = features.unbind(1)
        return auc_loss(scores, positive, a, b, variables.alpha, p, margin)

    return EncoderHeadProblem(
        encoder=encoded,
        upper=loss,
        lower=lambda features, positive: -loss(features, positive),
        x=[network, variables.a, variables.b],
        y=[variables.alpha],
        concatenate=_joined if concatenate else False,
        one_call=concatenate,
        microbatches=microbatches,
        divide=_divided,
        losses_see=lambda batch: batch.positive,
    )


def _joined(batches: list[Examples]) -> tuple[Examples, list[int]]:
    (inputs, positive), lengths = joined([(batch.inputs, batch.positive) for batch in batches])
    return Examples(inputs, positive), lengths


def _divided(batch: Examples, parts: int) -> list[Examples]:
    pairs = divided((batch.inputs, batch.positive), parts)
    return [Examples(inputs, positive) for inputs, positive in pairs]
