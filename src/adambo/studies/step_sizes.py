"""The step sizes with which each method converges, where smoothness is bounded and where it is not.

On a cosh the gradient grows exponentially with the distance from the optimum. A plain gradient step must be so small
that it does not throw x further away than it was, and is then too small for the way that remains. Thousands of runs
are needed, so all seeds and step sizes run at once in `batched_methods`, which the tests hold against the library.
"""

from __future__ import annotations

import math

import numpy as np

from adambo.studies import step_sizes_longer
from adambo.studies.cells import computed
from adambo.studies.findings import Effort, Findings, Sheet
from adambo.studies.interval import Interval, geometric
from adambo.studies.step_size_runs import (
    ADAM,
    CONTROL,
    DISTANCES,
    GRID,
    LARGEST,
    NOISE,
    PER_DECADE,
    PLACES,
    SMALLEST,
    TOLERANCE,
    WARM_START,
    Range,
    final_gradients,
    stable_step,
)
from adambo.studies.step_sizes_figure import drawn

SEEDS, STEPS = 8, 1000
NORMALISED = ("SLIP", "BO-REP", "AccBO")
PLAIN = ("StocBiO", "SOBA", "MA-SOBA", "SABA", "TTSA", "SUSTAIN", "FSLA", "VRBO", "F2SA")
GROUPS = {"Adam-like": tuple(ADAM), "normalised": NORMALISED, "plain SGD": PLAIN}
METHODS = [label for group in GROUPS.values() for label in group]


def study(effort: Effort) -> Findings:
    """Make the study."""
    seeds, steps = effort.seeds or SEEDS, effort.steps(STEPS, smallest=20)
    arguments = [(label, distance, steps, seeds) for label in reversed(METHODS) for distance in PLACES]
    more = step_sizes_longer.cells(steps, seeds)  # the longest, so they begin
    made = [Range(final) for final in computed(final_gradients, [*more, *arguments], effort.processes)]
    runs = dict(zip(arguments, made[len(more) :], strict=True))
    ranges = {(label, distance): runs[label, distance, steps, seeds] for label in METHODS for distance in PLACES}
    longer = step_sizes_longer.both(ranges, made[: len(more)])
    bounds = {distance: stable_step(distance, seeds) for distance in PLACES}
    shown = (CONTROL, DISTANCES[len(DISTANCES) // 2 - 1], DISTANCES[-1])
    return Findings(
        title="The step sizes with which each method converges",
        setting=_setting(seeds, steps),
        sheets=[_ranges(ranges, distance, seeds) for distance in shown]
        + [_decades(ranges, seeds), _stable(ranges, bounds), step_sizes_longer.sheet(longer, steps)],
        conclusions=[*_conclusions(ranges, bounds, steps), step_sizes_longer.sentence(longer, steps)],
        draw=lambda figure: drawn(figure, GRID, ranges, bounds, shown, GROUPS, steps, TOLERANCE),
        size=(11.0, 8.5),
        numbers={
            "step_sizes": GRID,
            "final_gradients": [
                {"method": label, "distance": distance, "by_seed": [[_short(v) for v in row] for row in found.final]}
                for (label, distance), found in ranges.items()
            ],
            "longer": {label: [[_short(v) for v in row] for row in long.final] for label, (_, long) in longer.items()},
        },
    )


Ranges = dict[tuple[str, int], Range]


def _ranges(ranges: Ranges, distance: int, seeds: int) -> Sheet:
    rows = []
    for label in METHODS:
        found = ranges[label, distance]
        ends = [geometric(e).text() if e else "–" for e in (found.smallest(), found.largest())]
        rows.append(
            [
                label,
                *ends,
                _holes(found),
                Interval.of(found.decades).text(),
                geometric(np.maximum(found.best, 1e-16).tolist()).text(),
                f"{int(found.some.sum())} of {seeds}",
                f"{int(found.diverged.sum())} of {found.final.size}",
            ]
        )
    where = "Quadratic (bounded smoothness)" if distance == CONTROL else f"Cosh, start {distance} from the optimum"
    columns = ["method", "smallest η that converges", "largest", "holes", "decades of η", "best final ‖∇Φ‖"]
    columns += ["seeds that converge", "runs that diverged"]
    means = "geometric means (decades: means)"
    grid = (
        f"The grid has {PER_DECADE} step sizes per decade, a factor {10 ** (1 / PER_DECADE):.3g} apart; an interval "
        "without width says that all seeds have the same point of it. Between smallest and largest not every step size "
        "need converge: holes are how many do not, by seed"
    )
    return Sheet(
        f"{where}: {means} over {seeds} seeds with 95 % intervals; ends over the seeds that converge. {grid}:",
        columns,
        rows,
    )


def _holes(found: Range) -> str:
    holes = found.holes()
    if not holes:
        return "–"
    return f"{min(holes)}" if min(holes) == max(holes) else f"{min(holes)} to {max(holes)}"


def _decades(ranges: Ranges, seeds: int) -> Sheet:
    rows = [[label, *(Interval.of(ranges[label, place].decades).text(2) for place in PLACES)] for label in METHODS]
    columns = ["method", "quadratic", *(f"cosh, {distance} away" for distance in DISTANCES)]
    return Sheet(f"Decades of step sizes that converge, means over {seeds} seeds with 95 % intervals:", columns, rows)


def _stable(ranges: Ranges, bounds: dict[int, Interval]) -> Sheet:
    rows = [
        ["2d/Φ′(d), or 2/λ_max", *(bounds[place].text(2) for place in PLACES)],
        *(
            [label, *(geometric(ranges[label, place].largest_finite()).text(2) for place in PLACES)]
            for label in METHODS
        ),
    ]
    columns = ["method", "quadratic", *(f"cosh, {distance} away" for distance in DISTANCES)]
    count = bounds[CONTROL].seeds
    caption = f"The largest step size up to which no run diverges (it may stall, or circle), over {count} seeds; the "
    return Sheet(f"{caption}first line is where a plain gradient step begins to lead away:", columns, rows)


def _setting(seeds: int, steps: int) -> str:
    return (
        f"{len(METHODS)} methods, {len(GRID)} step sizes η of the upper level from 10^{SMALLEST} to 10^{LARGEST} "
        f"({PER_DECADE} per decade), {seeds} seeds of problem and draws, {steps} steps each. A run has converged if "
        f"the true ‖∇Φ‖ is at most {TOLERANCE:g} in the mean over its last tenth. Everything else is common: γ = 0.2 "
        f"for y and z, β = 0.1, series of 6 terms, λ = 1e-8, F2SA's penalty 10 and growing by 0.04, {WARM_START} lower "
        "steps before the first, four samples of which a step draws one per role (VRBO's large batch is all four, and "
        "SABA has a slot for each).\n\n"
        "The problem of unbounded smoothness is `StochasticUnboundedSmooth`, where Φ grows as cosh(x − e) in each of "
        f"three coordinates and the start is {DISTANCES[0]} to {DISTANCES[-1]} away from the optimum e in each. The "
        "control is a `StochasticQuadratic` of the same dimension, whose start is about 5 from zero. "
        f"Noise {NOISE:g} in both."
    )


def _group(ranges: Ranges, group: str, place: int) -> list[float]:
    """Decades in the mean over the methods of a group, for each seed."""
    means: list[float] = np.mean([ranges[label, place].decades for label in GROUPS[group]], axis=0).tolist()
    return means


def _difference(first: list[float], second: list[float]) -> Interval:
    """First less second, seed by seed."""
    return Interval.of([a - b for a, b in zip(first, second, strict=True)])


def _conclusions(ranges: Ranges, bounds: dict[int, Interval], steps: int) -> list[str]:
    near, far = DISTANCES[0], DISTANCES[-1]
    sentences = []
    for group in GROUPS:
        control, first, last = (_group(ranges, group, place) for place in (CONTROL, near, far))
        change = _difference(last, first)
        trend = "shrinks" if change.high < 0 else "grows" if change.low > 0 else "shows no clear trend"
        sentences.append(
            f"{group[0].upper()}{group[1:]} methods: the range of step sizes that converge within {steps} steps "
            f"{trend} with the distance, from {Interval.of(first).text()} decades {near} away to "
            f"{Interval.of(last).text()} decades {far} away "
            f"(difference {change.text()}); on the quadratic it is {Interval.of(control).text()}."
        )
    return [*sentences, _stalling(ranges, bounds, steps), _control(ranges), _memory(ranges)]


def _stalling(ranges: Ranges, bounds: dict[int, Interval], steps: int) -> str:
    far = DISTANCES[-1]
    ratios = [edge / bounds[far].mean for label in PLAIN for edge in ranges[label, far].largest_finite()]
    stalled = [label for label in PLAIN if not ranges[label, far].some.any()]
    best = geometric(np.exp(np.mean([np.log(ranges[label, far].best) for label in PLAIN], axis=0)).tolist())
    others = {label: ranges[label, far].some for label in METHODS if label not in PLAIN}
    always = [label for label, some in others.items() if some.all()]
    partly = [f"{label} ({some.sum()} of {some.size} seeds)" for label, some in others.items() if not some.all()]
    rest = f"; not for every seed: {', '.join(partly)}" if partly else ""
    return (
        f"{far} away, a plain gradient step leads away from the optimum from η = {bounds[far].text(2)} on, and the "
        f"largest step sizes with which plain methods do not diverge are {min(ratios):.2g} to {max(ratios):.2g} times "
        f"that. {len(stalled)} of {len(PLAIN)} of them converge within {steps} steps at no step size and for no "
        f"seed; the best final ‖∇Φ‖ of all {len(PLAIN)} is {best.text()}, a geometric mean of the methods. Of the "
        f"others, these converge within as many at some step size for every seed: {', '.join(always) or 'none'}{rest}."
    )


def _control(ranges: Ranges) -> str:
    plain, normalised = (_group(ranges, group, CONTROL) for group in ("plain SGD", "normalised"))
    more = _difference(plain, normalised)
    wider = "wider" if more.low > 0 else "narrower" if more.high < 0 else "neither clearly wider nor narrower"
    floors = ", ".join(f"{label} {geometric(ranges[label, CONTROL].best.tolist()).text()}" for label in NORMALISED)
    gain = _difference(*(_group(ranges, group, DISTANCES[-1]) for group in ("normalised", "plain SGD")))
    helps = more.low > 0 and gain.low > 0
    price = " Normalisation helps far from the optimum, at a price near it." if helps else ""
    return (
        f"Where smoothness is bounded, the range of plain methods is {wider} than that of normalised ones "
        f"({Interval.of(plain).text()} against {Interval.of(normalised).text()} decades, difference {more.text()}); "
        f"steps of fixed length do not come to rest, the best final ‖∇Φ‖ are {floors}.{price}"
    )


def _memory(ranges: Ranges) -> str:
    near, far = DISTANCES[0], DISTANCES[-1]
    parts, growth = [], []
    for label in ("AdamBO, β_sq = 0.001", "AdamBO, β_sq = 0.1"):
        ends = [ranges[label, place].smallest() for place in (near, far)]
        if not all(ends):
            return f"{label}: {near} or {far} away there is no step size that converges for any seed."
        low, high = map(geometric, ends)
        growth.append(high.mean / low.mean)
        parts.append(f"{label} from {low.text()} to {high.text()}")
    said = f"The smallest step size that converges, {near} and {far} away: {'; '.join(parts)}."
    if growth[0] < 5 * growth[1]:
        return said
    return (
        f"{said} Adam divides by a mean of past squares over about 1/β_sq steps. Where that is as long as the run, the "
        "huge first gradients stay in it, steps shrink with the gradient as plain ones do, and η must make up for it; "
        "with a short memory a step is of the order of η throughout, as for normalised methods."
    )


def _short(value: float) -> float | str:
    return float(f"{value:.3g}") if math.isfinite(value) else "inf"
