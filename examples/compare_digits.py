"""All algorithms of the library on one problem: few-shot digits, as in few_shot_digits.py, with fewer tasks.

Every algorithm starts from the same encoder, sees the same tasks in the same order, makes the same number of upper
steps, and is judged in the same way: the encoder is frozen, and fresh heads are fitted on training tasks, and on tasks
made of images that training never saw. Changing the algorithm is changing one word; its rates are in SETTINGS, all the
rest is shared. Two exceptions: MAML and ANIL learn one initial head instead of a head per task, so their steps take a
list of draws, one per task; and SABA, which needs the same minibatches again and again, has its tasks in fixed sets.

One seed and one set of rates rank nothing: this shows that all of them work, and what their steps cost.

    python examples/compare_digits.py --steps 300 --seed 0 --jobs 2 --out demo/compare_digits.png
    python examples/compare_digits.py --only AdamBO SLIP BOREP
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch
from few_shot_digits import (
    FEATURES,
    JUDGED_TASKS,
    LOWER_LR,
    TRAIN_IMAGES,
    WAYS,
    Episode,
    accuracy,
    check_seed_and_figure,
    encode,
    make_encoder,
    make_tasks,
    query_loss,
    support_loss,
)
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import adambo

TASKS, TASKS_PER_STEP, MEASUREMENTS = 60, 10, 10
META_LEARNERS = ("MAML", "ANIL")
ORACLES = {  # the columns of the table: what the ledger calls them, and what mathematics does
    "grad_x_f": "∇x f", "grad_y_f": "∇y f", "grad_x_g": "∇x g", "grad_y_g": "∇y g",
    "hessian_vector": "∇²yy g", "cross_vector": "∇²xy g", "curvature_vector": "λ_max",
}  # fmt: skip
MEASURING = "curvature_vector"  # now and then; not part of a step

# Rates found with seed 1 and 200 steps, among four powers of about 3 for each method.
SLOTS = TASKS // TASKS_PER_STEP
SETTINGS: dict[str, dict[str, Any]] = {
    "MAML": {"lr": 0.3},  # the longest runs first, so that all processes end at about the same time
    "VRBO": {"lr": 0.3},
    "ANIL": {"lr": 0.3, "inner_steps": 3},
    # A task is visited in every sixth step, and what its head did at the last visit enters recursive momentum six times
    # too heavily (see docs/design/0005). A larger weight of the new estimate makes up for it.
    "AccBO": {"lr": 0.1, "option": 2, "period": 1, "beta": 0.5},
    "VRAdamBO": {"lr": 1e-3, "option": 2, "period": 1, "beta": 0.5},
    "SUSTAIN": {"lr": 0.1},
    "FSLA": {"lr": 0.3},
    "F2SA": {"lr": 0.3},
    "AdamBO": {"lr": 3e-3},
    "StocBiO": {"lr": 1.0},
    "TTSA": {"lr": 0.3},
    "SOBA": {"lr": 0.3},
    "SABA": {"lr": 0.1, "lower_slots": SLOTS, "upper_slots": SLOTS},
    "MASOBA": {"lr": 0.3},
    "SLIP": {"lr": 0.1},
    "BOREP": {"lr": 0.1},
}


class Measurement(NamedTuple):
    step: int
    seconds: float
    calls: int
    train: float
    test: float


class Run(NamedTuple):
    name: str
    history: list[Measurement]
    ledger: dict[str, int]


class Data(NamedTuple):
    train: Episode
    test: Episode


def make_data(seed: int) -> Data:
    """Tasks for training and for testing, without a common image."""
    generator = torch.Generator().manual_seed(seed)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=generator)
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    return Data(
        make_tasks(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES], TASKS, generator),
        make_tasks(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:], JUDGED_TASKS, generator),
    )


def make_problem(name: str, encoder: nn.Module) -> adambo.EncoderHeadProblem:
    """x is the encoder; y is one linear head per task, stacked, or the one initial head of a meta-learner."""
    heads = 1 if name in META_LEARNERS else TASKS
    weights, biases = nn.Parameter(torch.zeros(heads, WAYS, FEATURES)), nn.Parameter(torch.zeros(heads, WAYS))

    def of(episode: Episode) -> tuple[torch.Tensor, torch.Tensor]:
        return (weights, biases) if heads == 1 else (weights[episode.ids], biases[episode.ids])

    return adambo.EncoderHeadProblem(
        encoder=lambda episode: encode(encoder, episode),
        upper=lambda features, episode: query_loss(*of(episode), features),
        lower=lambda features, episode: support_loss(*of(episode), features),
        x=encoder,
        y=[weights, biases],
        tasks=None if heads == 1 else lambda episode: episode.ids,
    )


def make_draw(solver: adambo.Algorithm, tasks: Episode, chosen: torch.Tensor, slot: int) -> Any:
    """What one step takes: an episode that serves every role, the same with a slot, or a draw per task."""
    if isinstance(solver, adambo.MAML | adambo.ANIL):
        episodes = [tasks.only(task.view(1)) for task in chosen]
        return [adambo.Draw.of(episode, episode, solver.needs) for episode in episodes]
    if isinstance(solver, adambo.SABA):  # its table has a row for every fixed set of tasks
        chosen = torch.arange(slot * TASKS_PER_STEP, (slot + 1) * TASKS_PER_STEP)
    episode = tasks.only(chosen)
    return adambo.Draw(
        *((episode,) * count for count in (solver.needs.upper, solver.needs.lower, solver.needs.cross)),
        hessian=(episode,) * solver.needs.hessian,
        slot=(slot, slot),
        snapshot=adambo.Draw.of(episode, episode, solver.needs),
    )


def train(name: str, seed: int, steps: int) -> Run:
    """One algorithm from beginning to end."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s")  # SABA says how large its tables are
    torch.set_num_threads(1)  # the tensors are small, and the other core has an algorithm of its own
    torch.manual_seed(seed)
    data, encoder = make_data(seed), make_encoder()
    solver = adambo.algorithms.ALL[name](
        make_problem(name, encoder), **{"lr": 0.1, "lower_lr": LOWER_LR} | SETTINGS.get(name, {})
    )
    generator = torch.Generator().manual_seed(seed)
    due = {round(steps * (k / MEASUREMENTS) ** 2) for k in range(MEASUREMENTS + 1)}  # most happens early
    history, seconds = [], 0.0
    for step in range(steps + 1):
        chosen = torch.randperm(TASKS, generator=generator)[:TASKS_PER_STEP]
        slot = int(torch.randint(SLOTS, (), generator=generator))
        start = time.perf_counter()
        if step > 0:
            solver.step(make_draw(solver, data.train, chosen, slot))
            seconds += time.perf_counter() - start
        if step in due:  # the time this takes is not counted
            calls = sum(
                count for kind, count in solver.ledger.as_dict().items() if kind in ORACLES and kind != MEASURING
            )
            history.append(Measurement(step, seconds, calls, *(accuracy(encoder, tasks) for tasks in data)))
    return Run(name, history, solver.ledger.as_dict())


def main(arguments: Sequence[str] | None = None) -> list[Run]:
    given = options(arguments)
    console = Console(width=120 if not Console().is_terminal else None)
    start = time.perf_counter()
    runs = []
    print(f"{len(given.only)} algorithms, {given.steps} steps each, {given.jobs} at a time:", flush=True)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(train, name, given.seed, given.steps) for name in given.only]):
            runs.append(finished.result())
            accuracy, after = runs[-1].history[-1].test, time.perf_counter() - start
            print(f"  after {after:3.0f} s: {runs[-1].name:9} test accuracy {accuracy:6.1%}", flush=True)
    runs.sort(key=lambda run: -run.history[-1].test)
    console.print(result_table(runs, given.steps))
    draw_figure(runs, f"{len(runs)} algorithms on {TASKS} digit tasks, seed {given.seed}").savefig(given.out, dpi=150)
    print(f"figure: {given.out}")
    return runs


def result_table(runs: Sequence[Run], steps: int) -> Table:
    title = f"{WAYS}-way 1-shot digits, {steps} steps: accuracy of fresh heads, seconds of training, oracle calls"
    table = Table("algorithm", title=title, title_justify="left")
    for column in ("train", "test", "seconds", *ORACLES.values()):
        table.add_column(column, justify="right")
    for run in runs:
        last = run.history[-1]
        counts = [f"{run.ledger[kind]:,}" for kind in ORACLES]
        table.add_row(run.name, f"{last.train:.1%}", f"{last.test:.1%}", f"{last.seconds:.1f}", *counts)
    return table


def draw_figure(runs: Sequence[Run], title: str) -> Figure:
    figure = Figure(figsize=(14, 5), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, 3, sharey=True)
    styles = [(colour, dash) for dash in ("-", "--") for colour in (f"C{k}" for k in range(8))]
    for axes, along, label in zip(
        panels, ("step", "seconds", "calls"), ("upper steps", "seconds of training", "oracle calls"), strict=True
    ):
        for run, (colour, dash) in zip(runs, styles, strict=False):
            shown = run.history if along == "step" else run.history[1:]  # a logarithmic axis has no zero
            places = [getattr(m, along) for m in shown]
            axes.plot(places, [100 * m.test for m in shown], color=colour, linestyle=dash, label=run.name)
        axes.axhline(100 / WAYS, color="grey", linestyle=":", label="chance")
        axes.set(xlabel=label, ylim=(0, 102))
        if along == "step":
            axes.set_xlim(0, None)
        else:
            axes.set_xscale("log")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy of fresh heads on test tasks, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="upper steps of each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="at once (default: %(default)s)")
    known = [*SETTINGS, *(name for name in adambo.algorithms.ALL if name not in SETTINGS)]
    parser.add_argument("--only", nargs="+", metavar="NAME", default=known, help="algorithms (default: all)")
    parser.add_argument("--out", type=Path, default=Path("demo/compare_digits.png"), help="default: %(default)s")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"--steps {given.steps}: there is nothing to compare without a step; give 1 or more")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: at least one process has to work")
    unknown = [name for name in given.only if name not in known]
    if unknown:
        parser.error(f"--only {' '.join(unknown)}: not one of {', '.join(known)}")
    check_seed_and_figure(parser, given)
    return given


if __name__ == "__main__":
    main()
