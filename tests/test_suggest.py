"""Suggested settings, against a search, against invariances, and against what must stay as it was."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import adambo
from adambo import AdamBO, CurvatureError, Draw, EncoderHeadProblem, Ledger, Needs, Problem, SampleError, SettingError
from adambo.diagnostics import Suggestion, suggest
from adambo.diagnostics.rates import Rates
from adambo.inverse import Neumann
from adambo.testing import Quadratic, StochasticQuadratic, TaskQuadratics, flat

STEPS = 60
FEW = Needs(upper=1, lower=1, cross=1, hessian=1)


def noisy(kappa, seed=0):
    return StochasticQuadratic(dx=3, dy=4, seed=seed, mu=1.0, L=float(kappa), samples=6, noise=0.3)


def draws_of(known, seed=0, needs=FEW):
    return adambo.draws(known.batch, known.batch, needs, seed=seed)


def gap_closed(known, settings, seed):
    """1 − (Φ(x_T) − Φ*) / (Φ(x_0) − Φ*), by the closed forms of the problem."""
    problem = known.problem()
    solver = AdamBO(problem, **settings)
    stream = draws_of(known, seed, solver.needs)
    for _ in range(STEPS):
        solver.step(next(stream))
    least = known.phi(known.optimum)
    return float(1 - (known.phi(flat(problem.x).detach()) - least) / (known.phi(known.x0) - least))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kappa", [1, 10, 100])
def test_as_good_as_a_random_search_on_quadratics(kappa):
    known, chance = noisy(kappa), random.Random(kappa)
    found = suggest(known.problem(), draws_of(known), steps=STEPS)
    best = -math.inf
    for _ in range(6):
        settings = {
            "lr": 10 ** chance.uniform(-3, 0.3),
            "lower_lr": 10 ** chance.uniform(-1, 0.3) / kappa,
            "lower_steps": chance.choice([1, 2, 4]),
            "inverse": Neumann(terms=chance.choice([1, 2, 4, 8, 16])),
        }
        closed = gap_closed(known, settings, seed=5)
        best = max(best, closed if math.isfinite(closed) else best)
    assert gap_closed(known, found.settings(), seed=5) >= 0.95 * best > 0.5


def test_losses_a_hundred_times_larger_give_the_same_run():
    known = noisy(10)
    small, large = known.problem(), known.problem()
    upper, lower = large.upper, large.lower
    large.upper, large.lower = (lambda b: 100 * upper(b)), (lambda b: 100 * lower(b))
    one, hundred = (suggest(problem, draws_of(known), steps=STEPS) for problem in (small, large))
    assert hundred.lower_lr == pytest.approx(one.lower_lr / 100)
    assert hundred.step == pytest.approx(one.step / 100)
    assert (hundred.lr, hundred.terms, hundred.lower_steps) == (one.lr, one.terms, one.lower_steps)
    for problem, found in ((small, one), (large, hundred)):
        solver = AdamBO(problem, **found.settings())
        stream = draws_of(known, 1, solver.needs)
        for _ in range(20):
            solver.step(next(stream))
    assert torch.allclose(flat(small.x), flat(large.x), rtol=1e-5)
    assert torch.allclose(flat(small.y), flat(large.y), rtol=1e-5)


def tried(found):
    """The lower steps that were tried: those suggested, or those that were not worth it."""
    first = found.reasons["lower_steps"].split()[0]
    return int(first) if first.isdigit() else found.lower_steps


@pytest.mark.parametrize("kappa", [1, 4, 40])
def test_what_a_series_misses_is_that_of_the_closed_form(kappa):
    known = Quadratic(mu=1.0, L=float(kappa))
    found = suggest(known.problem(), [Draw((0,), (0,))], steps=20, trial_steps=1)
    assert found.lower_lr == found.step == pytest.approx(1 / (1.25 * kappa), rel=1e-3)
    v = known.y_star(known.x0) - known.d  # ∇y f at y*(x); ∇²xy g = −BᵀA
    for length, missing in found.series.items():
        rest = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - found.step * known.A, length) @ v
        assert missing == pytest.approx(float((known.B.T @ rest).norm() / (known.B.T @ v).norm()), abs=0.02)


def test_terms_are_cut_where_they_are_too_many():
    known = StochasticQuadratic(dx=5, dy=6, seed=2, mu=1.0, L=100.0, samples=8)
    free = suggest(known.problem(), draws_of(known, 2), steps=STEPS, most=16)
    assert free.terms == 16
    assert "CUT" in free.reasons["terms"]
    assert f"{free.constants.l_g1.value / free.constants.mu.value:.3g}" in free.reasons["terms"]
    assert suggest(known.problem(), draws_of(known, 2), steps=20, trial_steps=1, most=2).terms <= 2


def test_a_short_run_needs_more_lower_steps_than_a_long_one():
    problem, draws = Quadratic(mu=1.0, L=20.0).problem(), [Draw((0,), (0,))]
    short, long = (suggest(problem, draws, steps=steps, trial_steps=2) for steps in (20, 4000))
    assert tried(short) > tried(long) == 1


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_tasks_that_are_visited_rarely_get_more_lower_steps(form):
    known = TaskQuadratics(count=12)
    problem = getattr(known, form)()
    rare = [Draw(([k],), ([k],)) for k in range(12)]
    often = [Draw((list(range(k, k + 6)),), (list(range(k, k + 6)),)) for k in (0, 6)]
    few, many = (suggest(problem, draws, steps=STEPS, trial_steps=k) for draws, k in ((often, 20), (rare, 1)))
    assert tried(many) > tried(few)
    solver = AdamBO(problem, **few.settings())
    for k in range(STEPS):
        solver.step(often[k % 2].upper[0], often[k % 2].lower[0])
    least = float(known.phi(known.optimum))
    assert float(known.phi(flat(problem.x).detach())) - least < 0.05 * (float(known.phi(known.x0)) - least)


def network():
    """An encoder with dropout and running statistics, and a head."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2))
    head = nn.Linear(6, 3)
    inputs, labels = torch.randn(40, 4), torch.randint(3, (40,))

    def loss(features, rows):
        return cross_entropy(head(features), labels[rows])

    problem = EncoderHeadProblem(
        lambda rows: encoder(inputs[rows]),
        loss,
        lambda features, rows: loss(features, rows) + 0.05 * sum(p.square().sum() for p in head.parameters()),
        encoder,
        head,
    )
    draws = [Draw((torch.arange(k, k + 16),), (torch.arange(k + 8, k + 24),)) for k in range(0, 16, 2)]
    return problem, draws


def test_nothing_is_changed_and_everything_is_counted():
    problem, draws = network()
    problem.x[0].grad = torch.ones_like(problem.x[0])
    kept = [t.detach().clone() for t in (*problem.x, *problem.y, *problem.buffers, problem.x[0].grad)]
    grads = [p.grad for p in (*problem.x, *problem.y)]
    state, mode, ledger = torch.get_rng_state(), problem.modules[0].training, Ledger(grad_x_f=1000)
    first = suggest(problem, draws, steps=40, ledger=ledger)
    now = (*problem.x, *problem.y, *problem.buffers, problem.x[0].grad)
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    assert all(a is b for a, b in zip(grads, [p.grad for p in (*problem.x, *problem.y)], strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert problem.modules[0].training == mode
    rates = len(first.losses) - 1
    assert ledger.grad_x_f >= 1000 + rates * first.trial_steps * 0.5
    assert ledger.hessian_vector >= 8 * 63
    assert ledger.curvature_vector > 0
    assert ledger.samples > 0
    assert suggest(problem, draws, steps=40) == first


def test_a_judge_decides_instead_of_the_upper_loss():
    known = Quadratic()
    problem, goal = known.problem(), known.x0 - 0.01 * known.gradient(known.x0).sign()
    found = suggest(problem, [Draw((0,), (0,))], steps=STEPS, judge=lambda: mse_loss(flat(problem.x), goal).item())
    free = suggest(problem, [Draw((0,), (0,))], steps=STEPS)
    assert found.lr < free.lr
    assert found.losses[0.0] == pytest.approx(1e-4)
    assert "the judge's number" in found.reasons["lr"]


def test_reasons_name_the_numbers_and_the_table_has_them_all():
    found = suggest(noisy(10).problem(), draws_of(noisy(10)), steps=STEPS)
    assert isinstance(found, Suggestion)
    assert set(found.reasons) == {"lr", "lower_lr", "step", "terms", "lower_steps"}
    assert f"{found.lr:.2g}" in found.reasons["lr"]
    assert f"{found.losses[0.0]:.4g}" in found.reasons["lr"]
    assert f"{found.constants.l_g1.value:.4g}" in found.reasons["lower_lr"]
    assert all(reason in str(found) for reason in found.reasons.values())
    assert found.losses[found.lr] < found.losses[0.0]


def test_where_nothing_helps_the_reason_says_so():
    y, x = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    at_rest = Problem(lambda b: (y - 0.0).square().sum() + x.square().sum(), lambda b: (y - x).square().sum(), x, y)
    assert "NOTHING HELPED" in suggest(at_rest, [Draw((0,), (0,))], steps=STEPS).reasons["lr"]


def test_a_lower_loss_that_is_not_convex_is_told():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    saddle = Problem(lambda b: (y - x).square().sum(), lambda b: y[0] ** 2 - 0.1 * y[1] ** 2 + (x * y).sum(), x, y)
    assert "NOT CONVEX" in suggest(saddle, [Draw((0,), (0,))], steps=20).reasons["lower_lr"]


def test_rates_go_on_beyond_the_first_until_the_best_lies_between():
    def loss(best):
        return lambda rate: 30.0 if not rate else abs(math.log10(rate) - best)

    assert Rates(loss(-7)).best == pytest.approx(1e-7)
    assert Rates(loss(3)).best == pytest.approx(1e3)
    flat_above = Rates(lambda rate: 1.0 if not rate else max(0.0, -math.log10(rate) / 10 - 0.2))
    assert flat_above.chosen == pytest.approx(10**-2.5)  # 0.95 of the gain, and not a larger one


def test_a_rate_that_fails_is_not_taken():
    assert Rates(lambda rate: 1.0 if not rate else math.inf if rate > 0.005 else 0.1 / rate).chosen < 0.005


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"problem": 3}, SettingError, "takes a problem"),
        ({"draws": 3}, SampleError, "several draws"),
        ({"draws": []}, SampleError, "no draw"),
        ({"draws": [Draw(upper=(0,))]}, SampleError, "a lower batch"),
        ({"draws": [0]}, SampleError, "in every draw"),
        ({"steps": 0}, SettingError, "steps=0"),
        ({"trial_steps": 1.5}, SettingError, "trial_steps=1.5"),
        ({"most": 0}, SettingError, "most=0"),
        ({"judge": 1}, SettingError, "judge=1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(change, error, words):
    arguments = {"problem": Quadratic().problem(), "draws": [Draw((0,), (0,))]} | change
    with pytest.raises(error, match=words):
        suggest(arguments.pop("problem"), arguments.pop("draws"), **arguments)


def test_a_linear_lower_loss_is_refused():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    linear = Problem(lambda b: (y - x).square().sum(), lambda b: (y * x).sum() + 0.0 * y.square().sum(), x, y)
    with pytest.raises(CurvatureError, match="linear"):
        suggest(linear, [Draw((0,), (0,))])
