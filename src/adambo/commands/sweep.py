"""`adambo sweep EXPERIMENT`: search for good settings of one algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from adambo.commands.parser import experiment_first
from adambo.commands.run import config_parser
from adambo.errors import ConfigError, RunError
from adambo.experiments import runner
from adambo.experiments.configure import Configured, configure, read_file
from adambo.experiments.finalists import best_again, make_again
from adambo.experiments.first_trials import begin_at_preset, begin_evenly
from adambo.experiments.lines import line
from adambo.experiments.presets import search_space
from adambo.experiments.sweep import (
    Search,
    best,
    check_ranges,
    masked,
    open_study,
    parsed_range,
)
from adambo.experiments.sweep import sweep as search_on


def sweep(words: Sequence[str], out: Console, err: Console) -> int:
    experiment, rest = experiment_first(words, "sweep")
    parser = config_parser(experiment, rest, "sweep", "Search for good settings with Optuna; every trial is a run.")
    parser.option("trials", int, 20, "How many trials this process makes.")
    parser.option("storage", str | None, None, "URL of the study, shared by machines; else a file in the out folder.")
    parser.option("study", str | None, None, "Its name; <experiment>-<algorithm>-<preset> if none.")
    parser.option(
        "range", str, [], "name=low:high (logarithmic) or name=choice,choice, added to those of the preset file.", True
    )
    parser.option(
        "objective", Literal["validation", "train"], "validation", "The split whose last metric is maximised."
    )
    parser.option("from_preset", bool, False, "Let the values of the preset be the first trial, if they are in range.")
    parser.option("evenly", int, 0, "Spread so many first trials evenly over the ranges, before the search adapts.")
    parser.option("again", int, 0, "Make so many of the best trials again, with --again-epochs; these decide.")
    parser.option("again_epochs", float | None, None, "Epochs of the trials that are made again; else as in all.")
    parser.option("sampler_seed", int, 0, "Of the search itself; give each machine its own.")
    parser.option("out", str, "runs", "Folder of runs; trials go to <out>/<experiment>/sweep-<study>.")
    own, given = parser.read(rest)
    if own["trials"] < (0 if own["again"] else 1):
        raise ConfigError(f"trials={own['trials']}: give 1 or more. 0 is for --again alone.")
    file = read_file(own["config"]) if own["config"] else None

    def make(values: Mapping[str, Any]) -> Configured:
        return configure(experiment, preset=own["preset"], overrides={**given, **values}, file=file)

    first = make({})
    name = own["study"] or f"{experiment}-{first.config.algorithm}-{first.preset}"
    folder = Path(own["out"]) / experiment / f"sweep-{name}"
    ranges = search_space(experiment, first.config.algorithm) | dict(map(parsed_range, own["range"]))
    search = Search(make, ranges, own["objective"], folder, ("adambo", "sweep", *map(masked, words)))
    check_ranges(search)
    runner.refuse_missing_data(first)
    study = open_study(name, own["storage"] or default_storage(folder), search, own["sampler_seed"])
    if own["from_preset"]:
        begin_at_preset(study, search)
    if own["evenly"]:
        begin_evenly(study, search, own["evenly"], own["sampler_seed"])
    ended = search_on(study, search, own["trials"], err)
    found = best(study, search, given)
    if own["again"] and ended.signal is None and found is not None:
        epochs = own["again_epochs"] or first.config.epochs
        if epochs is None:
            raise ConfigError("--again makes trials of so many epochs: give --again-epochs.")
        ended = make_again(search, own["again"], epochs, err)
        found = best_again(search, given, epochs)
    line(out, "No trial has finished." if found is None else found)
    if found is not None:
        line(err, f"Saved as a file, this is for `adambo run {experiment} --config FILE`.")
    if ended.signal is not None:
        return 128 + ended.signal
    return 1 if found is None else 0


def default_storage(folder: Path) -> str:
    """A file beside the runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder {folder} cannot be made: {(error.strerror or str(error)).lower()}.") from error
    return f"sqlite:///{folder.resolve()}/study.db"
