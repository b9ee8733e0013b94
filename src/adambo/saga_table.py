"""SAGA: the last gradient of every slot of the data in a table, whose mean takes the noise out of a new gradient.

    saga(new) = new − table[k] + mean(table),      then  table[k] ← new

The mean is the one before the overwrite. If slot k is drawn with a chance in proportion to its size, saga(new) has the
expectation of `new`; where nothing moves and every row is up to date, it has no variance.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from adambo.draw import Batch
from adambo.errors import SampleError, SettingError, StateError
from adambo.guard import Guard
from adambo.table_store import TableStore
from adambo.vectors import Vector, copy_


class Slots:
    """A division of the data into fixed parts.

    Args:
        slots: How many there are, or the size of each: in the mean of a table a slot has the weight size/total.
        level: "lower" or "upper".

    Example:
        >>> len(Slots(4, "lower")), Slots([3, 1], "lower").weight(0)
        (4, 0.75)
    """

    def __init__(self, slots: int | Sequence[int], level: str) -> None:
        given = [slots] if isinstance(slots, int) else slots
        if (
            not isinstance(given, Sequence)
            or isinstance(given, str | bytes)
            or not given
            or not all(map(_is_size, given))
        ):
            raise SettingError(
                f"{level}_slots={slots!r} does not divide the data: give the number of slots, or a sequence with the "
                "size of each, in integers of at least 1."
            )
        self.level = level
        self.sizes = None if isinstance(slots, int) else list(slots)
        self._count, self._total = (given[0], given[0]) if self.sizes is None else (len(given), sum(given))

    def __len__(self) -> int:
        return self._count

    @property
    def shape(self) -> int | tuple[int, ...]:
        """What `Needs` wants to know: the sizes, or the number of slots if that is all that is known."""
        return self._count if self.sizes is None else tuple(self.sizes)

    def weight(self, slot: int) -> float:
        return (1 if self.sizes is None else self.sizes[slot]) / self._total

    def one_each(self, batches: Iterable[Batch]) -> Sequence[Batch]:
        """`batches`, if there is one for every slot."""
        if isinstance(batches, Tensor | str | bytes | dict) or not isinstance(batches, Iterable):
            raise SampleError(
                f"Here a sequence of {self.level} batches is needed, but came a {type(batches).__name__}."
            )
        found = batches if isinstance(batches, Sequence) else list(batches)
        if len(found) != len(self):
            raise SampleError(
                f"There are {len(self)} {self.level} slots, but {len(found)} batches were given for them. Give the "
                "batch of every slot, in the order of the slots, as stream.slot_batches() does."
            )
        return found


def rows_of(slot: Sequence[int] | None, lower: Slots, upper: Slots) -> tuple[int, int]:
    """The rows (lower, upper) that a draw is about; where each level has one, it need not say so."""
    if slot is None:
        if len(lower) == len(upper) == 1:
            return 0, 0
        raise SampleError(
            f"The data has {len(lower)} lower and {len(upper)} upper slots, but the draw does not say to which its "
            "batches belong. Build the stream with needs=solver.needs, or give Draw(..., slot=(lower, upper))."
        )
    i, j = slot if isinstance(slot, Sequence) and len(slot) == 2 else (None, None)
    if not (_is_size(i, least=0) and _is_size(j, least=0) and i < len(lower) and j < len(upper)):  # type: ignore[operator]
        raise SampleError(
            f"The draw has slot={slot!r}, but a slot is two integers, (lower, upper), from 0 to {len(lower) - 1} and "
            f"from 0 to {len(upper) - 1}. Build the stream with needs=solver.needs."
        )
    return i, j  # type: ignore[return-value]


class SagaTable:
    """One row per slot, each a vector shaped like `like`, and their running mean.

    A row is kept flat, one piece per dtype, so that it travels in one transfer. The mean is with the parameters and in
    their dtype, and moves by weight · (new − old). Each time it is rounded, so after T steps it may be off by some
    √T · ε of its size; `recompute_mean` repairs that.
    """

    def __init__(self, like: Vector, slots: Slots, store: TableStore, name: str) -> None:
        self._like, self.slots, self._store = like, slots, store
        self._members = _by_dtype(like)
        self.mean = [torch.zeros_like(part) for part in self.packed([p.detach() for p in like])]
        self._rows = [store.rows(len(slots), part, f"{name}.{k}") for k, part in enumerate(self.mean)]
        self._blank = True  # nothing but zeros so far

    def row(self, slot: int) -> Vector:
        return [self._store.fetched(part[slot]) for part in self._rows]

    def write(self, slot: int, row: Vector, mean: Vector) -> None:
        self._blank = False
        for part, new in zip(self._rows, row, strict=True):
            self._store.put(part[slot], new)
        copy_(self.mean, mean)

    def recompute_mean(self) -> None:
        """The mean from the rows themselves, without what rounding has added to the running one."""
        torch._foreach_zero_(self.mean)
        for slot in range(len(self.slots)):
            torch._foreach_add_(self.mean, self.row(slot), alpha=self.slots.weight(slot))

    def snapshot(self) -> Callable[[], None]:
        """A function that brings back what is here now. A copy is made, unless there is nothing but zeros."""
        blank, kept = self._blank, None if self._blank else copy.deepcopy(self.state_dict())

        def bring_back() -> None:
            if kept is None:
                self._store.wait()
                for part in (*self._rows, *self.mean):
                    part.zero_()
            else:
                self.load_state_dict(kept)
            self._blank = blank

        return bring_back

    def state_dict(self) -> dict[str, Any]:
        """The table itself, at rest: transfers into it have ended."""
        self._store.wait()
        return {"rows": self._rows, "mean": self.mean, "sizes": self.slots.sizes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a state into the memory that is here."""
        mine, theirs = self.state_dict(), state
        for name in ("rows", "mean"):
            forms, given = ([(tuple(t.shape), t.dtype) for t in part[name]] for part in (mine, theirs))
            if forms != given:
                raise StateError(
                    f"The state has the {name} of a table as {given}, this solver as {forms}. Build the solver with "
                    "the same numbers of slots before loading."
                )
        if mine["sizes"] != theirs["sizes"]:
            raise StateError(f"The state was saved with slots of sizes {theirs['sizes']}, not {mine['sizes']}.")
        copy_(self._rows, theirs["rows"])
        copy_(self.mean, theirs["mean"])
        self._blank = False

    def packed(self, vector: Vector) -> Vector:
        return [torch.cat([vector[k].reshape(-1) for k in members]) for members in self._members]

    def unpacked(self, flat: Sequence[Tensor]) -> Vector:
        parts: dict[int, Tensor] = {}
        for members, piece in zip(self._members, flat, strict=True):
            parts |= zip(members, torch.split(piece, [self._like[k].numel() for k in members]), strict=True)
        return [parts[k].view(p.shape) for k, p in enumerate(self._like)]


class Visit:
    """A new gradient of one slot, which is not in its table yet."""

    @torch.no_grad()
    def __init__(self, table: SagaTable, slot: int, new: Vector) -> None:
        self._table, self._slot = table, slot
        self._new, self._old = table.packed(new), table.row(slot)

    @torch.no_grad()
    def saga(self) -> Vector:
        """new − table[slot] + mean(table)"""
        # In this order a table of one row, which is its own mean, gives `new` to the last bit.
        table = self._table
        return table.unpacked(torch._foreach_add(self._new, torch._foreach_sub(table.mean, self._old)))

    @torch.no_grad()
    def keep(self, guard: Guard) -> None:
        """Write the row, unless the guard has met a bad value."""
        table, mean = self._table, self._new
        if len(table.slots) > 1:
            change = torch._foreach_sub(self._new, self._old)
            mean = list(torch._foreach_add(table.mean, change, alpha=table.slots.weight(self._slot)))
        table.write(self._slot, guard.masked(self._new, self._old), guard.masked(mean, table.mean))


class SagaTables:
    """Tables by name, made together so that their whole size is known beforehand.

    Args:
        layout: What the rows of each are shaped like, and what they stand for.
        store, device: Where they live; see `TableStore`.
    """

    def __init__(
        self, layout: Mapping[str, tuple[Vector, Slots]], store: str | os.PathLike[str], device: torch.device
    ) -> None:
        place = TableStore(store, device)
        means = int(place.holds_parameters)  # they are with the parameters, wherever the rows are
        parts = [
            (len(slots) + means, sum(like[k].nbytes for k in members))
            for like, slots in layout.values()
            for members in _by_dtype(like)
        ]
        if layout:
            place.announce(parts, "rows: " + ", ".join(f"{name} {len(s):,}" for name, (_, s) in layout.items()))
        self._tables = {name: SagaTable(like, slots, place, name) for name, (like, slots) in layout.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def visits(self) -> Visits:
        return Visits(self._tables)

    @contextmanager
    def refilled(self) -> Iterator[None]:
        """While the block runs every row is written; if it raises, everything is as it was."""
        undo = [table.snapshot() for table in self._tables.values()]
        try:
            yield
        except BaseException:
            for bring_back in undo:
                bring_back()
            raise
        for table in self._tables.values():
            table.recompute_mean()

    def state_dict(self) -> dict[str, Any]:
        return {name: table.state_dict() for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self._tables):
            raise StateError(
                f"The state has tables of {sorted(state)}, this solver of {sorted(self._tables)}. Build the solver "
                "with the same settings before loading."
            )
        for name, table in self._tables.items():
            table.load_state_dict(state[name])


class Visits:
    """What one step does with the tables."""

    def __init__(self, tables: Mapping[str, SagaTable]) -> None:
        self._tables = tables
        self._visits: list[Visit] = []

    def saga(self, name: str, slot: int, new: Vector) -> Vector:
        """new − table[slot] + mean(table); just `new` if there is no table of that name."""
        if name not in self._tables:
            return new
        self._visits.append(Visit(self._tables[name], slot, new))
        return self._visits[-1].saga()

    def keep(self, guard: Guard) -> None:
        """The step is judged: write the rows."""
        for visit in self._visits:
            visit.keep(guard)


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[int]]:
    """The places of the tensors of each dtype."""
    places: dict[torch.dtype, list[int]] = {}
    for k, t in enumerate(tensors):
        places.setdefault(t.dtype, []).append(k)
    return list(places.values())


def _is_size(size: object, least: int = 1) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= least
