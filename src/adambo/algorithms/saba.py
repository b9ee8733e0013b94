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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from adambo.algorithms.info import Info
from adambo.algorithms.optimizers import sgd
from adambo.algorithms.running_z import RunningZ
from adambo.algorithms.settings import checked_choice, refuse_sharded_x
from adambo.draw import Batch, Draw, Needs
from adambo.errors import SampleError, StateError
from adambo.problem import Problem
from adambo.saga_table import Slots, Store, Visits
from adambo.vectors import Vector, added, clones, copy_


class SABA(RunningZ):
    r"""One step, everything taken at (x_t, y_t, z_t), on the lower slot i and the upper slot j:

        y_{t+1} = y_t − γ saga_i(∇y g)
        z_{t+1} = z_t − ν (saga_i(∇²yy g z_t) − saga_j(∇y f))
        x_{t+1} = x_t − η (saga_j(∇x f) − saga_i(∇²xy g z_t))

    saga_k(new) = new − table[k] + mean(table), upon which table[k] ← new; each of the five has a table of its own, whose
    rows keep the values of their last visit (also the z of that visit). Tables start at zero, or with `fill_memory`.

    The data is divided once and for all into slots, of one sample or one minibatch each; `adambo.draws` does so. The
    two tables in the space of x cost (lower_slots + upper_slots) copies of x: take few slots (10 to 50), keep them
    elsewhere (`store`), or do without (`saga_x=False`). With tasks, whose y and z have rows of their own, there are
    only these two, and y and z move as in SOBA. Their size is logged before the memory is taken.

    Args:
        problem: What is optimised.
        lr, lower_lr, z_lr: η, γ, ν; `z_lr=None` follows the lower step size, as in the paper.
        lower_slots, upper_slots: How many slots there are; or a sequence of their sizes, which are then their weights
            in the mean (and have to be their chances of being drawn).
        saga_x: False moves x along the plain ∇x f − ∇²xy g z_t; SAGA is in the other directions only.
        store: Where the tables live: "device" (with the parameters), "cpu", "disk" (a temporary file), or a directory.
            On CUDA, "cpu" is pinned memory and no step waits for it; a file makes every step wait.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> data = torch.tensor([0.0, 2.0])
        >>> problem = Problem(lambda b: (y - data[b]).square().sum(), lambda b: (y - x).square().sum(), x, y)
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
        self._lower, self._upper = Slots(lower_slots, "lower_slots"), Slots(upper_slots, "upper_slots")
        self.saga_x = checked_choice(saga_x, "saga_x", (False, True))
        if saga_x:
            refuse_sharded_x(problem, "SABA(saga_x=True) has tables for two of them; saga_x=False has none")
        super().__init__(
            problem,
            needs=Needs(upper=1, lower=1, slots=(len(self._lower), len(self._upper))),
            upper_optimizer=sgd(problem.x, lr, "lr"),
            lower_optimizer=sgd(problem.y, lower_lr),
            z_lr=z_lr,
        )
        layout: dict[str, tuple[Vector, Slots]] = {}
        if problem.tasks is None:
            layout |= {"g_y": (problem.y, self._lower), "hessian": (problem.y, self._lower)}
            layout |= {"f_y": (problem.y, self._upper)}
        if saga_x:
            layout |= {"cross": (problem.x, self._lower), "f_x": (problem.x, self._upper)}
        self.tables = Store(store, problem.device).make(
            type(self).__name__,
            layout,
            "Take fewer and larger slots, another store ('device', 'cpu', 'disk' or a directory), or saga_x=False, "
            "which does without tables in the space of x.",
        )

    def advance(self, draw: Draw) -> Info:
        i, j = self._rows_of(draw)
        draw = replace(draw, cross=draw.lower[:1], hessian=draw.lower[:1])
        point, visits = self.problem.at(draw, self.ledger), Visits(self.tables)
        with self.undone_on_failure(point) as before:
            self.guard.watch("the upper loss", point.f)
            z = self.recall("z", point)
            product, f_y = visits.saga("hessian", i, point.hessian(z)), visits.saga("f_y", j, point.f_y)
            z_next = self.z_step(z, product, f_y)
            if self.saga_x:
                h = added(visits.saga("f_x", j, point.f_x), visits.saga("cross", i, point.cross(z)), -1.0)
                for p, part in zip(self.problem.x, h, strict=True):
                    p.grad = part
            else:
                point.backward(z)  # x.grad <- ∇x f − ∇²xy g z_t
            lower_loss, g_y = point.lower_gradient()
            g_y = visits.saga("g_y", i, g_y)
            self.guard.watch("the lower loss", lower_loss, *g_y)
            point.y.descend(g_y, self.lower_optimizer, self.guard.apply)  # y_{t+1}
            self.commit(point, before, z=z_next)  # x_{t+1}
            visits.keep(self.guard)  # no row is written before the step is judged
        return Info(self, point.f, lower_loss, z=z_next)

    def fill_memory(self, lower: Iterable[Batch], upper: Iterable[Batch]) -> None:
        """The full start: every row of every table at the current (x, y, z), from one batch per slot, in their order.

        `solver.fill_memory(*stream.slot_batches())` does it for a stream. It waits for the device. A memory that has
        been used before is copied meanwhile, to come back to it if a batch is bad.

        Raises:
            AdamboError: With all tables as they were.
        """
        self._report_lost_steps()
        lower, upper = _one_each(lower, self._lower, "lower"), _one_each(upper, self._upper, "upper")
        bring_back, buffers = [table.snapshot() for table in self.tables.values()], clones(self.problem.buffers)
        try:
            for slot in range(len(lower)):
                self._attempt(self._fill_lower, slot, lower[slot])
            for slot in range(len(upper)):
                self._attempt(self._fill_upper, slot, upper[slot])
            self.guard.end_step(counted=False)
            self.check()
        except BaseException:
            for undo in bring_back:
                undo()
            copy_(self.problem.buffers, buffers)
            raise
        for table in self.tables.values():
            table.recompute_mean()

    def _fill_lower(self, slot: int, batch: Batch) -> None:
        point = self.problem.at(Draw(lower=(batch,), cross=(batch,), hessian=(batch,)), self.ledger)
        z, new = self.recall("z", point), {}
        if "hessian" in self.tables:
            new = {"hessian": point.hessian(z), "g_y": point.lower_gradient()[1]}
        if self.saga_x:
            new["cross"] = point.cross(z)
        self._fill(slot, new, "the lower loss", point.g)

    def _fill_upper(self, slot: int, batch: Batch) -> None:
        point, new = self.problem.at(Draw(upper=(batch,)), self.ledger), {}
        if "f_y" in self.tables:
            new["f_y"] = point.f_y
        if self.saga_x:
            new["f_x"] = point.f_x
        self._fill(slot, new, "the upper loss", point.f)

    def _fill(self, slot: int, new: dict[str, Vector], what: str, loss: Tensor) -> None:
        self.ledger.begin_step()
        self.guard.begin_step()
        self.guard.watch(what, loss, *[part for values in new.values() for part in values])
        self.guard.settle()
        visits = Visits(self.tables)
        for name, values in new.items():
            visits.saga(name, slot, values)
        visits.keep(self.guard)

    def _rows_of(self, draw: Draw) -> tuple[int, int]:
        counts = self.needs.slots
        slot = (0, 0) if draw.slot is None and counts == (1, 1) else draw.slot
        if slot is None:
            raise SampleError(
                f"SABA has tables of {counts[0]} lower and {counts[1]} upper rows, but the draw does not say which rows "
                "its batches belong to. Build the stream with needs=solver.needs, or give Draw(slot=(i, j))."
            )
        if len(slot) != 2 or not all(isinstance(k, int) and 0 <= k < n for k, n in zip(slot, counts, strict=False)):
            raise SampleError(
                f"The draw has slot={slot!r}, but slots are two integers: (lower from 0 to {counts[0] - 1}, upper from "
                f"0 to {counts[1] - 1}). Build the stream with needs=solver.needs."
            )
        return slot[0], slot[1]

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"tables": {name: table.state_dict() for name, table in self.tables.items()}}

    def load_own_state(self, own: dict[str, Any]) -> None:
        tables = own.pop("tables")
        if set(tables) != set(self.tables):
            raise StateError(
                f"The state has tables of {sorted(tables)}, this solver of {sorted(self.tables)}. Build it with the "
                "same saga_x before loading."
            )
        for name, table in self.tables.items():
            table.load_state_dict(tables[name])
        super().load_own_state(own)


def _one_each(batches: Iterable[Batch], slots: Slots, name: str) -> Sequence[Batch]:
    if isinstance(batches, Tensor | str):
        raise SampleError(f"fill_memory takes a sequence of {name} batches, but came one {type(batches).__name__}.")
    batches = batches if isinstance(batches, Sequence) else list(batches)
    if len(batches) != len(slots):
        raise SampleError(
            f"fill_memory was given {len(batches)} {name} batches for {len(slots)} {name} slots. Give the batch of "
            f"every slot, in the order of the slots: stream.slot_batches()."
        )
    return batches
