"""Imbalanced sets of two classes, and their halves.

The AdamBO paper says that positives are removed until their share is p = 0.8 or 0.9. No removal of positives raises
their share; the released code keeps 1000 negatives and p/(1-p) times as many positives, and so does this module. The
training set shrinks to 5,000 or 10,000 examples by that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from adambo.errors import ConfigError, DataError
from adambo.sources import key_of


def imbalanced(labels: Sequence[int], positive_share: float, minority_kept: int, seed: int) -> list[int]:
    """Which examples to keep so that the share of class 1 is `positive_share`.

    Args:
        labels: 0 or 1 for each example.
        positive_share: p, between 0 and 1.
        minority_kept: How many of class 0 are kept; of class 1, p/(1-p) times as many (to the nearest whole number).
        seed: Which ones are kept depends on it.

    Returns:
        Indices, in the order of the data.

    Example:
        >>> kept = imbalanced([0, 1] * 50, positive_share=0.9, minority_kept=5, seed=0)
        >>> len(kept), sum(index % 2 for index in kept)
        (50, 45)
    """
    if not 0 < positive_share < 1 or minority_kept < 1:
        raise ConfigError(
            f"positive_share={positive_share} and minority_kept={minority_kept}: the share lies between 0 and 1, and "
            "at least one example of class 0 is kept."
        )
    # Not int(): 0.9/(1 - 0.9) is 9.000000000000002, and for other shares the error is downwards.
    wanted = (minority_kept, round(positive_share / (1 - positive_share) * minority_kept))
    members = members_by_class(labels, range(len(labels)))
    if set(members) != {0, 1}:
        found = ", ".join(str(label) for label in sorted(members)) or "none"
        raise DataError(f"An imbalanced set is made of the two classes 0 and 1, but the labels are: {found}.")
    for label, count in enumerate(wanted):
        if not 1 <= count <= len(members[label]):
            raise DataError(
                f"With positive_share={positive_share} and minority_kept={minority_kept}, {count} examples of class "
                f"{label} are kept, but there are {len(members[label])}. Change minority_kept or positive_share."
            )
    chance = random.Random(key_of(seed, "imbalance"))
    return sorted(index for label in (0, 1) for index in chance.sample(members[label], wanted[label]))


def left_out(count: int, kept: Sequence[int], share: float, seed: int) -> list[int]:
    """A validation split out of what imbalance leaves over: `share` of all `count` examples, none of them kept.

    The classes are as in the data, so few examples of one of them do not make its AUC a lottery, and training loses
    nothing.

    Returns:
        Indices in rising order; none where less is left over than is asked for.

    Example:
        >>> len(left_out(100, kept=range(40), share=0.2, seed=0)), left_out(100, range(90), 0.2, 0)
        (20, [])
    """
    rest = sorted(set(range(count)) - set(kept))
    wanted = round(share * count)
    return sorted(random.Random(key_of(seed, "left out")).sample(rest, wanted)) if wanted <= len(rest) else []


def halves(indices: Sequence[int], labels: Sequence[int], seed: int) -> tuple[list[int], list[int]]:
    """`indices` divided at random into a training and a validation half.

    Of each class, and in all, the two have equally many, up to one. Each half is in rising order.

    Args:
        indices: Which examples to divide; their order does not matter.
        labels: Of all examples of the data set, also of those that are not in `indices`.
        seed: Which half an example gets into depends on it.
    """
    chance = random.Random(key_of(seed, "halves"))
    parts: tuple[list[int], list[int]] = ([], [])
    for members in members_by_class(labels, sorted(set(indices))).values():
        chance.shuffle(members)
        # The odd one goes to the half which is smaller up to now.
        first, second = sorted(parts, key=len)
        middle = (len(members) + 1) // 2
        first.extend(members[:middle])
        second.extend(members[middle:])
    return sorted(parts[0]), sorted(parts[1])


def stratified(labels: Sequence[int], share: float, seed: int) -> tuple[list[int], list[int]]:
    """0 ... len(labels) - 1 divided at random: (kept, held out), the same share of each class held out, up to rounding.

    If the share is not 0, both parts get some of every class.

    Raises:
        DataError: If a class has a single example.
    """
    kept: list[int] = []
    held_out: list[int] = []
    for label, members in members_by_class(labels, range(len(labels))).items():
        if share > 0 and len(members) < 2:
            raise DataError(f"Class {label} has one example; a part of every class is to be held out, and one kept.")
        random.Random(key_of(seed, "stratified", label)).shuffle(members)
        count = min(max(round(share * len(members)), 1), len(members) - 1) if share > 0 else 0
        held_out += members[:count]
        kept += members[count:]
    return sorted(kept), sorted(held_out)


def members_by_class(labels: Sequence[int], indices: Sequence[int]) -> dict[int, list[int]]:
    """The indices of each class that occurs, in the order given; the classes in rising order."""
    members: dict[int, list[int]] = {}
    for index in indices:
        members.setdefault(labels[index], []).append(index)
    return dict(sorted(members.items()))
