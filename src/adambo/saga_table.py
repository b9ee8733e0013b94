"""SAGA: the last gradient of every slot of the data in a table, whose mean takes the noise out of a new gradient.

    d = new − table[i] + mean(table),      then  table[i] ← new

With slot i drawn in proportion to its size, d has the expectation of `new`; where x and y stand still and every row
is up to date, it has no variance. The mean is the one before the overwrite.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adambo.errors import SettingError, StateError
from adambo.guard import Guard
from adambo.vectors import Vector, copy_

logger = logging.getLogger("adambo")


class Slots:
    """A division of the data into fixed parts.

    Args:
        slots: How many there are, or the size of each: in the mean of a table a slot has the weight size/total.
        name: What messages call it.

    Example:
        >>> len(Slots(4, "lower_slots")), Slots([3, 1], "lower_slots").weight(0)
        (4, 0.75)
    """

    def __init__(self, slots: int | Sequence[int], name: str) -> None:
        given = [slots] if isinstance(slots, int) else slots
        if not isinstance(given, Sequence) or isinstance(given, str) or not given or not all(map(_is_count, given)):
            raise SettingError(
                f"{name}={slots!r} does not divide the data: give the number of slots, or a sequence with the size of "
                "each, in integers of at least 1."
            )
        self.sizes = None if isinstance(slots, int) else list(slots)
        self._count, self._total = (given[0], given[0]) if self.sizes is None else (len(given), sum(given))

    def __len__(self) -> int:
        return self._count

    def weight(self, slot: int) -> float:
        return (1 if self.sizes is None else self.sizes[slot]) / self._total


class SagaTable:
    """One row per slot, each a vector shaped like `like`, and their running mean.

    A row is kept flat, one piece per dtype, so that it travels in one transfer. The mean is on the device of `like`
    and in its dtype, and moves by weight · (new − old); each step rounds it anew, so that in T steps it may be off by
    some √T · ε of its size, which `recompute_mean` repairs.

    Args:
        like: The parameters that the rows are shaped like.
        slots: What the rows stand for.
        store: Where the rows live.
        name: Of the table.
    """

    def __init__(self, like: Vector, slots: Slots, store: Store, name: str) -> None:
        self._like, self.slots, self._store = like, slots, store
        self._members = _by_dtype(like)
        flat = self._packed([p.detach() for p in like])
        self._rows = [store.rows(len(slots), part, f"{name}.{k}") for k, part in enumerate(flat)]
        self._mean = [torch.zeros_like(part) for part in flat]
        self._blank = True  # nothing was written yet: all zeros

    def visit(self, slot: int, new: Vector) -> Visit:
        """Compare the new gradient of a slot with what the table has of it; nothing is written."""
        return Visit(self, slot, new)

    def recompute_mean(self) -> None:
        """The mean from the rows themselves, without what rounding has added to the running one."""
        copy_(self._mean, [torch.zeros_like(part) for part in self._mean])
        for slot in range(len(self.slots)):
            torch._foreach_add_(self._mean, self._row(slot), alpha=self.slots.weight(slot))

    def snapshot(self) -> Callable[[], None]:
        """A function that brings back what the table holds now. A copy is made unless that is nothing but zeros."""
        blank, kept = self._blank, None if self._blank else copy.deepcopy(self.state_dict())

        def bring_back() -> None:
            if kept is None:
                self._store.wait()
                for part in (*self._rows, *self._mean):
                    part.zero_()
            else:
                self.load_state_dict(kept)
            self._blank = blank

        return bring_back

    def state_dict(self) -> dict[str, Any]:
        """The table itself, not a copy, at rest: transfers into it have ended."""
        self._store.wait()
        return {"rows": self._rows, "mean": self._mean, "sizes": self.slots.sizes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a state into the memory that the table has."""
        for name, mine in (("rows", self._rows), ("mean", self._mean)):
            forms, theirs = ([(tuple(t.shape), t.dtype) for t in part] for part in (mine, state[name]))
            if forms != theirs:
                raise StateError(
                    f"The state has the {name} of a table as {theirs}, this solver as {forms}. Build it with the same "
                    "number of slots, and the same model, before loading."
                )
        if state["sizes"] != self.slots.sizes:
            raise StateError(f"The state was saved with slots of sizes {state['sizes']}, not {self.slots.sizes}.")
        self._store.wait()
        copy_(self._rows, state["rows"])
        copy_(self._mean, state["mean"])
        self._blank = False

    def _row(self, slot: int) -> Vector:
        """A row on the device of the parameters; where it lives there, the row itself."""
        return [self._store.fetched(part[slot], mean.device) for part, mean in zip(self._rows, self._mean, strict=True)]

    def _write(self, slot: int, row: Vector, mean: Vector) -> None:
        self._blank = False
        for part, new in zip(self._rows, row, strict=True):
            self._store.put(part[slot], new)
        copy_(self._mean, mean)

    def _packed(self, vector: Vector) -> Vector:
        return [torch.cat([vector[k].reshape(-1) for k in members]) for members in self._members]

    def _unpacked(self, flat: Vector) -> Vector:
        parts: dict[int, Tensor] = {}
        for members, piece in zip(self._members, flat, strict=True):
            parts |= zip(members, torch.split(piece, [self._like[k].numel() for k in members]), strict=True)
        return [parts[k].view(p.shape) for k, p in enumerate(self._like)]


class Visit:
    """A new gradient of one slot, before it is written into its table."""

    @torch.no_grad()
    def __init__(self, table: SagaTable, slot: int, new: Vector) -> None:
        self._table, self._slot = table, slot
        self._new, self._old = table._packed(new), table._row(slot)

    @property
    @torch.no_grad()
    def direction(self) -> Vector:
        """new − table[slot] + mean(table)"""
        # In this order a table of one row, which is its own mean, gives `new` to the last bit.
        correction = torch._foreach_sub(self._table._mean, self._old)
        return self._table._unpacked(list(torch._foreach_add(self._new, correction)))

    @torch.no_grad()
    def keep(self, guard: Guard) -> None:
        """Write the row, unless the guard has met a bad value."""
        table, weight = self._table, self._table.slots.weight(self._slot)
        mean = self._new
        if len(table.slots) > 1:
            change = torch._foreach_sub(self._new, self._old)
            mean = list(torch._foreach_add(table._mean, change, alpha=weight))
        table._write(self._slot, guard.masked(self._new, self._old), guard.masked(mean, table._mean))


class Store:
    """Where the rows of tables live; announced, and refused where they do not fit, before memory is taken.

    Args:
        kind: "device" (where the parameters are), "cpu" (host memory, pinned if the parameters are on CUDA: transfers
            then take their turn on the device, and nobody waits for them), "disk" (a memory-mapped file in a temporary
            directory) or an existing directory (the same there). The file goes with the store. On CUDA, a file makes
            every step wait for the device.
        device: Where the parameters are.
    """

    def __init__(self, kind: str | os.PathLike[str], device: torch.device) -> None:
        named = isinstance(kind, str) and kind in ("device", "cpu", "disk")
        if not named and not (isinstance(kind, str | os.PathLike) and Path(kind).is_dir()):
            raise SettingError(f"store={kind!r} is neither 'device', 'cpu', 'disk' nor a directory that exists.")
        self._parent = None if kind in ("device", "cpu") else Path(tempfile.gettempdir() if kind == "disk" else kind)
        self._home = device
        self._device = device if kind == "device" else torch.device("cpu")
        self._pinned = kind == "cpu" and device.type == "cuda"
        self._directory: Path | None = None

    def make(self, owner: str, layout: Mapping[str, tuple[Vector, Slots]], advice: str) -> dict[str, SagaTable]:
        """Tables by name, shaped and divided as `layout` says.

        Raises:
            SettingError: If they do not fit; it ends with `advice`.
        """
        if not layout:
            return {}
        needed = sum(self._bytes(len(slots), like) for like, slots in layout.values())
        rows = ", ".join(f"{name}: {len(slots):,}" for name, (_, slots) in layout.items())
        free = self.free_bytes()
        size = f"{_readable(needed)} ({needed:,} bytes)"
        if free is not None and needed > free:
            raise SettingError(
                f"The tables of {owner} (rows of {rows}) need {size}, but {self._place()} has {_readable(free)} "
                f"({free:,} bytes) free. {advice}"
            )
        logger.warning("%s keeps %s in %s: tables with rows of %s.", owner, size, self._place(), rows)
        if self._parent is not None:
            self._directory = Path(tempfile.mkdtemp(prefix="adambo-tables-", dir=self._parent))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        return {name: SagaTable(like, slots, self, name) for name, (like, slots) in layout.items()}

    def rows(self, count: int, like: Tensor, name: str) -> Tensor:
        """Memory for `count` rows like the flat tensor `like`, filled with zeros."""
        shape = (count, like.numel())
        if self._directory is None:
            return torch.zeros(shape, dtype=like.dtype, device=self._device, pin_memory=self._pinned)
        path = self._directory / name
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # a hole in a file that cannot be filled later would kill the process
                os.posix_fallocate(file.fileno(), 0, count * like.nbytes)
            else:
                file.truncate(count * like.nbytes)
        return torch.from_file(str(path), shared=True, size=count * like.numel(), dtype=like.dtype).view(shape)

    def fetched(self, row: Tensor, device: torch.device) -> Tensor:
        return row.to(device, non_blocking=self._pinned)

    def put(self, row: Tensor, values: Tensor) -> None:
        row.copy_(values, non_blocking=self._pinned)

    def wait(self) -> None:
        """Let transfers end, before the host looks at the rows."""
        if self._pinned:
            torch.cuda.synchronize(self._home)

    def free_bytes(self) -> int | None:
        """What is free there; None where nobody can tell."""
        if self._parent is not None:
            return shutil.disk_usage(self._parent).free
        if self._device.type == "cuda":
            cached = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
            return torch.cuda.mem_get_info(self._device)[0] + cached
        return free_host_bytes()

    def _bytes(self, count: int, like: Vector) -> int:
        """What a table takes. Running means (a row per table) stay with the parameters; here they count if that is here."""
        parts = [sum(like[k].nbytes for k in members) for members in _by_dtype(like)]
        if self._pinned:  # torch hands out pinned memory in powers of two
            return sum(1 << (count * part - 1).bit_length() for part in parts)
        return (count + (like[0].device == self._device and self._parent is None)) * sum(parts)

    def _place(self) -> str:
        if self._parent is not None:
            return f"the directory {self._parent}"
        kind = "pinned host" if self._pinned else "host" if self._device.type == "cpu" else f"{self._device}"
        return f"{kind} memory"


class Visits:
    """The visits of one step to tables by name. Where there is no such table, the gradient goes as it is."""

    def __init__(self, tables: Mapping[str, SagaTable]) -> None:
        self._tables = tables
        self._visits: list[Visit] = []

    def saga(self, name: str, slot: int, new: Vector) -> Vector:
        """new − table[slot] + mean(table)"""
        if name not in self._tables:
            return new
        self._visits.append(self._tables[name].visit(slot, new))
        return self._visits[-1].direction

    def keep(self, guard: Guard) -> None:
        """The step is judged: write the rows."""
        for visit in self._visits:
            visit.keep(guard)


def free_host_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    names = getattr(os, "sysconf_names", {})
    pages = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names), None)
    return None if pages is None else os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[int]]:
    """The places of the tensors of each dtype."""
    places: dict[torch.dtype, list[int]] = {}
    for k, t in enumerate(tensors):
        places.setdefault(t.dtype, []).append(k)
    return list(places.values())


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


def _readable(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
