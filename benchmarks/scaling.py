"""How a step of AdamBO grows: time and memory against heads, terms, lower steps, batch, model size and micro-batches.

    python benchmarks/scaling.py                                  # everything; tables, and docs/scaling.png
    python benchmarks/scaling.py --only K,Q --steps 40            # two of the sweeps, more steps
    python benchmarks/scaling.py --device cuda --json runs.json   # 8 layers, 768 wide; keeps every number
    python benchmarks/scaling.py --from runs.json                 # the tables and the figure of that file again
    python benchmarks/scaling.py --small                          # a check of one minute, with sizes that say little

The problem is hyper-representation: a transformer encoder, a table of K linear heads, 25 tasks a step. Beside it is
plain Adam: the same encoder with one shared head, on the same sequences. All points of a sweep take turns, step by
step. Tasks are visited again and again, as in a long run; what their first visits cost more has a line of its own.

An exponent is the slope of a line through log cost against log size, by least squares, weighted by what the scatter of
the steps lets one know. Where a cost has a part that stays (the encoder, while Q grows), the slope is that of the part
that grows: the cost above the cheapest end of the sweep, against the distance in size from there. The memory of a step
is its peak above the built problem: the resident set in a process per point, without holes in the heap, or what the
CUDA allocator has given out.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measuring import Step, in_a_process, interleaved_times, machine, nothing, paired_ratio, peak_memory
from torch import Tensor, nn
from workloads import Encoder

import adambo
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation
from adambo.report.palette import ALGORITHMS, BLUE, GREEN

TASKS, CLASSES, TOKENS, VOCABULARY = 25, 6, 24, 1000
VISITS = 4  # draws that a contender goes through again and again; the warm-up sees each of them
MIB = 2**20


class Setting(NamedTuple):
    """One point: what a step is made of. Of the sequences of a task, half are support and half are query."""

    heads: int = 500
    terms: int = 3
    lower_steps: int = 1
    sequences: int = 100
    layers: int = 2
    width: int = 256
    microbatches: int = 1


class Law(NamedTuple):
    """What is expected: (cost − floor) ~ size^exponent.

    Attributes:
        exponent: Of the size.
        above: The floor. "first", "last": the cost of that point, from which sizes are counted too; "moments": the two
            moments that Adam keeps of every parameter.
    """

    exponent: float
    above: Literal["nothing", "first", "last", "moments"] = "nothing"


Contender = tuple[str, Setting]


@dataclass(frozen=True)
class Sweep:
    """One field of a setting takes several values.

    Attributes:
        title: What varies.
        field: Of `Setting`.
        values: What it takes, from small to large.
        base: All other fields.
        time, memory: The expectations.
        variable, size: The number that the exponents belong to: its name, and how a setting gives it.
        beside: Contenders that take turns with the points, for a remark.
        turns: How many times as many steps as in other sweeps.
    """

    title: str
    field: str
    values: tuple[int, ...]
    base: Setting
    time: Law
    memory: Law
    variable: str
    size: Callable[[Setting], float]
    beside: dict[str, Contender] = field(default_factory=dict)
    turns: int = 1

    @property
    def settings(self) -> list[Setting]:
        return [self.base._replace(**{self.field: value}) for value in self.values]

    @property
    def sizes(self) -> list[float]:
        return [float(self.size(setting)) for setting in self.settings]


def sweeps(device: str, small: bool) -> dict[str, Sweep]:
    """The sweeps by the names that `--only` takes."""
    heads, powers, parts = (500, 1_000, 5_000, 10_000, 50_000), (1, 2, 3, 4, 8, 16, 32, 64), (1, 2, 4, 8)
    base, batch, depth, width = Setting(), (50, 100, 200, 400, 800), (1, 2, 4, 8), (64, 128, 256, 512)
    if device == "cuda":
        base, batch = Setting(layers=8, width=768, sequences=400), (100, 200, 400, 800, 1600)
        depth, width = (2, 4, 8, 16), (192, 384, 768, 1536)
    if small:
        heads, powers, parts = (500, 5_000, 50_000), (1, 3, 64), (1, 2, 8)
        base, batch, depth, width = Setting(layers=1, width=64), (50, 100, 200), (1, 2, 4), (64, 128, 192)
    # One sees what the work on the features costs beside a light encoder, and what it means beside the usual one.
    light = base if small or device == "cuda" else Setting(layers=1, width=128, sequences=50)
    terms, steps = (
        {str(value): ("adambo", base._replace(**{name: value})) for value in ends}
        for name, ends in (("terms", (3, powers[-1])), ("lower_steps", (1, powers[-1])))
    )
    whole = base._replace(sequences=2 * base.sequences)
    news, forward = ("first visits", base._replace(heads=heads[-1])), ("forward", whole)
    flat, grows, falls = Law(0), Law(1, above="first"), Law(1, above="last")
    return {
        "K": Sweep("heads in the table, K", "heads", heads, base, flat, flat, "K", lambda s: s.heads, {"new": news}),
        "Q": Sweep("terms of the series, Q", "terms", powers, light, grows, flat, "Q", lambda s: s.terms, terms, 3),
        "lower": Sweep(
            "lower steps, N", "lower_steps", powers, light, grows, flat, "N", lambda s: s.lower_steps, steps, 3
        ),
        "batch": Sweep("sequences, B", "sequences", batch, base, grows, grows, "B", lambda s: s.sequences),
        "depth": Sweep("depth", "layers", depth, base, grows, grows, "depth · width²", arithmetic),
        # Activations grow like the width, the arithmetic and the parameters like its square.
        "width": Sweep("width", "width", width, base, grows, Law(0.5, "moments"), "depth · width²", arithmetic),
        # All parts but one are encoded twice, and one at a time has its activations in memory.
        "microbatches": Sweep(
            "micro-batches, n", "microbatches", parts, whole, grows, falls, "1/n", lambda s: 1 / s.microbatches,
            {"forward": forward},
        ),
    }  # fmt: skip


def arithmetic(setting: Setting) -> float:
    """Multiplications per token in the layers of the encoder, but for a factor."""
    return setting.layers * setting.width**2


def moments(setting: Setting) -> float:
    """MiB of the two moments that Adam keeps of the encoder."""
    with torch.device("meta"):
        encoder = Encoder(setting.width, setting.layers, VOCABULARY, TOKENS)
    return 2 * sum(p.nbytes for p in encoder.parameters()) / MIB


def episodes(setting: Setting, device: str, visits: int) -> Iterator[Episodes]:
    """Random data of 25 tasks at a time; after `visits` draws the first tasks come again."""
    tasks = torch.randperm(setting.heads)[: visits * TASKS].to(device).split(TASKS)
    inputs = [torch.randint(VOCABULARY, (setting.sequences, TOKENS), device=device) for _ in range(VISITS)]
    labels = [torch.randint(CLASSES, (TASKS, setting.sequences // TASKS), device=device) for _ in range(VISITS)]
    support = setting.sequences // TASKS // 2
    return cycle([Episodes(ids, inputs[k % VISITS], labels[k % VISITS], support) for k, ids in enumerate(tasks)])


def encoder_of(setting: Setting, device: str) -> Encoder:
    return Encoder(setting.width, setting.layers, VOCABULARY, TOKENS).to(device)


def adambo_step(setting: Setting, device: str, visits: int = VISITS) -> Step:
    encoder = encoder_of(setting, device)
    weights = nn.Parameter(torch.empty(setting.heads, CLASSES, setting.width, device=device).normal_(std=0.01))
    heads = Heads(weights, nn.Parameter(torch.zeros(setting.heads, CLASSES, device=device)))
    problem = hyper_representation(encoder, encoder, heads, mu=0.1, microbatches=setting.microbatches)
    solver = adambo.AdamBO(
        problem, lower_lr=1e-3, inverse=adambo.Neumann(terms=setting.terms), lower_steps=setting.lower_steps
    )
    stream = episodes(setting, device, visits)

    def step() -> None:
        batch = next(stream)
        solver.step(batch, batch)

    return step


def first_visits_step(setting: Setting, device: str) -> Step:
    """The same where all tasks of every step are new, as long as the table lasts."""
    return adambo_step(setting, device, visits=setting.heads // TASKS)


def adam_step(setting: Setting, device: str) -> Step:
    """The yardstick: one Adam step on all sequences, with a single head."""
    encoder, head = encoder_of(setting, device), nn.Linear(setting.width, CLASSES, device=device)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True if device == "cuda" else None)
    stream = episodes(setting, device, VISITS)

    def step() -> None:
        batch = next(stream)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(encoder(batch.inputs)), batch.labels.flatten()).backward()
        optimizer.step()

    return step


def forward_step(setting: Setting, device: str) -> Step:
    """The encoder alone, without a gradient."""
    encoder, stream = encoder_of(setting, device), episodes(setting, device, VISITS)

    def step() -> Tensor:
        with torch.no_grad():
            return encoder(next(stream).inputs)

    return step


STEPS: dict[str, Callable[[Setting, str], Step]] = {
    "adambo": adambo_step,
    "adam": adam_step,
    "first visits": first_visits_step,
    "forward": forward_step,
}


def yardstick(setting: Setting) -> Setting:
    """What of a setting plain Adam knows."""
    return Setting(sequences=setting.sequences, layers=setting.layers, width=setting.width)


@dataclass
class Measured:
    """A sweep as it was measured; lists have an entry per value, also where plain Adam is the same for all of them.

    Attributes:
        times: Seconds of every timed step, turn by turn, by contender.
        memory: MiB of a step above the built problem, by contender.
        built: MiB of the built problem: encoder, table and data.
        beside: Seconds of the steps of the contenders beside the points.
    """

    times: dict[str, list[list[float]]]
    memory: dict[str, list[float]]
    built: list[float]
    beside: dict[str, list[float]]

    def milliseconds(self, contender: str) -> list[float]:
        return [1e3 * statistics.median(times) for times in self.times[contender]]

    def ratios(self) -> list[float]:
        """The time of AdamBO over that of plain Adam, point by point."""
        return [paired_ratio(*pair) for pair in zip(self.times["adambo"], self.times["adam"], strict=True)]


def measured(sweep: Sweep, device: str, steps: int) -> Measured:
    """Time first, all points in turn; then memory, each point by itself."""
    points = [("adambo", setting) for setting in sweep.settings]
    partners = [("adam", yardstick(setting)) for setting in sweep.settings]
    together = list(dict.fromkeys([*points, *partners, *sweep.beside.values()]))
    wait = torch.cuda.synchronize if device == "cuda" else nothing
    warm_up = 20 if device == "cuda" else VISITS
    contenders = [STEPS[kind](setting, device) for kind, setting in together]
    times = dict(zip(together, interleaved_times(contenders, sweep.turns * steps, warm_up, wait), strict=True))
    del contenders
    memory = memory_of(list(dict.fromkeys([*points, *partners])), device)
    return Measured(
        times={"adambo": [times[key] for key in points], "adam": [times[key] for key in partners]},
        memory={"adambo": [memory[key].step for key in points], "adam": [memory[key].step for key in partners]},
        built=[memory[key].built for key in points],
        beside={name: times[key] for name, key in sweep.beside.items()},
    )


class Memory(NamedTuple):
    """MiB of the built problem, and of a step above it."""

    built: float
    step: float


_known: dict[Contender, Memory] = {}  # the sweeps meet in one point


def memory_of(contenders: Sequence[Contender], device: str) -> dict[Contender, Memory]:
    new = [contender for contender in contenders if contender not in _known]
    if device == "cuda":
        _known.update({(kind, setting): cuda_memory(partial(STEPS[kind], setting, device)) for kind, setting in new})
    else:
        with ThreadPoolExecutor(max_workers=2) as pool:  # each waits for a process
            printed = pool.map(lambda contender: in_a_process(__file__, "--memory-of", json.dumps(contender)), new)
            _known.update({key: Memory(*json.loads(line)) for key, line in zip(new, printed, strict=True)})
    return {contender: _known[contender] for contender in contenders}


def cuda_memory(build: Callable[[], Step], steps: int = 5) -> Memory:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = build()
    built = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        step()
    return Memory((built - before) / MIB, (torch.cuda.max_memory_allocated() - built) / MIB)


def resident_memory(build: Callable[[], Step]) -> Memory:
    """The same on a CPU (Linux with glibc); to be called in a process of its own."""
    built = 0.0

    def counted() -> Step:
        nonlocal built
        before = resident()
        step = build()
        built = (resident() - before) / MIB
        return step

    step = peak_memory(counted)
    return Memory(built, step)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Fit(NamedTuple):
    """A slope in the log-log plane with its standard error, and how many of how many points could be used."""

    slope: float
    error: float
    used: int
    points: int

    def __str__(self) -> str:
        slope = round(self.slope, 2) + 0.0  # no minus before a zero
        return f"{slope:.2f} ± {self.error:.2f}".replace("-", "−") if self.used > 1 else "lost in the noise"


SCATTER = 0.02  # of a logarithm, beside what the scatter of the steps shows: one point must not count for all


def fitted(sizes: Sequence[float], values: Sequence[float], errors: Sequence[float]) -> Fit:
    """The exponent of values ~ sizes^exponent; values that their standard errors do not tell from zero are left out."""
    points = [point for point in zip(sizes, values, errors, strict=True) if point[0] > 0]
    known = [(size, value, error) for size, value, error in points if value > 2 * error]
    if len(known) < 2:
        return Fit(math.nan, math.nan, len(known), len(points))
    size, value, error = np.array(known).T
    weight = 1 / (SCATTER**2 + (error / value) ** 2)
    x, y = np.log(size), np.log(value)
    x = x - np.average(x, weights=weight)
    slope = (weight * x * y).sum() / (weight * x * x).sum()
    residuals = y - np.average(y, weights=weight) - slope * x
    excess = (weight * residuals**2).sum() / max(1, len(known) - 2)
    return Fit(float(slope), math.sqrt(max(1.0, excess) / (weight * x * x).sum()), len(known), len(points))


def ground(law: Law, sweep: Sweep, costs: Sequence[Sequence[float]]) -> tuple[list[float], list[Sequence[float]]]:
    """The sizes that count for a law and what the costs stand on, point by point."""
    if law.above in ("first", "last"):
        start = 0 if law.above == "first" else -1
        return [abs(size - sweep.sizes[start]) for size in sweep.sizes], [costs[start]] * len(costs)
    levels = [moments(setting) if law.above == "moments" else 0.0 for setting in sweep.settings]
    return sweep.sizes, [[level] * len(cost) for level, cost in zip(levels, costs, strict=True)]


def exponent(law: Law, sweep: Sweep, costs: Sequence[Sequence[float]]) -> Fit:
    """The fitted exponent; `costs` are those of every point in every turn, or one number a point (memory)."""
    sizes, floors = ground(law, sweep, costs)
    # In units of the first point in the same turn: a slow moment of the machine is no growth.
    parts = [
        centre([(a - b) / unit for a, b, unit in zip(cost, floor, costs[0], strict=True)])
        for cost, floor in zip(costs, floors, strict=True)
    ]
    return fitted(sizes, *zip(*parts, strict=True))


def centre(numbers: Sequence[float]) -> tuple[float, float]:
    """The median and its standard error, as of normal numbers with the same median deviation."""
    median = statistics.median(numbers)
    deviation = statistics.median(abs(number - median) for number in numbers)
    return median, 1.2533 * 1.4826 * deviation / math.sqrt(len(numbers))


def expected_costs(law: Law, sweep: Sweep, costs: Sequence[float]) -> list[float]:
    """The expected line: through the point where the part that counts is largest; a level one through the middle."""
    if law.exponent == 0:
        return [math.exp(statistics.fmean(map(math.log, costs)))] * len(costs)
    sizes, floors = ground(law, sweep, [[cost] for cost in costs])
    most = sizes.index(max(sizes))
    scale = (costs[most] - floors[most][0]) / sizes[most] ** law.exponent
    return [floor + scale * size**law.exponent for size, (floor,) in zip(sizes, floors, strict=True)]


class Row(NamedTuple):
    """One line of the table of exponents."""

    cost: str
    law: Law
    fit: Fit


TABLE = Law(1, above="first")
PARTS = {"nothing": "exponent", "first": "growing part", "last": "growing part", "moments": "activations"}


def exponents(name: str, sweep: Sweep, found: Measured) -> dict[str, Row]:
    rows = {
        "time": Row("time", sweep.time, exponent(sweep.time, sweep, found.times["adambo"])),
        "memory": Row(
            "memory of a step", sweep.memory, exponent(sweep.memory, sweep, [[m] for m in found.memory["adambo"]])
        ),
    }
    if name == "K":
        rows["table"] = Row("memory of the built problem", TABLE, exponent(TABLE, sweep, [[m] for m in found.built]))
    return rows


def remarks(name: str, sweep: Sweep, found: Measured) -> list[str]:
    """What the exponents do not say."""
    times, values = found.times["adambo"], sweep.values
    if name == "K":
        first = paired_ratio(found.beside["new"], times[-1])
        return [
            f"{values[0]:,} → {values[-1]:,} heads: time × {paired_ratio(times[-1], times[0]):.3f}",
            f"{values[-1]:,} heads, all tasks of the step visited for the first time: time × {first:.3f}",
        ]
    if name in ("Q", "lower"):
        (few, short), (many, long) = found.beside.items()
        encoder = next(iter(sweep.beside.values()))[1]
        return [
            f"{sweep.variable} = {few} → {many}, {encoder.sequences} sequences, {encoder.layers} layers, "
            f"{encoder.width} wide: time × {paired_ratio(long, short):.3f}"
        ]
    if name == "microbatches":
        forward = found.beside["forward"]
        more = [centre([a - b for a, b in zip(each, times[0], strict=True)])[0] for each in times[1:]]
        memory = found.memory["adambo"]
        return [
            f"n = {n}: memory × {held / memory[0]:.3f}, time × {paired_ratio(each, times[0]):.3f}, which is "
            f"{extra / statistics.median(forward):.2f} forward passes of the encoder more (expected: {1 - 1 / n:.2f})"
            for n, each, extra, held in zip(values[1:], times[1:], more, memory[1:], strict=True)
        ]
    return []


def print_sweep(name: str, sweep: Sweep, found: Measured) -> None:
    base = {k: v for k, v in sweep.base._asdict().items() if k != sweep.field}
    print(f"\n{name}: {sweep.title} ({', '.join(f'{k} {v}' for k, v in base.items())})\n")
    print(f"| {sweep.field} | AdamBO, ms | Adam, ms | ratio | AdamBO, MiB | Adam, MiB | ratio | built, MiB |")
    print("|---|---|---|---|---|---|---|---|")
    columns = zip(
        sweep.values, found.milliseconds("adambo"), found.milliseconds("adam"), found.ratios(),
        found.memory["adambo"], found.memory["adam"], found.built, strict=True,
    )  # fmt: skip
    for value, mine, theirs, ratio, held, theirs_held, built in columns:
        print(
            f"| {value:,} | {mine:.2f} | {theirs:.2f} | {ratio:.3f} | {held:.1f} | {theirs_held:.1f} "
            f"| {held / theirs_held:.2f} | {built:.1f} |"
        )
    for remark in remarks(name, sweep, found):
        print(f"\n{remark}")
    sys.stdout.flush()


def print_exponents(run: dict[str, tuple[Sweep, Measured]]) -> None:
    print("\n| cost | sweep | exponent of | expected | fitted | points |\n|---|---|---|---|---|---|")
    for name, (sweep, found) in run.items():
        for cost, law, fit in exponents(name, sweep, found).values():
            part = cost if law.above == "nothing" else f"{cost}, {PARTS[law.above]}"
            used = f"{fit.used} of {fit.points}"
            print(f"| {part} | {sweep.title} | {sweep.variable} | {law.exponent:g} | {fit} | {used} |")


PAPER: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}
COLUMNS = 4
MINE, THEIRS, HELD = ALGORITHMS["adambo"][1].light, "0.55", BLUE[0]
EXPECTED: dict[str, Any] = {"color": GREEN[0], "dashes": (4, 2), "lw": 1.3, "zorder": 4}


def draw(run: dict[str, tuple[Sweep, Measured]], where: str, heading: str) -> None:
    """Time above, memory below, a column for each sweep; two bands if there are more than four."""
    with matplotlib.rc_context(PAPER):
        bands, columns = -(-len(run) // COLUMNS), min(COLUMNS, len(run))
        figure = Figure(figsize=(1.2 + 2.9 * columns, 0.8 + 4.6 * bands), layout="constrained")
        panels = figure.subplots(2 * bands, columns, squeeze=False)
        for place in panels.flat:
            place.set_visible(False)
        for k, (name, (sweep, found)) in enumerate(run.items()):
            band, column = divmod(k, columns)
            rows = exponents(name, sweep, found)
            upper, lower = panels[2 * band, column], panels[2 * band + 1, column]
            panel(upper, sweep, rows["time"], found.milliseconds("adambo"), found.milliseconds("adam"))
            panel(lower, sweep, rows["memory"], found.memory["adambo"], found.memory["adam"])
            captions = [fit_text(rows["time"]), fit_text(rows["memory"])]
            if "table" in rows:
                lower.plot(sweep.sizes, found.built, "s-", color=HELD)
                lower.plot(sweep.sizes, expected_costs(TABLE, sweep, found.built), **EXPECTED)
                captions[1] += f"\nbuilt, {fit_text(rows['table'])}"
            for place, caption in zip((upper, lower), captions, strict=True):
                room(place)
                place.text(0.5, 1.03, caption, transform=place.transAxes, ha="center", fontsize=8.5)
            unit = "" if sweep.variable in sweep.title else f" (as {sweep.variable})"
            upper.set_title(sweep.title + unit, weight="bold", pad=18)
            if column == 0:
                upper.set_ylabel("ms per step")
                lower.set_ylabel("MiB above the built problem")
        looks: list[tuple[str, dict[str, Any]]] = [
            ("AdamBO", {"color": MINE, "marker": "o"}),
            ("plain Adam, same sequences", {"color": THEIRS, "marker": "D"}),
            ("expected", EXPECTED),
            ("the built problem itself", {"color": HELD, "marker": "s"}),
        ]
        handles = [matplotlib.lines.Line2D([], [], label=label, **look) for label, look in looks[: 3 + ("K" in run)]]
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
        figure.suptitle(textwrap.fill(heading, 45 * columns), fontsize=8.5)
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(where, dpi=160)


def panel(place: Axes, sweep: Sweep, row: Row, mine: Sequence[float], theirs: Sequence[float]) -> None:
    place.set_visible(True)
    place.plot(sweep.sizes, theirs, "D-", color=THEIRS, ms=3.5)
    place.plot(sweep.sizes, mine, "o-", color=MINE)
    place.plot(sweep.sizes, expected_costs(row.law, sweep, mine), **EXPECTED)
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_xticks(sweep.sizes, [f"{value // 1000}k" if value >= 10_000 else str(value) for value in sweep.values])
    place.set_xticks([], minor=True)
    if sweep.sizes[0] > sweep.sizes[-1]:  # values grow to the right
        place.invert_xaxis()


def fit_text(row: Row) -> str:
    return f"{PARTS[row.law.above]}: {row.fit}, expected {row.law.exponent:g}"


def room(place: Axes) -> None:
    """An axis of at least a factor of four, so that noise looks like noise; its ticks in plain numbers."""
    low, high = place.dataLim.intervaly
    middle, half = math.sqrt(low * high), max(math.sqrt(high / low) * 1.15, 2.0)
    place.set_ylim(middle / half, middle * half)
    place.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    place.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    place.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="some of K,Q,lower,batch,depth,width,microbatches")
    parser.add_argument("--steps", type=int, help="timed steps of each point (20; on CUDA 40)")
    parser.add_argument("--small", action="store_true", help="a quick check that all of it runs")
    parser.add_argument("--out", default="docs/scaling.png", help="the figure")
    parser.add_argument("--json", help="a file for every number that was measured")
    parser.add_argument("--from", dest="source", help="such a file, instead of measuring")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.memory_of:
        kind, values = json.loads(options.memory_of)
        print(json.dumps(resident_memory(partial(STEPS[kind], Setting(*values), "cpu"))))
        return
    if options.source:
        record = json.loads(Path(options.source).read_text())
        device, small, heading = record["device"], record["small"], record["machine"]
    else:
        device, small, heading = options.device, options.small, f"{options.device}, fp32; {machine()}"
    if device == "cuda" and not options.source and not torch.cuda.is_available():
        parser.error("--device cuda, but torch sees no CUDA device here.")
    known = sweeps(device, small)
    chosen = options.only.split(",") if options.only else list(record["sweeps"] if options.source else known)
    if unknown := set(chosen) - set(known):
        parser.error(f"--only {','.join(sorted(unknown))}: choose from {','.join(known)}.")
    steps = options.steps or (5 if small else 40 if device == "cuda" else 20)
    print(heading, flush=True)
    run: dict[str, tuple[Sweep, Measured]] = {}
    begin = time.perf_counter()
    for name in chosen:
        found = Measured(**record["sweeps"][name]) if options.source else measured(known[name], device, steps)
        run[name] = known[name], found
        print_sweep(name, *run[name])
    print_exponents(run)
    if not options.source:
        print(f"\n{time.perf_counter() - begin:.0f} s, {steps} steps a point")
    if options.json:
        kept = {"device": device, "small": small, "machine": heading}
        kept |= {"sweeps": {name: asdict(found) for name, (_, found) in run.items()}}
        Path(options.json).write_text(json.dumps(kept))
    draw(run, options.out, heading)


if __name__ == "__main__":
    main()
