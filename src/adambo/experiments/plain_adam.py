"""Plain Adam: no second level. The reference row of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from torch.optim import Adam

from adambo.algorithms import Algorithm, Info
from adambo.algorithms.optimizers import checked_rate, fused, sgd
from adambo.draw import Batch, Draw, Needs
from adambo.problem import Problem
from adambo.vectors import Vector


class PlainAdam(Algorithm):
    """One Adam step on x and y together, along the gradient of the upper loss.

    It is given a problem whose upper loss is the ordinary one, such as cross-entropy on all examples. The lower loss is
    never evaluated.

    Args:
        problem: What is optimised.
        lr: Step size.
        beta, beta_sq, eps: `torch.optim.Adam(betas=(1 − beta, 1 − beta_sq), eps=eps)`.
    """

    summary: ClassVar = "no lower level: Adam on cross-entropy, for reference"
    cost: ClassVar = "1 ∇x f, 1 ∇y f"

    def __init__(
        self, problem: Problem, lr: float = 1e-4, beta: float = 0.1, beta_sq: float = 1e-3, eps: float = 1e-8
    ) -> None:
        self.theta: Vector = [*problem.x, *problem.y]
        super().__init__(
            problem,
            needs=Needs(upper=1),
            upper_optimizer=Adam(
                self.theta, checked_rate(lr, "lr"), betas=(1 - beta, 1 - beta_sq), eps=eps, fused=fused(self.theta)
            ),
            lower_optimizer=sgd(problem.y, 0.0),
        )

    def _moved_above(self) -> Vector:
        return self.theta

    def warm_start(self, lower_batches: Iterable[Batch]) -> None:
        """There is no lower level, so there is nothing to do."""

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger)
        with self.undone_on_failure(point) as before:
            self.guard.watch("the loss", point.f)
            try:
                # Asked of the point: the graph of f ends at the features, and what lies behind them is the encoder.
                for p, part in zip(self.theta, [*point.f_x, *point.f_y], strict=True):
                    p.grad = part
                self.lower_optimizer.step()  # moves nothing; a scheduler wants to see a step before its own
                self.commit(point, before)
            finally:
                for p in self.problem.y:
                    p.grad = None
        return Info(self, point.f, point.f)
