"""Few-shot tasks, and parts of a data set that share nothing."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adambo.data.imbalance import members_by_class
from adambo.errors import ConfigError, DataError
from adambo.sources import key_of

# In each of so many attempts a task met classes which cannot fill it: there is none that can.
ATTEMPTS = 10_000


class Tasks(NamedTuple):
    """K tasks of equal shape, the support set of each in front of its query set."""

    examples: Tensor
    """(K, ways * (shots + queries)): which examples, on the CPU"""
    labels: Tensor
    """the class of each, as in the data set"""
    support: int
    """so many columns are the support set: ways * shots"""


def sample_tasks(
    labels: Sequence[int],
    *,
    classes: int,
    tasks: int,
    ways: int,
    shots: int,
    queries: int,
    seed: int,
    allow_small_classes: bool = False,
    among: Sequence[int] | None = None,
) -> Tasks:
    """Tasks of `ways` classes each, with `shots` support and `queries` query examples of every class.

    Support and query sets of a task have the same classes and different examples. (The AdamBO paper's "sampled from
    two disjoint categories" means two classes per task, not one for support and one for query.) Classes are drawn with
    equal probability, whatever their sizes, but only those with shots + queries examples or more.

    Args:
        labels: The class of every example, 0 ... classes - 1.
        classes: How many classes the data set has; some may have no examples.
        tasks: K.
        ways: Classes in a task.
        shots: Support examples of each class.
        queries: Query examples of each class.
        seed: Everything drawn follows from it.
        allow_small_classes: Draw also classes with too few examples, as the paper's released code does. There such a
            class contributes nothing: the task has one class less. Here its places are filled with further examples
            of the other classes of the task, as all tasks have one shape; no example occurs twice.
        among: Only these examples are used, in whatever order they are given; all, if not given.

    Raises:
        DataError: There are too few classes with enough examples.

    Example:
        >>> drawn = sample_tasks([0, 0, 1, 1, 2, 2], classes=3, tasks=4, ways=2, shots=1, queries=1, seed=0)
        >>> drawn.examples.shape, drawn.support
        (torch.Size([4, 4]), 2)
    """
    each = shots + queries
    members = members_by_class(labels, range(len(labels)) if among is None else sorted(set(among)))
    strange = [label for label in members if label not in range(classes)]
    if strange:
        raise DataError(f"The labels go from 0 to {classes - 1} for {classes} classes, but {strange[0]} occurs.")
    large = [label for label, indices in members.items() if len(indices) >= each]
    drawn_from = list(members) if allow_small_classes else large
    if len(drawn_from) < ways or not large:
        sizes = ", ".join(f"class {label}: {len(members.get(label, []))}" for label in range(classes))
        raise DataError(
            f"A task has {ways} classes with {each} examples each ({shots} to learn from, {queries} to be judged by), "
            f"but {len(large)} of {classes} classes have so many ({sizes}). Ask for fewer shots, queries or ways."
        )
    chance = random.Random(key_of(seed, "tasks"))
    supports, query_sets = [], []
    for _ in range(tasks):
        support: list[int] = []
        query: list[int] = []
        for label, places in _places(chance, drawn_from, {label: len(members[label]) for label in members}, ways, each):
            examples = chance.sample(members[label], places * each)
            support += examples[: places * shots]
            query += examples[places * shots :]
        supports.append(support)
        query_sets.append(query)
    chosen = torch.cat([torch.tensor(supports), torch.tensor(query_sets)], dim=1).long()
    return Tasks(chosen, torch.tensor(labels)[chosen], ways * shots)


def _places(
    chance: random.Random, drawn_from: Sequence[int], sizes: dict[int, int], ways: int, each: int
) -> list[tuple[int, int]]:
    """The classes of a task, and how many of its `ways` places each has: one, or more in place of small classes."""
    for _ in range(ATTEMPTS):
        drawn = chance.sample(drawn_from, ways)
        large = [label for label in drawn if sizes[label] >= each]
        if not large:
            continue
        places = [(label, len(range(turn, ways, len(large)))) for turn, label in enumerate(large)]
        if all(sizes[label] >= count * each for label, count in places):
            return places
    raise DataError(
        f"No task could be drawn: besides the classes with fewer than {each} examples, no class has enough to fill "
        "their places too. Ask for fewer shots or queries, or leave out small classes (allow_small_classes=False)."
    )


def distinct_indices(texts: Sequence[str], apart_from: Sequence[str] = ()) -> list[int]:
    """The first place of each text that is not among `apart_from`; case does not matter.

    Example:
        >>> distinct_indices(["Who?", "What?", "who?", "When?"], apart_from=["When?"])
        [0, 1]
    """
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text.lower(), place)
    for text in apart_from:
        first.pop(text.lower(), None)
    return list(first.values())


def split_indices(
    count: int, share: float, seed: int, groups: Sequence[Hashable] | None = None
) -> tuple[list[int], list[int]]:
    """0 ... count - 1 divided at random: (kept, held out), both in rising order.

    Args:
        count: How many examples there are.
        share: Of them to hold out, from 0 to below 1; the number is rounded. If it is not 0, both parts get some.
        seed: Which ones are held out depends on it.
        groups: The group of each example. A group is never divided, such as the pairs with one premise; the part held
            out then has as many examples as whole groups allow, and not more than without groups (unless even the
            smallest group is larger).

    Example:
        >>> kept, held_out = split_indices(4, share=0.5, seed=0, groups=["a", "b", "a", "b"])
        >>> sorted([kept, held_out])
        [[0, 2], [1, 3]]
    """
    if not 0 <= share < 1:
        raise ConfigError(f"share={share} cannot be held out: give a share from 0 to below 1.")
    if share == 0:
        return list(range(count)), []
    members: dict[Hashable, list[int]] = {}
    for index in range(count):
        members.setdefault(index if groups is None else groups[index], []).append(index)
    if len(members) < 2:
        raise DataError(
            f"A part of {count} examples in {len(members)} group(s) is to be held out, but a group is never divided, "
            "and both parts need one. Give more data, or hold out nothing (share 0)."
        )
    # Groups in the order in which they come, not by their hashes: those of strings differ from process to process.
    parts = list(members.values())
    random.Random(key_of(seed, "split")).shuffle(parts)
    target = min(max(round(share * count), 1), count - 1)
    held_out: list[int] = []
    for part in parts:
        if len(held_out) + len(part) <= target:
            held_out += part
    held_out = held_out or min(parts, key=len)
    out = set(held_out)
    return [index for index in range(count) if index not in out], sorted(held_out)
