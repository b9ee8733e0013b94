"""The tables of the study `stale-heads`, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adambo.studies.findings import Sheet
from adambo.studies.interval import Interval, geometric
from adambo.studies.stale_heads_runs import LOWER_RATES, LOWER_STEPS, DigitsSize, columns

Cells = Sequence[Mapping[str, Any]]
Digits = Mapping[tuple[float, str, int], Cells]
TASKS = (5, 20, 100)
DIGITS = ((0.1, "current"), (0.005, "current"), (0.005, "updated"))


def sheets(of: Mapping[int, Cells], digits: Digits, size: DigitsSize) -> list[Sheet]:
    problems, seeds = len(next(iter(of.values()))), len(next(iter(digits.values())))
    means = f"geometric mean and 95 % interval over {problems} problems"
    return [
        Sheet(
            f"Quadratics: the error before and after the lower steps of a visit, and what it is held against; "
            f"hypergradient at the current y; {means}.",
            ["K", "γ", "N", "before", "after", "drift", "bound / before", "estimate / before"],
            [_error_row(of[K], K, rate, N) for K in of for rate in LOWER_RATES for N in LOWER_STEPS],
        ),
        Sheet(
            f"Quadratics: mean ‖∇Φ(x_t)‖ in the last third of the steps, over that at the start; {means}.",
            ["K", "γ", "hypergradient", *(f"N = {N}" for N in LOWER_STEPS)],
            [
                [f"{K}", f"{rate:g}", place, *(gradient(of[K], rate, N, place).text() for N in LOWER_STEPS)]
                for K in of for rate in LOWER_RATES for place in ("current", "updated")
            ],
        ),
        Sheet(
            f"Digits: final accuracies and the error of the heads; mean and 95 % interval over {seeds} seeds. The last "
            "but one column is what so many steps leave in the direction of least curvature if x rests.",
            ["γ", "hypergradient", "N", "train accuracy", "test accuracy", "head error", "left if x rests", "diverged"],
            [_digits_row(setting, runs, size) for setting, runs in digits.items()],
        ),
    ]  # fmt: skip


def at(rate: float, N: int, place: str) -> int:
    return columns().index((rate, N, place))


def gradient(cells: Cells, rate: float, N: int, place: str) -> Interval:
    column = at(rate, N, place)
    return geometric([cell["gradient"][column] / cell["first gradient"] for cell in cells])


def late(cells: Cells, name: str, rate: float, N: int, place: str = "current", over: str | None = None) -> Interval:
    """A number of the last third of the visits, or its ratio to another."""
    column = at(rate, N, place)
    return geometric([cell[name][column] / (cell[over][column] if over else 1.0) for cell in cells])


def _error_row(cells: Cells, K: int, rate: float, N: int) -> list[str]:
    found = [late(cells, name, rate, N) for name in ("before", "after", "drift")]
    ratios = [late(cells, name, rate, N, over="before") for name in ("bound", "estimate")]
    return [f"{K}", f"{rate:g}", f"{N}", *(each.text() for each in found + ratios)]


def left_at_rest(rate: float, N: int, size: DigitsSize) -> float:
    return float((1 - rate * size.mu) ** (N * size.visits + size.warm_start))


def accuracy(runs: Cells, split: str) -> Interval | None:
    """Over the runs that did not diverge; None if all did."""
    values = [run[split] for run in runs if not run["diverged"]]
    return Interval.of(values) if values else None


def _digits_row(setting: tuple[float, str, int], runs: Cells, size: DigitsSize) -> list[str]:
    rate, place, N = setting
    found = [accuracy(runs, name) for name in ("train", "test", "head error")]
    diverged = sum(run["diverged"] for run in runs)
    return [
        f"{rate:g}", place, f"{N}", *("—" if each is None else each.text() for each in found),
        f"{left_at_rest(rate, N, size):.3f}", f"{diverged} of {len(runs)}",
    ]  # fmt: skip


def conclusions(of: Mapping[int, Cells], digits: Digits, size: DigitsSize) -> list[str]:
    cells = [cell for each in of.values() for cell in each]
    above, checked = (sum(cell[name] for cell in cells) for name in ("above one step of the bound", "checked"))
    few, many, K = LOWER_STEPS[0], LOWER_STEPS[-1], max(of)
    small, large = LOWER_RATES[1], LOWER_RATES[0]
    return [
        f"The error of a task before a visit was above (1 − γμ)^N times that before its last visit plus the drift in "
        f"{above} of {checked} cases (every visit of every task but its first, for each γ, N and place of the "
        f"hypergradient). The bound unrolled from the first visit is "
        f"{late(of[K], 'bound', small, many, over='before').text()} times the error at K = {K}, "
        f"γ = {small:g}, N = {many}, and {late(of[K], 'bound', small, few, over='before').text()} times at N = {few}: "
        "it supposes that the drifts of successive visits all point one way; the estimate with independent drifts "
        f"is {late(of[K], 'estimate', small, few, over='before').text()} times the error there.",
        _rarer(of, small, large, few, many),
        _where(of, small, many),
        *_digits(digits, few, many, size),
    ]


def _rarer(of: Mapping[int, Cells], small: float, large: float, few: int, many: int) -> str:
    told = []
    for K in of:
        gains = [
            geometric([c["before"][at(rate, few, "current")] / c["before"][at(rate, many, "current")] for c in of[K]])
            for rate in (small, large)
        ]
        told.append(f"{gains[0].text()} (γ = {small:g}) and {gains[1].text()} (γ = {large:g}) at K = {K}")
    K = max(of)
    visits = of[K][0]["visits"]
    drifts = [
        f"{late(cells, 'before', small, few, over='drift').text()} and "
        f"{late(cells, 'before', small, many, over='drift').text()} at K = {tasks}"
        for tasks, cells in of.items()
    ]
    return (
        f"With N = {few} the error before a visit, divided by that with N = {many}, is {'; '.join(told)}. For N → ∞ it "
        f"is the drift since the last visit: for N = {few} and N = {many} with γ = {small:g} it is {'; '.join(drifts)} "
        f"times the drift. At K = {K}, {visits} visits of {few} step with γ = {small:g} leave a share "
        f"{(1 - small) ** (visits * few):.2f} of the first error in the direction of least curvature."
    )


def _where(of: Mapping[int, Cells], small: float, many: int) -> str:
    K = max(of)
    ratio = geometric([c["after"][at(small, many, "updated")] / c["before"][at(small, many, "current")] for c in of[K]])
    gain = geometric(
        [c["gradient"][at(small, many, "updated")] / c["gradient"][at(small, many, "current")] for c in of[K]]
    )
    verdict = "smaller" if gain.high < 1 else "larger" if gain.low > 1 else "not clearly different"
    return (
        f"Where the hypergradient is taken: at K = {K}, γ = {small:g}, N = {many} the y that it "
        f"sees is {ratio.text()} times as far from y_k*(x) after the lower steps (updated) as before them (current). "
        f"‖∇Φ‖ in the last third is then {verdict}: {gain.text()} times as large."
    )


def _digits(digits: Digits, few: int, many: int, size: DigitsSize) -> list[str]:
    sentences = []
    for rate, place in DIGITS:
        differences = {}
        for split in ("train", "test"):
            pairs = list(zip(digits[(rate, place, many)], digits[(rate, place, few)], strict=True))
            kept = [a[split] - b[split] for a, b in pairs if not a["diverged"] and not b["diverged"]]
            if kept:
                differences[split] = Interval.of(kept)
        if not differences:
            sentences.append(f"Digits, γ = {rate:g}, {place}: no pair of runs without divergence.")
            continue
        test = differences["test"]
        verdict = "gains" if test.low > 0 else "loses" if test.high < 0 else "neither gains nor loses clearly"
        sentences.append(
            f"Digits, γ = {rate:g}, hypergradient {place}: from N = {few} to N = {many} the test accuracy {verdict}, "
            f"by {test.text()} (train {differences['train'].text()})."
        )
    fallen = sum(run["diverged"] for runs in digits.values() for run in runs)
    errors = [accuracy(digits[(rate, "current", many)], "head error") for rate in LOWER_RATES]
    trained = [accuracy(digits[(rate, "current", many)], "train") for rate in LOWER_RATES]
    far = [
        f"{each.text()} with γ = {rate:g} (x at rest would leave {left_at_rest(rate, many, size):.2f} at most of heads "
        f"at zero), at a train accuracy of {train.text()}"
        for rate, each, train in zip(LOWER_RATES, errors, trained, strict=True)
        if each and train
    ]
    sentences.append(
        f"The heads of digits with N = {many} have a relative error at the end of {' and '.join(far) or 'nothing'}. "
        f"{fallen} runs of digits diverged."
    )
    return sentences
