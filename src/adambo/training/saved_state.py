"""What a checkpoint of the loop holds, and whether what was read is that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adambo.errors import RunError
from adambo.training.forms import is_finite, is_step

KEYS = ("step", "seconds", "evaluated", "loss", "random", "workload", "fingerprint")


def check(state: dict[str, Any], step: int, fingerprint: str, where: str) -> None:
    """Refuse what cannot be a state of this run.

    Args:
        state: As it was read.
        step: According to the name of the file.
        fingerprint: Of the run.
        where: The beginning of a sentence, such as "The checkpoint in runs/a/checkpoints".

    Raises:
        RunError: With a sentence on the first thing that is wrong.
    """
    missing = [key for key in KEYS if key not in state]
    if missing:
        raise RunError(f"{where} lacks {missing[0]!r}: it was not written by this loop.")
    right = {
        "step": is_step(state["step"]) and state["step"] == step,
        "seconds": is_finite(state["seconds"]) and state["seconds"] >= 0,
        "evaluated": type(state["evaluated"]) is int and -1 <= state["evaluated"] <= step,
        "loss": _is_loss(state["loss"]),
        "random": _is_random(state["random"]),
        "workload": isinstance(state["workload"], dict),
        "fingerprint": isinstance(state["fingerprint"], str),
    }
    wrong = [key for key, fits in right.items() if not fits]
    if wrong:
        raise RunError(f"{where} is damaged: its {wrong[0]!r} is not what this loop writes.")
    if state["fingerprint"] != fingerprint:
        raise RunError(
            f"{where} does not belong to the configuration of the run: config.yaml or the checkpoint is not what the "
            "run was made with. Put it back as it was, or start a new run."
        )


def _is_loss(loss: Any) -> bool:
    if not isinstance(loss, dict) or set(loss) != {"count", "total"} or not is_step(loss["count"]):
        return False
    total = loss["total"]
    if total is None or loss["count"] == 0:
        return total is None and loss["count"] == 0
    return isinstance(total, Tensor) and total.shape == () and total.dtype == torch.double


def _is_random(random: Any) -> bool:
    if not isinstance(random, dict) or set(random) != {"cpu", "cuda"} or not isinstance(random["cuda"], list):
        return False
    return all(isinstance(one, Tensor) and one.dtype == torch.uint8 for one in (random["cpu"], *random["cuda"]))
