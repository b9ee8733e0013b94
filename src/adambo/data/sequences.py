"""Rows of numbers of different lengths, on the device once, and batches of them: padded, packed, or word by word."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import cached_property
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


class Packed(NamedTuple):
    """Some rows, several of them behind one another on each shelf of a common length: little of it is padding.

    A model must keep them apart: a number may look at those with the same `owners`, and its place is in `positions`.
    """

    tokens: Tensor
    """(shelf, length)"""
    positions: Tensor
    """(shelf, length): the place of each number in its own row."""
    owners: Tensor
    """(shelf, length): 1 for the numbers of the first row, 2 for those of the second, ...; 0 for padding."""
    first: Tensor
    """(n,): where in the flattened shelves each row begins."""


class WordByWord(NamedTuple):
    """Some rows, the first number of each, then the second of each that has one, ...: what an RNN reads step by step.

    `torch.nn.utils.rnn.PackedSequence` has the same order, by falling length.
    """

    tokens: Tensor
    """(all numbers,)"""
    sizes: Tensor
    """(longest,): how many rows have a first number, a second, ...; on the host."""
    places: Tensor
    """(all numbers,): where in a flattened (n, longest) table each stands."""
    lengths: Tensor
    """(n,), in the order in which the rows were asked for"""


class Sequences:
    """All rows of a data set, on a device.

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
        self.device = torch.device(device)
        self.multiple = multiple
        self._lengths_there = self.lengths.to(self.device)
        # All rows behind one another, and a 0 for padding at the end.
        self._numbers = torch.tensor([*(number for row in rows for number in row), PADDING], device=self.device)
        self._begins = self.lengths.cumsum(0) - self.lengths

    @cached_property
    def _table(self) -> Tensor:
        """All rows, padded; whoever leaves padding out never makes it."""
        table = torch.full((len(self), int(self.lengths.max())), PADDING, device=self.device)
        there = torch.arange(table.shape[1], device=self.device) < self._lengths_there[:, None]
        return table.masked_scatter(there, self._numbers[:-1])

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, indices: Tensor) -> Padded:
        """The rows of `indices` (a tensor on the CPU), padded to the longest of them; does not wait for the device."""
        longest = int(self.lengths.index_select(0, indices).max())
        width = min(-(-longest // self.multiple) * self.multiple, self._table.shape[1])
        indices = self._there(indices)
        return Padded(self._table[:, :width].index_select(0, indices), self._lengths_there.index_select(0, indices))

    def pack(self, indices: Tensor, length: int = 64) -> Packed:
        """The rows of `indices` (on the CPU) on shelves of `length` or of the longest row; nobody waits.

        Example:
            >>> Sequences([[5, 6, 7], [8], [9, 9]]).pack(torch.tensor([2, 1, 0]), length=4).tokens
            tensor([[5, 6, 7, 8],
                    [9, 9, 0, 0]])
        """
        lengths = self.lengths[indices]
        longest = max(length, int(lengths.max()))
        width = -(-longest // self.multiple) * self.multiple
        first = torch.tensor(shelved(lengths.tolist(), width))
        owner, position = _each_number(lengths)
        shelves = -(-(int(first.max()) // width + 1) // self.multiple) * self.multiple
        plan = torch.zeros(3, shelves * width, dtype=torch.long)
        plan[0] = len(self._numbers) - 1
        plan[:, first[owner] + position] = torch.stack([self._begins[indices][owner] + position, position, owner + 1])
        source, positions, owners = self._there(plan).view(3, shelves, width)
        return Packed(self._numbers[source], positions, owners, self._there(first))

    def word_by_word(self, indices: Tensor) -> WordByWord:
        """The rows of `indices` (on the CPU) in the order of an RNN's steps; does not wait for the device.

        Example:
            >>> Sequences([[5, 6, 7], [8], [9, 9]]).word_by_word(torch.tensor([2, 1, 0])).tokens
            tensor([5, 9, 8, 6, 9, 7])
        """
        lengths = self.lengths[indices]
        longest = int(lengths.max())
        ordered = lengths.sort(stable=True, descending=True).indices
        present = torch.arange(longest)[:, None] < lengths[ordered]  # (step, row by falling length)
        step, rank = present.nonzero(as_tuple=True)
        row = ordered[rank]
        plan = torch.stack([self._begins[indices][row] + step, row * longest + step])
        source, places = self._there(plan)
        there = self._lengths_there.index_select(0, self._there(indices))
        return WordByWord(self._numbers[source], present.sum(1), places, there)

    def _there(self, on_host: Tensor) -> Tensor:
        if self.device.type == "cuda":  # only pinned memory is copied while the host goes on
            return on_host.pin_memory().to(self.device, non_blocking=True)
        return on_host.to(self.device)

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


def shelved(lengths: Sequence[int], width: int) -> list[int]:
    """Where each row begins on shelves of `width` behind one another: long rows first, each where it fits best.

    Example:
        >>> shelved([2, 3, 1], width=4)
        [4, 0, 3]
    """
    begins = [0] * len(lengths)
    room: list[tuple[int, int]] = []  # (what is left, which shelf), by what is left
    shelves = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        fit = bisect_left(room, (lengths[row], -1))
        if fit < len(room):
            left, shelf = room.pop(fit)
        else:
            left, shelf, shelves = width, shelves, shelves + 1
        begins[row] = (shelf + 1) * width - left
        insort(room, (left - lengths[row], shelf))
    return begins


def _each_number(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Of all numbers of rows behind one another: which row, and the place in it."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    begins = lengths.cumsum(0) - lengths
    return owner, torch.arange(len(owner)) - begins[owner]
