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
from torch.utils._pytree import tree_flatten, tree_unflatten

from adambo.closed_form import Programmes
from adambo.draw import Batch, Draw
from adambo.encodings import Encodings
from adambo.lower_graph import uses_plain_autograd
from adambo.vectors import Vector

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
        features: Features, and derivatives in them.
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
        self._losses_see = losses_see
        self._programmes = Programmes()
        self._forms: dict[Hashable, _Form | None] = {}

    @property
    def captured(self) -> int:
        """How many graphs are kept."""
        return self._programmes.captured

    def seen(self, batch: Batch) -> Any:
        """What the losses are given besides the features."""
        if isinstance(batch, Seen):
            return batch.what
        return batch if self._losses_see is None else self._losses_see(batch)

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
            point: Where; its draw is given to `compute` with `batch` in every role.
            batch: On which.
            name: All that `compute` depends on besides its arguments.
            compute: Gives the features it was given, and none of its own.
            vector: In the space of `y`.
        """
        if self._losses_see is None or point.encodings is None or not _can_be_captured(point):
            return None
        features, features_form = tree_flatten(point.encodings.features(batch, "x"))
        seen, seen_form = tree_flatten(self._losses_see(batch))
        tensors = [t for t in seen if isinstance(t, Tensor)]
        constants = tuple(t for t in seen if not isinstance(t, Tensor))
        if not all(isinstance(t, Tensor) and _is_on_gpu(t) for t in (*features, *tensors)):
            return None
        if not all(isinstance(c, CONSTANTS) for c in constants) or any(t.requires_grad for t in tensors):
            return None
        y = point.y.captured_inputs()
        differentiated = tuple(t.requires_grad for t in features)
        places = tuple(next((k for k, t in enumerate(tensors) if t is mine), None) for mine in y)
        fixed = () if y else tuple(p.data_ptr() for p in point.y.leaves)
        key = (name, features_form, differentiated, seen_form, constants, places, fixed)
        if key in self._forms and self._forms[key] is None:
            return None

        def function(given: Vector) -> Vector:
            if key in self._forms and self._forms[key] is None:
                return []
            rest = iter(given)
            mine = [next(rest).requires_grad_(grad) for grad in differentiated]
            shown = [next(rest) if isinstance(t, Tensor) else t for t in seen]
            known = [t for t in shown if isinstance(t, Tensor)]
            there_y = point.y.on_inputs([next(rest) if place is None else known[place] for place in places])
            there = _point_on(point, tree_unflatten(mine, features_form), tree_unflatten(shown, seen_form), there_y)
            with _Still(given[0].device) as still:
                found = compute(there, list(rest))
            self._forms[key] = form = None if still.has_drawn else _Form.of(found, mine)
            return [] if form is None else form.packed(found)

        inputs = [*(t.detach() for t in features), *tensors]
        inputs += [t.detach() for t, place in zip(y, places, strict=True) if place is None]
        results = self._programmes.run(key, function, [*inputs, *vector])
        form = self._forms.get(key)
        return None if results is None or form is None else form.unpacked(results, features)


class _Still(AbstractContextManager["_Still"]):
    """Notices random numbers of a device, and takes them back: a graph would draw more of them than the loss alone."""

    has_drawn = False

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._generator = torch.cuda.default_generators[index]

    def __enter__(self) -> _Still:
        self._looks = not torch.cuda.is_current_stream_capturing()
        self._before = self._generator.get_offset() if self._looks else 0
        return self

    def __exit__(self, *error: object) -> None:
        if self._looks and self._generator.get_offset() != self._before:
            self.has_drawn = True
            self._generator.set_offset(self._before)


def _can_be_captured(point: Point) -> bool:
    return (
        _is_on_gpu(point.y.leaves[0])
        and point.y.leaves_are_rows
        and point.masks is None
        and not uses_plain_autograd()
        and not torch.is_autocast_enabled("cuda")  # whose copies of parameters a graph would go on using
    )


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _point_on(point: Point, features: Any, seen: Any, y: Any) -> Point:
    batch = Seen(seen)
    draw = Draw((batch,), (batch,), (batch,), (batch,) * len(point.draw.hessian))
    return type(point)(point.problem, draw, y, Encodings(lambda _: features, draw), type(point.ledger)())


@dataclass(frozen=True)
class _Form:
    """How the tensors of something found stand one after the other."""

    vectors: tuple[tuple[bool, ...], ...]
    features: tuple[int, ...]

    @classmethod
    def of(cls, found: Found, features: Vector) -> _Form | None:
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
        return Found(loss, vectors, [(features[place], next(rest)) for place in self.features])
