"""Methods that carry z along: SLIP, SOBA, MA-SOBA, BO-REP, FSLA. Their contract, and what is special to each."""

from __future__ import annotations

from math import ceil, inf
from typing import ClassVar

import pytest
import torch
from torch.func import grad, jacrev

import adambo
from adambo import BOREP, FSLA, MASOBA, SLIP, SOBA, Draw, Needs, Problem, SettingError, draws
from adambo.testing import AlgorithmContract, Quadratic, StochasticQuadratic, TaskQuadratics, flat, same

TABLE = {"grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 1, "hessian_vector": 1, "cross_vector": 1, "samples": 4}
RATES = {"lr": 0.05, "lower_lr": 0.1, "z_lr": 0.15}


# The contract ---------------------------------------------------------------------------------------------------------


class TestSLIP(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, **settings):
        return SLIP(problem, **settings)


class TestSLIPGaussSeidel(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, **settings):
        return SLIP(problem, order="gauss_seidel", **settings)


class TestSOBA(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE  # one batch, but read in three lower roles

    def make(self, problem, **settings):
        return SOBA(problem, **settings)


class TestSOBAFresh(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, **settings):
        return SOBA(problem, fresh=True, **settings)


class TestMASOBA(AlgorithmContract):
    # The average follows the hypergradient some ten steps behind, so that x swings about the optimum for a while, and
    # away from it with the contract's lr of 0.5.
    far_lr, steps_from_afar = 0.05, 800
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, **settings):
        return MASOBA(problem, **settings)


class TestMASOBANotLagged(TestMASOBA):
    def make(self, problem, **settings):
        return MASOBA(problem, lagged=False, **settings)


class TestBOREP(AlgorithmContract):
    lower_steps, period, radius = 3, 2, inf

    def make(self, problem, **settings):
        return BOREP(problem, lower_steps=self.lower_steps, period=self.period, radius=self.radius, **settings)

    def expected_ledger(self, steps):
        lower = self.lower_steps * ceil(steps / self.period)
        return dict.fromkeys(TABLE, steps) | {"grad_y_g": lower, "samples": 3 * steps + lower}


class TestBOREPInABall(TestBOREP):
    # y starts about 14 from its solution, and may not move further than the radius in a round.
    radius = 0.5


class TestBOREPOncePerStep(TestBOREP):
    lower_steps, period = 1, 1


class TestFSLA(AlgorithmContract):
    def make(self, problem, **settings):
        return FSLA(problem, **settings)

    def expected_ledger(self, steps):
        twice = {"grad_x_f": 2 * steps - 1, "cross_vector": 2 * steps - 1}  # the first step has no point before
        return {name: steps * count for name, count in TABLE.items()} | twice


# By hand: dense derivatives of pure functions, from torch.func -------------------------------------------------------


class Curved(StochasticQuadratic):
    """Every derivative depends on the point, so that it shows at which one it was taken."""

    def lower(self, x, y, batch=None):
        return super().lower(x, y, batch) + 0.4 * (1 + (y - self.B @ x.sin()).square()).sqrt().sum()

    def upper(self, x, y, batch=None):
        return super().upper(x, y, batch) + x.sin() @ y[: len(x)]

    def z_step(self, x, y, z, draw):
        """z − ν (∇²yy g z − ∇y f)"""
        H = jacrev(grad(self.lower, 1), 1)(x, y, draw.hessian[0])
        f_y = grad(self.upper, 1)(x, y, draw.upper[0])
        return z - RATES["z_lr"] * (H @ z - f_y)

    def h(self, x, y, z, draw):
        """∇x f − ∇²xy g z"""
        J = jacrev(grad(self.lower, 1), 0)(x, y, draw.cross[0]).T
        return grad(self.upper, 0)(x, y, draw.upper[0]) - J @ z

    def y_step(self, x, y, draw):
        return y - RATES["lower_lr"] * grad(self.lower, 1)(x, y, draw.lower[0])

    def start(self):
        return self.x0, self.y0, torch.zeros_like(self.y0)


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found.detach(), expected, rtol=0.0, atol=atol)


def check_path(solver, known, steps, by_hand):
    """`by_hand` yields (x, y, z) after each draw it is sent; the solver is to be there too."""
    stream = draws(known.batch, known.batch, Needs(1, 1, 1, 1), seed=3)
    next(by_hand)
    for _ in range(steps):
        draw = next(stream)
        info = solver.step(draw)
        x, y, z = by_hand.send(draw)
        close(flat(solver.problem.x), x)
        close(flat(solver.problem.y), y)
        close(flat(info.z), z)


def normalised_path(known, after):
    """SLIP; with `after`, ∇y f, the Hessian product and the hypergradient are taken at the y after the step."""
    (x, y, z), m, draw = known.start(), 0.0, (yield)
    while True:
        y_next = known.y_step(x, y, draw)
        at = y_next if after else y
        m = 0.7 * m + 0.3 * known.h(x, at, z, draw)
        x, y, z = x - RATES["lr"] * m / m.norm(), y_next, known.z_step(x, at, z, draw)
        draw = yield x, y, z


def fsla_path(known, rho):
    (x, y, z), x_prev, m, draw = known.start(), None, 0.0, (yield)
    while True:
        y_next = known.y_step(x, y, draw)
        z_next = known.z_step(x, y_next, z, draw)
        correction = 0.0 if x_prev is None else (1 - rho) * (m - known.h(x_prev, y, z, draw))
        m = known.h(x, y_next, z_next, draw) + correction
        x_prev, x, y, z = x, x - RATES["lr"] * m, y_next, z_next
        draw = yield x, y, z


def plain_path(known):
    """FSLA's estimate, followed as it is."""
    (x, y, z), draw = known.start(), (yield)
    while True:
        y = known.y_step(x, y, draw)
        z = known.z_step(x, y, z, draw)
        x = x - RATES["lr"] * known.h(x, y, z, draw)
        draw = yield x, y, z


# Reductions -----------------------------------------------------------------------------------------------------------


def test_bo_rep_with_one_lower_step_each_time_is_slip_at_the_y_after_the_step():
    known = Curved()
    check_path(SLIP(known.problem(), **RATES, beta=0.3), known, 6, normalised_path(known, after=False))
    solver = BOREP(known.problem(), **RATES, beta=0.3, lower_steps=1, period=1)
    check_path(solver, known, 6, normalised_path(known, after=True))


@pytest.mark.parametrize("rho", [0.6, 0.1])
def test_fsla_corrects_by_the_same_draw_at_the_x_before_and_the_y_and_z_of_now(rho):
    known = Curved()
    check_path(FSLA(known.problem(), **RATES, rho=rho), known, 6, fsla_path(known, rho))


def test_fsla_with_a_weight_of_one_follows_the_plain_estimate():
    known = Curved()
    check_path(FSLA(known.problem(), **RATES, rho=1.0), known, 6, plain_path(known))


def test_ma_soba_with_a_weight_of_one_and_no_lag_is_soba_with_fresh_samples():
    known = Curved()
    averaged, fresh = (
        MASOBA(known.problem(), **RATES, beta=1.0, lagged=False),
        SOBA(known.problem(), **RATES, fresh=True),
    )
    thrifty = SOBA(known.problem(), **RATES)
    stream = draws(known.batch, known.batch, fresh.needs, seed=3)
    for _ in range(6):
        draw = next(stream)
        for solver in (averaged, fresh, thrifty):
            solver.step(draw)
        close(flat(averaged.problem.x), flat(fresh.problem.x).detach(), atol=1e-15)
        assert same(averaged.problem.y, fresh.problem.y)
    assert not torch.allclose(flat(thrifty.problem.x), flat(fresh.problem.x), atol=1e-3)


def test_soba_with_one_batch_is_soba_with_that_batch_in_every_role():
    known = Curved()
    thrifty, fresh = SOBA(known.problem(), **RATES), SOBA(known.problem(), **RATES, fresh=True)
    assert thrifty.needs == Needs(upper=1, lower=1)
    for t in range(4):
        upper, lower = [t % 4], [(t + 1) % 4]
        thrifty.step(Draw((upper,), (lower,)))
        fresh.step(Draw((upper,), (lower,), (lower,), (lower,)))
    assert same(thrifty.state_dict()["x"], fresh.state_dict()["x"])


def test_soba_calls_each_loss_once_per_step():
    problem, calls = Quadratic().problem(), []
    upper, lower = problem.upper, problem.lower
    problem.upper = lambda batch: [calls.append("upper"), upper(batch)][1]
    problem.lower = lambda batch: [calls.append("lower"), lower(batch)][1]
    SOBA(problem).step(Draw((0,), (1,)))
    assert sorted(calls) == ["lower", "upper"]


def test_a_lagged_average_moves_x_by_the_momentum_of_the_step_before():
    known = Curved()
    solver = MASOBA(known.problem(), **RATES, beta=0.3)
    stream = draws(known.batch, known.batch, solver.needs)
    x, m = known.x0, torch.zeros_like(known.x0)
    for _ in range(4):
        info = solver.step(next(stream))
        x, m = x - RATES["lr"] * m, 0.7 * m + 0.3 * flat(info.hypergradient)
        close(flat(solver.problem.x), x, atol=1e-15)
        close(flat(info.m), m, atol=1e-15)


# Normalisation --------------------------------------------------------------------------------------------------------


def moves(solver, step):
    before = [p.detach().clone() for p in solver.problem.x]
    step()
    return torch.stack([(p.detach() - q).norm() for p, q in zip(solver.problem.x, before, strict=True)])


@pytest.mark.parametrize("method", [SLIP, BOREP])
def test_a_norm_per_tensor_moves_every_tensor_by_lr_and_a_global_one_all_of_them_together(method):
    one, each = (method(Quadratic().problem(), **RATES, norm=norm) for norm in ("global", "per_tensor"))
    for _ in range(3):
        close(moves(each, lambda: each.step(0, 0)), torch.full((2,), 0.05, dtype=torch.float64))
        together = moves(one, lambda: one.step(0, 0))
        close(together.norm(), torch.tensor(0.05, dtype=torch.float64))
        assert (together < 0.05).all()


@pytest.mark.parametrize("norm", ["global", "per_tensor"])
@pytest.mark.parametrize("method", [SLIP, BOREP])
def test_a_momentum_of_zero_does_not_move_x(method, norm):
    x, y = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    problem = Problem(lambda b: (y - 3).square().sum(), lambda b: (y - x).square().sum() + y.sum(), x, y)
    solver = method(problem, **RATES, norm=norm)
    solver.step(0, 0)  # f does not depend on x, and z is still zero
    assert same(x, torch.ones(2, dtype=torch.float64))
    assert not same(y, torch.ones(2, dtype=torch.float64))
    solver.step(0, 0)
    close((x - 1).norm(), torch.tensor(0.05, dtype=torch.float64))


# Rounds and balls of BO-REP -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "tasks", "tasks with an encoder"])
def test_lower_batches_of_steps_without_a_round_are_never_made(form):
    known = TaskQuadratics()
    problem = {
        "plain": lambda: known.single_task(0),
        "tasks": known.problem,
        "tasks with an encoder": known.encoder_head_problem,
    }[form]()
    solver = BOREP(problem, **RATES, lower_steps=4, period=3)
    made = []

    def batch(generator):
        made.append(generator)
        return [2, 0]

    stream = draws(lambda generator: [0, 2], batch, solver.needs)
    counts = []
    for _ in range(7):
        made.clear()
        solver.step(next(stream))
        counts.append(len(made))
    assert counts == [6, 2, 2, 6, 2, 2, 6]  # cross and Hessian batch, and four lower ones in every third step


def test_y_rests_in_steps_without_a_round_and_their_lower_loss_is_that_of_the_cross_batch():
    known = StochasticQuadratic()
    solver = BOREP(known.problem(), **RATES)
    stream = draws(known.batch, known.batch, solver.needs)
    for t in range(4):
        x, y = (flat(part).detach().clone() for part in (solver.problem.x, solver.problem.y))
        draw = next(stream)
        info = solver.step(draw)
        assert torch.equal(flat(solver.problem.y), y) == (t % 2 == 1)
        close(info.lower_loss, known.lower(x, y, (draw.cross if t % 2 else draw.lower)[0]))


def test_the_ball_is_one_per_task_about_the_start_of_the_round():
    known, radius = TaskQuadratics(), 1.1
    for problem in (known.problem(), known.encoder_head_problem()):
        solver = BOREP(problem, **RATES, lower_steps=3, period=2, radius=radius)
        rows, held = known._stacked(known.y0).clone(), []
        for t, tasks in enumerate([[0, 3, 4], [1, 2, 3], [4, 1, 3], [0, 1, 2], [2, 3, 0]]):
            x, centre, active = flat(problem.x).detach().clone(), rows.clone(), torch.zeros(3, len(rows), dtype=bool)
            for s in range(3 if t % 2 == 0 else 0):
                for i in tasks:
                    y = rows[i] - 0.1 * known.A[i] @ (rows[i] - known.B[i] @ x - known.c[i])
                    away = y - centre[i]
                    active[s, i] = away.norm() > radius
                    rows[i] = centre[i] + radius * away / away.norm() if active[s, i] else y
            info = solver.step(Draw.of(tasks, tasks, solver.needs))
            close(torch.cat(list(problem.y), dim=1), rows)
            assert int(info.projections) == int(active.any(dim=1).sum())
            held.append(active.any(dim=0)[tasks])
        assert any(h.any() and not h.all() for h in held), "some rows of a step are held back, others are not"


def test_the_ball_is_one_over_all_tensors_of_y():
    known = Quadratic()
    solver = BOREP(known.problem(), lr=0.0, lower_lr=0.2, radius=0.05, lower_steps=3, period=1)
    before = known.y0
    for _ in range(3):
        assert int(solver.step(0, 0).projections) == 3
        y = flat(solver.problem.y).detach().clone()
        close((y - before).norm(), torch.tensor(0.05, dtype=torch.float64))
        before = y


# Tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [SOBA, MASOBA, SLIP])
def test_with_tasks_hypergradients_are_averaged_first_and_the_momentum_is_updated_once(method):
    known, options = TaskQuadratics(), {MASOBA: {"lagged": False}}.get(method, {})
    solver = method(known.encoder_head_problem(), **RATES, **options)
    x, m = known.x0, 0.0
    y, z = known._stacked(known.y0).clone(), torch.zeros(known.count, known.dy, dtype=torch.float64)
    for tasks in ([0, 3, 4], [3, 1, 2], [0, 1, 3], [4, 0, 3]):
        solver.step(Draw.of(tasks, tasks, solver.needs))
        A, B, features = known.A[tasks], known.B[tasks], known.B[tasks] @ x
        pulls = features - known.e[tasks] + torch.einsum("kij,kj->ki", A, z[tasks])  # J_i = −B_iᵀ A_i
        h = torch.einsum("kij,ki->kj", B, pulls).mean(dim=0)
        m = h if method is SOBA else 0.9 * m + 0.1 * h
        z_slope = torch.einsum("kij,kj->ki", A, z[tasks]) - (y[tasks] - known.d[tasks])
        y_slope = torch.einsum("kij,kj->ki", A, y[tasks] - features - known.c[tasks])
        y[tasks], z[tasks] = y[tasks] - 0.1 * y_slope, z[tasks] - 0.15 * z_slope
        x = x - 0.05 * (m / m.norm() if method is SLIP else m)
        close(flat(solver.problem.x), x)
        close(torch.cat(list(solver.problem.y), dim=1), y)


# The rest -------------------------------------------------------------------------------------------------------------


def test_fsla_evaluates_both_points_with_the_same_dropout_masks():
    x, y = (torch.ones(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    problem = Problem(
        lambda b: torch.nn.functional.dropout(x * y).square().sum(), lambda b: (y - x).square().sum(), x, y
    )
    solver = FSLA(problem, lr=0.0, lower_lr=0.0, rho=0.4)  # nothing moves, so the points are the same
    m = flat(solver.step(0, 0).m).clone()
    for _ in range(3):
        info = solver.step(0, 0)
        m = 0.6 * m + 0.4 * flat(info.hypergradient)
        close(flat(info.m), m)
    assert len(m.unique()) > 2, "the masks differ from step to step"


@pytest.mark.parametrize("method", [SLIP, SOBA, MASOBA, BOREP, FSLA])
def test_the_step_of_z_follows_the_lower_one_unless_it_is_given(method):
    for z_lr, expected in ((None, 0.02), (0.15, 0.15)):
        known = Quadratic()
        solver = method(known.problem(), lr=0.05, lower_lr=0.1, z_lr=z_lr)
        solver.lower_optimizer.param_groups[0]["lr"] = 0.02
        late = method in (BOREP, FSLA)  # ∇y f is taken after the lower steps
        z = flat(solver.step(0, 0).z)
        y = flat(solver.problem.y).detach() if late else known.y0
        close(z, expected * (y - known.d))


@pytest.mark.parametrize(
    ("method", "setting", "words"),
    [
        (SOBA, {"fresh": "yes"}, "not one of False, True"),
        (SOBA, {"z_lr": -1.0}, "0 or larger"),
        (SOBA, {"lr": float("nan")}, "lr="),
        (MASOBA, {"beta": 0.0}, r"\(0, 1\]"),
        (MASOBA, {"lagged": None}, "not one of True, False"),
        (BOREP, {"radius": 0}, "number above 0"),
        (BOREP, {"radius": float("nan")}, "number above 0"),
        (BOREP, {"lower_steps": 0}, "at least 1"),
        (BOREP, {"period": 1.5}, "at least 1"),
        (BOREP, {"norm": "row"}, "per_tensor"),
        (FSLA, {"rho": 1.5}, r"\(0, 1\]"),
        (FSLA, {"z_lr": "fast"}, "step size"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(method, setting, words):
    with pytest.raises(SettingError, match=words):
        method(Quadratic().problem(), **setting)


@pytest.mark.parametrize(("lagged", "bound"), [(True, 1.0), (False, 38.0)])
def test_a_lagged_moving_average_is_stable_for_far_smaller_steps(lagged, bound):
    """x' = −m, m' = β (λ x − m): the bounds that the docstring of MASOBA names, for λ = 1 and β = 0.1."""
    for share, shrinks in ((0.97, True), (1.03, False)):
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        optimizer = adambo.updates.MovingAverage([x], lr=share * bound, beta=0.1, lagged=lagged)
        for _ in range(4000):
            x.grad = x.detach().clone()
            optimizer.step()
        assert (abs(float(x.detach())) < 1) == shrinks
