"""The part `lambda`: AdamBO with λ from 1e-8 to 1e-1, a panel per experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from adambo.errors import RunError
from adambo.report.curves import Curve
from adambo.report.figures import panel, plain
from adambo.report.palette import ramp
from adambo.report.records import number
from adambo.report.table import metric_name, reasons
from adambo.reproduction.archive import STUDIED, Archive, Case
from adambo.reproduction.block import Block
from adambo.reproduction.panels import HEIGHT, WIDTH, legend
from adambo.reproduction.spread import best, final
from adambo.studies.findings import Sheet

FOLDER = "lambda-sensitivity"
TITLE = "AdamBO with different λ: test metric against epochs"


def sensitivity(archive: Archive) -> Block | None:
    cases = {name: by_lambda(case) for name in STUDIED if (case := archive.case(FOLDER, name)) is not None}
    if not cases:
        return None
    values = sorted({value for curves, _ in cases.values() for value in curves})
    columns, rows = ["λ"], [[power(value)] for value in values]
    notes = []
    for name, (curves, case) in cases.items():
        metric = case.group.metric
        columns += [f"{name}: final test {metric_name(metric)}", "best test"]
        for row, value in zip(rows, values, strict=True):
            scores = [pick(curves[value], "test", metric) for pick in (final, best)] if value in curves else [None] * 2
            row += ["–" if score is None else str(score) for score in scores]
        notes += [f"{name}, {curve.label} {why}" for curve in curves.values() for why in reasons(curve)]
        notes += [f"{name}, left out: {', '.join(case.left_out)}."] if case.left_out else []
    absent = [name for name in STUDIED if name not in cases]
    notes += [f"No records of {', '.join(absent)}."] if absent else []
    seeds = sorted({len(curve.records) for curves, _ in cases.values() for curve in curves.values()})
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    caption = f"AdamBO by λ (`settings.eps`); mean ± standard deviation over seeds (n − 1), {counts} per value."
    return Block("lambda", "", [Sheet(caption, columns, rows)], notes, lambda: _drawn(values, cases), TITLE)


def power(value: float) -> str:
    """As people write small numbers.

    Example:
        >>> power(1e-4), power(0.1), power(2.5e-5)
        ('1e-4', '1e-1', '2.5e-5')
    """
    return str(np.format_float_scientific(value, trim="-", exp_digits=1))


def by_lambda(case: Case) -> tuple[dict[float, Curve], Case]:
    """The curves by λ, from the smallest to the largest, and the case.

    Raises:
        RunError: If two labels have one λ, or a label several.
    """
    found: dict[float, Curve] = {}
    for curve in case.group.curves:
        values = {number(record.config.get("settings.eps")) for record in curve.records}
        value = values.pop()
        if values or value is None or value in found:
            raise RunError(
                f"{case.group.experiment}, {curve.label}: the runs of a label have one λ (settings.eps), and no other "
                "label the same. Put runs with another λ into folders of their own."
            )
        found[value] = replace(curve, label=f"λ = {power(value)}")
    return {value: found[value] for value in sorted(found)}, case


def _drawn(values: Sequence[float], cases: dict[str, tuple[dict[float, Curve], Case]]) -> Figure:
    """One look per λ, the same in all panels."""
    looks = dict(zip(values, ramp(len(values)) if len(values) > 1 else [], strict=False))
    drawing = Figure(figsize=(WIDTH + 1.0, 1.15 * HEIGHT), layout="constrained")
    places = drawing.subplots(1, len(cases), squeeze=False)[0]
    legends: dict[float, Curve] = {}
    for place, (name, (curves, case)) in zip(places, cases.items(), strict=True):
        styled = {value: replace(curve, style=looks.get(value, curve.style)) for value, curve in curves.items()}
        panel(place, replace(case.group, curves=list(styled.values())), "epoch", "test")
        place.set_title(name)
        legends = styled | legends
    plain(drawing.suptitle("."), TITLE)
    legend(drawing, [replace(legends[value], records=[]) for value in sorted(legends)])
    return drawing
