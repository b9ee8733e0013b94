"""Conjugate gradients, the dense solve and the running linear system, against torch.linalg.solve."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from adambo import (
    AdamBO,
    ConjugateGradient,
    CurvatureError,
    Draw,
    Exact,
    LinearSystem,
    NonFiniteError,
    Problem,
    SettingError,
    StateError,
)
from adambo.testing import Quadratic, StochasticQuadratic, TaskQuadratics, divided, flat, normal, same

small = settings(max_examples=30, deadline=None, database=None, derandomize=True)


def point_of(known, hessian=1):
    """The point of a deterministic known problem at its start, and a right-hand side that is not ∇y f."""
    problem = known.problem()
    v = divided(normal(len(known.y0), generator=torch.Generator().manual_seed(9)), [p.shape for p in problem.y])
    return problem.at(Draw(upper=(0,), lower=(0,), cross=(0,), hessian=(0,) * hessian)), v


def task_point(known, tasks, form="problem", hessian=1):
    problem = getattr(known, form)()
    point = problem.at(Draw(upper=(tasks,), lower=(tasks,), cross=(tasks,), hessian=(tasks,) * hessian))
    rows = normal(len(tasks), known.dy, generator=torch.Generator().manual_seed(9))
    return point, [rows[:, :-1].clone(), rows[:, -1:].clone()], rows


@small
@given(d=integers(1, 8), L=floats(1.0, 100.0), seed=integers(0, 2**31 - 1))
def test_conjugate_gradients_solve_in_as_many_products_as_dimensions(d, L, seed):
    known = Quadratic(dx=1, dy=d, seed=seed, L=L)
    point, v = point_of(known)
    z = flat(ConjugateGradient(iterations=d, tolerance=0.0).solve(point, v))
    truth = torch.linalg.solve(known.A, flat(v))
    assert (z - truth).norm() <= 1e-8 * truth.norm()
    assert point.ledger.hessian_vector == d


@small
@given(iterations=integers(1, 6), L=floats(2.0, 100.0), seed=integers(0, 2**31 - 1))
def test_conjugate_gradients_converge_at_the_proved_rate(iterations, L, seed):
    """‖z_k − z‖_H ≤ 2 ((√κ − 1)/(√κ + 1))^k ‖z‖_H."""
    known = Quadratic(dx=1, dy=8, seed=seed, L=L)
    point, v = point_of(known)
    truth = torch.linalg.solve(known.A, flat(v))
    error = flat(ConjugateGradient(iterations).solve(point, v)) - truth
    rate = (L**0.5 - 1) / (L**0.5 + 1)
    assert error @ known.A @ error <= (2 * rate**iterations) ** 2 * (truth @ known.A @ truth) + 1e-12


def test_conjugate_gradients_stay_at_a_solution_found_early():
    point, v = point_of(Quadratic(dx=1, dy=3))
    known = Quadratic(dx=1, dy=3)
    z = flat(ConjugateGradient(iterations=50).solve(point, v))
    torch.testing.assert_close(z, torch.linalg.solve(known.A, flat(v)), rtol=0, atol=1e-10)
    zero = [torch.zeros_like(t) for t in v]
    assert not flat(ConjugateGradient().solve(point, zero)).any()


def test_damping_is_added_to_the_hessian():
    known = Quadratic(dx=1, dy=3)
    point, v = point_of(known)
    z = flat(ConjugateGradient(iterations=10, damping=0.7).solve(point, v))
    damped = known.A + 0.7 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(z, torch.linalg.solve(damped, flat(v)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dy", [1, 4, 7])
def test_the_dense_solve_is_exact(dy):
    known = Quadratic(dx=2, dy=dy, L=30.0)
    point, v = point_of(known)
    z = flat(Exact().solve(point, v))
    torch.testing.assert_close(z, torch.linalg.solve(known.A, flat(v)), rtol=0, atol=1e-12)
    assert point.ledger.hessian_vector == dy


def test_the_dense_solve_refuses_a_large_y():
    point, v = point_of(Quadratic(dy=4))
    with pytest.raises(CurvatureError, match="limit"):
        Exact(limit=3).solve(point, v)


def test_a_singular_hessian_stops_the_dense_solve():
    x, y = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    problem = Problem(lambda b: y.sum() + x.sum(), lambda b: y[0] ** 2 + (x * y).sum(), x, y)
    with pytest.raises(NonFiniteError):
        AdamBO(problem, inverse=Exact()).step(0, 0)
    assert y.tolist() == [1.0, 1.0]


@small
@given(steps=integers(1, 30), seed=integers(0, 2**31 - 1))
def test_a_linear_system_from_zero_is_a_truncated_series(steps, seed):
    """k steps of z ← z − ν(Hz − v) give ν Σ_{q<k} (I − νH)^q v = (I − (I − νH)^k) H⁻¹ v."""
    known = Quadratic(dx=1, dy=4, seed=seed, L=4.0)
    point, v = point_of(known, hessian=steps)
    z = flat(LinearSystem(lr=0.3, steps=steps).solve(point, v))
    eye = torch.eye(4, dtype=torch.float64)
    left = eye - torch.linalg.matrix_power(eye - 0.3 * known.A, steps)
    torch.testing.assert_close(z, left @ torch.linalg.solve(known.A, flat(v)), rtol=0, atol=1e-11)


def test_a_linear_system_goes_on_from_where_the_last_step_ended():
    known = Quadratic(dx=1, dy=3, L=4.0)
    known.y0 = known.y_star(known.x0)
    solver = AdamBO(known.problem(), lr=0.0, lower_lr=0.1, inverse=LinearSystem(lr=0.3))
    for _ in range(300):
        info = solver.step(0, 0)
    truth = torch.linalg.solve(known.A, known.y_star(known.x0) - known.d)
    torch.testing.assert_close(flat(info.z), truth, rtol=0, atol=1e-10)


def test_a_linear_system_takes_a_batch_per_step():
    known = StochasticQuadratic(dx=1, dy=2, samples=3)
    problem = known.problem()
    v = divided(torch.ones(2, dtype=torch.float64), [p.shape for p in problem.y])
    point = problem.at(Draw(upper=(0,), cross=(0,), hessian=(2, 0)))
    z = flat(LinearSystem(lr=0.2, steps=2).solve(point, v))
    first = 0.2 * flat(v)
    torch.testing.assert_close(z, first - 0.2 * (known.A_i[0] @ first - flat(v)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
@pytest.mark.parametrize(
    "inverse",
    [
        pytest.param(lambda: ConjugateGradient(6), id="conjugate gradients"),
        pytest.param(Exact, id="exact"),
        pytest.param(lambda: LinearSystem(lr=0.3, steps=150), id="linear system"),
    ],
)
def test_each_task_is_solved_by_itself(inverse, form):
    known, tasks = TaskQuadratics(), [4, 0, 2]
    inverse = inverse()
    point, v, rows = task_point(known, tasks, form, inverse.needs.hessian)
    z = torch.cat(inverse.solve(point, v), dim=1)
    truth = torch.linalg.solve(known.A[tasks], rows.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(z, truth, rtol=0, atol=1e-10)


def test_one_stiff_task_does_not_slow_another_in_conjugate_gradients():
    """Each task has its own step length, so a task of dimension 3 is solved in 3 products, whatever the others are."""
    known, tasks = TaskQuadratics(), [0, 1]
    known.A[0] *= 1000.0
    point, v, rows = task_point(known, tasks)
    z = torch.cat(ConjugateGradient(3, tolerance=0.0).solve(point, v), dim=1)
    truth = torch.linalg.solve(known.A[tasks], rows.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(z, truth, rtol=1e-8, atol=0)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_task_keeps_its_z_until_it_is_visited_again(form):
    known = TaskQuadratics()
    solver = AdamBO(getattr(known, form)(), lr=0.01, lower_lr=0.1, inverse=LinearSystem(lr=0.2))
    solver.step([0, 1], [0, 1])
    first = solver.state_dict()["inverse"]["state"]["z"]
    solver.step([3, 1], [3, 1])
    second = solver.state_dict()["inverse"]["state"]["z"]
    for before, after in zip(first, second, strict=True):
        assert same([before[0], before[2], before[4]], [after[0], after[2], after[4]])
        assert not before[[2, 3, 4]].any()
        assert before[[0, 1]].any(dim=1).all()
        assert after[3].any()
        assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConjugateGradient(iterations=0),
        lambda: ConjugateGradient(tolerance=-1.0),
        lambda: ConjugateGradient(damping=-1.0),
        lambda: LinearSystem(lr=0.0),
        lambda: LinearSystem(lr=0.1, steps=0),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(SettingError):
        make()


def test_a_foreign_state_is_refused():
    for inverse in (Exact(), ConjugateGradient(), LinearSystem(lr=0.1)):
        with pytest.raises(StateError):
            inverse.load_state_dict({"moments": 1}, [torch.zeros(2)])
