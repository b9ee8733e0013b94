"""Figures of cases: train and test against epochs and seconds alone, and small panels in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from adambo.report.curves import SPLITS, Curve
from adambo.report.figures import MARKERS, legend_label, look, panel, plain
from adambo.reproduction.archive import Case

WIDTH, HEIGHT = 10.5, 3.1  # of a figure, of a row of panels; inches
SECONDS = "seconds, alone on the GPU"


def four_panels(case: Case, title: str) -> Figure:
    """Without the panels against seconds if no speed is known; curves whose own is not known are left out of them."""
    group = case.group
    timed = replace(group, curves=[curve for curve in group.curves if curve.label not in case.untimed])
    columns = [("epoch", group), *([("seconds", timed)] if timed.curves else [])]
    drawing = Figure(figsize=(WIDTH, len(columns) * HEIGHT), layout="constrained")
    rows = drawing.subplots(2, 2, sharey="row") if len(columns) == 2 else drawing.subplots(1, 2).reshape(2, 1)
    for row, split in zip(rows, SPLITS, strict=True):
        for place, (axis, shown) in zip(row, columns, strict=True):
            panel(place, shown, axis, split, logarithmic=axis == "seconds")  # steps differ tenfold in price
            place.set_xlabel(SECONDS if axis == "seconds" else "epochs")
    for place in rows[:, 1:].flat:
        place.set_ylabel("")
    plain(drawing.suptitle("."), f"{title}\n(mean and standard deviation over seeds)")
    legend(drawing, group.curves)
    return drawing


def legend(drawing: Figure, curves: Sequence[Curve]) -> None:
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
