"""`adambo suggest EXPERIMENT`: starting values for AdamBO's settings, measured, with the reason for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from rich.console import Console

from adambo.commands.parser import dashed, experiment_first
from adambo.commands.run import config_parser, configured_from
from adambo.diagnostics import Suggestion
from adambo.diagnostics import suggest as measured
from adambo.draw import Draw
from adambo.errors import ConfigError
from adambo.experiments import runner
from adambo.experiments.configure import Configured, experiment_named
from adambo.experiments.lines import line
from adambo.experiments.solver_workload import SolverWorkload
from adambo.experiments.sweep import HELD_OUT

Judged = Literal["validation", "loss"]
SAMPLES = 64  # draws


def suggest(words: Sequence[str], out: Console, err: Console) -> int:
    experiment, rest = experiment_first(words, "suggest")
    parser = config_parser(
        experiment, rest, "suggest", "Measure the problem where a run begins, and suggest AdamBO's settings."
    )
    parser.option(
        "judge", Judged, "validation", "What short runs are judged by: the metric on data held out, or the upper loss."
    )
    parser.option("most", int, 64, "The most terms of the series, and the most lower steps, that a step may take.")
    own, given = parser.read(rest)
    configured = configured_from(experiment, own, given)
    runner.refuse_missing_data(configured)
    found = suggested(configured, judged=own["judge"], most=own["most"])
    line(out, str(found))
    kept = [f"--{name}={value}" for name, value in given.items() if not name.startswith("settings.")]
    kept += [f"--{name}={own[name]}" for name in ("preset", "config") if own[name]]
    line(out, dashed(" ".join(["adambo run", experiment, *kept, *options(found)])))
    return 0


def suggested(configured: Configured, judged: Judged = "validation", most: int = 64) -> Suggestion:
    """Settings for the run that is configured; data are held out to judge by, as in a sweep.

    Raises:
        ConfigError: If the run is not AdamBO's.
    """
    config = configured.config
    if config.algorithm != "adambo":
        raise ConfigError(f"Settings are suggested for adambo, not for {config.algorithm}. Leave --algorithm out.")
    if judged == "validation" and not config.validation:
        config = replace(config, validation=HELD_OUT)
    workload = experiment_named(configured.experiment).build(config)
    if not isinstance(workload, SolverWorkload):
        raise ConfigError(f"{configured.experiment} has no solver whose problem could be measured.")
    workload.begin()

    def badness() -> float:
        return -workload.evaluate()["validation"][workload.metric]

    return measured(
        workload.solver.problem,
        list(_draws(workload)),
        steps=_length(config, workload.steps_per_epoch),
        most=most,
        judge=badness if judged == "validation" else None,
        seed=config.seed,
    )


def options(found: Suggestion) -> list[str]:
    """The settings as they are typed, with four digits."""
    values: dict[str, Any] = {
        "lr": f"{found.lr:.4g}",
        "lower_lr": f"{found.lower_lr:.4g}",
        "lower_steps": found.lower_steps,
        "inverse.method": "neumann",
        "inverse.terms": found.terms,
        "inverse.step": "auto",
    }
    return [f"--settings.{name}={value}" for name, value in values.items()]


def _draws(workload: SolverWorkload) -> Iterator[Draw]:
    for number in range(SAMPLES):
        yield workload.draw(number)


def _length(config: Any, steps_per_epoch: int) -> int:
    """The steps of the run, as far as epochs or steps say; else those of one epoch."""
    limits = [config.epochs * steps_per_epoch if config.epochs else math.inf, config.steps or math.inf]
    return max(1, round(min(limits))) if min(limits) < math.inf else steps_per_epoch
