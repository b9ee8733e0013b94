"""The figure of the study of step sizes: final gradients against the step size, and the width of the range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adambo.studies.interval import Interval
from adambo.studies.step_size_runs import Range

_COLOURS = {
    "Adam-like": ("#0b3d91", "#3f7fd1", "#00897b"),
    "normalised": ("#c0392b", "#e67e22", "#d81b60"),
    "plain SGD": ("#000000", "#333333", "#555555", "#6e6e6e", "#808080", "#909090", "#a0a0a0", "#b0b0b0", "#c0c0c0"),
}
_STYLES = {"Adam-like": "-", "normalised": "--", "plain SGD": "-"}


def drawn(
    figure: Figure,
    grid: Sequence[float],
    ranges: dict[tuple[str, int], Range],
    bounds: dict[int, Interval],
    shown: Sequence[int],
    groups: dict[str, tuple[str, ...]],
    steps: int,
    tolerance: float,
) -> None:
    """Three panels of final gradients for the problems `shown`, and one of decades against the distance."""
    axes = figure.subplots(2, 2).ravel()
    for panel, place in zip(axes, shown, strict=False):
        _panel(panel, grid, ranges, place, groups)
        panel.axhline(tolerance, color="0.6", lw=0.8, ls=":")
        panel.axvline(bounds[place].mean, color="0.3", lw=1.0, ls="-.", label="a gradient step leads away")
        if place:
            panel.axvline(place * 3**0.5 / steps, color="#c0392b", lw=1.0, ls=":", label="steps of length η reach e")
            panel.set_title(f"cosh, start {place} from the optimum")
        else:
            panel.set_title("quadratic (bounded smoothness)")
    _widths(axes[3], ranges, groups)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)


def _panel(
    panel: Axes,
    grid: Sequence[float],
    ranges: dict[tuple[str, int], Range],
    place: int,
    groups: dict[str, tuple[str, ...]],
) -> None:
    for group, labels in groups.items():
        for label, colour in zip(labels, _COLOURS[group], strict=True):
            final = ranges[label, place].final
            middle = np.median(np.where(final > 1e9, np.inf, final), axis=0)
            middle = np.where(np.isfinite(middle), np.maximum(middle, 1e-4), np.nan)
            wide = 1.8 if group != "plain SGD" else 1.0
            panel.plot(grid, middle, _STYLES[group], color=colour, lw=wide, label=label)
            if np.isnan(middle).any() and not np.isnan(middle).all():  # where it ends, all further runs diverge
                end = int(np.flatnonzero(~np.isnan(middle))[-1])
                panel.plot(grid[end], middle[end], "x", color=colour, ms=5)
    panel.set(xscale="log", yscale="log", xlabel="upper step size η", ylabel="final ‖∇Φ‖ (median over seeds)")
    panel.set_ylim(1e-4, 1e6)


def _widths(panel: Axes, ranges: dict[tuple[str, int], Range], groups: dict[str, tuple[str, ...]]) -> None:
    distances = sorted({place for _, place in ranges if place})
    for group, labels in groups.items():
        for label, colour in zip(labels, _COLOURS[group], strict=True):
            found = [Interval.of(ranges[label, place].decades) for place in distances]
            means = [each.mean for each in found]
            panel.plot(distances, means, _STYLES[group], color=colour, lw=1.8 if group != "plain SGD" else 1.0)
            if group == "plain SGD":  # nine bands would cover each other
                continue
            panel.fill_between(distances, [e.low for e in found], [e.high for e in found], color=colour, alpha=0.08)
    panel.set(xlabel="distance of the start from the optimum", ylabel="decades of η that converge", xticks=distances)
    panel.set_title("width of the range, mean over seeds (bands: 95 %)")
    panel.set_ylim(bottom=0)
