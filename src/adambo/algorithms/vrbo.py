"""VRBO (Yang, Ji, Liang; NeurIPS 2021): SPIDER recursion at both levels, set right by a large batch now and then.

    paper            here
    x, y             problem.x, problem.y
    α, β             lr, lower_lr (η, γ elsewhere in this library)
    q, m             period, inner_steps
    Q, η             Neumann(products=, step=, samples="prefix")
    S_1              draw.snapshot: one large upper and one large lower batch
    S_2              block s of draw.upper, draw.lower, draw.cross, draw.hessian, for correction s = 0 … m + 1

Oracle calls per step: 2(m+2) ∇x f, 2(m+2) ∇y f, 2(m+2) ∇y g, 2(m+2)Q ∇²yy g, 2(m+2) ∇²xy g; 1, 1, 1, Q, 1 more with a
snapshot.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.settings import checked_count, checked_inverse
from adambo.algorithms.state import check_forms
from adambo.draw import Draw, Needs
from adambo.encodings import Encodings
from adambo.errors import SettingError
from adambo.guard import HYPERGRADIENT
from adambo.inverse import Inverse, Neumann
from adambo.lower_variable import LowerVariable
from adambo.masks import SameMasks
from adambo.point import Point, SumInX
from adambo.problem import Problem
from adambo.processes import whole_or_local
from adambo.vectors import Vector, added, clones, zeros

logger = logging.getLogger("adambo")


class VRBO(Algorithm):
    r"""One step; E_s(x, y) is the hypergradient estimate from block s of the draw, g_s the lower loss on it:

        every q steps:  v = E(x_k, y_k),  u = ∇y g(x_k, y_k)            all on the snapshot
        x_{k+1} = x_k − η v
        v += E_0(x_{k+1}, y_k) − E_0(x_k, y_k),    u likewise with ∇y g_0
        y^0 = y_k,  and for s = 1 … m+1, at x_{k+1}:
            y^s = y^{s−1} − γ u
            v += E_s(y^s) − E_s(y^{s−1}),          u likewise with ∇y g_s
        y_{k+1} = y^{m+1}

    Without noise, v and u are E and ∇y g at (x_{k+1}, y_{k+1}) after every step. With tasks each has its own u, and a
    first visit between snapshots starts from ∇y g_0(x_k, y_k). Draws get snapshots by `adambo.draws(..., snapshot=64)`;
    where one is missing, block 0 takes its place.

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        inverse: How z is estimated; None is Neumann(products=3, samples="prefix").
        period: q. The published experiments do not state it; with 2, their snapshots (64) hold as many examples as q of
            their other batches (32).
        inner_steps: m: every step has m + 1 lower steps. Not stated either.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = VRBO(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 1)
        1.0
    """

    summary: ClassVar = "SPIDER recursion at both levels: a large batch every q steps, differences in between"
    cost: ClassVar = "2(m+2) ∇x f, 2(m+2) ∇y f, 2(m+2) ∇y g, 2(m+2)Q ∇²yy g, 2(m+2) ∇²xy g"
    inverse: Inverse
    _missed = False

    def __init__(
        self,
        problem: Problem,
        lr: float = 5e-3,
        lower_lr: float = 5e-4,
        inverse: Inverse | None = None,
        period: int = 2,
        inner_steps: int = 1,
    ) -> None:
        inverse = checked_inverse(inverse, Neumann(products=3, samples="prefix"))
        if inverse.needs.levels:
            raise SettingError(
                "VRBO adds up many differences of estimates in a step, but a draw has one truncation level, which all "
                "of them would share. Use Neumann(samples='prefix') instead of 'random'."
            )
        blocks = checked_count(inner_steps, "inner_steps", least=0) + 2
        super().__init__(
            problem,
            needs=Needs(blocks, blocks, blocks, blocks * inverse.needs.hessian),
            upper_optimizer=sgd(problem.x, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
            inverse=inverse,
        )
        self.period, self.inner_steps = checked_count(period, "period"), inner_steps
        self._v = zeros(problem.x)

    def advance(self, draw: Draw) -> Info:
        blocks, large = self._blocks(draw), self._snapshot(draw)
        named = draw if large is None else replace(draw, lower=(*draw.lower, *large.lower, *large.upper))
        y = self.problem.lower_variable(named)  # with tasks, all batches must be about the same ones
        masks = self.same_masks(draw)  # the two points of a correction see the same dropout
        point = self._at(blocks[0], y, masks)  # (x_k, y_k)
        with self.undone_on_failure(point) as before:
            start = point if large is None else self._at(large, y, self.same_masks(replace(large, seed=draw.seed)))
            first = self._estimates(start, first=True)
            E, g_y, losses = first if large is None else self._estimates(point)
            v, u = first[:2] if self.steps % self.period == 0 else (self._v, self.recall("u", point, first=g_y))
            with self.problem.moved_to(self._ahead(v)):  # x_{k+1}; x goes there when all is known, in commit
                # Block 0 alone is encoded as it was at x_k, by itself.
                others = self._others_together(draw, masks)
                corrections = SumInX(self.problem)
                for block in blocks:
                    point = self._at(block, y, masks, None if block is blocks[0] else others)
                    if block is not blocks[0]:
                        z, g_y, _ = self._solved(point)
                        corrections.add(point, z, -1.0)
                        y.descend(clones(u), self.lower_optimizer, self.guard.apply)
                        point = self._at(block, y, masks) if self.problem.x_is_sharded else point.after_move()
                    z, g_next, _ = self._solved(point)
                    corrections.add(point, z)
                    u = added(u, added(g_next, g_y, -1.0))
                v = added(v, added(corrections.total(), E, -1.0))
            self.guard.watch("v", *map(whole_or_local, v))
            self.commit(point, before, solved=z, u=u)
            self._v = self.guard.masked(v, self._v)
        return Info(self, *losses, v_used=lambda: [p.grad for p in self.problem.x], v=lambda: self._v, u=u, z=z)

    def _blocks(self, draw: Draw) -> list[Draw]:
        each = self.inverse.needs.hessian
        roles = enumerate(zip(draw.upper, draw.lower, draw.cross, strict=True))
        return [Draw((a,), (b,), (c,), draw.hessian[s * each : (s + 1) * each]) for s, (a, b, c) in roles]

    def _at(self, block: Draw, y: LowerVariable, masks: SameMasks, encodings: Encodings | None = None) -> Point:
        return Point(self.problem, block, y, encodings or self.problem.encodings(block, masks), self.ledger, masks)

    def _others_together(self, draw: Draw, masks: SameMasks) -> Encodings | None:
        """Of all blocks but the first, whose two points have one x; but FSDP2 wants a forward for every backward."""
        if self.problem.x_is_sharded:
            return None
        each = self.inverse.needs.hessian
        return self.problem.encodings(Draw(draw.upper[1:], draw.lower[1:], draw.cross[1:], draw.hessian[each:]), masks)

    def _estimates(self, point: Point, first: bool = False) -> tuple[Vector, Vector, tuple[Tensor, Tensor]]:
        """E and ∇y g at `point`, and the losses there; the first ones of a step prepare the inverse."""
        z, g_y, losses = self._solved(point, first)
        return point.hypergradient(z), g_y, losses

    def _solved(self, point: Point, first: bool = False) -> tuple[Vector, Vector, tuple[Tensor, Tensor]]:
        """z, ∇y g, and the losses."""
        z = self.solve(point) if first else self.inverse.solve_again(point, point.f_y)
        g_y, g = point.lower_gradient(), point.lower_loss()
        self.guard.watch("the upper loss", point.f)
        self.guard.watch("the lower loss", g)
        return z, g_y, (point.f.detach(), g)

    def _ahead(self, v: Vector) -> Vector:
        """x_k − η v, by the upper optimiser and its hooks. x itself stays, and x.grad is v."""
        self.guard.watch(HYPERGRADIENT, *map(whole_or_local, v))
        self.guard.settle()  # now, so that no loss is evaluated at an x that is not finite
        with self.problem.moved_to(clones(self.problem.x)):
            self._point_along(v)
            self.guard.apply(self.upper_optimizer)
            ahead = clones(self.problem.x)
        self._point_along(v)  # anew: a hook may have changed it
        return ahead

    def _point_along(self, v: Vector) -> None:
        for p, part in zip(self.problem.x, v, strict=True):
            p.grad = part.clone()

    def _snapshot(self, draw: Draw) -> Draw | None:
        """The large batches by role, in a step that has them."""
        large, roles = draw.snapshot, Needs(1, 1, 1, self.inverse.needs.hessian)
        if self.steps % self.period or large is None:
            if self.steps % self.period == 0 and not self._missed:
                self._missed = True
                logger.warning(
                    f"VRBO wants a large batch in every step that period={self.period} divides, but the draw has no "
                    "snapshot: ordinary batches take its place. Build the stream with adambo.draws(..., snapshot=size)."
                )
            return None
        complete = len(large.cross) > 0 and len(large.hessian) >= roles.hessian
        large = large.trimmed(roles if complete else Needs(1, 1), "The snapshot of VRBO")
        return large if complete else Draw.of(large.upper[0], large.lower[0], roles)

    def own_state(self) -> dict[str, Any]:
        return {"v": self._v}

    def load_own_state(self, own: dict[str, Any]) -> None:
        check_forms(own["v"], self.problem.x, "v")
        self._v = list(own["v"])
