"""The optimisers of updates.py on their own: against their formulas, schedulers, saving, masking."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from states import assert_same

from adambo import SettingError
from adambo.updates import MovingAverage, NormalizedMomentum, RecursiveMomentum, VRAdam

BETA, LR = 0.3, 0.05
RULES = {
    "moving average": lambda p: MovingAverage(p, LR, BETA),
    "lagged": lambda p: MovingAverage(p, LR, BETA, lagged=True),
    "normalised": lambda p: NormalizedMomentum(p, LR, BETA),
    "per tensor": lambda p: NormalizedMomentum(p, LR, BETA, norm="per_tensor"),
    "recursive": lambda p: RecursiveMomentum(p, LR, BETA),
    "recursive, normalised": lambda p: RecursiveMomentum(p, LR, BETA, norm="global"),
    "VRAdam": lambda p: VRAdam(p, LR, BETA, beta_sq=0.2, eps=0.1),
}


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in ((3, 2), (), (4,))
    ]


def gradients(step):
    generator = torch.Generator().manual_seed(step + 1)
    return [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters()]


def advance(optimizer, p, steps):
    for t in steps:
        for q, g in zip(p, gradients(t), strict=True):
            q.grad = g
        if isinstance(optimizer, RecursiveMomentum):
            optimizer.look_back(gradients(t + 100) if t else None)
        optimizer.step()


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def by_hand(rule, steps):
    """All tensors as one vector; `sizes` are those of the tensors."""
    x, m, v = flat(parameters()), torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)
    for t in range(steps):
        h, before, lagged = flat(gradients(t)), flat(gradients(t + 100)), m
        if rule in ("moving average", "lagged", "normalised", "per tensor"):
            m = (1 - BETA) * m + BETA * h
        else:
            m = h if t == 0 else h + (1 - BETA) * (m - before)
        v = 0.8 * v + 0.2 * h**2
        direction = {
            "lagged": lagged,
            "normalised": m / m.norm(),
            "recursive, normalised": m / m.norm(),
            "per tensor": torch.cat([part / part.norm() for part in m.split([6, 1, 4])]),
            "VRAdam": m / ((v / (1 - 0.8 ** (t + 1))).sqrt() + 0.1),
        }.get(rule, m)
        x = x - LR * direction
    return x


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_its_formula(rule):
    p = parameters()
    advance(RULES[rule](p), p, range(5))
    torch.testing.assert_close(flat(p), by_hand(rule, 5), rtol=0, atol=1e-13)


@pytest.mark.parametrize("rule", RULES)
def test_groups_share_one_global_norm(rule):
    one, two = parameters(), parameters()
    advance(RULES[rule](one), one, range(4))
    advance(RULES[rule]([{"params": two[:1]}, {"params": two[1:]}]), two, range(4))
    torch.testing.assert_close(flat(two), flat(one), rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", RULES)
def test_a_saved_rule_continues_bit_for_bit(rule):
    p, q = parameters(), parameters()
    whole, first = RULES[rule](p), RULES[rule](q)
    advance(whole, p, range(6))
    advance(first, q, range(3))
    second = RULES[rule](q)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    advance(second, q, range(3, 6))
    assert_same(flat(q), flat(p))


@pytest.mark.parametrize("rule", RULES)
def test_a_scheduler_sets_its_rate(rule):
    p = parameters()
    optimizer = RULES[rule](p)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: (e + 2) ** (-1 / 3))
    assert optimizer.param_groups[0]["lr"] == LR * 2 ** (-1 / 3)
    advance(optimizer, p, range(1))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == LR * 3 ** (-1 / 3)


@pytest.mark.parametrize("rule", RULES)
def test_where_the_mask_is_set_a_step_changes_nothing(rule):
    """What CUDA does without asking the host, here on a CPU: the masked step never was."""
    p, q = parameters(), parameters()
    masked, plain = RULES[rule](p), RULES[rule](q)
    for found_inf, steps in ((1.0, [7]), (0.0, [0, 1]), (1.0, [8]), (0.0, [2])):
        masked.found_inf = torch.tensor(found_inf)
        if found_inf:
            for one in p:
                one.grad = torch.full_like(one, float("nan"))
            if isinstance(masked, RecursiveMomentum):
                masked.look_back([torch.full_like(one, float("inf")) for one in p])
            masked.step()
        else:
            advance(masked, p, steps)
            advance(plain, q, steps)
    torch.testing.assert_close(flat(p), flat(q), rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_moves_along_zero(rule):
    p = parameters()
    optimizer, before = RULES[rule](p), flat(p).clone()
    for _ in range(3):
        for one in p:
            one.grad = torch.zeros_like(one)
        optimizer.step()
    assert_same(flat(p), before)


@pytest.mark.parametrize("rule", RULES)
def test_parameters_without_a_gradient_are_left_out(rule):
    p = parameters()
    before = p[1].detach().clone()
    p[0].grad, p[2].grad = torch.ones_like(p[0]), torch.ones_like(p[2])
    RULES[rule](p).step()
    assert_same(p[1].detach(), before)


def test_a_global_step_has_length_lr_and_a_step_per_tensor_moves_each_by_lr():
    for norm, lengths in (("global", [LR]), ("per_tensor", [LR, LR, LR])):
        p = parameters()
        before = [q.detach().clone() for q in p]
        advance(NormalizedMomentum(p, LR, norm=norm), p, [0])
        moves = [(q.detach() - b).norm() for q, b in zip(p, before, strict=True)]
        found = moves if norm == "per_tensor" else [torch.stack(moves).norm()]
        torch.testing.assert_close(torch.stack(found), torch.tensor(lengths, dtype=torch.float64))


def test_look_back_holds_for_one_step():
    p, q = parameters(), parameters()
    one, other = RecursiveMomentum(p, LR, BETA), RecursiveMomentum(q, LR, BETA)
    for optimizer, r in ((one, p), (other, q)):
        advance(optimizer, r, [0, 1])
    for optimizer, r in ((one, p), (other, q)):
        for parameter, g in zip(r, gradients(2), strict=True):
            parameter.grad = g
        if optimizer is other:
            optimizer.look_back(None)
        optimizer.step()
    assert_same(flat(p), flat(q))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda p: MovingAverage(p, -1.0), "lr=-1.0"),
        (lambda p: MovingAverage(p, 0.1, beta=0.0), "beta=0.0"),
        (lambda p: NormalizedMomentum(p, 0.1, norm="layer"), "norm='layer'"),
        (lambda p: VRAdam(p, 0.1, beta_sq=2.0), "beta_sq=2.0"),
        (lambda p: VRAdam(p, 0.1, eps=-1.0), "eps=-1.0"),
    ],
)
def test_a_setting_that_cannot_work_is_named(build, says):
    with pytest.raises(SettingError, match=says):
        build(parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-160, 1e-40, 1e-30, 1e-23, 1e-7, 1.0, 1e4, 1e25])
def test_a_normalised_step_has_length_lr_or_none_however_small_or_large_the_gradient(size, dtype):
    if not torch.isfinite(torch.tensor(size, dtype=dtype)):
        return
    for build in (lambda p: NormalizedMomentum(p, 1.0, beta=1.0), lambda p: RecursiveMomentum(p, 1.0, norm="global")):
        p = torch.zeros(4, dtype=dtype, requires_grad=True)
        p.grad = torch.full((4,), size, dtype=dtype)
        build([p]).step()
        length = float(p.detach().double().norm())
        expected = 0.0 if float(p.grad[0]) == 0 or size < 1e-150 else 1.0
        assert length == pytest.approx(expected, abs=0.01)


def test_tensors_of_several_types_may_rest():
    p = [torch.zeros(2, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.float32)]
    for q in p:
        q.grad = torch.zeros_like(q)
    NormalizedMomentum(p, 1.0).step()
    assert all(float(q.detach().abs().max()) == 0 for q in p)


@pytest.mark.parametrize("rule", RULES)
def test_a_copied_or_pickled_rule_goes_on_as_the_original(rule):
    p = parameters()
    optimizer = RULES[rule](p)
    advance(optimizer, p, range(3))
    for copied in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        q, other = copied((p, optimizer))
        advance(other, q, range(3, 5))
        torch.testing.assert_close(flat(q), by_hand(rule, 5), rtol=0, atol=1e-13)
