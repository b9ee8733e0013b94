"""The mean loss since the last evaluation, summed where the losses are, so that nobody waits for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class MeanLoss:
    """Sums in double precision; `peek` is for progress lines, `value` waits and is exact.

    Example:
        >>> mean = MeanLoss()
        >>> mean.value() is None
        True
        >>> mean.add(torch.tensor(1.0)); mean.add(torch.tensor(2.0))
        >>> mean.value()
        1.5
    """

    def __init__(self) -> None:
        self._count = 0
        self._total: Tensor | None = None
        self._seen: float | None = None
        self._sent: tuple[Tensor, int, Any] | None = None

    def add(self, loss: Tensor) -> None:
        loss = loss.detach().double()
        self._total = loss if self._total is None else self._total + loss
        self._count += 1

    def value(self) -> float | None:
        return None if self._total is None else float(self._total) / self._count

    def peek(self) -> float | None:
        """The mean up to now or up to a moment ago, without waiting."""
        if self._total is None or not self._total.is_cuda:
            return self.value()
        if self._sent is None:
            copy = torch.empty((), dtype=torch.double, pin_memory=True).copy_(self._total, non_blocking=True)
            arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            self._sent = (copy, self._count, arrived)
        elif self._sent[2].query():
            self._seen = float(self._sent[0]) / self._sent[1]
            self._sent = None
        return self._seen

    def clear(self) -> None:
        """Begin anew."""
        self._count, self._total, self._sent = 0, None, None

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "total": self._total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count, self._total = state["count"], state["total"]
