"""What the training loop drives: anything with steps, evaluations and a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

Scores = Mapping[str, Mapping[str, float]]


class Workload(Protocol):
    """An experiment that is ready to run. Step `number` depends on the state and on the number, on nothing else.

    Attributes:
        steps_per_epoch: How many steps one pass over the training data takes.
        metric: Which score of the splits "train" and "test" is shown in progress lines and reports; larger is better.
    """

    steps_per_epoch: int
    metric: str

    def begin(self) -> None:
        """What comes before step 0 (a warm start, the filling of tables); a resumed run does not do it again."""

    def step(self, number: int) -> Tensor:
        """Step `number`, 0 at first; returns the upper loss, on the device, without waiting for it.

        Raises:
            NonFiniteError: With the state as it was before the step; on CUDA, at a later call.
        """

    def end_epoch(self, epoch: int) -> None:
        """After the last step of epoch `epoch`, 0 at first: step sizes decay here."""

    def check(self) -> None:
        """Wait for the device; raises NonFiniteError if a step up to now met a value that is not finite."""

    def evaluate(self) -> Scores:
        """Scores by split and name, such as {"train": {"accuracy": 0.9, "loss": 0.3}, "test": {...}}.

        Nothing that the next steps depend on is changed, not even a random state.
        """

    def observe(self) -> Mapping[str, Any] | None:
        """What the monitor measured at this step, if one is due; called only where the plan says how often.

        Nothing that the next steps depend on is changed. {"step": 40, "lower_error": 0.1, ..., "warnings": [...]}
        """

    def oracles(self) -> Mapping[str, int]:
        """Oracle calls up to now, by kind."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, except torch's random state; tensors and plain values only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
