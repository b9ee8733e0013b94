"""How good suggested settings are, against a search of 30 trials: `python benchmarks/suggest.py [NAMES]`.

The metric of `quadratic-κ` is the share of the gap closed, 1 − (Φ(x_T) − Φ*) / (Φ(x_0) − Φ*), of a stochastic quadratic
with the condition number κ below. That of an embedded experiment is its own, on the data that a search chooses by
(validation), and on test data. For each seed, which is that of problem, data and start, Optuna searches, settings are
suggested, and both are compared there: `best` is what the search found (on test data, with the settings it chose).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import torch

import adambo
from adambo import Ledger, Needs
from adambo.commands.suggest import suggested
from adambo.diagnostics import suggest
from adambo.errors import AdamboError
from adambo.experiments.configure import configure, experiment_named
from adambo.experiments.presets import search_space
from adambo.inverse import Neumann
from adambo.testing import StochasticQuadratic, flat

Metrics = Mapping[str, float]
Settings = Mapping[str, Any]
NAMES = ("quadratic-1", "quadratic-10", "quadratic-100", "digits", "digits-cleaning", "cancer-auc")
QUADRATIC_STEPS = 150


class Quadratic:
    """A stochastic quadratic. Its seed is that of problem, noise and draws."""

    chosen_by = "gap closed"

    def __init__(self, kappa: float, noise: float = 0.5) -> None:
        self.kappa, self.noise = kappa, noise
        self.space = {
            "lr": (1e-3, 1.0),
            "lower_lr": (0.1 / kappa, 1.8 / kappa),
            "terms": (1, 32),
            "lower_steps": (1, 8),
        }

    def _known(self, seed: int) -> StochasticQuadratic:
        return StochasticQuadratic(dx=5, dy=6, seed=seed, mu=1.0, L=self.kappa, samples=8, noise=self.noise)

    def run(self, settings: Settings, seed: int) -> Metrics:
        known = self._known(seed)
        problem = known.problem()
        inverse = Neumann(terms=settings["terms"])
        others = {name: settings[name] for name in ("lr", "lower_lr", "lower_steps")}
        solver = adambo.AdamBO(problem, inverse=inverse, **others)
        stream = adambo.draws(known.batch, known.batch, solver.needs, seed=seed)
        for _ in range(QUADRATIC_STEPS):
            solver.step(next(stream))
        start, end, least = (float(known.phi(x)) for x in (known.x0, flat(problem.x).detach(), known.optimum))
        return {self.chosen_by: 1 - (end - least) / (start - least)}

    def suggest(self, seed: int) -> Settings:
        known = self._known(seed)
        stream = adambo.draws(known.batch, known.batch, Needs(1, 1, 1, 1), seed=seed)
        found = suggest(known.problem(), stream, steps=QUADRATIC_STEPS, ledger=Ledger())
        return {name: getattr(found, name) for name in ("lr", "lower_lr", "terms", "lower_steps")}


class Embedded:
    """An experiment of the catalogue, perhaps with other values in its config."""

    chosen_by = "validation"

    def __init__(self, name: str, changes: Settings, judged: Any) -> None:
        self.name, self.changes, self.judged = name, {**changes, "validation": 0.1}, judged
        self.space = search_space(name, "adambo")

    def run(self, settings: Settings, seed: int) -> Metrics:
        configured = configure(self.name, "adambo", overrides={**self.changes, **settings, "seed": seed})
        workload = experiment_named(self.name).build(configured.config)
        steps = round((configured.config.epochs or 1) * workload.steps_per_epoch)
        workload.begin()
        for number in range(steps):
            workload.step(number)
        scores = workload.evaluate()
        return {split: scores[split][workload.metric] for split in ("validation", "test")}

    def suggest(self, seed: int) -> Settings:
        found = suggested(configure(self.name, "adambo", overrides={**self.changes, "seed": seed}), self.judged)
        inverse = {"method": "neumann", "terms": found.terms, "step": "auto"}
        return {f"settings.{name}": getattr(found, name) for name in ("lr", "lower_lr", "lower_steps")} | {
            "settings.inverse": inverse
        }


def searched(subject: Quadratic | Embedded, trials: int, seed: int) -> tuple[Settings, Metrics]:
    """The best settings of a search, and their metrics."""

    def objective(trial: optuna.Trial) -> float:
        settings: dict[str, Any] = {}
        for name, (low, high) in subject.space.items():
            asked = trial.suggest_int if isinstance(low, int) else trial.suggest_float
            settings[name] = asked(name, low, high, log=True)
        try:
            metrics = subject.run(settings, seed)
        except AdamboError:
            raise optuna.TrialPruned from None
        trial.set_user_attr("found", (settings, metrics))
        value = metrics[subject.chosen_by]
        return value if math.isfinite(value) else -math.inf

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=trials)
    settings, metrics = study.best_trial.user_attrs["found"]
    return settings, metrics


def compare(name: str, subject: Quadratic | Embedded, trials: int, seeds: Sequence[int]) -> None:
    found: list[tuple[Metrics, Metrics]] = []
    for seed in seeds:
        began = time.perf_counter()
        best, its_metrics = searched(subject, trials, seed)
        middle = time.perf_counter()
        mine = subject.suggest(seed)
        end = time.perf_counter()
        found.append((its_metrics, subject.run(mine, seed)))
        print(f"  {name}, seed {seed}: searched in {middle - began:.0f} s: {short(best)}; {short(its_metrics)}")
        print(
            f"  {name}, seed {seed}: suggested in {end - middle:.0f} s: {short(mine)}; {short(found[-1][1])}",
            flush=True,
        )
    for metric in found[0][0]:
        best_ones, mine_ones = ([pair[which][metric] for pair in found] for which in (0, 1))
        shares = [b / a for a, b in zip(best_ones, mine_ones, strict=True)]
        print(f"| {name} | {metric} | {spread(best_ones)} | {spread(mine_ones)} | {spread(shares)} |", flush=True)


def spread(values: Sequence[float]) -> str:
    """The mean, and the smallest and largest."""
    return f"{statistics.mean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def short(values: Settings) -> str:
    shown = {name.removeprefix("settings."): value for name, value in values.items()}
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}; all if none")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--judge", choices=("validation", "loss"), default="validation", help="of short runs of experiments"
    )
    parser.add_argument(
        "--change", nargs="*", default=[], help="name=value of an experiment's config, such as hidden=64"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    changes = {
        name: float(value) if "." in value else int(value) for name, value in (c.split("=") for c in asked.change)
    }
    print(f"| problem | metric | best of {asked.trials} | suggested | share |\n|---|---|---|---|---|")
    for name in asked.names:
        kind, _, kappa = name.partition("-")
        subject = Quadratic(float(kappa)) if kind == "quadratic" else Embedded(name, changes, asked.judge)
        compare(name, subject, asked.trials, asked.seeds)


if __name__ == "__main__":
    main()
