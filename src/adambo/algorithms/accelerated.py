"""For methods whose lower level makes Nesterov steps (SNAG) and averages what they find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adambo.algorithms.optimizers import sgd
from adambo.algorithms.settings import checked_choice, checked_count, checked_weight
from adambo.algorithms.two_points import TwoPoints
from adambo.draw import Batch, Draw, Needs
from adambo.errors import SettingError
from adambo.inverse import Inverse
from adambo.point import Point
from adambo.problem import Problem
from adambo.vectors import Vector, added


class AcceleratedLower(TwoPoints):
    r"""A lower level of Nesterov steps, all at x_t, from y_t to y_{t+1}:

        one step     w = y + α (y − y_prev),   y_prev ← y,   y ← w − γ ∇y g(x_t, w)
        option 1     one such step in every step t, with y_prev = y_{t−1}
        option 2     `lower_steps` of them where t is a multiple of `period`, with the momentum restarted (y_prev = y)
        average      ŷ_{t+1} = (1 − ν) ŷ_t + ν y_{t+1}

    A warm start makes one Nesterov step per batch, with its own momentum, and ends with y_prev = ŷ = y. With tasks all
    this is of one row each; `period` counts steps of the solver, not visits.

    Args:
        problem: What is optimised.
        lower_lr, nesterov, averaging: γ, α and ν.
        option, lower_steps, period: As above; option 1 uses neither of the others.
        inverse, others: As for `Algorithm`.
    """

    inverse: Inverse

    def __init__(
        self,
        problem: Problem,
        *,
        lower_lr: float,
        nesterov: float,
        averaging: float,
        option: int,
        lower_steps: int,
        period: int,
        inverse: Inverse,
        **others: Any,
    ) -> None:
        if not isinstance(nesterov, int | float) or isinstance(nesterov, bool) or not 0 <= nesterov < 1:
            raise SettingError(
                f"nesterov={nesterov!r} is the share of the last move that is made once more before the gradient is "
                "taken; it lies in [0, 1), and 0 is plain SGD. From 1 on the momentum never fades."
            )
        self.nesterov = nesterov
        self.averaging = checked_weight(averaging, "averaging")
        self.option = checked_choice(option, "option", (1, 2))
        self.lower_steps = checked_count(lower_steps, "lower_steps")
        self.period = checked_count(period, "period")
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1 if option == 1 else lower_steps, cross=1) + inverse.needs,
            lower_optimizer=sgd(problem.y, lower_lr),
            inverse=inverse,
            **others,
        )

    def without_idle_batches(self, draw: Draw) -> Draw:
        """`draw` without lower batches in the steps of option 2 that keep y, so that a lazy one is never made."""
        idle = self.option == 2 and self.steps % self.period != 0
        return replace(draw, lower=()) if idle else draw

    def accelerate(self, point: Point) -> tuple[list[Tensor], Vector]:
        """y_{t+1}, from the lower batches of the draw; returns g at the first w, if any, and y before the last step."""
        losses: list[Tensor] = []
        y_prev = point.y.values()
        if self.option == 1:
            y_prev = self.recall("y_prev", point, first=y_prev)
        for index in range(len(point.draw.lower)):
            g, y_prev = self._nesterov_step(point, y_prev, index, asked=not losses)
            losses += g
        return losses, y_prev

    def averaged(self, y_hat: Vector, y: Vector) -> Vector:
        """(1 − ν) ŷ + ν y, which is exactly y for ν = 1 and for ŷ = y."""
        return [torch.lerp(old, new, self.averaging) for old, new in zip(y_hat, y, strict=True)]

    def lower_loss(self, losses: list[Tensor], here: Point) -> Tensor:
        """g where the first lower gradient was taken; in a step without one, on the cross batch of `here`."""
        if losses:
            return losses[0]
        self.guard.watch("the lower loss", here.g)
        return here.g

    def warm_start(self, lower_batches: Iterable[Batch]) -> None:
        """One Nesterov step per batch, at the current x; the momentum starts anew. No batch, no step."""
        self._momentum = self.memory.blank()
        try:
            super().warm_start(lower_batches)
        finally:
            del self._momentum

    def warm_step(self, point: Point) -> None:
        y_prev = self._momentum.read("y_prev", point.y, first=point.y.values())
        _, y_prev = self._nesterov_step(point, y_prev)
        self._momentum.write(point.y, {"y_prev": y_prev}, self.guard)
        self.memory.forget(point.y, self.guard)  # y_prev = ŷ = y

    def _nesterov_step(
        self, point: Point, y_prev: Vector, index: int = 0, asked: bool = False
    ) -> tuple[Vector, Vector]:
        y = point.y.values()
        point.y.assign(added(y, added(y, y_prev, -1.0), self.nesterov))  # w
        here = point.after_move()
        gradient = here.lower_gradient(index)
        g = [here.lower_loss(index)] if asked else here.lower_values(index)
        self.guard.watch("the lower loss", *g, *gradient)
        point.y.descend(gradient, self.lower_optimizer, self.guard.apply)  # w − γ ∇y g
        return g, y
