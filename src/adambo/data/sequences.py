"""Rows of numbers of different lengths: a padded table that lies on the device once, and batches of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adambo.errors import DataError

PADDING = 0


class Padded(NamedTuple):
    """Some rows, each followed by zeros up to a common length."""

    tokens: Tensor
    """(n, length)"""
    lengths: Tensor
    """(n,), all 1 or more"""

    @property
    def mask(self) -> Tensor:
        """(n, length): True for the numbers of the row, False for padding."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]


class Sequences:
    """All rows of a data set, padded with 0, on a device.

    The lengths are known on the host as well, so a batch is no wider than its longest row, and to find that out nobody
    waits for the device.

    Args:
        rows: Numbers, 0 (padding) not among them; no row is empty.
        device: Where the table lies.
        multiple: Batches are widened to a multiple of it (8 suits tensor cores), but never beyond the longest row of
            all: a model may have no positions there.

    Example:
        >>> sequences = Sequences([[5, 6, 7], [8], [9, 9]])
        >>> sequences.take(torch.tensor([2, 1])).tokens
        tensor([[9, 9],
                [8, 0]])
    """

    def __init__(self, rows: Sequence[Sequence[int]], device: str | torch.device = "cpu", multiple: int = 1) -> None:
        if not rows:
            raise DataError("There are no rows to make a table of: the data set is empty.")
        empty = next((number for number, row in enumerate(rows) if not row), None)
        if empty is not None:
            raise DataError(
                f"Row {empty} of {len(rows)} is empty, and a model has nothing to read there. Give it a number that "
                "stands for unknown, as adambo.data.words.word_ids does."
            )
        self.lengths = torch.tensor([len(row) for row in rows])
        longest = int(self.lengths.max())
        table = torch.full((len(rows), longest), PADDING)
        table[torch.arange(longest) < self.lengths[:, None]] = torch.tensor([number for row in rows for number in row])
        self.device = torch.device(device)
        self.multiple = multiple
        self._table = table.to(self.device)
        self._lengths_there = self.lengths.to(self.device)

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, indices: Tensor) -> Padded:
        """The rows of `indices` (a tensor on the CPU), padded to the longest of them; does not wait for the device."""
        longest = int(self.lengths.index_select(0, indices).max())
        width = min(-(-longest // self.multiple) * self.multiple, self._table.shape[1])
        if self.device.type == "cuda":
            # Only pinned memory is copied while the host goes on.
            indices = indices.pin_memory().to(self.device, non_blocking=True)
        else:
            indices = indices.to(self.device)
        return Padded(self._table[:, :width].index_select(0, indices), self._lengths_there.index_select(0, indices))

    def buckets(self, indices: Tensor, count: int) -> list[Tensor]:
        """`indices` in `count` classes of similar length, short rows first; the sizes differ by one at most.

        There are fewer classes where there are fewer indices, so that none is empty.
        """
        ordered = indices[self.lengths[indices].sort(stable=True).indices]
        return list(ordered.tensor_split(min(count, len(indices))))

    def by_length(self, indices: Tensor, size: int) -> list[Tensor]:
        """`indices` by falling length, cut into parts of `size`, so that an evaluation pads little.

        The longest come first: the memory that they need serves all others.
        """
        ordered = indices[self.lengths[indices].sort(stable=True, descending=True).indices]
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]
