"""The part `claims`: what the paper says, what the records say, and a verdict by a rule that is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adambo.experiments.catalogue import AUC, HYPER_REPRESENTATION, META_LEARNERS
from adambo.report.curves import Curve
from adambo.reproduction.archive import CASES, STUDIED, Archive, Case
from adambo.reproduction.arrival import threshold
from adambo.reproduction.block import Block
from adambo.reproduction.labels import READINGS, written_label
from adambo.reproduction.lambda_part import FOLDER, by_lambda, power
from adambo.reproduction.runs_part import unequal
from adambo.reproduction.spread import FACTOR, RULE, SEEDS, difference, final
from adambo.reproduction.standing import NONE, UNTIMED, Standing, State, arrives_sooner, ends_higher
from adambo.studies.findings import Sheet

METHOD = "adambo"
PLAIN = "adam"
SPLITS = ("train", "test")
AXES = {"epochs": "epoch", "seconds": "seconds"}
HEADLINE = {"train": 0.14, "test": 0.07}
LIMITS = {"auc-rnn": 1e-4, "auc-transformer": 1e-4, "bert-trec": 1e-3}
SMALLEST = 1e-8  # the paper's λ
HARDLY = 0.1  # of what is gained on chance
RULES = (
    "“Paper's settings” are the runs of the part `paper`, “fair search” those of the part `tuned`. The baselines are "
    "those of the paper, in either order of updates where that could not be confirmed and both were run; plain Adam "
    "and our own variants are none of them. Beside AdamBO's number stands that of the best baseline; then the "
    "difference of the two ± its standard error, AdamBO's place, and how many baselines it is above, below, or level "
    "with. A run that diverged counts with its last evaluation before that.",
    RULE,
    f"A verdict, either way, asks for {SEEDS} seeds of AdamBO and of the baseline in question; one with fewer counts "
    "as undecided. One baseline that does better settles “not confirmed”. Otherwise baselines without records or with "
    "too few seeds leave a claim open, as “incomplete records”. Where none are lacking, a claim about every baseline "
    "that is not shown is not confirmed, “within the spread” if that is the only reason.",
    "“Ends higher”: the metric at the end. On `rnn-snli` and `auc-rnn` the paper's words claim it for training only.",
    "“Converges faster”: sooner at chance + 0.9 (best − chance), best being the highest mean best test metric of "
    "AdamBO and the baselines (in the table of other labels: of all labels). “3.7 ± 0.6 (3 of 3 stay) to 0.717”: that "
    "score is first reached after 3.7 epochs, and three of three seeds are still there at their end. “Not reached (2 "
    "of 3; 1 stay)”: two of three seeds never get there. “None”: no baseline gets there with all its seeds. A time is "
    "that of an evaluation, so “± 0.0” means three times the same one. A seed that does not get there counts with its "
    "end (one that diverged, with the end that it was made for), which can speak for the other method only: where it "
    "ends too early for that, the two are undecided. Where all seeds of one method get there, and none of the other in "
    "as long a time, the first is before, whatever the spread.",
    "“By 14 % and 7 %”: above every baseline by that much, as a difference or as a share of the baseline, whichever "
    "favours the paper, which does not say.",
    f"“Hardly matters”: the final test metric differs from that of λ = 1e-8 by less than {100 * HARDLY:.0f} % of what "
    f"that gains on chance (the margin), 2 standard errors included, with {SEEDS} seeds of each λ.",
)


def claims(archive: Archive) -> Block | None:
    there = {kind: archive.cases(kind) for kind in ("paper", "tuned", FOLDER)}
    if not any(there.values()):
        return None
    rows = [
        *(
            row
            for name in CASES
            for row in (*(_higher(archive, name, s) for s in SPLITS), *(_sooner(archive, name, unit) for unit in AXES))
        ),
        *(_headline(archive, split) for split in HEADLINE),
    ]
    sheets = [
        Sheet(
            "AdamBO against every baseline of the paper; mean ± standard deviation over seeds (n − 1).", COLUMNS, rows
        ),
        Sheet("λ of AdamBO, at the paper's settings.", LAMBDA_COLUMNS, [_hardly(archive, name) for name in STUDIED]),
    ]
    own = [row for name in there["tuned"] for row in _own(archive, name)]
    if own:
        caption = (
            "AdamBO, and labels of the search that the paper does not compare with, against its baselines under the "
            "same search (scores and times are in the tables of the part `tuned`); with one head for all tasks unless "
            "a label says per-task."
        )
        sheets.append(Sheet(caption, OWN_COLUMNS, own, folded=True))
    doubts = [
        f"{CASES[name]}, part `{kind}`: {doubt}"
        for kind in ("paper", "tuned")
        for name in there[kind]
        if (case := archive.case(kind, name)) is not None
        for doubt in unequal(case)
    ]
    return Block("claims", "", sheets, [*RULES, *_not_run(archive), *doubts])


COLUMNS = (
    "claim",
    "verdict",
    *("paper's settings: AdamBO", "best baseline", "against all of them"),
    *("fair search: AdamBO", "its best baseline", "against all under it"),
)
LAMBDA_COLUMNS = ("claim", "final test at 1e-8", "largest difference", "margin", "verdict")
OWN_COLUMNS = (
    "case",
    "label",
    "final test: over the best baseline",
    "against the baselines",
    "over the best control",
    "over plain Adam",
    "epochs to 90 %",
    "seconds to 90 %",
    "better than all in",
)


WITHIN = "not confirmed (within the spread)"
NEAR = "not confirmed (too near the margin)"
BEYOND = "not confirmed (beyond the margin, but within the spread)"
UNDER: dict[State, str] = {
    "higher": "confirmed",
    "lower": "not confirmed",
    "within": WITHIN,
    "undecided": "not confirmed",
}


def baselines(case: str) -> list[str]:
    """Those that the paper compares AdamBO with.

    Example:
        >>> baselines("auc-rnn")[:3], len(baselines("auc-rnn"))
        (['stocbio', 'ttsa', 'saba'], 9)
        >>> len(baselines("rnn-snli-shared")), len(baselines("rnn-snli-per-task"))
        (8, 6)
    """
    compared = AUC if case.startswith("auc-") else HYPER_REPRESENTATION
    one_head = META_LEARNERS if case.endswith("-per-task") else ()  # which have no such formulation
    return [name for name in compared if name != METHOD and name not in one_head]


def rivals(name: str, case: Case | None) -> list[str]:
    """The baselines of a case, and those of them that were run in another order too."""
    there = () if case is None else case.labels
    known = baselines(name)
    return known + [label for label in READINGS if label in there and label.partition("-")[0] in known]


def _not_run(archive: Archive) -> list[str]:
    """A sentence on orders of updates that count nowhere, for want of runs."""
    places: dict[str, list[str]] = {}
    for kind in ("paper", "tuned"):
        for name in archive.cases(kind):
            case = archive.case(kind, name)
            for label in READINGS:
                algorithm = label.partition("-")[0]
                if case is not None and label not in case.labels and algorithm in baselines(name):
                    places.setdefault(written_label(label, algorithm), []).append(f"{kind}/{name}")
    said = "; ".join(f"{label} in {', '.join(found)}" for label, found in places.items())
    return [f"Another order of updates that was not run, and so does not count: {said}."] if said else []


def verdict(paper: State, fair: State) -> str:
    """In words, from how the method stands at the paper's settings and under the fair search.

    Example:
        >>> verdict("higher", "higher"), verdict("higher", "lower"), verdict("within", "absent")
        ('confirmed', "confirmed only at the paper's settings", 'not confirmed (within the spread)')
        >>> verdict("partial", "within")
        "incomplete records at the paper's settings; not confirmed (within the spread) under the fair search"
    """
    if paper == fair == "absent":
        return "no records"
    if paper in ("absent", "partial"):
        lacking = "no records" if paper == "absent" else "incomplete records"
        return f"{lacking} at the paper's settings" + (
            f"; {UNDER[fair]} under the fair search" if fair in UNDER else ""
        )
    if paper != "higher":
        # Where the fair search refutes the claim, the spread at the paper's settings is not the reason.
        remarks = ["within the spread"] if paper == "within" and fair != "lower" else []
        remarks += ["but confirmed under the fair search"] if fair == "higher" else []
        remarks += ["incomplete records in the fair search"] if remarks and fair == "partial" else []
        return "not confirmed" + (f" ({', '.join(remarks)})" if remarks else "")
    if fair in ("absent", "partial"):
        lacking = "no records" if fair == "absent" else "incomplete records"
        return f"confirmed at the paper's settings; {lacking} in the fair search"
    within = " (within the spread under the fair search)" if fair == "within" else ""
    return "confirmed" if fair == "higher" else f"confirmed only at the paper's settings{within}"


def _row(claim: str, paper: Standing, fair: Standing) -> list[str]:
    return [claim, verdict(paper.state, fair.state), *paper.cells, *fair.cells]


def _higher(archive: Archive, name: str, split: str) -> list[str]:
    cases = (archive.case(kind, name) for kind in ("paper", "tuned"))
    paper, fair = (ends_higher(case, METHOD, rivals(name, case), split) for case in cases)
    return _row(f"{CASES[name]}: ends higher ({split})", paper, fair)


def _sooner(archive: Archive, name: str, unit: str) -> list[str]:
    cases = (archive.case(kind, name) for kind in ("paper", "tuned"))
    paper, fair = (arrives_sooner(case, METHOD, rivals(name, case), AXES[unit]) for case in cases)
    row = _row(f"{CASES[name]}: converges faster ({unit})", paper, fair)
    return [row[0], UNTIMED, *row[2:]] if paper.mine == UNTIMED and fair.state == "absent" else row


def _headline(archive: Archive, split: str) -> list[str]:
    by = HEADLINE[split]
    found = []
    for kind in ("paper", "tuned"):
        case = archive.case(kind, "auc-transformer")
        others = rivals("auc-transformer", case)
        readings = [ends_higher(case, METHOD, others, split, by, relative) for relative in (False, True)]
        states: list[State] = [reading.state for reading in readings]
        kindest: list[State] = ["higher", "within", "undecided", "partial", "absent", "lower"]
        found.append(replace(readings[0], state=next(state for state in kindest if state in states)))
    return _row(f"auc-transformer: ends at least {100 * by:.0f} % higher ({split})", *found)


def _hardly(archive: Archive, name: str) -> list[str]:
    limit = LIMITS[name]
    claim = f"{name}: λ hardly matters up to {power(limit)}"
    case = archive.case(FOLDER, name)
    curves = {} if case is None else by_lambda(case)[0]
    finals = {value: final(curve, "test", case.group.metric) for value, curve in curves.items() if case}
    known = {value: spread for value, spread in finals.items() if spread is not None and value <= limit * 1.001}
    if case is None or SMALLEST not in known or len(known) < 2 or max(known) < limit * 0.999:
        there = f"records of λ = {', '.join(map(power, sorted(known)))} alone" if known else "no records"
        return [claim, there, NONE, NONE, "incomplete records" if known else "no records"]
    few = [f"λ = {power(value)} ({len(s.values)})" for value, s in known.items() if len(s.values) < SEEDS]
    start = known.pop(SMALLEST)
    margin = HARDLY * (start.mean - case.chance)
    differences = {value: difference(spread, start) for value, spread in known.items()}
    value, largest = max(differences.items(), key=lambda pair: abs(pair[1].mean))
    row = [claim, str(start), f"{largest}, at λ = {power(value)}", f"{margin:.4f}"]
    if few:
        return [*row, f"incomplete records (fewer than {SEEDS} seeds of {', '.join(few)})"]
    if margin <= 0:
        return [*row, "not confirmed (nothing is learned at 1e-8)"]
    ranges = [(abs(d.mean), FACTOR * (d.error or 0.0)) for d in differences.values()]
    if any(mean - error > margin for mean, error in ranges):
        return [*row, "not confirmed"]
    if any(mean > margin for mean, _ in ranges):
        return [*row, BEYOND]
    return [*row, "confirmed" if all(mean + error < margin for mean, error in ranges) else NEAR]


def _own(archive: Archive, name: str) -> list[list[str]]:
    """What is not of the paper's baselines, under the same search; times are those of the table of the part `tuned`."""
    case = archive.case("tuned", name)
    if case is None:
        return []
    rows, at, others = [], threshold(case), rivals(name, case)
    for label, curve in zip(case.labels, case.group.curves, strict=True):
        if label in others:
            continue
        score = ends_higher(case, label, others)
        nobody = Standing("undecided", against="nobody gets better than chance")
        times = [nobody if at is None else arrives_sooner(case, label, others, axis, at) for axis in AXES.values()]
        kinds = zip(("test metric", "epochs to 90 %", "seconds to 90 %"), (score, *times), strict=True)
        winning = [
            f"{what}, of those with records" if standing.state == "partial" else what
            for what, standing in kinds
            if standing.leads
        ]
        leads = (score.lead, score.against, _over_controls(case, curve, others), _over_plain(case, curve))
        sooner = (time.against for time in times)
        rows.append([name.removesuffix("-shared"), curve.label, *leads, *sooner, ", ".join(winning) or "nothing"])
    return rows


def _over_controls(case: Case, curve: Curve, others: Sequence[str]) -> str:
    """How much higher a variant of AdamBO ends than the best baseline that was changed in some of the same ways."""
    mine = final(curve, "test", case.group.metric)
    controls = [
        (score, other.label)
        for label, other in zip(case.labels, case.group.curves, strict=True)
        if label not in (*others, PLAIN)
        and not other.algorithm.endswith(METHOD)
        and (score := final(other, "test", case.group.metric)) is not None
    ]
    if mine is None or not controls or not curve.algorithm.endswith(METHOD):
        return NONE
    best, label = max(controls, key=lambda pair: pair[0].mean)
    return f"{difference(mine, best)} ({label})"


def _over_plain(case: Case, curve: Curve) -> str:
    """How much higher than plain Adam it ends, which is no baseline of the paper but what a reader will ask for."""
    plain = case.curve(PLAIN)
    spreads = [None if each is None else final(each, "test", case.group.metric) for each in (curve, plain)]
    mine, its = spreads
    return "–" if mine is None or its is None or plain is curve else str(difference(mine, its))
