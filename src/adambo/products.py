"""Vector-Jacobian products straight from the autograd engine.

`torch.autograd.grad` and `backward` examine their arguments in Python, which costs some 20 µs a call: half of a
Hessian-vector product when `y` is small. Here the arguments are right by construction (weights shaped like the outputs
they belong to), so the engine is called directly. `plain_product` is the reference; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from adambo.vectors import one

_engine: Any = torch.autograd.Variable._execution_engine


def product(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    keep_graph: bool = True,
    differentiable: bool = False,
) -> Sequence[Tensor | None]:
    """Σ_k weights_k · ∂outputs_k/∂inputs; None stands for no dependence."""
    found: Sequence[Tensor | None] = _engine.run_backward(
        tuple(outputs),
        tuple(weights),
        keep_graph or differentiable,
        differentiable,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def gradient(
    loss: Tensor, inputs: Sequence[Tensor], *, keep_graph: bool = False, differentiable: bool = False
) -> Sequence[Tensor | None]:
    """∂loss/∂inputs, itself with a graph if it is to be `differentiable`."""
    weight = one(loss)
    return product((loss,), inputs, (weight,), keep_graph=keep_graph, differentiable=differentiable)


def accumulate(outputs: Sequence[Tensor], weights: Sequence[Tensor], into: Sequence[Tensor] = ()) -> None:
    """p.grad += Σ_k weights_k · ∂outputs_k/∂p for the tensors p named, or for all leaves if none is."""
    _engine.run_backward(
        tuple(outputs), tuple(weights), False, False, tuple(into), allow_unreachable=True, accumulate_grad=True
    )


def reached_leaves(outputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaves of the graph behind `outputs`, each once; an output may be one itself."""
    outputs = list(outputs)
    yield from (output for output in outputs if output.is_leaf and output.requires_grad)
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)


def plain_product(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The product through the public function."""
    return torch.autograd.grad(outputs, inputs, weights, retain_graph=True, allow_unused=True)
