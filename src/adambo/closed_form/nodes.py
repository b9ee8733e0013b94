"""What the nodes of autograd's graph mean for a closed form: which are linear, affine in `y`, or curved.

Names and saved tensors of nodes are those of torch; one that is not in these tables is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adambo.closed_form.affine import (
    Added,
    Affine,
    Expanded,
    Operand,
    Permuted,
    ProductWithVector,
    Reshaped,
    Scaled,
)
from adambo.closed_form.curved import BinaryCrossEntropy, Curved, LogSoftmax, Square

if TYPE_CHECKING:
    from adambo.closed_form.reading import Reader

Node = Any


class Unknown(Exception):
    """Something in the graph that has no closed form here."""


def shape_of(node: Node) -> torch.Size:
    return torch.Size(node._input_metadata[0].shape)


def operand_of(tensor: Tensor, dtype: torch.dtype) -> Operand:
    return Operand(tensor.detach().to(dtype), tensor if tensor.requires_grad else None)


def number_of(node: Node, place: int) -> float | None:
    """What a linear node multiplies its source number `place` with, if it is one number that is known on the host."""
    name = node.name()
    if name in ("AddBackward0", "SubBackward0") and shape_of(node.next_functions[place][0]) != shape_of(node):
        return None  # it was spread over a larger shape
    if name in SUMS:
        sign = -1.0 if name == "SubBackward0" else 1.0
        return sign * float(node._saved_alpha) if place == 1 and name != "StackBackward0" else 1.0
    if name in ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"):
        other = node._saved_self if name == "MulBackward0" and place == 1 else node._saved_other
        if isinstance(other, Tensor):
            other = host_number(other) if other.dim() == 0 and other.device.type == "cpu" else None
        return None if other is None else float(1 / other if name.startswith("Div") else other)
    if name in ("MeanBackward0", "MeanBackward1"):
        return float(shape_of(node).numel() / max(1, math.prod(node._saved_self_sym_sizes)))
    if name == "NegBackward0":
        return -1.0
    return 1.0 if name in _UNCHANGED else None


def filled(node: Node, number: float) -> Tensor:
    """A derivative that is the same for all elements of a node's result."""
    result = node._input_metadata[0]
    return torch.full(result.shape, number, dtype=result.dtype, device=result.device)


@torch.no_grad()
def before_choice(node: Node, derivative: Tensor) -> Tensor:
    """The derivative in what one of `CHOICES` was made from: what autograd would do there."""
    values, target, weight = node._saved_self, node._saved_target, node._saved_weight
    ignored = _signed(node._saved_ignore_index)
    backward: Any = CHOICES[node.name()]
    found: Tensor = backward(
        derivative, values, target, weight, node._saved_reduction, ignored, node._saved_total_weight
    )
    return found


def host_number(number: Tensor) -> float:
    with torch._C._DisableTorchDispatch():  # a number that was wrapped into a tensor has no dispatch of its own
        return float(number.item())


def _signed(number: int) -> int:
    """Saved axes are shown without their sign."""
    return number - 2**64 if number >= 2**63 else number


def is_square(node: Node) -> bool:
    if node.name() == "PowBackward0":
        return bool(node._saved_exponent == 2)
    return bool(node.name() == "MulBackward0" and node.next_functions[0] == node.next_functions[1])


def is_linear_in_its_input(node: Node) -> bool:
    """Of a node with one source: that it is not, for example, what a constant is divided by."""
    return node.name() == "MulBackward0" or node.next_functions[0][0] is not None


_SAME = {"CloneBackward0", "AliasBackward0", "ToCopyBackward0", "ContiguousBackward0"}
RESHAPED = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0"}
RESHAPED |= {"SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2"}
_PERMUTED = {"TBackward0", "TransposeBackward0", "PermuteBackward0"}
_UNCHANGED = {"SumBackward0", "SumBackward1", *_SAME, *RESHAPED, *_PERMUTED}
CHOICES = {  # of the right class
    "NllLossBackward0": torch.ops.aten.nll_loss_backward.default,
    "NllLoss2DBackward0": torch.ops.aten.nll_loss2d_backward.default,
}
SUMS = {"AddBackward0", "SubBackward0", "StackBackward0"}
LINEAR = {"NegBackward0", "MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1", "SumBackward0"}
LINEAR |= {"SumBackward1", "MeanBackward0", "MeanBackward1", *CHOICES}
LINEAR |= {"SliceBackward0", "SelectBackward0", "IndexSelectBackward0", "GatherBackward0", "MaskedFillBackward0"}
LINEAR |= {"ExpandBackward0", *_SAME, *RESHAPED, *_PERMUTED}


def _permutation(node: Node, dims: int) -> list[int]:
    order = list(range(dims))
    if node.name() == "PermuteBackward0":
        return [_signed(d) for d in node._saved_dims]
    first, second = (0, 1) if node.name() == "TBackward0" else (_signed(node._saved_dim0), _signed(node._saved_dim1))
    if dims > 1:  # .t() of a vector is the vector
        order[first], order[second] = order[second], order[first]
    return order


def _added(reader: Reader, node: Node) -> Affine:
    factors = [1.0, float(node._saved_alpha) * (-1 if node.name() == "SubBackward0" else 1)]
    found = [(edge, factor) for edge, factor in zip(node.next_functions, factors, strict=False) if edge[0] is not None]
    sources = [reader.affine(edge) for edge, _ in found]
    return Added(sources, [factor for _, factor in found], shape_of(node), len(found) < 2)


def _scaled(reader: Reader, node: Node) -> Affine:
    name, edges = node.name(), node.next_functions
    if name == "NegBackward0":
        return Scaled(reader.only_source(node), shape_of(node), -1.0)
    if name == "MulBackward0" and edges[0][0] is None:
        return Scaled(reader.affine(edges[1]), shape_of(node), node._saved_self.to(reader.y[0].dtype))
    factor = node._saved_other
    source = reader.only_source(node)
    if isinstance(factor, Tensor):
        scalar = factor.dim() == 0 and factor.device.type == "cpu"
        factor = host_number(factor) if scalar else factor.to(reader.y[0].dtype)
    return Scaled(source, shape_of(node), 1 / factor if name.startswith("Div") else factor)


def _in_shape(kind: type[Reshaped | Expanded], reader: Reader, node: Node) -> Affine:
    source, shape = reader.only_source(node), shape_of(node)
    return source if source.shape == shape else kind(source, shape)


def _permuted(reader: Reader, node: Node) -> Affine:
    source = reader.only_source(node)
    return Permuted(source, shape_of(node), _permutation(node, len(source.shape)))


def _with_vector(reader: Reader, node: Node) -> Affine:
    matrix, vector = node.next_functions
    if vector[0] is None or (matrix[0] is not None and reader.meets([matrix[0]])):
        raise Unknown("no vector of y")
    source = reader.affine(vector)
    if node._saved_self is None or source.has_constant:
        raise Unknown("a factor that is not known")
    return ProductWithVector(source, operand_of(node._saved_self, reader.y[0].dtype), shape_of(node))


AFFINE: dict[str, Callable[[Reader, Node], Affine]] = {
    **dict.fromkeys(_SAME, lambda reader, node: reader.only_source(node)),
    **dict.fromkeys(RESHAPED, lambda reader, node: _in_shape(Reshaped, reader, node)),
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


SQUARES = ("PowBackward0", "MulBackward0")
CURVED: dict[str, Callable[[Node, Tensor], Curved]] = {
    "LogSoftmaxBackward0": _log_softmax,
    **dict.fromkeys(SQUARES, _square),
    "MseLossBackward0": _squared_error,
    "BinaryCrossEntropyWithLogitsBackward0": _binary_cross_entropy,
}
