"""This library beside Betty, TorchOpt, BOAT, hypertorch, hand-written autograd, research scripts and plain Adam.

    python benchmarks/peers.py                              # gate, time and memory of everybody, on all workloads
    python benchmarks/peers.py --gate-only                  # only whether their hypergradients are right
    python benchmarks/peers.py --workloads tasks l2 --contenders adambo Betty
    python benchmarks/peers.py --steps 40 --no-memory --markdown peers.md

The peers are not needed for anything else, and those that are not installed are shown as absent. BOAT asks for an old
numpy and for a torchvision that it does not import, and Betty for Python 3.10; both work without:

    pip install torchopt matplotlib
    pip install --no-deps boat-torch higher
    pip install --no-deps --ignore-requires-python betty-ml==0.2.1
    pip install git+https://github.com/prolearner/hypertorch     # the hypertorch of PyPI is another project

Everybody is used through the public interface, on the same data, from the same initial parameters, with Adam above and
SGD below, and with a Neumann series of the same number of terms or the nearest that is offered.

First the gate: in float64, on a small instance of the workload, one step of every contender against the dense implicit
gradient. Who is wrong by more than 1e-3 is shown with the error, and not timed. Then time: contenders take turns, step
by step; a ratio is the median of the paired ratios to the reference. Those who take more than three times as long as
the reference are timed apart, beside the same reference, for a quarter of the steps. Then memory: the maximum resident
set above the built problem, one process per contender.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from contenders import CONTENDERS, Contender, Settings
from contenders.gate import TOLERANCE, judge
from measuring import Step, in_a_process, interleaved_times, machine, paired_ratio, peak_memory
from workloads import Workload, cleaning, feature_l2, shared_head, task_heads

SLOW = 3.0  # times the reference: beyond, a contender is timed apart
SMALL = {"width": 16, "layers": 1, "vocabulary": 30, "tokens": 6, "classes": 3}


@dataclass(frozen=True)
class Comparison:
    """A workload, at its full size and small enough for the gate.

    Attributes:
        title: What stands above its table.
        build, small: The workload, and its small instance.
        settings: Of all contenders.
        reference: The contender that the others are divided by.
        steps: How many are timed unless a number is asked for.
    """

    title: str
    build: Callable[[], Workload]
    small: Callable[[], Workload]
    settings: Settings
    reference: str
    steps: int


COMPARISONS = {
    "head-1": Comparison(
        "head on a transformer, 1 lower step",
        shared_head,
        partial(shared_head, examples=12, **SMALL),
        Settings(terms=3, neumann_step=0.02, lower_lr=1e-3),
        "plain Adam",
        steps=12,
    ),
    "head-5": Comparison(
        "head on a transformer, 5 lower steps",
        shared_head,
        partial(shared_head, examples=12, **SMALL),
        Settings(terms=3, neumann_step=0.02, lower_lr=1e-3, lower_steps=5),
        "plain Adam",
        steps=12,
    ),
    "tasks": Comparison(
        "20 tasks with their own heads on a transformer",
        task_heads,
        partial(task_heads, tasks=3, examples=4, **SMALL),
        Settings(terms=3, neumann_step=0.02, lower_lr=5e-3),
        "plain Adam",
        steps=12,
    ),
    "cleaning": Comparison(
        "hyper-cleaning, MLP 784-300-10, 5,000 weights",
        cleaning,
        # With this penalty the small network is strongly convex where it is compared.
        partial(cleaning, inputs=6, hidden=5, classes=3, examples=20, weighed=30, penalty=0.5),
        Settings(terms=3, neumann_step=0.1, lower_lr=5e-3),
        "straight autograd",
        steps=120,
    ),
    "l2": Comparison(
        "per-feature L2, 1,000 features",
        feature_l2,
        partial(feature_l2, features=8, examples=40),
        Settings(terms=10, neumann_step=0.1, lower_lr=5e-3),
        "straight autograd",
        steps=300,
    ),
}


@dataclass
class Row:
    """A contender's line: what it estimates and the outcome of the gate, or why there is none; time and memory."""

    contender: Contender
    estimator: str
    gate: str
    runs: bool
    milliseconds: float | None = None
    time_ratio: float | None = None
    mebibytes: float | None = None
    memory_ratio: float | None = None

    def cells(self) -> list[str]:
        numbers = (
            (self.milliseconds, ".2f"),
            (self.time_ratio, ".3f"),
            (self.mebibytes, ".1f"),
            (self.memory_ratio, ".3f"),
        )
        return [
            self.contender.name,
            self.estimator,
            self.contender.at if self.estimator else "",
            self.gate,
            *("" if number is None else f"{number:{form}}" for number, form in numbers),
        ]


HEADINGS = ("contender", "inverse", "at y", "gate", "ms", "ratio", "MiB", "ratio")
WORDS = 4  # the first columns hold words, the others numbers


def through_the_gate(contender: Contender, comparison: Comparison) -> Row:
    """The row of a contender, before anything is measured."""
    absent = contender.absent()
    if absent is not None:
        return Row(contender, "", f"absent: {absent}", runs=False)
    reason = contender.not_offered(comparison.small())
    if reason is not None:
        return Row(contender, "", f"not offered: {reason}", runs=False)
    if not contender.is_bilevel:
        return Row(contender, "", "", runs=True)
    verdict = judge(contender, comparison.small, comparison.settings)
    return Row(contender, contender.estimator(comparison.settings), str(verdict), runs=verdict.is_right)


def built(contender: Contender, comparison: Comparison) -> Step:
    """The step at full size; all contenders start from the same parameters and data."""
    torch.manual_seed(0)
    return contender.build(comparison.build(), comparison.settings)


def measure_time(rows: Sequence[Row], comparison: Comparison, steps: int) -> None:
    """Fills in the times of contenders that take turns."""
    turns = [built(row.contender, comparison) for row in rows]
    first = next(k for k, row in enumerate(rows) if row.contender.name == comparison.reference)
    once = [seconds for (seconds,) in interleaved_times(turns, steps=1, warm_up=1)]
    slow = [k for k, seconds in enumerate(once) if seconds > SLOW * once[first]]
    quick = [k for k in range(len(rows)) if k != first and k not in slow]
    for group, count in ((slow, max(2, steps // 4)), (quick, steps)):
        reference, *others = interleaved_times([turns[k] for k in (first, *group)], count, warm_up=1)
        for k, seconds in zip((first, *group), (reference, *others), strict=True):
            rows[k].milliseconds = 1e3 * statistics.median(seconds)
            rows[k].time_ratio = paired_ratio(seconds, reference)


def measure_memory(rows: Sequence[Row], key: str) -> None:
    """Fills in the memory, each number from a process of its own."""
    found = {row.contender.name: float(in_a_process(__file__, "--memory-of", key, row.contender.name)) for row in rows}
    for row in rows:
        row.mebibytes = found[row.contender.name]
        row.memory_ratio = row.mebibytes / found[COMPARISONS[key].reference]


def table(rows: Sequence[Row]) -> tuple[list[tuple[str, ...]], list[bool]]:
    """The lines of cells, headings first, without empty columns; and for each column whether it holds words."""
    columns = zip(*(row.cells() for row in rows), strict=True)
    filled = [
        (k < WORDS, (heading, *cells))
        for k, (heading, cells) in enumerate(zip(HEADINGS, columns, strict=True))
        if any(cells)
    ]
    return list(zip(*(cells for _, cells in filled), strict=True)), [words for words, _ in filled]


def as_text(rows: Sequence[Row]) -> str:
    lines, words = table(rows)
    # Who has no numbers has words in their place, which run on to the right.
    measured = [line for line in lines if line[-1]]
    widths = [max(len(line[k]) for line in (measured if k == WORDS - 1 else lines)) for k in range(len(words))]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if is_word else '>'}{width}}" for cell, is_word, width in zip(line, words, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def as_markdown(rows: Sequence[Row]) -> str:
    lines, words = table(rows)
    rule = "|".join("---" if is_word else "--:" for is_word in words)
    top, *others = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([top, f"|{rule}|", *others])


def chosen_contenders(parts: Sequence[str], reference: str) -> list[Contender]:
    """Those whose name contains one of `parts`, and the reference, in the order of the table."""
    return [
        contender
        for name, contender in CONTENDERS.items()
        if not parts or name == reference or any(part.lower() in name.lower() for part in parts)
    ]


def compare(key: str, options: argparse.Namespace) -> list[Row]:
    comparison = COMPARISONS[key]
    rows = [through_the_gate(c, comparison) for c in chosen_contenders(options.contenders, comparison.reference)]
    if options.gate_only:
        return [row for row in rows if row.contender.is_bilevel]
    running = [row for row in rows if row.runs]
    measure_time(running, comparison, options.steps or comparison.steps)
    if not options.no_memory:
        measure_memory(running, key)
    return rows


def head(options: argparse.Namespace) -> list[str]:
    """Machine, versions and command."""
    versions = dict.fromkeys(c.version() for c in CONTENDERS.values() if c.absent() is None)
    asked = [argument for argument in sys.argv[1:] if argument not in ("--markdown", str(options.markdown))]
    return [machine(), ", ".join(filter(None, versions)), " ".join(["python benchmarks/peers.py", *asked])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--contenders", nargs="+", default=[], help="parts of names; the reference is always there")
    parser.add_argument("--steps", type=int, help="timed steps of everybody on every workload")
    parser.add_argument("--no-memory", action="store_true", help="gate and time only")
    parser.add_argument("--gate-only", action="store_true", help="neither time nor memory")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there as well")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # everybody on the CPU; Betty would take a GPU by itself
    warnings.filterwarnings("ignore", message=".*functorch", category=FutureWarning)  # TorchOpt's, at every step
    if options.memory_of:
        key, name = options.memory_of
        print(peak_memory(partial(built, CONTENDERS[name], COMPARISONS[key]), steps=3))
        return

    print("\n".join(head(options)), flush=True)
    markdown = ["  \n".join(head(options))]
    for key in options.workloads:
        comparison, rows = COMPARISONS[key], compare(key, options)
        title = f"{comparison.title} (ratios to {comparison.reference}; gate: relative error, at most {TOLERANCE:g})"
        print(f"\n{title}\n{as_text(rows)}", flush=True)
        markdown.append(f"**{title}**\n\n{as_markdown(rows)}")
    if options.markdown:
        options.markdown.write_text("\n\n".join(markdown) + "\n")


if __name__ == "__main__":
    main()
