"""The runs of the study `stale-heads`: AdamBO on task quadratics, visited one by one, and on few-shot digits.

The quadratics need a million lower steps. N of them on one task are y ← y* + (I − γA)^N (y − y*), so that they are made
at once here, for several γ and N side by side; the tests hold this against `adambo.AdamBO`, to 1e-12.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adambo.errors import NonFiniteError
from adambo.experiments.config import HyperRepresentationConfig
from adambo.experiments.configure import configure, experiment_named
from adambo.experiments.hyper_representation import HyperRepresentation, permutation
from adambo.problems.hyper_representation import Heads
from adambo.testing import TaskQuadratics
from adambo.theory import momentum_weight

LOWER_STEPS = (1, 2, 5, 10, 20, 50)
PLACES = ("current", "updated")
LOWER_RATES = (0.1, 0.005)
RATE, BETA, BETA_SQ, EPS = 0.01, 0.1, 1e-3, 1e-8
TERMS, SERIES_STEP = 20, 0.25  # the largest curvature of a task is 4
MU = 1.0
FOLLOWED = 500  # iterations at most to the minimisers of the heads of `digits`
DIGITS_EPOCHS = 25


class Visits(NamedTuple):
    """Records of all runs, one column per (γ, N, place) in the order of `columns()`; one row per step.

    Attributes:
        before, after: ‖y_k − y_k*(x)‖ of the visited task, before and after its lower steps.
        drift: How far y_k*(x) has moved since the last visit; at the first one, 0.
        gradient: ‖∇Φ(x)‖.
        visit: The number of this visit to that task, 0 at first; one column.
        x: Where the runs end.
    """

    before: Tensor
    after: Tensor
    drift: Tensor
    gradient: Tensor
    visit: Tensor
    x: Tensor


class DigitsSize(NamedTuple):
    """How large the runs of `digits` are.

    Attributes:
        preset: `tiny` for a small share of the effort.
        tasks, per_step: How many there are, and how many a step visits.
        steps: Of a run.
        warm_start: Lower steps of each head before the first.
        mu: Of the support losses.
        fine_tune_steps: Of the evaluation.
    """

    preset: str
    tasks: int
    per_step: int
    steps: int
    warm_start: int
    mu: float
    fine_tune_steps: int

    @property
    def visits(self) -> int:
        """To every task, at least."""
        return self.steps // (self.tasks // self.per_step)

    @property
    def visits_in_words(self) -> str:
        more = "" if self.steps % (self.tasks // self.per_step) == 0 else f" or {self.visits + 1}"
        return f"{self.visits}{more} visit{'s' if more or self.visits != 1 else ''} to each"


def digits_size(share: float) -> DigitsSize:
    """Of runs with this share of the epochs; below 0.1 the preset `tiny` is taken.

    Example:
        >>> digits_size(1.0).visits_in_words
        '25 visits to each'
    """
    preset = "tiny" if share < 0.1 else "default"
    config = configure("digits", preset=preset).config
    assert isinstance(config, HyperRepresentationConfig)
    tasks, per_step = config.tasks, config.tasks_per_step
    steps = max(2, round(DIGITS_EPOCHS * share * (tasks // per_step)))
    return DigitsSize(preset, tasks, per_step, steps, config.warm_start, config.mu, config.fine_tune_steps)


def columns() -> list[tuple[float, int, str]]:
    return [(rate, N, place) for rate in LOWER_RATES for place in PLACES for N in LOWER_STEPS]


def order(tasks: int, steps: int, seed: int) -> Tensor:
    """Which task each step visits: every epoch visits each once, in an order of its own."""
    epochs = -(-steps // tasks)
    return torch.cat([permutation(seed, epoch, tasks) for epoch in range(epochs)])[:steps]


def visited(known: TaskQuadratics, visits: Tensor) -> Visits:
    """AdamBO with one task per step, for every γ and N and both places of the hypergradient."""
    runs, K, dy = len(columns()), known.count, known.dy
    identity = torch.eye(dy, dtype=torch.float64)
    powers = torch.stack([torch.linalg.matrix_power(identity - rate * known.A, N) for rate, N, _ in columns()])
    series = sum((torch.linalg.matrix_power(identity - SERIES_STEP * known.A, q) for q in range(TERMS)), 0 * known.A)
    pull = SERIES_STEP * torch.einsum("kij,kjl,klm->kim", known.B.mT, known.A, series)
    at_updated = torch.tensor([place == "updated" for _, _, place in columns()])[:, None]
    bends, slope = _phi(known)

    x, y = known.x0.repeat(runs, 1), known._stacked(known.y0).repeat(runs, 1, 1)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    last, count = torch.full((runs, K, dy), math.nan, dtype=torch.float64), [0] * K
    steps = len(visits)
    before, after, drift, gradient = (torch.empty(steps, runs, dtype=torch.float64) for _ in range(4))
    record = Visits(before, after, drift, gradient, torch.empty(steps), x)
    for t, k in enumerate(visits.tolist()):
        B, target = known.B[k], x @ known.B[k].T + known.c[k]
        moved = (target - last[:, k]).nan_to_num(0.0)
        error = y[:, k] - target
        after = torch.einsum("rij,rj->ri", powers[:, k], error)
        for name, value in (("before", error), ("after", after), ("drift", moved)):
            getattr(record, name)[t] = value.norm(dim=1)
        record.gradient[t] = (x @ bends + slope).norm(dim=1)
        record.visit[t] = count[k]
        at = target + torch.where(at_updated, after, error)
        h = (x @ B.T - known.e[k]) @ B + (at - known.d[k]) @ pull[k].T
        y[:, k], last[:, k] = target + after, target
        count[k] += 1
        m = torch.lerp(m, h, momentum_weight(BETA, t + 1))
        v = torch.lerp(v, h.square(), momentum_weight(BETA_SQ, t + 1))
        x = x - RATE * m / (v.sqrt() + EPS)
    return record._replace(x=x)


def _phi(known: TaskQuadratics) -> tuple[Tensor, Tensor]:
    """∇Φ(x) = bends x + slope."""
    bends = 2 * torch.einsum("kij,kil->jl", known.B, known.B) / known.count
    return bends, known.gradient(torch.zeros_like(known.x0))


def by_visit(record: Visits, values: Tensor) -> Tensor:
    """Root mean square over the tasks at their n-th visit, for every n that all tasks have seen."""
    number = record.visit.long()
    full = torch.bincount(number)
    last = int((full == full[0]).sum())
    sums = torch.zeros(int(number.max()) + 1, values.shape[1], dtype=torch.float64)
    sums.index_add_(0, number, values.square())
    return (sums[:last] / full[:last, None]).sqrt()


def predicted(before: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """What the errors before each visit can be, and what they would be if drifts did not know of each other.

        p_{n+1} = q p_n + drift_{n+1}          p²_{n+1} = q² p²_n + drift²_{n+1}          q = (1 − γμ)^N

    By the triangle inequality no error is above the first, for ‖(I − γA)^N‖ ≤ q.
    """
    shrink = _shrinking()
    bound, estimate = [before[0]], [before[0]]
    for moved in drift[1:]:
        bound.append(shrink * bound[-1] + moved)
        estimate.append(torch.hypot(shrink * estimate[-1], moved))
    return torch.stack(bound), torch.stack(estimate)


def above_one_step(record: Visits, visits: Tensor) -> tuple[int, int]:
    """How often the error before a visit is above (1 − γμ)^N times that before the task's last visit plus the drift.

    Returns:
        That count, and how many were looked at: every visit of every task but its first, in every column.
    """
    above, checked = 0, 0
    for task in sorted(set(visits.tolist())):
        before, drift = (values[visits == task] for values in (record.before, record.drift))
        above += int((before[1:] > (_shrinking() * before[:-1] + drift[1:]) * (1 + 1e-9)).sum())
        checked += before[1:].numel()
    return above, checked


def _shrinking() -> Tensor:
    """(1 − γμ)^N of every column."""
    return torch.tensor([(1 - rate * MU) ** N for rate, N, _ in columns()], dtype=torch.float64)


def digits_run(seed: int, lower_steps: int, lower_rate: float, place: str, share: float) -> dict[str, Any]:
    """One run of the experiment `digits`: final accuracies, and how far its heads are from where they lead.

    Args:
        seed: Of the run.
        lower_steps, lower_rate, place: Of AdamBO.
        share: Of the epochs, see `digits_size`.
    """
    size = digits_size(share)
    given = {"seed": seed, "settings.lower_steps": lower_steps, "settings.lower_lr": lower_rate}
    config = configure("digits", preset=size.preset, overrides={**given, "settings.hypergradient_at": place}).config
    workload = experiment_named("digits").build(config)
    assert isinstance(workload, HyperRepresentation)
    try:
        workload.begin()
        for number in range(size.steps):
            workload.step(number)
        workload.check()
    except NonFiniteError:
        return {"diverged": True}
    scores = workload.evaluate()
    return {
        "diverged": False,
        "train": scores["train"]["accuracy"],
        "test": scores["test"]["accuracy"],
        "head error": head_error(workload),
    }


def head_error(workload: HyperRepresentation) -> float:
    """‖y_k − y_k*‖/‖y_k*‖, root mean square over the tasks, at the final x."""
    split = workload.splits["train"]
    features, labels, n = workload._features_of(split).double(), split.tasks.labels, split.tasks.support
    start = Heads(*(part.detach().double() for part in workload.heads))
    end = minimising_heads(start, features[:, :n], labels[:, :n], workload.config.mu)
    far, whole = (
        torch.stack([part.flatten(1).square().sum(1) for part in parts]).sum(0)
        for parts in ([a - b for a, b in zip(start, end, strict=True)], end)
    )
    return float((far / whole).mean().sqrt())


def minimising_heads(start: Heads, features: Tensor, labels: Tensor, mu: float) -> Heads:
    """The minimisers of the support losses: all tasks at once, for their sum falls apart."""
    heads = Heads(*(part.clone().requires_grad_() for part in start))
    solver = torch.optim.LBFGS(heads, max_iter=FOLLOWED, tolerance_grad=1e-7, tolerance_change=0.0,
                               line_search_fn="strong_wolfe")  # fmt: skip

    def loss() -> Tensor:
        solver.zero_grad()
        value = heads.losses(features, labels).sum() + mu / 2 * heads.squared_norm()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return Heads(*(part.detach() for part in heads))
