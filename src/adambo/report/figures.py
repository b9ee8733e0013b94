"""The figures of a group on paper: train and test against epochs, seconds and oracle calls, as PNG and SVG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from adambo.report.curves import AXES, SPLITS, Curve, Group, Study
from adambo.report.palette import Style
from adambo.report.table import metric_name

MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "star": "*"}
MARKS_PER_CURVE = 6
ENTRIES_BESIDE_A_STUDY = 12
PAPER: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "adambo",  # the same record gives the same file
}


def figure(group: Group) -> dict[str, bytes]:
    """The file contents by suffix: {"png": ..., "svg": ...}."""
    with matplotlib.rc_context(PAPER), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        drawing = draw(group)
        files = {}
        for suffix, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
            content = io.BytesIO()
            drawing.savefig(content, format=suffix, **options)
            files[suffix] = content.getvalue()
            drawing.set_layout_engine("none")  # it stays as it was laid out; doing it again takes as long as drawing
    return files


def draw(group: Group) -> Figure:
    studies = group.studies()
    entries = len(group.curves)
    longest = max(len(legend_label(curve)) for curve in group.curves)
    legend_columns = max(1, min(entries, 6, 130 // (longest + 8)))
    height = 6.4 + 3.0 * bool(studies) + 0.2 * -(-entries // legend_columns)
    drawing = Figure(figsize=(12.0, height), layout="constrained")
    rows = drawing.subplots(2 + bool(studies), 3, squeeze=False)
    for axes, split in zip(rows, SPLITS, strict=False):
        for place, axis in zip(axes, AXES, strict=True):
            panel(place, group, axis, split)
        limits = np.array([place.get_ylim() for place in axes])
        for place in axes:
            place.set_ylim(limits[:, 0].min(), limits[:, 1].max())
    for place, study in zip(rows[-1] if studies else (), studies, strict=False):
        study_panel(place, group, study)
    empty = list(rows[-1][len(studies) :]) if studies else []
    for place in empty:
        place.set_axis_off()
    plain(drawing.suptitle("."), f"{group.experiment}: {runs_text(group)}")
    handles = [Line2D([], [], **look(curve.style), marker=MARKERS[curve.style.marker], ms=5) for curve in group.curves]
    # Labels are set afterwards, as plain text: to matplotlib "$" begins a formula and "_" a hidden entry.
    if empty and entries <= ENTRIES_BESIDE_A_STUDY:
        host, where, legend_columns = empty[0], "center left", 1
    else:
        host, where = drawing, "outside lower center"
    legend = host.legend(handles, ["."] * entries, loc=where, ncols=legend_columns, frameon=False, handlelength=3.2)
    for text, curve in zip(legend.get_texts(), group.curves, strict=True):
        plain(text, legend_label(curve))
    return drawing


def panel(place: Axes, group: Group, axis: str, split: str, logarithmic: bool = False) -> None:
    """The curves of a group; along a logarithmic axis if that is asked for, or if their ends are far apart."""
    name = metric_name(group.metric)
    logarithmic = logarithmic or group.logarithmic(axis)
    for order, curve in reversed(list(enumerate(group.curves))):
        band = curve.band(axis, split, group.metric)
        style = look(curve.style) | {"zorder": 3 + 0.01 * (len(group.curves) - order)}
        kept = [i for i, x in enumerate(band.x) if x > 0 or not logarithmic]
        x, mean = [band.x[i] for i in kept], np.array([band.mean[i] for i in kept])
        spread = np.array([band.spread[i] or 0.0 for i in kept])
        every = max(1, len(x) // MARKS_PER_CURVE)
        marks: dict[str, Any] = {"marker": MARKERS[curve.style.marker], "ms": 4, "markevery": (order % every, every)}
        place.plot(x, mean, **style, **marks)
        if spread.any():
            place.fill_between(x, mean - spread, mean + spread, color=curve.style.light, alpha=0.13, lw=0)
        for end in curve.ends(axis, split, group.metric):
            if end.x > 0 or not logarithmic:
                place.plot([end.x], [end.y], "x", color=curve.style.light, ms=9, mew=2.4, zorder=6)
    if group.chance is not None:
        line_at(place, group.chance, f"chance {group.chance:g}")
    if logarithmic:
        place.set_xscale("log")
    place.set_xlabel(AXES[axis])
    plain(place.set_ylabel("."), f"{split} {name}")


def line_at(place: Axes, height: float, text: str) -> None:
    """A dotted line across a panel, and what it means."""
    place.axhline(height, color="0.45", lw=1, ls=(0, (1, 2)), zorder=1)
    place.annotate(
        text, (1, height), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points", ha="right",
        color="0.4", fontsize=7.5, zorder=5, path_effects=[withStroke(linewidth=2.0, foreground="white")],
    )  # fmt: skip


def study_panel(place: Axes, group: Group, study: Study) -> None:
    """The final scores against the one setting in which the curves differ; a cross on the floor where none finished."""
    spots = study.values if study.logarithmic else list(range(len(study.values)))
    for split, colour, marker, dash in (("train", "0.45", "s", "--"), ("test", "#0068a8", "o", "-")):
        finals = [curve.final(split, group.metric) for curve in study.curves]
        known = [(spot, *final) for spot, final in zip(spots, finals, strict=True) if final]
        at, means, errors = zip(*known, strict=True) if known else ((), (), ())
        place.errorbar(at, means, errors, color=colour, marker=marker, ms=5, ls=dash, capsize=3, label=split)
    for spot, curve in zip(spots, study.curves, strict=True):
        if not curve.finished:
            place.plot([spot], [0.03], "x", color="#d55e00", ms=9, mew=2.4, transform=place.get_xaxis_transform())
    if study.logarithmic:
        place.set_xscale("log")
    else:
        place.set_xticks(spots, [f"{value:g}" for value in study.values])
    plain(place.set_xlabel("."), study.name)
    plain(place.set_ylabel("."), f"final {metric_name(group.metric)}")
    place.legend(frameon=False)


def look(style: Style) -> dict[str, Any]:
    return {"color": style.light, "linestyle": (0, style.dash) if style.dash else "-"}


def plain(text: Any, content: str) -> None:
    text.set_parse_math(False)
    text.set_text(content)


def legend_label(curve: Curve) -> str:
    return f"{curve.label} ({curve.failures})" if curve.failures else curve.label


def runs_text(group: Group) -> str:
    return f"{counted(len(group.records), 'run')}, {seeds_text(group.seeds)}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def seeds_text(seeds: Sequence[str]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(seeds)}"
