"""StocBiO, TTSA, SUSTAIN, AccBO and VR-AdamBO: the contract, and what is special to methods with a Neumann series."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from states import assert_same
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import adambo
from adambo import SUSTAIN, TTSA, AccBO, AdamBO, Draw, Neumann, StocBiO, VRAdamBO
from adambo.draw import LazyBatches
from adambo.errors import NonFiniteError, SampleError, SettingError
from adambo.testing import AlgorithmContract, Quadratic, StochasticQuadratic, TaskQuadratics, flat

STEP = 0.25
RANDOM = {"terms": 3, "step": STEP, "samples": "random"}
CHAINED = {"terms": 3, "step": STEP, "samples": "chained"}
TWO_POINTS = [SUSTAIN, AccBO, VRAdamBO]


# The contract ---------------------------------------------------------------------------------------------------------


class Truncated(AlgorithmContract):
    """A Neumann series of Q terms rests where its own truncation says, not at the optimum."""

    terms = 3

    def expected_point(self, known):
        power, P = torch.eye(len(known.A), dtype=torch.float64), torch.zeros_like(known.A)
        for _ in range(self.terms):
            P, power = P + STEP * power, power - STEP * known.A @ power
        return known.resting_point(P)


class TestStocBiO(Truncated):
    terms = 4
    steps_from_afar = 100
    ledger_per_step: ClassVar = {
        "grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 3, "hessian_vector": 3, "cross_vector": 1, "samples": 8,
    }  # fmt: skip

    def make(self, problem, **settings):
        return StocBiO(problem, inverse=Neumann(products=3, step=STEP, samples="prefix"), **settings)


class TestTTSA(Truncated):
    tolerance = 0.02  # the truncation level is noise even on a deterministic problem, so x only comes near
    steps_from_afar = 150
    ledger_per_step: ClassVar = {
        "grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 1, "hessian_vector": 1, "cross_vector": 1, "samples": 4,
    }  # fmt: skip

    def make(self, problem, **settings):
        return TTSA(problem, inverse=Neumann(**RANDOM), **settings)


class TwoPointContract(Truncated):
    """The first step has no point before, so it makes half of the calls."""

    products = 1  # of one evaluation, at level 1
    lower_steps: ClassVar = [1, 1, 1]  # of the first three steps

    def expected_ledger(self, steps):
        twice, lower = 2 * steps - 1, sum(self.lower_steps[:steps])
        return {
            "grad_x_f": twice,
            "grad_y_f": twice,
            "grad_y_g": lower,
            "hessian_vector": twice * self.products,
            "cross_vector": twice,
            "samples": steps * (2 + self.products) + lower,
        }


class TestSUSTAIN(TwoPointContract):
    tolerance = 0.02  # the level is noise, as above
    steps_from_afar = 150

    def make(self, problem, **settings):
        return SUSTAIN(problem, inverse=Neumann(**RANDOM), **settings)

    def expected_ledger(self, steps):
        return super().expected_ledger(steps) | {"grad_y_g": 2 * steps - 1}


class TestAccBO(TwoPointContract):
    tolerance = 0.02  # the level is noise, as above
    steps_from_afar = 150
    lower_steps: ClassVar = [1, 1, 1]
    options: ClassVar = {}

    def make(self, problem, **settings):
        return AccBO(problem, inverse=Neumann(**RANDOM), **self.options, **settings)


class TestAccBOUpdated(TestAccBO):
    options: ClassVar = {"hypergradient_at": "updated"}


class TestAccBOOptionTwo(TestAccBO):
    lower_steps: ClassVar = [3, 0, 3]
    options: ClassVar = {"option": 2}


class TestAccBOOptionTwoUpdated(TestAccBO):
    lower_steps: ClassVar = [3, 0, 3]
    options: ClassVar = {"option": 2, "hypergradient_at": "updated"}


class TestVRAdamBO(TwoPointContract):
    products = 2
    far_lr = 1.0
    steps_from_afar = 200
    lower_steps: ClassVar = [1, 1, 1]
    options: ClassVar = {}

    def make(self, problem, **settings):
        return VRAdamBO(problem, inverse=Neumann(**CHAINED), **self.options, **settings)


class TestVRAdamBOOptionTwo(TestVRAdamBO):
    lower_steps: ClassVar = [3, 0, 3]
    options: ClassVar = {"option": 2}


# The formulas, by hand ------------------------------------------------------------------------------------------------


class ByHand:
    """The oracles of a `StochasticQuadratic`, written out: G_i = ½ rᵀA_i r + ⟨y, b_i + N_i x⟩, r = y − Bx − c."""

    def __init__(self, known):
        self.known = known

    def f_x(self, x, batch):
        return self.known.C @ (x - self.known.e) + self.known.e_i[batch].mean(0)

    def f_y(self, y, batch):
        return y - self.known.d + self.known.d_i[batch].mean(0)

    def g(self, x, y, batch):
        k, r = self.known, y - self.known.B @ x - self.known.c
        return r @ k.A_i[batch].mean(0) @ r / 2 + y @ (k.b_i[batch].mean(0) + k.N_i[batch].mean(0) @ x)

    def g_y(self, x, y, batch):
        k = self.known
        return k.A_i[batch].mean(0) @ (y - k.B @ x - k.c) + k.b_i[batch].mean(0) + k.N_i[batch].mean(0) @ x

    def cross(self, z, batch):
        k = self.known
        return (k.N_i[batch].mean(0) - k.A_i[batch].mean(0) @ k.B).T @ z

    def factor(self, v, batch):
        return v - STEP * self.known.A_i[batch].mean(0) @ v

    def estimate(self, x, y, draw, samples):
        v = s = self.f_y(y, draw.upper[0])
        if samples == "random":
            for batch in draw.hessian[: draw.level]:
                s = self.factor(s, batch)
            z = 3 * STEP * s
        else:
            for batch in draw.hessian[:2]:
                s = v + self.factor(s, batch)
            z = STEP * s
        return self.f_x(x, draw.upper[0]) - self.cross(z, draw.cross[0])


KNOWN = StochasticQuadratic(samples=5)
HAND = ByHand(KNOWN)


def draws_for(solver, steps, seed=3):
    stream = adambo.draws(upper=KNOWN.batch, lower=KNOWN.batch, needs=solver.needs, seed=seed)
    return [next(stream) for _ in range(steps)]


def everything(x, y):
    return torch.cat([flat(x), flat(y)]).detach()


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found.detach(), expected, rtol=0.0, atol=atol)


def at(solver):
    return flat(solver.problem.x).detach(), flat(solver.problem.y).detach()


# One evaluation: StocBiO and TTSA -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StocBiO, TTSA])
@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_surrogate_and_an_update_are_a_step(kind, form):
    known = TaskQuadratics()
    whole, halves = (kind(getattr(known, form)(), lr=0.1, lower_lr=0.2) for _ in range(2))
    for tasks in ([0, 3], [3, 1], [0, 1], [3, 1]):
        batches = [list(tasks) for _ in range(2)]
        whole.step(*batches)
        halves.surrogate(*batches).backward()
        halves.upper_optimizer.step()
        halves.update()
    close(everything(halves.problem.x, halves.problem.y), everything(whole.problem.x, whole.problem.y), 1e-14)
    assert halves.ledger == whole.ledger
    assert halves.steps == whole.steps == 4


def test_stocbio_takes_everything_at_the_last_lower_iterate():
    solver = StocBiO(KNOWN.problem(), lr=0.1, lower_lr=0.2, inverse=Neumann(**(CHAINED | {"samples": "prefix"})))
    x, y = at(solver)
    for draw in draws_for(solver, 3):
        solver.step(draw)
        for batch in draw.lower:
            y = y - 0.2 * HAND.g_y(x, y, batch)
        r = HAND.f_y(y, draw.upper[0])
        z = STEP * (r + HAND.factor(r, draw.hessian[0]) + HAND.factor(HAND.factor(r, draw.hessian[0]), draw.hessian[1]))
        x = x - 0.1 * (HAND.f_x(x, draw.upper[0]) - HAND.cross(z, draw.cross[0]))
        close(everything(*[[t] for t in (x, y)]), torch.cat(at(solver)))


def test_ttsa_scales_its_one_product_by_the_number_of_terms():
    solver = TTSA(KNOWN.problem(), lr=0.1, lower_lr=0.2, inverse=Neumann(**RANDOM))
    x, y = at(solver)
    for draw, level in zip(draws_for(solver, 3), (2, 0, 1), strict=True):
        info = solver.step(replace(draw, level=level))
        y = y - 0.2 * HAND.g_y(x, y, draw.lower[0])
        x = x - 0.1 * HAND.estimate(x, y, replace(draw, level=level), "random")
        close(torch.cat(at(solver)), torch.cat([x, y]))
        assert info.k == level


def test_ttsa_runs_on_two_time_scales_by_ordinary_schedulers():
    solver = TTSA(KNOWN.problem(), lr=0.1, lower_lr=0.2)
    schedulers = [
        LambdaLR(solver.upper_optimizer, lambda t: (t + 1) ** -0.6),
        LambdaLR(solver.lower_optimizer, lambda t: (t + 1) ** -0.4),
    ]
    for t, draw in enumerate(draws_for(solver, 3)):
        x, y = at(solver)
        info = solver.step(draw)
        close(at(solver)[0], x - 0.1 * (t + 1) ** -0.6 * flat(info.hypergradient))
        close(at(solver)[1], y - 0.2 * (t + 1) ** -0.4 * HAND.g_y(x, y, draw.lower[0]))
        for scheduler in schedulers:
            scheduler.step()


# Two evaluations ------------------------------------------------------------------------------------------------------


def test_sustain_with_weights_of_one_is_plain_sgd():
    solver = SUSTAIN(KNOWN.problem(), lr=0.1, lower_lr=0.2, rho_f=1.0, rho_g=1.0, inverse=Neumann(**RANDOM))
    x, y = at(solver)
    for draw in draws_for(solver, 4):
        solver.step(draw)
        x, y = x - 0.1 * HAND.estimate(x, y, draw, "random"), y - 0.2 * HAND.g_y(x, y, draw.lower[0])
        close(torch.cat(at(solver)), torch.cat([x, y]))


@pytest.mark.parametrize("hypergradient_at", ["current", "updated"])
def test_accbo_with_a_weight_of_one_makes_normalised_plain_steps(hypergradient_at):
    solver = AccBO(
        KNOWN.problem(), 0.1, 0.2, option=1, beta=1.0, averaging=0.3, inverse=Neumann(**RANDOM),
        hypergradient_at=hypergradient_at,
    )  # fmt: skip
    x, y = at(solver)
    y_prev = y_hat = y
    for draw in draws_for(solver, 4):
        info = solver.step(draw)
        w = y + 0.5 * (y - y_prev)
        y, y_prev = w - 0.2 * HAND.g_y(x, w, draw.lower[0]), y
        y_hat, before = 0.7 * y_hat + 0.3 * y, y_hat
        h = HAND.estimate(x, before if hypergradient_at == "current" else y_hat, draw, "random")
        x = x - 0.1 * h / h.norm()
        close(torch.cat(at(solver)), torch.cat([x, y]))
        close(flat(info.y_hat), y_hat)
        close(flat(info.m), h)


def test_vradambo_with_a_weight_of_one_divides_the_plain_estimate_by_its_own_scale():
    solver = VRAdamBO(
        KNOWN.problem(),
        0.1,
        0.2,
        beta=1.0,
        beta_sq=0.3,
        eps=0.1,
        option=2,
        lower_steps=2,
        period=3,
        inverse=Neumann(**CHAINED),
    )
    x, y = at(solver)
    y_hat, v = y, 0.0
    for t, draw in enumerate(draws_for(solver, 5)):
        info = solver.step(draw)
        h, x_t, y_prev = HAND.estimate(x, y_hat, draw, "chained"), x, y
        v = 0.7 * v + 0.3 * h**2
        x = x - 0.1 * h / ((v / (1 - 0.7 ** (t + 1))).sqrt() + 0.1)
        for batch in draw.lower if t % 3 == 0 else ():
            w = y + 0.5 * (y - y_prev)
            y, y_prev = w - 0.2 * HAND.g_y(x_t, w, batch), y
        y_hat = (y_hat + y) / 2
        close(torch.cat(at(solver)), torch.cat([x, y]))
        close(flat(info.v), v)
        close(flat(info.y_hat), y_hat)


@pytest.mark.parametrize("lower", [{"option": 1}, {"option": 2, "lower_steps": 1, "period": 1}])
def test_vradambo_without_acceleration_and_recursion_is_adambo_without_momentum(lower):
    shared = {"lr": 0.05, "lower_lr": 0.1, "beta": 1.0, "beta_sq": 0.3, "eps": 1e-3, "inverse": Neumann(**CHAINED)}
    plain = AdamBO(KNOWN.problem(), **shared)
    ours = VRAdamBO(KNOWN.problem(), **shared, nesterov=0.0, averaging=1.0, **lower)
    for solver in (plain, ours):
        solver.warm_start([[0], [1], [2]])
    for draw in draws_for(plain, 6):
        plain.step(draw)
        ours.step(draw)
        close(torch.cat(at(ours)), torch.cat(at(plain)))


def test_with_a_fixed_level_and_no_noise_sustain_is_exact():
    """E_t(x, y) is then one function, the same in every step, and the recursion telescopes."""
    known = Quadratic()
    solver = SUSTAIN(known.problem(), lr=0.1, lower_lr=0.1, rho_f=0.3, rho_g=0.2, inverse=Neumann(**RANDOM))
    for _ in range(6):
        x, y = at(solver)
        info = solver.step(Draw((0,), (0,), (0,), (0, 0), level=2))
        r = y - known.B @ x - known.c
        shrunk = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - STEP * known.A, 2)
        z = 3 * STEP * shrunk @ (y - known.d)
        close(flat(info.h_f), known.C @ (x - known.e) + known.B.T @ known.A @ z, 1e-10)
        close(flat(info.h_g), known.A @ r, 1e-10)


@pytest.mark.parametrize("kind", [AccBO, VRAdamBO])
@pytest.mark.parametrize("option", [1, 2])
def test_with_no_noise_the_recursive_momentum_is_the_hypergradient(kind, option):
    """Both points use their own ŷ, or the telescope breaks."""
    solver = kind(Quadratic().problem(), 0.1, 0.1, beta=0.2, option=option, inverse=Neumann(**CHAINED))
    solver.warm_start([0, 0])
    for _ in range(6):
        info = solver.step(0, 0)
        close(flat(info.m), flat(info.hypergradient), 1e-10)


def test_the_recursion_corrects_with_the_new_sample_at_the_old_point():
    """Not with the estimate that the step before has stored, as published code has it."""
    solver = AccBO(KNOWN.problem(), 0.1, 0.2, beta=0.3, option=1, inverse=Neumann(**RANDOM))
    (x_prev, y_hat_prev), m = at(solver), None
    y_hat = y_hat_prev
    for draw in draws_for(solver, 4):
        x = at(solver)[0]
        info = solver.step(draw)
        h = HAND.estimate(x, y_hat, draw, "random")
        m = h if m is None else h + 0.7 * (m - HAND.estimate(x_prev, y_hat_prev, draw, "random"))
        close(flat(info.m), m)
        x_prev, y_hat_prev, y_hat = x, y_hat, flat(info.y_hat)


def test_the_decay_of_sustain_is_one_ordinary_scheduler_per_level():
    solver = SUSTAIN(KNOWN.problem(), lr=0.1, lower_lr=0.2, inverse=Neumann(**RANDOM))
    optimizers = (solver.upper_optimizer, solver.lower_optimizer)
    schedulers = [LambdaLR(optimizer, lambda e: (e + 2) ** (-1 / 3)) for optimizer in optimizers]
    draws = iter(draws_for(solver, 6))
    for epoch in range(3):
        decay = (epoch + 2) ** (-1 / 3)
        for _ in range(2):
            x, y = at(solver)
            info = solver.step(next(draws))
            close(at(solver)[0], x - 0.1 * decay * flat(info.h_f))
            close(at(solver)[1], y - 0.2 * decay * flat(info.h_g))
        for scheduler in schedulers:
            scheduler.step()


# Dropout --------------------------------------------------------------------------------------------------------------


def dropout_problem():
    """Dropout in the encoder and below the head; a batch is (inputs, targets)."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.4)).double()
    head, drop = nn.Linear(6, 2).double(), nn.Dropout(0.3)

    def fit(batch):
        return (head(drop(encoder(batch[0]))) - batch[1]).square().mean()

    def lower(batch):
        return fit(batch) + 0.1 * (head.weight.square().sum() + head.bias.square().sum())

    return adambo.Problem(fit, lower, encoder, head)


def examples(seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(5, n, generator=generator, dtype=torch.float64) for n in (3, 2))


def fixed_step(kind):
    """A Neumann step that no measured curvature changes between steps."""
    return Neumann(**((CHAINED if kind is VRAdamBO else RANDOM) | {"step": 0.1}))


def dropout_draw(solver, seed):
    needs = solver.needs
    roles = [[examples(10 * k + i) for i in range(n)] for k, n in enumerate((1, needs.lower, 1, needs.hessian))]
    return Draw(*roles, level=needs.hessian if needs.levels else None, seed=seed)


def evaluations(solver, draw):
    """The estimates at the current and at the previous point."""
    captured = []
    look_back = solver.upper_optimizer.look_back
    solver.upper_optimizer.look_back = lambda h: (captured.append(h), look_back(h))
    info = solver.step(draw)
    solver.upper_optimizer.look_back = look_back
    return flat(info.hypergradient).clone(), flat(captured[0])


@pytest.mark.parametrize("kind", TWO_POINTS)
def test_both_points_see_the_same_dropout(kind):
    every_step = {} if kind is SUSTAIN else {"period": 1}  # the masks of a batch depend on its place in the draw
    solver = kind(dropout_problem(), lr=0.0, lower_lr=0.0, inverse=fixed_step(kind), **every_step)
    draw = dropout_draw(solver, seed=0)
    solver.step(draw)
    now, before = evaluations(solver, replace(draw, seed=1))
    assert torch.equal(now, before), "nothing has moved, so only different masks could tell the points apart"
    again, _ = evaluations(solver, replace(draw, seed=1))
    other, _ = evaluations(solver, replace(draw, seed=2))
    assert torch.equal(again, now)
    assert not torch.allclose(other, now)


def test_both_lower_gradients_of_sustain_see_the_same_dropout():
    solver = SUSTAIN(dropout_problem(), lr=0.0, lower_lr=0.0, rho_g=0.5)
    draw = dropout_draw(solver, seed=0)
    first = flat(solver.step(draw).h_g)
    same = flat(solver.step(draw).h_g)
    close(same, first, 1e-15)
    other = flat(solver.step(replace(draw, seed=1)).h_g)
    assert not torch.allclose(other, first)


@pytest.mark.parametrize("kind", TWO_POINTS)
def test_a_draw_without_a_seed_gets_new_masks_in_every_step(kind):
    solver = kind(dropout_problem(), lr=0.0, lower_lr=0.0, inverse=fixed_step(kind))
    draw = dropout_draw(solver, seed=None)
    solver.step(draw)
    now, before = evaluations(solver, draw)
    assert torch.equal(now, before)
    assert not torch.allclose(evaluations(solver, draw)[0], now)


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("kind", TWO_POINTS)
def test_the_random_numbers_of_the_program_are_left_alone(kind, snapshot):
    solver = kind(dropout_problem())
    draw = dropout_draw(solver, seed=None)
    if snapshot:
        draw = replace(draw, snapshot=replace(draw, lower=()))
    torch.manual_seed(5)
    torch.rand(3)
    seed, state = torch.initial_seed(), torch.get_rng_state()
    for _ in range(3):
        solver.step(draw)
    assert torch.initial_seed() == seed
    assert torch.equal(torch.get_rng_state(), state)


# What is kept ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "moments", "options"),
    [(SUSTAIN, 1, {}), (AccBO, 1, {}), (AccBO, 1, {"option": 1, "hypergradient_at": "updated"}), (VRAdamBO, 2, {})],
)
def test_between_steps_there_is_one_extra_copy_of_x(kind, moments, options):
    size = 1009  # no other tensor of the program has as many elements
    x, y = torch.zeros(size, requires_grad=True), torch.zeros(2, requires_grad=True)
    problem = adambo.Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x[:2]).square().sum(), x, y)
    solver = kind(problem, **options)
    for _ in range(3):
        solver.step(0, 0)
    x.grad = None
    gc.collect()
    found = {t.data_ptr() for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and t.numel() == size}
    assert len(found) == 1 + moments + 1, "x, the moments, and x of the step before"


# The accelerated lower level ------------------------------------------------------------------------------------------


def nesterov_by_hand(x, y, batches, rate, alpha=0.5):
    y_prev = y
    for batch in batches:
        w = y + alpha * (y - y_prev)
        y, y_prev = w - rate * HAND.g_y(x, w, batch), y
    return y


@pytest.mark.parametrize("kind", [AccBO, VRAdamBO])
def test_a_warm_start_is_accelerated_and_every_call_starts_its_momentum_anew(kind):
    solver = kind(KNOWN.problem(), lr=0.1, lower_lr=0.2, option=1, inverse=Neumann(**CHAINED))
    x, y = at(solver)
    for batches in ([[0], [1], [2]], [[3], [3]]):
        solver.warm_start(batches)
        y = nesterov_by_hand(x, y, batches, 0.2)
        close(at(solver)[1], y)
    assert solver.ledger.grad_y_g == 5
    (draw,) = draws_for(solver, 1)
    info = solver.step(draw)
    y_next = y - 0.2 * HAND.g_y(x, y, draw.lower[0])  # no momentum: y_prev = y
    close(at(solver)[1], y_next)
    close(flat(info.y_hat), (y + y_next) / 2)  # ŷ = y


def test_a_warm_start_in_the_middle_forgets_momentum_and_average():
    solver = AccBO(KNOWN.problem(), lr=0.1, lower_lr=0.2, option=1, inverse=Neumann(**RANDOM))
    *first, last = draws_for(solver, 4)
    for draw in first:
        solver.step(draw)
    solver.warm_start([[1]])
    x, y = at(solver)
    info = solver.step(last)
    y_next = y - 0.2 * HAND.g_y(x, y, last.lower[0])
    close(at(solver)[1], y_next)
    close(flat(info.y_hat), (y + y_next) / 2)


@pytest.mark.parametrize("kind", [AccBO, VRAdamBO])
def test_a_warm_start_that_fails_changes_nothing_and_leaves_the_memory_as_it_was(kind):
    problem = KNOWN.problem()
    solver = kind(problem, lr=0.1, lower_lr=0.2, option=1, inverse=Neumann(**CHAINED))
    for draw in draws_for(solver, 2):
        solver.step(draw)
    before, healthy = solver.state_dict(), problem.lower
    problem.lower = lambda batch: healthy(batch) * (float("nan") if batch == [4] else 1.0)
    with pytest.raises(NonFiniteError):
        solver.warm_start([[0], [1], [4]])
    after = solver.state_dict()
    for state in (before, after):
        del state["ledger"]
    assert_same(after, before)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_each_task_has_its_own_momentum_in_a_warm_start(form):
    known = TaskQuadratics()
    solver = AccBO(getattr(known, form)(), lower_lr=0.2)
    solver.warm_start([[0, 1], [2, 1], [3, 0], [0]])
    for task, visits in ((0, 3), (1, 2), (2, 1), (3, 1), (4, 0)):
        alone = AccBO(known.single_task(task), lower_lr=0.2)
        alone.warm_start([task] * visits)
        close(torch.cat([p[task] for p in solver.problem.y]), flat(alone.problem.y).detach())


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_warm_start_forgets_the_rows_it_touches_and_no_other(form):
    known = TaskQuadratics()
    solver = AccBO(getattr(known, form)(), lr=0.0, lower_lr=0.2, option=1)
    untouched = AccBO(getattr(known, form)(), lr=0.0, lower_lr=0.2, option=1)
    for _ in range(2):
        for each in (solver, untouched):
            each.step([0, 1], [0, 1])
    solver.warm_start([[0]])
    rows = [p.detach().clone() for p in solver.problem.y]
    info, other = (each.step([0, 1], [0, 1]) for each in (solver, untouched))
    close(torch.cat([p[1] for p in info.y_hat]), torch.cat([p[1] for p in other.y_hat]))
    moved = zip(rows, solver.problem.y, strict=True)
    close(torch.cat([p[0] for p in info.y_hat]), torch.cat([(old[0] + new[0]) / 2 for old, new in moved]).detach())


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
@pytest.mark.parametrize(("kind", "options"), [
    (StocBiO, {}), (TTSA, {}), (SUSTAIN, {}), (AccBO, {}), (AccBO, {"option": 1, "hypergradient_at": "updated"}),
    (VRAdamBO, {}), (VRAdamBO, {"option": 1}),
])  # fmt: skip
def test_a_stack_in_which_one_task_is_visited_is_that_task_alone(kind, options, form):
    known, inverse = TaskQuadratics(), Neumann(**(CHAINED if kind is VRAdamBO else RANDOM))
    problems = (getattr(known, form)(), known.single_task(3))
    stacked, alone = (kind(p, 0.1, 0.2, inverse=inverse, **options) for p in problems)
    for _ in range(4):
        stacked.step([3], [3])
        alone.step([3], [3])
    close(flat(stacked.problem.x), flat(alone.problem.x).detach())
    close(torch.cat([p[3] for p in stacked.problem.y]), flat(alone.problem.y).detach())


def test_a_task_goes_on_with_its_own_momentum_and_average_after_others_were_visited():
    known = TaskQuadratics()
    together, alone = (AccBO(known.problem(), lr=0.0, lower_lr=0.2, option=1) for _ in range(2))
    for tasks in ([0, 1], [1, 2], [0, 3], [4], [0]):
        info = together.step(tasks, tasks)
    for _ in range(3):
        only = alone.step([0], [0])
    close(torch.cat([p[0] for p in together.problem.y]), torch.cat([p[0] for p in alone.problem.y]).detach())
    close(flat(info.y_hat), flat(only.y_hat))


@pytest.mark.parametrize("kind", [AccBO, VRAdamBO])
def test_a_lower_batch_of_a_step_that_keeps_y_is_never_made(kind):
    def refuse():
        raise AssertionError("a batch was made that nothing needs")

    solver = kind(KNOWN.problem(), lr=0.1, lower_lr=0.2, option=2, period=3, inverse=Neumann(**CHAINED))
    for t, draw in enumerate(draws_for(solver, 6)):
        x, y = at(solver)
        if t % 3 == 0:
            solver.step(draw)
            close(at(solver)[1], nesterov_by_hand(x, y, draw.lower, 0.2))  # the momentum starts anew
        else:
            solver.step(replace(draw, lower=LazyBatches([refuse] * 3)))
            assert torch.equal(at(solver)[1], y)


@pytest.mark.parametrize("kind", [AccBO, VRAdamBO])
def test_a_step_that_keeps_y_tells_the_lower_loss_of_the_cross_batch(kind):
    solver = kind(KNOWN.problem(), lr=0.1, lower_lr=0.2, option=2, inverse=Neumann(**CHAINED))
    first, second = draws_for(solver, 2)
    close(solver.step(first).lower_loss, HAND.g(KNOWN.x0, KNOWN.y0, first.lower[0]))
    y_hat = (KNOWN.y0 + at(solver)[1]) / 2
    expected = HAND.g(at(solver)[0], y_hat, second.cross[0])
    close(solver.step(second).lower_loss, expected)


@pytest.mark.parametrize("norm", ["global", "per_tensor"])
def test_the_steps_of_accbo_have_the_length_of_the_rate(norm):
    solver = AccBO(KNOWN.problem(), lr=0.1, lower_lr=0.2, norm=norm)
    for draw in draws_for(solver, 3):
        before = [p.detach().clone() for p in solver.problem.x]
        solver.step(draw)
        moves = [p.detach() - q for p, q in zip(solver.problem.x, before, strict=True)]
        for part in [flat(moves)] if norm == "global" else moves:
            close(part.norm(), torch.tensor(0.1, dtype=torch.float64))


# The initial batch of VR-AdamBO ---------------------------------------------------------------------------------------


def large_draw(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    sizes = (count, 0, count, 2 * count)
    return Draw(*[[torch.randint(5, (3,), generator=generator).tolist() for _ in range(n)] for n in sizes])


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_estimate_is_the_mean_over_the_snapshot(count):
    solver = VRAdamBO(KNOWN.problem(), lr=0.1, lower_lr=0.2, beta_sq=0.3, option=2, inverse=Neumann(**CHAINED))
    large, (first, second) = large_draw(count), draws_for(solver, 2)
    parts = [
        Draw(large.upper[i : i + 1], (), large.cross[i : i + 1], large.hessian[2 * i : 2 * i + 2]) for i in range(count)
    ]
    h = torch.stack([HAND.estimate(KNOWN.x0, KNOWN.y0, part, "chained") for part in parts]).mean(0)
    info = solver.step(replace(first, snapshot=large))
    for found in (info.hypergradient, info.m):
        close(flat(found), h)
    close(flat(info.v), 0.3 * h**2)
    close(at(solver)[1], nesterov_by_hand(KNOWN.x0, KNOWN.y0, first.lower, 0.2))
    calls = solver.ledger.as_dict()
    assert (calls["grad_x_f"], calls["grad_y_f"], calls["cross_vector"]) == (count,) * 3
    assert (calls["hessian_vector"], calls["grad_y_g"], calls["samples"]) == (2 * count, 3, 4 * count + 3)
    y_hat = flat(info.y_hat)
    x = at(solver)[0]
    info = solver.step(replace(second, snapshot=large))  # only the first step looks at it
    close(flat(info.hypergradient), HAND.estimate(x, y_hat, second, "chained"))


def test_a_snapshot_makes_the_batches_of_its_own_draw_superfluous():
    def refuse():
        raise AssertionError("a batch was made that nothing needs")

    solver = VRAdamBO(KNOWN.problem(), inverse=Neumann(**CHAINED))
    unread = {"upper": LazyBatches([refuse]), "cross": LazyBatches([refuse]), "hessian": LazyBatches([refuse] * 2)}
    solver.step(Draw(lower=([0], [1], [2]), snapshot=large_draw(2), **unread))


@pytest.mark.parametrize("short", [{"upper": []}, {"cross": [[0]]}, {"hessian": [[0]] * 3}])
def test_a_snapshot_with_too_few_batches_is_refused_before_anything_changes(short):
    solver = VRAdamBO(KNOWN.problem(), inverse=Neumann(**CHAINED))
    (draw,) = draws_for(solver, 1)
    before = solver.state_dict()
    with pytest.raises(SampleError, match=r"snapshot.*An estimate takes"):
        solver.step(replace(draw, snapshot=replace(large_draw(2), **short)))
    assert_same(solver.state_dict(), before)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_snapshot_may_be_about_more_tasks_than_its_draw(form):
    known = TaskQuadratics()
    solver = VRAdamBO(getattr(known, form)(), lr=0.1, lower_lr=0.2, inverse=adambo.LinearSystem(lr=0.2))
    batches = [[0, 1], [2, 3, 4]]
    info = solver.step(replace(Draw.of([1], [1], solver.needs), snapshot=Draw(batches, (), batches, batches)))
    x, rows = known.x0, torch.cat([p.detach() for p in known.problem().y], dim=1)
    estimates = []
    for tasks in batches:
        # One step of the linear system from z = 0 gives z = 0.2 ∇y f, and J_i = −B_iᵀA_i.
        f_x = [known.B[i].T @ (known.B[i] @ x - known.e[i]) for i in tasks]
        pull = [known.B[i].T @ known.A[i] @ (0.2 * (rows[i] - known.d[i])) for i in tasks]
        estimates.append(torch.stack([a + b for a, b in zip(f_x, pull, strict=True)]).mean(0))
    close(flat(info.hypergradient), torch.stack(estimates).mean(0))
    unvisited = [0, 2, 3, 4]
    close(torch.cat([p.detach() for p in solver.problem.y], dim=1)[unvisited], rows[unvisited], 0.0)


# At the door ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "settings", "message"), [
    (StocBiO, {"lower_steps": 0}, "lower_steps=0 must be an integer of at least 1"),
    (StocBiO, {"lr": -1.0}, "lr=-1.0 is not a step size"),
    (TTSA, {"inverse": 3}, "inverse=3 is not an Inverse; give for example"),
    (SUSTAIN, {"rho_g": 0.0}, r"rho_g=0.0 is the weight of the new value.*\(0, 1\]"),
    (AccBO, {"nesterov": 1.0}, r"nesterov=1.0 is the share.*\[0, 1\)"),
    (AccBO, {"averaging": 0.0}, r"averaging=0.0 is the weight of the new value"),
    (AccBO, {"option": "II"}, "option='II' is not one of 1, 2"),
    (AccBO, {"period": 0}, "period=0 must be an integer"),
    (AccBO, {"norm": "max"}, "norm='max' is neither"),
    (AccBO, {"hypergradient_at": "next"}, "hypergradient_at='next' is not one of"),
    (VRAdamBO, {"beta_sq": 2.0}, "beta_sq=2.0 is the weight"),
    (VRAdamBO, {"eps": -1.0}, "eps=-1.0 is added to a square root"),
    (VRAdamBO, {"lower_lr": float("nan")}, "lower_lr=nan is not a step size"),
])  # fmt: skip
def test_a_setting_that_cannot_work_is_refused_with_a_reason(kind, settings, message):
    with pytest.raises(SettingError, match=message):
        kind(KNOWN.problem(), **settings)


def test_option_one_needs_one_lower_batch_and_option_two_as_many_as_steps():
    for kind in (AccBO, VRAdamBO):
        assert kind(KNOWN.problem(), option=1, lower_steps=5).needs.lower == 1
        assert kind(KNOWN.problem(), option=2, lower_steps=5).needs.lower == 5


def test_a_snapshot_that_is_no_draw_is_refused_with_a_reason():
    solver = VRAdamBO(KNOWN.problem(), inverse=Neumann(**CHAINED))
    (draw,) = draws_for(solver, 1)
    with pytest.raises(SampleError, match="takes a Draw of its own, but came list"):
        solver.step(replace(draw, snapshot=[0, 1]))
