"""F2SA (Kwon, Kwon, Wright, Nowak; ICML 2023): a penalty instead of second derivatives.

    paper            here
    x, y, z          problem.x, problem.y, solver.recall("z", point); y minimises f + λ g, z minimises g
    ξ α_k, α_k, γ_k  lr, penalised_lr, lower_lr
    λ_k, δ_k         solver.lam = penalty + penalty_growth · steps, penalty_growth
    T                lower_steps
    l_g1             smoothness
    ζ^x, ζ^y, …      draw.upper for f; draw.lower for g in the steps of y and z, draw.cross for g in the step of x

Oracle calls per step: 1 ∇x f, n ∇y f, 2n ∇y g, 2 ∇x g. Knowing λ_max(∇²yy g) costs a few products more, now and then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import checked_rate, sgd
from adambo.algorithms.settings import checked_count, refuse_sharded_x
from adambo.draw import Draw, Needs
from adambo.errors import SettingError, StateError
from adambo.inverse.curvature import Curvature
from adambo.point import Point
from adambo.problem import Problem
from adambo.vectors import added, scaled


class F2SA(Algorithm):
    r"""One step on the penalty f + λ (g − min g). First, for s = 1 … n, both from the old values:

        z ← z − γ ∇y g(x, z)
        y ← y − a (∇y f(x, y) + λ ∇y g(x, y)),    a capped at 1/(l λ)

    and then

        x ← x − η (∇x f(x, y) + λ (∇x g(x, y) − ∇x g(x, z))),    λ ← λ + δ

    z starts at y. At a fixed λ the method rests O(1/λ) away from the solution. Any other growth of λ is yours: set
    `solver.penalty` between steps, with `penalty_growth=0`. With tasks it is the mean of f_i + λ (g_i − min g_i).

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        penalised_lr: a. None is γ/λ: y and z then follow x at one pace, so that lagging behind it cancels in y − z.
            With a constant a it does not, and λ times the lag drives x away unless η is far below 1/λ.
        lower_steps: n.
        penalty, penalty_growth: The first λ, and δ.
        smoothness: l. "auto" measures λ_max(∇²yy g) on the schedule of Neumann(step="auto"), which needs Hessian
            products; with a number the method has first derivatives only. Without the cap a growing λ diverges.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = F2SA(problem, lr=0.1, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "a growing penalty on g instead of second derivatives: two lower variables, pulled apart by f"
    cost: ClassVar = "1 ∇x f, n ∇y f, 2n ∇y g, 2 ∇x g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 5e-3,
        penalised_lr: float | None = None,
        lower_steps: int = 1,
        penalty: float = 1.0,
        penalty_growth: float = 0.01,
        smoothness: float | Literal["auto"] = "auto",
    ) -> None:
        refuse_sharded_x(problem, "F2SA adds up three gradients in x that are taken at two lower variables")
        self.lower_steps = checked_count(lower_steps, "lower_steps")
        super().__init__(
            problem,
            needs=Needs(upper=lower_steps, lower=lower_steps, cross=1),
            upper_optimizer=sgd(problem.x, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
        )
        self.penalised_lr = None if penalised_lr is None else checked_rate(penalised_lr, "penalised_lr")
        self.penalty = _checked_positive(penalty, "penalty")
        self.penalty_growth = checked_rate(penalty_growth, "penalty_growth")
        self.smoothness = smoothness if smoothness == "auto" else _checked_positive(smoothness, "smoothness")
        self._curvature = Curvature()

    @property
    def lam(self) -> float:
        """λ of the next step. It follows from the number of steps, so a step that fails does not let it grow."""
        return self.penalty + self.penalty_growth * self.steps

    def advance(self, draw: Draw) -> Info:
        y, lam = self.problem.lower_variable(draw), self.lam
        masks = self.same_masks(draw)  # λ (g(y) − g(z)) must not be λ times two dropout masks
        # Only the first upper batch and the cross batch reach x; the others are encoded without a graph.
        reaching = replace(draw, upper=draw.upper[:1], lower=(*draw.upper[1:], *draw.lower))
        encodings = self.problem.encodings(reaching, masks)
        parts = [replace(draw, upper=(a,), lower=(b,)) for a, b in zip(draw.upper, draw.lower, strict=True)]
        points = [Point(self.problem, part, y, encodings, self.ledger, masks) for part in parts]
        with self.undone_on_failure(points[0]) as before:
            z, losses = self.recall("z", points[0], first=y.values()), []
            rate = self._capped_rate(points[0], lam)
            for point in points:
                g_y, g = point.lower_gradient(), point.lower_loss()
                y_direction = added(scaled(point.f_y, y.blocks), g_y, lam)  # with tasks, f is a mean and g a sum
                with point.elsewhere(y=z) as there:
                    gradient = there.lower_gradient()
                    g_z = there.lower_loss()
                    y.descend(gradient, self.lower_optimizer, self.guard.apply)  # moves z, whose values y has here
                    z = y.values()
                y.assign(added(y.values(), y_direction, -rate))
                self.guard.watch("the upper loss", point.f, *point.f_y)
                self.guard.watch("the lower loss", g, g_z, *y_direction)
                losses.append((point.f.detach(), g))
            point = points[0].after_move()
            pull = point.g_x
            with point.elsewhere(y=z) as there:
                pull = added(pull, there.g_x, -1.0)
            # x.grad <- ∇x f + λ (∇x g(y) − ∇x g(z)); with tasks the mean of both, of which g has the sum
            for p, part in zip(self.problem.x, added(point.f_x, pull, lam / y.blocks), strict=True):
                p.grad = part
            self.commit(point, before, z=z)
            self._curvature.accept(self.guard)
        return Info(self, *losses[0], z=z, lam_used=lam, direction=lambda: [p.grad for p in self.problem.x])

    def _capped_rate(self, point: Point, lam: float) -> float:
        """a, but no more than 1/(l λ)."""
        lower_lr: float = self.lower_optimizer.param_groups[0]["lr"]
        rate = lower_lr / lam if self.penalised_lr is None else self.penalised_lr
        if self.smoothness != "auto":
            return min(rate, 1.0 / (self.smoothness * lam))
        self._curvature.begin_step()
        if self._curvature.is_due(point, self.steps):
            self._curvature.estimate(point, self.steps)
        assert self._curvature.largest is not None
        self._warn_of_divergence(self._curvature.largest)
        return min(rate, 1.0 / (self._curvature.largest * lam))

    def own_state(self) -> dict[str, Any]:
        curvature = self._curvature.state_dict()
        return {"penalty": self.penalty, "penalty_growth": self.penalty_growth, "curvature": curvature}

    def load_own_state(self, own: dict[str, Any]) -> None:
        penalty, growth = own["penalty"], own["penalty_growth"]
        if not (_is_positive(penalty) and (growth == 0 or _is_positive(growth))):
            raise StateError(f"The state has penalty={penalty!r} and penalty_growth={growth!r}: no weights of a loss.")
        self._curvature.load_state_dict(own["curvature"])
        self.penalty, self.penalty_growth = penalty, growth


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _checked_positive(value: float, name: str) -> float:
    if not _is_positive(value):
        raise SettingError(f"{name}={value!r} must be a finite number larger than 0 (smoothness: or 'auto').")
    return value
