"""`y` as one draw sees it: the whole variable, or the rows of the tasks that the draw is about.

With many tasks `y` is stacked, one row per task, and a draw names the rows it works on. Everything in the space of
`y` (∇y f, z, Hessian products, lower steps) then has one row per named task, and no other row is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from adambo.errors import AdamboError, ProblemError, SampleError, WholeTableUsed
from adambo.processes import Processes
from adambo.vectors import Vector, add_, clones, copy_, forget_casts, zero_filled


class LowerVariable:
    """The whole of `y`: one lower problem.

    Attributes:
        leaves: The tensors in which the losses are differentiated.
        blocks: How many independent lower problems the vectors hold, one after the other.
        tasks: Which tasks those are, as far as the host knows without asking a device; None for the whole of `y`.
        tasks_of_all: The same for all processes together.
        leaves_are_rows: Whether the leaves hold just what belongs to the draw, as vectors do.
    """

    blocks = 1
    leaves_are_rows = True
    tasks: frozenset[int] | None = None
    tasks_of_all: frozenset[int] | None = None

    def __init__(self, tables: Vector, processes: Processes) -> None:
        self.tables = tables
        self.leaves = tables
        self.processes = processes

    def reading(self) -> AbstractContextManager[Any]:
        """The context in which the losses are to be called."""
        return nullcontext()

    def rows(self, tensors: Sequence[Tensor]) -> Vector:
        """Of tensors shaped like `leaves`, the part that belongs to this draw."""
        return list(tensors)

    def captured_inputs(self) -> Vector:
        """The tensors that stand for the values of this draw alone: none, where losses use the parameters."""
        return []

    def on_inputs(self, inputs: Vector) -> LowerVariable:
        """The same in other memory."""
        return self

    def filled(self, parts: Sequence[Tensor | None], name: str) -> Vector:
        """A gradient in the leaves with zeros for None, which must not be everywhere; `name` is that of the loss."""
        if all(part is None for part in parts):
            raise self._unused(name)
        return zero_filled(parts, self.leaves)

    def _unused(self, name: str) -> AdamboError:
        return ProblemError(
            f"The {name} loss does not depend on y. Both levels meet in y; make sure that the loss uses the "
            "parameters given as y, and that nothing detaches them."
        )

    def average(self, vector: Vector) -> Vector:
        """The mean of a vector over processes."""
        return self.processes.average(vector)

    def values(self) -> Vector:
        """A copy of the current values."""
        return clones(self.leaves)

    def assign(self, values: Sequence[Tensor]) -> None:
        copy_(self.leaves, values)

    def assign_where(self, condition: Tensor, values: Sequence[Tensor]) -> None:
        """`assign` where a flag on the device says so."""
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=True):
                torch.where(condition, value, leaf, out=leaf)
        forget_casts(self.leaves)

    def descend(self, gradient: Vector, optimizer: Optimizer, apply: Callable[[Optimizer], None]) -> None:
        """One lower step: `apply(optimizer)` with `gradient` in place."""
        for leaf, part in zip(self.leaves, gradient, strict=True):
            leaf.grad = part
        try:
            apply(optimizer)
        finally:
            for leaf in self.leaves:
                leaf.grad = None
            forget_casts(self.leaves)

    def write_back(self) -> None:
        """Make the new values those of the parameters."""

    def share(self, state: Sequence[Tensor]) -> None:
        """After `write_state`: let every process know what the others have written."""

    def of_state(self, state: Sequence[Tensor]) -> Vector:
        """The part of a state shaped like `y` that belongs to this draw."""
        return list(state)

    def write_state(self, state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Overwrite that part."""
        copy_(state, values)


class TableRows(LowerVariable):
    """The rows of the named tasks, for losses that may use the whole table: gradients in `y` are dense."""

    leaves_are_rows = False

    def __init__(self, tables: Vector, processes: Processes, ids: Any) -> None:
        super().__init__(tables, processes)
        self.ids = _checked_ids(ids, tables)
        self.blocks = len(self.ids)
        self.tasks = self.tasks_of_all = None if self.ids.is_cuda else frozenset(self.ids.tolist())
        self._everyone = [self.ids]
        self._split = False
        if processes.active:
            self._everyone = processes.gather(self.ids)
            if processes.tasks_are_split is None or not self.ids.is_cuda:  # on a GPU, decided by the first draw
                processes.tasks_are_split = _tasks_are_split(self._everyone)
            self._split = processes.tasks_are_split
            if not self.ids.is_cuda:
                self.tasks_of_all = frozenset(torch.cat(self._everyone).tolist())

    def refuse_other_tasks(self, named: Any) -> None:
        """Check that a batch is about these tasks too; on a GPU, where looking would make it wait, it is trusted."""
        if self.tasks is None or frozenset(_checked_ids(named, self.tables).tolist()) == self.tasks:
            return
        raise SampleError(
            f"A batch of the draw names the tasks {named}, another one {sorted(self.tasks)}. All batches of one draw "
            "name the same tasks; adambo.draws(tasks=...) makes such draws."
        )

    def rows(self, tensors: Sequence[Tensor]) -> Vector:
        return [t.index_select(0, self.ids) for t in tensors]

    def average(self, vector: Vector) -> Vector:
        return vector if self._split else self.processes.average(vector)

    def values(self) -> Vector:
        return self.of_state([leaf.detach() for leaf in self.leaves])

    def assign(self, values: Sequence[Tensor]) -> None:
        self.write_state(self.leaves, values)

    def assign_where(self, condition: Tensor, values: Sequence[Tensor]) -> None:
        self.assign([torch.where(condition, old, new) for old, new in zip(values, self.values(), strict=True)])

    def descend(self, gradient: Vector, optimizer: Optimizer, apply: Callable[[Optimizer], None]) -> None:
        # Plain SGD by hand (nothing else is accepted with tasks): an optimiser would go over the whole table.
        rate = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        self._move(gradient, [rate[table] for table in self.tables])

    def _move(self, gradient: Vector, rates: Sequence[float | Tensor]) -> None:
        self.assign([v - lr * d for v, lr, d in zip(self.values(), rates, gradient, strict=True)])

    def write_back(self) -> None:
        self.share([table.detach() for table in self.tables])

    def share(self, state: Sequence[Tensor]) -> None:
        if self._split:
            for table in state:
                mine = table.index_select(0, self.ids)
                for ids, theirs in zip(self._everyone, self.processes.gather(mine), strict=True):
                    table.index_copy_(0, ids, theirs)

    def of_state(self, state: Sequence[Tensor]) -> Vector:
        return [t.index_select(0, self.ids) for t in state]

    def write_state(self, state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for table, part in zip(state, values, strict=True):
                table.index_copy_(0, self.ids, part)
        forget_casts(state)


class GatheredRows(TableRows):
    """The rows of the named tasks as leaves of their own: nothing is dense in the number of tasks.

    Inside the losses, `table[ids]` is answered with those leaves. A loss that uses a table in any other way cannot be
    answered so; it raises `WholeTableUsed`, upon which a solver makes the problem go back to `TableRows`.
    """

    leaves_are_rows = True

    def __init__(self, tables: Vector, processes: Processes, ids: Any) -> None:
        super().__init__(tables, processes, ids)
        self.leaves = [t.detach().index_select(0, self.ids).requires_grad_() for t in tables]

    def reading(self) -> AbstractContextManager[Any]:
        return _RowLookup(self.tables, self.leaves, self.ids)

    def captured_inputs(self) -> Vector:
        return [self.ids, *self.leaves]

    def on_inputs(self, inputs: Vector) -> LowerVariable:
        there = copy(self)
        there.ids, *rows = inputs
        there.leaves = [row.detach().requires_grad_() for row in rows]
        return there

    def _unused(self, name: str) -> AdamboError:
        return WholeTableUsed(f"or not at all, in the {name} loss")

    def rows(self, tensors: Sequence[Tensor]) -> Vector:
        return list(tensors)

    def values(self) -> Vector:
        return clones(self.leaves)

    def assign(self, values: Sequence[Tensor]) -> None:
        copy_(self.leaves, values)

    def assign_where(self, condition: Tensor, values: Sequence[Tensor]) -> None:
        LowerVariable.assign_where(self, condition, values)

    def _move(self, gradient: Vector, rates: Sequence[float | Tensor]) -> None:
        if isinstance(rates[0], Tensor) or len(set(rates)) > 1:  # a scheduler's rate may live on the device
            super()._move(gradient, rates)
            return
        with torch.no_grad():
            add_(self.leaves, gradient, -rates[0])
        forget_casts(self.leaves)

    def write_back(self) -> None:
        self.write_state(self.tables, [leaf.detach() for leaf in self.leaves])
        super().write_back()


_QUESTIONS = {"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "is_leaf", "layout", "itemsize", "nbytes"}
_QUESTIONS |= {"size", "dim", "numel", "nelement", "__len__", "is_floating_point", "is_complex", "element_size"}


class _RowLookup(TorchFunctionMode):
    """Answers `table[ids]`, `index_select(table, 0, ids)` and `embedding(ids, table)` with the gathered rows."""

    def __init__(self, tables: Vector, rows: Vector, ids: Tensor) -> None:
        super().__init__()
        self.row_of = {id(table): row for table, row in zip(tables, rows, strict=True)}
        self.ids = ids

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        table = self._table_among((*args, *kwargs.values()))
        if table is None:
            return func(*args, **kwargs)
        name = func.__self__.__name__ if getattr(func, "__name__", "") == "__get__" else getattr(func, "__name__", "")
        if name in _QUESTIONS:
            return func(*args, **kwargs)
        rows = self.row_of[id(table)]
        if name == "__getitem__" and args[0] is table:
            index, *rest = args[1] if isinstance(args[1], tuple) else (args[1],)
            if _is_index(index):
                return self._found(rows, index, tuple(rest))
        if name == "index_select" and args[0] is table:
            dim, index = [*list(args[1:]), *(kwargs[k] for k in ("dim", "index") if k in kwargs)]
            if dim in (0, -rows.dim()) and _is_index(index):
                return self._found(rows, index)
        plain = all(kwargs.get(option) is None or kwargs[option] is False for option in _EMBEDDING)
        if name == "embedding" and plain and len(args) == 2 and args[1] is table:
            return self._found(rows, args[0])
        raise WholeTableUsed(name)

    def _table_among(self, arguments: Any) -> Any:
        for a in arguments:
            if id(a) in self.row_of:
                return a
            if (
                isinstance(a, list | tuple | dict)
                and (table := next((t for t in tree_leaves(a) if id(t) in self.row_of), None)) is not None
            ):
                return table
        return None

    def _found(self, rows: Tensor, index: Any, rest: tuple[Any, ...] = ()) -> Tensor:
        """rows[place of index, *rest]"""
        if index is self.ids and not any(isinstance(r, Tensor | list) for r in rest):
            return rows[(slice(None), *rest)] if rest else rows
        ordered, order = torch.sort(self.ids)
        index = torch.as_tensor(index, device=ordered.device)
        place = order[torch.searchsorted(ordered, index).clamp(max=len(order) - 1)]
        unknown = self.ids[place] != index
        found = rows[(place, *rest)]
        if self.ids.is_cuda:
            # A task that is not in the draw turns into NaN, which the guard reports; asking would make the GPU wait.
            return found.masked_fill(unknown.view(*unknown.shape, *[1] * (found.dim() - unknown.dim())), float("nan"))
        if unknown.any():
            raise SampleError(
                f"A loss asks for the rows of the tasks {index[unknown].tolist()}, but the draw is about the tasks "
                f"{ordered.tolist()}. All batches of one draw name the same tasks, so that one gathered set of rows "
                "serves them all; adambo.draws(tasks=...) makes such draws."
            )
        return found


_EMBEDDING = ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse")


def _is_index(index: Any) -> bool:
    if isinstance(index, list):
        return bool(index) and all(isinstance(task, int) and not isinstance(task, bool) for task in index)
    return isinstance(index, Tensor) and not index.is_floating_point() and index.dtype != torch.bool and index.dim() > 0


def _checked_ids(named: Any, tables: Vector) -> Tensor:
    device = tables[0].device
    try:
        ids: Tensor = torch.as_tensor(named, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SampleError(
            f"tasks(batch) gave {named!r}, which is no list or tensor of integers ({error}). Return for "
            "example batch.task_ids."
        ) from error
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool or len(ids) == 0:
        raise SampleError(
            f"tasks(batch) must name the tasks of the batch as a list or a tensor of integers, but it gave "
            f"{tuple(ids.shape)} of {ids.dtype}. Return for example batch.task_ids."
        )
    ids = ids.to(torch.int64)
    if device.type == "cpu":
        names = ids.tolist()
        if min(names) < 0 or max(names) >= len(tables[0]):
            raise SampleError(
                f"tasks(batch) named {names}, but y has rows for the tasks 0 to {len(tables[0]) - 1} only."
            )
        if len(set(names)) != len(names):
            raise SampleError(
                f"tasks(batch) named {names}: a task may stand in a batch only once, since its row is written once per "
                "step. Put all examples of a task together."
            )
    return ids


def _tasks_are_split(everyone: list[Tensor]) -> bool:
    """Whether each process has tasks of its own (True) or all have the same ones (False)."""
    if all(torch.equal(ids, everyone[0]) for ids in everyone):
        return False
    together = torch.cat(everyone)
    if len(torch.unique(together)) != len(together):
        raise SampleError(
            "Some processes have the same task in this step, and some have not. Give every process the same tasks (and "
            "its part of their examples), or give each process tasks that no other one has."
        )
    return True
