"""Finding closed forms in the graph of a loss.

Autograd's graph says exactly what was computed, whichever way the loss was written: `nn.Linear`, `einsum` and `baddbmm`
end in the same few nodes. From the loss downwards the reader walks through what is linear (sums, means, constants times
something, the choice of the right class) to the first curved node; if that is one of `nodes.CURVED`, of something
affine in `y`, it is a term in closed form. Everything else is left to autograd. A node that is not known is never
guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from adambo.closed_form.affine import Affine, Leaf, Product
from adambo.closed_form.form import ClosedForm, SquaredNorm, Term
from adambo.closed_form.nodes import (
    AFFINE,
    CHOICES,
    CURVED,
    LINEAR,
    RESHAPED,
    SQUARES,
    SUMS,
    Unknown,
    before_choice,
    filled,
    is_linear_in_its_input,
    is_square,
    number_of,
    operand_of,
    shape_of,
)
from adambo.products import product
from adambo.vectors import Vector, one

Node = Any
FARTHEST = 300  # nodes that are looked at in search of y; beyond, a loss is left to autograd


@dataclass(frozen=True)
class Reading:
    """A loss, taken apart.

    Attributes:
        closed: The terms whose derivatives are known.
        rest: Nodes of the graph that autograd has to differentiate.
        weights: The derivatives of the loss in them.
    """

    closed: ClosedForm
    rest: Sequence[GradientEdge]
    weights: Vector


def read(loss: Tensor, y: Vector) -> Reading | None:
    """The closed forms in `loss`; None where there are none.

    Args:
        loss: A scalar with a graph.
        y: The leaves in which it is to be differentiated.

    Example:
        >>> y = torch.tensor([1.0, -2.0], requires_grad=True)
        >>> reading = read(0.5 * y.square().sum(), [y])
        >>> reading.closed.hessian([torch.tensor([3.0, 0.0])]), len(reading.rest)
        ([tensor([3., 0.])], 0)
    """
    try:
        return Reader(y).read(loss)
    except (Unknown, RecursionError):
        return None


class Reader:
    def __init__(self, y: Vector) -> None:
        self.y = y
        self.index = {id(leaf): k for k, leaf in enumerate(y)}
        self.walked: set[Node] = set()
        self.above: dict[Node, list[tuple[Node, float | None]]] = {}
        self.factors: dict[Node, float | None] = {}
        self.curved: dict[Node, Affine] = {}
        self.weighed: dict[Node, tuple[Leaf, Node, Tensor]] = {}
        self.rest: dict[Node, None] = {}

    def read(self, loss: Tensor) -> Reading | None:
        if len({leaf.dtype for leaf in self.y}) > 1 or loss.grad_fn is None:
            return None
        if any(leaf._backward_hooks for leaf in self.y):
            return None  # autograd alone knows when they run
        self._walk(loss.grad_fn)
        squares = {square for _, square, _ in self.weighed.values()}
        if not (self.curved or self.weighed) or squares & (self.curved.keys() | self.walked):
            return None
        norms: list[SquaredNorm] = []
        for node, (leaf, _, weight) in self.weighed.items():
            factor = self._factor(node)
            if factor is None:
                self.rest[node] = None
            else:
                norms.append(SquaredNorm(leaf.index, 2 * factor * weight.detach(), weight, factor))
        self._raise_rest()
        behind = [source for node in self.rest for source, _ in node.next_functions if source is not None]
        if self.meets(behind, {*self.walked, *self.curved, *self.rest}):
            return None
        for node, affine in list(self.curved.items()):
            if isinstance(affine, Leaf) and is_square(node) and (factor := self._factor(node)) is not None:
                norms.append(SquaredNorm(affine.index, 2 * factor))
                del self.curved[node]
        edges = [GradientEdge(node, 0) for node in (*self.curved, *self.rest)]
        weights = self._derivatives(loss, edges)
        terms = []
        for (node, affine), c in zip(self.curved.items(), weights, strict=False):
            if isinstance(affine, Leaf) and is_square(node):
                norms.append(SquaredNorm(affine.index, 2 * c))
            else:
                terms.append(Term(CURVED[node.name()](node, c.to(self.y[0].dtype)), affine))
        values = [leaf.detach() for leaf in self.y]
        return Reading(ClosedForm(terms, norms, values), edges[len(self.curved) :], weights[len(self.curved) :])

    def _raise_rest(self) -> None:
        """Let autograd begin above what is linear in the rest alone: at the mean of its losses, not at each of them."""
        for node in list(self.rest):
            top = node
            while len(above := self.above.get(top, [])) == 1 and above[0][0].name() not in SUMS:
                top = above[0][0]
            if top is not node:
                del self.rest[node]
                self.rest[top] = None
                while node is not top:
                    node = self.above[node][0][0]
                    self.walked.discard(node)

    def _derivatives(self, loss: Tensor, edges: list[GradientEdge]) -> Vector:
        """Of the loss in these nodes; autograd is not asked for what is known."""
        known = [c for edge in edges if (c := self._known_derivative(edge.node, loss)) is not None]
        if len(known) == len(edges):
            return known
        found = product((loss,), edges, (one(loss),))  # type: ignore[arg-type]
        return [c for c in found if c is not None]  # all: each node was met on the way down from the loss

    def _known_derivative(self, node: Node, loss: Tensor) -> Tensor | None:
        if (factor := self._factor(node)) is not None:
            return one(loss) if factor == 1 and not shape_of(node) else filled(node, factor)
        choice = node  # of the right class, perhaps in another shape
        while len(above := self.above.get(choice, [])) == 1 and (choice is node or choice.name() in RESHAPED):
            choice = above[0][0]
        if choice.name() not in CHOICES or (factor := self._factor(choice)) is None:
            return None
        return before_choice(choice, filled(choice, factor)).view(shape_of(node))

    def _factor(self, node: Node) -> float | None:
        """What the loss multiplies the node with, if that is one number and known without asking a device."""
        if node not in self.factors:
            total: float | None = 0.0 if node in self.above else 1.0  # the loss itself
            for above, factor in self.above.get(node, ()):
                outer = None if factor is None else self._factor(above)
                total = None if total is None or factor is None or outer is None else total + outer * factor
            self.factors[node] = total
        return self.factors[node]

    def _walk(self, node: Node) -> None:
        """Go down from the loss through what is linear."""
        if node in self.walked or node in self.curved or node in self.weighed or node in self.rest:
            return
        name, given = node.name(), [source for source, _ in node.next_functions if source is not None]
        if name in SUMS or (name in LINEAR and len(given) == 1 and is_linear_in_its_input(node)):
            self.walked.add(node)
            if len(self.walked) > FARTHEST:
                raise Unknown("too many terms")
            for place, (source, output) in enumerate(node.next_functions):
                if source is not None:
                    if output:
                        raise Unknown("one of several outputs")
                    self.above.setdefault(source, []).append((node, number_of(node, place)))
            for source in given:
                self._walk(source)
        elif name in CURVED and (affine := self._curved_of(node)) is not None:
            self.curved[node] = affine
        elif name == "MulBackward0" and (weighed := self._weighed_square(node)) is not None:
            self.weighed[node] = weighed
        elif hasattr(node, "variable"):
            if id(node.variable) in self.index:
                raise Unknown("linear in y")
        else:
            self.rest[node] = None

    def _weighed_square(self, node: Node) -> tuple[Leaf, Node, Tensor] | None:
        """Of a product of something that depends on x with the square of a leaf: leaf, square and something."""
        for place, (square, _) in enumerate(node.next_functions):
            weight = node._saved_other if place == 0 else node._saved_self
            if square is None or weight is None or not is_square(square):
                continue
            affine = self._curved_of(square)
            if (
                isinstance(affine, Leaf)
                and weight.dtype == self.y[0].dtype
                and shape_of(node) == affine.shape
                and not self.meets([node.next_functions[1 - place][0]])
            ):
                return affine, square, weight
        return None

    def _curved_of(self, node: Node) -> Affine | None:
        first, *others = node.next_functions
        if not self._is_precise(node) or first[0] is None:
            return None
        if node.name() in SQUARES:
            if not is_square(node):
                return None
        elif any(other is not None for other, _ in others):
            return None  # targets that depend on y or x
        try:
            return self.affine(first)
        except Unknown:
            return None

    def affine(self, edge: tuple[Node, int]) -> Affine:
        node, place = edge
        if hasattr(node, "variable"):
            index = self.index.get(id(node.variable))
            if index is None:
                raise Unknown("a parameter of x")
            return Leaf(index, node.variable.shape)
        reader = AFFINE.get(node.name())
        if reader is None or place != 0 or not self._is_precise(node):
            raise Unknown(node.name())
        return reader(self, node)

    def _is_precise(self, node: Node) -> bool:
        """Whether a tensor is in the precision of y, or in the lower one of autocast, and not in a higher one."""
        dtype = node._input_metadata[0].dtype
        return bool(dtype == self.y[0].dtype or torch.promote_types(dtype, self.y[0].dtype) == self.y[0].dtype)

    def only_source(self, node: Node) -> Affine:
        """Of an operation on one tensor, which may have constants as further arguments."""
        first, *others = node.next_functions
        if first[0] is None or any(other is not None for other, _ in others):
            raise Unknown("no single source")
        return self.affine(first)

    def product(self, node: Node, names: tuple[str, str], offset: int | None) -> Affine:
        """A matrix product, of which one factor is affine in y and the other does not depend on y."""
        edges = node.next_functions
        factors = edges if offset is None else edges[1:]
        sides = [k for k, (source, _) in enumerate(factors) if source is not None and self.meets([source])]
        if len(sides) != 1:
            raise Unknown("no single factor from y")
        mine = sides[0]
        operand, source = getattr(node, names[1 - mine]), self.affine(factors[mine])
        if operand is None or source.has_constant:
            raise Unknown("a factor that is not known")
        beside = operand_of(operand, self.y[0].dtype)
        if offset is None:
            return Product(source, beside, mine == 1, shape_of(node))
        added = None if edges[offset][0] is None else self.affine(edges[offset])
        scale, offset_scale = float(node._saved_alpha), float(node._saved_beta)
        return Product(source, beside, mine == 1, shape_of(node), scale, added, offset_scale, added is None)

    def meets(self, starts: Iterable[Node], nodes: set[Node] | None = None) -> bool:
        """Whether one of `nodes` (if not given: a leaf of y) lies behind one of `starts`."""
        seen, waiting = set(), list(starts)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > FARTHEST:
                raise Unknown("too far to see")
            if node in nodes if nodes is not None else id(getattr(node, "variable", None)) in self.index:
                return True
            waiting += [source for source, _ in node.next_functions if source is not None]
        return False
