"""`stale-heads`: lower variables of tasks that are visited rarely, against lower steps per visit.

On quadratics with known y_k*(x) the error at a visit, and on few-shot digits the accuracy that comes of it.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from adambo.studies import stale_heads_figure, stale_heads_sheets
from adambo.studies.cells import computed
from adambo.studies.findings import Effort, Findings
from adambo.studies.stale_heads_runs import (
    LOWER_RATES,
    LOWER_STEPS,
    by_visit,
    columns,
    digits_run,
    order,
    predicted,
    visited,
)
from adambo.studies.stale_heads_sheets import DIGITS, TASKS
from adambo.testing import TaskQuadratics

SEEDS = 5
STEPS = 3000
PROBLEMS_PER_SEED = 2  # quadratics cost little: twice as many as runs of digits
DRAWN_VISITS = 30


def study(effort: Effort) -> Findings:
    """The findings; a share of the effort is a share of the steps, and below 0.1 also of the size of `digits`."""
    seeds = effort.seeds or SEEDS
    problems = PROBLEMS_PER_SEED * seeds
    wanted = [(K, seed, effort.steps(STEPS, smallest=3 * K)) for K in TASKS for seed in range(problems)]
    found = computed(quadratic_cell, wanted, effort.processes)
    of = {K: found[k * problems : (k + 1) * problems] for k, K in enumerate(TASKS)}
    settings = [(rate, place, N) for rate, place in DIGITS for N in LOWER_STEPS]
    runs = computed(
        digits_run,
        [(seed, N, rate, place, effort.share) for rate, place, N in settings for seed in range(seeds)],
        effort.processes,
    )
    digits = {setting: runs[k * seeds : (k + 1) * seeds] for k, setting in enumerate(settings)}

    def draw(figure: Figure) -> None:
        stale_heads_figure.draw(figure, of, digits)

    return Findings(
        title="Heads of tasks that are visited rarely",
        setting=SETTING,
        sheets=stale_heads_sheets.sheets(of, digits),
        conclusions=stale_heads_sheets.conclusions(of, digits),
        draw=draw,
        size=(11.0, 6.8),
        numbers={
            "columns": [list(column) for column in columns()],
            "quadratics": {str(K): [_without_curves(cell) for cell in cells] for K, cells in of.items()},
            "digits": {f"lower_lr {r:g}, {p}, {N} lower steps": cells for (r, p, N), cells in digits.items()},
        },
    )


def quadratic_cell(tasks: int, seed: int, steps: int) -> dict[str, Any]:
    """One problem: root mean squares over the tasks, in the last third of the visits, one number per column."""
    known = TaskQuadratics(count=tasks, seed=seed)
    record = visited(known, order(tasks, steps, seed))
    before, after, drift = (by_visit(record, each) for each in (record.before, record.after, record.drift))
    bound, estimate = predicted(before, drift)
    late = slice(2 * len(before) // 3, None)
    return {
        "visits": len(before),
        "above the bound": int((before > bound * (1 + 1e-9)).sum()),
        **{
            name: values[late].mean(0).tolist()
            for name, values in {"before": before, "after": after, "drift": drift, "bound": bound,
                                 "estimate": estimate}.items()
        },
        "gradient": record.gradient[2 * steps // 3 :].mean(0).tolist(),
        "first gradient": float(record.gradient[0, 0]),
        "curves": {"before": before[:DRAWN_VISITS].tolist(), "bound": bound[:DRAWN_VISITS].tolist()},
    }  # fmt: skip


def _without_curves(cell: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cell.items() if name != "curves"}


SETTING = f"""\
K tasks share x, and each has its own y_k that only moves when the task is visited: N steps of gradient descent with
step γ. Between two visits y_k*(x) moves with x, so the error before a visit is

    e_(n+1) = (I − γA_k)^N e_n − (y_k*(x) now − y_k*(x) at the last visit),    |e_(n+1)| ≤ (1 − γμ)^N |e_n| + drift

*Quadratics.* `TaskQuadratics` with K = 5, 20 or 100, no noise, curvatures from μ = 1 to 4; AdamBO with the step 0.01
and a series of 20 terms visits one task per step, every epoch each once in a new order, {STEPS} steps. Errors are root
mean squares over the tasks, averaged over the last third of the visits. The bound unrolls the inequality with the
drifts of the run; the estimate takes drifts as if they did not know of each other. "Current" takes the hypergradient
before the lower steps, as the paper does, "updated" after them.

*Digits.* The experiment `digits` with one head per task: 60 tasks, ten per step, 25 visits to each, its preset but for
N and γ ({LOWER_RATES[0]:g} is the preset's). Accuracies are after the evaluation's 50 steps of fine-tuning, so they
judge the encoder; test tasks start from zero heads. The head error is |y_k − y_k*(x)|/|y_k*(x)| at the end, root mean
square over the training tasks; y_k* minimises the support loss, whose μ is 0.01."""
