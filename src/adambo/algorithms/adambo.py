"""AdamBO (Gong, Hao, Liu; ICML 2025): Adam on the upper variable, SGD on the lower one, in a single loop.

    paper            here
    x, y             problem.x, problem.y
    η, γ             lr, lower_lr
    β, β_sq, λ       beta, beta_sq, eps
    Q, 1/l_g1        Neumann(terms=, step=)
    T_0              the number of batches given to warm_start
    ξ, ζ, ζ⁰, ζ^(q,j)  draw.upper, draw.lower, draw.cross, draw.hessian

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇²xy g, `lower_steps` ∇y g, and the Hessian products of the inverse: Q − 1
(chained, prefix, shared), Q(Q−1)/2 (independent, the paper's) or k ~ U{0 … Q−1} (random).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.optim import Adam, Optimizer

from adambo.algorithms.base import Algorithm, checked_rate, fused, sgd
from adambo.algorithms.info import Info
from adambo.draws import Batch, Draw, Needs
from adambo.errors import SettingError, StateError
from adambo.guard import LowerState, undone_on_failure
from adambo.inverse import Inverse, Neumann
from adambo.point import Point
from adambo.problem import Problem
from adambo.vectors import Vector, scaled


class AdamBO(Algorithm):
    r"""One step, everything taken at (x_t, y_t):

        z_t     = Neumann(∇²yy g, ∇y f)
        h_t     = ∇x f − ∇²xy g z_t
        y_{t+1} = y_t − γ ∇y g
        x_{t+1} = Adam(x_t, h_t)

    With `lower_steps=N`, N such steps lead from y_t to y_{t+1}, all at x_t. With `hypergradient_at="updated"` they
    come first, and z_t and h_t are taken at (x_t, y_{t+1}); the paper's is "current".

    Args:
        problem: What is optimised.
        lr, lower_lr: η and γ.
        beta, beta_sq, eps: β, β_sq and λ: `torch.optim.Adam(betas=(1 − beta, 1 − beta_sq), eps=eps)` exactly.
        inverse: How z is estimated; None is Neumann(terms=3, step="auto", samples="chained"). The paper's estimator
            is samples="independent".
        lower_steps: N.
        hypergradient_at: "current" or "updated".
        upper_optimizer, lower_optimizer: torch.optim objects to use as they are, instead of Adam and SGD with the
            settings above.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = AdamBO(problem, lr=0.05, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach()), 2)
        1.0
    """

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-4,
        lower_lr: float = 5e-3,
        beta: float = 0.1,
        beta_sq: float = 1e-3,
        eps: float = 1e-8,
        inverse: Inverse | None = None,
        lower_steps: int = 1,
        hypergradient_at: Literal["current", "updated"] = "current",
        upper_optimizer: Optimizer | None = None,
        lower_optimizer: Optimizer | None = None,
    ) -> None:
        _check_settings(beta, beta_sq, eps, lower_steps, hypergradient_at)
        if not isinstance(inverse, Inverse | None):
            raise SettingError(f"inverse={inverse!r} is not an Inverse; give for example adambo.Neumann(terms=3).")
        inverse = Neumann(terms=3, step="auto", samples="chained") if inverse is None else inverse
        if upper_optimizer is None:
            upper_optimizer = Adam(
                problem.x, checked_rate(lr, "lr"), betas=(1 - beta, 1 - beta_sq), eps=eps, fused=fused(problem.x)
            )
        if lower_optimizer is None:
            lower_optimizer = sgd(problem.y, lower_lr)
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=lower_steps, cross=1) + inverse.needs,
            upper_optimizer=upper_optimizer,
            lower_optimizer=lower_optimizer,
            inverse=inverse,
        )
        self.inverse: Inverse = inverse
        self.lower_steps, self.hypergradient_at = lower_steps, hypergradient_at
        self._pending: list[_Pending] = []

    def advance(self, draw: Draw) -> Info:
        point = self.problem.at(draw, self.ledger)
        with undone_on_failure(point.y, self.lower_optimizer) as before:
            if self.hypergradient_at == "updated":
                lower_loss = self.descend(point)  # y_{t+1}
                point = point.after_move()
            z = self.solve(point)
            point.backward(z)  # x.grad <- ∇x f − ∇²xy g z
            if self.hypergradient_at == "current":
                lower_loss = self.descend(point)  # the hypergradient was taken at y_t, not at y_{t+1}
            self.commit(point, before)  # x_{t+1} = Adam(x_t, x.grad)
        return Info(self, point.f, lower_loss, z=z)

    def step(self, draw: Draw | Batch, lower_batch: Batch = Algorithm.ABSENT) -> Info:
        if self._pending:
            raise StateError("A surrogate waits for its update(); finish it before a step that does everything itself.")
        return super().step(draw, lower_batch)

    step.__doc__ = Algorithm.step.__doc__

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._pending = []

    def surrogate(self, draw: Draw | Batch, lower_batch: Batch = Algorithm.ABSENT) -> Tensor:
        """The scalar S whose gradient in x is the hypergradient, for frameworks that own `backward()`:

            S = solver.surrogate(draw); S.backward(); solver.upper_optimizer.step(); solver.update()

        y_{t+1} is computed here, at (x_t, y_t), and written by `update`. Several surrogates before one update
        accumulate as gradients do: x.grad adds up, and y takes the mean of the lower gradients. With
        `hypergradient_at="updated"`, y must already be y_{t+1} when S is differentiated, so it is written here.
        With several processes, averaging x.grad is left to what owns the backward pass (DDP, FSDP2).
        """
        if self._pending and (self.lower_steps > 1 or self.hypergradient_at == "updated"):
            raise StateError(
                f"A surrogate waits for update(), and with lower_steps={self.lower_steps}, hypergradient_at="
                f"'{self.hypergradient_at}' there is no mean of two of them: each starts from the same y. Call "
                "update() after every surrogate, or accumulate with lower_steps=1, hypergradient_at='current'."
            )
        return self._attempt(self._surrogate, self._taken(draw, lower_batch))

    def update(self) -> None:
        """Write the y_{t+1} of the surrogates since the last update."""
        if not self._pending:
            raise StateError("update() finds nothing to write: call surrogate(draw) and S.backward() first.")
        point = self._pending[-1].point
        with undone_on_failure(point.y, self.lower_optimizer) as before:
            _move_lower(self, self._pending)
            if not self.guard.on_host:
                point.y.assign(self.guard.masked(point.y.values(), before.values))
        for pending in self._pending:
            self.finish(pending.point)
        for p in self.problem.y:
            p.grad = None  # what S.backward() left there is no lower gradient
        self._pending = []
        self.steps += 1

    def _surrogate(self, draw: Draw) -> Tensor:
        point = self.problem.at(draw, self.ledger)
        gradient: Vector | None = None
        after: LowerState | None = None
        with undone_on_failure(point.y, self.lower_optimizer) as before:
            if self.lower_steps > 1 or self.hypergradient_at == "updated":
                self.descend(point)
                point = point.after_move()
            if self.lower_steps > 1 and self.hypergradient_at == "current":
                after = LowerState(point.y, self.lower_optimizer)
                before.restore()
            z = self.solve(point)
            S = point.surrogate(z)
            self.guard.admit("The surrogate", S)
            if self.lower_steps == 1 and self.hypergradient_at == "current":
                g, gradient = point.lower_gradient()
                self.guard.admit("The lower loss", g, *gradient)
            self.guard.settle(self.lower_optimizer)
        self._pending.append(_Pending(point, gradient, after))
        return S


@dataclass
class _Pending:
    """A surrogate whose y_{t+1} is not written yet: a lower gradient, or the state after several lower steps."""

    point: Point
    gradient: Vector | None
    after: LowerState | None


def _move_lower(solver: AdamBO, pending: list[_Pending]) -> None:
    last = pending[-1]
    if last.after is not None:
        last.after.restore()
    elif last.gradient is not None and solver.problem.tasks is None:
        total = [sum(parts[1:], start=parts[0]) for parts in zip(*[p.gradient or [] for p in pending], strict=True)]
        last.point.y.descend(scaled(total, 1 / len(pending)), solver.lower_optimizer, solver.guard.apply)
    elif last.gradient is not None:
        for p in pending:
            p.point.y.descend(p.gradient or [], solver.lower_optimizer, solver.guard.apply)


def _check_settings(beta: float, beta_sq: float, eps: float, lower_steps: int, hypergradient_at: str) -> None:
    if not 0 < beta <= 1:
        raise SettingError(
            f"beta={beta} is the weight of the new hypergradient in the first moment; it lies in (0, 1]."
        )
    if not 0 < beta_sq <= 1:
        raise SettingError(
            f"beta_sq={beta_sq} is the weight of the new square in the second moment; it lies in (0, 1]. The theorem "
            "allows beta_sq = 0 as a limit (the plain mean of all squares), but torch.optim.Adam rejects betas[1] = 1; "
            "use a small number such as 1e-6."
        )
    if not 0 <= eps < float("inf"):
        raise SettingError(f"eps={eps} is added to a square root; it is 0 or larger, and finite.")
    if not isinstance(lower_steps, int) or isinstance(lower_steps, bool) or lower_steps < 1:
        raise SettingError(f"lower_steps={lower_steps!r} must be an integer of at least 1.")
    if hypergradient_at not in ("current", "updated"):
        raise SettingError(f"hypergradient_at={hypergradient_at!r} is neither 'current' nor 'updated'.")
