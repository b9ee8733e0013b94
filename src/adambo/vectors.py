"""Arithmetic on vectors that are lists of tensors, as `x`, `y` and `z` are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

Vector = list[Tensor]
FEW = 4  # tensors


def _one_by_one(a: Sequence[Tensor]) -> bool:
    """Kernels over lists of tensors give 65,536 elements to a multiprocessor: a GPU is idle when they are few."""
    return len(a) <= FEW and a[0].is_cuda


def scaled(a: Sequence[Tensor], factor: float | Tensor) -> Vector:
    """factor · a"""
    return [t * factor for t in a] if _one_by_one(a) else list(torch._foreach_mul(list(a), factor))


def added(a: Sequence[Tensor], b: Sequence[Tensor], factor: float = 1.0) -> Vector:
    """a + factor · b, in new memory (what autograd returned may alias what it was given)."""
    if _one_by_one(a):
        return [torch.add(s, t, alpha=factor) for s, t in zip(a, b, strict=True)]
    return list(torch._foreach_add(list(a), list(b), alpha=factor))


def add_(a: Sequence[Tensor], b: Sequence[Tensor], factor: float = 1.0) -> None:
    """a ← a + factor · b"""
    if _one_by_one(a):
        for s, t in zip(a, b, strict=True):
            s.add_(t, alpha=factor)
    else:
        torch._foreach_add_(list(a), list(b), alpha=factor)


def zeros(like: Sequence[Tensor]) -> Vector:
    return [torch.zeros_like(t, requires_grad=False) for t in like]


@lru_cache(maxsize=16)
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones((), dtype=dtype, device=device)


def one(like: Tensor) -> Tensor:
    """The number 1, of the kind of a loss; the same tensor every time, so nobody may change it."""
    return _one(like.dtype, like.device)


def summed(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Each root once, with the sum of its weights."""
    total: dict[int, tuple[Tensor, Tensor]] = {}
    for root, weight in pairs:
        total[id(root)] = (root, total[id(root)][1] + weight if id(root) in total else weight)
    return list(total.values())


def zero_filled(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Vector:
    """The tensors, with zeros for those that are None."""
    return [torch.zeros_like(p) if t is None else t for t, p in zip(tensors, like, strict=True)]


def clones(tensors: Sequence[Tensor]) -> Vector:
    return [t.detach().clone() for t in tensors]


def forget_casts(tensors: Sequence[Tensor]) -> None:
    """After `tensors` have moved: autocast keeps copies of leaves in low precision, which are old now."""
    if tensors and torch.is_autocast_enabled(tensors[0].device.type):
        torch.clear_autocast_cache()


def copy_(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """targets ← values, in place and seen by autograd's version check."""
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
    forget_casts(targets)


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """⟨a, b⟩ as a tensor without dimensions."""
    return torch.stack([torch.sum(s * t) for s, t in zip(a, b, strict=True)]).sum()


def norm(a: Sequence[Tensor]) -> Tensor:
    """One Euclidean norm over all tensors together."""
    norms: list[Tensor] = list(torch._foreach_norm(list(a)))
    result: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return result


def as_blocks(a: Sequence[Tensor], blocks: int) -> Tensor:
    """The vector as a matrix, one line per independent lower problem (1 without tasks)."""
    return torch.cat([t.reshape(blocks, -1) for t in a], dim=1)


def from_blocks(matrix: Tensor, like: Sequence[Tensor]) -> Vector:
    """The inverse of `as_blocks`."""
    parts = torch.split(matrix, [t.numel() // matrix.shape[0] for t in like], dim=1)
    return [part.reshape(t.shape) for part, t in zip(parts, like, strict=True)]
