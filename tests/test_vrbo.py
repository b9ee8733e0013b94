"""VRBO keeps the contract, follows its recursion, and carries exact estimates where there is no noise."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from states import assert_same
from torch import nn

import adambo
from adambo import VRBO, ConjugateGradient, Draw, Neumann, SampleError, SettingError, StateError
from adambo.testing import AlgorithmContract, Quadratic, StochasticQuadratic, TaskQuadratics, flat

STEP = 0.25


def series(A, terms, step=STEP):
    """step Σ_{q<terms} (I − step A)^q"""
    power, P = torch.eye(len(A), dtype=torch.float64), torch.zeros_like(A)
    for _ in range(terms):
        P, power = P + step * power, power - step * A @ power
    return P


def prefix(products):
    return Neumann(products=products, step=STEP, samples="prefix")


# The contract ---------------------------------------------------------------------------------------------------------


def table(m, hessian):
    calls = 2 * (m + 2)
    counts = dict.fromkeys(("grad_x_f", "grad_y_f", "grad_y_g", "cross_vector"), calls)
    return counts | {"hessian_vector": calls * hessian}


class TestPrefix(AlgorithmContract):
    """Steps 0 and 2 of three have a snapshot, whose one lower batch has three lower roles."""

    ledger_per_step: ClassVar = table(m=1, hessian=3) | {"samples": 3 * (1 + 1 + 1 + 3)}
    far_lr, steps_from_afar = 0.3, 150  # y lags behind x, and plain steps of 0.5 overshoot

    def make(self, problem, **settings):
        return VRBO(problem, inverse=prefix(3), **settings)

    def expected_point(self, known):
        return known.resting_point(series(known.A, terms=4))

    def _stream(self, solver, known, seed=7):
        def large(generator):
            return torch.randint(known.samples, (3,), generator=generator).tolist()

        return adambo.draws(known.batch, known.batch, solver.needs, seed, snapshot=(large, large))

    def expected_ledger(self, steps):
        snapshots = -(-steps // 2)
        extra = dict.fromkeys(("grad_x_f", "grad_y_f", "grad_y_g", "cross_vector"), snapshots)
        extra |= {"hessian_vector": 3 * snapshots, "samples": 4 * snapshots}
        return {name: count + extra[name] for name, count in super().expected_ledger(steps).items()}


class TestOneLowerStep(AlgorithmContract):
    ledger_per_step: ClassVar = table(m=0, hessian=5) | {"samples": 2 * 4, "curvature_vector": 0}
    far_lr, steps_from_afar = 0.3, 150

    def make(self, problem, **settings):
        return VRBO(problem, inverse=ConjugateGradient(5), period=3, inner_steps=0, **settings)


class TestAutomaticStep(AlgorithmContract):
    """The curvature is measured at one point of a step; on the way to the optimum it is 2, so s = 1/(1.25 · 2)."""

    ledger_per_step: ClassVar = table(m=0, hessian=2) | {"samples": 2 * 5}
    far_lr, steps_from_afar = 0.3, 150

    def make(self, problem, **settings):
        return VRBO(problem, inverse=Neumann(terms=3), period=1, inner_steps=0, **settings)

    def expected_point(self, known):
        return known.resting_point(series(known.A, terms=3, step=0.4))

    def expected_ledger(self, steps):
        return super().expected_ledger(steps) | {"curvature_vector": 20 + 3 + 3}


# The recursion --------------------------------------------------------------------------------------------------------


class ByHand:
    """Section "VRBO" of the papers in plain torch, on flat vectors."""

    def __init__(self, known, lr, lower_lr, products):
        self.known, self.lr, self.lower_lr, self.products = known, lr, lower_lr, products
        self.x, self.y = known.x0, known.y0

    def estimates(self, x, y, upper, lower, cross, hessian):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        f_x, f_y = torch.autograd.grad(self.known.upper(x, y, upper), (x, y))
        (g_y,) = torch.autograd.grad(self.known.lower(x, y, lower), y)
        r, z = f_y, STEP * f_y
        for batch in hessian:
            H = torch.autograd.functional.hessian(lambda w, b=batch: self.known.lower(x.detach(), w, b), y.detach())
            r = r - STEP * H @ r
            z = z + STEP * r
        (slope,) = torch.autograd.grad(self.known.lower(x, y, cross), y, create_graph=True)
        (J_z,) = torch.autograd.grad(slope @ z, x)
        return f_x - J_z, g_y

    def step(self, draw, is_snapshot):
        n, blocks = self.products, []
        for s in range(len(draw.lower)):
            blocks.append((draw.upper[s], draw.lower[s], draw.cross[s], draw.hessian[n * s : n * s + n]))
        if is_snapshot:
            upper, lower = draw.snapshot.upper[0], draw.snapshot.lower[0]
            self.v, self.u = self.estimates(self.x, self.y, upper, lower, lower, [lower] * n)
        x, y = self.x - self.lr * self.v, self.y
        before = (self.x, self.y)
        for s, block in enumerate(blocks):
            here, there = self.estimates(x, y, *block), self.estimates(*before, *block)
            self.v, self.u = self.v + here[0] - there[0], self.u + here[1] - there[1]
            if s < len(blocks) - 1:
                before, y = (x, y), y - self.lower_lr * self.u
        self.x, self.y = x, y


def counted(known, needs, seed):
    """A draw of single samples, and a snapshot of three; its cross and Hessian batches are not given."""
    generator = torch.Generator().manual_seed(seed)

    def large():
        return torch.randint(known.samples, (3,), generator=generator).tolist()

    counts = (needs.upper, needs.lower, needs.cross, needs.hessian)
    roles = [tuple(known.batch(generator) for _ in range(count)) for count in counts]
    return Draw(*roles, snapshot=Draw(upper=(large(),), lower=(large(),)))


@pytest.mark.parametrize(("period", "inner_steps", "products"), [(1, 0, 2), (2, 1, 3), (3, 2, 1), (2, 1, 0)])
def test_it_follows_the_recursion_written_out_by_hand(period, inner_steps, products):
    known = StochasticQuadratic()
    solver = VRBO(known.problem(), 0.05, 0.1, prefix(products), period, inner_steps)
    hand = ByHand(known, 0.05, 0.1, products)
    for t in range(5):
        draw = counted(known, solver.needs, seed=t)
        info = solver.step(draw)
        hand.step(draw, is_snapshot=t % period == 0)
        found = [flat(part) for part in (solver.problem.x, solver.problem.y, info.v, info.u)]
        for mine, expected in zip(found, (hand.x, hand.y, hand.v, hand.u), strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("inner_steps", [0, 1, 3])
def test_without_noise_u_and_v_are_exact_after_every_step(inner_steps):
    known = Quadratic()
    solver = VRBO(known.problem(), lr=0.05, lower_lr=0.1, inverse=prefix(3), period=100, inner_steps=inner_steps)
    P, v_before = series(known.A, terms=4), None
    for _ in range(6):
        info = solver.step(0, 0)
        x, y = flat(solver.problem.x).detach(), flat(solver.problem.y).detach()
        v = known.C @ (x - known.e) + known.B.T @ known.A @ P @ (y - known.d)
        torch.testing.assert_close(flat(info.u), known.A @ (y - known.y_star(x)), rtol=0, atol=1e-12)
        torch.testing.assert_close(flat(info.v), v, rtol=0, atol=1e-12)
        assert torch.equal(flat(info.v_used), flat(info.hypergradient))
        if v_before is not None:
            torch.testing.assert_close(flat(info.v_used), v_before, rtol=0, atol=1e-12)
        v_before = v


def test_a_hook_that_changes_the_direction_moves_the_point_of_the_corrections_too():
    known = Quadratic()
    solver = VRBO(known.problem(), lr=0.05, lower_lr=0.1, inverse=prefix(3), period=100)
    solver.upper_optimizer.register_step_pre_hook(
        lambda *_: torch.nn.utils.clip_grad_norm_(solver.problem.x, 0.1) and None
    )
    for _ in range(3):
        before = flat(solver.problem.x).detach()
        info = solver.step(0, 0)
        x, y = flat(solver.problem.x).detach(), flat(solver.problem.y).detach()
        assert abs(float((x - before).norm()) - 0.05 * 0.1) < 1e-6
        torch.testing.assert_close(flat(info.u), known.A @ (y - known.y_star(x)), rtol=0, atol=1e-12)


# Samples --------------------------------------------------------------------------------------------------------------


def test_it_needs_a_block_of_batches_for_every_correction():
    solver = VRBO(Quadratic().problem(), inner_steps=3)
    assert solver.needs == adambo.Needs(upper=5, lower=5, cross=5, hessian=5 * 3)


def test_where_a_snapshot_is_missing_the_first_batches_serve_and_it_says_so_once(caplog):
    known = StochasticQuadratic()
    one, other = (VRBO(known.problem(), 0.05, 0.1, prefix(2), period=1) for _ in range(2))
    for t in range(3):
        draw = replace(counted(known, one.needs, seed=t), snapshot=None)
        one.step(draw)
        first = Draw(draw.upper[:1], draw.lower[:1], draw.cross[:1], draw.hessian[:2])
        other.step(replace(draw, snapshot=first))
    for mine, expected in zip((*one.problem.x, *one.problem.y), (*other.problem.x, *other.problem.y), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)
    messages = [r.getMessage() for r in caplog.records if r.name == "adambo" and r.levelno == logging.WARNING]
    assert len(messages) == 1
    assert "snapshot" in messages[0]


class Unread:
    """A sequence of batches that must not be looked at."""

    def __len__(self):
        raise AssertionError("read")

    __getitem__ = __iter__ = __len__


def test_between_snapshots_their_batches_are_not_read():
    known = StochasticQuadratic()
    solver = VRBO(known.problem(), 0.05, 0.1, prefix(2), period=2)
    draw, unread = counted(known, solver.needs, seed=0), Draw(Unread(), Unread(), Unread(), Unread())
    solver.step(draw)
    solver.step(replace(draw, snapshot=unread))
    with pytest.raises(AssertionError, match="read"):
        solver.step(replace(draw, snapshot=unread))


@pytest.mark.parametrize(
    ("snapshot", "says"),
    [
        (Draw(upper=([0],)), "1 lower batch"),
        (Draw(lower=([0],)), "1 upper batch"),
        ([0, 1], "takes a Draw of its own, but came list"),
    ],
    ids=str,
)
def test_a_snapshot_that_is_none_is_refused_before_anything_changes(snapshot, says):
    known = StochasticQuadratic()
    solver = VRBO(known.problem(), 0.05, 0.1, prefix(2))
    before = solver.state_dict()
    with pytest.raises(SampleError, match=says):
        solver.step(replace(counted(known, solver.needs, seed=0), snapshot=snapshot))
    assert_same(solver.state_dict(), before)


def test_random_truncation_is_refused():
    with pytest.raises(SettingError, match="prefix"):
        VRBO(Quadratic().problem(), inverse=Neumann(terms=3, samples="random"))


# Encoders -------------------------------------------------------------------------------------------------------------


def encoded(encoder, calls=None):
    torch.manual_seed(3)
    head = nn.Linear(4, 1).double()

    def encode(batch):
        if calls is not None:
            calls.append(batch)
        return encoder(batch)

    def upper(features, batch):
        return (head(features) - 1).square().mean()

    def lower(features, batch):
        return (head(features) + batch[:, :1]).square().mean() + 0.1 * sum(p.square().sum() for p in head.parameters())

    return adambo.EncoderHeadProblem(encode, upper, lower, encoder, head)


def draw_of(needs):
    """A draw of batches that are all different."""
    generator = torch.Generator().manual_seed(5)
    counts = (needs.upper, needs.lower, needs.cross, needs.hessian)
    return Draw(*[tuple(torch.rand(6, 3, dtype=torch.float64, generator=generator) for _ in range(n)) for n in counts])


def test_the_encoder_runs_once_per_batch_at_the_new_x_and_once_per_batch_of_the_first_block_at_the_old_one():
    torch.manual_seed(0)
    calls = []
    solver = VRBO(encoded(nn.Linear(3, 4).double(), calls), inverse=prefix(2), inner_steps=1)
    draw = draw_of(solver.needs)
    solver.step(draw)
    everything = [*draw.upper, *draw.lower, *draw.cross, *draw.hessian]
    first_block = [draw.upper[0], draw.lower[0], draw.cross[0], *draw.hessian[:2]]
    assert sorted(map(id, calls)) == sorted(map(id, everything + first_block))


class BackwardPasses(nn.Linear):
    """Counts those that come through it."""

    def __init__(self, *widths):
        super().__init__(*widths, dtype=torch.float64)
        self.backwards = 0

    def forward(self, inputs):
        features = super().forward(inputs)
        if features.requires_grad:
            features.register_hook(self._count)
        return features

    def _count(self, _):
        self.backwards += 1


def test_all_blocks_but_the_first_take_one_call_of_the_encoder_each_way():
    torch.manual_seed(0)
    encoder, calls = BackwardPasses(3, 4), []
    problem = encoded(encoder, calls)
    problem.concatenate = True
    solver = VRBO(problem, inverse=prefix(2), inner_steps=3)
    solver.step(draw_of(solver.needs))
    assert len(calls) == 6, "with and without a graph: block 0 at the old x and at the new, and all others"
    assert encoder.backwards == 3


@pytest.mark.parametrize("concatenate", [False, True])
def test_the_blocks_together_move_x_and_y_as_each_by_itself_does(concatenate, monkeypatch):
    found = []
    for together in (True, False):
        if not together:
            monkeypatch.setattr(VRBO, "_others_together", lambda *_: None)
        torch.manual_seed(0)
        problem = encoded(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double())
        problem.concatenate = concatenate
        solver = VRBO(problem, 0.05, 0.1, prefix(2), inner_steps=2)
        for _ in range(3):
            solver.step(draw_of(solver.needs))
        found.append(torch.cat([flat(problem.x), flat(problem.y)]).detach())
    torch.testing.assert_close(*found, rtol=0, atol=1e-14)


def test_losses_that_reach_x_past_the_encoder_are_differentiated_there_too():
    """The plain form of the same problem, in which x is one thing, is the reference."""
    found = []
    for plain in (True, False):
        torch.manual_seed(0)
        encoder = nn.Linear(3, 4).double()
        problem = encoded(encoder)
        upper, lower = problem.upper, problem.lower
        problem.upper = lambda f, batch, upper=upper, w=encoder.weight: upper(f, batch) + w.square().sum() * f.mean()
        problem.lower = lambda f, batch, lower=lower, w=encoder.weight: lower(f, batch) * w.square().sum()
        if plain:
            upper, lower = problem.upper, problem.lower
            problem = adambo.Problem(
                lambda batch, upper=upper, e=encoder: upper(e(batch), batch),
                lambda batch, lower=lower, e=encoder: lower(e(batch), batch),
                encoder,
                problem.y,
            )
        solver = VRBO(problem, 0.05, 0.1, prefix(2))
        for _ in range(3):
            solver.step(draw_of(solver.needs))
        found.append(torch.cat([flat(problem.x), flat(problem.y)]).detach())
    torch.testing.assert_close(*found, rtol=0, atol=1e-14)


def test_both_points_of_a_correction_see_the_same_dropout():
    """With x and y at rest the two evaluations of a correction cancel bit for bit, though every block has its masks."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    solver = VRBO(encoded(encoder), lr=0.0, lower_lr=0.0, inverse=prefix(2), period=3)
    draw = draw_of(solver.needs)
    rng = torch.get_rng_state()
    found = []
    for _ in range(4):
        info = solver.step(draw)
        assert_same(info.v, info.v_used)
        found.append(flat(info.v))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[2], found[3]), "a new snapshot has new masks"
    assert torch.equal(rng, torch.get_rng_state())


# Failure --------------------------------------------------------------------------------------------------------------


class LossOfThisTest(Exception):
    pass


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("bad_step", [0, 1])
def test_wherever_a_loss_fails_everything_is_as_before_the_step(level, bad_step):
    known = StochasticQuadratic(dx=2, dy=2)
    problem = known.problem()
    solver = VRBO(problem, 0.05, 0.1, prefix(1), period=2, inner_steps=0)
    draws = [counted(known, solver.needs, seed=t) for t in range(2)]
    for draw in draws[:bad_step]:
        solver.step(draw)
    healthy, before = getattr(problem, level), solver.state_dict()

    def fails_after(calls):
        left = iter(range(calls))

        def loss(batch):
            if next(left, None) is None:
                raise LossOfThisTest
            return healthy(batch)

        return loss

    for calls in range(100):
        setattr(problem, level, fails_after(calls))
        try:
            solver.step(draws[bad_step])
        except LossOfThisTest:
            after = solver.state_dict()
            assert_same(after | {"ledger": None}, before | {"ledger": None})  # calls that were made are counted
        else:
            break
    assert calls >= 4, "it fails at both points of both corrections, before it goes through"
    assert not torch.equal(flat(problem.x), flat(before["x"]))


def test_a_state_with_another_v_is_refused():
    solver = VRBO(Quadratic().problem())
    state = solver.state_dict()
    state["own"]["v"] = [torch.zeros(7, dtype=torch.float64)]
    with pytest.raises(StateError, match=r"has v as \['\(7,\)"):
        solver.load_state_dict(state)


# Tasks ----------------------------------------------------------------------------------------------------------------


def lower_gradients(known, problem, tasks):
    """∇y g of each task, one line each."""
    x, rows = flat(problem.x).detach(), torch.cat([table.detach() for table in problem.y], dim=1)
    return torch.stack([known.A[k] @ (rows[k] - known.B[k] @ x - known.c[k]) for k in tasks])


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_the_first_visit_to_a_task_between_snapshots_starts_from_its_own_gradient(form):
    """There is no noise, so that every u must be exact at the new point, as after a snapshot."""
    known = TaskQuadratics()
    solver = VRBO(getattr(known, form)(), lr=0.05, lower_lr=0.1, inverse=prefix(2), period=10)
    for tasks in ([0, 1], [3, 2], [4]):
        info = solver.step(Draw.of(tasks, tasks, solver.needs))
        expected = lower_gradients(known, solver.problem, tasks)
        torch.testing.assert_close(torch.cat(info.u, dim=1), expected, rtol=0, atol=1e-12)


def test_the_u_of_a_task_waits_for_its_next_visit():
    """With x at rest nothing else moves a task's gradient, so its u stays exact however long it was not visited."""
    known = TaskQuadratics()
    solver = VRBO(known.problem(), lr=0.0, lower_lr=0.1, inverse=prefix(2), period=10)
    for tasks in ([0, 1], [2, 3], [4], [1, 3, 0]):
        info = solver.step(Draw.of(tasks, tasks, solver.needs))
    expected = lower_gradients(known, solver.problem, tasks)
    torch.testing.assert_close(torch.cat(info.u, dim=1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_snapshot_about_other_tasks_is_refused(form):
    solver = VRBO(getattr(TaskQuadratics(), form)(), inverse=prefix(2))
    with pytest.raises(SampleError, match="tasks"):
        solver.step(replace(Draw.of([0, 1], [0, 1], solver.needs), snapshot=Draw(upper=([0, 2],), lower=([0, 2],))))
