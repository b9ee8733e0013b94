"""Points that are compared: values of x and y, and the lengths between them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from adambo.errors import NonFiniteError, StateError
from adambo.problem import Problem
from adambo.vectors import Vector, added, norm


class Place(NamedTuple):
    """Values of x, and of the part of y that a draw is about."""

    x: Vector
    y: Vector

    def moved(self, x: Vector, y: Vector, factor: float) -> Place:
        return Place(added(self.x, x, factor), added(self.y, y, factor))

    def beyond(self, other: Place) -> Place:
        """self − other"""
        return self.moved(other.x, other.y, -1.0)

    @property
    def length(self) -> float:
        return math.hypot(float(norm(self.x)), float(norm(self.y)))


def random_like(place: Place, seed: int) -> Place:
    """A random direction of length 1; the random numbers of the user's program stay as they were."""
    generator = torch.Generator().manual_seed(seed)
    parts = [[torch.randn(t.shape, generator=generator).to(t) for t in vector] for vector in place]
    length = Place(*parts).length
    return Place(*[[t / length for t in vector] for vector in parts])


def change_of(before: Vector, after: Vector) -> float:
    return float(norm(added(after, before, -1.0)))


def finite_norm(gradient: Vector, name: str) -> float:
    size = float(norm(gradient))
    if not math.isfinite(size):
        raise NonFiniteError(
            f"{name} is NaN or infinite at one of the points measured. Nothing was changed. Look at the batch, or "
            "measure over shorter steps."
        )
    return size


def positive_length(way: Place) -> float:
    length = way.length
    if length == 0:
        raise StateError(
            "The gradient of the upper loss is zero at this point, so there is no direction to measure along. Use "
            "probe.visit() and probe.measure(draw) around a step."
        )
    if not math.isfinite(length):
        raise NonFiniteError("The gradient of the upper loss is NaN or infinite at this point. Nothing was changed.")
    return length


def coarsest_rounding(problem: Problem) -> float:
    """The coarsest rounding that a gradient may have gone through."""
    device = problem.device.type
    autocast = torch.finfo(torch.get_autocast_dtype(device)).eps if torch.is_autocast_enabled(device) else 0.0
    return max(parameter_rounding(problem), autocast)


def parameter_rounding(problem: Problem) -> float:
    return max(torch.finfo(p.dtype).eps for p in (*problem.x, *problem.y))
