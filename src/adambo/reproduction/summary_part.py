"""The part `summary`: one row per case, from which a reader learns who ended highest and who was there first."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from adambo.report.curves import Curve
from adambo.report.table import seconds_form
from adambo.reproduction.archive import CASES, Archive, Case
from adambo.reproduction.arrival import arrivals, threshold
from adambo.reproduction.block import Block
from adambo.reproduction.claims_part import METHOD, PLAIN, rivals
from adambo.reproduction.spread import final
from adambo.reproduction.standing import NONE
from adambo.studies.findings import Sheet

GROUPS = ("AdamBO", "best baseline", "best variant of AdamBO", "best control", "plain Adam")
KINDS = ("paper", "tuned")
CAPTIONS = {
    "paper": "At the paper's settings: test metric at the end, mean ± standard deviation over seeds (n − 1).",
    "tuned": "After the same search for everybody, with fewer epochs: likewise. Variants and controls may have one "
    "head per task. A control is a baseline changed as our variants of AdamBO are, or to one head per task. “Best” is "
    "the highest mean of several labels, so it is higher than it should be by chance alone.",
}
TIMES = "After the search: seconds alone to 90 % of the best label; the soonest label all of whose seeds get there."


def summary(archive: Archive) -> Block | None:
    """Final scores before and after the search, and times to 90 % after it."""
    sheets, times = [], []
    for kind in KINDS:
        rows = []
        groups = GROUPS if kind == "tuned" else (GROUPS[0], GROUPS[1], GROUPS[-1])
        for name, title in CASES.items():
            case = archive.case(kind, name)
            if case is None:
                continue
            titled = title if kind == "paper" else name.removesuffix("-shared")
            grouped = _grouped(case, name)
            rows.append([titled, *(_highest(case, grouped[group]) for group in groups)])
            at = threshold(case)
            if kind == "tuned" and at is not None:
                times.append([titled, f"{at:.4f}", *(_soonest(case, grouped[group], at) for group in groups)])
        sheets += [Sheet(CAPTIONS[kind], ["case", *groups], rows)] if rows else []
    soonest = [group.replace("best", "soonest") for group in GROUPS]
    sheets += [Sheet(TIMES, ["case", "test metric", *soonest], times)] if times else []
    return Block("summary", "", sheets) if sheets else None


def _grouped(case: Case, name: str) -> dict[str, list[Curve]]:
    """The curves of a case by `GROUPS`."""
    own = {METHOD: GROUPS[0], PLAIN: GROUPS[-1], **dict.fromkeys(rivals(name, case), GROUPS[1])}
    groups: dict[str, list[Curve]] = {group: [] for group in GROUPS}
    for label, curve in zip(case.labels, case.group.curves, strict=True):
        variant = GROUPS[2] if curve.algorithm.endswith(METHOD) else GROUPS[3]  # VR-AdamBO among them
        groups[own.get(label, variant)].append(curve)
    return groups


def _highest(case: Case, curves: Sequence[Curve]) -> str:
    known = [(score, curve) for curve in curves if (score := final(curve, "test", case.group.metric)) is not None]
    if not known:
        return NONE
    score, chosen = max(known, key=lambda pair: pair[0].mean)
    return f"{score}{_named(chosen)}"


def _soonest(case: Case, curves: Sequence[Curve], at: float) -> str:
    found = [(arrivals(curve, "seconds", case.group.metric, at), curve) for curve in curves]
    known = [(fmean(there.times), curve) for there, curve in found if there is not None and there.all]
    if not known:
        return NONE
    mean, chosen = min(known, key=lambda pair: pair[0])
    return f"{format(mean, seconds_form(mean))}{_named(chosen)}"


def _named(curve: Curve) -> str:
    """The label, where the title of the column is not its name."""
    return "" if curve.label == GROUPS[0] or curve.algorithm == PLAIN else f" ({curve.label})"
