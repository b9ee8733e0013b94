"""Presets: the settings of the paper, and smaller ones, from presets/<experiment>.yaml, each value with its source.

default_source: paper          # of plain values in the first preset; in others "<name> preset", or their own `source`
paper:                         # the first preset is taken when none is named
  config: {epochs: 20, ...}    # a value with a source of its own is {value: 25, source: "ours: ..."}
  algorithms:
    slip: {warm_start: 3, settings: {lr: 0.1, ...}}
tiny: {based_on: paper, config: {...}, algorithms: {...}}
search:                        # for sweeps: [low, high] or {choices: [...]}, by dotted name
  settings.lr: [1.0e-4, 0.1]
  algorithms: {vrbo: {snapshot_batch: {choices: [32, 64]}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from adambo.experiments.settings import canonical, fields
from adambo.experiments.values import known

Range = tuple[float, float] | list[Any]  # low and high, on a logarithmic scale, or choices
_NO_PRESETS = ("default_source", "search")
_ONE_OR_THE_OTHER = ("settings.inverse.terms", "settings.inverse.products")


def names(experiment: str) -> list[str]:
    """The presets of an experiment; the first is taken when none is named."""
    return [name for name in _file(experiment) if name not in _NO_PRESETS] or ["default"]


def preset(experiment: str, algorithm: str, name: str | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and their sources, by dotted name such as "settings.lr".

    What a preset leaves out is the business of the config and of the algorithm, which have defaults.

    Raises:
        ConfigError: If there is no such preset.
    """
    algorithm, file = canonical(algorithm), _file(experiment)
    name = names(experiment)[0] if name is None else known(name, names(experiment), f"preset of {experiment}")
    part = file.get(name, {})
    values, sources = preset(experiment, algorithm, part["based_on"]) if "based_on" in part else ({}, {})
    source = part.get("source", file.get("default_source", "") if name == names(experiment)[0] else f"{name} preset")
    own = laid_over(part.get("config") or {}, (part.get("algorithms") or {}).get(algorithm) or {})
    marked = {key: item if _is_marked(item) else {"value": item, "source": source} for key, item in own.items()}
    values = laid_over(values, {key: item["value"] for key, item in marked.items()})
    sources = {**sources, **{key: item["source"] for key, item in marked.items()}}
    return values, {key: sources[key] for key in values}


def search_space(experiment: str, algorithm: str) -> dict[str, Range]:
    """What a sweep of this algorithm varies, and how far."""
    algorithm = canonical(algorithm)
    ranges = dict(_file(experiment).get("search", {"settings.lr": [1e-4, 0.1], "settings.lower_lr": [1e-4, 0.1]}))
    ranges |= ranges.pop("algorithms", {}).get(algorithm, {})
    has = fields(algorithm)
    return {
        key: choice["choices"] if isinstance(choice, dict) else (float(choice[0]), float(choice[1]))
        for key, choice in ranges.items()
        if not key.startswith("settings.") or key.split(".")[1] in has
    }


def laid_over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both, dotted; where they contradict each other, `upper`.

    Another inverse brings its own settings, so those of the one before go; and a length in products replaces one in
    terms.
    """
    lower, upper = _dotted(lower), _dotted(upper)
    gone: set[str] = set()
    inverse = [key for key in lower if key == "settings.inverse" or key.startswith("settings.inverse.")]
    if "settings.inverse" in upper or upper.get("settings.inverse.method", _method(lower)) != _method(lower):
        gone |= set(inverse)
    if any(key.startswith("settings.inverse.") for key in upper):
        gone |= {"settings.inverse"}
    if any(key in upper for key in _ONE_OR_THE_OTHER):
        gone |= set(_ONE_OR_THE_OTHER)
    return {**{key: value for key, value in lower.items() if key not in gone}, **upper}


def _method(values: Mapping[str, Any]) -> Any:
    return values.get("settings.inverse.method", "neumann")


def _dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, marked values left whole; `inverse: exact` is short for its method."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and not _is_marked(value):
            result |= {f"{key}.{below}": item for below, item in _dotted(value).items()}
        else:
            result[key] = value
    if isinstance(result.get("settings.inverse"), str):
        result["settings.inverse.method"] = result.pop("settings.inverse")
    return result


def _is_marked(item: Any) -> bool:
    return isinstance(item, Mapping) and set(item) == {"value", "source"}


@cache
def _file(experiment: str) -> dict[str, Any]:
    path = resources.files("adambo.experiments") / "presets" / f"{experiment}.yaml"
    if not path.is_file():
        return {}  # an experiment may have none
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content
