"""What a contender of the comparison is: a name, an estimator, and a step on a workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import ClassVar, Literal

import torch
from measuring import Step
from torch import Tensor
from torch.optim import Optimizer
from workloads import Workload


@dataclass(frozen=True)
class Settings:
    """What all contenders on one workload have in common.

    Attributes:
        terms: Terms of the Neumann series; methods with another solver make as many Hessian products, terms − 1.
        neumann_step: The step of the series, for those who ask for one.
        lower_lr: Of SGD.
        lower_steps: Steps of SGD on y per step on x.
        lr: Of Adam, on x.
        upper_optimizer: Another optimiser of x, made from its parameters; None is Adam.
    """

    terms: int
    neumann_step: float
    lower_lr: float
    lower_steps: int = 1
    lr: float = 1e-4
    upper_optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None

    def optimizer_of(self, x: Iterable[Tensor]) -> Optimizer:
        make = self.upper_optimizer
        return torch.optim.Adam(x, lr=self.lr) if make is None else make(x)

    def products(self) -> int:
        return self.terms - 1


class Contender(ABC):
    """Somebody who makes steps on a workload: SGD on y, a hypergradient, an optimiser's step on x.

    Attributes:
        name: Of the row.
        package: The distribution it needs, and the module that it imports; None for plain PyTorch.
        is_bilevel: Whether there is a hypergradient to check.
        at: Where the hypergradient is taken: "current" is (x_t, y_t), "updated" is (x_t, y_{t+1}).
    """

    name: ClassVar[str]
    package: ClassVar[tuple[str, str] | None] = None
    is_bilevel: ClassVar[bool] = True
    at: ClassVar[Literal["current", "updated"]] = "updated"

    def absent(self) -> str | None:
        """Why it cannot take part here; None where it can."""
        if self.package is None or find_spec(self.package[1]) is not None:
            return None
        return f"{self.package[0]} is not installed"

    def version(self) -> str:
        """The distribution and its version, for the head of the table."""
        return "" if self.package is None else f"{self.package[0]} {metadata.version(self.package[0])}"

    def not_offered(self, workload: Workload) -> str | None:
        """Why it has no way to express the workload; None where it has."""
        return None

    @abstractmethod
    def estimator(self, settings: Settings) -> str:
        """How it inverts the lower Hessian, in a few words."""

    def terms_for_accuracy(self, dimensions: int) -> int:
        """With how many terms its hypergradient is exact to three digits and more, in a small problem."""
        return 2000

    @abstractmethod
    def build(self, workload: Workload, settings: Settings) -> Step:
        """Its step on `workload`, whose modules it moves."""
