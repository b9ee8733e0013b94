"""The fast vector-Jacobian product equals the plain one."""

import torch
from hypothesis import given, settings
from hypothesis.strategies import integers
from torch import nn

from adambo.products import plain_product, product


@settings(deadline=None, max_examples=25)
@given(seed=integers(0, 2**31 - 1), width=integers(1, 6))
def test_the_engine_gives_what_torch_autograd_grad_gives(seed, width):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double()
    unused = torch.zeros(2, dtype=torch.double, requires_grad=True)
    y = [*network.parameters(), unused]
    loss = network(torch.randn(5, 3, dtype=torch.double)).square().mean()
    gradient = torch.autograd.grad(loss, y[:-1], create_graph=True)
    weights = [torch.randn_like(part) for part in gradient]
    for fast, plain in zip(product(gradient, y, weights), plain_product(gradient, y, weights), strict=True):
        assert (fast is None and plain is None) or torch.equal(fast, plain)


def test_the_graph_survives_a_product():
    y = torch.tensor([1.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    for factor in (1.0, 2.0):
        (found,) = product([gradient], [y], [torch.full((2,), factor)])
        assert found.tolist() == [6.0 * factor, 12.0 * factor]
