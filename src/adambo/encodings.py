"""The features of the batches of one draw, at one x: every distinct batch object is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.checkpoint import checkpoint

from adambo.draw import Batch, Draw, is_empty
from adambo.errors import ProblemError, SampleError
from adambo.masks import SameMasks, repeating

Join = Callable[[list[Batch]], tuple[Batch, list[int]]]
Ending = Literal["x", "features", "y"]
Divide = Callable[[Batch, int], Sequence[Batch]]


class Cut(NamedTuple):
    """Where the graph of a loss was cut from that of the encoder: a leaf of the one, with the value of the other."""

    leaf: Tensor
    feature: Tensor


class Encodings:
    """Calls the encoder as rarely as the draw allows.

    Only the upper and the cross batch reach the hypergradient in `x`; the features of batches that serve lower steps or
    Hessian factors alone have no graph.

    The graph of a loss can end in three places: at the parameters of the encoder ("x"), at the features ("features":
    they are then leaves, and `cuts` tells what stands behind them), or at `y` alone ("y").

    Args:
        encoder: encode(batch) -> features.
        draw: Whose batches will be asked for.
        concatenate: False: one call per batch object. True or a function: one call for the batches that need a graph
            and one for those that do not.
        one_call: With `concatenate`: one call for both.
        masks: Where dropout must be the same in every evaluation of the draw.
        microbatches: Into how many parts a batch is divided for the encoder. The activations of the last part alone
            are kept; those of the others are computed again, part by part, in the backward pass, which begins with the
            last.
        divide: Divides a batch so.
        buffers: What the encoder must not write into then, because parts are encoded twice.
    """

    def __init__(
        self,
        encoder: Callable[[Batch], Any],
        draw: Draw,
        concatenate: bool | Join = False,
        masks: SameMasks | None = None,
        microbatches: int = 1,
        divide: Divide | None = None,
        buffers: Sequence[Tensor] = (),
        one_call: bool = False,
    ) -> None:
        self.encoder, self.masks = encoder, masks
        self.microbatches, self.divide = microbatches, divided if divide is None else divide
        self.buffers = buffers
        self.join: Join | None = None
        if concatenate is not False:
            self.join = joined if concatenate is True else concatenate
        self._with_graph = _distinct((*draw.upper, *draw.cross))
        reached = {id(b) for b in self._with_graph}
        self._without_graph = [b for b in _distinct((*draw.lower, *draw.hessian)) if id(b) not in reached]
        self._one_call = one_call and bool(self._with_graph)
        self._features: dict[int, Any] = {}
        self._ended: dict[tuple[Ending, int], Any] = {}
        self._cuts_of: dict[int, list[Cut]] = {}
        self.cuts: list[Cut] = []

    def features(self, batch: Batch, ending: Ending) -> Any:
        """The features of `batch`, whose graph ends as `ending` says."""
        if id(batch) not in self._features:
            self._encode(batch)
        features = self._features[id(batch)]
        if ending == "x":
            return features
        if (ending, id(batch)) not in self._ended:
            end, known = self._cut_off if ending == "features" else _detached, len(self.cuts)
            self._ended[ending, id(batch)] = tree_map(end, features)
            self._cuts_of.setdefault(id(batch), []).extend(self.cuts[known:])
        return self._ended[ending, id(batch)]

    def cuts_of(self, batch: Batch) -> list[Cut]:
        """Where the graphs of losses of `batch` are cut, if they end at the features."""
        self.features(batch, "features")
        return self._cuts_of[id(batch)]

    def _cut_off(self, feature: Any) -> Any:
        if not isinstance(feature, Tensor) or not feature.requires_grad:
            return feature
        leaf = feature.detach().requires_grad_()
        self.cuts.append(Cut(leaf, feature))
        with torch.enable_grad():
            return leaf.view_as(leaf)  # a tensor like any other, on which modules may put hooks

    def _encode(self, batch: Batch) -> None:
        graph = any(batch is b for b in self._with_graph)
        group = [batch]
        if self.join is not None:
            group = self._with_graph if graph else self._without_graph
            if self._one_call:
                group, graph = [*self._with_graph, *self._without_graph], True
            group = [b for b in group if not is_empty(b)]
        with torch.set_grad_enabled(graph), self.masks.of(group[0]) if self.masks else nullcontext():
            if len(group) == 1:
                features = self._encoded(batch, graph)
                needs_graph = any(batch is known for known in self._with_graph)
                self._features[id(batch)] = features if needs_graph else tree_map(_detached, features)
                return
            assert self.join is not None
            together, lengths = self.join(group)
            leaves, form = tree_flatten(self._encoded(together, graph))
            for b, parts in zip(group, zip(*[_cut(t, lengths) for t in leaves], strict=True), strict=True):
                needs_graph = any(b is known for known in self._with_graph)
                self._features[id(b)] = tree_unflatten(list(parts if needs_graph else map(_detached, parts)), form)

    def _encoded(self, batch: Batch, graph: bool) -> Any:
        if self.microbatches == 1:
            return self.encoder(batch)
        *parts, last = self._parts(batch)
        encode = partial(_recomputed, self.encoder) if graph else self.encoder
        versions = [buffer._version for buffer in self.buffers]
        features = [tree_flatten(f) for f in (*[encode(part) for part in parts], self.encoder(last))]
        if versions != [buffer._version for buffer in self.buffers]:
            raise ProblemError(
                f"The encoder writes into a buffer, and with microbatches={self.microbatches} it would do so several "
                "times in a step. Use microbatches=1, or layers without running state."
            )
        if not all(isinstance(t, Tensor) and t.dim() for leaves, _ in features for t in leaves):
            raise SampleError(
                f"With microbatches={self.microbatches} the features of the parts of a batch are put together along "
                "their first axis, but not all of them are tensors with one. Use microbatches=1."
            )
        columns = zip(*[leaves for leaves, _ in features], strict=True)
        return tree_unflatten([torch.cat(column) for column in columns], features[0][1])

    def _parts(self, batch: Batch) -> Sequence[Batch]:
        try:
            parts = list(self.divide(batch, self.microbatches))
        except TypeError as error:
            raise SampleError(f"divide=, a function (batch, parts) -> batches, could not be used: {error}.") from error
        if not parts:
            raise SampleError("divide= gave no part of a batch. It divides a batch into one or more batches.")
        return parts


def _recomputed(encoder: Callable[[Batch], Any], batch: Batch) -> Any:
    """The features, whose activations are computed again when a backward pass needs them, with the same dropout."""
    return checkpoint(encoder, batch, use_reentrant=False, preserve_rng_state=False, context_fn=repeating)


def divided(batch: Batch, parts: int) -> list[Batch]:
    """A batch of tensors, divided along their first axis into so many parts (fewer where it is shorter).

    Example:
        >>> [part[0].tolist() for part in divided((torch.arange(5), torch.zeros(5, 2)), 2)]
        [[0, 1, 2], [3, 4]]
    """
    leaves, form = tree_flatten(batch)
    lengths = {len(t) if isinstance(t, Tensor) and t.dim() else -1 for t in leaves}
    if len(lengths) != 1 or -1 in lengths:
        raise SampleError(
            "microbatches= divides batches that are tensors (or tuples, lists and dictionaries of tensors) with one "
            f"length along their first axis, but came another {type(batch).__name__}. Give divide=, a function (batch, "
            "parts) -> batches."
        )
    columns = zip(*[t.tensor_split(min(parts, lengths.copy().pop())) for t in leaves], strict=True)
    return [tree_unflatten(list(column), form) for column in columns]


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
