"""Settings that several algorithms have, checked at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from adambo.errors import SettingError
from adambo.inverse import Inverse
from adambo.problem import Problem

T = TypeVar("T")


def checked_weight(weight: float, name: str) -> float:
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight <= 1:
        raise SettingError(f"{name}={weight!r} is the weight of the new value in an average; it lies in (0, 1].")
    return weight


def checked_count(count: int, name: str, least: int = 1) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise SettingError(f"{name}={count!r} must be an integer of at least {least}.")
    return count


def checked_choice(choice: T, name: str, choices: Sequence[T]) -> T:
    if not any(type(choice) is type(known) and choice == known for known in choices):
        raise SettingError(f"{name}={choice!r} is not one of {', '.join(repr(c) for c in choices)}.")
    return choice


def refuse_sharded_x(problem: Problem, reason: str) -> None:
    """For methods that need several gradients in x per step, each by itself."""
    if problem.x_is_sharded:
        raise SettingError(
            f"x is sharded by FSDP2, which reduces gradients in an ordinary backward pass only, but {reason}. Use "
            "DistributedDataParallel, or another method."
        )


def checked_inverse(inverse: Inverse | None, default: Inverse) -> Inverse:
    """`inverse`, or `default` for None."""
    if not isinstance(inverse, Inverse | None):
        raise SettingError(f"inverse={inverse!r} is not an Inverse; give for example adambo.Neumann(terms=3).")
    return default if inverse is None else inverse
