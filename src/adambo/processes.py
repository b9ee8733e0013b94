"""Averages over the processes of a data-parallel run; with one process, nothing happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from adambo.vectors import Vector


def is_sharded(tensor: Tensor) -> bool:
    """Whether `tensor` is a DTensor: a parameter that FSDP2 holds in pieces and reduces by itself."""
    return hasattr(tensor, "device_mesh")


def whole_or_local(tensor: Tensor) -> Tensor:
    """The tensor itself, or the piece of a DTensor that this process holds."""
    local: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return local


class Processes:
    """The processes that share one bilevel problem.

    The lower variable is the same on all of them, so what is formed in its space (∇y f, ∇y g, every
    Hessian-vector product) is averaged as it is formed; averaging only the final `z` is not the same number.

    Attributes:
        tasks_are_split: For stacked `y`: whether each process has tasks of its own; None until a draw tells.

    Args:
        group: "auto" (the default process group, if one is initialised), a process group, or None (no averaging).
    """

    def __init__(self, group: Any = "auto") -> None:
        ready = distributed.is_available() and distributed.is_initialized()
        self.group = None if group == "auto" else group
        self.tasks_are_split: bool | None = None
        self.active = ready and group is not None and distributed.get_world_size(self.group) > 1

    @property
    def count(self) -> int:
        return distributed.get_world_size(self.group) if self.active else 1

    def average(self, tensors: Vector) -> Vector:
        """The mean over processes, in one message."""
        if not self.active or not tensors:
            return tensors
        flat = torch.cat([t.detach().reshape(-1) for t in tensors])
        distributed.all_reduce(flat, group=self.group)
        flat /= self.count
        parts = torch.split(flat, [t.numel() for t in tensors])
        return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]

    def worst(self, flag: Tensor) -> Tensor:
        """The largest `flag` of all processes."""
        if self.active:
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self.group)
        return flag

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank."""
        if not self.active:
            return [tensor]
        everyone = [torch.empty_like(tensor) for _ in range(self.count)]
        distributed.all_gather(everyone, tensor.contiguous(), group=self.group)
        return everyone

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Start everyone from the values of the first process, as DistributedDataParallel does."""
        if self.active:
            source = distributed.get_global_rank(self.group, 0) if self.group is not None else 0
            for tensor in tensors:
                distributed.broadcast(tensor.detach(), src=source, group=self.group)
