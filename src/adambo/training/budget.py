"""When a run ends: after so many epochs, steps, seconds or oracle calls, whichever comes first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from adambo.errors import ConfigError

# Samples are no calls, and products spent on knowing the largest eigenvalue are a diagnosis.
_NOT_CALLS = ("samples", "curvature_vector")


@dataclass(frozen=True)
class Budget:
    """Limits of a run; None is no limit, and one at least is needed.

    Attributes:
        epochs: Passes over the training data; a part of a step counts as a whole one.
        steps: Upper steps.
        seconds: Of training, a warm start included; evaluations and checkpoints are not.
        oracle_calls: What the function `oracle_calls` counts.

    Example:
        >>> Budget(epochs=2.5, steps=100).steps_limit(steps_per_epoch=20)
        50
        >>> Budget(seconds=1.5).reached(step=7, steps_per_epoch=20, seconds=1.7, oracle_calls=84)
        'The budget is spent: seconds=1.5.'
    """

    epochs: float | None = None
    steps: int | None = None
    seconds: float | None = None
    oracle_calls: int | None = None

    def __post_init__(self) -> None:
        limits = {name: limit for name, limit in vars(self).items() if limit is not None}
        if not limits:
            raise ConfigError("A run needs an end: give epochs, steps, seconds or oracle_calls.")
        for name, limit in limits.items():
            if not (math.isfinite(limit) and limit > 0):
                raise ConfigError(f"{name}={limit} is no end of a run: give a number above 0.")

    def steps_limit(self, steps_per_epoch: int) -> int | None:
        """The number of steps at which the run ends for certain, if that is known."""
        known = [limit for limit in (self._steps_of_epochs(steps_per_epoch), self.steps) if limit is not None]
        return min(known) if known else None

    def reached(self, step: int, steps_per_epoch: int, seconds: float, oracle_calls: int) -> str | None:
        """Why the run ends here, or None."""
        for name, share in self._shares(step, steps_per_epoch, seconds, oracle_calls).items():
            if share >= 1:
                return f"The budget is spent: {name}={getattr(self, name)}."
        return None

    def share(self, step: int, steps_per_epoch: int, seconds: float, oracle_calls: int) -> float:
        """How much of the limit that is nearest has been used, from 0 to 1."""
        return min(1.0, max(self._shares(step, steps_per_epoch, seconds, oracle_calls).values()))

    def _shares(self, step: int, steps_per_epoch: int, seconds: float, oracle_calls: int) -> dict[str, float]:
        amounts = {
            "epochs": (step, self._steps_of_epochs(steps_per_epoch)),
            "steps": (step, self.steps),
            "seconds": (seconds, self.seconds),
            "oracle_calls": (oracle_calls, self.oracle_calls),
        }
        return {name: done / limit for name, (done, limit) in amounts.items() if limit is not None}

    def _steps_of_epochs(self, steps_per_epoch: int) -> int | None:
        # A little less before rounding up: 0.1 * 30 is 3.0000000000000004.
        return None if self.epochs is None else math.ceil(self.epochs * steps_per_epoch * (1 - 1e-12))


def oracle_calls(oracles: Mapping[str, int]) -> int:
    """The unit in which methods are compared: all gradients and products of second derivatives with a vector.

    Example:
        >>> oracle_calls({"grad_x_f": 2, "hessian_vector": 6, "curvature_vector": 10, "samples": 14})
        8
    """
    return sum(count for kind, count in oracles.items() if kind not in _NOT_CALLS)
