"""`lower-error`: the bounds of the randomness-decoupling lemma against simulated errors of the lower level.

How loose they are by time and by β, how many runs exceed them, and the sequences for which the printed form fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from adambo.sources import key_of
from adambo.studies import lower_error_figure, lower_error_sheets
from adambo.studies.cells import computed
from adambo.studies.findings import Effort, Findings
from adambo.studies.lower_error_runs import FIRST_ERROR, SIGMA, Setting, adversary, coupled, setting, simulated
from adambo.studies.lower_error_sheets import BETAS, BOUNDS, DELTAS, LENGTH, MOMENTS_IN_TIME, RUNS, lengths
from adambo.theory import (
    LowerLevel,
    contraction_error_bound,
    printed_error_bound,
    recursion_error_bound,
    step_bound,
    uniform_error_bound,
    unrolled_recursion,
)

SEEDS = 10
DRAWN = 24  # times at which curves are drawn
DELTA = DELTAS[2]
OTHER_BETAS = (0.05, 0.02)  # of the counter-example with constant ‖û‖


def study(effort: Effort) -> Findings:
    """The findings; a share of the effort is a share of the runs' length."""
    seeds = effort.seeds or SEEDS
    cells = [(beta, seed, effort.steps(round(LENGTH / beta), smallest=8)) for beta in BETAS for seed in range(seeds)]
    found = computed(problem_cell, cells, effort.processes)
    of = {beta: found[k * seeds : (k + 1) * seeds] for k, beta in enumerate(BETAS)}
    failing = counter_examples(effort.steps(5000, smallest=400))

    def draw(figure: Figure) -> None:
        lower_error_figure.draw(figure, of, failing)

    return Findings(
        title="The lower-level error against its bounds",
        setting=_setting(of),
        sheets=lower_error_sheets.sheets(of, failing),
        conclusions=lower_error_sheets.conclusions(of, failing),
        draw=draw,
        size=(11.0, 6.4),
        numbers={
            "beta": {f"{beta:g}": cells for beta, cells in of.items()},
            "counter-examples": failing["rows"],
            "fails up to sigma, constant": {f"{beta:g}": sigma for beta, sigma in failing["noise by beta"].items()},
        },
    )


def problem_cell(beta: float, seed: int, steps: int) -> dict[str, Any]:
    """Quantiles of V_t over the runs of one problem, the bounds at those times, and how many runs exceed them."""
    given = setting(seed, beta)
    record = simulated(given, RUNS, steps, key_of(seed, f"{beta:g}"))
    bounds = bounds_of(given, record.u_norms)
    times = sorted({round((steps - 1) ** (k / (DRAWN - 1))) for k in range(DRAWN)} | {steps - 1})  # counted from 0
    named = [min(max(1, round(m / LENGTH * (steps - 1))), steps - 1) for m in MOMENTS_IN_TIME]
    late = slice(named[2], None)
    return {
        "steps": steps,
        "constants": {"l_g1": given.level.l_g1, "eta": given.level.eta, "L": given.L},
        "times": [t + 1 for t in times],
        "quantiles": {f"{q:g}": _quantile(record.errors[:, times], q) for q in (0.5, 0.9, 0.99)},
        "bounds": {name: bound[:, times].median(0).values.tolist() for name, bound in bounds.items()},
        "looseness": {
            name: (bound[:, named].median(0).values / _quantiles(record.errors[:, named], 1 - DELTA)).tolist()
            for name, bound in bounds.items()
        },
        "looseness of all late steps": {
            name: 1.0 / float(_quantiles((record.errors / bound)[:, late].amax(1), 1 - DELTA))
            for name, bound in bounds.items()
        },
        "exceeding": {name: exceeding(given.level, record.errors, bound) for name, bound in bounds.items()},
        "parts at the end": parts(given, record.u_norms),
        "late mean": float(record.errors[:, late].mean()),
        "stationary": stationary(given),
        "largest step": float((record.squared_steps / allowed_steps(given, record.u_norms, record.errors)).max()),
    }


def bounds_of(given: Setting, u_norms: Tensor) -> dict[str, Tensor]:
    """The bounds of V_1 … V_T for every run, with probability 1 − `DELTA`."""
    smooth = torch.full_like(u_norms, given.L)
    record = (given.level, FIRST_ERROR, u_norms, smooth, DELTA)
    printed = printed_error_bound(*record)
    everywhere = uniform_error_bound(
        given.level, FIRST_ERROR, L=given.L, C_u0=float(u_norms.max()), steps=u_norms.shape[1] + 1, delta=4 * DELTA
    )
    found = (
        recursion_error_bound(*record, L=given.L),
        contraction_error_bound(*record, L=given.L),
        torch.full_like(printed, everywhere),
        printed,
    )
    return dict(zip(BOUNDS, found, strict=True))


def exceeding(level: LowerLevel, errors: Tensor, bound: Tensor) -> list[int]:
    """How many runs exceed a bound at any time, for each δ: it enters as (8γσ²/μ) ln(1/δ) alone."""
    shifts = [level.variance * float(torch.log(torch.tensor(DELTA / delta, dtype=torch.float64))) for delta in DELTAS]
    return [int((errors > bound + shift).any(1).sum()) for shift in shifts]


def parts(given: Setting, u_norms: Tensor) -> dict[str, float]:
    """What the recursion's bound is made of at the last step, in the mean over the runs."""
    level, smooth = given.level, torch.full_like(u_norms, given.L)
    quiet = replace(level, sigma_g1=0.0)
    none = torch.zeros_like(u_norms[:1])
    chance = recursion_error_bound(level, 0.0, none, smooth[:1], DELTA, L=given.L)[0, 0]
    return {
        "start": float(unrolled_recursion(quiet, FIRST_ERROR, none, smooth[:1])[0, -1]),
        "variance": float(unrolled_recursion(level, 0.0, none, smooth[:1])[0, -1]),
        "drift": float(unrolled_recursion(quiet, 0.0, u_norms, smooth)[:, -1].mean()),
        "ln(T/δ)": float(chance),
    }


def stationary(given: Setting) -> float:
    """E V_∞ if x rested: Σ over the eigenvalues a of A of γσ²/(4a(2 − γa))."""
    gamma, a = given.level.gamma, torch.linalg.eigvalsh(given.known.A)
    return float((gamma * SIGMA**2 / (4 * a * (2 - gamma * a))).sum())


def allowed_steps(given: Setting, u_norms: Tensor, errors: Tensor) -> Tensor:
    """The squared steps that the lemma assumes."""
    level = given.level
    smooth = torch.full_like(u_norms, given.L)
    return step_bound(u_norms, smooth, errors[:, :-1], beta=level.beta, eta=level.eta, lam=level.lam)


def counter_examples(steps: int) -> dict[str, Any]:
    """Sequences of ‖û_t‖ for which (R) with equality, or a path that obeys it, exceeds the printed bound; β = 0.1."""
    ones = torch.ones(steps, dtype=torch.float64)
    cases: dict[str, tuple[float, Tensor, bool]] = {
        "(R), impulse in step 1": (0.08, _impulse(steps, 1), False),
        "(R), impulse in step 5": (0.08, _impulse(steps, 5), False),
        "(R), constant": (0.25, ones, False),
        "a path, impulse in step 1": (0.25, _impulse(steps, 1), True),
        "a path, impulse in step 1, coupling 1": (1.0, _impulse(steps, 1), True),
        "a path, impulse in step 1, coupling 64": (64.0, _impulse(steps, 1), True),
    }
    curves, rows = {}, {}
    for name, (share, u, is_path) in cases.items():
        level = coupled(share)
        V = adversary(level, steps) if is_path else unrolled_recursion(level, 0.0, u, ones)
        ratios = V[1:] / printed_error_bound(level, 0.0, u, ones, DELTA)[1:]
        finite = ratios[ratios.isfinite()]
        above = (ratios > 1 + 1e-9).nonzero()
        curves[name] = ratios
        rows[name] = {
            "coupling": share,
            "first": int(above[0]) + 2 if len(above) else None,
            "at 100": float(ratios[98]),
            "largest": float(finite.max()),
            "noise": None if is_path else largest_noise(share, u),
        }
    by_beta = {0.1: rows["(R), constant"]["noise"]} | {beta: largest_noise(0.25, ones, beta) for beta in OTHER_BETAS}
    return {"curves": curves, "rows": rows, "steps": steps, "noise by beta": by_beta}


def largest_noise(share: float, u: Tensor, beta: float = 0.1) -> float:
    """The σ_{g,1} up to which (R) with equality exceeds the printed bound somewhere, by bisection; 0 if it is tiny.

    Both are linear in σ² and ‖û‖² where V_1 = 0, so that it is proportional to ‖û‖.
    """
    low, high = 1e-200, 10.0
    ones = torch.ones_like(u)

    def fails(sigma: float) -> bool:
        level = coupled(share, beta, sigma_g1=sigma)
        return bool(
            (unrolled_recursion(level, 0.0, u, ones) > printed_error_bound(level, 0.0, u, ones, DELTA) * (1 + 1e-9))
            .any()
        )  # fmt: skip

    if not fails(low):
        return 0.0
    low = 1e-6 if fails(1e-6) else low
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fails(middle) else (low, middle)
    return low


def _impulse(steps: int, i: int) -> Tensor:
    u = torch.zeros(steps, dtype=torch.float64)
    u[i - 1] = 1.0
    return u


def _quantiles(values: Tensor, q: float) -> Tensor:
    return torch.quantile(values, q, dim=0)


def _quantile(values: Tensor, q: float) -> list[float]:
    found: list[float] = _quantiles(values, q).tolist()
    return found


def _setting(of: Mapping[float, lower_error_sheets.Cells]) -> str:
    return f"""\
AdamBO on quadratic problems with x of dimension 3 and y of dimension 2, under the conditions of the theorem: λ = 1,
γ = 2β/μ, Gaussian noise of ∇y G with Pr(‖noise‖ ≥ s) = exp(−2s²/σ²), σ = {SIGMA:g}, and the largest η for which all
bounds are proved, K L² = β/4. The lower Hessian has eigenvalues 1 and 1.5, ‖dy*/dx‖ = 1, the series ten terms without
noise; the upper gradients are noisy. V_t = ‖y_t − y*(x_t)‖² starts from 1; runs last {lengths(of)} steps,
{RUNS} runs for every problem and β. The smoothness of these problems is bounded (L_1 = 0), so that L̂_t is one number,
the Lipschitz constant of h in y, and the lemma's ball is the whole space. û_t, which the bounds take from the run, is
recorded beside the momentum with the same draws at y*(x_t).

The bounds: (R) unrolled (`theory.recursion_error_bound`), its contraction (`contraction_error_bound`), one number for
all times (`uniform_error_bound`, with the largest ‖û_t‖ of all runs in place of C_u0), and the closed form as printed
(`printed_error_bound`). Each holds for all t ≤ T at once with probability 1 − δ, if it holds. Looseness is the median
bound over the (1 − δ)-quantile of V_t, both over runs, at one time; δ = {DELTA:g}."""
