"""An experiment of two numbers, for tests of what runs experiments: a score that is known in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from adambo.errors import DataError, NonFiniteError
from adambo.experiments.catalogue import EXPERIMENTS, Experiment
from adambo.experiments.config import RunConfig, require

STEPS_PER_EPOCH = 4


@dataclass(kw_only=True)
class ToyConfig(RunConfig):
    """Two numbers."""

    width: int = 3
    """A whole number."""
    mood: str = "fine"
    """"fine", or how the run goes wrong: "no data" or "a fault"."""

    def check(self) -> None:
        super().check()
        require(self.width > 0, f"width={self.width}: give 1 or more")


class ToyWorkload:
    """Scores fall with the distance of settings.lr from 0.01, in powers of ten; above 1 the run diverges."""

    metric, steps_per_epoch = "accuracy", STEPS_PER_EPOCH

    def __init__(self, config: ToyConfig) -> None:
        if config.mood == "no data":
            raise DataError("The file toy.txt is missing.")
        self.config, self.made = config, 0

    def begin(self) -> None:
        self.made = 0

    def step(self, number: int) -> Tensor:
        if self.config.mood == "a fault":
            raise ZeroDivisionError("a fault of ours")
        if self.config.settings["lr"] > 1:
            raise NonFiniteError("The loss is NaN: lower the learning rates.")
        self.made += 1
        return torch.tensor(1.0 / self.made)

    def end_epoch(self, epoch: int) -> None:
        pass

    def check(self) -> None:
        pass

    def evaluate(self) -> dict[str, dict[str, float]]:
        score = toy_score(self.config.settings["lr"]) * self.made / (self.made + 1)
        scores = {"train": {"accuracy": score}, "test": {"accuracy": 1 - score}}  # the test split misleads
        return scores | ({"validation": {"accuracy": score / 2}} if self.config.validation else {})

    def oracles(self) -> Mapping[str, int]:
        return {"grad_x_f": 2 * self.made}

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


def toy_score(lr: float) -> float:
    return 1.0 / (1.0 + abs(float(torch.log10(torch.tensor(lr))) + 2.0))


class Toy(Experiment):
    def build(self, config: RunConfig) -> Any:
        assert isinstance(config, ToyConfig)
        return ToyWorkload(config)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the experiment, which is in the catalogue while the test runs."""
    algorithms = ("adambo", "slip", "saba")
    made = Toy(
        "toy", "two numbers", ToyConfig, algorithms, (*algorithms, "adam"), "accuracy", lambda config: 0.5, "toy"
    )
    monkeypatch.setitem(EXPERIMENTS, "toy", made)
    return "toy"
