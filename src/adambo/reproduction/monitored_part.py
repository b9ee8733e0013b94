"""The part `monitored`: what the monitor measured in runs, as evidence for why methods fail."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adambo.report.curves import MONITORED, Curve
from adambo.report.figures import MARKERS, MARKS_PER_CURVE, look, plain
from adambo.report.records import Record
from adambo.report.table import metric_name, reasons
from adambo.reproduction.archive import EXAMINED, Archive, Case
from adambo.reproduction.block import Block
from adambo.reproduction.panels import legend, rows_of
from adambo.reproduction.spread import final
from adambo.studies.findings import Sheet

TABLED = {"lower_error": "lower error", "residual": "residual of z", "bias": "bias of h", "cosine": "cosine of h"}
SIGNED = "cosine"
ROUNDING = 1e-6  # up to which a value counts as zero
FLAT = 1.2  # the largest value over the smallest, from which an axis is logarithmic
PANELS_IN_A_ROW = 4


def monitored(archive: Archive, name: str) -> Block | None:
    case = archive.case("monitored", name)
    if case is None:
        return None
    metric = case.group.metric
    score_name = f"final test {metric_name(metric)}"
    columns = ["label", "seeds", score_name, *TABLED.values(), "curvature", "solved", "warnings, first at"]
    rows = []
    for curve in case.group.curves:
        score = final(curve, "test", metric)
        rows.append(
            [
                curve.label,
                str(len(curve.records)),
                "–" if score is None else str(score),
                *(_measured(curve, name, -1) for name in TABLED),
                " → ".join(dict.fromkeys(_measured(curve, "curvature", place) for place in (0, -1))),
                _solved(curve),
                first_warnings(curve) or "none",
            ]
        )
    caption = (
        f"{EXAMINED[name]}: what the monitor measured last, the mean over seeds; a number that could not be measured "
        "any more (a cosine where ∇Φ is zero, say) has the step of its last value."
    )
    silent = [curve.label for curve in case.group.curves if not any(r.measurements for r in curve.records)]
    notes = [f"{curve.label} {why}" for curve in case.group.curves for why in reasons(curve)]
    notes += [f"No measurements of {', '.join(silent)}."] if silent else []
    draw = None if len(silent) == len(case.group.curves) else lambda: _drawn(case, f"{EXAMINED[name]}: the monitor")
    return Block("monitored", name, [Sheet(caption, columns, rows)], notes, draw, f"{EXAMINED[name]}: the monitor")


def first_warnings(curve: Curve) -> str:
    """Each kind with the first step at which any seed got it, and how many seeds did, such as "X: step 40 (2 of 3)"."""
    steps: dict[str, list[int]] = {}
    for record in curve.records:
        for name, step in _warned(record).items():
            steps.setdefault(name, []).append(step)
    total = len(curve.records)
    return "; ".join(
        f"{name}: step {min(found)} ({len(found)} of {total} seeds)"
        for name, found in sorted(steps.items(), key=lambda pair: min(pair[1]))
    )


def _warned(record: Record) -> dict[str, int]:
    first: dict[str, int] = {}
    for measurement in record.measurements:
        for warning in measurement.get("warnings", ()):
            first.setdefault(str(warning.get("name", "a warning")), int(measurement["step"]))
    return first


def _measured(curve: Curve, name: str, place: int) -> str:
    """The mean over seeds of what was measured first (0) or last (−1), and where, if not in the last measurement."""
    known = [points[place] for record in curve.records if (points := record.measured(name))]
    if not known:
        return "–"
    last = max(measurement["step"] for record in curve.records for measurement in record.measurements)
    steps = {int(step) for step, _ in known}
    where = "" if place == 0 or steps == {last} else f" (step {', '.join(map(str, sorted(steps)))})"
    return f"{sum(value for _, value in known) / len(known):.3g}{where}"


def _solved(curve: Curve) -> str:
    known = [bool(each["solved"]) for record in curve.records for each in record.measurements if "solved" in each]
    return f"{sum(known)} of {len(known)}" if known else "–"


def _scale(place: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Logarithmic, unless a curve is zero throughout, or all of them hardly move, which would be blown up."""
    positive = [value for values in curves for value in values if value > ROUNDING]
    is_seen = all(max(values) > ROUNDING for values in curves if values)
    if is_seen and max(positive) > FLAT * min(positive):
        place.set_yscale("log", nonpositive="mask")
    else:
        place.set_ylim(0, FLAT * max(positive, default=1.0))


def _drawn(case: Case, title: str) -> Figure:
    shown = case.group.monitored
    drawing, places = rows_of(len(shown), PANELS_IN_A_ROW)
    for place, name in zip(places, shown, strict=True):
        for curve in case.group.curves:
            band = curve.measured(name)
            marks: dict[str, Any] = {"marker": MARKERS[curve.style.marker], "ms": 3.5}
            every = max(1, len(band.x) // MARKS_PER_CURVE)
            place.plot(band.x, band.mean, **look(curve.style), **marks, markevery=every, lw=1.3)
        if name != SIGNED:
            values = [[value for r in curve.records for _, value in r.measured(name)] for curve in case.group.curves]
            _scale(place, values)
        place.set_xlabel("steps")
        place.set_title(fill(MONITORED[name], 28), fontsize=9)
    seeds = max(len(curve.records) for curve in case.group.curves)
    plain(drawing.suptitle("."), f"{title} ({seeds} seed{'s' * (seeds > 1)} each)")
    legend(drawing, case.group.curves)
    return drawing
