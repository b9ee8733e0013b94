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
import platform
import statistics
from collections.abc import Callable
from functools import partial

import torch
from contenders import Settings
from contenders.adambo import problem_of
from contenders.by_hand import on_parameters, plain_adam
from measuring import Step, in_a_process, interleaved_times, paired_ratio, peak_memory
from workloads import Workload, cleaning, feature_l2, shared_head, task_heads

import adambo


def on_shared_head(algorithm: Callable[..., adambo.Algorithm]) -> Step:
    """One shared head. The labels are random, so small rates keep all algorithms in one regime."""
    workload = shared_head()
    solver = algorithm(problem_of(workload), lr=1e-4, lower_lr=1e-3)
    return lambda: solver.step(workload.upper_batch, workload.lower_batch)


def adambo_tasks() -> Step:
    workload = task_heads()
    solver = adambo.AdamBO(problem_of(workload))
    return lambda: solver.step(workload.upper_batch, workload.lower_batch)


def adambo_whole(build: Callable[[], Workload], terms: int) -> Step:
    workload = build()
    solver = adambo.AdamBO(problem_of(workload), inverse=adambo.Neumann(terms=terms))
    return lambda: solver.step(workload.upper_batch, workload.lower_batch)


def straight_autograd(build: Callable[[], Workload], terms: int) -> Step:
    """The same step written out by hand for the case at hand, with nothing else around it."""
    return on_parameters(build(), Settings(terms, neumann_step=0.1, lower_lr=5e-3))


# Workload: (contender, reference, name of the reference, bar). Rows with the same reference take turns together.
ROWS: dict[str, tuple[Callable[[], Step], Callable[[], Step], str, float]] = {
    name: (contender, plain_adam, "plain Adam", bar)
    for name, contender, bar in (
        ("transformer head, 1 lower step", lambda: on_shared_head(adambo.AdamBO), 1.05),
        ("transformer head, 5 lower steps", lambda: on_shared_head(partial(adambo.AdamBO, lower_steps=5)), 1.06),
        ("20 tasks with their own heads", adambo_tasks, 1.10),
        ("SLIP", lambda: on_shared_head(adambo.SLIP), 1.10),
        ("SOBA", lambda: on_shared_head(adambo.SOBA), 1.10),
        ("MA-SOBA", lambda: on_shared_head(adambo.MASOBA), 1.10),
        ("TTSA", lambda: on_shared_head(adambo.TTSA), 1.10),
        ("StocBiO, 3 lower steps", lambda: on_shared_head(partial(adambo.StocBiO, lower_steps=3)), 1.10),
        ("SUSTAIN", lambda: on_shared_head(adambo.SUSTAIN), 2.20),
        ("AccBO", lambda: on_shared_head(adambo.AccBO), 2.20),
        ("VR-AdamBO", lambda: on_shared_head(adambo.VRAdamBO), 2.20),
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


def memory_in_a_process(row: str, contender: int) -> float:
    return float(in_a_process(__file__, "--memory-of", row, str(contender)))


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
            medians = "".join(f"{1e3 * statistics.median(t):{width}.2f}" for t, width in ((mine, 11), (theirs, 9)))
            line = f"{row:34}{medians}{paired_ratio(mine, theirs):7.3f}{ROWS[row][3]:6.2f}"
            if not options.no_memory:
                memory = [memory_in_a_process(row, k) for k in (0, 1)]
                line += f"{memory[0]:8.1f}{memory[1]:7.1f}{memory[0] / memory[1]:7.3f}"
            print(f"{line}  {name}", flush=True)


if __name__ == "__main__":
    main()
