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
    RATE,
    TERMS,
    DigitsSize,
    above_one_step,
    by_visit,
    columns,
    digits_run,
    digits_size,
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
    steps, size = {K: effort.steps(STEPS, smallest=3 * K) for K in TASKS}, digits_size(effort.share)
    wanted = [(K, seed, steps[K]) for K in TASKS for seed in range(problems)]
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
        stale_heads_figure.draw(figure, of, digits, size)

    return Findings(
        title="Heads of tasks that are visited rarely",
        setting=_setting(list(steps.values()), size),
        sheets=stale_heads_sheets.sheets(of, digits, size),
        conclusions=stale_heads_sheets.conclusions(of, digits, size),
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
    visits = order(tasks, steps, seed)
    record = visited(known, visits)
    before, after, drift = (by_visit(record, each) for each in (record.before, record.after, record.drift))
    bound, estimate = predicted(before, drift)
    above, checked = above_one_step(record, visits)
    late = slice(2 * len(before) // 3, None)
    return {
        "visits": len(before),
        "above one step of the bound": above,
        "checked": checked,
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


def _setting(steps: list[int], size: DigitsSize) -> str:
    lengths = f"{steps[0]}" if len(set(steps)) == 1 else f"{', '.join(map(str, steps[:-1]))} and {steps[-1]}"
    counts = f"{', '.join(map(str, TASKS[:-1]))} or {TASKS[-1]}"
    preset = "its preset" if size.preset == "default" else f"the preset `{size.preset}`"
    return f"""\
K tasks share x, and each has its own y_k that only moves when the task is visited: N steps of gradient descent with
step γ. Between two visits y_k*(x) moves with x, so the error before a visit is

    e_(n+1) = (I − γA_k)^N e_n − (y_k*(x) now − y_k*(x) at the last visit),    |e_(n+1)| ≤ (1 − γμ)^N |e_n| + drift

*Quadratics.* `TaskQuadratics` with K = {counts}, no noise, curvatures from μ = 1 to 4; AdamBO with the step {RATE:g}
and a series of {TERMS} terms visits one task per step, every epoch each once in a new order, {lengths} steps. Errors
are root mean squares over the tasks, averaged over the last third of the visits. The bound unrolls the inequality from
the first visit on, with the drifts of the run; the estimate takes drifts as if they did not know of each other.
"Current" takes the hypergradient before the lower steps, as the paper does, "updated" after them.

*Digits.* The experiment `digits` with one head per task: {size.tasks} tasks, {size.per_step} per step,
{size.visits_in_words}, {preset} but for N and γ ({LOWER_RATES[0]:g} is the preset's). Accuracies are after the
evaluation's {size.fine_tune_steps} steps of fine-tuning, so they judge the encoder; test tasks start from zero heads.
The head error is |y_k − y_k*(x)|/|y_k*(x)| at the end, root mean square over the training tasks; y_k* minimises the
support loss, whose μ is {size.mu:g}."""
