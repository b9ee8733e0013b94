"""The runs of a study, side by side: each is a call of its own that depends on its arguments alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def computed(cell: Callable[..., T], arguments: Sequence[tuple[Any, ...]], processes: int) -> list[T]:
    """`cell(*arguments[k])` for all k, in order; it is the same for any number of processes.

    Args:
        cell: A function of a module, so that another process finds it.
        arguments: Of each call.
        processes: How many work side by side, with one thread each.

    Example:
        >>> computed(pow, [(2, 3), (3, 2)], processes=1)
        [8, 9]
    """
    if processes == 1:
        threads = torch.get_num_threads()
        _one_thread()
        try:
            return [cell(*each) for each in arguments]
        finally:
            torch.set_num_threads(threads)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        return list(pool.map(cell, *zip(*arguments, strict=True)))


def _one_thread() -> None:
    """Small problems are slower with more, and sums then do not depend on their number."""
    torch.set_num_threads(1)
