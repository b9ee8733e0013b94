"""The recurrence agrees with `torch.nn.RNN` in value, gradient and second derivative."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from adambo.models.recurrence import _Forward, states_of

SIZES = {"falling": [5, 4, 4, 2, 1], "one row is left": [3, 1, 1], "equal": [3, 3, 3], "one step": [4]}
WIDTH, HIDDEN = 3, 6


def plain(rnn, inputs, sizes):
    return rnn(PackedSequence(inputs, torch.tensor(sizes)))[0].data


def derivatives(states, rnn, inputs):
    """Of a curved function of the states: the gradient, and the product of its Hessian with some vector."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(states.shape, dtype=torch.float64, generator=generator)
    along = [inputs, *rnn.parameters()]
    gradient = torch.autograd.grad((states * weight + states**3).sum(), along, create_graph=True)
    direction = [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in along]
    slope = sum((g * v).sum() for g, v in zip(gradient, direction, strict=True))
    return [g.detach() for g in gradient], torch.autograd.grad(slope, along)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_states_gradients_and_hessian_products_are_those_of_torch(sizes, layers):
    torch.manual_seed(0)
    rnn = nn.RNN(WIDTH, HIDDEN, layers).double()
    inputs = torch.randn(sum(sizes), WIDTH, dtype=torch.float64, requires_grad=True)
    mine, theirs = states_of(rnn, inputs, sizes), plain(rnn, inputs, sizes)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)
    for found, expected in zip(derivatives(mine, rnn, inputs), derivatives(theirs, rnn, inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_finite_differences_agree_with_both_derivatives(sizes):
    torch.manual_seed(1)
    given = torch.randn(sum(sizes), 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, w: _Forward.apply(a, w, sizes), (given, w))
    assert torch.autograd.gradgradcheck(lambda a, w: _Forward.apply(a, w, sizes), (given, w))


def test_a_third_derivative_is_refused():
    torch.manual_seed(1)
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    states = _Forward.apply(torch.randn(6, 4, dtype=torch.float64), w, [3, 3])
    (first,) = torch.autograd.grad(states.sum(), w, create_graph=True)
    with pytest.raises(NotImplementedError, match="third"):
        torch.autograd.grad(first.square().sum(), w, create_graph=True)


def test_nothing_that_was_given_is_overwritten():
    torch.manual_seed(1)
    rnn = nn.RNN(WIDTH, HIDDEN, 2)
    inputs, above = torch.randn(9, WIDTH, requires_grad=True), torch.randn(9, HIDDEN)
    before = [t.detach().clone() for t in (inputs, above, *rnn.parameters())]
    states_of(rnn, inputs, [4, 3, 2]).backward(above)
    assert all(torch.equal(a, b) for a, b in zip(before, (inputs, above, *rnn.parameters()), strict=True))


def test_under_autocast_states_are_in_low_precision_and_gradients_are_not():
    torch.manual_seed(1)
    rnn, inputs = nn.RNN(WIDTH, HIDDEN, 2), torch.randn(9, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        states = states_of(rnn, inputs, [4, 3, 2])
    assert states.dtype == torch.bfloat16
    torch.testing.assert_close(states.float(), plain(rnn, inputs, [4, 3, 2]), rtol=0, atol=0.03)
    low = torch.autograd.grad(states.float().sum(), list(rnn.parameters()))
    full = torch.autograd.grad(plain(rnn, inputs, [4, 3, 2]).sum(), list(rnn.parameters()))
    assert {g.dtype for g in low} == {torch.float32}
    for found, expected in zip(low, full, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_dropout_is_between_layers_and_in_training_only():
    torch.manual_seed(1)
    rnn, inputs = nn.RNN(WIDTH, HIDDEN, 2, dropout=0.5).double(), torch.randn(4, WIDTH, dtype=torch.float64)
    assert not torch.equal(states_of(rnn, inputs, [4]), states_of(rnn, inputs, [4]))
    rnn.eval()
    torch.testing.assert_close(states_of(rnn, inputs, [4]), plain(rnn, inputs, [4]), rtol=0, atol=1e-15)
    # In the mean over masks, a second layer that is linear near zero sees what it would see without them.
    rnn.train()
    with torch.no_grad():
        for p in rnn.parameters():
            p *= 0.1
        mean = torch.stack([states_of(rnn, inputs, [4]) for _ in range(4000)]).mean(0)
        torch.testing.assert_close(mean, states_of(rnn.eval(), inputs, [4]), rtol=0, atol=2e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_it_agrees_with_double_precision(dtype, request):
    request.addfinalizer(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    torch.set_float32_matmul_precision("highest")  # experiments leave it as they need it
    torch.manual_seed(1)
    rnn = nn.RNN(30, 256, 2)
    sizes = [64, 60, 33, 8, 1]
    inputs = torch.randn(sum(sizes), 30)
    reference = deepcopy(rnn).double()
    theirs = plain(reference, inputs.double(), sizes)
    on_gpu = rnn.cuda()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        mine = states_of(on_gpu, inputs.cuda(), sizes)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.03}[dtype]
    torch.testing.assert_close(mine.double().cpu(), theirs, rtol=0, atol=tolerance)
    found = torch.autograd.grad(mine.float().square().sum(), list(on_gpu.parameters()))
    expected = torch.autograd.grad(theirs.square().sum(), list(reference.parameters()))
    for mine_of, theirs_of in zip(found, expected, strict=True):
        distance = torch.linalg.vector_norm(mine_of.double().cpu() - theirs_of) / torch.linalg.vector_norm(theirs_of)
        assert distance < tolerance, distance
