"""The study `stale-heads`: its simulation against the library's solver, its bound, and its files."""

from __future__ import annotations

import pytest
import torch

from adambo import AdamBO, Neumann
from adambo.experiments.configure import configure, experiment_named
from adambo.problems.hyper_representation import Heads
from adambo.studies import stale_heads, stale_heads_runs
from adambo.studies.findings import Effort
from adambo.studies.stale_heads_runs import (
    RATE,
    SERIES_STEP,
    TERMS,
    above_one_step,
    by_visit,
    columns,
    digits_run,
    digits_size,
    head_error,
    minimising_heads,
    order,
    predicted,
    visited,
)
from adambo.studies.stale_heads_sheets import left_at_rest
from adambo.testing import TaskQuadratics, flat


def test_the_simulation_is_the_librarys_adambo():
    known, visits = TaskQuadratics(count=3, seed=3), order(3, 7, seed=1)
    record = visited(known, visits)
    for column, (rate, N, place) in enumerate(columns()):
        problem = known.problem()
        solver = AdamBO(
            problem,
            lr=RATE,
            lower_lr=rate,
            lower_steps=N,
            hypergradient_at=place,
            inverse=Neumann(terms=TERMS, step=SERIES_STEP),
        )
        for t, k in enumerate(visits.tolist()):
            x, y = (flat(tensors).detach() for tensors in (problem.x, problem.y))
            error = (known._stacked(y) - known._stacked(known.y_star(x)))[k].norm()
            assert float(error) == pytest.approx(float(record.before[t, column]), abs=1e-12)
            assert float(known.gradient(x).norm()) == pytest.approx(float(record.gradient[t, column]), abs=1e-12)
            solver.step([k], [k])
            after = (known._stacked(flat(problem.y).detach()) - known._stacked(known.y_star(x)))[k].norm()
            assert float(after) == pytest.approx(float(record.after[t, column]), abs=1e-12)
        torch.testing.assert_close(flat(problem.x).detach(), record.x[column], rtol=0, atol=1e-12)


def test_every_epoch_visits_every_task_once():
    visits = order(7, 21, seed=0).view(3, 7)
    assert (visits.sort(dim=1).values == torch.arange(7)).all()
    assert not torch.equal(visits[0], visits[1])


def test_no_error_is_above_its_bound_and_many_steps_leave_the_drift():
    record = visited(TaskQuadratics(count=10, seed=0), order(10, 300, seed=0))
    before, drift = by_visit(record, record.before), by_visit(record, record.drift)
    bound, estimate = predicted(before, drift)
    assert len(before) == 30
    assert (before <= bound * (1 + 1e-12)).all()
    assert (estimate <= bound * (1 + 1e-12)).all()
    many = columns().index((0.1, 50, "current"))
    torch.testing.assert_close(before[1:, many], drift[1:, many], rtol=0.05, atol=0.02)
    # With y_k* at rest, nothing but the contraction is left.
    still, _ = predicted(before, torch.zeros_like(drift))
    assert float(still[4, many]) == pytest.approx(float(before[0, many]) * 0.9**200)


def test_every_visit_but_the_first_is_held_against_one_step_of_the_bound():
    visits = order(4, 30, seed=0)
    record = visited(TaskQuadratics(count=4, seed=0), visits)
    assert above_one_step(record, visits) == (0, (30 - 4) * len(columns()))
    # Without the drift many errors are above, and one visit that is too far off is found.
    above, checked = above_one_step(record._replace(drift=torch.zeros_like(record.drift)), visits)
    assert checked / 5 < above < checked
    far = record.before.clone()
    far[-1, 0] *= 50
    assert above_one_step(record._replace(before=far), visits)[0] == 1


def test_digits_are_as_large_as_the_share_says():
    whole, part, tiny = (digits_size(share) for share in (1.0, 0.5, 0.04))
    assert (whole.tasks, whole.per_step, whole.steps, whole.visits) == (60, 10, 150, 25)
    assert (part.steps, part.visits_in_words) == (75, "12 or 13 visits to each")
    assert (tiny.preset, tiny.tasks, tiny.visits_in_words) == ("tiny", 20, "1 visit to each")
    assert left_at_rest(0.1, 50, whole) == pytest.approx(0.999**1255)
    assert left_at_rest(0.1, 50, tiny) == pytest.approx(0.999**55)


def test_the_mean_by_visit_is_over_the_tasks():
    record = visited(TaskQuadratics(count=3, seed=0), torch.tensor([0, 1, 2, 2, 0]))
    found = by_visit(record, record.before)
    assert found.shape == (1, len(columns()))
    torch.testing.assert_close(found[0], record.before[:3].square().mean(0).sqrt())


def test_the_minimising_heads_have_no_gradient_left():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (3, 4), generator=generator)
    start = Heads(torch.zeros(3, 3, 5, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64))
    heads = Heads(*(part.requires_grad_() for part in minimising_heads(start, features, labels, 0.01)))
    (heads.losses(features, labels).sum() + 0.005 * heads.squared_norm()).backward()
    assert max(float(part.grad.abs().max()) for part in heads) < 1e-6


def test_heads_at_zero_have_the_relative_error_one():
    config = configure("digits", preset="tiny", overrides={"warm_start": 0}).config
    assert head_error(experiment_named("digits").build(config)) == pytest.approx(1.0)


def test_a_run_that_diverges_is_counted(monkeypatch):
    monkeypatch.setattr(stale_heads_runs, "DIGITS_EPOCHS", 1e3)
    assert digits_run(0, 1, 1e30, "current", 0.01) == {"diverged": True}


def test_a_run_of_digits_repeats_itself():
    one, two = (digits_run(1, 2, 0.1, "updated", 0.02) for _ in range(2))
    assert one == two
    assert not one["diverged"]
    assert 0.1 < one["train"] <= 1


def stand_in(seed, lower_steps, lower_rate, place, share):
    """In place of a run of digits, which takes seconds: accuracies that rise with N, and one run that diverges."""
    if (seed, lower_steps, lower_rate) == (0, 50, 0.1):
        return {"diverged": True}
    train = 0.5 + 0.1 * seed / 10 + lower_steps / 200
    return {"diverged": False, "train": train, "test": train - 0.1, "head error": 1 / lower_steps}


def test_the_study_is_the_same_with_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(stale_heads, "digits_run", stand_in)
    one, two = (stale_heads.study(Effort(seeds=2, share=0.04, processes=n)) for n in (1, 2))
    assert one.numbers == two.numbers
    page, figure, numbers = one.write(tmp_path, "stale-heads", "adambo study stale-heads")
    assert figure.stat().st_size > 10_000
    assert numbers.stat().st_size < 300_000
    text = page.read_text()
    assert "plus the drift in 0 of" in text
    assert "in a new order, 120, 120 and 300 steps." in text
    assert "20 tasks, 10 per step,\n1 visit to each, the preset `tiny` but for" in text
    assert "x at rest would leave 0.95 at most" in text
    assert "1 runs of digits diverged" in text
    assert "| 1 of 2 |" in text
    assert "Digits, γ = 0.005, hypergradient current: from N = 1 to N = 50 the test accuracy gains, by 0.245" in text
