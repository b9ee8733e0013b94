"""The truncated Neumann series: expectations by enumeration, proved bounds, and the choice of its step."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

import adambo
from adambo import AdamBO, CurvatureError, Draw, LinearSystem, Neumann, Problem, SettingError, draws
from adambo.testing import Quadratic, StochasticQuadratic, TaskQuadratics, divided, flat, normal, spd

UNBIASED = ("independent", "chained", "prefix", "random")
small = settings(max_examples=40, deadline=None, database=None, derandomize=True)


def problem_of(*hessians):
    """A lower loss whose Hessian on batch i is the i-th matrix."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(len(hessians[0]), dtype=torch.float64, requires_grad=True)
    return Problem(
        upper=lambda b: y.sum() + x.sum(), lower=lambda i: y @ hessians[i] @ y / 2 - x.sum() * y.sum(), x=x, y=y
    )


def apply(inverse, problem, batches, v):
    point = problem.at(Draw(upper=(0,), cross=(0,), hessian=tuple(batches)))
    return flat(inverse.solve(point, divided(v, [p.shape for p in problem.y])))


def outcomes(problem, samples, v, *, terms, step, estimator):
    """What the estimator gives for every combination of samples, all equally likely."""
    inverse = Neumann(terms=terms, step=step, samples=estimator)
    levels = range(terms) if estimator == "random" else [inverse.needs.hessian]
    return torch.stack(
        [
            apply(inverse, problem, batches[:level], v)
            for level in levels
            for batches in product(range(samples), repeat=inverse.needs.hessian)
        ]
    )


def truncated(H, v, terms, step):
    """s Σ_{q<Q} (I − sH)^q v, with matrix powers."""
    A = torch.eye(len(H), dtype=torch.float64) - step * H
    return step * sum(torch.linalg.matrix_power(A, q) @ v for q in range(terms))


# Expectation and spread -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", UNBIASED)
def test_the_mean_over_all_samples_is_the_truncated_series(estimator):
    known = StochasticQuadratic(dx=2, dy=3, samples=3)
    v = normal(3, generator=torch.Generator().manual_seed(1))
    found = outcomes(known.problem(), 3, v, terms=3, step=0.2, estimator=estimator)
    torch.testing.assert_close(found.mean(dim=0), truncated(known.A, v, 3, 0.2), rtol=0, atol=1e-13)
    assert found.std(dim=0).max() > 1e-3


def test_one_shared_sample_is_biased():
    known = StochasticQuadratic(dx=2, dy=3, samples=3)
    v = normal(3, generator=torch.Generator().manual_seed(1))
    found = outcomes(known.problem(), 3, v, terms=3, step=0.2, estimator="shared")
    mean_of_powers = sum(truncated(A, v, 3, 0.2) for A in known.A_i) / 3
    torch.testing.assert_close(found.mean(dim=0), mean_of_powers, rtol=0, atol=1e-13)
    assert (found.mean(dim=0) - truncated(known.A, v, 3, 0.2)).norm() > 1e-4


@pytest.mark.parametrize(
    ("estimator", "mean", "deviation"),
    [
        ("independent", -0.421875, 0.0368),
        ("chained", -0.421875, 0.0543),
        ("random", -0.421875, 0.3105),
        ("shared", -0.430664, 0.0778),
    ],
)
def test_mean_and_spread_are_those_of_the_specification(estimator, mean, deviation):
    problem = problem_of(*(torch.tensor([[a]], dtype=torch.float64) for a in (1.5, 2.5)))
    v = torch.tensor([-0.9], dtype=torch.float64)
    found = outcomes(problem, 2, v, terms=4, step=0.25, estimator=estimator)
    assert abs(float(found.mean()) - mean) < 5e-7
    assert abs(float(found.std(correction=0)) - deviation) < 5e-5


@pytest.mark.parametrize("estimator", UNBIASED)
def test_the_stream_draws_samples_whose_mean_is_the_truncated_series(estimator):
    known = StochasticQuadratic(dx=1, dy=2, samples=2)
    solver = AdamBO(known.problem(), inverse=Neumann(terms=3, step=0.2, samples=estimator))
    v = torch.ones(2, dtype=torch.float64)
    inverse, found = solver.inverse, []

    stream = draws(known.batch, known.batch, solver.needs, seed=0)
    for _ in range(300):
        draw = next(stream).trimmed(solver.needs, "the test")
        found.append(apply(inverse, solver.problem, draw.hessian, v))
    found = torch.stack(found)
    error = found.mean(dim=0) - truncated(known.A, v, 3, 0.2)
    assert (error.abs() <= 5 * found.std(dim=0) / 300**0.5).all()


# Proved bounds --------------------------------------------------------------------------------------------------------


@small
@given(d=integers(1, 8), L=floats(1.0, 50.0), terms=integers(1, 40), seed=integers(0, 2**31 - 1))
def test_the_error_contracts_at_the_proved_rate(d, L, terms, seed):
    generator = torch.Generator().manual_seed(seed)
    H, b = spd(d, 1.0, L, generator), normal(d, generator=generator)
    z = apply(Neumann(terms=terms, step=1 / L, samples="shared"), problem_of(H), (0,), b)
    error = (z - torch.linalg.solve(H, b)).norm()
    assert error <= (1 - 1 / L) ** terms * b.norm() + 1e-9


@small
@given(H=floats(0.5, 4.0), terms=integers(1, 12))
def test_the_bound_is_attained_in_one_dimension(H, terms):
    L, one = 4.0, torch.ones(1, dtype=torch.float64)
    z = apply(Neumann(terms=terms, step=1 / L, samples="shared"), problem_of(H * one.diag()), (0,), one)
    assert abs(abs(float(z) - 1 / H) - (1 - H / L) ** terms / H) < 1e-12


@pytest.mark.parametrize("estimator", [*UNBIASED, "shared"])
def test_no_draw_exceeds_the_bound_on_the_estimator(estimator):
    known = StochasticQuadratic(dx=1, dy=2, samples=2, mu=1.0, L=3.0, noise=0.5)
    eigenvalues = torch.linalg.eigvalsh(known.A_i)
    mu, L, terms = float(eigenvalues.min()), float(eigenvalues.max()), 4
    columns = [
        outcomes(known.problem(), 2, unit, terms=terms, step=1 / L, estimator=estimator)
        for unit in torch.eye(2, dtype=torch.float64)
    ]
    norms = torch.linalg.matrix_norm(torch.stack(columns, dim=2), ord=2)
    bound = terms / L if estimator == "random" else sum((1 - mu / L) ** q for q in range(terms)) / L
    assert norms.max() <= bound + 1e-12
    if estimator != "random":
        assert bound <= 1 / mu


# How many samples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "factors"), [("independent", 6), ("chained", 3), ("prefix", 3), ("random", 3), ("shared", 1)]
)
def test_four_terms_need_so_many_hessian_batches(estimator, factors):
    assert Neumann(terms=4, samples=estimator).needs.hessian == factors
    assert Neumann(terms=1, samples=estimator).needs.hessian == 0
    assert Neumann(products=4, samples=estimator).terms == 5


@pytest.mark.parametrize(
    "arguments",
    [{"terms": 3, "products": 3}, {"terms": 0}, {"step": -1.0}, {"step": float("nan")}, {"samples": "fresh"}],
)
def test_settings_that_mean_nothing_are_refused(arguments):
    with pytest.raises(SettingError):
        Neumann(**arguments)


# The step -------------------------------------------------------------------------------------------------------------


def test_a_step_that_diverges_is_refused_with_both_numbers():
    known = Quadratic(L=4.0)
    solver = AdamBO(known.problem(), inverse=Neumann(step=0.6))
    before = solver.state_dict()
    with pytest.raises(CurvatureError, match=r"step=0\.6\b.*2/λ_max = 0\.5\d*"):
        solver.step(0, 0)
    after = solver.state_dict()
    assert all(torch.equal(p, q) for name in "xy" for p, q in zip(after[name], before[name], strict=True))
    assert after["steps"] == 0


def test_a_step_just_below_the_limit_is_taken():
    solver = AdamBO(Quadratic(L=4.0).problem(), inverse=Neumann(step=0.49))
    solver.step(0, 0)
    assert solver.inverse.step == 0.49


@small
@given(d=integers(1, 8), L=floats(1.0, 50.0), seed=integers(0, 2**31 - 1))
def test_the_automatic_step_always_converges(d, L, seed):
    problem = problem_of(spd(d, 1.0, L, torch.Generator().manual_seed(seed)))
    inverse = Neumann()
    inverse.prepare(problem.at(Draw((0,), (0,), (0,), (0,))), 0)
    assert 1 / (1.25 * L) - 1e-12 <= inverse.step < 2 / L


@pytest.mark.parametrize("seed", range(5))
def test_the_automatic_step_is_the_stated_fraction_of_the_curvature(seed):
    known = Quadratic(dx=1, dy=5, L=7.0, seed=seed)
    solver = AdamBO(known.problem())
    for _ in range(5):
        solver.step(0, 0)
    assert 1 / (1.25 * 7.0) - 1e-12 <= solver.inverse.step <= 1.05 / (1.25 * 7.0)


def test_the_automatic_step_serves_the_stiffest_task():
    known = TaskQuadratics(count=3)
    solver = AdamBO(known.problem())
    solver.step([0, 1, 2], [0, 1, 2])
    largest = float(torch.linalg.eigvalsh(known.A).max())
    assert 1 / (1.25 * largest) - 1e-12 <= solver.inverse.step <= 1.05 / (1.25 * largest)


def test_the_automatic_step_is_not_known_before_the_first_step():
    with pytest.raises(CurvatureError, match="first step"):
        _ = Neumann().step


def test_a_lower_loss_without_curvature_is_refused():
    with pytest.raises(CurvatureError, match="regulariser"):
        AdamBO(problem_of(torch.zeros(2, 2, dtype=torch.float64))).step(0, 0)


def test_curvature_is_refreshed_on_the_documented_steps_and_counted_apart():
    solver = AdamBO(problem_of(torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))), lr=1e-3, lower_lr=0.1)
    spent, total = {}, 0
    for step in range(260):
        solver.step(0, 0)
        if solver.ledger.curvature_vector != total:
            spent[step] = solver.ledger.curvature_vector - total
            total = solver.ledger.curvature_vector
    assert spent == {0: 20, 1: 3, 2: 3, 4: 3, 8: 3, 16: 3, 32: 3, 64: 3, 128: 3, 256: 3}
    assert solver.ledger.hessian_vector == 2 * 260
    assert solver.ledger.samples == 4 * 260, "upper, lower, cross and hessian; none for the curvature"


def test_only_the_series_asks_for_curvature():
    solver = AdamBO(Quadratic().problem(), inverse=LinearSystem(lr=0.1))
    solver.step(0, 0)
    assert solver.ledger.curvature_vector == 0


@pytest.mark.parametrize("estimator", ["chained", "random"])
def test_the_random_numbers_of_the_program_stay_as_they_were(estimator):
    torch.manual_seed(5)
    random.seed(5)
    states = torch.get_rng_state(), random.getstate()
    solver = AdamBO(Quadratic().problem(), inverse=Neumann(samples=estimator))
    for _ in range(3):
        solver.step(0, 0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def curvature_problem(curvature):
    x, y = torch.zeros(1, dtype=torch.double), torch.zeros(1, dtype=torch.double)
    x.requires_grad_(), y.requires_grad_()
    return adambo.Problem(
        upper=lambda b: (y - 1).square().sum(), lower=lambda b: 0.5 * curvature[0] * (y - x).square().sum(), x=x, y=y
    )


def test_a_curvature_that_jumps_between_two_refreshes_is_noticed_and_the_step_follows():
    curvature = [1.0]
    solver = adambo.AdamBO(curvature_problem(curvature), lr=0.0, lower_lr=0.0, inverse=adambo.Neumann(terms=30))
    for _ in range(5):
        solver.step(0, 0)
    curvature[0] = 30.0
    info = solver.step(0, 0)  # step 5: no refresh is due
    assert float(info.z[0]) == pytest.approx(-2.0 / 30.0, rel=1e-3)


def test_an_explicit_step_is_refused_when_the_curvature_outgrows_it():
    curvature = [1.0]
    solver = adambo.AdamBO(
        curvature_problem(curvature), lr=0.0, lower_lr=0.0, inverse=adambo.Neumann(terms=4, step=0.5)
    )
    for _ in range(5):
        solver.step(0, 0)
    curvature[0] = 30.0
    with pytest.raises(adambo.CurvatureError, match=r"step=0\.5.*0\.0666667"):
        solver.step(0, 0)
    assert solver.steps == 5


def test_a_series_that_grows_along_negative_curvature_is_warned_of():
    H = torch.diag(torch.tensor([-0.5, 1.0, 2.0, 3.0], dtype=torch.double))
    x, y = torch.zeros(1, dtype=torch.double).requires_grad_(), torch.ones(4, dtype=torch.double).requires_grad_()
    problem = adambo.Problem(lambda b: y.sum(), lambda b: 0.5 * y @ H @ y + x.sum() * y.sum(), x, y)
    with pytest.warns(RuntimeWarning, match="not convex"):
        adambo.AdamBO(problem, inverse=adambo.Neumann(terms=60)).step(0, 0)


def test_a_level_in_the_draw_decides_how_many_products_are_made_also_without_a_solver():
    problem = curvature_problem([2.0])
    inverse = adambo.Neumann(terms=3, step=0.25, samples="random")
    for level, factor in ((0, 1.0), (1, 0.5), (2, 0.25)):
        point = problem.at(adambo.Draw(upper=(0,), cross=(0,), hessian=(0, 0), level=level))
        assert float(inverse.solve(point, point.f_y)[0]) == pytest.approx(0.75 * factor * -2.0)


def test_needs_are_the_four_counts_of_the_contract():
    needs = adambo.AdamBO(curvature_problem([2.0]), inverse=adambo.Neumann(terms=3, samples="random")).needs
    assert needs == adambo.Needs(1, 1, 1, 2)


def test_levels_of_accumulated_surrogates_differ_as_levels_of_steps_do():
    levels = [adambo.Neumann(terms=50, samples="random").draw_level(step) for step in range(6)]
    assert len(set(levels)) > 3
