"""What a step asks of the losses on a GPU, as CUDA graphs: one launch each for the upper and for the lower one.

A loss on a small head is some thirty kernels there and back, and a host takes longer to launch them, and to run the
Python between them, than a GPU to do them. A problem that says what its losses see (`losses_see=`) lets them be
captured: after a few steps of one form, what the losses and the inverse compute is replayed on the features and targets
of the step. It is the same code on a point of its own, so the digits are the same too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from adambo.closed_form import Programmes
from adambo.draw import Batch, Draw, is_empty
from adambo.encodings import Encodings
from adambo.lower_graph import uses_plain_autograd
from adambo.vectors import Vector, clones, copy_, summed

if TYPE_CHECKING:
    from adambo.point import Point

CONSTANTS = (int, float, str, type(None))


@dataclass(frozen=True, eq=False)
class Seen:
    """What the losses see of a batch, in the place of the batch."""

    what: Any


@dataclass(frozen=True)
class Found:
    """What was computed of one loss.

    Attributes:
        loss: Its value.
        vectors: In the space of `y`; None stands for no dependence.
        features: Features, and derivatives in them; tensors of `x` stand there too where the loss reads them.
    """

    loss: Tensor
    vectors: Sequence[Sequence[Tensor | None]]
    features: Sequence[tuple[Tensor, Tensor]]


class CapturedLosses:
    """Replays computations on the losses of one problem.

    Args:
        losses_see: What the losses see of a batch: tensors and numbers, alone or in tuples, lists and dictionaries.
            None where that is not known; nothing is captured then.
    """

    def __init__(self, losses_see: Callable[[Batch], Any] | None) -> None:
        self.losses_see = losses_see
        self._programmes = Programmes()
        self._layouts: dict[Hashable, _Layout | None] = {}

    @property
    def captured(self) -> int:
        """How many graphs are kept."""
        return self._programmes.captured

    def seen(self, batch: Batch) -> Any:
        """What the losses are given besides the features."""
        if isinstance(batch, Seen):
            return batch.what
        return batch if self.losses_see is None else self.losses_see(batch)

    def run(
        self,
        point: Point,
        batch: Batch,
        name: Hashable,
        compute: Callable[[Point, Vector], Found],
        vector: Sequence[Tensor] = (),
    ) -> Found | None:
        """`compute(point, vector)` by a graph; None where there is none (yet), so that the caller does it itself.

        Args:
            point: Where.
            batch: On which; `compute` is given a point that has it in every role.
            name: All that `compute` depends on besides its arguments.
            compute: Asks the point.
            vector: Further tensors.
        """
        if self.losses_see is None or isinstance(batch, Seen) or is_empty(batch) or not _can_be_captured(point):
            return None
        call = _Call(point, batch, self.losses_see(batch))
        key = (name, call.form)
        if not call.has_only_inputs or (key in self._layouts and self._layouts[key] is None):
            return None

        def function(tensors: Vector) -> Vector:
            if key in self._layouts and self._layouts[key] is None:
                return []
            there, features, rest = call.repeated(tensors)
            with _Untouched(point) as untouched:
                found = compute(there, rest)
            self._layouts[key] = None if untouched.is_broken else _Layout.of(found, features)
            return _Layout.packed(found) if self._layouts[key] is not None else []

        results = self._programmes.run(key, function, [*call.inputs, *vector])
        layout = self._layouts.get(key)
        return None if results is None or layout is None else layout.unpacked(results, call.features)


def _can_be_captured(point: Point) -> bool:
    return (
        _is_on_gpu(point.y.leaves[0])
        and point.encodings is not None
        and point.y.leaves_are_rows
        and point.masks is None
        and not uses_plain_autograd()
        and not any(p._backward_hooks for p in (*point.y.leaves, *point.y.tables))  # which Python runs
        and not torch.is_autocast_enabled("cuda")  # whose copies of parameters a graph would go on using
    )


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


class _Call:
    """The tensors that one computation is given, and all else it depends on."""

    def __init__(self, point: Point, batch: Batch, seen: Any) -> None:
        assert point.encodings is not None
        self.point = point
        self.features, self._features_form = tree_flatten(point.encodings.features(batch, "x"))
        self._seen, self._seen_form = tree_flatten(seen)
        tensors = [t for t in self._seen if isinstance(t, Tensor)]
        y = point.y.captured_inputs()
        # The ids of tasks are usually among what is seen.
        self._places = [next((k for k, t in enumerate(tensors) if t is mine), None) for mine in y]
        alone = [mine.detach() for mine, place in zip(y, self._places, strict=True) if place is None]
        self._differentiated = [isinstance(t, Tensor) and t.requires_grad for t in self.features]
        self.has_only_inputs = (
            all(isinstance(t, Tensor) and t.device == point.y.leaves[0].device for t in (*self.features, *tensors))
            and all(isinstance(c, (Tensor, *CONSTANTS)) for c in self._seen)
            and not any(t.requires_grad for t in tensors)
        )
        self.inputs = [*(t.detach() for t in self.features), *tensors, *alone] if self.has_only_inputs else []

    @property
    def form(self) -> Hashable:
        """All that the computation depends on besides the values of `inputs`."""
        problem, y = self.point.problem, self.point.y
        losses = (problem.upper, problem.lower, *(module.training for module in problem.modules))
        constants = tuple(None if isinstance(t, Tensor) else (type(t), t) for t in self._seen)
        in_place = () if y.captured_inputs() else tuple(p.data_ptr() for p in y.leaves)
        shapes = tuple((t.shape, t.dtype) for t in self.inputs)
        structure = (self._features_form, tuple(self._differentiated), self._seen_form, tuple(self._places))
        return losses, structure, constants, in_place, shapes

    def repeated(self, tensors: Vector) -> tuple[Point, Vector, Vector]:
        """The point on other tensors (those of `inputs`, and some more), its features, and what is left of them."""
        rest = iter(tensors)
        features = [next(rest).requires_grad_(differentiated) for differentiated in self._differentiated]
        seen = [next(rest) if isinstance(t, Tensor) else t for t in self._seen]
        known = [t for t in seen if isinstance(t, Tensor)]
        y = self.point.y.on_inputs([next(rest) if place is None else known[place] for place in self._places])
        batch = Seen(_joined(seen, self._seen_form))
        draw = Draw((batch,), (batch,), (batch,), (batch,) * len(self.point.draw.hessian))
        encodings = Encodings(lambda _: _joined(features, self._features_form), draw)
        point = self.point
        return type(point)(point.problem, draw, y, encodings, type(point.ledger)()), features, list(rest)


def _joined(leaves: Sequence[Any], form: TreeSpec) -> Any:
    return tree_unflatten(list(leaves), form)


class _Untouched(AbstractContextManager["_Untouched"]):
    """Notices random numbers and writes into buffers, and takes them back: a graph would have too many of them."""

    is_broken = False

    def __init__(self, point: Point) -> None:
        self._buffers, self._values = point.problem.buffers, clones(point.problem.buffers)
        device = point.y.leaves[0].device
        # (While a graph is captured, a generator does not say where it is.)
        looks = device.type == "cuda" and not torch.cuda.is_current_stream_capturing()
        self._generators = [torch.cuda.default_generators[device.index]] if looks else []

    def __enter__(self) -> _Untouched:
        self._offsets = [generator.get_offset() for generator in self._generators]
        self._versions = [buffer._version for buffer in self._buffers]
        return self

    def __exit__(self, *error: object) -> None:
        if self._versions != [buffer._version for buffer in self._buffers]:
            self.is_broken = True
            copy_(self._buffers, self._values)
        for generator, offset in zip(self._generators, self._offsets, strict=True):
            if generator.get_offset() != offset:
                self.is_broken = True
                generator.set_offset(offset)


@dataclass(frozen=True)
class _Layout:
    """How the tensors of something found stand one after the other."""

    vectors: tuple[tuple[bool, ...], ...]
    features: tuple[int, ...]

    @classmethod
    def of(cls, found: Found, features: Vector) -> _Layout | None:
        """None where the loss depends on more than it was given, as on parameters of x."""
        places = [next((k for k, t in enumerate(features) if t is root), None) for root, _ in found.features]
        known = tuple(place for place in places if place is not None)
        if len(known) < len(places):
            return None
        return cls(tuple(tuple(t is not None for t in vector) for vector in found.vectors), known)

    @staticmethod
    def packed(found: Found) -> Vector:
        inside = [t for vector in found.vectors for t in vector if t is not None]
        return [found.loss, *inside, *(part for _, part in found.features)]

    def unpacked(self, results: Vector, features: Vector) -> Found:
        rest = iter(results)
        loss = next(rest)
        vectors = [[next(rest) if there else None for there in flags] for flags in self.vectors]
        return Found(loss, vectors, summed([(features[place], next(rest)) for place in self.features]))
