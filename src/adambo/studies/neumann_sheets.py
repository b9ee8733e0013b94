"""The tables of the study `neumann`, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from adambo.studies.findings import Sheet
from adambo.studies.interval import Interval, geometric
from adambo.studies.series_moments import MODES, REUSED

Kind = tuple[float, float]  # condition, noise
Cells = Sequence[Mapping[str, Any]]
Costs = Mapping[str, Sequence[float]]
Number = Callable[[Mapping[str, Any]], float]
TERMS = (1, 2, 3, 5, 8, 12, 20, 30)
BATCHES = (1, 4, 16, 64)
LONGEST = 400  # terms up to which the truncation is followed to meet the floor of one shared batch
SHOWN: Kind = (5.0, 0.5)
BUDGETS = (2.0, 10.0, 30.0)


def sheets(of: Mapping[Kind, Cells], tilts: Mapping[float, Cells], costs: Costs) -> list[Sheet]:
    cells = of[SHOWN]
    about = f"Condition {SHOWN[0]:g}, noise {SHOWN[1]:g}, one sample per batch"
    means = f"geometric mean and 95 % interval over {len(cells)} problems"
    return [
        Sheet(
            f"Bias ‖E h − ∇Φ‖. {about}; {means}. Independent, chained, prefix and random have the same mean.",
            ["terms Q", "fresh batches", "bound / bias", "shared", "bound / bias", "shared with cross",
             "shared with all"],
            [_bias_row(cells, k) for k in range(len(TERMS))],
        ),
        Sheet(
            f"Variance E‖h − E h‖², for chained, and that of the other modes divided by it. {about}; {means}.",
            ["terms Q", "chained", *(mode for mode in MODES if mode != "chained")],
            [[f"{TERMS[k]}", text(cells, moment("chained", k, 1)),
              *(text(cells, ratio(mode, k, 1)) for mode in MODES if mode != "chained")]
             for k in range(1, len(TERMS))],
        ),
        Sheet(
            "The least mean squared error E‖h − ∇Φ‖² among these Q within so many Hessian products per step, and the "
            f"Q. {about}; {means}.",
            ["mode", *(f"{budget:g} products" for budget in BUDGETS)],
            [[mode, *(_best(cells, costs, mode, budget) for budget in BUDGETS)] for mode in MODES],
        ),
        Sheet(
            "The bias that is left for Q → ∞ when one batch serves all factors, what the second order in the noise "
            f"predicts, and how many terms a series of fresh batches needs to come below it; {means}.",
            ["condition", "noise", "samples per batch", "bias", "predicted / bias", "share of ‖∇Φ‖", "terms to it"],
            [_floor_row(kind, of[kind], b) for kind in of for b in range(len(BATCHES))],
        ),
        Sheet(
            "What reuse does to the error for Q = 30, one sample per batch, condition 5, noise 0.5, where the noise "
            f"that makes samples differ in dy*/dx is multiplied; variance divided by that of chained; {means}.",
            ["multiplied by", "chained", *REUSED],
            [[f"{tilt:g}", text(found, lambda c: c["chained"][1]),
              *(text(found, tilted(mode)) for mode in REUSED)]
             for tilt, found in tilts.items()],
        ),
    ]  # fmt: skip


def text(cells: Cells, number: Number) -> str:
    return over(cells, number).text()


def over(cells: Cells, number: Number) -> Interval:
    return geometric([number(cell) for cell in cells])


def everywhere(of: Mapping[Kind, Cells], number: Number) -> Interval:
    """Over the seeds, of the geometric mean over the kinds: problems of one seed have the same directions."""
    return geometric([geometric([number(cell) for cell in kinds]).mean for kinds in zip(*of.values(), strict=True)])


def moment(mode: str, k: int, what: int) -> Number:
    """Reads the bias (0) or variance (1) of a mode with `TERMS[k]` terms."""
    return lambda cell: cell["moments"][mode][k][what]


def ratio(mode: str, k: int, what: int) -> Number:
    """Reads that over the one of chained."""
    return lambda cell: cell["moments"][mode][k][what] / cell["moments"]["chained"][k][what]


def squared_error(mode: str, k: int) -> Number:
    return lambda cell: cell["moments"][mode][k][0] ** 2 + cell["moments"][mode][k][1]


def listed(name: str, k: int) -> Number:
    return lambda cell: cell[name][k]


def floor(b: int) -> Number:
    """Reads the bias that one shared batch of `BATCHES[b]` samples leaves."""
    return lambda cell: cell["floor"]["shared"][b][0]


def tilted(mode: str) -> Number:
    return lambda cell: cell[mode][1] / cell["chained"][1]


def _bias_row(cells: Cells, k: int) -> list[str]:
    fresh, shared = moment("chained", k, 0), moment("shared", k, 0)
    return [
        f"{TERMS[k]}",
        text(cells, fresh),
        text(cells, lambda cell: cell["bound"][k] / fresh(cell)),
        text(cells, shared),
        text(cells, lambda cell: cell["bound shared"][k] / shared(cell)),
        text(cells, moment("shared with cross", k, 0)),
        text(cells, moment("shared with all", k, 0)),
    ]


def best_within(cells: Cells, costs: Costs, mode: str, budget: float) -> tuple[int, Interval]:
    """The place in `TERMS` of the least squared error that a budget of Hessian products affords."""
    affordable = [k for k in range(len(TERMS)) if costs[mode][k] <= budget]
    found = {k: over(cells, squared_error(mode, k)) for k in affordable}
    best = min(found, key=lambda k: found[k].mean)
    return best, found[best]


def _best(cells: Cells, costs: Costs, mode: str, budget: float) -> str:
    k, error = best_within(cells, costs, mode, budget)
    return f"{error.text()}, Q = {TERMS[k]}"


def _floor_row(kind: Kind, cells: Cells, b: int) -> list[str]:
    left = floor(b)
    longer = sum(cell["terms to the floor"][b] > LONGEST for cell in cells)
    return [
        f"{kind[0]:g}",
        f"{kind[1]:g}",
        f"{BATCHES[b]}",
        text(cells, left),
        text(cells, lambda cell: cell["floor to second order"][b] / left(cell)),
        text(cells, lambda cell: left(cell) / cell["truth"]),
        text(cells, listed("terms to the floor", b))
        + (f" (over {LONGEST} in {longer}, counted as {LONGEST + 1})" if longer else ""),
    ]


def conclusions(of: Mapping[Kind, Cells], tilts: Mapping[float, Cells], costs: Costs) -> list[str]:
    everything = [cell for cells in of.values() for cell in cells]
    shown, last, kinds = of[SHOWN], len(TERMS) - 1, f"mean of {len(of)} kinds of problems, {len(of[SHOWN])} seeds"
    above = sum(
        cell["moments"][mode][k][0] > cell[bound][k] * (1 + 1e-9)
        for cell in everything
        for mode, bound in (("chained", "bound"), ("shared", "bound shared"))
        for k in range(len(TERMS))
    )
    first, final = moment("chained", 0, 0), moment("chained", last, 0)
    loose = [
        everywhere(of, lambda cell: cell["bound"][0] / first(cell)),
        everywhere(of, lambda cell: cell["bound"][last] / final(cell)),
    ]
    spread = {mode: everywhere(of, ratio(mode, last, 1)) for mode in MODES}
    return [
        f"The bound was exceeded in {above} of {2 * len(TERMS) * len(everything)} cases (fresh batches, and one "
        f"shared batch). It is {loose[0].text()} times the bias of one term and {loose[1].text()} times that of thirty "
        f"({kinds}).",
        f"With thirty terms and one sample per batch ({kinds}) the variance of independent is "
        f"{spread['independent'].text()} times that of chained, at {costs['independent'][last]:g} "
        f"products instead of {costs['chained'][last]:g}; of prefix {spread['prefix'].text()}, of random "
        f"{spread['random'].text()}. {_dearer(shown, costs)}",
        _floor_slopes(of),
        _shared_or_not(of, spread),
        _reuse_with_cross(of, tilts),
    ]


def _dearer(cells: Cells, costs: Costs) -> str:
    own = squared_error("chained", best_within(cells, costs, "chained", BUDGETS[-1])[0])
    told = []
    for mode in MODES:
        if mode != "chained":
            least = squared_error(mode, best_within(cells, costs, mode, BUDGETS[-1])[0])
            told.append(f"{mode} {geometric([least(cell) / own(cell) for cell in cells]).text()}")
    return (
        f"Within {BUDGETS[-1]:g} products, condition {SHOWN[0]:g} and noise {SHOWN[1]:g}, the least squared errors, "
        f"divided by that of chained, are: {', '.join(told)}."
    )


def _floor_slopes(of: Mapping[Kind, Cells]) -> str:
    """How the floor of one shared batch falls with the batch, and grows with the noise."""
    noises = sorted({noise for _, noise in of})
    conditions = sorted({condition for condition, _ in of})
    by_batch, by_noise = [], []
    for seed in range(len(of[SHOWN])):
        left = {kind: [each[0] for each in cells[seed]["floor"]["shared"]] for kind, cells in of.items()}
        falls = [math.log(floors[-1] / floors[0]) / math.log(BATCHES[-1]) for floors in left.values()]
        grows = [math.log(left[(c, noises[-1])][1] / left[(c, noises[0])][1]) for c in conditions]
        by_batch.append(fmean(falls))
        by_noise.append(fmean(grows) / math.log(noises[-1] / noises[0]))
    second = everywhere(of, lambda c: c["floor to second order"][1] / c["floor"]["shared"][1][0])
    return (
        f"One shared batch leaves a bias however many terms there are. From 1 to 64 samples it falls as the power "
        f"{Interval.of(by_batch).text()} of the batch size, and with four samples it grows as the power "
        f"{Interval.of(by_noise).text()} of the noise ({len(by_noise)} seeds, means over the kinds): "
        f"‖J H⁻¹ E[D H⁻¹ D] H⁻¹ ∇y f‖, which is proportional to noise²/batch, is "
        f"{second.text()} times it there."
    )


def _shared_or_not(of: Mapping[Kind, Cells], spread: Mapping[str, Interval]) -> str:
    everything = [cell for cells in of.values() for cell in cells]
    beats = [cell["floor"]["shared"][0][0] ** 2 > cell["floor"]["shared"][0][1] for cell in everything]
    share = everywhere(of, lambda c: c["floor"]["shared"][0][0] ** 2 / c["floor"]["shared"][0][1])
    shared = spread["shared"]
    verdict = "smaller" if shared.high < 1 else "larger" if shared.low > 1 else "not clearly different"
    dominated = (
        "in none of them does it outweigh the variance"
        if not any(beats)
        else f"in {sum(beats)} of them it outweighs the variance"
    )
    averaged = " It is seen only where many steps are averaged." if share.high < 0.1 else ""
    advantage = "an" if verdict == "smaller" else "no"
    return (
        f"The squared bias of one shared sample, Q → ∞, is {share.text()} of its variance ({len(everything)} problems; "
        f"{dominated}).{averaged} Sharing the batch of the factors alone brings {advantage} advantage in variance: "
        f"with thirty terms it is {verdict}, {shared.text()} times that of chained."
    )


def _reuse_with_cross(of: Mapping[Kind, Cells], tilts: Mapping[float, Cells]) -> str:
    last = len(TERMS) - 1
    cross = everywhere(of, ratio("shared with cross", last, 1))
    all_roles = everywhere(of, ratio("shared with all", last, 1))
    by_tilt = {tilt: over(cells, tilted("shared with cross")) for tilt, cells in tilts.items()}
    told = ", ".join(f"{found.text()} where it is multiplied by {tilt:g}" for tilt, found in by_tilt.items())
    gain = "smaller" if cross.high < 1 else "larger" if cross.low > 1 else "not clearly different"
    return (
        f"Where the batch serves the cross derivative as well, the variance is {gain}: {cross.text()} times that of "
        f"chained with thirty terms; for the upper gradients too, {all_roles.text()}. For many terms J_i H_i⁻¹ is "
        "−(dy_i*/dx)ᵀ of the sample's own lower problem, in which noise that only rescales the loss cancels. So it "
        f"depends on how much the samples differ in dy*/dx: the factor is {told}."
    )
