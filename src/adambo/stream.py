"""The stream that fills draws by (seed, step, role, index), so that a run can be repeated, resumed and read in part."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.utils.data import Dataset, IterableDataset, default_collate

from adambo.draw import Batch, Draw, LazyBatches, Needs
from adambo.errors import SampleError, SettingError, StateError

Source = Any


class DrawStream(Iterator[Draw]):
    """An endless, seekable stream of draws; `adambo.draws` makes one.

    The batch of (step, role, index) depends on the seed and on nothing else, so a run can be repeated, resumed in the
    middle, or read in part: a batch that nobody looks at is never made. An iterable source is the exception: it can
    only be read in order, is started again when it ends (a one-shot iterator ends the stream), and is replayed from
    its beginning by `seek`, so that it must give the same batches again (a shuffling `DataLoader` does not).
    """

    def __init__(
        self, upper: Source, lower: Source, needs: Needs, seed: int, reuse: bool, rank: int, tasks: Source = None
    ) -> None:
        self.needs, self.seed, self.reuse, self.rank, self._tasks = needs, seed, reuse, rank, tasks
        self.step = 0
        per_step = (needs.upper, 1 if reuse else needs.lower + needs.cross + needs.hessian)
        self._upper = upper if not isinstance(upper, _Sequential) else upper.taking(per_step[0])
        self._lower = lower if not isinstance(lower, _Sequential) else lower.taking(per_step[1])

    def __iter__(self) -> DrawStream:
        return self

    def __next__(self) -> Draw:
        draw = self._draw(self.step)
        self.step += 1
        return draw

    def seek(self, step: int) -> None:
        """Make `step` the next one."""
        if step < 0:
            raise SettingError(f"A stream has no step {step}: steps count from 0.")
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "step": self.step, "reuse": self.reuse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or set(state) != {"seed", "step", "reuse"}:
            raise StateError(f"The state of a stream is a dictionary of seed, step and reuse, but {state!r} was given.")
        if state["reuse"] != self.reuse:
            raise StateError(
                f"The saved stream had reuse={state['reuse']}, this one has reuse={self.reuse}: they draw different "
                "batches. Build it with the same arguments before loading."
            )
        self.seed = int(state["seed"])
        self.seek(int(state["step"]))

    def warm_start_batches(self, steps: int) -> Sequence[Batch]:
        """`steps` lower batches for `solver.warm_start`; no draw will hold them (of iterables: the first ones)."""
        return LazyBatches([self._maker(self._lower, 0, "warm_start", index) for index in range(steps)])

    def _draw(self, step: int) -> Draw:
        needs = self.needs
        level = random.Random(_key(self.seed, step, "level", 0)).randrange(needs.levels) if needs.levels else None
        seed = _key(self.seed, step, "dropout", self.rank)
        upper = self._batches(self._upper, step, "upper", needs.upper)
        if self.reuse:
            one = self._batches(self._lower, step, "lower", 1)
            lower, cross, hessian = (
                LazyBatches([lambda: one[0]] * n) for n in (needs.lower, needs.cross, needs.hessian)
            )
            return Draw(upper, lower, cross, hessian, level=level, seed=seed)
        return Draw(
            upper,
            self._batches(self._lower, step, "lower", needs.lower),
            self._batches(self._lower, step, "cross", needs.cross, needs.lower),
            self._batches(self._lower, step, "hessian", needs.hessian, needs.lower + needs.cross),
            level=level,
            seed=seed,
        )

    def _batches(self, source: Source, step: int, role: str, count: int, offset: int = 0) -> Sequence[Batch]:
        if isinstance(source, _Sequential):
            return tuple([source.at(step, offset + index) for index in range(count)])  # a list: StopIteration passes
        return LazyBatches([self._maker(source, step, role, index) for index in range(count)])

    def _maker(self, source: Source, step: int, role: str, index: int) -> Callable[[], Batch]:
        if isinstance(source, _Sequential):
            return lambda: source.at(0, index)
        # The rank is part of the key only where there are ranks, so that one process draws as no process does.
        ranks = [self.rank] if self.rank else []
        seed, tasks = self.seed, self._tasks

        def generator(*key: Any) -> torch.Generator:
            return torch.Generator().manual_seed(_key(seed, step, *key))

        if tasks is None:
            return lambda: source(generator(role, index, *ranks))
        # All roles of a step, on all processes, are about the same tasks; in a warm start each batch has its own.
        name = ("tasks", index) if role == "warm_start" else ("tasks",)
        return lambda: source(generator(role, index, *ranks), tasks(generator(*name)))


def draws(
    upper: Source,
    lower: Source,
    needs: Needs,
    seed: int = 0,
    reuse: bool = False,
    *,
    batch_size: int | tuple[int | None, int | None] | None = None,
    collate: Callable[[list[Any]], Batch] = default_collate,
    tasks: Callable[[torch.Generator], Any] | None = None,
) -> DrawStream:
    """A stream of draws for a solver.

    Args:
        upper: Where upper batches come from. One of: a map-style dataset (with `batch_size`; each batch is drawn
            without repeats, batches independently of each other); a callable that makes a batch from a
            `torch.Generator`; an iterable of batches, such as a `DataLoader`.
        lower: The same for all lower roles.
        needs: `solver.needs`.
        seed: Everything random follows from it. Each process of a distributed run draws its own batches, but the same
            truncation levels.
        reuse: One lower batch per step serves every lower role. Cheaper, and the Hessian factors are not independent.
        batch_size: For datasets: one number, or (upper, lower).
        collate: For datasets: makes a batch from a list of examples.
        tasks: For many-task problems: names the tasks of a step from a `torch.Generator`. The sources are then
            callables (generator, tasks) -> batch, and all batches of a step, on all processes, get the same tasks.

    Example:
        >>> numbers = torch.arange(100)
        >>> stream = draws(upper=numbers, lower=numbers, needs=Needs(upper=1, lower=1), batch_size=4)
        >>> [len(next(stream).upper[0]) for _ in range(2)]
        [4, 4]
        >>> stream.seek(0); first = next(stream).lower[0]
        >>> stream.seek(0); bool((next(stream).lower[0] == first).all())
        True
    """
    if not isinstance(needs, Needs):
        raise SettingError(f"needs={needs!r} does not say what a step needs. Give needs=solver.needs.")
    sizes = batch_size if isinstance(batch_size, tuple) else (batch_size, batch_size)
    if not all(isinstance(size, int | None) for size in sizes):
        raise SettingError(f"batch_size={batch_size!r} must be an integer, or (upper, lower).")
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    sources = [
        _as_source(source, size, collate, name)
        for source, size, name in zip((upper, lower), sizes, ("upper", "lower"), strict=True)
    ]
    if tasks is not None and not (callable(upper) and callable(lower)):
        raise SettingError(
            "With tasks=, upper and lower must be functions (generator, tasks) -> batch: an iterable or a dataset "
            "does not know which tasks the step is about."
        )
    return DrawStream(sources[0], sources[1], needs, seed, reuse, rank, tasks)


def _as_source(source: Source, size: int | None, collate: Callable[[list[Any]], Batch], name: str) -> Source:
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
        return _Sequential(source)
    raise SettingError(
        f"{name}={type(source).__name__} cannot be drawn from as it is. Give batch_size= with a map-style dataset "
        "(it needs len() and indexing), or a function generator -> batch, or an iterable of batches."
    )


class _Sequential:
    """An iterable source, read in order: step t takes its items t·n to t·n + n − 1."""

    def __init__(self, source: Iterable[Batch], per_step: int = 0) -> None:
        self.source, self.per_step = source, per_step
        self._iterator: Iterator[Batch] | None = None
        self._position = 0
        self._recent: dict[int, Batch] = {}

    def taking(self, per_step: int) -> _Sequential:
        return _Sequential(self.source, per_step)

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


def _key(*parts: object) -> int:
    """A 63-bit number that depends on all of `parts`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _distinct(n: int, size: int, generator: torch.Generator) -> list[int]:
    seed = int(torch.randint(2**62, (), generator=generator))
    return random.Random(seed).sample(range(n), size)


def _collated(dataset: Any, indices: list[int], collate: Callable[[list[Any]], Batch]) -> Batch:
    if isinstance(dataset, Tensor):
        return dataset[indices]
    if isinstance(dataset, torch.utils.data.TensorDataset) and collate is default_collate:
        return [tensor[indices] for tensor in dataset.tensors]
    if hasattr(dataset, "__getitems__"):
        return collate(dataset.__getitems__(indices))
    return collate([dataset[index] for index in indices])
