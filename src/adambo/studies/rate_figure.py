"""The figure of the study of rates: averages against the horizon, and the slopes of all methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from adambo.studies.rate_curve import Curve
from adambo.studies.rate_scalings import SCALINGS, power_of

_COLOURS = ["#0b3d91", "#1f2a44", "#3f7fd1", "#7fb0ea", "#b9d3f3"]  # AdamBO
_COLOURS += ["#c0392b", "#e67e22", "#2e7d32", "#7cb342", "#8e6c3a", "#6a1b9a", "#d81b60", "#00897b"]
_TITLES = {"quadratic": "Stochastic quadratic", "unbounded": "Unbounded smoothness (cosh)"}


def drawn(figure: Figure, horizons: Sequence[int], curves: dict[tuple[str, str, float], Curve]) -> None:
    """Above, the geometric mean over seeds against T; below, slopes of the mean norm and of its square."""
    axes = figure.subplots(2, 2, sharey="row", height_ratios=(1.0, 0.85))
    for column, (kind, title) in enumerate(_TITLES.items()):
        own = {label: curve for (problem, label, _), curve in curves.items() if problem == kind}
        above, below = axes[0][column], axes[1][column]
        for (label, curve), colour in zip(own.items(), _COLOURS, strict=True):
            if curve.finite.any():
                means = np.exp(np.log(curve.norm[:, curve.finite]).mean(axis=1))
                wide = 2.2 if label.startswith("AdamBO, λ = 1,") else 1.2
                above.plot(horizons, means, color=colour, lw=wide, marker="o", ms=3, label=label)
        top = 1.25 * max(float(c.norm[0, c.finite].mean()) for c in own.values() if c.finite.any())
        for power, style, name in ((-1 / 4, "--", "T^(−1/4)"), (-1 / 3, ":", "T^(−1/3)")):
            line = top * (np.array(horizons) / horizons[0]) ** power
            above.plot(horizons, line, style, color="0.45", lw=1.2, label=name)
        above.set(xscale="log", yscale="log", title=title, xlabel="horizon T (steps)")
        above.set_xticks(horizons, [str(horizon) for horizon in horizons], rotation=30)
        above.minorticks_off()
        for row, ((label, curve), colour) in enumerate(zip(own.items(), _COLOURS, strict=True)):
            scaling = SCALINGS[label]
            for found, shift, marker, proved in (
                (curve.slope, -0.16, "o", scaling.norm),
                (curve.square_slope, 0.16, "s", scaling.square),
            ):
                if (mark := power_of(proved)) is not None:
                    below.plot([mark] * 2, [row + shift - 0.22, row + shift + 0.22], color="black", lw=1.3)
                if found:
                    face = colour if marker == "o" else "white"
                    below.plot([found.low, found.high], [row + shift] * 2, color=colour, lw=1.6)
                    below.plot(found.mean, row + shift, marker, color=colour, mfc=face, ms=5)
        for power, style in ((-1 / 4, "--"), (-1 / 2, "-.")):
            below.axvline(power, ls=style, color="0.75", lw=0.9, zorder=0)
        below.set_yticks(range(len(own)), list(own))
        below.set(xlabel="slope on log-log axes", xlim=(-1.05, 0.15))
    axes[1][0].set_title("filled: mean of ‖∇Φ‖ (dashed: −1/4); ticks: proved", fontsize=8)
    axes[1][1].set_title("open: mean of ‖∇Φ‖² (dash-dotted: −1/2); ticks: proved", fontsize=8)
    axes[1][0].invert_yaxis()
    axes[0][0].set_ylabel("mean over t of ‖∇Φ(x_t)‖")
    handles, labels = axes[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
