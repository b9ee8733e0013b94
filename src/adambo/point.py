"""What is known at one point (x, y) for one draw: values, gradients, Hessian products, the hypergradient.

With z ≈ [∇²yy g]⁻¹ ∇y f held fixed, the hypergradient is the plain gradient in x of one scalar,

    S(x) = f(x, y; ξ) − ⟨∇y g(x, y; ζ⁰), z⟩         ∇̂Φ = ∇x S = ∇x f − ∇²xy g z

so it is an ordinary backward pass, and whatever understands `backward()` (DDP, FSDP2, compiled encoders) works.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adambo.captured_losses import Found
from adambo.errors import ProblemError
from adambo.lower_point import LowerPoint
from adambo.products import accumulate, gradient, product, reached_leaves
from adambo.vectors import Vector, added, dot, one, summed, zero_filled, zeros

if TYPE_CHECKING:
    from adambo.problem import Problem


class Point(LowerPoint):
    """Everything is computed when first asked for, once per batch object, and counted in the ledger.

    Made by `problem.at(draw)`. It is valid while `x` and `y` keep their values; `after_move` gives the point at a new
    `y` and the same `x`, where features of an encoder need not be computed again.
    """

    def after_move(self) -> Point:
        """The point with the values that `y` has now."""
        return Point(self.problem, self.draw, self.y, self.encodings, self.ledger, self.masks, self._closed)

    @contextmanager
    def elsewhere(self, x: Sequence[Tensor] | None = None, y: Vector | None = None) -> Iterator[Point]:
        """The same draw at other values, while the block runs; what is asked there must be finished there.

        Args:
            x: Other values for all of `x`, in memory of their own (they are exchanged with the parameters).
            y: Other values for the part of `y` that the draw is about.
        """
        here = None if y is None else self.y.values()
        with nullcontext() if x is None else self.problem.moved_to(x):  # at the same x, running statistics go on
            if y is not None:
                self.y.assign(y)
            encodings = self.encodings if x is None else self.problem.encodings(self.draw, self.masks)
            try:
                closed = self._closed if x is None else None
                yield Point(self.problem, self.draw, self.y, encodings, self.ledger, self.masks, closed)
            finally:
                if here is not None:
                    self.y.assign(here)

    @cached_property
    def f(self) -> Tensor:
        """The upper loss on the upper batch."""
        batch = self._first("upper")
        self.ledger.read("upper", batch)
        found = self._replayed_upper
        return self._evaluate("upper", batch, "features") if found is None else found.loss

    @cached_property
    def _replayed_upper(self) -> Found | None:
        return self.problem.losses.run(
            self, self._first("upper"), "upper", lambda there, _: there._differentiated_upper()
        )

    @cached_property
    def f_y(self) -> Vector:
        """∇y f on the upper batch."""
        self.ledger.grad_y_f += 1
        return self.y.average(self.y.rows(self.y.filled(self._upper.vectors[0], "upper")))

    @cached_property
    def _upper(self) -> Found:
        """f, ∂f/∂y, and the derivatives in the features, which will be asked for."""
        _ = self.f  # counted, however it is found
        return self._replayed_upper or self._differentiated_upper()

    def _differentiated_upper(self) -> Found:
        f = self.f
        cuts = [] if self.encodings is None else list(self.encodings.cuts)
        found = gradient(f, [*self.y.leaves, *(cut.leaf for cut in cuts)], keep_graph=True)
        parts = zip(cuts, found[len(self.y.leaves) :], strict=True)
        behind = summed([(cut.feature, part) for cut, part in parts if part is not None])
        if self.encodings is not None and self._reaches_x(f):
            behind.append((f, one(f)))
        return Found(f.detach(), [found[: len(self.y.leaves)]], behind)

    def replayed(
        self,
        v: Vector,
        step: float | Tensor,
        terms: int,
        solve: Callable[[Point, Vector, Tensor], Vector],
        name: Hashable,
    ) -> Vector | None:
        """z = solve(self, v, step) by a CUDA graph, with all else that a step asks of the lower loss; None without one.

        Args:
            v: ∇y f.
            step: The Neumann step; a tensor, of which a graph reads the value.
            terms: The number of terms: one more than the Hessian products that are made.
            solve: Makes them.
            name: All that it depends on besides its arguments.
        """
        batches = {id(b): b for b in (*self.draw.hessian, *self.draw.cross, *self.draw.lower)}
        if (
            not isinstance(step, Tensor)
            or len(batches) != 1
            or not self.draw.cross
            or len(self.draw.lower) > 1
            or self.y.processes.active
        ):
            return None
        batch = self.draw.cross[0]
        f = self.__dict__.get("f")
        if id(batch) in self._graphs or f is None or f.requires_grad:
            return None  # a graph of autograd is at hand; on another stream, none can be captured beside it

        def lower(there: Point, given: Vector) -> Found:
            z = solve(there, given[1:], given[0])
            behind = zip(*there._cross_behind_features(z), strict=True)
            return Found(there.g, [z, there.lower_gradient()], list(behind))

        found = self.problem.losses.run(self, batch, ("lower", terms, name), lower, [step, *v])
        if found is None:
            return None
        self._replayed, self._losses[id(batch)] = found, found.loss
        if terms > 1:
            self.ledger.read("hessian", batch)
            self.ledger.hessian_vector += terms - 1
        return found.vectors[0]  # type: ignore[return-value]

    def backward(self, z: Vector) -> None:
        """x.grad ← ∇x f − ∇²xy g z, by one backward pass."""
        for p in self.problem.x:
            p.grad = None
        roots, weights = self._surrogate_roots(z)
        # The parameters of FSDP2 are not the leaves of the graph, so naming them would not find them; what a plain
        # backward may leave in y.grad is thrown away.
        accumulate(roots, weights, into=() if self.problem.x_is_sharded else self.problem.x)
        if self.problem.x_is_sharded:
            for leaf in self.y.leaves:
                leaf.grad = None
        untouched = [p for p in self.problem.x if p.grad is None]
        if len(untouched) == len(self.problem.x):
            raise self._nothing_in_x()
        for p in untouched:
            p.grad = torch.zeros_like(p)
        self.problem.average_x()

    @staticmethod
    def _nothing_in_x() -> ProblemError:
        return ProblemError(
            "Neither loss depends on x, so there is no hypergradient. Make sure that a loss uses the parameters "
            "given as x, and that nothing detaches them (torch.no_grad, .detach(), .data)."
        )

    def hypergradient(self, z: Vector, keep_graph: bool = False) -> Vector:
        """∇x f − ∇²xy g z as tensors; `x.grad` keeps what it holds.

        Args:
            z: As in `backward`.
            keep_graph: Whether features are to be differentiated once more, from a point with the same x.
        """
        if self.problem.x_is_sharded:  # FSDP2 reduces and divides gradients in a backward pass only
            kept = [p.grad for p in self.problem.x]
            self.backward(z)
            h = [p.grad for p in self.problem.x if p.grad is not None]
            for p, gradient_before in zip(self.problem.x, kept, strict=True):
                p.grad = gradient_before
            return h
        return self._in_x(*self._surrogate_roots(z), keep_graph)

    @cached_property
    def f_x(self) -> Vector:
        """∇x f on the upper batch."""
        self.ledger.grad_x_f += 1
        if self.encodings is None:
            return self._in_x([self.f], [one(self.f)])
        behind = self._upper.features
        return self._in_x([root for root, _ in behind], [weight for _, weight in behind])

    @cached_property
    def g_x(self) -> Vector:
        """∇x g on the cross batch."""
        batch = self._first("cross")
        self.ledger.read("cross", batch)
        self.ledger.grad_x_g += 1
        g = self._evaluate("lower", batch, "features")
        return self._in_x(*self._behind_features([g], [one(g)]))

    def cross(self, z: Vector) -> Vector:
        """∇²xy g z on the cross batch."""
        return self._in_x(*self._cross_behind_features(z))

    def _in_x(self, roots: Vector, weights: Vector, keep_graph: bool = True) -> Vector:
        """Σ_k weights_k · ∂roots_k/∂x, averaged over processes."""
        if not roots:
            return zeros(self.problem.x)
        found = product(roots, self.problem.x, weights, keep_graph=keep_graph)
        return self.problem.processes.average(zero_filled(found, self.problem.x))

    def surrogate(self, z: Vector) -> Tensor:
        """The scalar S, for those whose framework owns `backward()`."""
        linear = dot(*self._surrogate_roots(z))  # has the derivative of S in x, but not its value
        g_y = self._graph(self._first("cross")).gradient(keep_graph=True)
        return linear - linear.detach() + (self.f.detach() - dot(g_y, z))

    def _surrogate_roots(self, z: Vector) -> tuple[Vector, Vector]:
        """Tensors and weights with ∇x S = Σ_k weights_k · ∂roots_k/∂x."""
        self.ledger.grad_x_f += 1
        roots, weights = self._cross_behind_features(z)
        if self.encodings is None:
            return [self.f, *roots], [one(self.f), *(-weight for weight in weights)]
        cross = {id(root): (root, weight) for root, weight in zip(roots, weights, strict=True)}
        pairs = [
            (root, weight - cross.pop(id(root))[1] if id(root) in cross else weight)
            for root, weight in self._upper.features
        ]
        pairs += [(root, -weight) for root, weight in cross.values()]
        if not pairs:
            raise self._nothing_in_x()
        return [root for root, _ in pairs], [weight for _, weight in pairs]

    def _behind_features(self, roots: Vector, weights: Vector) -> tuple[Vector, Vector]:
        """The same derivative in x, with features as roots instead of what was computed from them."""
        if self.encodings is None or not roots:
            return roots, weights
        cuts = self.encodings.cuts
        found = product(roots, [cut.leaf for cut in cuts], weights) if cuts else ()
        pairs = [(cut.feature, part) for cut, part in zip(cuts, found, strict=True) if part is not None]
        pairs += [(root, weight) for root, weight in zip(roots, weights, strict=True) if self._reaches_x(root)]
        pairs = summed(pairs)
        return [root for root, _ in pairs], [weight for _, weight in pairs]

    def _reaches_x(self, root: Tensor) -> bool:
        """Whether a tensor made of features depends on something else, besides y: on x, past the encoder."""
        assert self.encodings is not None
        known = {id(leaf) for leaf in (*self.y.leaves, *self.problem.y, *(cut.leaf for cut in self.encodings.cuts))}
        return any(id(leaf) not in known for leaf in reached_leaves([root]))

    def _cross_behind_features(self, z: Vector) -> tuple[Vector, Vector]:
        """∇²xy g · z as roots and weights."""
        batch = self._first("cross")
        self.ledger.read("cross", batch)
        self.ledger.cross_vector += 1
        if self._replayed is not None and self._replayed.vectors[0] is z:
            behind = self._replayed.features
            return [root for root, _ in behind], [weight for _, weight in behind]
        return self._behind_features(*self._graph(batch).cross(z))


class SumInX:
    """A sum of hypergradients at points with one x.

    Where losses reach x through an encoder alone, all that a point has to add is numbers at its features, and one
    backward pass for all points leads from there to x.

    Args:
        problem: Whose x.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._there = zeros(problem.x)
        self._behind: list[tuple[Tensor, Tensor]] = []

    def add(self, point: Point, z: Vector, factor: float = 1.0) -> None:
        """factor · (∇x f − ∇²xy g z) at `point`; y may move then."""
        if self._problem.x_is_sharded or point.encodings is None:
            self._there = added(self._there, point.hypergradient(z), factor)
            return
        pairs = list(zip(*point._surrogate_roots(z), strict=True))
        features = {id(cut.feature) for cut in point.encodings.cuts}
        past_encoder = [(root, weight) for root, weight in pairs if id(root) not in features]
        if past_encoder:  # their graphs have y in them
            roots, weights = zip(*past_encoder, strict=True)
            self._there = added(self._there, point._in_x(list(roots), list(weights)), factor)
        self._behind += [(root, weight * factor) for root, weight in pairs if id(root) in features]

    def total(self) -> Vector:
        if not self._behind:
            return self._there
        roots, weights = zip(*summed(self._behind), strict=True)
        found = product(roots, self._problem.x, weights, keep_graph=False)
        return added(self._there, self._problem.processes.average(zero_filled(found, self._problem.x)))
