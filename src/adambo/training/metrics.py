"""Scores of a whole split. None of them is a mean over batches: the AUC of a batch is not an estimate of the AUC."""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor

from adambo.errors import DataError


def auroc(scores: Tensor, labels: Tensor) -> float:
    """The area under the ROC curve: the share of pairs (positive, negative) in the right order, ties counted half.

    Args:
        scores: (n,), of any scale; larger means positive.
        labels: (n,), 1 (or True) for positives, 0 for negatives.

    Returns:
        The area, or NaN if a score is NaN.

    Raises:
        DataError: There is no positive or no negative.

    Example:
        >>> auroc(torch.tensor([0.1, 40.0, 30.0, 2.0]), torch.tensor([0, 1, 0, 1]))
        0.75
    """
    # Imported here: torchmetrics itself imports transformers if there is one, and that takes seconds.
    from torchmetrics.functional.classification import binary_auroc

    scores, labels = scores.detach().cpu(), labels.cpu().long()
    if scores.isnan().any():
        return nan
    positives = int((labels == 1).sum())
    if not 0 < positives < len(labels):
        raise DataError(
            f"Of {len(labels)} examples, {positives} are positive. The area under the ROC curve compares positives "
            "with negatives and does not exist without both."
        )
    # torchmetrics takes scores outside of [0, 1] for logits and makes sigmoids of them, by which large ones become
    # ties. Ranks keep order and ties.
    distinct, ranks = torch.unique(scores, return_inverse=True)
    return float(binary_auroc(ranks.double() / len(distinct), labels, validate_args=False))


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The share of examples whose class is predicted.

    Args:
        predicted: (..., classes) scores, of which the largest counts, or (...) predicted classes.
        labels: (...) classes.

    Returns:
        The share, or NaN if a score is NaN or there is no example.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    if predicted.is_floating_point() and predicted.isnan().any():
        return nan
    if predicted.dim() > labels.dim():
        predicted = predicted.argmax(dim=-1)
    return int((predicted == labels).sum()) / labels.numel() if labels.numel() else nan
