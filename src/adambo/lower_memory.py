"""What a method remembers in the space of `y` from step to step: z, y of the step before, averages of y."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from adambo.errors import StateError
from adambo.guard import Guard
from adambo.lower_variable import LowerVariable
from adambo.vectors import Vector, zeros


class LowerMemory:
    """Named vectors shaped like `y`. With tasks every task has a row, which only a visit to that task reads or writes.

    Args:
        y: The lower parameters.
        rows: The number of tasks; None where `y` is one lower variable.
    """

    def __init__(self, y: Vector, rows: int | None) -> None:
        self._y = y
        self._rows = rows
        self._tables: dict[str, Vector] = {}
        self._seen = torch.zeros(rows or 1, dtype=torch.bool, device=y[0].device)

    def blank(self) -> LowerMemory:
        """Another one for the same variable, with nothing in it."""
        return LowerMemory(self._y, self._rows)

    def read(self, name: str, y: LowerVariable, first: Vector) -> Vector:
        """What the last visit wrote under `name`; `first` where there was none."""
        if name not in self._tables:
            return first
        (seen,) = y.of_state([self._seen])
        pairs = zip(y.of_state(self._tables[name]), first, strict=True)
        return [torch.where(self._beside(seen, start), kept, start) for kept, start in pairs]

    def write(self, y: LowerVariable, values: Mapping[str, Vector], guard: Guard) -> None:
        """Remember `values`, by name, until the next visit; nothing changes where the guard has met a bad value."""
        for name, new in values.items():
            table = self._tables.setdefault(name, zeros(self._y))
            y.write_state(table, guard.masked(new, y.of_state(table)))
            y.share(table)
        if values:
            self._mark(y, True, guard)

    def forget(self, y: LowerVariable, guard: Guard) -> None:
        """Let the next visit be a first one."""
        self._mark(y, False, guard)

    def visited(self) -> torch.Tensor:
        """Which rows have been written, for `revisit`."""
        return self._seen.clone()

    def revisit(self, seen: torch.Tensor) -> None:
        """Go back to what `visited` told."""
        self._seen = seen

    def _mark(self, y: LowerVariable, seen: bool, guard: Guard) -> None:
        before = y.of_state([self._seen])
        y.write_state([self._seen], guard.masked([torch.full_like(flags, seen) for flags in before], before))
        y.share([self._seen])

    def _beside(self, seen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The flags of the rows, in a shape that spreads over the tensor `like`."""
        return seen.view(()) if self._rows is None else seen.view(-1, *[1] * (like.dim() - 1))

    def state_dict(self) -> dict[str, Any]:
        return {"tables": self._tables, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = [(p.shape, p.dtype) for p in self._y]
        for name, table in state["tables"].items():
            if [(t.shape, t.dtype) for t in table] != mine:
                raise StateError(f"The state has {name} as {[(tuple(t.shape), t.dtype) for t in table]}, unlike y.")
        if state["seen"].shape != self._seen.shape:
            raise StateError(f"The state is about {len(state['seen'])} tasks, the problem has {len(self._seen)}.")
        self._tables = {name: list(table) for name, table in state["tables"].items()}
        self._seen = state["seen"].to(self._seen.device)
