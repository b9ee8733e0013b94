"""Kernels without a second derivative: naming them, and switching to those that have one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

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


class plain_layer_norm(TorchFunctionMode):  # noqa: N801  # used like a function
    """Compute layer norms from means and variances, inside the block.

    The second derivative of torch's own is wrong under `torch.vmap` where its weight is differentiated too
    (pytorch/functorch#534; 4e-4 of a meta-gradient of a small BERT).

    Example:
        >>> rows, weight, bias = torch.randn(5, 3), torch.randn(3), torch.randn(3)
        >>> own = nn.functional.layer_norm(rows, (3,), weight, bias)
        >>> with plain_layer_norm():
        ...     torch.allclose(nn.functional.layer_norm(rows, (3,), weight, bias), own, atol=1e-6)
        True
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_layer_norm if func is nn.functional.layer_norm else func)(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


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
