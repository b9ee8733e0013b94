"""The part `effects`: one thing done as in the published code, or set otherwise, against the same without it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from adambo.report.curves import Curve, differing
from adambo.report.records import number
from adambo.report.table import metric_name
from adambo.reproduction.archive import EXAMINED, Archive, Case
from adambo.reproduction.block import Block
from adambo.reproduction.runs_part import notes
from adambo.reproduction.spread import Spread, as_early, best, difference, final
from adambo.studies.findings import Sheet


def effects(archive: Archive, name: str) -> Block | None:
    """Each label against the reference of its algorithm: the label that is just the algorithm's name.

    Where the case has none, that of the paper's settings serves, and the table says so.
    """
    case = archive.case("effects", name)
    if case is None:
        return None
    metric, named = case.group.metric, metric_name(case.group.metric)
    columns = ["label", "what differs", "seeds", f"final test {named}", "difference", f"best test {named}"]
    columns.append("difference")
    rows, borrowed, shorter = [], set(), []
    for label, curve in zip(case.labels, case.group.curves, strict=True):
        reference, is_borrowed = _reference(archive, case, name, curve)
        if is_borrowed:
            borrowed.add(curve.algorithm)
        row = [curve.label, _what_differs(curve, reference), str(len(curve.records))]
        if reference is not None and (end := _epochs(curve)) < _epochs(reference):
            reference = as_early(reference, end)
            shorter.append(f"{curve.label} ({end:g} epochs)")
        for pick in (final, best):
            score = pick(curve, "test", metric)
            row.append("–" if score is None else str(score))
            row.append("reference" if label == curve.algorithm else _effect(curve, reference, pick, metric))
        rows.append(row)
    caption = (
        f"{EXAMINED[name]}: effects; mean ± standard deviation over seeds (n − 1), and the difference to the "
        "reference of the same algorithm ± its standard error (Welch), over the seeds that both have, and of best "
        "scores over the epochs at which both were judged."
    )
    said = [text for text in notes(case) if not text.startswith(("Milliseconds", "Not all runs agree"))]
    if borrowed:
        said.append(
            f"The reference of {', '.join(sorted(borrowed))} is its run at the paper's settings (part `paper`)."
        )
    if shorter:
        said.append(f"Made for fewer epochs than their reference, and held against it as early: {', '.join(shorter)}.")
    return Block("effects", name, [Sheet(caption, columns, rows)], said)


def _reference(archive: Archive, case: Case, name: str, curve: Curve) -> tuple[Curve | None, bool]:
    own = case.curve(curve.algorithm)
    if own is not None:
        return own, False
    at_the_papers = archive.case("paper", name)
    borrowed = None if at_the_papers is None else at_the_papers.curve(curve.algorithm)
    return borrowed, borrowed is not None


def _effect(
    curve: Curve, reference: Curve | None, pick: Callable[[Curve, str, str], Spread | None], metric: str
) -> str:
    """The difference, over the seeds that both have: one seed that goes wrong would else pass for an effect.

    Best scores are those at epochs at which both were judged: the best of many is higher than that of few.
    """
    if reference is None:
        return "–"
    both: tuple[Curve, ...] = (curve, reference)
    seeds = set.intersection(*({record.seed for record in each.records} for each in both))
    both = tuple(replace(each, records=[record for record in each.records if record.seed in seeds]) for each in both)
    if pick is best:
        epochs = set.intersection(*(set().union(*(record.epochs for record in each.records)) for each in both))
        both = tuple(replace(each, records=[record.at(epochs) for record in each.records]) for each in both)
    mine, its = (pick(each, "test", metric) for each in both)
    return "–" if mine is None or its is None else str(difference(mine, its))


def _epochs(curve: Curve) -> float:
    """How many it was to have; infinitely many where nothing limits them."""
    given = number(curve.records[0].config.get("epochs"))
    return math.inf if given is None else given


def _what_differs(curve: Curve, reference: Curve | None) -> str:
    """Settings that differ; one that the reference lacks, being older, only if it was given on purpose."""
    if reference is None:
        return "no reference"
    if reference is curve:
        return ""
    here, there = curve.records[0], reference.records[0]
    keys = [
        key
        for key in differing([here.config, there.config])
        if (key in there.config and key in here.config) or here.source(key) == "given"
    ]
    return ", ".join(f"{key}={_as_given(here.config.get(key))}" for key in keys) or "nothing"


def _as_given(value: Any) -> str:
    """As the command line takes it."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value).strip('"')
