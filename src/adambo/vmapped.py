"""Operations that `torch.vmap` differentiates wrongly, in plain operations instead; what has none is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adambo.errors import ProblemError


class RightUnderVmap(TorchFunctionMode):
    """Inside, layer norms and embeddings are differentiated rightly under `torch.vmap`, as often as one likes.

    The second derivative of torch's own norms is wrong there where their weight is differentiated too
    (pytorch/functorch#534; 4e-4 of a meta-gradient of a small BERT), and embeddings forget their padding_idx.

    Raises:
        ProblemError: For other operations that are known to be wrong.

    Example:
        >>> rows, weight, bias = torch.randn(5, 3), torch.randn(3), torch.randn(3)
        >>> own = F.layer_norm(rows, (3,), weight, bias)
        >>> with RightUnderVmap():
        ...     torch.allclose(F.layer_norm(rows, (3,), weight, bias), own, atol=1e-6)
        True
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WRONG:
            raise ProblemError(
                f"torch.vmap differentiates {func.__name__} wrongly, or not at all, so tasks that use it cannot be "
                "gone through at once. Use LayerNorm or GroupNorm in its place, or leave at_once out."
            )
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    if tuple(input.shape[-len(normalized_shape) :]) != tuple(normalized_shape):
        raise ProblemError(f"A layer norm over {tuple(normalized_shape)} was given {tuple(input.shape)}.")
    axes = tuple(range(-len(normalized_shape), 0))
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    centred = wide - wide.mean(axes, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return (result if bias is None else result + bias).to(input.dtype)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise ProblemError(
            "torch.vmap differentiates an embedding with max_norm, scale_grad_by_freq or sparse wrongly, or not at "
            "all. Use a plain one, or leave at_once out."
        )
    rows = F.embedding(input, weight)
    if padding_idx is None:
        return rows
    is_padding = input == (padding_idx if padding_idx >= 0 else len(weight) + padding_idx)
    return torch.where(is_padding[..., None], rows.detach(), rows)  # which no gradient reaches


_REPLACED: dict[Any, Any] = {F.layer_norm: _layer_norm, torch.layer_norm: _layer_norm, F.embedding: _embedding}
_WRONG = {
    F.batch_norm, torch.batch_norm, torch.native_batch_norm, F.instance_norm, torch.instance_norm,
    torch.native_layer_norm, F.embedding_bag, torch.embedding_bag,
}  # fmt: skip
