"""What holds for every algorithm of the library, beyond the contract: failures anywhere, statistics, copies, lists."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch
from states import assert_same
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import adambo

ALL = adambo.algorithms.ALL
META = ("MAML", "ANIL")
RATES = {"lr": 0.05, "lower_lr": 0.1}
OWN = {"SABA": {"saga_x": True}, "SOBA": {"fresh": True}, "MAML": {"inner_steps": 2}, "ANIL": {"inner_steps": 2}}


class Losses:
    """A network with batch-norm and dropout below a head; `fail_at` makes the n-th call of a loss raise."""

    def __init__(self, *, encoder_head=False, dropout=0.0, tasks=False):
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout)).double()
        self.head = nn.Parameter(torch.randn(4 if tasks else 1, 5, dtype=torch.double))
        self.fail_at, self.calls = None, 0
        arguments = {"x": self.encoder, "y": [self.head], "tasks": self.tasks if tasks else None}
        if encoder_head:
            self.problem = adambo.EncoderHeadProblem(self.encode, self.upper, self.lower, **arguments)
        else:
            self.problem = adambo.Problem(self.whole_upper, self.whole_lower, **arguments)

    @staticmethod
    def tasks(batch):
        return batch[2]

    def encode(self, batch):
        return self.encoder(batch[0].flatten(0, -2)).view(*batch[0].shape[:-1], 5)

    def upper(self, features, batch):
        self.calls += 1
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        heads = self.head[batch[2]] if len(self.head) > 1 else self.head
        return (torch.einsum("tnd,td->tn", features, heads) - batch[1]).square().mean()

    def lower(self, features, batch):
        heads = self.head[batch[2]] if len(self.head) > 1 else self.head
        return self.upper(features, batch) + 0.1 * heads.square().sum()

    def whole_upper(self, batch):
        return self.upper(self.encode(batch), batch)

    def whole_lower(self, batch):
        return self.lower(self.encode(batch), batch)


def batch(seed, ids=(0,)):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(ids), 6, 3, dtype=torch.double, generator=generator)
    return inputs, torch.randn(len(ids), 6, dtype=torch.double, generator=generator), torch.tensor(ids)


def make(name, losses):
    return ALL[name](losses.problem, **RATES, **OWN.get(name, {}))


def draw_of(solver, step, ids=(0,)):
    needs = solver.needs
    counts = {"upper": needs.upper, "lower": needs.lower, "cross": needs.cross, "hessian": needs.hessian}
    roles = {
        role: tuple(batch(1000 * step + 100 * place + k, ids) for k in range(count))
        for place, (role, count) in enumerate(counts.items())
    }
    return adambo.Draw(**roles, seed=step, snapshot=adambo.Draw.of(batch(step, ids), batch(step + 50, ids), needs))


def state(solver):
    return {name: part for name, part in solver.state_dict().items() if name != "ledger"}


@pytest.mark.parametrize("encoder_head", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_an_interrupt_in_any_loss_leaves_no_trace(name, encoder_head):
    losses, untouched = (Losses(encoder_head=encoder_head, dropout=0.3) for _ in range(2))
    solver, other = make(name, losses), make(name, untouched)
    for t in range(2):
        torch.manual_seed(t)
        solver.step(draw_of(solver, t))
        torch.manual_seed(t)
        other.step(draw_of(other, t))
    before, rng, call = state(solver), torch.get_rng_state(), 0
    while True:
        call += 1
        losses.calls, losses.fail_at = 0, call
        torch.set_rng_state(rng)
        try:
            solver.step(draw_of(solver, 2))
        except KeyboardInterrupt:
            assert_same(state(solver), before)
            assert all(p.grad is None for p in losses.problem.y)
            assert torch.is_grad_enabled()
        else:
            break
    assert call > 2, "a step calls several losses"
    torch.set_rng_state(rng)
    other.step(draw_of(other, 2))
    assert_same(state(solver), state(other))


@pytest.mark.parametrize("encoder_head", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_running_statistics_are_learnt_in_every_step_and_only_at_the_current_x(name, encoder_head):
    losses = Losses(encoder_head=encoder_head)
    solver, counts = make(name, losses), []
    for t in range(4):
        solver.step(draw_of(solver, t))
        counts.append(int(losses.encoder[1].num_batches_tracked))
    assert all(later > earlier for earlier, later in zip([0, *counts], counts, strict=False)), counts


@pytest.mark.parametrize("name", ALL)
def test_a_copied_solver_goes_on_as_the_original(name):
    losses = Losses()
    solver = make(name, losses)
    for t in range(2):
        solver.step(draw_of(solver, t))
    other = copy.deepcopy(solver)
    for one in (solver, other):
        one.step(draw_of(one, 2))
    assert other.problem.x[0] is not solver.problem.x[0]
    assert_same(state(other), state(solver))


@pytest.mark.parametrize("name", ALL)
def test_a_hook_that_raises_before_x_moves_leaves_no_trace(name):
    solver, other = (make(name, Losses()) for _ in range(2))
    for t in range(2):
        for one in (solver, other):
            one.step(draw_of(one, t))
    before = state(solver)

    def stop(*_):
        raise RuntimeError("not now")

    handle = solver.upper_optimizer.register_step_pre_hook(stop)
    with pytest.raises(RuntimeError, match="not now"):
        solver.step(draw_of(solver, 2))
    assert_same(state(solver), before)
    handle.remove()
    for one in (solver, other):
        one.step(draw_of(one, 2))
    assert_same(state(solver), state(other))


@pytest.mark.parametrize("tasks", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_schedulers_on_both_optimisers_set_the_rates_without_a_warning(name, tasks):
    if tasks and name in META:
        return
    losses = Losses(tasks=tasks)
    solver = make(name, losses)
    schedulers = [LambdaLR(o, lambda e: (e + 2) ** (-1 / 3)) for o in (solver.upper_optimizer, solver.lower_optimizer)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(2):
            solver.step(draw_of(solver, t, ids=(0, 2) if tasks else (0,)))
            for scheduler in schedulers:
                scheduler.step()
    assert solver.lower_optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 4 ** (-1 / 3))


@pytest.mark.parametrize("name", ALL)
def test_a_warm_start_that_fails_leaves_no_trace(name):
    losses = Losses()
    solver = make(name, losses)
    solver.step(draw_of(solver, 0))
    before = state(solver)
    bad = (batch(5)[0] * float("nan"), *batch(5)[1:])
    with pytest.raises(adambo.NonFiniteError):
        solver.warm_start([batch(3), batch(4), bad])
    assert_same(state(solver), before)


@pytest.mark.parametrize("name", ALL)
def test_a_state_of_any_other_algorithm_is_refused(name):
    solver = make(name, Losses())
    other = make(next(each for each in ALL if each != name), Losses())
    before = state(solver)
    with pytest.raises(adambo.StateError, match="saved by"):
        solver.load_state_dict(other.state_dict())
    assert_same(state(solver), before)


@pytest.mark.parametrize("name", ALL)
def test_sequences_that_make_a_batch_whenever_it_is_read_are_read_once(name):
    x, y = (torch.ones(2, dtype=torch.double, requires_grad=True) for _ in range(2))
    problem = adambo.Problem(lambda b: (y - b).square().sum(), lambda b: (y - x * b).square().sum(), x, y)
    solver = ALL[name](problem, **RATES)
    counts = solver.needs
    # A range makes its numbers whenever it is read.
    roles = {r: range(500, 500 + getattr(counts, r)) for r in ("upper", "lower", "cross", "hessian")}
    solver.step(adambo.Draw(**roles))
    assert solver.steps == 1


def test_a_refused_state_leaves_a_pending_surrogate_usable():
    solver = make("AdamBO", Losses())
    S = solver.surrogate(batch(1), batch(2))
    with pytest.raises(adambo.StateError):
        solver.load_state_dict({})
    S.backward()
    solver.upper_optimizer.step()
    solver.update()
    assert solver.steps == 1


def test_every_class_says_what_it_is_and_what_it_costs():
    for name, algorithm in ALL.items():
        assert getattr(adambo, name) is algorithm
        assert name in adambo.__all__
        assert re.fullmatch(r"[^\n]{20,110}", algorithm.summary), name
        assert "∇x f" in algorithm.cost, name
        assert "Oracle calls per " in Path(__import__(algorithm.__module__, fromlist=["x"]).__file__).read_text()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("wrong", [None, 3, "problem", nn.Linear(1, 1)], ids=lambda w: type(w).__name__)
def test_what_is_not_a_problem_is_refused(name, wrong):
    with pytest.raises(adambo.SettingError, match=f"{name} optimises an adambo.Problem"):
        ALL[name](wrong)


def test_a_draw_beside_a_batch_is_refused():
    solver = make("SLIP", Losses())
    for arguments in ((draw_of(solver, 0), batch(1)), (batch(1), draw_of(solver, 0))):
        with pytest.raises(adambo.SampleError, match=r"call solver\.step\(draw\)"):
            solver.step(*arguments)


@pytest.mark.parametrize("bad", [5, None, "ab", {"a": 1}, torch.zeros(3)], ids=lambda b: type(b).__name__)
def test_a_warm_start_wants_a_sequence_of_batches(bad):
    with pytest.raises(adambo.SampleError, match="sequence of batches"):
        make("AccBO", Losses()).warm_start(bad)
