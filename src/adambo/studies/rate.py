"""How fast the average of ‖∇phi(x_t)‖ falls with the number of steps, against the rates that are proved.

Every horizon T is a run of its own, whose step sizes and weights are scaled with T as the theory of the method says.
Millions of steps on problems of three or four dimensions are needed, so all seeds run at once in `batched_methods`,
which the tests hold against the library's solvers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adambo.studies.batched_recursive import true_gradients
from adambo.studies.cells import computed
from adambo.studies.findings import Effort, Findings, Sheet
from adambo.studies.interval import geometric
from adambo.studies.rate_conclusions import conclusions, setting
from adambo.studies.rate_curve import FITTED, NO_NOISE, NOISE, NOISES, RATIOS, Curve, Curves, practical
from adambo.studies.rate_figure import drawn
from adambo.studies.rate_scalings import PROBLEMS, SCALINGS, THEOREM, problem_of

SEEDS = 20
LARGEST, HORIZONS = 2**14, 8


def study(effort: Effort) -> Findings:
    """Make the study."""
    seeds = effort.seeds or SEEDS
    largest = effort.steps(LARGEST, smallest=128)
    horizons = [largest >> k for k in reversed(range(HORIZONS))]
    series = [(kind, label, NOISE) for kind in PROBLEMS for label in SCALINGS]
    series += [(kind, THEOREM, noise) for kind in PROBLEMS for noise in NOISES]
    series += [(kind, label, NO_NOISE) for kind in PROBLEMS for label in (THEOREM, *map(practical, RATIOS))]
    arguments = [(*each, horizon, seeds) for horizon in reversed(horizons) for each in series]  # the longest first
    found = dict(zip(arguments, computed(averages, arguments, effort.processes), strict=True))
    curves = {each: Curve(horizons, [found[(*each, horizon, seeds)] for horizon in horizons]) for each in series}
    fitted = f"fitted to {horizons[-FITTED]} ≤ T ≤ {largest}, one slope per seed, {seeds} seeds, 95 % intervals"
    return Findings(
        title="How fast the gradient falls with the number of steps",
        setting=setting(seeds, horizons),
        sheets=[_methods(kind, curves, f"{fitted[:1].upper()}{fitted[1:]}", largest) for kind in PROBLEMS]
        + [_noises(curves, fitted, largest), _circles(curves, horizons, seeds)],
        conclusions=conclusions(curves, horizons),
        draw=lambda figure: drawn(
            figure, horizons, {each: curve for each, curve in curves.items() if each[2] == NOISE}
        ),
        size=(10.5, 8.5),
        numbers={"horizons": horizons, "series": [_numbers(each, curve) for each, curve in curves.items()]},
    )


def averages(kind: str, label: str, noise: float, horizon: int, seeds: int) -> list[list[float]]:
    """For each seed, means over a run of `horizon` steps, inf if it diverged.

    Returns:
        The mean of ‖∇phi(x_t)‖, that of its square, and that of ‖∇phi(x_t)‖ over the last quarter of the run.
    """
    problem = problem_of(kind, noise, seeds)
    settings = SCALINGS[label].at(horizon, problem.smoothness)
    warm_start = math.ceil(math.log(1 / settings.lower_lr) / settings.lower_lr)
    total, squares, end, last = np.zeros(seeds), np.zeros(seeds), np.zeros(seeds), horizon - horizon // 4
    runs = true_gradients(SCALINGS[label].method, problem, settings, list(range(seeds)), horizon, warm_start)
    with np.errstate(all="ignore"):
        for t, norms in enumerate(runs):
            total, squares = total + norms, squares + norms**2
            if t >= last:
                end = end + norms
    finite, counts = np.isfinite(squares), (horizon, horizon, max(1, horizon - last))
    means = [sums / count for sums, count in zip((total, squares, end), counts, strict=True)]
    return [np.where(finite, mean, np.inf).tolist() for mean in means]


def _methods(kind: str, curves: Curves, fitted: str, largest: int) -> Sheet:
    rows = [
        [label, scaling.words, scaling.norm, curve.cells[0], scaling.square, *curve.cells[1:]]
        for label, scaling in SCALINGS.items()
        for curve in [curves[kind, label, NOISE]]
    ]
    columns = ["method", "scaling", "proved, norm", "slope of the mean norm", "proved, square"]
    columns += ["slope of the mean square", f"mean norm, T = {largest}", "diverged"]
    return Sheet(f"{PROBLEMS[kind].capitalize()}, noise {NOISE:g}. {fitted}:", columns, rows)


def _noises(curves: Curves, fitted: str, largest: int) -> Sheet:
    rows = [
        [PROBLEMS[kind], f"{noise:g}", *curves[kind, THEOREM, noise].cells]
        for kind in PROBLEMS
        for noise in sorted({NOISE, *NOISES})
    ]
    columns = ["problem", "noise", "slope of the mean norm", "slope of the mean square", f"mean norm, T = {largest}"]
    return Sheet(f"{THEOREM}, for other sizes of the noise; {fitted}:", [*columns, "diverged"], rows)


def _circles(curves: Curves, horizons: list[int], seeds: int) -> Sheet:
    rows = []
    for kind in PROBLEMS:
        for label in (THEOREM, *map(practical, RATIOS)):
            curve = curves[kind, label, NO_NOISE]
            ends = [geometric(curve.end[k, curve.finite].tolist()).text() for k in (-5, -3, -1)]
            rows.append([PROBLEMS[kind], label, *ends, f"{curve.diverged} of {seeds}"])
    columns = ["problem", "method", *(f"T = {horizons[k]}" for k in (-5, -3, -1)), "diverged"]
    caption = f"AdamBO with next to no noise ({NO_NOISE:g}): the mean norm in the last quarter of the run; geometric "
    return Sheet(f"{caption}means over {seeds} seeds, 95 % intervals:", columns, rows)


def _numbers(series: tuple[str, str, float], curve: Curve) -> dict[str, Any]:
    names = dict(zip(("problem", "method", "noise"), series, strict=True))
    means = {"mean_norm": curve.norm, "mean_square": curve.square, "last_quarter": curve.end}
    return names | {name: [[float(f"{v:.4g}") for v in row] for row in values] for name, values in means.items()}
