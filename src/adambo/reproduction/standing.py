"""Where a label stands against others of its case: whether it ends higher, and whether it gets there sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from adambo.report.table import seconds_form
from adambo.reproduction.archive import Case
from adambo.reproduction.arrival import arrivals, threshold
from adambo.reproduction.labels import written_baseline
from adambo.reproduction.spread import SEEDS, Order, Spread, difference, final

NONE = "–"
UNTIMED = "not measured"
NAMED = 3  # labels that lack seeds; of more, only the number is said: the tables show them
State = Literal["higher", "lower", "within", "undecided", "partial", "absent"]


@dataclass(frozen=True)
class Standing:
    """How a label stands.

    Attributes:
        state: "higher": better than all others; "lower": worse than one of them; "within": neither, and only because
            differences lie within the spread; "undecided": neither, for another reason; "partial": records or seeds
            are missing that could decide it; "absent": there are no records.
        mine: Its own number.
        best: That of the best of the others.
        lead: The difference of the two, where it has been made.
        against: How many of the others it is better than, and whose records or seeds are missing.
        leads: Whether it is better than all others that have records.
    """

    state: State
    mine: str = NONE
    best: str = NONE
    lead: str = ""
    against: str = NONE
    leads: bool = False

    @property
    def cells(self) -> list[str]:
        """Its own number, the best of the others, and how it compares."""
        return [self.mine, self.best, "; ".join(filter(None, (self.lead, self.against)))]


def against_all(orders: dict[str, Order], missing: Sequence[str]) -> State:
    """One that is better settles "lower"; "higher" takes all of them, so none may be missing.

    Args:
        orders: How the label compares with each of the others.
        missing: Those without records, or without enough seeds.

    Example:
        >>> against_all({"slip": "higher", "saba": "lower"}, ["maml"]), against_all({"slip": "higher"}, ["maml"])
        ('lower', 'partial')
    """
    found = set(orders.values())
    if "lower" in found:
        return "lower"
    if missing or not orders:
        return "partial" if orders else "absent"
    if found == {"higher"}:
        return "higher"
    return "undecided" if "undecided" in found else "within"


def ends_higher(
    case: Case | None, label: str, others: Sequence[str], split: str = "test", by: float = 0.0, relative: bool = False
) -> Standing:
    """Whether `label` ends above each of `others`, by a margin that may be a share of the other's score.

    With fewer than `SEEDS` seeds of either, the two are undecided.
    """
    curve = None if case is None else case.curve(label)
    mine = None if case is None or curve is None else final(curve, split, case.group.metric)
    if case is None or curve is None or mine is None:
        return Standing("absent", "no records")
    theirs, missing = _finals(case, others, split)
    orders: dict[str, Order] = {}
    for name, spread in theirs.items():
        margin = by * spread.mean if relative else by
        enough = min(len(mine.values), len(spread.values)) >= SEEDS
        orders[name] = difference(mine, spread).over(margin) if enough else "undecided"
    few = _few({curve.label: len(mine.values)}, {name: len(spread.values) for name, spread in theirs.items()})
    state = against_all(orders, [*missing, *few])
    if not theirs:
        return Standing("absent", str(mine), "no records")
    strongest = max(theirs, key=lambda name: theirs[name].mean)
    lead = difference(mine, theirs[strongest])
    share = f" ({lead.mean / theirs[strongest].mean:+.1%})".replace("-", "−") if by else ""
    place = f"number {1 + sum(spread.mean > mine.mean for spread in theirs.values())} of {len(theirs) + 1}"
    counts = [place] if by else [place, _counts(orders, "above", "below")]
    return Standing(
        state,
        str(mine),
        f"{theirs[strongest]} ({written_baseline(strongest)})",
        f"{lead}{share}",
        "; ".join([*counts, *_lacking(few, missing)]),
        _leads(orders),
    )


def arrives_sooner(
    case: Case | None, label: str, others: Sequence[str], axis: str, at: float | None = None
) -> Standing:
    """Whether `label` reaches 90 % of the best before each of `others`; undecided with fewer than `SEEDS` seeds.

    Args:
        case: Where; None if there are no runs.
        label: Who.
        others: Before whom.
        axis: "epoch" or "seconds".
        at: The test score that counts; without it, that of the best of `label` and `others`.
    """
    curve = None if case is None else case.curve(label)
    if case is None or curve is None:
        return Standing("absent", "no records")
    curves = {name: found for name in others if (found := case.curve(name)) is not None}
    at = threshold(case, [curve, *curves.values()]) if at is None else at
    if at is None:
        missing = [name for name in others if name not in curves]
        few = _few({curve.label: len(curve.records)}, {name: len(one.records) for name, one in curves.items()})
        said = ["nobody gets better than chance, or than a network before its first step", *_lacking(few, missing)]
        return Standing("partial" if missing or few else "undecided", against="; ".join(said))
    mine = arrivals(curve, axis, case.group.metric, at)
    if mine is None:
        return Standing("absent", UNTIMED)
    theirs = {
        name: there for name, one in curves.items() if (there := arrivals(one, axis, case.group.metric, at)) is not None
    }
    missing, untimed = [name for name in others if name not in curves], [name for name in curves if name not in theirs]
    few = _few({curve.label: mine.seeds}, {name: found.seeds for name, found in theirs.items()})
    orders: dict[str, Order] = {
        name: mine.sooner_than(found) if min(mine.seeds, found.seeds) >= SEEDS else "undecided"
        for name, found in theirs.items()
    }
    complete = {name: found for name, found in theirs.items() if found.all}
    soonest = min(complete, key=lambda name: Spread(complete[name].times).mean, default=None)
    form = seconds_form if axis == "seconds" else lambda mean: ".1f"
    rival = "none" if soonest is None else complete[soonest].written(form, written_baseline(soonest))
    said = [_counts(orders, "before", "after"), *_lacking(few, missing), *_lacking({}, untimed, "times")]
    return Standing(
        against_all(orders, [*missing, *untimed, *few]),
        f"{mine.written(form)} to {at:.3f}",
        rival,
        against="; ".join(filter(None, said)),
        leads=_leads(orders),
    )


def _finals(case: Case, labels: Sequence[str], split: str) -> tuple[dict[str, Spread], list[str]]:
    found = {}
    for label in labels:
        curve = case.curve(label)
        spread = None if curve is None else final(curve, split, case.group.metric)
        if spread is not None:
            found[label] = spread
    return found, [label for label in labels if label not in found]


def _leads(orders: dict[str, Order]) -> bool:
    return set(orders.values()) == {"higher"}


def _counts(orders: dict[str, Order], better: str, worse: str) -> str:
    """Of how many it is better, and so on; what is zero is left out.

    Example:
        >>> _counts({"slip": "higher", "saba": "within", "masoba": "within"}, "above", "below")
        'above 1, level with 2 of 3'
    """
    count = Counter(orders.values())
    kinds: list[tuple[str, Order]] = [
        (better, "higher"), (worse, "lower"), ("level with", "within"), ("undecided", "undecided")
    ]  # fmt: skip
    said = ", ".join(f"{name} {count[order]}" for name, order in kinds if count[order])
    return f"{said} of {len(orders)}" if orders else ""


def _few(own: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Written names with the number of their seeds, where these are fewer than a verdict asks for."""
    counts = dict(own) | {written_baseline(name): seeds for name, seeds in others.items()}
    return {name: seeds for name, seeds in counts.items() if seeds < SEEDS}


def _lacking(few: Mapping[str, int], missing: Sequence[str], what: str = "records") -> list[str]:
    named = ", ".join(f"{name} ({seeds})" for name, seeds in few.items())
    found = [f"fewer than {SEEDS} seeds of {named if len(few) <= NAMED else f'{len(few)} labels'}"] if few else []
    return found + ([f"no {what} of {', '.join(map(written_baseline, missing))}"] if missing else [])
