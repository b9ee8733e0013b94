"""The figure of the study `lower-error`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from adambo.report.palette import BLUE, GOLD, GREEN, GREY, PLUM, PURPLE, SKY, VERMILION
from adambo.studies.interval import geometric
from adambo.studies.lower_error_sheets import BOUNDS, LENGTH, MOMENTS_IN_TIME, PARTS, Cells, part_share

LOOKS = {
    "recursion": (BLUE[0], "-", "(R) unrolled"),
    "contraction": (SKY[0], "--", "its contraction"),
    "uniform": (GREEN[0], ":", "uniform in t"),
    "printed": (VERMILION[0], "-.", "as printed"),
}
QUANTILES = {"0.99": "0.25", "0.9": "0.45", "0.5": "0.7"}
PATHS = (BLUE[0], SKY[0], GOLD[0], VERMILION[0], PURPLE[0], PLUM[0])


def draw(figure: Figure, of: Mapping[float, Cells], failing: Mapping[str, Any]) -> None:
    (first, second, loose), (late, parts, fails) = figure.subplots(2, 3)
    betas = sorted(of)
    for place, beta in ((first, betas[-1]), (second, betas[0])):
        _runs(place, of[beta], beta)
    first.legend(frameon=False, fontsize=7, loc="lower left", ncols=2)
    _looseness(loose, of)
    _late(late, of)
    _parts(parts, of)
    _failures(fails, failing)


def _runs(place: Axes, cells: Cells, beta: float) -> None:
    times = cells[0]["times"]

    def mean(kind: str, name: str) -> list[float]:
        return [geometric([c[kind][name][k] for c in cells]).mean for k in range(len(times))]

    for name, (colour, line, label) in LOOKS.items():
        place.plot(times, mean("bounds", name), color=colour, ls=line, label=label)
    for name, grey in QUANTILES.items():
        place.plot(times, mean("quantiles", name), color=grey, lw=1.2, label=f"{name} quantile")
    rest = geometric([c["stationary"] for c in cells]).mean
    place.axhline(rest, color=GREY[0], lw=0.8, ls=(0, (1, 3)), label="E V∞, x at rest")
    place.set_ylim(bottom=rest / 30)
    _label(place, "step t", "V = ‖y − y*(x)‖²", f"Errors and bounds, β = {beta:g}, δ = 0.1")


def _looseness(place: Axes, of: Mapping[float, Cells]) -> None:
    betas = sorted(of)
    for k, moment in enumerate(MOMENTS_IN_TIME):
        found = [geometric([c["looseness"]["recursion"][k] for c in of[beta]]) for beta in betas]
        errors = [[f.mean - f.low for f in found], [f.high - f.mean for f in found]]
        place.errorbar(betas, [f.mean for f in found], errors, marker="osD^"[k], ms=4, capsize=2, lw=1.2,
                       color=PATHS[k], label=f"t = {moment / LENGTH:g} T")  # fmt: skip
    place.axhline(1.0, color="0.6", lw=0.8)
    _label(place, "β", "bound / 0.9-quantile of V_t", "Looseness of (R) unrolled, by time of the run")
    _beta_ticks(place, betas)
    place.legend(frameon=False, fontsize=7.5, ncols=2, loc=(0.02, 0.36))


def _late(place: Axes, of: Mapping[float, Cells]) -> None:
    betas = sorted(of)
    for name in BOUNDS:
        found = [geometric([c["looseness of all late steps"][name] for c in of[beta]]) for beta in betas]
        errors = [[f.mean - f.low for f in found], [f.high - f.mean for f in found]]
        colour, line, label = LOOKS[name]
        place.errorbar(betas, [f.mean for f in found], errors, color=colour, ls=line, marker="o", ms=4, capsize=2,
                       label=label)  # fmt: skip
    _label(place, "β", "bound / error, 90 % of runs", "Looseness of all late steps at once")
    _beta_ticks(place, betas)
    place.legend(frameon=False, fontsize=7.5)


def _parts(place: Axes, of: Mapping[float, Cells]) -> None:
    betas, bottom = sorted(of), [0.0] * len(of)
    for part, colour in zip(PARTS, (GREY[0], GOLD[0], BLUE[0], PURPLE[0]), strict=True):
        shares = [sum(part_share(c, part) for c in of[beta]) / len(of[beta]) for beta in betas]
        place.bar([f"{beta:g}" for beta in betas], shares, bottom=bottom, color=colour, label=part, width=0.7)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    place.set_ylim(0, 1.28)
    place.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    place.legend(frameon=False, fontsize=7.5, ncols=4, loc="upper center", columnspacing=1.0, handlelength=1.2)
    place.set_xlabel("β")
    place.set_ylabel("share of (R)'s bound at the end")
    place.set_title("What the bound is made of", loc="left", fontsize=9.5)


def _failures(place: Axes, failing: Mapping[str, Any]) -> None:
    for (name, ratios), colour in zip(failing["curves"].items(), PATHS, strict=True):
        times = range(2, len(ratios) + 2)
        coupling = failing["rows"][name]["coupling"]
        short = name.split(", coupling")[0].replace("impulse in step", "impulse at").replace("a path", "path")
        place.plot(times, ratios.clamp(1e-3, 1e6), color=colour, lw=1.3, ls="--" if short.startswith("path") else "-",
                   label=f"{short}; {coupling:g}")  # fmt: skip
    place.axhline(1.0, color="0.3", lw=0.8)
    place.set_ylim(0.02, 3e3)
    _label(place, "step t", "V_t / printed bound", "Where the printed form fails (K L²/β)")
    place.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _beta_ticks(place: Axes, betas: Sequence[float]) -> None:
    place.set_xticks(betas, [f"{beta:g}" for beta in betas])
    place.xaxis.set_minor_locator(NullLocator())


def _label(place: Axes, x: str, y: str, title: str) -> None:
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_xlabel(x)
    place.set_ylabel(y)
    place.set_title(title, loc="left", fontsize=9.5)
    place.grid(alpha=0.25, linewidth=0.6)
