"""AdamBO, step by step: Adam on x exactly, the hypergradient at y_t, its counts, and the path for other frameworks."""

from __future__ import annotations

import pytest
import torch

import adambo
from adambo import AdamBO, ConjugateGradient, Draw, Exact, Neumann, SettingError, StateError, draws
from adambo.testing import Quadratic, StochasticQuadratic, TaskQuadratics, UnboundedSmooth, flat, same

SETTINGS = {"lr": 0.05, "lower_lr": 0.1, "beta": 0.3, "beta_sq": 0.2, "eps": 0.1}


def exact(known, **settings):
    return AdamBO(known.problem(), inverse=Exact(), **(SETTINGS | settings))


def values(solver):
    return flat(solver.problem.x).detach().clone(), flat(solver.problem.y).detach().clone()


def assert_close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0.0, atol=atol)


def surrogate_step(solver, draw):
    solver.upper_optimizer.zero_grad()
    solver.surrogate(draw).backward()
    solver.upper_optimizer.step()
    solver.update()


# Adam on x ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back_end", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_x_moves_by_the_formulas_of_the_paper_in_every_back_end_of_adam(back_end):
    known = StochasticQuadratic()
    problem = known.problem()
    adam = torch.optim.Adam(problem.x, lr=0.05, betas=(0.7, 0.8), eps=0.1, **back_end)
    solver = AdamBO(problem, lower_lr=0.1, inverse=Neumann(step=0.2), upper_optimizer=adam)
    stream = draws(known.batch, known.batch, solver.needs)
    x, m, v = known.x0, 0.0, 0.0
    for t in range(1, 8):
        h = flat(solver.step(next(stream)).hypergradient).clone()
        m, v = 0.7 * m + 0.3 * h, 0.8 * v + 0.2 * h.square()
        x = x - 0.05 * (m / (1 - 0.7**t)) / ((v / (1 - 0.8**t)).sqrt() + 0.1)
        assert_close(values(solver)[0], x, atol=1e-14)


def test_the_equivalent_form_of_the_moments_holds():
    known = StochasticQuadratic()
    solver = AdamBO(known.problem(), inverse=Neumann(step=0.2), **SETTINGS)
    stream = draws(known.batch, known.batch, solver.needs)
    m_hat = v_hat = torch.zeros_like(known.x0)
    x = known.x0
    for t in range(1, 8):
        h = flat(solver.step(next(stream)).hypergradient).clone()
        a, a_sq = 0.3 / (1 - 0.7**t), 0.2 / (1 - 0.8**t)
        m_hat, v_hat = (1 - a) * m_hat + a * h, (1 - a_sq) * v_hat + a_sq * h.square()
        x = x - 0.05 * m_hat / (v_hat.sqrt() + 0.1)
        assert_close(values(solver)[0], x, atol=1e-14)


def test_without_momentum_the_first_step_has_the_size_of_lr():
    known = Quadratic()
    solver = AdamBO(known.problem(), lr=0.05, lower_lr=0.1, beta=1.0, beta_sq=1.0, eps=0.0, inverse=Exact())
    h = flat(solver.step(0, 0).hypergradient)
    assert_close(values(solver)[0], known.x0 - 0.05 * h.sign(), atol=1e-14)


@pytest.mark.parametrize(
    "setting",
    [{"beta": 0.0}, {"beta_sq": 0.0}, {"eps": -1.0}, {"lower_steps": 0}, {"hypergradient_at": "y"}, {"lr": -1.0}],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(setting):
    with pytest.raises(SettingError):
        AdamBO(Quadratic().problem(), **setting)


# Where the hypergradient is taken -------------------------------------------------------------------------------------


def test_the_hypergradient_and_the_lower_step_are_taken_at_the_old_point():
    known = Quadratic()
    solver = exact(known)
    h = flat(solver.step(0, 0).hypergradient)
    r = known.y0 - known.y_star(known.x0)
    assert_close(h, known.C @ (known.x0 - known.e) + known.B.T @ (known.y0 - known.d))
    assert_close(values(solver)[1], known.y0 - 0.1 * known.A @ r)


def test_the_hypergradient_does_not_see_the_lower_step():
    known = StochasticQuadratic()
    moved = []
    for lower in (1, 2):
        solver = exact(known)
        info = solver.step(Draw(upper=(0,), lower=(lower,), cross=(3,), hessian=(3,)))
        moved.append((flat(info.hypergradient).clone(), *values(solver)))
    (h, x, y), (other_h, other_x, other_y) = moved
    assert same([h, x], [other_h, other_x])
    assert not torch.equal(y, other_y)


def test_updated_takes_the_hypergradient_after_the_lower_steps():
    known = Quadratic()
    solver = exact(known, lower_steps=3, hypergradient_at="updated")
    h = flat(solver.step(0, 0).hypergradient)
    y = known.y0
    for _ in range(3):
        y = y - 0.1 * known.A @ (y - known.y_star(known.x0))
    assert_close(values(solver)[1], y)
    assert_close(h, known.C @ (known.x0 - known.e) + known.B.T @ (y - known.d))


def test_several_lower_steps_take_their_batches_in_order_at_the_old_x():
    known = StochasticQuadratic(samples=3)
    solver = exact(known, lower_steps=3)
    solver.step(Draw(upper=(0,), lower=(2, 0, 1), cross=(0,), hessian=(0,)))
    y = known.y0
    for i in (2, 0, 1):
        slope = known.A_i[i] @ (y - known.y_star(known.x0)) + known.b_i[i] + known.N_i[i] @ known.x0
        y = y - 0.1 * slope
    assert_close(values(solver)[1], y)


def test_the_hypergradient_at_the_lower_solution_is_the_gradient_of_phi():
    known = Quadratic(dx=5, dy=6)
    known.y0 = known.y_star(known.x0)
    assert_close(flat(exact(known).step(0, 0).hypergradient), known.gradient(known.x0))


def test_info_tells_the_losses_before_the_step():
    known = Quadratic()
    info = exact(known).step(0, 0)
    assert_close(info.upper_loss, known.upper(known.x0, known.y0))
    assert_close(info.lower_loss, known.lower(known.x0, known.y0))
    assert_close(flat(info.z), torch.linalg.solve(known.A, known.y0 - known.d))


def test_an_old_hypergradient_is_refused_rather_than_wrong():
    solver = exact(Quadratic())
    info = solver.step(0, 0)
    solver.step(0, 0)
    with pytest.raises(StateError, match="gone"):
        _ = info.hypergradient


def test_it_reaches_the_optimum_where_smoothness_is_unbounded():
    known = UnboundedSmooth(distance=8.0)
    assert known.gradient(known.x0).norm() > 1000
    solver = AdamBO(known.problem(), lr=0.1, lower_lr=0.4, beta_sq=0.1, inverse=Exact())
    for t in range(400):
        solver.upper_optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, 1e-3 ** (t / 200 - 1))
        solver.step(0, 0)
    assert_close(values(solver)[0], known.optimum, atol=1e-3)


# Counts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [1, 2, 4])
@pytest.mark.parametrize("estimator", ["independent", "chained", "prefix", "shared", "random"])
def test_the_ledger_equals_the_table(estimator, terms):
    known = StochasticQuadratic()
    solver = AdamBO(known.problem(), inverse=Neumann(terms=terms, step=0.2, samples=estimator))
    level = terms // 2 if estimator == "random" else None
    products = {"independent": terms * (terms - 1) // 2, "random": level}.get(estimator, terms - 1)
    batches = {"shared": min(1, terms - 1)}.get(estimator, products)
    for _ in range(2):
        hessian = tuple([0] for _ in range(solver.needs.hessian))
        solver.step(Draw(upper=([0],), lower=([1],), cross=([2],), hessian=hessian, level=level))
    counts = solver.ledger.as_dict()
    assert counts.pop("curvature_vector") == 20 + 3
    once = {"grad_x_f": 1, "grad_y_f": 1, "grad_x_g": 0, "grad_y_g": 1, "cross_vector": 1}
    assert counts == {k: 2 * n for k, n in (once | {"hessian_vector": products, "samples": 3 + batches}).items()}


def test_a_warm_start_counts_one_lower_gradient_per_batch_and_keeps_x():
    known = Quadratic()
    solver = exact(known)
    solver.warm_start([0] * 5)
    y = known.y0
    for _ in range(5):
        y = y - 0.1 * known.A @ (y - known.y_star(known.x0))
    assert_close(values(solver)[1], y)
    assert same(values(solver)[0], known.x0)
    assert solver.ledger.grad_y_g == 5
    assert sum(solver.ledger.as_dict().values()) - solver.ledger.samples == 5


def test_a_term_of_x_in_the_lower_loss_does_not_enter_the_hypergradient():
    known = Quadratic()
    problem = known.problem()
    lower = problem.lower
    problem.lower = lambda b: lower(b) + 1e9 * flat(problem.x).pow(3).sum()
    burdened = AdamBO(problem, inverse=Exact(), **SETTINGS)
    h = flat(burdened.step(0, 0).hypergradient)
    assert_close(h, known.C @ (known.x0 - known.e) + known.B.T @ (known.y0 - known.d))


# The surrogate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("lower_steps", [1, 3])
@pytest.mark.parametrize("inverse", [lambda: Neumann(step=0.2), lambda: ConjugateGradient(4)], ids=["neumann", "cg"])
def test_the_surrogate_path_is_the_step_path(at, lower_steps, inverse):
    known = StochasticQuadratic()
    one, other = (
        AdamBO(known.problem(), inverse=inverse(), lower_steps=lower_steps, hypergradient_at=at, **SETTINGS)
        for _ in range(2)
    )
    for draw in (next(stream) for stream in [draws(known.batch, known.batch, one.needs)] for _ in range(5)):
        one.step(draw)
        surrogate_step(other, draw)
        for found, expected in zip(values(other), values(one), strict=True):
            assert_close(found, expected)
    assert other.steps == one.steps == 5
    assert other.ledger == one.ledger


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_the_surrogate_path_is_the_step_path_with_tasks(form):
    known = TaskQuadratics()
    one, other = (AdamBO(getattr(known, form)(), inverse=Exact(), **SETTINGS) for _ in range(2))
    for tasks in ([0, 2], [2, 4], [1, 0]):
        draw = Draw.of(tasks, tasks, one.needs)
        one.step(draw)
        surrogate_step(other, draw)
        for found, expected in zip(values(other), values(one), strict=True):
            assert_close(found, expected)


def test_the_gradient_of_the_surrogate_is_the_hypergradient():
    known = Quadratic()
    solver = exact(known)
    S = solver.surrogate(0, 0)
    assert S.dim() == 0
    h = flat(torch.autograd.grad(S, solver.problem.x))
    assert_close(h, known.C @ (known.x0 - known.e) + known.B.T @ (known.y0 - known.d))


def test_y_moves_with_the_update_and_not_before():
    known = Quadratic()
    solver = exact(known)
    solver.surrogate(0, 0).backward()
    assert same(values(solver)[1], known.y0)
    solver.update()
    assert_close(values(solver)[1], known.y0 - 0.1 * known.A @ (known.y0 - known.y_star(known.x0)))


def test_surrogates_before_one_update_take_the_mean_lower_gradient():
    known = StochasticQuadratic(samples=3)
    solver = exact(known)
    for i in (0, 2):
        (solver.surrogate(i, i) / 2).backward()
    gradients = [
        known.A_i[i] @ (known.y0 - known.y_star(known.x0)) + known.b_i[i] + known.N_i[i] @ known.x0 for i in (0, 2)
    ]
    hypergradients = []
    for i in (0, 2):
        alone = exact(known)
        hypergradients.append(flat(alone.step(i, i).hypergradient).clone())
    assert_close(flat([p.grad for p in solver.problem.x]), sum(hypergradients) / 2)
    solver.upper_optimizer.step()
    solver.update()
    assert_close(values(solver)[1], known.y0 - 0.1 * sum(gradients) / 2)
    assert solver.steps == 1


@pytest.mark.parametrize("settings", [{"lower_steps": 3}, {"hypergradient_at": "updated"}], ids=str)
def test_surrogates_that_have_no_mean_are_refused(settings):
    solver = exact(Quadratic(), **settings)
    solver.surrogate(0, 0)
    with pytest.raises(StateError, match="update"):
        solver.surrogate(0, 0)


def test_an_update_without_a_surrogate_is_refused():
    with pytest.raises(StateError, match="surrogate"):
        exact(Quadratic()).update()


# The user's own optimisers, and .grad ---------------------------------------------------------------------------------


def test_optimisers_of_the_user_are_taken_as_they_are():
    known = Quadratic()
    problem = known.problem()
    first, second = problem.x
    upper = torch.optim.SGD([{"params": [first], "lr": 0.01}, {"params": [second], "lr": 0.03}], momentum=0.5)
    lower = torch.optim.SGD(problem.y, lr=0.05, momentum=0.4, weight_decay=0.1)
    solver = AdamBO(problem, inverse=Exact(), upper_optimizer=upper, lower_optimizer=lower)
    assert solver.upper_optimizer is upper
    assert solver.lower_optimizer is lower
    rates = torch.tensor([0.01] * first.numel() + [0.03] * second.numel(), dtype=torch.float64)
    x, y, momentum, lower_momentum = known.x0, known.y0, 0.0, 0.0
    for _ in range(4):
        solver.step(0, 0)
        h = known.C @ (x - known.e) + known.B.T @ (y - known.d)
        momentum = 0.5 * momentum + h
        lower_momentum = 0.4 * lower_momentum + known.A @ (y - known.y_star(x)) + 0.1 * y
        x, y = x - rates * momentum, y - 0.05 * lower_momentum
        for found, expected in zip(values(solver), (x, y), strict=True):
            assert_close(found, expected)


def test_schedulers_act_on_the_optimisers():
    solver = exact(Quadratic())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(solver.upper_optimizer, gamma=0.0)
    solver.step(0, 0)
    scheduler.step()
    x, y = values(solver)
    solver.step(0, 0)
    assert same(values(solver)[0], x)
    assert not torch.equal(values(solver)[1], y)


def test_an_optimiser_of_other_tensors_is_refused():
    problem = Quadratic().problem()
    with pytest.raises(SettingError, match="upper_optimizer"):
        AdamBO(problem, upper_optimizer=torch.optim.Adam(problem.y))
    with pytest.raises(SettingError, match="lower_optimizer"):
        AdamBO(problem, lower_optimizer=torch.optim.SGD(problem.y[:1], lr=0.1))


def test_stale_gradients_do_not_leak_into_a_step():
    known = Quadratic()
    clean, stale = exact(known), exact(known)
    for p in (*stale.problem.x, *stale.problem.y):
        p.grad = torch.full_like(p, 1e3)
    for solver in (clean, stale):
        solver.step(0, 0)
        solver.step(0, 0)
    assert same(values(stale), values(clean))


def test_a_step_leaves_the_hypergradient_in_x_and_nothing_in_y():
    solver = exact(Quadratic())
    info = solver.step(0, 0)
    assert all(p.grad is h or torch.equal(p.grad, h) for p, h in zip(solver.problem.x, info.hypergradient, strict=True))
    assert all(p.grad is None for p in solver.problem.y)


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("lower_steps", [1, 3])
def test_an_update_leaves_nothing_in_the_gradient_of_y(at, lower_steps):
    solver = exact(Quadratic(), lower_steps=lower_steps, hypergradient_at=at)
    surrogate_step(solver, Draw.of(0, 0, solver.needs))
    assert all(p.grad is None for p in solver.problem.y)


def test_the_surrogate_loop_of_the_contract_makes_the_steps_of_step():
    ends = []
    for halves in (False, True):
        problem = StochasticQuadratic().problem()
        solver = AdamBO(problem, lr=0.05, lower_lr=0.1)
        for t in range(4):
            if halves:
                S = solver.surrogate([t % 3], [(t + 1) % 3])
                S.backward()
                solver.upper_optimizer.step()
                solver.update()
            else:
                solver.step([t % 3], [(t + 1) % 3])
        ends.append([p.detach() for p in (*problem.x, *problem.y)])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_a_surrogate_whose_update_was_forgotten_is_noticed():
    solver = AdamBO(StochasticQuadratic().problem())
    solver.surrogate([0], [1]).backward()
    solver.upper_optimizer.step()
    with pytest.raises(adambo.StateError, match=r"Call update\(\)"):
        solver.surrogate([0], [1])


def test_the_moments_of_adam_are_told_under_their_names_until_the_next_step():
    solver = AdamBO(StochasticQuadratic().problem(), beta=0.3, beta_sq=0.2)
    info = solver.step([0], [1])
    for m, v, h in zip(info.m, info.v, info.hypergradient, strict=True):
        torch.testing.assert_close(m, 0.3 * h)
        torch.testing.assert_close(v, 0.2 * h.square())
    solver.surrogate([0], [1])
    with pytest.raises(adambo.StateError, match="is gone"):
        _ = info.hypergradient


def test_two_solvers_with_one_inverse_object_do_not_share_what_they_learn():
    inverse = Neumann(terms=3)
    first, second = (AdamBO(StochasticQuadratic().problem(), inverse=inverse) for _ in range(2))
    first.step([0], [1])
    assert first.inverse is inverse
    assert second.inverse is not inverse
    assert second.inverse.largest_curvature is None


def test_a_bad_batch_leaves_the_buffers_of_the_modules_alone():
    norm = torch.nn.BatchNorm1d(4).double()
    encoder, head = torch.nn.Sequential(torch.nn.Linear(5, 4).double(), norm), torch.nn.Linear(4, 1).double()
    problem = adambo.EncoderHeadProblem(
        encoder,
        upper=lambda h, b: head(h).square().mean(),
        lower=lambda h, b: (head(h) - 1).square().mean() + head.weight.square().sum(),
        x=encoder,
        y=head,
    )
    solver = AdamBO(problem)
    good, bad = torch.randn(8, 5, dtype=torch.double), torch.full((8, 5), float("nan"), dtype=torch.double)
    solver.step(good, good)
    before = solver.state_dict()
    with pytest.raises(adambo.NonFiniteError):
        solver.step(bad, good)
    assert same(solver.state_dict()["buffers"], before["buffers"])
    adambo.check_hypergradient(problem, Draw(upper=(good,), cross=(good,)))
    assert same(solver.state_dict()["buffers"], before["buffers"])


def test_a_lower_step_size_beyond_two_over_the_curvature_is_warned_of_once():
    solver = AdamBO(StochasticQuadratic().problem(), lower_lr=5.0)
    with pytest.warns(RuntimeWarning, match="lower step size 5 exceeds"):
        solver.step([0], [1])
    solver.step([0], [1])


def test_betas_in_the_convention_of_pytorch_are_warned_of():
    with pytest.warns(UserWarning, match=r"beta=0\.1, beta_sq=0\.001"):
        AdamBO(StochasticQuadratic().problem(), beta=0.9, beta_sq=0.999)


def test_the_time_of_a_warm_start_grows_with_its_length_and_not_with_its_square():
    solver = AdamBO(StochasticQuadratic().problem())
    solver.warm_start([[k % 3] for k in range(50)])
    assert sum(len(tensors) for tensors in solver.guard._admitted.values()) == 0
    solver.warm_start(iter([[0], [1]]))
    assert solver.ledger.grad_y_g == 52
