"""The state of torch's own random numbers, on the processor and on every GPU in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if used else []}


def set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    for device in range(min(len(state["cuda"]), torch.cuda.device_count())):
        torch.cuda.set_rng_state(state["cuda"][device], device)


@contextmanager
def random_state_kept() -> Iterator[None]:
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
