"""The lower loss on one batch: its gradient in `y`, Hessian products and cross derivatives.

What has a closed form is computed in closed form, the rest by autograd, from one gradient with a graph. Inside
`plain_autograd()` everything is the rest: the reference for the closed forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from adambo.closed_form import ClosedForm, Programmes, Solved, descended, read, solved
from adambo.lower_variable import LowerVariable
from adambo.products import product
from adambo.vectors import Vector, add_, added, one, zero_filled

_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Compute all derivatives of lower losses by autograd, also those with a closed form: slower, and the reference.

    The two agree to rounding. It is needed for lower losses that are more than their graph shows: those with a counter
    or a random number of Python's inside, with hooks on intermediate tensors, or with a Python `if` on such things.

    Example:
        >>> x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        >>> from adambo import AdamBO, Problem
        >>> solver = AdamBO(Problem(lambda b: (x * y).sum(), lambda b: (x * y + y**2).sum(), x, y))
        >>> with plain_autograd():
        ...     info = solver.step(0, 0)
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def uses_plain_autograd() -> bool:
    """Whether a block of `plain_autograd` is running."""
    return _plain.get()


class LowerGraph:
    """Derivatives of one loss at one point.

    Args:
        y: The part of the lower variable that the loss is about.
        closed: The terms in closed form.
        roots: What is left to autograd: tensors or nodes of a graph.
        weights: The derivatives of the loss in the roots.
    """

    def __init__(
        self, y: LowerVariable, closed: ClosedForm | None, roots: Sequence[Any] = (), weights: Sequence[Tensor] = ()
    ) -> None:
        self.y = y
        self._closed, self._roots, self._weights = closed, roots, weights
        self._solved: Solved | None = None
        self._kept: dict[float, list[float | Tensor]] = {}

    @classmethod
    def of(cls, g: Tensor, y: LowerVariable) -> LowerGraph:
        """Take the loss apart: `g`, with its graph, to be differentiated in `y`."""
        reading = None if _plain.get() or not y.leaves_are_rows else read(g, y.leaves)
        if reading is None:
            return cls(y, None, [g], [one(g)])
        return cls(y, reading.closed, reading.rest, reading.weights)

    @property
    def has_closed_forms(self) -> bool:
        """Whether some of it has."""
        return self._closed is not None

    @property
    def is_closed(self) -> bool:
        """Whether all of it has a closed form."""
        return self._closed is not None and not self._roots

    @property
    def is_prepared(self) -> bool:
        """Whether the rest has a gradient with a graph, which products need."""
        return "_rest" in self.__dict__

    def keeping_y(self) -> LowerGraph:
        """The same, where the values of `y` are not those of the leaves, which will be moved."""
        assert self._closed is not None
        return LowerGraph(self.y, self._closed.with_values(self.y.values()), self._roots, self._weights)

    def moved(self) -> LowerGraph:
        """The derivatives at the values that `y` has now; for a loss that is closed, and keeps its y."""
        assert self._closed is not None
        with full_precision(self.y):
            return LowerGraph(self.y, self._closed.moved([leaf.detach() for leaf in self.y.leaves]))

    def descended(self, rate: float, steps: int, programmes: Programmes) -> Vector | None:
        """`y` after so many steps against the gradient; None where they have to be done one by one."""
        if self._closed is None or not self.is_closed:
            return None
        with full_precision(self.y):
            return descended(self._closed, rate, steps, programmes)

    def solved(self, v: Vector, step: float | Tensor, terms: int, programmes: Programmes) -> Vector | None:
        """The Neumann series of `v`; None where its products have to be made one by one.

        What else one programme has found on the way, the gradient and the cross derivative, is remembered.
        """
        if self._closed is None or not self.is_closed:
            return None
        with full_precision(self.y):
            self._solved = solved(self._closed, v, step, terms, self.y.blocks, programmes)
        return self._solved.z

    def gradient(self, keep_graph: bool = False) -> Vector:
        """∇y g, without a graph."""
        if self._solved is not None:
            return self._solved.gradient
        if "_rest" in self.__dict__ or not self._roots:
            parts: Sequence[Tensor | None] = [part.detach() for part in self._rest] if self._roots else []
        else:
            found = product(self._roots, self.y.leaves, self._weights, keep_graph=keep_graph)
            parts = found if self._closed is not None else self.y.rows(self.y.filled(found, "lower"))
        if self._closed is None:
            return list(parts)  # type: ignore[arg-type]
        with full_precision(self.y):
            return self.y.filled(self._closed.gradient(parts), "lower")

    def hessian(self, v: Vector) -> Vector:
        """∇²yy g · v"""
        roots, weights = self._differentiable(v)
        found = product(roots, self.y.leaves, weights) if roots else []
        if self._closed is not None:
            with full_precision(self.y):
                found = self._closed.hessian(v, found)
        return self.y.rows(zero_filled(found, self.y.leaves)) if found else [torch.zeros_like(part) for part in v]

    def contracted(self, w: Vector, s: float, v: Vector) -> Vector:
        """v + (I − s ∇²yy g) w"""
        if self._closed is None:
            total = added(w, v)
            add_(total, self.hessian(w), -s)
            return total
        roots, weights = self._differentiable(w)
        beside = product(roots, self.y.leaves, weights) if roots else ()
        with full_precision(self.y):
            if s not in self._kept:
                self._kept[s] = self._closed.kept(s)
            return self._closed.contracted(w, s, v, self._kept[s], beside)

    def cross(self, z: Vector) -> tuple[Vector, Vector]:
        """∇²xy g · z as roots and weights: Σ_k weights_k · ∂roots_k/∂x."""
        roots, weights = self._differentiable(z)
        if self._closed is not None:
            with full_precision(self.y):
                known = self._solved is not None and self._solved.z is z
                found = self._solved.cross if self._solved is not None and known else self._closed.cross(z)
            roots += [tensor for tensor, _ in found]
            weights += [cotangent for _, cotangent in found]
        return roots, weights

    @cached_property
    def _rest(self) -> Vector:
        """∇y of the rest, with a graph."""
        found = product(self._roots, self.y.leaves, self._weights, differentiable=True)
        if self._closed is None:
            return self.y.rows(self.y.filled(found, "lower"))
        return zero_filled(found, self.y.leaves)

    def _differentiable(self, v: Vector) -> tuple[Vector, Vector]:
        """The parts of ∇y of the rest that can be differentiated once more, and the parts of `v` beside them."""
        pairs = [(d, part) for d, part in zip(self._rest if self._roots else (), v, strict=False) if d.requires_grad]
        return [d for d, _ in pairs], [part for _, part in pairs]


def full_precision(y: LowerVariable) -> AbstractContextManager[None]:
    """Arithmetic in the space of `y` is done in its own precision, also where the step runs under autocast."""
    device = y.leaves[0].device.type
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    off: AbstractContextManager[None] = torch.autocast(device, enabled=False)
    return off
