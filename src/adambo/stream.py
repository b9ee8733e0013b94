"""The stream that fills draws by (seed, step, role, index), so that a run can be repeated, resumed and read in part."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import distributed
from torch.utils.data import default_collate

from adambo.draw import Batch, Draw, LazyBatches, Needs
from adambo.errors import SettingError, StateError
from adambo.sources import Sequential, Slots, Source, as_slots, as_source, key_of, sizes_of, snapshot_sources


class DrawStream(Iterator[Draw]):
    """An endless, seekable stream of draws; `adambo.draws` makes one.

    The batch of (step, role, index) depends on the seed and on nothing else, so a run can be repeated, resumed in the
    middle, or read in part: a batch that nobody looks at is never made. An iterable source is the exception: it can
    only be read in order, is started again when it ends (a one-shot iterator ends the stream), and is replayed from
    its beginning by `seek`, so that it must give the same batches again (a shuffling `DataLoader` does not).
    """

    def __init__(
        self,
        upper: Source,
        lower: Source,
        needs: Needs,
        seed: int,
        reuse: bool,
        rank: int,
        tasks: Source = None,
        snapshot: tuple[Source, Source] | None = None,
    ) -> None:
        self.needs, self.seed, self.reuse, self.rank, self._tasks = needs, seed, reuse, rank, tasks
        self.step = 0
        self._snapshot = snapshot
        self._slotted = has_slots(needs)
        per_step = (needs.upper, 1 if reuse else needs.lower + needs.cross + needs.hessian)
        self._upper = upper if not isinstance(upper, Sequential) else upper.taking(per_step[0])
        self._lower = lower if not isinstance(lower, Sequential) else lower.taking(per_step[1])

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

    def slot_batches(self) -> tuple[Sequence[Batch], Sequence[Batch]]:
        """The batches of all lower slots and of all upper slots: `solver.fill_memory(*stream.slot_batches())`."""
        if not self._slotted:
            raise SettingError(
                "This stream has no slots: it was built with the needs of a method without a table, or with one slot "
                "per level, for which every batch is fresh."
            )
        lower, upper = (
            LazyBatches([self._slot_maker(source, role, slot) for slot in range(len(sizes_of(slots)))])
            for source, role, slots in zip(
                (self._lower, self._upper), ("lower", "upper"), self.needs.slots, strict=True
            )
        )
        return lower, upper

    def _draw(self, step: int) -> Draw:
        draw = self._slot_draw(step) if self._slotted else self._sampled_draw(step)
        return draw if self._snapshot is None else replace(draw, snapshot=self._large_draw(step))

    def _slot_draw(self, step: int) -> Draw:
        """A draw of two slots. With tasks both have one number, so that they are about the same tasks."""
        chance = random.Random(key_of(self.seed, step, "slot", 0))
        i, j = (chance.choices(range(len(sizes)), sizes)[0] for sizes in map(sizes_of, self.needs.slots))
        j = i if self._tasks is not None else j
        lower, upper = self.slot_batches()
        return Draw(upper[j : j + 1], lower[i : i + 1], seed=key_of(self.seed, step, "dropout", self.rank), slot=(i, j))

    def _slot_maker(self, source: Source, role: str, slot: int) -> Callable[[], Batch]:
        """A slot is one fixed minibatch, made anew whenever it is drawn, but always the same."""
        if isinstance(source, Slots):
            return lambda: source.batch(slot, self.seed, self.rank)
        keys = [role, slot, *([self.rank] if self.rank else [])]

        def generator(*key: Any) -> torch.Generator:
            return torch.Generator().manual_seed(key_of(self.seed, "slot", *key))

        if self._tasks is None:
            return lambda: source(generator(*keys))
        tasks = self._tasks
        return lambda: source(generator(*keys), tasks(generator("tasks", slot)))

    def _large_draw(self, step: int) -> Draw:
        """One large upper batch, and one large lower batch for all lower roles."""
        assert self._snapshot is not None
        upper, lower = (
            LazyBatches([self._maker(source, step, f"{role} snapshot", 0)])
            for source, role in zip(self._snapshot, ("upper", "lower"), strict=True)
        )
        return Draw(upper, lower, lower, LazyBatches([lambda: lower[0]] * self.needs.hessian))

    def _sampled_draw(self, step: int) -> Draw:
        needs = self.needs
        level = random.Random(key_of(self.seed, step, "level", 0)).randrange(needs.levels) if needs.levels else None
        seed = key_of(self.seed, step, "dropout", self.rank)
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
        if isinstance(source, Sequential):
            return tuple([source.at(step, offset + index) for index in range(count)])  # a list: StopIteration passes
        return LazyBatches([self._maker(source, step, role, index) for index in range(count)])

    def _maker(self, source: Source, step: int, role: str, index: int) -> Callable[[], Batch]:
        if isinstance(source, Sequential):
            return lambda: source.at(0, index)
        if isinstance(source, Slots):  # a warm start: any of them
            slot = random.Random(key_of(self.seed, role, index)).randrange(source.count)
            return self._slot_maker(source, role, slot)
        # The rank is part of the key only where there are ranks, so that one process draws as no process does.
        ranks = [self.rank] if self.rank else []
        seed, tasks = self.seed, self._tasks

        def generator(*key: Any) -> torch.Generator:
            return torch.Generator().manual_seed(key_of(seed, step, *key))

        if tasks is None:
            return lambda: source(generator(role, index, *ranks))
        # All roles of a step, on all processes, are about the same tasks; in a warm start each batch has its own.
        name = ("tasks", index) if role == "warm_start" else ("tasks",)
        return lambda: source(generator(role, index, *ranks), tasks(generator(*name)))


def has_slots(needs: Needs) -> bool:
    """Whether the data is divided. One slot per level is no division: its table corrects nothing."""
    return any(len(sizes_of(slots)) > 1 for slots in needs.slots)


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
    snapshot: int | tuple[Source, Source] | None = None,
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
        snapshot: For methods with a large batch (VRBO now and then, VR-AdamBO at first): its size, where the sources
            are datasets, or two functions like `upper` and `lower` that make it. It is drawn only when it is read.

    For a method with a table (`SABA`) the data is divided into fixed slots, and each draw names two of them: a dataset
    is shuffled once and split into as many parts as there are slots; a function is called with a generator that
    depends on the slot alone; of a list of batches, each is a slot. With one slot per level, batches are drawn as ever.

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
    if len(sizes) != 2 or not all(isinstance(size, int | None) and not isinstance(size, bool) for size in sizes):
        raise SettingError(f"batch_size={batch_size!r} must be an integer, or (upper, lower).")
    if not isinstance(seed, int):
        raise SettingError(f"seed={seed!r} must be an integer: everything random follows from it.")
    for name, function in (("tasks", tasks), ("collate", collate)):
        if function is not None and not callable(function):
            raise SettingError(f"{name}={function!r} cannot be called; it is a function.")
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    sources = [
        as_source(source, size, collate, name)
        for source, size, name in zip((upper, lower), sizes, ("upper", "lower"), strict=True)
    ]
    if tasks is not None and not (callable(upper) and callable(lower)):
        raise SettingError(
            "With tasks=, upper and lower must be functions (generator, tasks) -> batch: an iterable or a dataset "
            "does not know which tasks the step is about."
        )
    large = snapshot_sources(snapshot, (upper, lower), collate)
    if has_slots(needs):
        if tasks is not None and needs.slots[0] != needs.slots[1]:
            raise SettingError(
                f"With tasks=, a slot is a set of tasks for both levels, but lower_slots={needs.slots[0]} and "
                f"upper_slots={needs.slots[1]}. Give them the same number."
            )
        sources = [
            as_slots(source, made, size, slots, collate, name)
            for source, made, size, slots, name in zip(
                (upper, lower), sources, sizes, needs.slots[::-1], ("upper", "lower"), strict=True
            )
        ]
    return DrawStream(sources[0], sources[1], needs, seed, reuse, rank, tasks, large)
