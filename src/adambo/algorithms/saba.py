"""SABA (Dagréou, Ablin, Vaiter, Moreau; NeurIPS 2022): SOBA with SAGA's memory in every direction.

    paper            here
    x, z, v          problem.x, problem.y, −solver.recall("z", point); z = +[∇²yy g]⁻¹ ∇y f here, so signs differ
    γ, ρ             lr, and lower_lr = z_lr (η, γ, ν below)
    n, m             lower_slots, upper_slots
    i, j             draw.slot; draw.lower and draw.upper hold the data of these slots

Oracle calls per step: 1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g. The full start costs one of each per slot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_choice, refuse_sharded_x
from adambo.draw import Batch, Draw, Needs
from adambo.problem import Problem
from adambo.saga_table import SagaTables, Slots, rows_of
from adambo.vectors import Vector, added


class SABA(RunningZ):
    r"""One step, everything taken at (x_t, y_t, z_t), on the lower slot i and the upper slot j:

        y_{t+1} = y_t − γ saga_i(∇y g)
        z_{t+1} = z_t − ν (saga_i(∇²yy g z_t) − saga_j(∇y f))
        x_{t+1} = x_t − η (saga_j(∇x f) − saga_i(∇²xy g z_t))

    saga_k(new) = new − table[k] + mean(table), upon which table[k] ← new. Each of the five has its own table; a row is
    from the last visit to its slot. Tables start at zero, or with `fill_memory`.

    Slots are fixed for ever, of one sample or one minibatch each; `adambo.draws` makes them. The two tables in the
    space of x take lower_slots + upper_slots copies of x, which is logged: take few slots (10 to 50), keep them
    elsewhere (`store`), or do without (`saga_x=False`). With tasks only these two exist; y and z move as in SOBA.

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size, as in the paper.
        lower_slots, upper_slots: The number of slots, or a list of sizes: their weights in the mean, and in the draws.
        saga_x: False moves x along the plain ∇x f − ∇²xy g z_t, and leaves SAGA to y and z.
        store: Where the tables live: "device" (with the parameters), "cpu" (pinned for CUDA, no step waits for it),
            "disk" (a temporary file), or a directory; on CUDA, a file makes every step wait.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (y - 2 * b).square().sum(), lambda b: (y - x).square().sum(), x, y)
        >>> solver = SABA(problem, lr=0.05, lower_lr=0.3, upper_slots=2)
        >>> solver.fill_memory(lower=[None], upper=[0, 1])
        >>> for t in range(200):
        ...     info = solver.step(Draw(upper=(t % 2,), lower=(None,), slot=(0, t % 2)))
        >>> round(float(x.detach()), 3)
        1.0
    """

    summary: ClassVar = "SOBA with SAGA's tables: the noise goes to zero at constant step sizes"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, 1 ∇y g, 1 ∇²yy g, 1 ∇²xy g"

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 1e-2,
        z_lr: float | None = None,
        lower_slots: int | Sequence[int] = 1,
        upper_slots: int | Sequence[int] = 1,
        saga_x: bool = True,
        store: str | os.PathLike[str] = "device",
    ) -> None:
        self._lower, self._upper = Slots(lower_slots, "lower"), Slots(upper_slots, "upper")
        self.saga_x = checked_choice(saga_x, "saga_x", (False, True))
        if saga_x:
            refuse_sharded_x(problem, "SABA has tables for two of them; with saga_x=False it has none")
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, slots=(self._lower.shape, self._upper.shape)),
            upper_optimizer=sgd(problem.x, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )
        layout: dict[str, tuple[Vector, Slots]] = {}
        if problem.tasks is None:
            layout = dict.fromkeys(("g_y", "hessian"), (problem.y, self._lower)) | {"f_y": (problem.y, self._upper)}
        if saga_x:
            layout |= {"cross": (problem.x, self._lower), "f_x": (problem.x, self._upper)}
        self.tables = SagaTables(layout, store, problem.device)

    def advance(self, draw: Draw) -> Info:
        i, j = rows_of(draw.slot, self._lower, self._upper)
        point = self.problem.at(replace(draw, cross=draw.lower[:1], hessian=draw.lower[:1]), self.ledger)
        visits = self.tables.visits()
        with self.undone_on_failure(point) as before:
            self.guard.watch("the upper loss", point.f)
            z = self.recall("z", point)
            product, f_y = visits.saga("hessian", i, point.hessian(z)), visits.saga("f_y", j, point.f_y)
            z_next = self.z_step(z, product, f_y)
            if self.saga_x:
                h = added(visits.saga("f_x", j, point.f_x), visits.saga("cross", i, point.cross(z)), -1.0)
                for p, part in zip(self.problem.x, h, strict=True):
                    p.grad = part  # x.grad <- saga_j(∇x f) − saga_i(∇²xy g z_t)
            else:
                point.backward(z)  # x.grad <- ∇x f − ∇²xy g z_t
            g_y, lower_loss = point.lower_gradient(), point.lower_loss()
            g_y = visits.saga("g_y", i, g_y)
            self.guard.watch("the lower loss", lower_loss, *g_y)
            point.y.descend(g_y, self.lower_optimizer, self.guard.apply)  # y_{t+1}
            self.commit(point, before, z=z_next)  # x_{t+1}
            visits.keep(self.guard)  # no row is written before the step is judged
        return Info(self, point.f, lower_loss, z=z_next)

    def fill_memory(self, lower: Iterable[Batch], upper: Iterable[Batch]) -> None:
        """The full start: all rows of all tables at the current (x, y, z), from one batch per slot in their order.

        With a stream, `solver.fill_memory(*stream.slot_batches())`. An error leaves everything as it was (tables that
        are in use are copied meanwhile). Waits for the device.
        """
        self._report_lost_steps()
        self._attempt(self._fill_all, self._lower.one_each(lower), self._upper.one_each(upper))

    def _fill_all(self, lower: Sequence[Batch], upper: Sequence[Batch]) -> None:
        with self.tables.refilled():
            for slot, b in enumerate(lower):
                self._fill(slot, Draw(lower=(b,), cross=(b,), hessian=(b,)))
            for slot, b in enumerate(upper):
                self._fill(slot, Draw(upper=(b,)))
            self.guard.end_step(counted=False)
            self.check()

    def _fill(self, slot: int, draw: Draw) -> None:
        self.ledger.begin_step()
        self.guard.begin_step()
        point, visits = self.problem.at(draw, self.ledger), self.tables.visits()
        z = self.recall("z", point)
        oracles: dict[str, Callable[[], Vector]] = {"f_y": lambda: point.f_y, "f_x": lambda: point.f_x}
        if not draw.upper:
            oracles = {"hessian": lambda: point.hessian(z), "cross": lambda: point.cross(z)}
            oracles["g_y"] = point.lower_gradient
        for name, oracle in oracles.items():
            if name in self.tables:
                new = oracle()
                self.guard.watch(name, *new)
                visits.saga(name, slot, new)
        self.guard.watch("the loss", point.f if draw.upper else point.g)
        self.guard.settle()
        visits.keep(self.guard)

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"tables": self.tables.state_dict()}

    def load_own_state(self, own: dict[str, Any]) -> None:
        self.tables.load_state_dict(own.pop("tables"))
        super().load_own_state(own)
