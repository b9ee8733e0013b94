"""Searching for good settings with Optuna. A trial is a run; a storage that machines share makes them one search."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import optuna
import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from rich.console import Console

from adambo.errors import AdamboError, ConfigError, CurvatureError, NonFiniteError, RunError, SettingError
from adambo.experiments import runner, settings
from adambo.experiments.configure import Configured, experiment_named
from adambo.experiments.lines import line
from adambo.experiments.presets import Range
from adambo.experiments.trial_record import TrialRecord
from adambo.experiments.values import nested
from adambo.sources import key_of
from adambo.training.run_folder import RunFolder

Make = Callable[[Mapping[str, Any]], Configured]
BAD_SETTINGS = (CurvatureError, NonFiniteError, SettingError)  # other ones may do
HELD_OUT = 0.1  # the share that is held out to choose by, unless the config says how much


@dataclass(frozen=True)
class Search:
    """What is searched.

    Attributes:
        make: The configuration with these values, by dotted name.
        ranges: What is varied, and how far.
        objective: Which split is scored; never the test split.
        folder: Of the runs.
        command: As it was typed, for the record.
    """

    make: Make
    ranges: dict[str, Range]
    objective: Literal["validation", "train"]
    folder: Path
    command: tuple[str, ...] = ()

    def configured(self, values: Mapping[str, Any]) -> Configured:
        made = self.make(values)
        held_out = made.config.validation or (HELD_OUT if self.objective == "validation" else 0.0)
        if held_out == made.config.validation:
            return made
        sources = {**made.sources, "validation": "ours: a sweep chooses by data that are held out"}
        return replace(made, config=replace(made.config, validation=held_out), sources=sources)


@dataclass(frozen=True)
class Ended:
    """How a search ended: the signal that has stopped it, if one did."""

    signal: int | None = None


def open_study(name: str, storage: str, search: Search, seed: int) -> optuna.Study:
    """The study of this name, made if there is none.

    Args:
        name: Of the study; machines that share it search together.
        storage: Its URL.
        search: What it is about; it must be the same for all who join.
        seed: Of the sampler. Each machine should have its own.

    Raises:
        ConfigError: If the storage cannot be used, or the study is about something else.
    """
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    about = _about(search)
    try:
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
        if "about" not in study.user_attrs:
            study.set_user_attr("about", about)
        known, count = study.user_attrs["about"], len(study.trials)
    except Exception as error:  # of SQLAlchemy, of a driver, of Optuna
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        said = said.replace(storage, masked(storage)).rstrip(".")
        raise ConfigError(
            f"The storage {masked(storage)!r} cannot be used: {said}. Give a URL such as sqlite:///sweep.db."
        ) from error
    if known != about:
        raise ConfigError(
            f"The study {name!r} in {masked(storage)} is about other settings or ranges. Name another --study."
        )
    # Not the same numbers again when a search is continued.
    study.sampler = optuna.samplers.TPESampler(seed=key_of(seed, "sampler", count) % 2**32)
    return study


def masked(text: str) -> str:
    """A URL without what may be a password in it; other text as it is.

    Example:
        >>> masked("postgresql://me:secret@host/sweeps?sslkey=x")
        'postgresql://***@host/sweeps?***'
    """
    return re.sub(r"://[^@/]*@", "://***@", re.sub(r"(://[^?]*)\?.*", r"\1?***", text))


def sweep(study: optuna.Study, search: Search, trials: int, console: Console) -> Ended:
    """Make so many trials. One that diverges is pruned, so that the search turns elsewhere.

    Raises:
        AdamboError: If something is wrong with all runs, such as missing data.
    """
    distributions = {key: distribution(key, range_, search) for key, range_ in search.ranges.items()}
    record = record_of(search)
    for _ in range(trials):
        trial = study.ask(distributions)
        configured = search.configured(trial.params)
        folder = _free(search.folder / f"trial-{trial.number:05d}")
        shown = ", ".join(f"{key}={_short(value)}" for key, value in trial.params.items())
        try:
            outcome = runner.run(configured, folder, console, quiet=True, command=search.command)
        except BAD_SETTINGS as error:
            study.tell(trial, state=TrialState.PRUNED)
            record.add(trial.number, trial.params, "failed", str(error))
            line(console, f"Trial {trial.number}, {shown}: failed. {error}")
            continue
        except BaseException:
            study.tell(trial, state=TrialState.FAIL)
            raise
        if outcome.state == "interrupted":
            study.tell(trial, state=TrialState.FAIL)
            return Ended(outcome.signal)
        if outcome.state == "diverged":
            study.tell(trial, state=TrialState.PRUNED)
            record.add(trial.number, trial.params, "diverged", outcome.reason, folder)
            line(console, f"Trial {trial.number}, {shown}: diverged. {outcome.reason}")
            continue
        value = score(folder, search.objective, configured)
        study.tell(trial, value)
        record.add(trial.number, trial.params, "finished", outcome.reason, folder, value)
        line(console, f"Trial {trial.number}, {shown}: {search.objective} {value:.4f}")
    return Ended()


def score(folder: Path, objective: str, configured: Configured) -> float:
    """The last metric of the split that is searched by."""
    metric = experiment_named(configured.experiment).metric
    evaluations = RunFolder.open(folder).evaluations
    value: float | None = evaluations[-1].get(objective, {}).get(metric) if evaluations else None
    if value is None:
        raise RunError(
            f"The run {folder} has no {metric} of the split {objective!r}, by which the search would choose."
        )
    return value


def record_of(search: Search) -> TrialRecord:
    file = search.folder / "trials.jsonl"
    return TrialRecord(file, search.configured({}), search.ranges, search.objective, search.command)


def best(study: optuna.Study, search: Search, given: Mapping[str, Any]) -> str | None:
    """The best settings as YAML for `--config`; None if every trial has failed."""
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
    if not complete:
        return None
    found = study.best_trial
    head = f"# trial {found.number} of {len(study.trials)}: {search.objective} {found.value:.4f}"
    return written(search, {**given, **found.params}, head)


def written(search: Search, values: Mapping[str, Any], head: str) -> str:
    """A file for `--config`."""
    configured = search.make(values)
    content = {
        "experiment": configured.experiment,
        "preset": configured.preset,
        **nested({**values, "algorithm": configured.config.algorithm}),
    }
    return f"{head}\n{yaml.safe_dump(content, sort_keys=False)}"


def parsed_range(text: str) -> tuple[str, Range]:
    """A range as it is typed: settings.lr=1e-5:1, or choices, snapshot_batch=32,64.

    Example:
        >>> parsed_range("settings.lr=1e-5:1")
        ('settings.lr', (1e-05, 1.0))
        >>> parsed_range("snapshot_batch=32,64")
        ('snapshot_batch', [32, 64])
    """
    key, equals, range_ = text.partition("=")
    try:
        if not (key and equals and range_):
            raise ValueError
        if ":" not in range_:
            return key, [yaml.safe_load(choice) for choice in range_.split(",")]
        low, high = map(float, range_.split(":"))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--range {text}: write name=low:high, or name=choice,choice.") from error
    if not 0 < low < high < math.inf:
        raise ConfigError(f"--range {text}: low is above 0 and below high; the scale is logarithmic.")
    return key, (low, high)


def check_ranges(search: Search) -> None:
    """Refuse ranges whose ends no run could have.

    Raises:
        AdamboError: Of the first that does not fit.
    """
    if not search.ranges:
        raise ConfigError("There is nothing to search: give --range name=low:high.")
    for key, range_ in search.ranges.items():
        whole = is_whole(key, search)
        for end in range_:
            try:
                search.make({key: round(end) if whole and isinstance(range_, tuple) else end})
            except AdamboError as error:
                raise ConfigError(f"The range of {key} does not fit. {error}") from error
        if whole and isinstance(range_, tuple) and max(1, math.ceil(range_[0])) > math.floor(range_[1]):
            raise ConfigError(
                f"The range of {key} does not fit. There is no whole number from {range_[0]} to {range_[1]}."
            )


def distribution(key: str, range_: Range, search: Search) -> BaseDistribution:
    if isinstance(range_, list):
        return CategoricalDistribution(range_)
    low, high = range_
    if is_whole(key, search):
        return IntDistribution(max(1, math.ceil(low)), math.floor(high), log=True)
    return FloatDistribution(low, high, log=True)


def is_whole(key: str, search: Search) -> bool:
    """Whether a setting takes whole numbers only."""
    config = search.make({}).config
    if key.startswith("settings."):
        field = settings.fields(config.algorithm).get(key.removeprefix("settings."))
        form = None if field is None else field.type
    else:
        form = get_type_hints(type(config)).get(key)
    return form is int or int in get_args(form)


def _about(search: Search) -> str:
    """What makes two searches the same, as text."""
    made = search.configured({})
    values = {key: value for key, value in made.values.items() if key not in ("data_dir", "device")}
    return json.dumps([made.experiment, values, search.ranges, search.objective], sort_keys=True)


def _free(folder: Path) -> Path:
    """`folder`, or with -2, -3, ... : another search may have runs there."""
    number, free = 1, folder
    while os.path.lexists(free):
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
