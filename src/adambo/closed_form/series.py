"""All that a hypergradient asks of a closed form, in one programme: z by a Neumann series, and what follows from z."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adambo.closed_form.affine import Cotangent
from adambo.closed_form.form import ClosedForm
from adambo.closed_form.programmes import Programmes
from adambo.vectors import Vector, as_blocks, scaled, zero_filled

EXPLODED = 100.0  # times what a series may add up to


@dataclass(frozen=True)
class Solved:
    """What a hypergradient needs of the lower loss.

    Attributes:
        z: s Σ_{q<Q} (I − s ∇²yy g)^q v; on CUDA, NaN where it has grown far beyond what s ≤ 2/λ_max
            allows.
        cross: ∇²xy g · z.
        gradient: ∇y g.
    """

    z: Vector
    cross: list[Cotangent]
    gradient: Vector


def solved(
    form: ClosedForm, v: Vector, step: float | Tensor, terms: int, blocks: int, programmes: Programmes
) -> Solved:
    """The programme, on CUDA by a graph where there is one.

    Args:
        form: The lower loss.
        v: What is multiplied with the inverse.
        step: s; on CUDA it may be a tensor.
        terms: Q.
        blocks: How many independent lower problems stand one after the other.
        programmes: Where graphs are kept.
    """
    if not v[0].is_cuda:
        return _on_the_host(form, v, float(step), terms)
    s = step if isinstance(step, Tensor) else v[0].new_full((), step)
    inputs = [s, *v, *form.tensors()]
    n = len(v)

    def run(tensors: Vector) -> Vector:
        s, (v, rest) = tensors[0], (tensors[1 : n + 1], tensors[n + 1 :])
        return _run(form.with_tensors(rest), v, s, terms, blocks)

    with torch.no_grad():  # the same arithmetic with and without a graph: a run that is resumed has the same digits
        results = programmes.run(("series", form.form, terms, blocks, n), run, inputs) or run(inputs)
    return Solved(results[:n], list(zip(form.wanted(), results[2 * n :], strict=True)), results[n : 2 * n])


@torch.no_grad()
def _on_the_host(form: ClosedForm, v: Vector, s: float, terms: int) -> Solved:
    w, kept = v, form.kept(s)
    for _ in range(terms - 1):
        w = form.contracted(w, s, v, kept)
    z = scaled(w, s)
    return Solved(z, form.cross(z), zero_filled(form.gradient(), v))


def _run(form: ClosedForm, v: Vector, s: Tensor, terms: int, blocks: int) -> Vector:
    w = v
    for _ in range(terms - 1):
        product = zero_filled(form.hessian(w), v)
        w = [torch.addcmul(a + b, p, s, value=-1) for a, b, p in zip(w, v, product, strict=True)]
    norms = torch.linalg.vector_norm(as_blocks([*w, *v], blocks).view(blocks, 2, -1), dim=2)
    exploded = (norms[:, 0] > norms[:, 1] * (EXPLODED * terms)).any()
    scale = torch.where(exploded, torch.nan, s)
    z = [part * scale for part in w]
    gradient = zero_filled(form.gradient(), v)
    return [*z, *gradient, *(cotangent for _, cotangent in form.cross(z))]
