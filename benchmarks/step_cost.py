"""What one step costs: against a plain Adam step on the same data, and against hand-written autograd.

    python benchmarks/step_cost.py                 # the table: time and memory
    python benchmarks/step_cost.py --rows SLIP     # only rows whose name contains this
    python benchmarks/step_cost.py --steps 400     # more interleaved steps
    python benchmarks/step_cost.py --no-memory

All contenders with one reference take turns with it, step by step, so that a slow moment of the machine hits all of
them; a ratio is the median of the paired ratios. Memory is the maximum resident set above the built problem, one
process per row; a step on a throw-away copy comes first, so that the code of the kernels is loaded and only data is
counted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adambo

Step = Callable[[], object]


class Encoder(nn.Module):
    """4 transformer layers, d = 256, mean over 24 tokens."""

    def __init__(self, width: int = 256, layers: int = 4, vocabulary: int = 1000, tokens: int = 24) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.words(tokens) + self.places).mean(dim=1)


def sequences() -> tuple[list[Tensor], list[Tensor]]:
    """100 + 100 labelled sequences: the upper and the lower batch."""
    return tuple([torch.randint(1000, (100, 24)), torch.randint(6, (100,))] for _ in range(2))  # type: ignore[return-value]


def plain_adam() -> Step:
    """One Adam step on all 200 sequences: the yardstick."""
    encoder, head, (upper, lower) = Encoder(), nn.Linear(256, 6), sequences()
    tokens, labels = torch.cat([upper[0], lower[0]]), torch.cat([upper[1], lower[1]])
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(tokens)), labels).backward()
        optimizer.step()

    return step


def shared_head(algorithm: Callable[..., adambo.Algorithm]) -> Step:
    """One shared head. The labels are random, so small rates keep all algorithms in one regime."""
    encoder, head, (upper, lower) = Encoder(), nn.Linear(256, 6), sequences()

    def loss(features: Tensor, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(head(features), batch[1])

    def regularised(features: Tensor, batch: list[Tensor]) -> Tensor:
        return loss(features, batch) + 0.05 * (head.weight.square().sum() + head.bias.square().sum())

    problem = adambo.EncoderHeadProblem(
        lambda batch: encoder(batch[0]), loss, regularised, encoder, head, concatenate=True
    )
    solver = algorithm(problem, lr=1e-4, lower_lr=1e-3)
    return lambda: solver.step(upper, lower)


def adambo_tasks() -> Step:
    """20 tasks of 5 + 5 sequences, each with its own head."""
    encoder, (upper, lower) = Encoder(), sequences()
    weight, bias = nn.Parameter(0.01 * torch.randn(20, 6, 256)), nn.Parameter(torch.zeros(20, 6))
    tasks = torch.arange(20)

    def loss(features: Tensor, batch: list[Tensor]) -> Tensor:
        logits = torch.baddbmm(bias[tasks].unsqueeze(1), features.view(20, 5, 256), weight[tasks].mT)
        return F.cross_entropy(logits.flatten(0, 1), batch[1])

    def regularised(features: Tensor, batch: list[Tensor]) -> Tensor:
        return 20 * loss(features, batch) + 0.05 * (weight[tasks].square().sum() + bias[tasks].square().sum())

    problem = adambo.EncoderHeadProblem(
        lambda batch: encoder(batch[0]),
        loss,
        regularised,
        encoder,
        [weight, bias],
        tasks=lambda batch: tasks,
        concatenate=True,
    )
    solver = adambo.AdamBO(problem)
    return lambda: solver.step(upper, lower)


def cleaning() -> tuple[list[Tensor], nn.Module, Callable[[tuple], Tensor], Callable[[tuple], Tensor], tuple, tuple]:
    """Data hyper-cleaning: an MLP 784-300-10 below, a weight for each of 5,000 training examples above."""
    weights = nn.Parameter(torch.zeros(5000))
    network = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    clean = (torch.rand(256, 784), torch.randint(10, (256,)))
    noisy = (torch.rand(256, 784), torch.randint(10, (256,)), torch.randperm(5000)[:256])

    def upper(batch: tuple) -> Tensor:
        return F.cross_entropy(network(batch[0]), batch[1])

    def lower(batch: tuple) -> Tensor:
        losses = F.cross_entropy(network(batch[0]), batch[1], reduction="none")
        penalty = sum(p.square().sum() for p in network.parameters())
        return (torch.sigmoid(weights[batch[2]]) * losses).mean() + 1e-3 * penalty

    return [weights], network, upper, lower, clean, noisy


def feature_l2() -> tuple[list[Tensor], nn.Module, Callable[[tuple], Tensor], Callable[[tuple], Tensor], tuple, tuple]:
    """Hyperparameter optimisation: logistic regression below, an L2 weight for each of 1,000 features above."""
    log_penalties = nn.Parameter(torch.full((1000,), -4.0))
    model = nn.Linear(1000, 1, bias=False)
    held_out, training = ((torch.randn(256, 1000), torch.rand(256).round()) for _ in range(2))

    def upper(batch: tuple) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])

    def lower(batch: tuple) -> Tensor:
        return upper(batch) + 0.5 * (log_penalties.exp() * model.weight.square()).sum()

    return [log_penalties], model, upper, lower, held_out, training


def adambo_whole(build: Callable[[], tuple], terms: int) -> Step:
    x, y, upper, lower, upper_batch, lower_batch = build()
    solver = adambo.AdamBO(adambo.Problem(upper, lower, x, y), inverse=adambo.Neumann(terms=terms))
    return lambda: solver.step(upper_batch, lower_batch)


def straight_autograd(build: Callable[[], tuple], terms: int, neumann_step: float = 0.1) -> Step:
    """The same step written out by hand for the case at hand, with nothing else around it."""
    x, network, upper, lower, upper_batch, lower_batch = build()
    y = list(network.parameters())
    upper_optimizer = torch.optim.Adam(x, lr=1e-4)
    lower_optimizer = torch.optim.SGD(y, lr=5e-3)

    def step() -> None:
        v = torch.autograd.grad(upper(upper_batch), y)
        g_y = torch.autograd.grad(lower(lower_batch), y, create_graph=True)
        s = v
        for _ in range(terms - 1):
            product = torch.autograd.grad(g_y, y, s, retain_graph=True)
            s = [a + b - neumann_step * p for a, b, p in zip(v, s, product, strict=True)]
        h = torch.autograd.grad(g_y, x, [-neumann_step * a for a in s])
        for p, d in zip(x, h, strict=True):
            p.grad = d
        for p, d in zip(y, g_y, strict=True):
            p.grad = d.detach()
        upper_optimizer.step()
        lower_optimizer.step()

    return step


# Workload: (contender, reference, name of the reference, bar). Rows with the same reference take turns together.
ROWS: dict[str, tuple[Callable[[], Step], Callable[[], Step], str, float]] = {
    name: (contender, plain_adam, "plain Adam", bar)
    for name, contender, bar in (
        ("transformer head, 1 lower step", lambda: shared_head(adambo.AdamBO), 1.05),
        ("transformer head, 5 lower steps", lambda: shared_head(partial(adambo.AdamBO, lower_steps=5)), 1.06),
        ("20 tasks with their own heads", adambo_tasks, 1.10),
        ("SLIP", lambda: shared_head(adambo.SLIP), 1.10),
        ("SOBA", lambda: shared_head(adambo.SOBA), 1.10),
        ("MA-SOBA", lambda: shared_head(adambo.MASOBA), 1.10),
        ("TTSA", lambda: shared_head(adambo.TTSA), 1.10),
        ("StocBiO, 3 lower steps", lambda: shared_head(partial(adambo.StocBiO, lower_steps=3)), 1.10),
        ("SUSTAIN", lambda: shared_head(adambo.SUSTAIN), 2.20),
        ("AccBO", lambda: shared_head(adambo.AccBO), 2.20),
        ("VR-AdamBO", lambda: shared_head(adambo.VRAdamBO), 2.20),
    )
} | {
    "hyper-cleaning, MLP 784-300-10": (
        lambda: adambo_whole(cleaning, 3),
        lambda: straight_autograd(cleaning, 3),
        "straight autograd",
        1.05,
    ),
    "per-feature L2, 1,000 features": (
        lambda: adambo_whole(feature_l2, 10),
        lambda: straight_autograd(feature_l2, 10),
        "straight autograd",
        1.05,
    ),
}


def groups(chosen: str) -> list[list[str]]:
    """The rows whose name contains `chosen`; those with one reference together."""
    together: dict[object, list[str]] = {}
    for name, (_, reference, _, _) in ROWS.items():
        if chosen in name:
            together.setdefault(reference, []).append(name)
    return list(together.values())


def interleaved_times(contenders: list[Step], steps: int, warm_up: int = 3) -> list[list[float]]:
    """Seconds per step of contenders that take turns, each going first equally often."""
    times: list[list[float]] = [[] for _ in contenders]
    for turn in range(warm_up + steps):
        for place in range(len(contenders)):
            k = (turn + place) % len(contenders)
            start = time.perf_counter()
            contenders[k]()
            if turn >= warm_up:
                times[k].append(time.perf_counter() - start)
    return times


def peak_memory(build: Callable[[], Step], steps: int = 5) -> float:
    """MiB of resident memory that `steps` steps need above the built problem (Linux)."""
    build()()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    step = build()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _resident("VmRSS")
    for _ in range(steps):
        step()
    return (_resident("VmHWM") - before) / 1024


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def memory_in_a_process(row: str, contender: int) -> float:
    command = [sys.executable, __file__, "--memory-of", row, str(contender)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="interleaved steps per row")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.memory_of:
        row, contender = options.memory_of
        print(peak_memory(ROWS[row][int(contender)]))
        return

    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {platform.machine()}, {options.steps} steps a row")
    columns = ("adambo ms", 11), ("ref. ms", 9), ("ratio", 7), ("bar", 6), ("MiB", 8), ("ref.", 7), ("ratio", 7)
    print(f"{'workload':34}" + "".join(f"{name:>{width}}" for name, width in columns) + "  reference")
    for rows in groups(options.rows):
        _, reference, name, _ = ROWS[rows[0]]
        theirs, *others = interleaved_times([reference(), *(ROWS[row][0]() for row in rows)], options.steps)
        for row, mine in zip(rows, others, strict=True):
            ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            medians = "".join(f"{1e3 * statistics.median(t):{width}.2f}" for t, width in ((mine, 11), (theirs, 9)))
            line = f"{row:34}{medians}{ratio:7.3f}{ROWS[row][3]:6.2f}"
            if not options.no_memory:
                memory = [memory_in_a_process(row, k) for k in (0, 1)]
                line += f"{memory[0]:8.1f}{memory[1]:7.1f}{memory[0] / memory[1]:7.3f}"
            print(f"{line}  {name}", flush=True)


if __name__ == "__main__":
    main()
