"""Kernels without a second derivative: naming them, and switching to those that have one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from adambo.errors import SecondDerivativeError


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Run attention and recurrent layers on kernels that can be differentiated twice.

    Fused attention and cuDNN RNNs have no second derivative. They need none in an encoder; only where `y` itself
    reaches such a layer does a Hessian-vector product differentiate through it twice. Use it around that part of the
    lower loss alone: the plain kernels are slower and take more memory.

    Example:
        >>> attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        >>> tokens = torch.randn(1, 3, 4)
        >>> with twice_differentiable():
        ...     out, _ = attention(tokens, tokens, tokens, need_weights=False)
        >>> gradient, = torch.autograd.grad(out.square().sum(), attention.in_proj_weight, create_graph=True)
        >>> product, = torch.autograd.grad(gradient.sum(), attention.in_proj_weight)
    """
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield


def explained(error: RuntimeError, modules: Sequence[nn.Module]) -> RuntimeError:
    """For autograd's "derivative is not implemented", a sentence that names the layers and the way out."""
    missing = re.search(
        r"derivative for '?([\w:]+)'? is not implemented|does not .*support double backward", str(error)
    )
    if missing is None:
        return error
    kernel = missing.group(1) or "a compiled region"
    layers = [
        f"{name or 'the module itself'} ({type(layer).__name__})"
        for module in modules
        for name, layer in module.named_modules()
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase)
    ]
    found = f" Such layers were given to the problem: {', '.join(layers)}." if layers else ""
    return SecondDerivativeError(
        f"A Hessian-vector product has to differentiate {kernel} twice, and that kernel has no second derivative. It "
        f"stands between y and the lower loss.{found} Run that part of the lower loss inside "
        "`with adambo.twice_differentiable():`, leave torch.compile off for it, or put the layer into x, where one "
        "derivative is enough."
    )
