"""The figure of the study `neumann`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adambo.report.palette import BLUE, GOLD, GREEN, GREY, PLUM, PURPLE, SKY, VERMILION
from adambo.studies.neumann_sheets import (
    BATCHES,
    SHOWN,
    TERMS,
    Cells,
    Costs,
    Kind,
    Number,
    floor,
    listed,
    moment,
    over,
    ratio,
    squared_error,
)

LOOKS = {  # colour, marker, line
    "independent": (BLUE[0], "o", "-"),
    "chained": (VERMILION[0], "s", "-"),
    "prefix": (SKY[0], "^", "--"),
    "random": (GOLD[0], "v", "-"),
    "shared": (PURPLE[0], "D", "-"),
    "shared with cross": (GREEN[0], "o", "--"),
    "shared with all": (PLUM[0], "s", "--"),
}
SAME_MEAN = ("independent", "prefix", "random")


def draw(figure: Figure, of: Mapping[Kind, Cells], costs: Costs) -> None:
    places = figure.subplots(2, 3).flat
    cells = of[SHOWN]
    about = f"condition {SHOWN[0]:g}, noise {SHOWN[1]:g}"
    _bias(next(places), cells, f"Bias; {about}")
    _bias(next(places), of[(20.0, SHOWN[1])], f"Bias; condition 20, noise {SHOWN[1]:g}")
    _floors(next(places), of)
    place = next(places)
    for mode in LOOKS:
        _band(place, TERMS, cells, [moment(mode, k, 1) for k in range(len(TERMS))], mode)
    _label(place, "terms Q", "E‖h − E h‖²", f"Variance; {about}")
    place = next(places)
    for mode in LOOKS:
        if mode != "random":
            _band(place, TERMS[1:], cells, [ratio(mode, k, 1) for k in range(1, len(TERMS))], mode)
    place.axhline(1.0, color="0.6", lw=0.8)
    _label(place, "terms Q", "variance / that of chained", "Variance without random (as left)", y="linear")
    place = next(places)
    for mode in LOOKS:
        drawn = [max(cost, 0.25) for cost in costs[mode]]
        _band(place, drawn, cells, [squared_error(mode, k) for k in range(len(TERMS))], mode)
    _label(place, "Hessian products per step (0 drawn at ¼)", "E‖h − ∇Φ‖²", "Squared error against cost (as left)")
    handles = [place.plot([], [], color=c, marker=m, ls=ls, ms=4, label=mode)[0] for mode, (c, m, ls) in LOOKS.items()]
    bounds = [
        place.plot([], [], color=GREY[0], ls=ls, label=label)[0]
        for ls, label in (("-", "bound, fresh batches"), (":", "bound, one shared batch"))
    ]
    figure.legend(handles=handles + bounds, loc="outside lower center", ncols=5, frameon=False)


def _bias(place: Axes, cells: Cells, title: str) -> None:
    for mode in LOOKS:
        if mode not in SAME_MEAN:
            _band(place, TERMS, cells, [moment(mode, k, 0) for k in range(len(TERMS))], mode)
    for key, line in (("bound", "-"), ("bound shared", ":")):
        mean = [over(cells, listed(key, k)).mean for k in range(len(TERMS))]
        place.plot(TERMS, mean, color=GREY[0], ls=line, lw=1.6)
    _label(place, "terms Q (all fresh modes lie on chained)", "‖E h − ∇Φ‖", title)


def _floors(place: Axes, of: Mapping[Kind, Cells]) -> None:
    """What one shared batch leaves for Q → ∞, with the second order in the noise as lines."""
    colours = {0.1: SKY[0], 0.5: BLUE[0], 0.9: PLUM[0]}
    for (condition, noise), cells in of.items():
        if condition != SHOWN[0]:
            continue
        found = [over(cells, floor(b)) for b in range(len(BATCHES))]
        errors = [[f.mean - f.low for f in found], [f.high - f.mean for f in found]]
        place.errorbar(
            BATCHES, [f.mean for f in found], errors, color=colours[noise], marker="o", ms=4, ls="", capsize=2,
            label=f"noise {noise:g}",
        )  # fmt: skip
        line = [over(cells, listed("floor to second order", b)).mean for b in range(len(BATCHES))]
        place.plot(BATCHES, line, color=colours[noise], lw=1.0)
    _label(place, "samples in the shared batch", "‖E h − ∇Φ‖ for Q → ∞", "Floor of one shared batch; condition 5")
    place.set_xticks(BATCHES, [str(b) for b in BATCHES])
    place.plot([], [], color="0.3", lw=1.0, label="second order")
    place.legend(frameon=False, fontsize=7.5)


def _band(place: Axes, x: Sequence[float], cells: Cells, numbers: Sequence[Number], mode: str) -> None:
    found = [over(cells, number) for number in numbers]
    colour, marker, line = LOOKS[mode]
    place.plot(x, [f.mean for f in found], color=colour, marker=marker, ls=line, ms=4, lw=1.3)
    place.fill_between(x, [f.low for f in found], [f.high for f in found], color=colour, alpha=0.10, lw=0)


def _label(place: Axes, x: str, y_label: str, title: str, y: str = "log") -> None:
    place.set_xscale("log")
    place.set_yscale(y)
    if x.startswith("terms"):
        place.set_xticks(TERMS, [str(Q) for Q in TERMS])
        place.minorticks_off()
    place.set_xlabel(x)
    place.set_ylabel(y_label)
    place.set_title(title, loc="left", fontsize=9.5)
    place.grid(alpha=0.25, linewidth=0.6)
