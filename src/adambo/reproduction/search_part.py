"""The part `search`: what every label was searched for, and what was chosen by the validation split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import mode
from typing import Any

from matplotlib.figure import Figure

from adambo.report.curves import short
from adambo.report.figures import plain
from adambo.report.palette import styles
from adambo.report.records import number, shown
from adambo.reproduction.archive import SEARCHED, Archive
from adambo.reproduction.block import Block
from adambo.reproduction.panels import rows_of
from adambo.reproduction.searches import Search
from adambo.reproduction.searches import searches as searches_of
from adambo.studies.findings import Sheet

LR = "settings.lr"
FAILED = "0.3"
KEY = "dots: short; diamonds: made again, longer; ring: chosen; crosses: without a score"
PANELS_IN_A_ROW = 5
ALIKE = 1e-4  # of a score
COMMON = 8  # trials at equal values, for two labels to be called alike


def search(archive: Archive, name: str) -> Block | None:
    searches = searches_of(archive.path / "search" / name)
    if not searches:
        return None
    title = f"{SEARCHED[name]}: validation scores of all trials"
    open_ones = undecided(searches)
    rows = []
    for each in sorted(searches, key=lambda s: float("-inf") if s in open_ones else _score(s), reverse=True):
        chosen, score = "–", "–"
        if each in open_ones:
            chosen = f"the search is not at its end ({len(each.second_round)} made again)"
        elif each.chosen is not None:
            chosen = ", ".join(f"{short(k)} {_rounded(v)}" for k, v in each.chosen["values"].items())
            score = f"{each.chosen['score']:.4f}"
        rows.append([each.name, trials_text(each), chosen, score, others_text(each)])
    columns = ["label", "trials", "chosen values", "validation score of the chosen", "of the others made again"]
    caption = f"{SEARCHED[name]}: searches; the finished trial with the highest validation score at its end is chosen."
    notes = ["The test split has no part in the choice of these values."]
    if any(each.again for each in searches):
        usual = mode(len(each.second_round) for each in searches if each.second_round)
        more = [each.name for each in searches if len(each.second_round) > usual]
        first = _lengths([trial for each in searches for trial in each.finished])
        again = _lengths([trial for each in searches for trial in each.again])
        notes.append(
            f"Trials have {first} epoch{'s' * (first != '1')}; of each label the preset (unless it diverged) and the "
            f"best, {usual} in all, were made again with {again}, and these decide."
            + f" (Of {', '.join(more)} one more, as one diverged.)"
            * bool(more)
        )
    counts = sorted({len(each.first_round) for each in searches})
    if len(counts) > 1:
        few = [f"{each.name} {len(each.first_round)}" for each in searches if len(each.first_round) < counts[-1]]
        notes.append(f"Not every label has {counts[-1]} trials: {', '.join(few)}.")
    notes += twins(searches)
    return Block("search", name, [Sheet(caption, columns, rows)], notes, lambda: _drawn(searches, title), title)


def undecided(searches: Sequence[Search]) -> list[Search]:
    """Those of which fewer trials were made again than of others, where that decides; all that can be is enough."""
    most = max((len(each.again) for each in searches), default=0)

    # Those that diverged when they were made again count as made.
    return [each for each in searches if len(each.second_round) < min(most, max(1, len(each.finished)))]


def twins(searches: Sequence[Search]) -> list[str]:
    """A sentence for two labels whose short trials at equal values end alike, so that they may be one method there.

    Example:
        >>> trials = [{"values": {"settings.lr": rate}, "score": 0.5, "state": "finished"} for rate in range(COMMON)]
        >>> alike = [Search(label, {}, trials) for label in ("slip", "borep")]
        >>> twins(alike)
        ['SLIP and BO-REP agree to within 0.0001 in all 8 trials at equal values.']
        >>> twins([alike[0], Search("saba", {}, [trial | {"score": 0.6} for trial in trials])])
        []
    """
    found = []
    for one, other in combinations(searches, 2):
        here, there = ({tuple(t["values"].items()): t["score"] for t in each.finished} for each in (one, other))
        common = here.keys() & there.keys()
        if len(common) >= COMMON and all(abs(here[values] - there[values]) <= ALIKE for values in common):
            found.append(
                f"{one.name} and {other.name} agree to within {ALIKE:g} in all {len(common)} trials at equal values."
            )
    return found


def others_text(search: Search) -> str:
    """How near the other candidates came, the best first.

    Example:
        >>> trial = {"trial": 0, "values": {}, "score": 0.5, "state": "finished", "again": True}
        >>> diverged = trial | {"score": None, "state": "diverged"}
        >>> others_text(Search("slip", {}, [trial, trial | {"score": 0.8}, diverged, trial | {"score": 0.75}]))
        '0.7500, 0.5000, diverged'
    """
    others = [trial for trial in search.second_round if trial is not search.chosen]
    scores = sorted((trial["score"] for trial in others if trial in search.again), reverse=True)
    stopped = [trial["state"] for trial in others if trial not in search.again]
    return ", ".join([*(f"{score:.4f}" for score in scores), *stopped]) or "–"


def trials_text(search: Search) -> str:
    """How they ended.

    Example:
        >>> trial = {"trial": 0, "values": {}, "score": 0.5, "state": "finished"}
        >>> trials_text(Search("slip", {}, [trial, trial | {"state": "diverged"}, trial]))
        '2 of 3 finished, 1 diverged'
    """
    trials = search.first_round
    others = Counter(trial["state"] for trial in trials if trial["state"] != "finished")
    done = len(trials) - sum(others.values())
    return ", ".join(
        [f"{done} of {len(trials)} finished", *(f"{count} {state}" for state, count in sorted(others.items()))]
    )


def _lengths(trials: Sequence[dict[str, Any]]) -> str:
    """Their epochs, such as "5" or "5 or 8"."""
    return " or ".join(f"{epochs:g}" for epochs in sorted({number(trial.get("epoch")) or 0 for trial in trials}))


def _score(search: Search) -> float:
    return float("-inf") if search.chosen is None else float(search.chosen["score"])


def _rounded(value: object) -> str:
    return shown(float(f"{value:.3g}")) if isinstance(value, float) else shown(value)


def _drawn(searches: Sequence[Search], title: str) -> Figure:
    """Score against lr; the chosen one has a ring, what has no score lies as a cross on the floor."""
    drawing, places = rows_of(len(searches), PANELS_IN_A_ROW)
    scores = [float(trial["score"]) for each in searches for trial in (*each.finished, *each.again)]
    rates = [rate for each in searches for t in each.trials if (rate := number(t["values"].get(LR)))]
    looks = styles([str(each.about.get("algorithm", each.label)) for each in searches])
    open_ones = undecided(searches)
    for place, each, style in zip(places, searches, looks, strict=True):
        chosen = None if each in open_ones else each.chosen
        for trial in each.trials:
            rate, again = number(trial["values"].get(LR)), bool(trial.get("again"))
            if rate is None:
                continue
            if trial in each.finished or trial in each.again:
                look = {"marker": "D", "ms": 5.5, "mfc": "none"} if again else {"marker": "o", "ms": 4, "alpha": 0.8}
                place.plot([rate], [trial["score"]], color=style.light, **look)
            elif not again:
                place.plot([rate], [0.03], "x", color=FAILED, ms=6, mew=1.6, transform=place.get_xaxis_transform())
            if trial is chosen:
                place.plot([rate], [trial["score"]], "o", mfc="none", mec="black", ms=11, mew=1.5, zorder=4)
        place.set_xscale("log")
        if rates:
            place.set_xlim(min(rates) / 2, max(rates) * 2)
        if scores:
            margin = 0.08 * (max(scores) - min(scores)) or 0.01
            place.set_ylim(min(scores) - margin, max(scores) + margin)
        plain(place.set_title("."), each.name)
    for place in places[:: min(PANELS_IN_A_ROW, len(places))]:
        place.set_ylabel("validation score")
    for place in places[-min(PANELS_IN_A_ROW, len(places)) :]:
        place.set_xlabel("lr")
    plain(drawing.suptitle("."), f"{title}\n({KEY})")
    return drawing
