"""The features of the batches of one draw, at one x: every distinct batch object is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from adambo.draw import Batch, Draw, is_empty
from adambo.errors import SampleError
from adambo.masks import SameMasks

Join = Callable[[list[Batch]], tuple[Batch, list[int]]]


class Encodings:
    """Calls the encoder as rarely as the draw allows.

    Only the upper and the cross batch reach the hypergradient in `x`; batches that serve lower steps or Hessian
    factors alone are encoded without a graph.

    Args:
        encoder: encode(batch) -> features.
        draw: Whose batches will be asked for.
        concatenate: False: one call per batch object. True or a function: one call for the batches that need a graph
            and one for those that do not.
        masks: Where dropout must be the same in every evaluation of the draw.
    """

    def __init__(
        self,
        encoder: Callable[[Batch], Any],
        draw: Draw,
        concatenate: bool | Join = False,
        masks: SameMasks | None = None,
    ) -> None:
        self.encoder, self.masks = encoder, masks
        self.join: Join | None = None
        if concatenate is not False:
            self.join = joined if concatenate is True else concatenate
        self._with_graph = _distinct((*draw.upper, *draw.cross))
        reached = {id(b) for b in self._with_graph}
        self._without_graph = [b for b in _distinct((*draw.lower, *draw.hessian)) if id(b) not in reached]
        self._features: dict[int, Any] = {}

    def features(self, batch: Batch, through_encoder: bool) -> Any:
        """The features of `batch`; cut off from the encoder unless gradients must pass through it."""
        if id(batch) not in self._features:
            self._encode(batch)
        features = self._features[id(batch)]
        return features if through_encoder else tree_map(_detached, features)

    def _encode(self, batch: Batch) -> None:
        graph = any(batch is b for b in self._with_graph)
        group = [batch]
        if self.join is not None:
            group = self._with_graph if graph else self._without_graph
            group = [b for b in group if not is_empty(b)]
        with torch.set_grad_enabled(graph), self.masks.of(group[0]) if self.masks else nullcontext():
            if len(group) == 1:
                self._features[id(batch)] = self.encoder(batch)
                return
            assert self.join is not None
            together, lengths = self.join(group)
            leaves, form = tree_flatten(self.encoder(together))
            for b, parts in zip(group, zip(*[_cut(t, lengths) for t in leaves], strict=True), strict=True):
                self._features[id(b)] = tree_unflatten(list(parts), form)


def joined(batches: list[Batch]) -> tuple[Batch, list[int]]:
    """Batches of one form, joined along the first axis of their tensors, and their lengths.

    Example:
        >>> batch, lengths = joined([(torch.zeros(2, 3), torch.ones(2)), (torch.ones(1, 3), torch.ones(1))])
        >>> batch[0].shape, lengths
        (torch.Size([3, 3]), [2, 1])
    """
    flat = [tree_flatten(batch) for batch in batches]
    forms = [
        [getattr(t, "shape", (None,))[1:] if isinstance(t, Tensor) else type(t) for t in leaves] for leaves, _ in flat
    ]
    lengths = [{len(t) if isinstance(t, Tensor) and t.dim() else -1 for t in leaves} for leaves, _ in flat]
    if (
        any(form != flat[0][1] for _, form in flat)
        or any(f != forms[0] for f in forms)
        or any(len(own) != 1 or -1 in own for own in lengths)
    ):
        raise SampleError(
            "concatenate=True joins batches that are tensors (or tuples, lists and dictionaries of tensors) with one "
            f"length along their first axis and equal shapes beyond it, but a step has the shapes {forms}. Pad them "
            "alike, give a function batches -> (batch, lengths) instead, or leave concatenate=False."
        )
    together = [torch.cat(column) for column in zip(*[leaves for leaves, _ in flat], strict=True)]
    return tree_unflatten(together, flat[0][1]), [own.pop() for own in lengths]


def _cut(tensor: Any, lengths: list[int]) -> Sequence[Tensor]:
    if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) != sum(lengths):
        came = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise SampleError(
            f"The encoder was given {sum(lengths)} examples at once and returned {came}, which cannot be divided among "
            f"the batches of lengths {lengths}. Its features need one row per example, or use concatenate=False."
        )
    return torch.split(tensor, lengths)


def _detached(feature: Any) -> Any:
    return feature.detach() if isinstance(feature, Tensor) else feature


def _distinct(batches: Sequence[Batch]) -> list[Batch]:
    return list({id(b): b for b in batches}.values())
