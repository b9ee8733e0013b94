"""The derivatives of the terms that were recognised, added up."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from adambo.closed_form.affine import Affine, Cotangent, Product, ProductWithVector
from adambo.closed_form.curved import Curved
from adambo.vectors import Vector, added


@dataclass(frozen=True)
class Term:
    """A curved function of an affine tensor."""

    curved: Curved
    affine: Affine


@dataclass(frozen=True)
class SquaredNorm:
    """½ Σ factor · y_k² for tensor number `index`.

    Attributes:
        index: k.
        factor: A number, or a tensor with one for each element.
        weight: What the factor is twice, times `scale`, if that depends on x: derivatives in it are wanted.
        scale: See there.
    """

    index: int
    factor: Tensor | float
    weight: Tensor | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class ClosedForm:
    """Terms of a lower loss at one value of `y`.

    Args:
        terms: Those with a matrix product or the like between `y` and the curved function.
        norms: The regularisers.
        y: The values.
    """

    terms: Sequence[Term]
    norms: Sequence[SquaredNorm]
    y: Vector

    def gradient(self, beside: Sequence[Tensor | None] = ()) -> list[Tensor | None]:
        """∇y, with None for tensors that no term is about; added to what stands `beside` it."""
        into = list(beside) or [None] * len(self.y)
        for term in self.terms:
            # A copy where the slope itself may become the gradient, with which a caller may do as it likes.
            kept = isinstance(term.affine, Product | ProductWithVector)
            term.affine.pull(term.curved.slope if kept else term.curved.slope.clone(), into)
        return self._with_norms(into, self.y)

    def hessian(self, v: Vector, beside: Sequence[Tensor | None] = ()) -> list[Tensor | None]:
        """∇²yy · v, likewise."""
        return self._with_norms(self._bent(v, list(beside) or [None] * len(v)), v)

    def contracted(
        self, w: Vector, s: float, v: Vector, kept: Sequence[float | Tensor], beside: Sequence[Tensor | None] = ()
    ) -> Vector:
        """v + (I − s ∇²yy) w, in as few operations as will do: with kept(s), and what stands `beside` in ∇²yy w."""
        found = [
            torch.addcmul(b, a, k) if isinstance(k, Tensor) else torch.add(b, a, alpha=k)
            for a, b, k in zip(w, v, kept, strict=True)
        ]
        for part, bent in zip(found, self._bent(w, list(beside) or [None] * len(w)), strict=True):
            if bent is not None:
                part.add_(bent, alpha=-s)
        return found

    def kept(self, s: float) -> list[float | Tensor]:
        """What I − s ∇²yy multiplies the tensors of `y` with, as far as the regularisers go."""
        kept: list[float | Tensor] = [1.0] * len(self.y)
        for norm in self.norms:
            kept[norm.index] = kept[norm.index] - s * norm.factor
        return kept

    def _bent(self, v: Vector, into: list[Tensor | None]) -> list[Tensor | None]:
        """The part of ∇²yy · v that comes from the curved terms, added to `into`."""
        for term in self.terms:
            term.affine.pull(term.curved.bend(term.affine.change(v)), into)
        return into

    def cross(self, z: Vector) -> list[Cotangent]:
        """∇²xy · z, as derivatives in the tensors through which x enters."""
        found: list[Cotangent] = []
        for term in self.terms:
            bent = term.curved.bend(term.affine.change(z))
            term.affine.cross(bent, term.curved.slope, self.y, z, found)
        for norm in self.norms:
            if norm.weight is not None:
                product = 2 * norm.scale * self.y[norm.index] * z[norm.index]
                found.append((norm.weight, product.sum_to_size(norm.weight.shape)))
        return found

    def wanted(self) -> Vector:
        """The tensors that `cross` finds derivatives in."""
        weights = [norm.weight for norm in self.norms if norm.weight is not None]
        return [*(tensor for term in self.terms for tensor in term.affine.wanted()), *weights]

    def tensors(self) -> Vector:
        """What it is made of, in a fixed order."""
        parts = [[*term.curved.tensors(), *term.affine.tensors()] for term in self.terms]
        factors = [norm.factor for norm in self.norms if isinstance(norm.factor, Tensor)]
        return [*self.y, *factors, *(t for part in parts for t in part)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> ClosedForm:
        """The same of other tensors, given in that order."""
        given = iter(tensors)
        y = list(islice(given, len(self.y)))
        norms = [replace(norm, factor=next(given)) if isinstance(norm.factor, Tensor) else norm for norm in self.norms]
        terms = []
        for term in self.terms:
            curved = term.curved.with_tensors(list(islice(given, len(term.curved.tensors()))))
            terms.append(Term(curved, term.affine.with_tensors(given)))
        return ClosedForm(terms, norms, y)

    @property
    def form(self) -> Hashable:
        """All there is to it besides its tensors."""
        terms = tuple((term.curved.form, term.affine.form) for term in self.terms)
        numbers = [None if isinstance(n.factor, Tensor) else n.factor for n in self.norms]
        return terms, tuple((n.index, n.weight is None, n.scale) for n in self.norms), tuple(numbers)

    def with_values(self, y: Vector) -> ClosedForm:
        """The same at the same point, whose values are these tensors."""
        return ClosedForm(self.terms, self.norms, y)

    def moved(self, y: Vector) -> ClosedForm:
        """The same terms at other values of `y`."""
        by = added(y, self.y, -1.0)
        return ClosedForm([Term(t.curved.moved(t.affine.change(by)), t.affine) for t in self.terms], self.norms, y)

    def _with_norms(self, into: list[Tensor | None], v: Vector) -> list[Tensor | None]:
        held_by_all = [part for part in into if part is not None]
        numbers = {norm.index: norm.factor for norm in self.norms if not isinstance(norm.factor, Tensor)}
        if len(held_by_all) == len(numbers) == len(self.norms) == len(v) and len(set(numbers.values())) == 1:
            return [*added(held_by_all, v, numbers[0])]  # the usual: one factor for all of y
        for norm in self.norms:
            held, part, factor = into[norm.index], v[norm.index], norm.factor
            if held is None:
                into[norm.index] = part * factor
            elif isinstance(factor, Tensor):
                into[norm.index] = torch.addcmul(held, part, factor)
            else:
                into[norm.index] = torch.add(held, part, alpha=factor)
        return into
