"""The tables of the study `lower-error`, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adambo.studies.findings import Sheet
from adambo.studies.interval import Interval, geometric

Cells = Sequence[Mapping[str, Any]]
BETAS = (0.08, 0.04, 0.02, 0.01, 0.005)
DELTAS = (0.5, 0.2, 0.1, 0.05, 0.01)
LENGTH = 20.0  # of a run, in units of 1/β
MOMENTS_IN_TIME = (0.2, 1.0, 5.0, 20.0)  # in units of 1/β, for runs of full length; of shorter ones the same shares
BOUNDS = ("recursion", "contraction", "uniform", "printed")
RUNS = 200
PARTS = ("start", "variance", "drift", "ln(T/δ)")


def sheets(of: Mapping[float, Cells], failing: Mapping[str, Any]) -> list[Sheet]:
    seeds = len(next(iter(of.values())))
    means = f"geometric mean and 95 % interval over {seeds} problems with {RUNS} runs each"
    shares = ", ".join(f"{100 * m / LENGTH:g}" for m in MOMENTS_IN_TIME)
    return [
        Sheet(
            f"Looseness of each bound, δ = {DELTAS[2]:g}, after {shares} % of the runs, which last {lengths(of)} "
            f"steps; time in units of 1/β; {means}.",
            ["β", "time β", *BOUNDS],
            [
                [f"{beta:g}", f"{moments(cells, beta)[k]:.3g}",
                 *(geometric([c["looseness"][name][k] for c in cells]).text() for name in BOUNDS)]
                for beta, cells in of.items() for k in range(len(MOMENTS_IN_TIME))
            ],
        ),
        Sheet(
            "By what all late steps (from a quarter of the run on) of a share 1 − δ of the runs stay below each bound "
            f"at once; δ = {DELTAS[2]:g}; {means}.",
            ["β", *BOUNDS],
            [
                [f"{beta:g}",
                 *(geometric([c["looseness of all late steps"][name] for c in cells]).text() for name in BOUNDS)]
                for beta, cells in of.items()
            ],
        ),
        Sheet(
            f"Runs that exceed a bound at any time, all β together: count of {RUNS * seeds * len(of)}, and the 95 % "
            "interval of the share (Clopper and Pearson; runs of one problem are taken as independent).",
            ["δ", *BOUNDS],
            [[f"{delta:g}", *(_share(of, name, k) for name in BOUNDS)] for k, delta in enumerate(DELTAS)],
        ),
        Sheet(
            "What (R)'s bound is made of at the end of the runs, as shares of it; and the mean of V in late steps "
            f"over E V_∞ of SGD with x at rest, Σ γσ²/(4a(2 − γa)); mean and 95 % interval over {seeds} problems.",
            ["β", *PARTS, "E V / that of x at rest"],
            [
                [f"{beta:g}", *(Interval.of([part_share(c, part) for c in cells]).text() for part in PARTS),
                 Interval.of([c["late mean"] / c["stationary"] for c in cells]).text()]
                for beta, cells in of.items()
            ],
        ),
        Sheet(
            "Where the printed form fails: V_1 = 0, β = 0.1, μ = 1, l = 2, no noise; (R) with equality, or the path "
            f"of g = ½(y − x)² whose x goes as far from y as the lemma allows. Ratio to the printed bound up to step "
            f"{failing['steps']}; exact numbers, nothing is drawn. The last column is the σ/‖û‖ up to which a "
            "failure remains when noise is added.",
            ["sequence", "K L²/β", "fails from step", "ratio at t = 100", "largest ratio", "fails up to σ/‖û‖"],
            [
                [name.removesuffix(", coupling 1").removesuffix(", coupling 64"), f"{row['coupling']:g}",
                 "never" if row["first"] is None else f"{row['first']}", f"{row['at 100']:.3g}",
                 f"{row['largest']:.4g}", "" if row["noise"] is None else f"{row['noise']:.2g}"]
                for name, row in failing["rows"].items()
            ],
        ),
    ]  # fmt: skip


def moments(cells: Cells, beta: float) -> list[float]:
    """The times at which looseness is told, in units of 1/β: fixed shares of the runs, however long these are."""
    return [m / LENGTH * cells[0]["steps"] * beta for m in MOMENTS_IN_TIME]


def lengths(of: Mapping[float, Cells]) -> str:
    """How long runs are, in words."""
    found = sorted({f"{cells[0]['steps'] * beta:.3g}" for beta, cells in of.items()}, key=float)
    return f"{found[0]}/β" if len(found) == 1 else f"{found[0]}/β to {found[-1]}/β"


def part_share(cell: Mapping[str, Any], part: str) -> float:
    parts = cell["parts at the end"]
    return float(parts[part] / sum(parts.values()))


def exceeded(of: Mapping[float, Cells], name: str, k: int) -> tuple[int, int]:
    """How many runs of how many."""
    cells = [cell for each in of.values() for cell in each]
    return sum(cell["exceeding"][name][k] for cell in cells), RUNS * len(cells)


def share_interval(count: int, runs: int) -> tuple[float, float]:
    """The 95 % interval of a share.

    Example:
        >>> [round(end, 4) for end in share_interval(0, 1000)]
        [0.0, 0.0037]
    """
    from scipy.stats import beta

    low = 0.0 if count == 0 else float(beta.ppf(0.025, count, runs - count + 1))
    return low, 1.0 if count == runs else float(beta.ppf(0.975, count + 1, runs - count))


def _share(of: Mapping[float, Cells], name: str, k: int) -> str:
    count, runs = exceeded(of, name, k)
    low, high = share_interval(count, runs)
    return f"{count} [{low:.2g}, {high:.2g}]"


def conclusions(of: Mapping[float, Cells], failing: Mapping[str, Any]) -> list[str]:
    cells = [cell for each in of.values() for cell in each]
    everything = {name: [exceeded(of, name, k) for k in range(len(DELTAS))] for name in BOUNDS}
    total, runs = sum(count for name in BOUNDS for count, _ in everything[name]), everything["printed"][0][1]
    return [_exceedances(everything, total, runs), _looseness(of), _parts(of, cells), _failures(failing, everything)]


def _exceedances(everything: Mapping[str, Sequence[tuple[int, int]]], total: int, runs: int) -> str:
    if total == 0:
        high = share_interval(0, runs)[1]
        return (
            f"No run of {runs} exceeded any bound at any time, not even for δ = {DELTAS[0]:g}, where half of them "
            f"may (the share lies below {high:.2g} with 95 % confidence): simulations cannot tell δ apart, the bounds "
            "are far from tight."
        )
    worst = max((count / runs - delta, name, delta, count) for name in BOUNDS
                for (count, _), delta in zip(everything[name], DELTAS, strict=True))  # fmt: skip
    verdict = "more than" if worst[0] > 0 else "within"
    return (
        f"{total} exceedances were counted over all bounds and δ; the worst is {worst[3]} of {runs} runs for "
        f"{worst[1]} at δ = {worst[2]:g}, {verdict} what δ allows."
    )


def _looseness(of: Mapping[float, Cells]) -> str:
    betas = sorted(of)
    told = []
    for beta in (betas[-1], betas[0]):
        by_time = [geometric([c["looseness"]["recursion"][k] for c in of[beta]]) for k in range(len(MOMENTS_IN_TIME))]
        worst, times = max(by_time), [f"{time:.3g}/β" for time in moments(of[beta], beta)]
        told.append(
            f"for β = {beta:g} (R)'s bound is {by_time[0].text()} times the quantile at {times[0]} and "
            f"{by_time[-1].text()} times at the end; the loosest of the times is {times[by_time.index(worst)]}, with "
            f"{worst.text()} times"
        )
    contraction, printed = (
        geometric(
            [
                geometric([c["looseness"][name][3] / c["looseness"]["recursion"][3] for c in of_one_seed]).mean
                for of_one_seed in zip(*of.values(), strict=True)
            ]
        )
        for name in ("contraction", "printed")
    )
    return (
        f"Looseness: {'; '.join(told)}. At the end the contraction is {contraction.text()} times (R)'s bound, the "
        f"printed form {printed.text()} times (mean over β, {contraction.seeds} problems)."
    )


def _parts(of: Mapping[float, Cells], cells: Cells) -> str:
    small = min(of)
    chance, drift = (Interval.of([part_share(c, part) for c in of[small]]) for part in ("ln(T/δ)", "drift"))
    steps = max(c["largest step"] for c in cells)
    rest = Interval.of([c["late mean"] / c["stationary"] for c in of[small]])
    return (
        f"Where it comes from: at the end of runs with β = {small:g} the term with ln(T/δ) is a share "
        f"{chance.text()} of (R)'s bound, the drift of x {drift.text()}. The errors themselves are {rest.text()} times "
        "those of SGD with x at rest, as its stationary law has them; the drift of the bound adds the steps of x up as "
        f"if each led away from y. No squared step of x was more than {steps:.2g} of what the "
        "lemma allows."
    )


def _failures(failing: Mapping[str, Any], everything: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    rows = failing["rows"]
    one, five, constant = (rows[f"(R), {name}"] for name in ("impulse in step 1", "impulse in step 5", "constant"))
    path = rows["a path, impulse in step 1"]
    count, runs = sum(count for count, _ in everything["printed"]), everything["printed"][0][1]
    noises = ", ".join(f"{sigma:.2g} ‖û‖ at β = {beta:g}" for beta, sigma in failing["noise by beta"].items())
    met = (
        f"None of the {runs} simulated runs of AdamBO came above it"
        if count == 0
        else f"Of the {runs} simulated runs, {everything['printed'][2][0]} came above it for δ = {DELTAS[2]:g}"
    )
    when = f"from step {path['first']}" if path["first"] else f"not within {failing['steps']} steps"
    return (
        f"The printed form is exceeded by (R) itself: {one['at 100']:.3g} and {five['at 100']:.3g} times at t = 100 "
        f"after one impulse in step 1 and step 5 (K L² = 0.08 β), {constant['largest']:.4g} times for constant ‖û‖ at "
        f"K L² = β/4; a path that obeys the lemma exceeds it {when} at K L² = β/4. {met}: its variance "
        f"term, which is ample, covers the failure unless σ is below {one['noise']:.2g} ‖û_1‖ after an impulse in step "
        f"1 (β = 0.1), and for constant ‖û‖ below {noises} (over {failing['steps']} steps)."
    )
