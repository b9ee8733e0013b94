"""Figures of cases: train and test against epochs and seconds alone, and small panels in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D

from adambo.report.curves import SPLITS, Curve
from adambo.report.figures import MARKERS, legend_label, line_at, look, panel, plain
from adambo.reproduction.archive import Case
from adambo.reproduction.arrival import threshold
from adambo.reproduction.labels import is_method
from adambo.reproduction.spread import final

WIDTH, HEIGHT = 10.5, 3.1  # of a figure, of a row of panels; inches
SECONDS = "seconds, alone on the GPU"
OWN = "adambo"
COMPARED = (OWN, "adam")  # beside every variant


def four_panels(case: Case, title: str) -> Figure:
    """Of methods, and four more on the same scale for variants of AdamBO, and for those of others: twenty curves in a
    panel cannot be told apart.

    Beside variants stand AdamBO, plain Adam and the best of the other methods, and a line at 90 % of the best.
    Without the panels against seconds if no speed is known; curves whose own is not known are left out of them.
    """
    curves = dict(zip(case.labels, case.group.curves, strict=True))
    methods = [curve for label, curve in curves.items() if is_method(label)]
    variants = [curve for label, curve in curves.items() if not is_method(label)]
    sets = {
        "methods": methods,
        "variants of AdamBO": [curve for curve in variants if curve.algorithm == OWN],
        "variants of other methods": [curve for curve in variants if curve.algorithm != OWN],
    }
    sets = {name: some + _references(case, methods) * (name != "methods") for name, some in sets.items() if some}
    axes = ("epoch", "seconds") if len(case.untimed) < len(curves) else ("epoch",)
    drawing = Figure(figsize=(WIDTH, len(sets) * len(axes) * HEIGHT), layout="constrained")
    found = []
    for part, (name, some) in zip(drawing.subfigures(len(sets), 1, squeeze=False)[:, 0], sets.items(), strict=True):
        rows = part.subplots(2, 2) if len(axes) == 2 else part.subplots(1, 2).reshape(2, 1)
        for row, split in zip(rows, SPLITS, strict=True):
            for place, axis in zip(row, axes, strict=True):
                shown = [curve for curve in some if axis == "epoch" or curve.label not in case.untimed]
                # Steps differ tenfold in price, hence a logarithmic axis.
                panel(place, replace(case.group, curves=shown), axis, split, logarithmic=axis == "seconds")
                place.set_xlabel(SECONDS if axis == "seconds" else "epochs")
                if variants and split == "test" and (bar := threshold(case)) is not None:
                    line_at(place, bar, "90 %")
            for place in row[1:]:
                place.set_ylabel("")
        if len(sets) > 1:
            part.suptitle(name, fontsize=10)
        legend(part, some)
        found.append(rows)
    for row in np.concatenate(found, axis=1):
        same_limits(row, "ylim")
    for column in np.concatenate(found, axis=0).T:
        same_limits(column, "xlim")
    plain(drawing.suptitle("."), f"{title}\n(mean and standard deviation over seeds)")
    return drawing


def _references(case: Case, methods: Sequence[Curve]) -> list[Curve]:
    """What variants are to be compared with."""
    known = [(score.mean, c) for c in methods if (score := final(c, "test", case.group.metric)) is not None]
    others = [pair for pair in known if pair[1].algorithm not in COMPARED]
    best = [max(others, key=lambda pair: pair[0])[1]] if others else []
    return [curve for curve in methods if curve.algorithm in COMPARED] + best


def same_limits(places: Sequence[Axes], name: str) -> None:
    """Let panels show the same range, "xlim" or "ylim", in which all of them have place."""
    limits = np.array([getattr(place, f"get_{name}")() for place in places])
    for place in places:
        place.set(**{name: (limits[:, 0].min(), limits[:, 1].max())})


def legend(drawing: FigureBase, curves: Sequence[Curve]) -> None:
    """On the right, outside of the panels: ten curves leave no free place inside."""
    handles = [Line2D([], [], **look(curve.style), marker=MARKERS[curve.style.marker], ms=4.5) for curve in curves]
    made = drawing.legend(
        handles, ["."] * len(curves), loc="outside right upper", frameon=False, handlelength=3.2, fontsize=8.5
    )
    for text, curve in zip(made.get_texts(), curves, strict=True):
        plain(text, legend_label(curve))


def rows_of(count: int, columns: int) -> tuple[Figure, list[Any]]:
    """A figure of `count` small panels in rows, and their axes; what is left of the last row stays empty."""
    columns = min(columns, count)
    rows = -(-count // columns)
    drawing = Figure(figsize=(WIDTH, 0.4 + 0.75 * HEIGHT * rows), layout="constrained")
    places = list(np.ravel(drawing.subplots(rows, columns, squeeze=False)))
    for place in places[count:]:
        place.set_axis_off()
    return drawing, places[:count]
