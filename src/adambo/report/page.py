"""The page: one HTML file with its style, its script and its data inside, which asks nothing of a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from adambo.report.curves import AXES, SPLITS, Curve, Group, Study
from adambo.report.figures import runs_text
from adambo.report.records import Record, shown
from adambo.report.table import columns, metric_name, reasons, sign, state_text
from adambo.version import __version__


def page(groups: Sequence[Group], notes: Sequence[str], made: str) -> str:
    """The whole page as text.

    Everything that comes from a run reaches the page as JSON and is shown with textContent, so that no name, reason or
    setting can become markup; and the page's policy lets no script run but its own, and nothing be fetched.

    Args:
        groups: What to show, in this order.
        notes: Sentences about runs that cannot be shown.
        made: When, in words.
    """
    folder = files("adambo.report") / "page"
    template, style, charts, rest = (
        (folder / name).read_text(encoding="utf-8") for name in ("template.html", "style.css", "charts.js", "script.js")
    )
    script = charts + rest
    data = {"groups": [group_data(group) for group in groups], "notes": list(notes)}
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        style=Markup(style),
        script=Markup(script),
        policy={"style": hashed(style), "script": hashed(script)},
        data=Markup(inline_json(data)),
        made=made,
        version=__version__,
        experiments=", ".join(group.experiment for group in groups),
    )


def inline_json(data: Any) -> str:
    """JSON that may stand inside a script element: no "<" in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def hashed(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def group_data(group: Group) -> dict[str, Any]:
    table = columns(group)
    return {
        "experiment": group.experiment,
        "metric": metric_name(group.metric),
        "chance": group.chance,
        "summary": runs_text(group) + "".join(f" · {machine}" for machine in group.machines),
        "notes": group.notes(),
        "log": {axis: group.logarithmic(axis) for axis in AXES},
        "columns": [column.title for column in table],
        "scores": 2 * len(SPLITS),  # so many of the columns are the metric, final and best
        "curves": [
            curve_data(curve, group) | {"cells": [column.cell(curve)._asdict() for column in table]}
            for curve in group.curves
        ],
        "monitored": group.monitored,
        "studies": [study_data(study, group) for study in group.studies()],
    }


def curve_data(curve: Curve, group: Group) -> dict[str, Any]:
    return {
        "label": curve.label,
        "failures": curve.failures,
        "style": curve.style._asdict(),
        "sign": sign(curve),
        "state": state_text(curve),
        "reasons": reasons(curve),
        "panels": {
            f"{split} {axis}": panel_data(curve, axis, split, group.metric) for split in SPLITS for axis in AXES
        },
        "measured": {name: measured_data(curve, name) for name in group.monitored},
        "warnings": curve.warnings,
        "runs": [run_data(record, group.metric) for record in curve.records],
        "config": common(curve.records, "config"),
        "manifest": common(curve.records, "manifest"),
    }


def panel_data(curve: Curve, axis: str, split: str, metric: str) -> dict[str, Any]:
    band = curve.band(axis, split, metric)
    return {
        "x": [rounded(x) for x in band.x],
        "mean": [rounded(y) for y in band.mean],
        "spread": [None if s is None else rounded(s) for s in band.spread],
        "count": band.seeds,
        "seeds": [[[rounded(x), rounded(y)] for x, y in r.points(axis, split, metric)] for r in curve.records],
        "ends": [
            {"x": rounded(end.x), "y": rounded(end.y), "what": f"seed {shown(end.record.seed)} {end.record.state}"}
            for end in curve.ends(axis, split, metric)
        ],
    }


def measured_data(curve: Curve, name: str) -> dict[str, Any]:
    band = curve.measured(name)
    return {
        "x": [rounded(x) for x in band.x],
        "mean": [rounded(y) for y in band.mean],
        "spread": [None if s is None else rounded(s) for s in band.spread],
        "count": band.seeds,
        "seeds": [[[rounded(x), rounded(y)] for x, y in record.measured(name)] for record in curve.records],
        "ends": [],
    }


def run_data(record: Record, metric: str) -> dict[str, Any]:
    return {
        "seed": shown(record.seed),
        "state": record.state,
        "reason": record.reason,
        "scores": [record.last(split, metric) for split in SPLITS],
        "folder": record.folder,
    }


def study_data(study: Study, group: Group) -> dict[str, Any]:
    splits = {split: [curve.final(split, group.metric) for curve in study.curves] for split in SPLITS}
    labels = [curve.label for curve in study.curves]
    return {"name": study.name, "values": study.values, "log": study.logarithmic, "labels": labels, "splits": splits}


def common(records: Sequence[Record], part: str) -> list[dict[str, Any]]:
    """Every dotted key of all runs with its value and source; where runs differ, each value with its seeds."""
    maps: list[dict[str, Any]] = [getattr(record, part) for record in records]
    rows = []
    for key in dict.fromkeys(key for values in maps for key in values):
        seeds: dict[str, list[str]] = {}
        for record, values in zip(records, maps, strict=True):
            seeds.setdefault(shown(values[key]) if key in values else "–", []).append(shown(record.seed))
        several = [f"{value} (seed {', '.join(whose)})" for value, whose in seeds.items()]
        one = key == "seed" or len(seeds) == 1
        sources = dict.fromkeys(record.source(key) for record in records) if part == "config" else {}
        rows.append(
            {
                "key": shown(key),
                "value": ", ".join(seeds) if one else "; ".join(several),
                "source": "; ".join(source for source in sources if source),
            }
        )
    return rows


def rounded(value: float) -> float:
    """Seven digits are more than a screen can show, and half the size."""
    return float(f"{value:.7g}")
