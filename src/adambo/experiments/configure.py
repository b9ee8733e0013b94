"""From names, a file and single values to a checked configuration, every value of which knows where it comes from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, replace
from dataclasses import fields as config_fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from adambo.errors import ConfigError, RunError
from adambo.experiments import presets, settings
from adambo.experiments.catalogue import EXPERIMENTS, Experiment, Study
from adambo.experiments.config import RunConfig
from adambo.experiments.values import fitted, known, nearest, nested
from adambo.training.run_folder import RunFolder

_OF_A_RUN = ("experiment", "preset", "config", "sources")  # the keys of a run's own config.yaml


@dataclass(frozen=True)
class Configured:
    """One run, before it is made.

    Attributes:
        experiment: Its name.
        preset: Its name.
        config: What is set.
        sources: Where each value comes from, by dotted name: "paper", "authors' code", "ours: why", "library default",
            "config file", "given".
    """

    experiment: str
    preset: str
    config: RunConfig
    sources: dict[str, str]

    @property
    def values(self) -> dict[str, Any]:
        """The config as plain values."""
        return asdict(self.config)

    def changed(self, **values: Any) -> Configured:
        """With other values of the config."""
        sources = {**self.sources, **dict.fromkeys(values, "given")}
        return replace(self, config=replace(self.config, **values), sources=sources)


def experiment_named(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        ConfigError: If there is none, or it is a study, which is many runs.
    """
    found = EXPERIMENTS[known(name, EXPERIMENTS, "experiment")]
    if isinstance(found, Study):
        raise ConfigError(
            f"{name} is not one experiment but a study of several: `adambo run {name}` makes all its runs."
        )
    return found


def configure(
    experiment: str,
    algorithm: str | None = None,
    preset: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> Configured:
    """The configuration of one run: defaults, overridden by a preset, by a file, by single values.

    Args:
        experiment: A name of `EXPERIMENTS`.
        algorithm: Which one; else the one of `overrides`, of `file`, or adambo.
        preset: Which one; else that of `file`, or the experiment's first.
        overrides: By dotted name, such as {"epochs": 3, "settings.lr": 0.01}.
        file: What a YAML file holds: the same names, nested or dotted; or the config.yaml of a run.

    Raises:
        ConfigError: For names that do not exist, with the nearest that does, and for values that do not fit.
        SettingError: For values that the algorithm refuses.

    Example:
        >>> run = configure("digits", "SLIP", overrides={"epochs": 2, "settings.beta": 0.2})
        >>> run.config.algorithm, run.config.epochs, run.config.settings["beta"], run.sources["settings.beta"]
        ('slip', 2.0, 0.2, 'given')
    """
    chosen = experiment_named(experiment)
    given = presets.laid_over({}, overrides or {})
    from_file, file_preset = _of_file(file or {}, experiment)
    asked = (algorithm, given.get("algorithm"), from_file.get("algorithm"), "adambo")
    name = _allowed(settings.canonical(next(each for each in asked if each is not None)), chosen)
    _refuse_settings_of_another(from_file, name)
    preset = next(each for each in (preset, file_preset, presets.names(experiment)[0]) if each is not None)
    values, sources = presets.preset(experiment, name, preset)
    for layer, source in ((from_file, "config file"), (given, "given")):
        values = presets.laid_over(values, layer)
        # What a layer has put out of force, such as the step of another inverse, leaves no source behind.
        sources = {key: said for key, said in sources.items() if key in values} | dict.fromkeys(layer, source)
    values["algorithm"] = name
    sources["algorithm"] = "given" if algorithm else sources.get("algorithm", "library default")
    return _checked(chosen, preset, values, sources)


def of_run(run: RunFolder) -> Configured:
    """What a run was made with, whatever presets and defaults have become since.

    Raises:
        RunError: If this version cannot make such a run.
    """
    if run.experiment not in EXPERIMENTS:
        raise RunError(
            f"The run {run.path} is of {run.experiment!r}, which is not in the catalogue of experiments; the program "
            "that began it knows it."
        )
    try:
        chosen = experiment_named(run.experiment)
        return _checked(chosen, run.preset, presets.laid_over({}, run.config), dict(run.sources))
    except ConfigError as error:
        raise RunError(f"The run {run.path} cannot be made by this version: {error}") from error


def read_file(path: str | Path) -> dict[str, Any]:
    """The content of a config file.

    Raises:
        ConfigError: If it is not there, or not YAML with names on its top level.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        json.dumps(content, default=str)  # which refuses a tree that holds itself
    except UnicodeDecodeError as error:
        raise ConfigError(f"The config file {path} is no UTF-8 text.") from error
    except OSError as error:
        raise ConfigError(
            f"The config file {path} cannot be read: {(error.strerror or str(error)).lower()}."
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"The config file {path}{where} is no YAML: {what}.") from error
    except (RecursionError, ValueError) as error:  # nested without end, or numbers of thousands of digits
        raise ConfigError(f"The config file {path} holds what no config can: {str(error)[:80]}.") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"The config file {path} holds no names with values, such as `epochs: 3`.")
    return content


def _of_file(content: Mapping[str, Any], experiment: str) -> tuple[dict[str, Any], str | None]:
    """The values of a file by dotted name, and its preset."""
    content = dict(content)
    its_own, preset = content.pop("experiment", experiment), content.pop("preset", None)
    if its_own != experiment:
        raise ConfigError(f"The config file is for the experiment {its_own!r}, not for {experiment!r}.")
    if isinstance(content.get("config"), Mapping) and set(content) <= set(_OF_A_RUN):
        content = content["config"]
    return presets.laid_over({}, content), None if preset is None else str(preset)


def _allowed(algorithm: str, experiment: Experiment) -> str:
    if algorithm not in experiment.allowed:
        raise ConfigError(f"{algorithm} cannot run {experiment.name}, which takes {', '.join(experiment.allowed)}.")
    return algorithm


def _refuse_settings_of_another(from_file: Mapping[str, Any], algorithm: str) -> None:
    its_own = from_file.get("algorithm")
    has_settings = any(key.startswith("settings.") for key in from_file)
    if its_own is not None and has_settings and settings.canonical(its_own) != algorithm:
        raise ConfigError(f"The config file has settings of {its_own}, but the run is of {algorithm}.")


def _checked(experiment: Experiment, preset: str, values: dict[str, Any], sources: dict[str, str]) -> Configured:
    """Names and types checked, what is missing filled in with defaults, the algorithm built once for a trial."""
    forms = get_type_hints(experiment.config)
    parts = nested(values)
    own = parts.pop("settings", {})
    if not isinstance(own, Mapping):
        raise ConfigError(f"settings={own!r} does not fit: give names with values, such as settings.lr=0.01.")
    for key in parts:
        if key not in forms:
            raise ConfigError(f"{experiment.name} has no setting {key!r}. {_where_it_is(key, list(forms), parts)}")
    fitting = {key: fitted(value, forms[key], key) for key, value in parts.items()}
    for key, value in fitting.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value} does not fit: give a finite number.")
    algorithm = fitting["algorithm"]
    own = settings.in_types(algorithm, own)
    own = nested({**presets.laid_over({}, own), **settings.defaults(algorithm, own)})
    settings.try_out(algorithm, own)
    config = experiment.config(**{**fitting, "settings": own})
    for field in config_fields(experiment.config):
        if field.default is not MISSING:
            sources.setdefault(field.name, "library default")
    every = presets.laid_over({}, asdict(config))
    return Configured(experiment.name, preset, config, {key: sources.get(key, "library default") for key in every})


def _where_it_is(key: str, names: list[str], parts: Mapping[str, Any]) -> str:
    """The nearest name; or, for a setting of the algorithm, that its prefix is missing."""
    if key in settings.fields(str(parts["algorithm"])):
        return f"It is one of the algorithm's: settings.{key}."
    return nearest(key, names)
