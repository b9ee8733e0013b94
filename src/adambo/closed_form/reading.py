"""Finding closed forms in the graph of a loss.

Autograd's graph says exactly what was computed, whichever way the loss was written: `nn.Linear`, `einsum` and `baddbmm`
end in the same few nodes. From the loss downwards the reader walks through what is linear (sums, means, constants times
something, the choice of the right class) to the first curved node; if that is one of `_CURVED`, of something affine in
`y`, it is a term in closed form. Everything else is left to autograd. A node that is not known here is never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from adambo.closed_form.affine import (
    Added,
    Affine,
    Expanded,
    Leaf,
    Operand,
    Permuted,
    Product,
    ProductWithVector,
    Reshaped,
    Scaled,
)
from adambo.closed_form.curved import BinaryCrossEntropy, Curved, LogSoftmax, Square
from adambo.closed_form.form import ClosedForm, SquaredNorm, Term
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
        return _Reader(y).read(loss)
    except (_Unknown, RecursionError):
        return None


class _Unknown(Exception):
    """Something in the graph that has no closed form here."""


class _Reader:
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
        if self._meets(behind, {*self.walked, *self.curved, *self.rest}):
            return None
        for node, affine in list(self.curved.items()):
            if isinstance(affine, Leaf) and _is_square(node) and (factor := self._factor(node)) is not None:
                norms.append(SquaredNorm(affine.index, 2 * factor))
                del self.curved[node]
        edges = [GradientEdge(node, 0) for node in (*self.curved, *self.rest)]
        weights = self._derivatives(loss, edges)
        terms = []
        for (node, affine), c in zip(self.curved.items(), weights, strict=False):
            if isinstance(affine, Leaf) and _is_square(node):
                norms.append(SquaredNorm(affine.index, 2 * c))
            else:
                terms.append(Term(_CURVED[node.name()](node, c.to(self.y[0].dtype)), affine))
        values = [leaf.detach() for leaf in self.y]
        return Reading(ClosedForm(terms, norms, values), edges[len(self.curved) :], weights[len(self.curved) :])

    def _raise_rest(self) -> None:
        """Let autograd begin above what is linear in the rest alone: at the mean of its losses, not at each of them."""
        for node in list(self.rest):
            top = node
            while len(above := self.above.get(top, [])) == 1 and above[0][0].name() not in _SUMS:
                top = above[0][0]
            if top is not node:
                del self.rest[node]
                self.rest[top] = None
                while node is not top:
                    node = self.above[node][0][0]
                    self.walked.discard(node)

    def _derivatives(self, loss: Tensor, edges: list[GradientEdge]) -> Vector:
        """Of the loss in these nodes; autograd is not asked for what is the number 1."""
        if all(edge.node in self.rest and not _shape(edge.node) and self._factor(edge.node) == 1 for edge in edges):
            return [one(loss)] * len(edges)
        found = product((loss,), edges, (one(loss),))  # type: ignore[arg-type]
        return [c for c in found if c is not None]  # all: each node was met on the way down from the loss

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
        if name in _SUMS or (name in _LINEAR and len(given) == 1 and _is_linear_in_its_input(node)):
            self.walked.add(node)
            if len(self.walked) > FARTHEST:
                raise _Unknown("too many terms")
            for place, (source, output) in enumerate(node.next_functions):
                if source is not None:
                    if output:
                        raise _Unknown("one of several outputs")
                    self.above.setdefault(source, []).append((node, _number(node, place)))
            for source in given:
                self._walk(source)
        elif name in _CURVED and (affine := self._curved_of(node)) is not None:
            self.curved[node] = affine
        elif name == "MulBackward0" and (weighed := self._weighed_square(node)) is not None:
            self.weighed[node] = weighed
        elif hasattr(node, "variable"):
            if id(node.variable) in self.index:
                raise _Unknown("linear in y")
        else:
            self.rest[node] = None

    def _weighed_square(self, node: Node) -> tuple[Leaf, Node, Tensor] | None:
        """Of a product of something that depends on x with the square of a leaf: leaf, square and something."""
        for place, (square, _) in enumerate(node.next_functions):
            weight = node._saved_other if place == 0 else node._saved_self
            if square is None or weight is None or not _is_square(square):
                continue
            affine = self._curved_of(square)
            if (
                isinstance(affine, Leaf)
                and weight.dtype == self.y[0].dtype
                and _shape(node) == affine.shape
                and not self._meets([node.next_functions[1 - place][0]])
            ):
                return affine, square, weight
        return None

    def _curved_of(self, node: Node) -> Affine | None:
        first, *others = node.next_functions
        if not self._is_precise(node) or first[0] is None:
            return None
        if node.name() in _SQUARES:
            if not _is_square(node):
                return None
        elif any(other is not None for other, _ in others):
            return None  # targets that depend on y or x
        try:
            return self.affine(first)
        except _Unknown:
            return None

    def affine(self, edge: tuple[Node, int]) -> Affine:
        node, place = edge
        if hasattr(node, "variable"):
            index = self.index.get(id(node.variable))
            if index is None:
                raise _Unknown("a parameter of x")
            return Leaf(index, node.variable.shape)
        reader = _AFFINE.get(node.name())
        if reader is None or place != 0 or not self._is_precise(node):
            raise _Unknown(node.name())
        return reader(self, node)

    def _is_precise(self, node: Node) -> bool:
        """Whether a tensor is in the precision of y, or in the lower one of autocast, and not in a higher one."""
        dtype = node._input_metadata[0].dtype
        return bool(dtype == self.y[0].dtype or torch.promote_types(dtype, self.y[0].dtype) == self.y[0].dtype)

    def only_source(self, node: Node) -> Affine:
        """Of an operation on one tensor, which may have constants as further arguments."""
        first, *others = node.next_functions
        if first[0] is None or any(other is not None for other, _ in others):
            raise _Unknown("no single source")
        return self.affine(first)

    def product(self, node: Node, names: tuple[str, str], offset: int | None) -> Affine:
        """A matrix product, of which one factor is affine in y and the other does not depend on y."""
        edges = node.next_functions
        factors = edges if offset is None else edges[1:]
        sides = [k for k, (source, _) in enumerate(factors) if source is not None and self._meets([source])]
        if len(sides) != 1:
            raise _Unknown("no single factor from y")
        mine = sides[0]
        operand, source = getattr(node, names[1 - mine]), self.affine(factors[mine])
        if operand is None or source.has_constant:
            raise _Unknown("a factor that is not known")
        beside = _operand(operand, self.y[0].dtype)
        if offset is None:
            return Product(source, beside, mine == 1, _shape(node))
        added = None if edges[offset][0] is None else self.affine(edges[offset])
        scale, offset_scale = float(node._saved_alpha), float(node._saved_beta)
        return Product(source, beside, mine == 1, _shape(node), scale, added, offset_scale, added is None)

    def _meets(self, starts: Iterable[Node], nodes: set[Node] | None = None) -> bool:
        """Whether one of `nodes` (if not given: a leaf of y) lies behind one of `starts`."""
        seen, waiting = set(), list(starts)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > FARTHEST:
                raise _Unknown("too far to see")
            if node in nodes if nodes is not None else id(getattr(node, "variable", None)) in self.index:
                return True
            waiting += [source for source, _ in node.next_functions if source is not None]
        return False


def _shape(node: Node) -> torch.Size:
    return torch.Size(node._input_metadata[0].shape)


def _operand(tensor: Tensor, dtype: torch.dtype) -> Operand:
    return Operand(tensor.detach().to(dtype), tensor if tensor.requires_grad else None)


def _number(node: Node, place: int) -> float | None:
    """What a linear node multiplies its source number `place` with, if it is one number that is known on the host."""
    name = node.name()
    if name in ("AddBackward0", "SubBackward0") and _shape(node.next_functions[place][0]) != _shape(node):
        return None  # it was spread over a larger shape
    if name in _SUMS:
        sign = -1.0 if name == "SubBackward0" else 1.0
        return sign * float(node._saved_alpha) if place == 1 and name != "StackBackward0" else 1.0
    if name in ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"):
        other = node._saved_self if name == "MulBackward0" and place == 1 else node._saved_other
        if isinstance(other, Tensor):
            other = _item(other) if other.dim() == 0 and other.device.type == "cpu" else None
        return None if other is None else float(1 / other if name.startswith("Div") else other)
    if name == "MeanBackward0":
        return float(1 / math.prod(node._saved_self_sym_sizes))
    if name == "NegBackward0":
        return -1.0
    return 1.0 if name == "SumBackward0" or name in _SAME or name in _RESHAPED else None


def _item(number: Tensor) -> float:
    with torch._C._DisableTorchDispatch():  # a number that was wrapped into a tensor has no dispatch of its own
        return float(number.item())


def _signed(number: int) -> int:
    """Saved axes are shown without their sign."""
    return number - 2**64 if number >= 2**63 else number


def _is_square(node: Node) -> bool:
    if node.name() == "PowBackward0":
        return bool(node._saved_exponent == 2)
    return bool(node.name() == "MulBackward0" and node.next_functions[0] == node.next_functions[1])


def _is_linear_in_its_input(node: Node) -> bool:
    """Of a node with one source: that it is not, for example, what a constant is divided by."""
    return node.name() == "MulBackward0" or node.next_functions[0][0] is not None


_SAME = {"CloneBackward0", "AliasBackward0", "ToCopyBackward0", "ContiguousBackward0"}
_RESHAPED = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0"}
_RESHAPED |= {"SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2"}
_PERMUTED = {"TBackward0", "TransposeBackward0", "PermuteBackward0"}
_SUMS = {"AddBackward0", "SubBackward0", "StackBackward0"}
_LINEAR = {"NegBackward0", "MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1", "SumBackward0"}
_LINEAR |= {"SumBackward1", "MeanBackward0", "MeanBackward1", "NllLossBackward0", "NllLoss2DBackward0"}
_LINEAR |= {"SliceBackward0", "SelectBackward0", "IndexSelectBackward0", "GatherBackward0", "MaskedFillBackward0"}
_LINEAR |= {"ExpandBackward0", *_SAME, *_RESHAPED, *_PERMUTED}


def _permutation(node: Node, dims: int) -> list[int]:
    order = list(range(dims))
    if node.name() == "PermuteBackward0":
        return [_signed(d) for d in node._saved_dims]
    first, second = (0, 1) if node.name() == "TBackward0" else (_signed(node._saved_dim0), _signed(node._saved_dim1))
    if dims > 1:  # .t() of a vector is the vector
        order[first], order[second] = order[second], order[first]
    return order


def _added(reader: _Reader, node: Node) -> Affine:
    factors = [1.0, float(node._saved_alpha) * (-1 if node.name() == "SubBackward0" else 1)]
    found = [(edge, factor) for edge, factor in zip(node.next_functions, factors, strict=False) if edge[0] is not None]
    sources = [reader.affine(edge) for edge, _ in found]
    return Added(sources, [factor for _, factor in found], _shape(node), len(found) < 2)


def _scaled(reader: _Reader, node: Node) -> Affine:
    name, edges = node.name(), node.next_functions
    if name == "NegBackward0":
        return Scaled(reader.only_source(node), _shape(node), -1.0)
    if name == "MulBackward0" and edges[0][0] is None:
        return Scaled(reader.affine(edges[1]), _shape(node), node._saved_self.to(reader.y[0].dtype))
    factor = node._saved_other
    source = reader.only_source(node)
    if isinstance(factor, Tensor):
        scalar = factor.dim() == 0 and factor.device.type == "cpu"
        factor = _item(factor) if scalar else factor.to(reader.y[0].dtype)
    return Scaled(source, _shape(node), 1 / factor if name.startswith("Div") else factor)


def _in_shape(kind: type[Reshaped | Expanded], reader: _Reader, node: Node) -> Affine:
    source, shape = reader.only_source(node), _shape(node)
    return source if source.shape == shape else kind(source, shape)


def _permuted(reader: _Reader, node: Node) -> Affine:
    source = reader.only_source(node)
    return Permuted(source, _shape(node), _permutation(node, len(source.shape)))


def _with_vector(reader: _Reader, node: Node) -> Affine:
    matrix, vector = node.next_functions
    if vector[0] is None or (matrix[0] is not None and reader._meets([matrix[0]])):
        raise _Unknown("no vector of y")
    source = reader.affine(vector)
    if node._saved_self is None or source.has_constant:
        raise _Unknown("a factor that is not known")
    return ProductWithVector(source, _operand(node._saved_self, reader.y[0].dtype), _shape(node))


_AFFINE: dict[str, Callable[[_Reader, Node], Affine]] = {
    **dict.fromkeys(_SAME, lambda reader, node: reader.only_source(node)),
    **dict.fromkeys(_RESHAPED, lambda reader, node: _in_shape(Reshaped, reader, node)),
    **dict.fromkeys(_PERMUTED, _permuted),
    **dict.fromkeys(("AddBackward0", "SubBackward0"), _added),
    **dict.fromkeys(("NegBackward0", "MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"), _scaled),
    "ExpandBackward0": lambda reader, node: _in_shape(Expanded, reader, node),
    "MmBackward0": lambda reader, node: reader.product(node, ("_saved_self", "_saved_mat2"), None),
    "BmmBackward0": lambda reader, node: reader.product(node, ("_saved_self", "_saved_mat2"), None),
    "AddmmBackward0": lambda reader, node: reader.product(node, ("_saved_mat1", "_saved_mat2"), 0),
    "BaddbmmBackward0": lambda reader, node: reader.product(node, ("_saved_batch1", "_saved_batch2"), 0),
    "MvBackward0": _with_vector,
}


def _log_softmax(node: Node, c: Tensor) -> Curved:
    return LogSoftmax(_values(node._saved_result, c), c, _signed(node._saved_dim))


def _square(node: Node, c: Tensor) -> Curved:
    # A copy: what was squared may be a view of y, which moves.
    return Square(_values(node._saved_self, c).clone(), c)


def _squared_error(node: Node, c: Tensor) -> Curved:
    return Square(_values(node._saved_self, c) - _values(node._saved_target, c), _per_element(node, c))


def _binary_cross_entropy(node: Node, c: Tensor) -> Curved:
    c = _per_element(node, c)
    c = c if node._saved_weight is None else c * node._saved_weight.to(c.dtype)
    positive = None if node._saved_pos_weight is None else _values(node._saved_pos_weight, c)
    # A copy: the argument may be a view of y, which moves.
    return BinaryCrossEntropy(_values(node._saved_self, c).clone(), _values(node._saved_target, c), c, positive)


def _values(tensor: Tensor, like: Tensor) -> Tensor:
    """Without a graph, and in the precision of `y` where autocast has used less."""
    return tensor.detach().to(like.dtype)


def _per_element(node: Node, c: Tensor) -> Tensor:
    """The derivative in the loss of each element, before they were averaged (reduction 1) or added."""
    return c / node._saved_self.numel() if node._saved_reduction == 1 else c


_SQUARES = ("PowBackward0", "MulBackward0")
_CURVED: dict[str, Callable[[Node, Tensor], Curved]] = {
    "LogSoftmaxBackward0": _log_softmax,
    **dict.fromkeys(_SQUARES, _square),
    "MseLossBackward0": _squared_error,
    "BinaryCrossEntropyWithLogitsBackward0": _binary_cross_entropy,
}
