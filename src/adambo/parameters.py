"""Collecting the tensors of `x` and `y`, and refusing those that cannot be optimised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from adambo.errors import ProblemError
from adambo.processes import is_sharded
from adambo.vectors import Vector

Parameters = nn.Module | Tensor | Iterable[Any]


def overlap(p: Tensor, q: Tensor) -> bool:
    """Whether two tensors share memory (of non-contiguous ones only the beginnings are compared)."""
    if p is q or is_sharded(q) or p.device != q.device or not p.numel() or not q.numel():
        return p is q
    if not (p.is_contiguous() and q.is_contiguous()):
        return p.data_ptr() == q.data_ptr()
    return p.data_ptr() < q.data_ptr() + q.nbytes and q.data_ptr() < p.data_ptr() + p.nbytes


def modules_of(part: Parameters) -> list[nn.Module]:
    if isinstance(part, nn.Module):
        return [part]
    return [m for m in part if isinstance(m, nn.Module)] if isinstance(part, list | tuple) else []


def parameters_of(part: Parameters, name: str) -> Vector:
    if isinstance(part, nn.Module | Tensor):
        part = [part]
    if isinstance(part, str | bytes | dict) or not isinstance(part, Iterable):
        raise ProblemError(
            f"{name} is a {type(part).__name__}, but parameters are needed: give a module, a tensor that requires "
            "gradients, or an iterable of them."
        )
    found: Vector = []
    for item in part:
        if not isinstance(item, nn.Module | Tensor):
            raise ProblemError(
                f"{name} holds a {type(item).__name__}, but only modules and tensors can be optimised. For named "
                "parameters, leave the names out: module.parameters()."
            )
        found += item.parameters() if isinstance(item, nn.Module) else [item]
    for k, p in enumerate(found):
        if not p.is_floating_point():
            raise ProblemError(f"{name}[{k}] has dtype {p.dtype}, but only real floating-point tensors have gradients.")
        if not p.is_leaf:
            raise ProblemError(
                f"{name}[{k}], of shape {tuple(p.shape)}, is the result of a computation and not a leaf, so no "
                "optimiser can move it. Give the tensor it was computed from, or .detach().requires_grad_()."
            )
    found = [p for p in found if p.requires_grad]
    if not found:
        raise ProblemError(
            f"{name} has no parameter that requires gradients, so there is nothing to optimise. Unfreeze some with "
            "requires_grad_(True)."
        )
    if len({id(p) for p in found}) != len(found):
        raise ProblemError(f"{name} names the same tensor twice, which would be moved twice. Name it once.")
    return found
