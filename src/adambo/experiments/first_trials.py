"""What a search begins with, before it adapts: the preset, and points that are spread evenly over the ranges."""

from __future__ import annotations

import math
from typing import Any

import optuna
from torch.quasirandom import SobolEngine

from adambo.experiments.presets import Range, laid_over
from adambo.experiments.sweep import Search, is_whole


def begin_evenly(study: optuna.Study, search: Search, trials: int, seed: int) -> None:
    """Let a study begin with so many of `even_points`."""
    if "begins_evenly" in study.user_attrs:
        return
    study.set_user_attr("begins_evenly", trials)
    for values in even_points(search, trials, seed):
        study.enqueue_trial(values, skip_if_exists=True)  # machines may begin at the same moment


def begin_at_preset(study: optuna.Study, search: Search) -> None:
    """Make the values of the preset the first trial, if the study has none yet and they lie in the ranges."""
    start = preset_point(search)
    if start is not None and not study.trials:
        study.enqueue_trial(start)


def even_points(search: Search, count: int, seed: int) -> list[dict[str, Any]]:
    """So many points that are spread evenly over the ranges (Sobol points, logarithmic).

    They depend on the ranges and the seed alone: all algorithms that are searched in the same ranges begin alike.
    Choices are taken in turn.
    """
    numbers = [key for key, range_ in search.ranges.items() if isinstance(range_, tuple)]
    engine: Any = SobolEngine
    places = engine(len(numbers), scramble=True, seed=seed).draw(count).tolist() if numbers else [[]] * count
    points = []
    for number, place in enumerate(places):
        values: dict[str, Any] = {key: range_[number % len(range_)] for key, range_ in search.ranges.items()}
        for key, share in zip(numbers, place, strict=True):
            low, high = search.ranges[key]
            value = low * (high / low) ** share
            values[key] = min(max(round(value), math.ceil(low)), math.floor(high)) if is_whole(key, search) else value
        points.append(values)
    return points


def preset_point(search: Search) -> dict[str, Any] | None:
    """The values of the preset; None if one is missing, or not in its range."""
    values = laid_over({}, search.configured({}).values)
    if any(key not in values for key in search.ranges):
        return None
    start = {key: values[key] for key in search.ranges}
    return start if all(_lies_in(range_, start[key]) for key, range_ in search.ranges.items()) else None


def _lies_in(range_: Range, value: Any) -> bool:
    """A preset may say "auto" or nothing at all where a search tries numbers."""
    if isinstance(range_, list):
        return value in range_
    return isinstance(value, int | float) and range_[0] <= value <= range_[1]
