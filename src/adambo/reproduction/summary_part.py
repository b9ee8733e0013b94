"""The part `summary`: one row per case, from which a reader learns who ended highest and who was there first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from adambo.report.curves import Curve
from adambo.report.palette import written_name
from adambo.report.table import seconds_form
from adambo.reproduction.archive import CASES, Archive, Case
from adambo.reproduction.arrival import arrivals, threshold
from adambo.reproduction.block import Block
from adambo.reproduction.claims_part import METHOD, PLAIN, rivals
from adambo.reproduction.spread import final
from adambo.reproduction.standing import NONE
from adambo.studies.findings import Sheet

GROUPS = ("AdamBO", "best baseline", "best variant of AdamBO", "best control", "plain Adam")
KINDS = {"paper": (GROUPS[0], GROUPS[1], GROUPS[-1]), "tuned": GROUPS}
CAPTIONS = {
    "paper": "At the paper's settings: test metric at the end, mean ± standard deviation over seeds (n − 1).",
    "tuned": "After the same search for everybody, with fewer epochs: likewise. Variants and controls may have one "
    "head per task. A control is a baseline changed in some of the ways in which our variants of AdamBO are. “Best” "
    "is the highest mean of several labels, so it is higher than it should be by chance alone.",
}
TIMES = (
    "After the search: seconds, of runs alone on the GPU, to a bar of 90 % of the best (chance + 0.9 (best − chance)); "
    "the soonest label all of whose seeds get there, and – where there is none. Each case has two bars: by the best of "
    "all labels, and by that of AdamBO and the baselines alone, as in the table of claims. Methods with a running z "
    "(SLIP, BO-REP, MA-SOBA, SABA) are not captured as CUDA graphs, AdamBO is: a part of its lead is that."
)
BARS = ("all labels", "AdamBO and baselines")


def summary(archive: Archive) -> Block | None:
    """Final scores before and after the search, and times to 90 % after it."""
    cases = {kind: {name: case for name in CASES if (case := archive.case(kind, name)) is not None} for kind in KINDS}
    sheets = [_scores(kind, there) for kind, there in cases.items() if there]
    return Block("summary", "", [*sheets, *_times(cases["tuned"])]) if sheets else None


def _scores(kind: str, cases: Mapping[str, Case]) -> Sheet:
    rows = []
    for name, case in cases.items():
        groups = _grouped(case, name)
        rows.append([_titled(kind, name), *(_highest(case, groups[group]) for group in KINDS[kind])])
    return Sheet(CAPTIONS[kind], ["case", *KINDS[kind]], rows)


def _times(cases: Mapping[str, Case]) -> list[Sheet]:
    rows = []
    for name, case in cases.items():
        groups = _grouped(case, name)
        for at, whose in _bars(case, groups).items():
            soonest = (_soonest(case, curves, at) for curves in groups.values())
            rows.append([_titled("tuned", name), f"{at:.4f}", whose, *soonest])
    columns = ["case", "bar", "by the best of", *(group.replace("best", "soonest") for group in GROUPS)]
    return [Sheet(TIMES, columns, rows)] if rows else []


def _titled(kind: str, name: str) -> str:
    return CASES[name] if kind == "paper" else name.removesuffix("-shared")


def _bars(case: Case, groups: dict[str, list[Curve]]) -> dict[float, str]:
    """90 % of the best of all labels, and of AdamBO and the baselines; whose best it is."""
    bars = (threshold(case), threshold(case, groups[GROUPS[0]] + groups[GROUPS[1]]))
    found: dict[float, str] = {}
    for at, whose in zip(bars, BARS, strict=True):
        if at is not None:
            found.setdefault(at, whose)
    return found


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
    return "" if curve.label in (GROUPS[0], written_name(PLAIN)) else f" ({curve.label})"
