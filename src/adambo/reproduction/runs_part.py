"""The parts `paper` and `tuned`: every label of a case, its curves, its scores and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

from adambo.report.curves import Curve
from adambo.report.records import Record, shown
from adambo.report.table import metric_name, reasons, seconds_form
from adambo.reproduction.archive import CASES, SEARCHED, Archive, Case
from adambo.reproduction.arrival import arrivals, threshold
from adambo.reproduction.block import Block
from adambo.reproduction.panels import four_panels
from adambo.reproduction.spread import Spread, as_early, best, final, over_seeds
from adambo.reproduction.standing import NONE
from adambo.studies.findings import Sheet

NEAR_CHANCE = 0.02
PER_TASK = "-per-task"
UNTUNED = "untuned, as early"
TITLES = {"paper": "the paper's settings", "tuned": "settings chosen by the search"}


def paper(archive: Archive, name: str) -> Block | None:
    return _block(archive, "paper", name)


def tuned(archive: Archive, name: str) -> Block | None:
    return _block(archive, "tuned", name)


def _block(archive: Archive, part: str, name: str) -> Block | None:
    case = archive.case(part, name)
    if case is None:
        return None
    title = f"{(CASES if part == 'paper' else SEARCHED)[name]}: {TITLES[part]}"
    table = sheet(case, title, None if part == "paper" else _untuned(archive, name))
    return Block(part, name, [table], notes(case), lambda: four_panels(case, title), title)


def _untuned(archive: Archive, name: str) -> dict[str, Curve]:
    """The runs at the paper's settings by the labels that the search has for them."""
    endings = {name: ""} | ({name.replace("-shared", PER_TASK): PER_TASK} if name.endswith("-shared") else {})
    return {
        curve.algorithm + ending + label.removeprefix(curve.algorithm): curve
        for case, ending in endings.items()
        if (there := archive.case("paper", case)) is not None
        for label, curve in zip(there.labels, there.group.curves, strict=True)
    }


def sheet(case: Case, title: str, untuned: Mapping[str, Curve] | None) -> Sheet:
    """One row per label, the highest final test score first.

    Args:
        case: What it is about.
        title: Of the table.
        untuned: For a case of tuned runs, those at the paper's settings, by label. The table then has their scores
            after as many epochs, and times to 90 %.
    """
    metric, named = case.group.metric, metric_name(case.group.metric)
    caption = f"{title}; mean ± standard deviation over seeds (n − 1)."
    columns = ["algorithm", f"final train {named}", f"final test {named}", "of each seed", f"best test {named}"]
    columns += ["epoch of the best", "ms per step, alone", "seconds, alone", "oracle calls"]
    at = threshold(case)
    if untuned is not None:
        caption += "" if at is None else f" 90 % is a test {named} of {at:.4f}."
        columns[8:8] = ["epochs to 90 %", "seconds to 90 %"]
        columns.insert(4, UNTUNED)
    rows = []
    for label, curve in _sorted(case):
        speed, reference = case.speeds.get(label), None if untuned is None else untuned.get(label)
        row = [
            curve.label,
            *map(_score, (final(curve, "train", metric), final(curve, "test", metric))),
            " ".join(_of_seed(record, metric) for record in curve.records),
            *([_score(_as_early(curve, reference, metric))] if untuned is not None else []),
            _score(best(curve, "test", metric)),
            _number(over_seeds(curve, lambda record: _epoch_of_best(record, metric)), ".1f"),
            NONE if speed is None else f"{speed:.1f}",
            _seconds(curve),
            *([_arrival(curve, axis, metric, at) for axis in ("epoch", "seconds")] if untuned is not None else []),
            _number(_cost(curve, "oracle_calls"), ",.0f"),
        ]
        rows.append(row)
    return Sheet(caption, columns, rows)


def notes(case: Case) -> list[str]:
    """What a reader must know before comparing rows."""
    found = [f"{curve.label} {why}" for curve in case.group.curves for why in reasons(curve, brief=True)]
    if found:
        found.append(
            "A run that diverged (*) counts with its last evaluation before that, and not in seconds and oracle calls."
        )
    fallen = _at_chance(case)
    if fallen:
        found.append(f"At chance at their end (no more than {NEAR_CHANCE:g} above it): {', '.join(fallen)}.")
    if case.untimed:
        found.append(
            f"Milliseconds per step alone have not been measured for {', '.join(case.untimed)}, so seconds are not "
            "known, and the curves against seconds are left out."
        )
    return found + unequal(case)


def _at_chance(case: Case) -> list[str]:
    """Such as "SLIP (seeds 0, 2)": a mean over seeds hides that some of them have learned nothing."""
    found = []
    for curve in case.group.curves:
        ends = {record.seed: record.last("test", case.group.metric) for record in curve.records}
        seeds = [shown(seed) for seed, end in ends.items() if end is not None and end <= case.chance + NEAR_CHANCE]
        if seeds:
            found.append(f"{curve.label} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})")
    return found


def unequal(case: Case) -> list[str]:
    """What makes a comparison of its labels unequal."""
    found = []
    if case.unlike:
        found.append(f"Not all runs agree in {', '.join(case.unlike)}: compare them with care.")
    if case.mixed:
        found.append(f"Seeds of one label differ in more than their seed: {', '.join(case.mixed)}.")
    if case.machines:
        found.append(f"Made on another machine than the others: {'; '.join(case.machines)}.")
    if case.left_out:
        found.append(f"Left out, since they did not come to an end: {', '.join(case.left_out)}.")
    if case.seeds:
        found.append(f"Not every label has the same seeds: {case.seeds}.")
    return found


def _sorted(case: Case) -> list[tuple[str, Curve]]:
    def score(pair: tuple[str, Curve]) -> float:
        spread = final(pair[1], "test", case.group.metric)
        return float("-inf") if spread is None else spread.mean

    return sorted(zip(case.labels, case.group.curves, strict=True), key=score, reverse=True)


def _as_early(curve: Curve, untuned: Curve | None, metric: str) -> Spread | None:
    """The test score of an untuned curve at the epoch at which the tuned one ends."""
    ends = [points[-1][0] for record in curve.records if (points := record.points("epoch", "test", metric))]
    if untuned is None or not ends:
        return None
    return final(as_early(untuned, max(ends)), "test", metric)


def _of_seed(record: Record, metric: str) -> str:
    """Three digits of the final test score; a star where the run diverged."""
    score = record.last("test", metric)
    return (NONE if score is None else f"{score:.3f}") + "*" * (record.state == "diverged")


def _epoch_of_best(record: Record, metric: str) -> float | None:
    points = record.points("epoch", "test", metric)
    return max(points, key=lambda point: point[1])[0] if points else None


def _arrival(curve: Curve, axis: str, metric: str, at: float | None) -> str:
    found = None if at is None else arrivals(curve, axis, metric, at)
    return NONE if found is None else found.written(seconds_form if axis == "seconds" else lambda mean: ".1f")


def _seconds(curve: Curve) -> str:
    spread = _cost(curve, "seconds")
    return NONE if spread is None else format(spread.mean, seconds_form(spread.mean))


def _cost(curve: Curve, axis: str) -> Spread | None:
    """Of the seeds that came to their end; of those that diverged if none did."""
    return over_seeds(curve, lambda record: record.cost(axis) if record.finished else None) or over_seeds(
        curve, lambda record: record.cost(axis)
    )


def _score(spread: Spread | None) -> str:
    return NONE if spread is None else str(spread)


def _number(spread: Spread | None, form: str) -> str:
    return NONE if spread is None else format(spread.mean, form)
