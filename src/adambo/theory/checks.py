"""What the numbers of the theory may be, and what to give instead of those that they may not."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from adambo.errors import SettingError

Statement = Literal["corrected", "printed"]
Numbers = Tensor | Sequence[float]


def is_number(value: object) -> bool:
    """Whether it is real and within float64."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_positive(values: Mapping[str, float], advice: str = "Give a number above 0.") -> None:
    for name, value in values.items():
        if not is_number(value) or value <= 0:
            raise SettingError(f"{name}={value!r} is not a positive, finite number. {_in_python(value) or advice}")


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not is_number(value) or value < 0:
            advice = _in_python(value) or "Give one."
            raise SettingError(f"{name}={value!r} is not a finite number of 0 or more. {advice}")


def check_whole(least: int, **values: int) -> None:
    """Whole numbers of any size."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            advice = _in_python(value) or "Give one."
            raise SettingError(f"{name}={value!r} is not a whole number of {least} or more. {advice}")


def check_probability(delta: float) -> None:
    if not is_number(delta) or not 0.0 < delta < 1.0:
        advice = _in_python(delta) or "Give a number between 0 and 1, such as 0.1."
        raise SettingError(f"delta={delta!r} is no probability of failure. {advice}")


def check_beta(beta: float) -> None:
    if not is_number(beta) or not 0.0 < beta <= 1.0:
        advice = _in_python(beta) or "It lies above 0 and is at most 1."
        raise SettingError(f"beta={beta!r} is no weight of a new sample. {advice}")


def check_sgd(mu: float, l_g1: float, sigma_g1: float, gamma: float, reason: str = "") -> None:
    """What every bound of the lower-level error asks of a step of SGD."""
    check_condition_number(mu, l_g1)
    check_not_negative(sigma_g1=sigma_g1)
    if gamma > 0.5 / l_g1 * (1.0 + 1e-12):  # one, and rounding
        raise SettingError(
            f"{reason}gamma={gamma:.6g}, above 1/(2 l_g1) = {0.5 / l_g1:.6g}: beyond that the bounds of SGD are not "
            "proved. Give a smaller one; with gamma = 2 beta/mu that is beta ≤ mu/(4 l_g1)."
        )


def check_condition_number(mu: float, l_g1: float) -> None:
    if mu > l_g1:
        raise SettingError(
            f"mu={mu!r} exceeds l_g1={l_g1!r}, but no function is more strongly convex than it is smooth: all "
            "eigenvalues of ∇²yy g lie between the two. Lower mu or raise l_g1; they may be equal."
        )


def check_statement(statement: str) -> None:
    if statement not in get_args(Statement):
        raise SettingError(f"statement={statement!r} is neither 'corrected' nor 'printed' (as in the paper).")


def as_numbers(name: str, numbers: Numbers | float) -> Tensor:
    """In float64."""
    try:
        return torch.as_tensor(numbers, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SettingError(f"{name} is no tensor or sequence of numbers: {error}.") from error


def recorded(**sequences: Numbers) -> list[Tensor]:
    """The numbers of a run, or of a batch of runs, in float64: one per step along the last axis, all of one shape.

    Raises:
        SettingError: If they are not norms, or not of the same steps.
    """
    tensors = {name: as_numbers(name, numbers) for name, numbers in sequences.items()}
    shapes = ", ".join(f"{name} has the shape {tuple(t.shape)}" for name, t in tensors.items())
    if len({t.shape[-1:] for t in tensors.values()}) > 1 or any(t.ndim == 0 for t in tensors.values()):
        raise SettingError(f"{shapes}: give one number of each per step, along the last axis.")
    for name, t in tensors.items():
        if not bool(((t >= 0.0) & t.isfinite()).all()):
            raise SettingError(f"{name} holds a number that is negative or not finite, which no norm is.")
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors.values()))  # type: ignore[no-untyped-call]
        return [t.expand(shape) for t in tensors.values()]
    except RuntimeError as error:
        raise SettingError(f"{shapes}: these are batches of different runs. Give the same runs of each.") from error


def _in_python(value: object) -> str:
    """Advice where it is a number, but one of NumPy or of PyTorch."""
    if isinstance(value, int | float) or not hasattr(value, "__float__"):
        return ""
    return f"It is of the type {type(value).__name__}: give a number of Python, as float(...) or int(...) makes it."
