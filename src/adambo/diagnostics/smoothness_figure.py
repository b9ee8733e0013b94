"""The figure of a smoothness probe: local smoothness against gradient norm, both logarithmic, with the fitted line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike

from adambo.diagnostics.smoothness_fit import SmoothnessFit, SmoothnessRecord
from adambo.errors import SampleError, SettingError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise SettingError("A figure needs the package matplotlib: pip install 'adambo[experiments]'.") from error

NAMES = {"grad_x_f": "∇x f", "grad_y_f": "∇y f", "hypergradient": "the hypergradient"}
BLUE, VERMILION = "#0068a8", "#d55e00"
LINE_POINTS = 100


def write_figure(path: str | PathLike[str], records: Sequence[SmoothnessRecord], fit: SmoothnessFit) -> None:
    """A PNG of the records of `fit.of`; points whose change rounding hides are grey, and not part of the fit."""
    drawn = [r for r in records if r.of == fit.of and r.gradient_norm > 0 and r.smoothness > 0]
    if not any(r.resolved for r in drawn):
        raise SampleError("All gradients measured are zero, which no logarithmic axis can show. Measure elsewhere.")
    with matplotlib.rc_context({"font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False}):
        drawing = Figure(figsize=(7.0, 4.8), layout="constrained")
        place = drawing.subplots()
        _points(drawing, place, drawn)
        _lines(place, drawn, fit)
        name = NAMES[fit.of]
        place.set_xscale("log")
        place.set_yscale("log")
        place.set_xlabel(f"norm of {name}")
        place.set_ylabel(f"local smoothness: change of {name} per distance")
        where = " along the directions taken" if fit.caveat else ""
        place.set_title(f"Smoothness of {name}: {fit.verdict}{where}", loc="left", fontsize=10.0)
        place.grid(alpha=0.25, linewidth=0.6)
        place.legend(frameon=False, fontsize=8.0)
        drawing.savefig(path, format="png", dpi=160)


def _points(drawing: Figure, place: Axes, records: Sequence[SmoothnessRecord]) -> None:
    used, hidden = [r for r in records if r.resolved], [r for r in records if not r.resolved]
    dots = place.scatter(
        [r.gradient_norm for r in used],
        [r.smoothness for r in used],
        c=[r.step for r in used],
        cmap="viridis",
        s=18,
        alpha=0.85,
        linewidths=0,
        label=f"measured ({len(used)} points)",
        zorder=3,
    )
    bar = drawing.colorbar(dots, ax=place, label="step", pad=0.02)
    bar.locator = matplotlib.ticker.MaxNLocator(integer=True)
    if hidden:
        place.plot(
            [r.gradient_norm for r in hidden],
            [r.smoothness for r in hidden],
            "x",
            color="0.7",
            ms=4,
            label=f"hidden by rounding, left out ({len(hidden)})",
            zorder=2,
        )


def _lines(place: Axes, records: Sequence[SmoothnessRecord], fit: SmoothnessFit) -> None:
    low, high = (f(math.log(r.gradient_norm) for r in records if r.resolved) for f in (min, max))
    norms = [math.exp(low + (high - low) * k / (LINE_POINTS - 1)) for k in range(LINE_POINTS)]
    place.plot(
        norms,
        [fit.L0 + fit.L1 * g for g in norms],
        color=VERMILION,
        lw=1.8,
        label=f"fit: {fit.L0:.3g} + {fit.L1:.3g} · norm",
        zorder=4,
    )
    bands = [fit.band(g) for g in norms]
    place.fill_between(
        norms,
        [b[0] for b in bands],
        [b[1] for b in bands],
        color=VERMILION,
        alpha=0.18,
        lw=0,
        label="its 95 % interval",
    )
    L0, L1 = fit.envelope
    place.plot(
        norms,
        [L0 + L1 * g for g in norms],
        color=BLUE,
        ls="--",
        lw=1.4,
        label=f"above 95 % of the points: {L0:.3g} + {L1:.3g} · norm",
        zorder=4,
    )
