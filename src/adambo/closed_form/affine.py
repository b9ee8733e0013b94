"""Tensors of a loss that are affine in `y`: how they change with `y`, and what that means backwards.

An `Affine` is a tree whose ends are the tensors of `y`. It stands for a tensor A y + a: `change` is A v, `pull` is
Aᵀ c. The constant a is not kept, because nobody asks for it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adambo.vectors import Vector

Cotangent = tuple[Tensor, Tensor]  # a tensor that depends on x, and the derivative in it


class Affine(ABC):
    """A tensor of the graph.

    Attributes:
        shape: Its shape.
        sources: The affine tensors it is made of.
        has_constant: Whether a constant that is not known was added on the way from `y`.
    """

    shape: torch.Size
    sources: Sequence[Affine] = ()
    has_constant: bool = False

    def tensors(self) -> Vector:
        """The constants in the tree, in a fixed order."""
        return [t for source in self.sources for t in source.tensors()]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Affine:
        """The same tree with other constants, taken from `tensors` in that order."""
        other = copy.copy(self)
        other.sources = tuple(source.with_tensors(tensors) for source in self.sources)
        return other

    @property
    def form(self) -> Hashable:
        """All there is to the tree besides its constants."""
        return type(self), self.shape, tuple(source.form for source in self.sources)

    @abstractmethod
    def change(self, v: Vector) -> Tensor:
        """A v"""

    @abstractmethod
    def back(self, c: Tensor) -> list[Tensor]:
        """What a derivative `c` in this tensor is in each of its sources."""

    def pull(self, c: Tensor, into: list[Tensor | None]) -> None:
        """into += Aᵀ c, one entry per tensor of `y`."""
        for source, part in zip(self.sources, self.back(c), strict=True):
            source.pull(part, into)

    def wanted(self) -> Vector:
        """The tensors that `cross` finds derivatives in."""
        return [t for source in self.sources for t in source.wanted()]

    def cross(self, bent: Tensor, slope: Tensor, y: Vector, z: Vector, found: list[Cotangent]) -> None:
        """∂/∂x of ⟨slope(A y), A z⟩, where A depends on x: `bent` is the slope's derivative along A z."""
        for source, b, s in zip(self.sources, self.back(bent), self.back(slope), strict=True):
            source.cross(b, s, y, z, found)


class Leaf(Affine):
    """A tensor of `y` itself."""

    def __init__(self, index: int, shape: torch.Size) -> None:
        self.index, self.shape = index, shape

    @property
    def form(self) -> Hashable:
        return Leaf, self.index, self.shape

    def change(self, v: Vector) -> Tensor:
        return v[self.index]

    def back(self, c: Tensor) -> list[Tensor]:
        return []

    def pull(self, c: Tensor, into: list[Tensor | None]) -> None:
        held = into[self.index]
        into[self.index] = c if held is None else held + c


class _OneSource(Affine):
    def __init__(self, source: Affine, shape: torch.Size) -> None:
        self.shape, self.sources = shape, (source,)
        self.has_constant = source.has_constant

    @property
    def source(self) -> Affine:
        return self.sources[0]

    def change(self, v: Vector) -> Tensor:
        return self.lift(self.source.change(v))

    @abstractmethod
    def lift(self, value: Tensor) -> Tensor:
        """This tensor for a value of its source."""


class Reshaped(_OneSource):
    def lift(self, value: Tensor) -> Tensor:
        return value.reshape(self.shape)

    def back(self, c: Tensor) -> list[Tensor]:
        return [c.reshape(self.source.shape)]


class Expanded(_OneSource):
    def lift(self, value: Tensor) -> Tensor:
        return value.expand(self.shape)

    def back(self, c: Tensor) -> list[Tensor]:
        return [c.sum_to_size(self.source.shape)]


class Permuted(_OneSource):
    def __init__(self, source: Affine, shape: torch.Size, dims: Sequence[int]) -> None:
        super().__init__(source, shape)
        self.dims = tuple(d % len(dims) for d in dims)
        self._inverse = tuple(self.dims.index(k) for k in range(len(dims)))

    @property
    def form(self) -> Hashable:
        return self.dims, super().form

    @property
    def swaps_the_last_two(self) -> bool:
        n = len(self.dims)
        return n >= 2 and self.dims == (*range(n - 2), n - 1, n - 2)

    def lift(self, value: Tensor) -> Tensor:
        return value.permute(self.dims)

    def back(self, c: Tensor) -> list[Tensor]:
        return [c.permute(self._inverse)]


class Scaled(_OneSource):
    """A constant, of the same or a smaller shape, times the source."""

    def __init__(self, source: Affine, shape: torch.Size, factor: Tensor | float) -> None:
        super().__init__(source, shape)
        self.factor = factor

    def tensors(self) -> Vector:
        return [*([self.factor] if isinstance(self.factor, Tensor) else []), *super().tensors()]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Affine:
        factor = next(tensors) if isinstance(self.factor, Tensor) else self.factor
        return Scaled(self.source.with_tensors(tensors), self.shape, factor)

    @property
    def form(self) -> Hashable:
        return None if isinstance(self.factor, Tensor) else self.factor, super().form

    def lift(self, value: Tensor) -> Tensor:
        return value * self.factor

    def back(self, c: Tensor) -> list[Tensor]:
        return [(c * self.factor).sum_to_size(self.source.shape)]


class Added(Affine):
    """Σ_k factor_k · source_k, spread over one shape."""

    def __init__(
        self, sources: Sequence[Affine], factors: Sequence[float], shape: torch.Size, has_constant: bool
    ) -> None:
        self.sources, self.factors, self.shape = sources, tuple(factors), shape
        self.has_constant = has_constant or any(source.has_constant for source in sources)

    @property
    def form(self) -> Hashable:
        return self.factors, super().form

    def change(self, v: Vector) -> Tensor:
        first, *others = [source.change(v) for source in self.sources]
        total = first if self.factors[0] == 1 else first * self.factors[0]
        for other, factor in zip(others, self.factors[1:], strict=True):
            total = torch.add(total, other, alpha=factor)
        return total.expand(self.shape)

    def back(self, c: Tensor) -> list[Tensor]:
        return [
            c.sum_to_size(source.shape) if factor == 1 else c.sum_to_size(source.shape) * factor
            for source, factor in zip(self.sources, self.factors, strict=True)
        ]


@dataclass(frozen=True)
class Operand:
    """What a matrix product multiplies a part of `y` with.

    Attributes:
        matrix: The features, in the precision of `y`.
        tensor: Where they come from, if that depends on x: derivatives in it are wanted.
    """

    matrix: Tensor
    tensor: Tensor | None


class Product(Affine):
    """scale · (operand @ source) or scale · (source @ operand), matrices or batches of them, plus an affine offset.

    Args:
        source: The part of `y`; a swap of its last two axes is taken into the product.
        operand: What stands beside it.
        operand_first: Whether that is on the left.
        shape: Of the result.
        scale: A number.
        offset: Added to the product, with the weight `offset_scale`.
        has_constant: Whether a constant is added, too.
    """

    def __init__(
        self,
        source: Affine,
        operand: Operand,
        operand_first: bool,
        shape: torch.Size,
        scale: float = 1.0,
        offset: Affine | None = None,
        offset_scale: float = 1.0,
        has_constant: bool = False,
    ) -> None:
        self.swapped = isinstance(source, Permuted) and source.swaps_the_last_two
        source = source.source if isinstance(source, Permuted) and self.swapped else source
        self.operand, self.operand_first, self.shape, self.scale = operand, operand_first, shape, scale
        self.offset_scale = offset_scale
        self.sources = (source,) if offset is None else (source, offset)
        self.has_constant = has_constant or (offset is not None and offset.has_constant)

    @property
    def source(self) -> Affine:
        return self.sources[0]

    @property
    def offset(self) -> Affine | None:
        return self.sources[1] if len(self.sources) == 2 else None

    def tensors(self) -> Vector:
        return [self.operand.matrix, *super().tensors()]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Affine:
        operand = Operand(next(tensors), self.operand.tensor)
        other = super().with_tensors(tensors)
        assert isinstance(other, Product)
        other.operand = operand
        return other

    @property
    def form(self) -> Hashable:
        wanted = None if self.operand.tensor is None else self.operand.tensor.dtype
        return wanted, self.operand_first, self.swapped, self.scale, self.offset_scale, super().form

    def _side(self, v: Vector) -> Tensor:
        """The factor that comes from `y`."""
        side = self.source.change(v)
        return side.mT if self.swapped else side

    def change(self, v: Vector) -> Tensor:
        pair = (self.operand.matrix, self._side(v)) if self.operand_first else (self._side(v), self.operand.matrix)
        if self.offset is None:
            product = torch.matmul(*pair)
            return product if self.scale == 1 else product * self.scale
        return add_product(self.offset.change(v), *pair, beta=self.offset_scale, alpha=self.scale)

    def back(self, c: Tensor) -> list[Tensor]:
        matrix = self.operand.matrix
        if self.operand_first:
            part = c.mT @ matrix if self.swapped else matrix.mT @ c
        else:
            part = matrix @ c.mT if self.swapped else c @ matrix.mT
        parts = [part if self.scale == 1 else part * self.scale]
        if self.offset is not None:
            spread = c.sum_to_size(self.offset.shape)
            parts.append(spread if self.offset_scale == 1 else spread * self.offset_scale)
        return parts

    def wanted(self) -> Vector:
        return [*([] if self.operand.tensor is None else [self.operand.tensor]), *super().wanted()]

    def cross(self, bent: Tensor, slope: Tensor, y: Vector, z: Vector, found: list[Cotangent]) -> None:
        tensor = self.operand.tensor
        if tensor is not None:
            (at_y, along_z), left = (self._side(y).mT, self._side(z).mT), self.operand_first
            cotangent = bent @ at_y if left else at_y @ bent
            pair = (slope, along_z) if left else (along_z, slope)
            add_product_(cotangent, *pair, beta=self.scale, alpha=self.scale)
            found.append((tensor, cotangent.to(tensor.dtype)))
        super().cross(bent, slope, y, z, found)


class ProductWithVector(_OneSource):
    """operand @ source, where the source is a vector."""

    def __init__(self, source: Affine, operand: Operand, shape: torch.Size) -> None:
        super().__init__(source, shape)
        self.operand = operand

    def tensors(self) -> Vector:
        return [self.operand.matrix, *super().tensors()]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Affine:
        operand = Operand(next(tensors), self.operand.tensor)
        return ProductWithVector(self.source.with_tensors(tensors), operand, self.shape)

    @property
    def form(self) -> Hashable:
        return None if self.operand.tensor is None else self.operand.tensor.dtype, super().form

    def lift(self, value: Tensor) -> Tensor:
        return torch.mv(self.operand.matrix, value)

    def back(self, c: Tensor) -> list[Tensor]:
        return [torch.mv(self.operand.matrix.mT, c)]

    def wanted(self) -> Vector:
        return [*([] if self.operand.tensor is None else [self.operand.tensor]), *super().wanted()]

    def cross(self, bent: Tensor, slope: Tensor, y: Vector, z: Vector, found: list[Cotangent]) -> None:
        tensor = self.operand.tensor
        if tensor is not None:
            cotangent = torch.outer(bent, self.source.change(y)) + torch.outer(slope, self.source.change(z))
            found.append((tensor, cotangent.to(tensor.dtype)))
        super().cross(bent, slope, y, z, found)


def add_product(offset: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float) -> Tensor:
    """beta · offset + alpha · left @ right"""
    add = torch.addmm if left.dim() == 2 else torch.baddbmm
    return add(offset, left, right, beta=beta, alpha=alpha)


def add_product_(total: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float) -> None:
    """total ← beta · total + alpha · left @ right"""
    if left.dim() == 2:
        total.addmm_(left, right, beta=beta, alpha=alpha)
    else:
        total.baddbmm_(left, right, beta=beta, alpha=alpha)
