"""Betty (Choe et al., ICLR 2023; PyPI betty-ml): two `ImplicitProblem`s in an `Engine`.

A step is `unroll_steps` training steps of the engine: SGD on y in each, the upper problem after the last. Betty calls
`training_step` of the lower problem anew for the hypergradient, so the encoder works once for each lower step, once
for the hypergradient and once for the upper loss.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch
from measuring import Step
from workloads import Batch, Workload

from contenders.contender import Contender, Settings


class Betty(Contender):
    """Config(type="neumann"): `neumann_iterations` products, one term more."""

    name = "Betty, neumann"
    package = ("betty-ml", "betty")
    type: ClassVar[str] = "neumann"

    def estimator(self, settings: Settings) -> str:
        return f"Neumann, {settings.terms} terms"

    def config(self, settings: Settings) -> dict[str, Any]:
        return {"neumann_iterations": settings.products(), "neumann_alpha": settings.neumann_step}

    def build(self, workload: Workload, settings: Settings) -> Step:
        from betty.configs import Config, EngineConfig
        from betty.engine import Engine
        from betty.problems import ImplicitProblem

        # Its logger writes to stdout, where the table goes.
        logging.getLogger("betty").addFilter(lambda record: record.levelno > logging.INFO)
        y = list(workload.y.parameters())

        class Upper(ImplicitProblem):
            def training_step(self, batch: Batch) -> torch.Tensor:
                return workload.upper(workload.seen(batch), y, batch)

        class Lower(ImplicitProblem):
            def training_step(self, batch: Batch) -> torch.Tensor:
                return workload.lower(workload.seen(batch), y, batch)

        upper = Upper(
            name="upper",
            config=Config(retain_graph=True),  # one loss is differentiated in x, then in y
            module=workload.x,
            optimizer=settings.optimizer_of(workload.x.parameters()),
            train_data_loader=[workload.upper_batch],
        )
        lower = Lower(
            name="lower",
            config=Config(type=self.type, unroll_steps=settings.lower_steps, **self.config(settings)),
            module=workload.y,
            optimizer=torch.optim.SGD(workload.y.parameters(), lr=settings.lower_lr),
            train_data_loader=[workload.lower_batch],
        )
        engine = Engine(
            problems=[upper, lower],
            config=EngineConfig(),
            dependencies={"u2l": {upper: [lower]}, "l2u": {lower: [upper]}},
        )

        def step() -> None:
            for _ in range(settings.lower_steps):
                engine.train_step()

        return step


class BettyCG(Betty):
    name = "Betty, cg"
    type = "cg"

    def estimator(self, settings: Settings) -> str:
        return f"conjugate gradients, {settings.products()} products"

    def config(self, settings: Settings) -> dict[str, Any]:
        return {"cg_iterations": settings.products()}

    def terms_for_accuracy(self, dimensions: int) -> int:
        return dimensions + 1


class BettyDarts(Betty):
    """Config(type="darts"), its default: −∇²xy g ∇y f by finite differences."""

    name = "Betty, darts"
    type = "darts"

    def estimator(self, settings: Settings) -> str:
        return "the identity in place of the inverse, finite differences"

    def config(self, settings: Settings) -> dict[str, Any]:
        return {}
