"""Data hyper-cleaning: x weighs every training example, y is the classifier that learns from the weighted ones.

    min over x  clean_loss(y*(x))        y*(x) = argmin over y  mean_i sigmoid(x_i) loss_i(y) + mu/2 |y|²

An example whose label is wrong makes the classifier worse on clean data, so its weight falls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from adambo.problem import Problem


class Weighed(NamedTuple):
    """Examples: their places among the training data (ignored for clean ones), inputs and labels."""

    places: Tensor
    inputs: Tensor
    labels: Tensor


def hyper_cleaning(logits: nn.Parameter, classifier: nn.Module, mu: float) -> Problem:
    """The problem of weights sigmoid(logits), one per training example; batches are `Weighed`.

    Example:
        >>> logits, classifier = nn.Parameter(torch.zeros(5)), nn.Linear(3, 2)
        >>> problem = hyper_cleaning(logits, classifier, mu=0.1)
        >>> batch = Weighed(torch.tensor([0, 4]), torch.randn(2, 3), torch.tensor([1, 0]))
        >>> from adambo import AdamBO
        >>> info = AdamBO(problem).step(batch, batch)
    """
    parameters = list(classifier.parameters())

    def clean_loss(batch: Weighed) -> Tensor:
        return nn.functional.cross_entropy(classifier(batch.inputs), batch.labels)

    def weighed_loss(batch: Weighed) -> Tensor:
        losses = nn.functional.cross_entropy(classifier(batch.inputs), batch.labels, reduction="none")
        squared_norm = torch.stack([p.square().sum() for p in parameters]).sum()
        return (logits[batch.places].sigmoid() * losses).mean() + mu / 2 * squared_norm

    return Problem(upper=clean_loss, lower=weighed_loss, x=[logits], y=classifier)
