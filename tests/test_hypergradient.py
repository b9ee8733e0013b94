"""The hypergradient and the products it is made of, against dense derivatives and finite differences of phi."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import hessian as dense_hessian
from torch.autograd.functional import jacobian as dense_jacobian

import adambo
from adambo import AdamBO, Draw, Exact, Neumann, Problem, SettingError, check_hypergradient
from adambo.testing import (
    AUC,
    Quadratic,
    RidgeSoftmaxHead,
    StochasticQuadratic,
    TaskQuadratics,
    UnboundedSmooth,
    divided,
    flat,
    normal,
    same,
)


def known_problems():
    return [Quadratic(), StochasticQuadratic(), UnboundedSmooth(distance=1.0), RidgeSoftmaxHead(), AUC()]


KNOWN = [pytest.param(known, id=type(known).__name__) for known in known_problems()]


def everything(known):
    """A batch that stands for all of the data, for the upper and for the lower level."""
    if isinstance(known, RidgeSoftmaxHead):
        return known.upper_batch, known.lower_batch
    return None, None


def point_of(known, y=None):
    problem = known.problem()
    if y is not None:
        for p, value in zip(problem.y, divided(y, [p.shape for p in problem.y]), strict=True):
            p.data.copy_(value)
    upper, lower = everything(known)
    return problem.at(Draw(upper=(upper,), lower=(lower,), cross=(lower,), hessian=(lower,)))


def direction(like, seed=4):
    size = sum(p.numel() for p in like)
    return divided(normal(size, generator=torch.Generator().manual_seed(seed)), [p.shape for p in like])


def differences(phi, x, step=1e-5):
    """∇phi(x) by central differences."""
    return torch.stack([(phi(x + step * u) - phi(x - step * u)) / (2 * step) for u in torch.eye(len(x)).to(x)])


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0.0, atol=atol)


# Products -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
def test_hessian_products_are_those_of_the_dense_hessian(known):
    point = point_of(known)
    v = direction(point.problem.y)
    H = dense_hessian(lambda y: known.lower(known.x0, y), known.y0)
    close(flat(point.hessian(v)), H @ flat(v))


@pytest.mark.parametrize("known", KNOWN)
def test_cross_products_are_those_of_the_dense_cross_derivative(known):
    v = direction(known.problem().y)
    y = known.y0.clone().requires_grad_()

    def lower_gradient(x):
        return torch.autograd.grad(known.lower(x, y), y, create_graph=True)[0]

    J = dense_jacobian(lower_gradient, known.x0)
    zero = [torch.zeros_like(t) for t in v]
    product = flat(point_of(known).hypergradient(zero)) - flat(point_of(known).hypergradient(v))
    close(product, J.T @ flat(v), atol=1e-11)


@pytest.mark.parametrize("known", KNOWN)
def test_first_gradients_are_those_of_autograd(known):
    x, y = (t.clone().requires_grad_() for t in (known.x0, known.y0))
    f_x, f_y = torch.autograd.grad(known.upper(x, y), (x, y))
    (g_y,) = torch.autograd.grad(known.lower(x, y), y)
    point = point_of(known)
    close(flat(point.f_y), f_y)
    close(flat(point.lower_gradient()), g_y)
    close(flat(point.hypergradient([torch.zeros_like(t) for t in point.f_y])), f_x)


# The hypergradient ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
def test_the_known_gradients_are_right_by_finite_differences(known):
    found, scale = differences(known.phi, known.x0), 1 + float(known.gradient(known.x0).norm())
    close(known.gradient(known.x0), found, atol=1e-7 * scale)
    close(known.phi(known.x0), known.upper(known.x0, known.y_star(known.x0)))
    y = known.y_star(known.x0).clone().requires_grad_()
    assert torch.autograd.grad(known.lower(known.x0, y), y)[0].norm() < 1e-11


@pytest.mark.parametrize("known", [k for k in KNOWN if k.id != "RidgeSoftmaxHead"])
def test_the_known_optimum_has_no_gradient(known):
    assert known.gradient(known.optimum).norm() < 1e-10


@pytest.mark.parametrize("known", KNOWN)
def test_the_exact_hypergradient_at_the_lower_solution_is_the_gradient_of_phi(known):
    point = point_of(known, known.y_star(known.x0))
    h = flat(point.hypergradient(Exact().solve(point, point.f_y)))
    close(h, known.gradient(known.x0), atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_hypergradient_is_the_slope_of_phi(seed):
    known = Quadratic(dx=3, dy=4, seed=seed)
    point = point_of(known, known.y_star(known.x0))
    h = flat(point.hypergradient(Exact().solve(point, point.f_y)))
    close(h, differences(known.phi, known.x0), atol=1e-8)


def test_backward_fills_what_hypergradient_returns():
    point, other = point_of(RidgeSoftmaxHead()), point_of(RidgeSoftmaxHead())
    z = direction(point.problem.y)
    point.backward(z)
    close(flat([p.grad for p in point.problem.x]), flat(other.hypergradient(z)), atol=1e-14)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scaling_the_lower_loss_keeps_the_hypergradient(scale):
    known = RidgeSoftmaxHead()
    plain, scaled = known.problem(), known.problem()
    lower = scaled.lower
    scaled.lower = lambda batch: scale * lower(batch)
    found = []
    for problem in (plain, scaled):
        upper, lower_batch = everything(known)
        point = problem.at(Draw(upper=(upper,), cross=(lower_batch,), hessian=(lower_batch,)))
        found.append(flat(point.hypergradient(Exact().solve(point, point.f_y))))
    close(found[1], found[0], atol=1e-11)


def test_an_upper_loss_without_x_has_the_implicit_part_alone():
    known = Quadratic()
    problem = known.problem()
    problem.upper = lambda b: (flat(problem.y) - known.d).square().sum() / 2
    point = problem.at(Draw((0,), (0,), (0,), (0,)))
    h = flat(point.hypergradient(Exact().solve(point, point.f_y)))
    close(h, known.B.T @ (known.y0 - known.d))


# check_hypergradient --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
def test_a_right_problem_passes_the_check(known):
    problem = known.problem()
    upper, lower = everything(known)
    before = flat(problem.x).detach().clone(), flat(problem.y).detach().clone()
    check = check_hypergradient(problem, Draw(upper=(upper,), cross=(lower,)))
    assert check.passed, check
    assert check.estimate < 1e-8
    assert same((flat(problem.x).detach(), flat(problem.y).detach()), before)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_right_problem_with_tasks_passes_the_check(form):
    problem = getattr(TaskQuadratics(), form)()
    assert check_hypergradient(problem, Draw(upper=([3, 1],), cross=([3, 1],))).passed


def test_the_check_sees_a_lower_loss_that_detaches_x():
    known = Quadratic()
    problem = known.problem()
    problem.lower = lambda b: known.lower(flat(problem.x).detach(), flat(problem.y))
    check = check_hypergradient(problem, Draw(upper=(0,), cross=(0,)))
    assert not check.passed
    assert check.cross > 0.1
    assert check.hessian < check.tolerance


def test_the_check_sees_an_upper_loss_that_detaches_x():
    known = Quadratic()
    problem = known.problem()
    problem.upper = lambda b: known.upper(flat(problem.x).detach(), flat(problem.y))
    check = check_hypergradient(problem, Draw(upper=(0,), cross=(0,)))
    assert not check.passed
    assert check.hypergradient > 1e-3
    assert max(check.hessian, check.cross) < check.tolerance


def test_the_check_sees_a_lower_loss_that_detaches_a_part_of_y():
    known = RidgeSoftmaxHead()
    problem = known.problem()
    W, b = problem.y
    problem.lower = lambda batch: known.lower(flat(problem.x), flat([W, b.detach()]), batch) + b.sum() ** 2 / 2
    check = check_hypergradient(problem, Draw(upper=(known.upper_batch,), cross=(known.lower_batch,)))
    assert not check.passed


def test_the_check_judges_the_inverse_apart():
    known = Quadratic(L=50.0)
    draw = Draw(upper=(0,), cross=(0,))
    rough = check_hypergradient(known.problem(), draw, Neumann(terms=2))
    fine = check_hypergradient(known.problem(), draw, Exact())
    assert rough.passed
    assert fine.passed
    assert rough.residual > 0.1
    assert fine.residual < 1e-10
    z = 0.02 / 1.25 * (2 * torch.eye(4).double() - 0.02 / 1.25 * known.A) @ (known.y0 - known.d)
    expected = (known.A @ z - (known.y0 - known.d)).norm() / (known.y0 - known.d).norm()
    assert abs(rough.residual - float(expected)) < 0.05


def test_a_check_without_batches_is_refused():
    with pytest.raises(SettingError):
        check_hypergradient(Quadratic().problem(), Draw(upper=(0,)))


# AUC ------------------------------------------------------------------------------------------------------------------


def test_alpha_star_is_the_gap_between_the_mean_scores():
    known = AUC()
    scores = known.features @ known.x0[:-2]
    gap = scores[known.labels < 0].mean() - scores[known.labels > 0].mean()
    close(known.y_star(known.x0), gap.reshape(1))
    y = gap.reshape(1).clone().requires_grad_()
    assert torch.autograd.grad(known.lower(known.x0, y), y)[0].abs() < 1e-13


@pytest.mark.parametrize(("positives", "negatives", "curvature"), [(8, 2, 0.32), (9, 1, 0.18)])
def test_the_curvature_of_auc_is_known_for_every_sample(positives, negatives, curvature):
    known = AUC(positives=positives, negatives=negatives)
    assert abs(known.curvature - curvature) < 1e-15
    problem = known.problem()
    for sample in range(10):
        point = problem.at(Draw(hessian=([sample],)))
        close(
            flat(point.hessian([torch.ones((), dtype=torch.float64)])), torch.tensor([curvature], dtype=torch.float64)
        )


def test_one_term_is_exact_for_auc():
    known = AUC()
    one, dense = (
        AdamBO(known.problem(), lr=0.05, lower_lr=0.5, inverse=inverse)
        for inverse in (Neumann(terms=1, step=1 / known.curvature), Exact())
    )
    for sample in (None, [0, 19], [5]):
        h = [flat(solver.step(sample, sample).hypergradient).clone() for solver in (one, dense)]
        close(h[0], h[1])
    assert one.ledger.hessian_vector == 0


def test_the_implicit_term_of_auc_vanishes_at_alpha_star():
    known = AUC()
    point = point_of(known, known.y_star(known.x0))
    assert flat(point.f_y).abs() < 1e-13
    close(flat(point.hypergradient(point.f_y)), known.gradient(known.x0))


# Many tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
@pytest.mark.parametrize("at", ["current", "updated"])
def test_stacked_tasks_are_a_loop_over_tasks(form, at):
    """One step on three tasks is three separate problems whose hypergradients are averaged."""
    known, tasks, settings = TaskQuadratics(), [4, 0, 3], {"lr": 0.05, "lower_lr": 0.1, "hypergradient_at": at}
    solver = AdamBO(getattr(known, form)(), inverse=Exact(), **settings)
    h = flat(solver.step(tasks, tasks).hypergradient)
    rows = torch.cat([p.detach() for p in solver.problem.y], dim=1)
    alone = [AdamBO(known.single_task(task), inverse=Exact(), **settings) for task in tasks]
    separate = [flat(one.step(0, 0).hypergradient) for one in alone]
    close(h, sum(separate) / 3)
    close(rows[tasks], torch.stack([one.problem.y[0].detach() for one in alone]))


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_the_hypergradient_over_all_tasks_is_the_gradient_of_phi(form):
    known = TaskQuadratics()
    known.y0 = known.y_star(known.x0)
    solver = AdamBO(getattr(known, form)(), inverse=Exact())
    tasks = list(range(known.count))
    close(flat(solver.step(tasks, tasks).hypergradient), known.gradient(known.x0))
    close(known.gradient(known.x0), differences(known.phi, known.x0), atol=1e-8)
    assert known.gradient(known.optimum).norm() < 1e-12


def test_stacked_tasks_find_the_common_optimum():
    known = TaskQuadratics()
    problem = known.encoder_head_problem()
    solver = AdamBO(problem, lower_lr=0.3, inverse=Exact(), upper_optimizer=torch.optim.SGD(problem.x, lr=0.3))
    tasks = list(range(known.count))
    for _ in range(200):
        solver.step(tasks, tasks)
    close(flat(solver.problem.x).detach(), known.optimum, atol=1e-5)
    close(flat(solver.problem.y).detach(), known.y_star(known.optimum), atol=1e-5)


def test_looking_at_a_problem_leaves_it_bit_identical():
    known = TaskQuadratics()
    solver = AdamBO(known.encoder_head_problem(), lr=0.05, lower_lr=0.1)
    solver.step([0, 1], [0, 1])
    before = solver.state_dict()
    point = solver.problem.at(Draw(upper=([2, 1],), lower=([2, 1],), cross=([2, 1],), hessian=([2, 1],)))
    point.hypergradient(Exact().solve(point, point.f_y))
    point.lower_gradient()
    check_hypergradient(solver.problem, point.draw)
    assert same(solver.state_dict(), before)


def test_moving_a_problem_for_a_moment_brings_it_back_bit_for_bit():
    known = Quadratic()
    problem = known.problem()
    x = divided(known.optimum, [p.shape for p in problem.x])
    y = divided(known.y_star(known.optimum), [p.shape for p in problem.y])
    with problem.moved_to(x, y):
        point = problem.at(Draw((0,), (0,), (0,), (0,)))
        h = flat(point.hypergradient(Exact().solve(point, point.f_y)))
    assert h.norm() < 1e-12
    assert same((flat(problem.x).detach(), flat(problem.y).detach()), (known.x0, known.y0))


def test_a_loss_that_never_sees_y_is_refused():
    x, y = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    problem = Problem(lambda b: x.sum(), lambda b: (y - x).square().sum(), x, y)
    with pytest.raises(ValueError, match="does not depend on y"):
        AdamBO(problem).step(0, 0)


def test_a_check_that_finds_nan_has_not_passed():
    numbers = {"hessian": 0.0, "cross": 0.0, "estimate": 0.0, "residual": 0.0, "tolerance": 1e-3}
    assert not adambo.HypergradientCheck(hypergradient=float("nan"), **numbers).passed
    assert adambo.HypergradientCheck(hypergradient=1e-4, **numbers).passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tasks", [5, 2000])
def test_the_check_does_not_depend_on_how_many_tasks_are_stacked(tasks, dtype):
    torch.manual_seed(0)
    encoder, table = torch.nn.Linear(3, 4).to(dtype), torch.nn.Parameter(torch.randn(tasks, 4, dtype=dtype))

    def loss(features, batch):
        return torch.nn.functional.softplus((features * table[batch[1]]).sum(1)).mean()

    problem = adambo.EncoderHeadProblem(
        encoder=lambda b: encoder(b[0]),
        upper=loss,
        lower=lambda h, b: 3 * loss(h, b) + 0.5 * table[b[1]].square().sum(),
        x=encoder,
        y=[table],
        tasks=lambda b: b[1],
    )
    batch = (torch.randn(3, 3, dtype=dtype), torch.tensor([0, 2, 4]))
    check = adambo.check_hypergradient(problem, adambo.Draw(upper=(batch,), cross=(batch,)))
    assert check.passed, check


def test_values_that_cannot_be_exchanged_are_refused_and_nothing_moves():
    problem = Quadratic().problem()
    before = [p.detach().clone() for p in problem.x]
    shared = torch.zeros(8, dtype=torch.double)
    for bad in (
        [p.detach().float() for p in problem.x],
        [shared[: p.numel()].view_as(p) for p in problem.x],
        [torch.zeros((), dtype=torch.double).expand_as(p) for p in problem.x],
    ):
        with pytest.raises(adambo.ProblemError, match="moved_to"), problem.moved_to(x=bad):
            pass
    assert all(torch.equal(a, b) for a, b in zip(before, problem.x, strict=True))
