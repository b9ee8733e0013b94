"""Many gradient steps on a linear head at once.

For a loss that is one curved function of one matrix product, plus L2 terms, a step of plain gradient descent is two
matrix products and the slope between them. Weights and biases are kept as one matrix [W | b] beside features [Φ | 1]:

    L = K + [Φ | 1] [W | b]ᵀ        [W | b] ← (1 − γμ) [W | b] − γ slope(L)ᵀ [Φ | 1]

so that many steps are a short list of kernels, which on CUDA a graph launches at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from adambo.closed_form.affine import Affine, Expanded, Leaf, Permuted, Product, Reshaped, add_product, add_product_
from adambo.closed_form.curved import Curved
from adambo.closed_form.form import ClosedForm
from adambo.closed_form.programmes import Programmes
from adambo.vectors import Vector

ALIGNED = 8  # columns of [Φ | 1] are filled up to a multiple of this, as matrix units like it


def descended(form: ClosedForm, rate: float, steps: int, programmes: Programmes) -> Vector | None:
    """`y` after so many steps of size `rate` from where it is; None where `form` is no linear head."""
    head = _recognised(form)
    if head is None:
        return None
    inputs = [head.matrix(form.y), *head.sides(form.y), *head.curved.constants]

    def run(tensors: Vector) -> Vector:
        return [head.run(tensors, rate, steps)]

    (matrix,) = programmes.run(("descent", form.form, rate, steps), run, inputs) or run(inputs)
    return head.parts(matrix, form.y)


@dataclass(frozen=True)
class _Head:
    """The argument of `curved` is the product of features and weights, plus biases, in another layout (`lifts`)."""

    curved: Curved
    product: Product
    lifts: Sequence[Reshaped | Permuted]
    weights: int
    biases: int | None
    decays: tuple[float, ...]  # the factors of L2, one per tensor of y

    def matrix(self, y: Vector) -> Tensor:
        """[W | b], with zeros behind."""
        weights = y[self.weights]
        if self.biases is None:
            return weights
        *lead, width = weights.shape
        columns = weights.new_zeros((*lead, _aligned(width + 1)))
        columns[..., :width] = weights
        columns[..., width] = y[self.biases].reshape(lead)
        return columns

    def parts(self, matrix: Tensor, y: Vector) -> Vector:
        """The inverse of `matrix`."""
        width = y[self.weights].shape[-1]
        found = {self.weights: matrix[..., :width]}
        if self.biases is not None:
            found[self.biases] = matrix[..., width].reshape(y[self.biases].shape)
        return [found[k] for k in range(len(y))]

    def sides(self, y: Vector) -> list[Tensor]:
        """[Φ | 1] with zeros behind, and K."""
        features = self.product.operand.matrix
        features = features if self.product.operand_first else features.mT
        if self.biases is not None:
            *lead, width = features.shape
            columns = features.new_zeros((*lead, _aligned(width + 1)))
            columns[..., :width] = features
            columns[..., width] = 1
            features = columns
        constant = self._lower(self.curved.a) - self.product.change(y)
        return [features.contiguous(), constant.contiguous()]

    def run(self, inputs: Sequence[Tensor], rate: float, steps: int) -> Tensor:
        """The steps: a function of the values of `inputs` alone, besides the form of the loss."""
        matrix, features, constant, *constants = inputs
        same = len(set(self.decays)) == 1
        decay = None
        if not same and self.biases is not None:
            width = self.product.operand.matrix.shape[-1 if self.product.operand_first else -2]
            decay = matrix.new_full((matrix.shape[-1],), 1 - rate * self.decays[self.weights])
            decay[width:] = 1 - rate * self.decays[self.biases]
        matrix = matrix.clone()
        for _ in range(steps):
            pair = (features, matrix.mT) if self.product.operand_first else (matrix, features.mT)
            slope = self.curved.slope_at(self._lift(add_product(constant, *pair, beta=1, alpha=1)), constants)
            slope = self._lower(slope)
            slope = slope.mT if self.product.operand_first else slope
            if decay is not None:
                matrix *= decay
            beta = 1 - rate * self.decays[self.weights] if decay is None else 1.0
            add_product_(matrix, slope, features, beta=beta, alpha=-rate)
        return matrix

    def _lift(self, value: Tensor) -> Tensor:
        for node in self.lifts:
            value = node.lift(value)
        return value

    def _lower(self, c: Tensor) -> Tensor:
        for node in reversed(self.lifts):
            (c,) = node.back(c)
        return c


def _recognised(form: ClosedForm) -> _Head | None:
    """The head in `form`, if it is all there is."""
    if len(form.terms) != 1:
        return None
    node = form.terms[0].affine
    lifts: list[Reshaped | Permuted] = []
    while isinstance(node, Reshaped | Permuted):
        lifts.append(node)
        node = node.source
    weights = node.source if isinstance(node, Product) else None
    if not isinstance(node, Product) or not isinstance(weights, Leaf):
        return None
    if node.scale != 1 or node.offset_scale != 1 or node.swapped != node.operand_first:  # weights are (class, feature)
        return None
    biases = None if node.offset is None else _biases(node.offset, node)
    named = {weights.index} | (set() if biases is None else {biases})
    decays = [0.0] * len(form.y)
    for norm in form.norms:
        if isinstance(norm.factor, Tensor):
            return None
        decays[norm.index] += norm.factor
    if named != set(range(len(form.y))) or (node.offset is not None and len(named) == 1):
        return None
    return _Head(form.terms[0].curved, node, lifts[::-1], weights.index, biases, tuple(decays))


def _biases(offset: Affine, product: Product) -> int | None:
    """Which tensor of y the offset is, if it has one number for each class (of each task), whatever the example."""
    if product.operand_first:
        *lead, _, classes = product.shape
        spread: tuple[int, ...] = (*lead, 1, classes)
    else:
        *lead, classes, _ = product.shape
        spread = (*lead, classes, 1)
    node = offset.source if isinstance(offset, Expanded) else offset
    if tuple(node.shape) != spread and not (product.operand_first and tuple(node.shape) == (classes,) and not lead):
        return None
    while isinstance(node, Reshaped):
        node = node.source
    whole = isinstance(node, Leaf) and tuple(node.shape) in {(*lead, classes), spread}
    return node.index if isinstance(node, Leaf) and whole else None


def _aligned(width: int) -> int:
    return -(-width // ALIGNED) * ALIGNED
