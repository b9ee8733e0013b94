"""Comparing states bit for bit, and expecting errors, without a test framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from adambo.algorithms import Algorithm


@contextmanager
def raises(error: type[Exception], words: str = "") -> Iterator[None]:
    """Expect `error`, with `words` in its message.

    Example:
        >>> with raises(ZeroDivisionError, "zero"):
        ...     _ = 1 / 0
    """
    try:
        yield
    except error as came:
        if words not in str(came):
            raise AssertionError(f"The message does not speak of {words!r}: {came}") from came
    else:
        raise AssertionError(f"{error.__name__} was not raised.")


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal, tensors bit for bit.

    Example:
        >>> same({"x": [torch.zeros(1)]}, {"x": [torch.zeros(1)]}), same([torch.zeros(1)], [-torch.zeros(1)])
        (True, False)
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        bits = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(s, t) for s, t in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def copies(solver: Algorithm) -> tuple[list[Tensor], list[Tensor]]:
    """The current x and y of a solver."""
    x, y = ([p.detach().clone() for p in part] for part in (solver.problem.x, solver.problem.y))
    return x, y
