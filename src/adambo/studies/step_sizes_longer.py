"""The study of step sizes, far from the optimum, in runs ten times as long: what stalls may only be slow."""

from __future__ import annotations

import numpy as np

from adambo.studies.findings import Sheet
from adambo.studies.interval import Interval, geometric
from adambo.studies.step_size_runs import DISTANCES, Range

LONGER = 10
SEEDS = 4  # at most: these runs are long
METHODS = ("StocBiO", "SOBA", "AdamBO, β_sq = 0.001", "AdamBO, β_sq = 0.1")
Longer = dict[str, tuple[Range, Range]]


def cells(steps: int, seeds: int) -> list[tuple[str, int, int, int]]:
    """The runs, as arguments of `final_gradients`."""
    return [(label, DISTANCES[-1], LONGER * steps, min(SEEDS, seeds)) for label in METHODS]


def both(ranges: dict[tuple[str, int], Range], longer: list[Range]) -> Longer:
    """For each method, the runs of the usual length and the longer ones, of the same seeds."""
    return {
        label: (Range(ranges[label, DISTANCES[-1]].final[: len(long.final)].tolist()), long)
        for label, long in zip(METHODS, longer, strict=True)
    }


def sheet(found: Longer, steps: int) -> Sheet:
    seeds = len(next(iter(found.values()))[1].final)
    columns = ["method", *(f"{what}, {T} steps" for T in (steps, LONGER * steps) for what in ("decades of η", "best"))]
    rows = [
        [label, *(cell for each in pair for cell in (Interval.of(each.decades).text(2), _best(each).text())),
         f"{int(pair[1].some.sum())} of {seeds}"]
        for label, pair in found.items()
    ]  # fmt: skip
    caption = (
        f"Cosh, start {DISTANCES[-1]} from the optimum, runs of {LONGER * steps} steps beside those of {steps}: "
        f"decades of η that converge, and the best final ‖∇Φ‖; (geometric) means over the first {seeds} "
        "seeds, 95 % intervals:"
    )
    return Sheet(caption, [*columns, f"seeds that converge in {LONGER * steps}"], rows)


def sentence(found: Longer, steps: int) -> str:
    """Which methods converge given more steps that did not without."""
    late, never = (
        [label for label, (short, long) in found.items() if not short.some.any() and bool(long.some.any()) is wanted]
        for wanted in (True, False)
    )
    parts = [
        f"{label} ({int(long.some.sum())} of {len(long.final)} seeds, best final ‖∇Φ‖ {_best(long).text()})"
        for label, (_, long) in found.items()
        if label in late
    ]
    said = f"In {LONGER * steps} steps, {DISTANCES[-1]} away, "
    if parts:
        said += f"these converge that do not in {steps}: {', '.join(parts)}; so they are slow there, not lost. "
    else:
        said += f"none converges of the {len(found)} methods tried that does not in {steps}. "
    return f"{said}Not even then: {', '.join(never)}." if never else said.strip()


def _best(found: Range) -> Interval:
    return geometric(np.maximum(found.best, 1e-16).tolist())
