"""Vector-Jacobian products straight from the autograd engine.

`torch.autograd.grad` examines its arguments in Python, which costs some 20 µs: half of a Hessian-vector product when
`y` is small. Here the arguments are right by construction (weights shaped like the outputs they belong to), so the
engine is called directly. `plain_product` is the reference; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_engine: Any = torch.autograd.Variable._execution_engine


def product(outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Σ_k weights_k · ∂outputs_k/∂inputs; the graph is kept, and None stands for no dependence."""
    found: Sequence[Tensor | None] = _engine.run_backward(
        tuple(outputs), tuple(weights), True, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


def plain_product(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The same through the public function."""
    return torch.autograd.grad(outputs, inputs, weights, retain_graph=True, allow_unused=True)
