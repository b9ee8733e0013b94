"""Few-shot learning of handwritten digits: an encoder on whose features one example per digit is enough.

A task asks to tell five digits apart. Its images are scikit-learn's, each thrown onto a random place of a larger, empty
field, so that pixels say little and an untrained encoder does little better than chance (20 %). Each task has a linear
head y_i of its own, which learns from one example per digit (the support set); the encoder x is judged by how well the
heads then do on other examples (the query set):

    min over x  mean_i query_loss_i(x, y_i*(x))        y_i*(x) = argmin over y_i  support_loss_i(x, y_i) + MU/2 ‖y_i‖²

AdamBO moves both at once. Every so often the encoder is frozen and fresh heads are fitted on tasks made of images that
training never saw; their accuracy is what counts.

    python examples/few_shot_digits.py --steps 600 --seed 0 --tasks 300 --out demo/few_shot_digits.png
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import adambo

WAYS, SHOTS, QUERIES = 5, 1, 5  # digits in a task; examples of each to learn from, and to be judged by
FIELD, FEATURES = 12, 32  # side of the field on which an 8 × 8 digit lies; numbers that the encoder makes of it
TRAIN_IMAGES = 1200  # of 1797; test tasks are made of the others
TASKS_PER_STEP, JUDGED_TASKS, MEASUREMENTS = 10, 100, 18
LR, LOWER_LR, MU = 2e-3, 0.1, 1e-2
LOWER_STEPS, WARM_STEPS, FRESH_STEPS = 20, 2, 50  # of the heads: per visit, before training, in a test
TERMS = 10  # of the Neumann series


class Episode(NamedTuple):
    """Some tasks and their images (task, digit, example, row, column): first SHOTS support, then QUERIES query ones."""

    ids: Tensor
    images: Tensor

    def only(self, ids: Tensor) -> Episode:
        return Episode(self.ids[ids], self.images[ids])


class Measurement(NamedTuple):
    step: int
    seconds: float
    train: float
    test: float


def make_tasks(images: Tensor, digits: Tensor, number: int, generator: torch.Generator) -> Episode:
    """`number` tasks, each with its own choice and order of digits; no image serves twice in one task."""
    pools = [images[digits == digit] for digit in range(10)]

    def examples(digit: int) -> Tensor:
        return pools[digit][torch.randperm(len(pools[digit]), generator=generator)[: SHOTS + QUERIES]]

    choices = [torch.randperm(10, generator=generator)[:WAYS].tolist() for _ in range(number)]
    chosen = torch.stack([examples(digit) for choice in choices for digit in choice]).flatten(0, 1)
    field = torch.zeros(len(chosen), FIELD, FIELD)
    row, column = torch.randint(FIELD - 8 + 1, (2, len(chosen), 1), generator=generator) + torch.arange(8)
    field[torch.arange(len(chosen))[:, None, None], row[:, :, None], column[:, None, :]] = chosen
    return Episode(torch.arange(number), field.view(number, WAYS, SHOTS + QUERIES, FIELD, FIELD))


def make_encoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (FIELD // 4) ** 2, FEATURES),
        # ‖features‖² ≤ 32 bounds the curvature of the support loss by (32 + 1) / 2 + MU, which is below 2 / LOWER_LR.
        nn.LayerNorm(FEATURES, elementwise_affine=False),
    )  # fmt: skip


def encode(encoder: nn.Module, episode: Episode) -> Tensor:
    """Features (task, digit, example, feature) of all images, in one call of the encoder."""
    return encoder(episode.images.reshape(-1, 1, FIELD, FIELD)).view(*episode.images.shape[:3], FEATURES)


def logits(weights: Tensor, biases: Tensor, features: Tensor) -> Tensor:
    """Each task's head on its own features: (task, answer, digit, example)."""
    return torch.einsum("tad,twnd->tawn", weights, features) + biases[:, :, None, None]


def cross_entropy(weights: Tensor, biases: Tensor, features: Tensor) -> Tensor:
    """The mean loss of each task. The right answer for an image is the place of its digit in the task."""
    labels = torch.arange(WAYS)[:, None].expand(features.shape[:3])
    return nn.functional.cross_entropy(logits(weights, biases, features), labels, reduction="none").mean((1, 2))


def support_loss(weights: Tensor, biases: Tensor, features: Tensor) -> Tensor:
    """Summed over tasks, so that LOWER_LR means the same for any number of them; strongly convex in the heads."""
    squared_norm = weights.square().sum() + biases.square().sum()
    return cross_entropy(weights, biases, features[:, :, :SHOTS]).sum() + MU / 2 * squared_norm


def query_loss(weights: Tensor, biases: Tensor, features: Tensor) -> Tensor:
    return cross_entropy(weights, biases, features[:, :, SHOTS:]).mean()


def accuracy(encoder: nn.Module, tasks: Episode) -> float:
    """Freeze the encoder, fit fresh heads on the support sets, and count right answers on the query sets."""
    encoder.eval()
    with torch.no_grad():
        features = encode(encoder, tasks)
    encoder.train()
    heads = [torch.zeros(len(features), WAYS, FEATURES), torch.zeros(len(features), WAYS)]
    for _ in range(FRESH_STEPS):
        heads = [head.requires_grad_() for head in heads]
        gradients = torch.autograd.grad(support_loss(*heads, features), heads)
        heads = [(head - LOWER_LR * gradient).detach() for head, gradient in zip(heads, gradients, strict=True)]
    answers = logits(*heads, features[:, :, SHOTS:]).argmax(1)
    return (answers == torch.arange(WAYS)[:, None]).float().mean().item()


def main(arguments: Sequence[str] | None = None) -> list[Measurement]:
    given = options(arguments)
    torch.manual_seed(given.seed)
    generator = torch.Generator().manual_seed(given.seed)

    # Tasks: those for training and those for testing have no image in common.
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=generator)
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    train_tasks = make_tasks(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES], given.tasks, generator)
    test_tasks = make_tasks(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:], JUDGED_TASKS, generator)
    judged_train_tasks = train_tasks.only(torch.arange(min(given.tasks, JUDGED_TASKS)))

    # The problem: x is the encoder, y is one linear head per task, stacked.
    encoder = make_encoder()
    weights = nn.Parameter(torch.zeros(given.tasks, WAYS, FEATURES))
    biases = nn.Parameter(torch.zeros(given.tasks, WAYS))
    problem = adambo.EncoderHeadProblem(
        encoder=lambda episode: encode(encoder, episode),
        upper=lambda features, episode: query_loss(weights[episode.ids], biases[episode.ids], features),
        lower=lambda features, episode: support_loss(weights[episode.ids], biases[episode.ids], features),
        x=encoder,
        y=[weights, biases],
        tasks=lambda episode: episode.ids,
    )

    # A head is visited only now and then, so it makes many steps at a visit, and the hypergradient is taken where they
    # end. They run on features: the encoder works once per step, however many they are. The step of the series for the
    # inverse Hessian is chosen from the measured curvature of the heads.
    solver = adambo.AdamBO(
        problem, lr=LR, lower_lr=LOWER_LR, lower_steps=LOWER_STEPS, hypergradient_at="updated",
        inverse=adambo.Neumann(terms=TERMS),
    )  # fmt: skip

    history: list[Measurement] = []
    due = {round(given.steps * (k / MEASUREMENTS) ** 2) for k in range(MEASUREMENTS + 1)}  # most happens early
    seconds = warm_seconds = 0.0
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=given.steps)
        for step in range(given.steps + 1):
            start = time.perf_counter()
            if step == 1:
                solver.warm_start([train_tasks] * WARM_STEPS)
                warm_seconds = time.perf_counter() - start
            if step > 0:
                episode = train_tasks.only(torch.randperm(given.tasks, generator=generator)[:TASKS_PER_STEP])
                solver.step(episode, episode)  # it holds both losses' images: one object, so one call of the encoder
                seconds += time.perf_counter() - start
                progress.advance(bar)
            if step in due:  # the time this takes is not counted
                m = Measurement(step, seconds, accuracy(encoder, judged_train_tasks), accuracy(encoder, test_tasks))
                history.append(m)
                progress.update(bar, description=f"accuracy: train {m.train:.1%}, test {m.test:.1%}")
                if not console.is_terminal:
                    print(f"step {step:>4} of {given.steps}: train {m.train:5.1%}, test {m.test:5.1%}", flush=True)

    console.print(result_table(history, 1e3 * (seconds - warm_seconds) / given.steps))
    console.print(oracle_table(solver.ledger))
    title = f"AdamBO on {given.tasks} digit tasks, {WAYS}-way {SHOTS}-shot, seed {given.seed}"
    draw_figure(history, title).savefig(given.out, dpi=150)
    print(f"figure: {given.out}")
    return history


def result_table(history: Sequence[Measurement], milliseconds: float) -> Table:
    table = Table("encoder", title=f"{WAYS}-way {SHOTS}-shot digits: accuracy of fresh heads", title_justify="left")
    for column in ("steps", "seconds", "ms per step", "train tasks", "test tasks"):
        table.add_column(column, justify="right")
    for name, m, speed in (("untrained", history[0], ""), ("AdamBO", history[-1], f"{milliseconds:.1f}")):
        table.add_row(name, str(m.step), f"{m.seconds:.1f}", speed, f"{m.train:.1%}", f"{m.test:.1%}")
    return table


def oracle_table(ledger: adambo.Ledger) -> Table:
    table = Table("oracle call", title="Oracle calls, warm start included", title_justify="left", min_width=36)
    table.add_column("count", justify="right")
    for kind, count in ledger.as_dict().items():
        table.add_row(kind, f"{count:,}")
    return table


def draw_figure(history: Sequence[Measurement], title: str) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, sharey=True)
    train, test = [100 * m.train for m in history], [100 * m.test for m in history]
    for axes, along, label in (
        (left, [m.step for m in history], "upper steps"),
        (right, [m.seconds for m in history], "seconds of training, warm start included"),
    ):
        axes.plot(along, train, color="#8da0cb", marker="o", markersize=3, label="train tasks")
        axes.plot(along, test, color="#d95f02", marker="o", markersize=3, label="test tasks (unseen images)")
        axes.axhline(100 / WAYS, color="grey", linestyle=":", label="chance")
        axes.set(xlabel=label, xlim=(0, None), ylim=(0, 102))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("accuracy of fresh heads, %")
    left.legend(loc="center right", frameon=False)
    return figure


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="upper steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=300, help="number of training tasks (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo/few_shot_digits.png"), help="default: %(default)s")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"--steps {given.steps}: there is nothing to show without a step; give 1 or more")
    if not TASKS_PER_STEP <= given.tasks <= 10_000:
        parser.error(f"--tasks {given.tasks}: every step takes {TASKS_PER_STEP} tasks; give {TASKS_PER_STEP} to 10000")
    check_seed_and_figure(parser, given)
    return given


def check_seed_and_figure(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """What the examples have in common: --seed and --out."""
    if not 0 <= given.seed < 2**63:
        parser.error(f"--seed {given.seed}: give a number from 0 to 2^63 - 1")
    if given.out.suffix != ".png" or given.out.is_dir():
        parser.error(f"--out {given.out}: the figure is a PNG file; give a name that ends in .png")
    try:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        parser.error(f"--out {given.out}: its folder cannot be made ({reason.strerror})")
    if not os.access(given.out if given.out.exists() else given.out.parent, os.W_OK):
        parser.error(f"--out {given.out}: no permission to write there")


if __name__ == "__main__":
    # The tensors are small: a second thread gains little, waits a lot on a busy machine (440 ms per step where one
    # thread took 62), and makes the last digits depend on the number of cores.
    torch.set_num_threads(1)
    main()
