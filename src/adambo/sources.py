"""Where batches come from: datasets, functions, iterables; and, for methods with a table, fixed slots of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from adambo.draw import Batch
from adambo.errors import SampleError, SettingError, StateError

Source = Any
Collate = Callable[[list[Any]], Batch]


def as_source(source: Source, size: int | None, collate: Collate, name: str) -> Source:
    if isinstance(source, tuple) and any(isinstance(part, Tensor) for part in source):
        raise SettingError(f"{name} is a tuple of tensors; wrap it: torch.utils.data.TensorDataset(*tensors).")
    if size is not None and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        if len(source) == 0:
            raise SettingError(f"The {name} dataset is empty: there is nothing to draw from.")
        if not 1 <= size <= len(source):
            raise SettingError(
                f"batch_size={size} cannot be drawn from the {name} dataset of {len(source)} examples without "
                f"repeats. Choose a number from 1 to {len(source)}."
            )
        return lambda generator: _collated(source, _distinct(len(source), size, generator), collate)
    if callable(source):
        return source
    if size is not None:
        raise SettingError(
            f"batch_size={size} was given for {name}={type(source).__name__}, which makes its own batches. Give its "
            "dataset instead, or leave batch_size out for it: batch_size=(upper, lower), with None for neither."
        )
    by_index = isinstance(source, Dataset) and not isinstance(source, IterableDataset)
    if isinstance(source, Iterable) and not by_index and not isinstance(source, dict) and not hasattr(source, "dtype"):
        return Sequential(source)
    raise SettingError(
        f"{name}={type(source).__name__} cannot be drawn from as it is. Give batch_size= with a map-style dataset "
        "(it needs len() and indexing), or a function generator -> batch, or an iterable of batches."
    )


def snapshot_sources(
    snapshot: int | tuple[Source, Source] | None, datasets: tuple[Source, Source], collate: Collate
) -> tuple[Source, Source] | None:
    if snapshot is None:
        return None
    if isinstance(snapshot, tuple) and len(snapshot) == 2 and all(callable(source) for source in snapshot):
        return snapshot
    if (
        isinstance(snapshot, int)
        and not isinstance(snapshot, bool)
        and not any(callable(source) for source in datasets)
    ):
        upper, lower = (as_source(source, snapshot, collate, "snapshot") for source in datasets)
        return upper, lower
    raise SettingError(
        f"snapshot={snapshot!r} is neither the size of a batch to be drawn from datasets, nor two functions "
        "(upper, lower) that make a large batch as the sources do (from a generator, and with tasks= from tasks)."
    )


def sizes_of(slots: int | tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of slots, or ones where only their number is known."""
    return (1,) * slots if isinstance(slots, int) else slots


def as_slots(
    source: Source, made: Source, size: int | None, slots: int | tuple[int, ...], collate: Collate, name: str
) -> Source:
    """The source of a role that is divided into slots."""
    count = len(sizes_of(slots))
    if callable(source) and not isinstance(source, Sequence | Dataset | Tensor):
        return made
    if not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        raise SettingError(
            f"{name}={type(source).__name__} can only be read in order, but a table needs the batch of any slot again. "
            "Give a dataset with batch_size=, a list of batches, or a function generator -> batch."
        )
    if size is None:
        if len(source) != count:
            raise SettingError(
                f"{name} is a list of {len(source)} batches for {count} slots. A slot is one fixed batch: build the "
                f"solver with {name}_slots={len(source)}."
            )
        return Slots(source, [], None)
    if isinstance(slots, tuple) and sum(slots) == len(source):
        return Slots(source, slots, collate)
    if -(-len(source) // size) != count or isinstance(slots, tuple):
        n, fitting = len(source), -(-len(source) // count)
        raise SettingError(
            f"{name}_slots={slots} and batch_size={size} disagree on a dataset of {n} examples: a slot is one fixed "
            f"batch, and so many slots hold up to {fitting} each. Give batch_size={fitting}, or build the solver with "
            f"{name}_slots={-(-n // size)}; where slots are given by their sizes, these add up to {n}."
        )
    ends = [len(source) * k // count for k in range(count + 1)]
    return Slots(source, [last - first for first, last in pairwise(ends)], collate)


class Slots:
    """Fixed batches: those of a list, or the parts of a dataset that was shuffled once."""

    def __init__(self, source: Any, sizes: Sequence[int], collate: Collate | None) -> None:
        self.source, self.collate = source, collate
        self.count = len(sizes) or len(source)
        self._ends = list(accumulate(sizes, initial=0))

    def batch(self, slot: int, *seed: int) -> Batch:
        if self.collate is None:
            return self.source[slot]
        order = random.Random(key_of(*seed, "slots")).sample(range(len(self.source)), len(self.source))
        return _collated(self.source, order[self._ends[slot] : self._ends[slot + 1]], self.collate)


class Sequential:
    """An iterable source, read in order: step t takes its items t·n to t·n + n − 1."""

    def __init__(self, source: Iterable[Batch], per_step: int = 0) -> None:
        self.source, self.per_step = source, per_step
        self._iterator: Iterator[Batch] | None = None
        self._position = 0
        self._recent: dict[int, Batch] = {}

    def taking(self, per_step: int) -> Sequential:
        return Sequential(self.source, per_step)

    def at(self, step: int, index: int) -> Batch:
        wanted = step * self.per_step + index
        if wanted in self._recent:
            return self._recent[wanted]
        if self._iterator is None or wanted < self._position:
            if self._iterator is not None and iter(self.source) is self.source:
                raise StateError(
                    f"The source is a one-shot iterator, already read up to item {self._position}, so item {wanted} "
                    "cannot be replayed. Give a list, a DataLoader or a dataset to be able to seek."
                )
            self._iterator, self._position, self._recent = iter(self.source), 0, {}
        while self._position <= wanted:
            batch = self._next()
            self._position += 1
        self._recent = {k: b for k, b in self._recent.items() if k >= step * self.per_step} | {wanted: batch}
        return batch

    def _next(self) -> Batch:
        assert self._iterator is not None
        for batch in self._iterator:
            return batch
        if self._position == 0:
            raise SampleError("The source of batches is empty: it gave nothing when it was read for the first time.")
        self._iterator = iter(self.source)
        return next(self._iterator)


def key_of(*parts: object) -> int:
    """A 63-bit number that depends on all of `parts`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _distinct(n: int, size: int, generator: torch.Generator) -> list[int]:
    seed = int(torch.randint(2**62, (), generator=generator))
    return random.Random(seed).sample(range(n), size)


def _collated(dataset: Any, indices: list[int], collate: Collate) -> Batch:
    if isinstance(dataset, Tensor):
        return dataset[indices]
    if isinstance(dataset, torch.utils.data.TensorDataset) and collate is default_collate:
        return [tensor[indices] for tensor in dataset.tensors]
    if hasattr(dataset, "__getitems__"):
        return collate(dataset.__getitems__(indices))
    return collate([dataset[index] for index in indices])
