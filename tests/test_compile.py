"""A compiled encoder gives the steps of the eager one.

The backend is "aot_eager": graph capture, functionalisation and the partitioned backward pass of `torch.compile`
without code generation, so that no C++ compiler is needed.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import adambo


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)).double()


def batches(step):
    generator = torch.Generator().manual_seed(step)
    return [
        (torch.randn(6, 3, dtype=torch.double, generator=generator), torch.randint(2, (6,), generator=generator))
        for _ in range(5)
    ]


def trajectory(compiled, encoder_head, **settings):
    module = network()
    encoder = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    torch.manual_seed(1)
    head = nn.Linear(4, 2).double()

    def upper(features, batch):
        return functional.cross_entropy(head(features), batch[1])

    def lower(features, batch):
        return functional.cross_entropy(head(features), batch[1]) + 0.1 * sum(
            p.square().sum() for p in head.parameters()
        )

    if encoder_head:
        problem = adambo.EncoderHeadProblem(lambda batch: encoder(batch[0]), upper, lower, x=encoder, y=head)
    else:
        problem = adambo.Problem(
            lambda batch: upper(encoder(batch[0]), batch), lambda batch: lower(encoder(batch[0]), batch), encoder, head
        )
    solver = adambo.AdamBO(problem, lr=0.02, lower_lr=0.1, eps=1e-3, **settings)
    found = []
    for step in range(3):
        u, *rest = batches(step)
        lower_batches = rest[: solver.lower_steps]
        info = solver.step(adambo.Draw((u,), lower_batches, rest[2:3], rest[2:4]))
        found += [h.clone() for h in info.hypergradient]
    return [*found, *(p.detach() for p in problem.x), *(p.detach() for p in problem.y)]


@pytest.mark.parametrize("encoder_head", [True, False], ids=["EncoderHeadProblem", "Problem"])
@pytest.mark.parametrize(
    "settings", [{}, {"lower_steps": 2, "hypergradient_at": "updated"}], ids=["current", "updated"]
)
def test_a_compiled_encoder_gives_the_hypergradients_and_steps_of_the_eager_one(encoder_head, settings):
    eager, compiled = (trajectory(c, encoder_head, **settings) for c in (False, True))
    assert max(t.abs().max() for t in eager) > 0.01
    for mine, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_the_encoder_is_really_compiled():
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph

    encoder = torch.compile(network(), backend=counting)
    y = torch.ones(4, dtype=torch.double, requires_grad=True)
    problem = adambo.EncoderHeadProblem(
        encoder, lambda h, b: (h @ y).square().mean(), lambda h, b: (h @ y - 1).square().mean() + y @ y, encoder, y
    )
    (u, _), (low, _), *_ = batches(0)
    adambo.AdamBO(problem).step(u, low)
    assert graphs


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the compiler, of features
def test_a_compiled_head_has_no_second_derivative_and_the_message_says_so():
    encoder, head = network(), nn.Linear(4, 2).double()
    compiled = torch.compile(head, backend="aot_eager")
    problem = adambo.EncoderHeadProblem(
        lambda batch: encoder(batch[0]),
        lambda features, batch: functional.cross_entropy(compiled(features), batch[1]),
        lambda features, batch: functional.cross_entropy(compiled(features), batch[1]) + head.weight.square().sum(),
        x=encoder,
        y=head,
    )
    with pytest.raises(adambo.SecondDerivativeError, match=r"twice.*torch\.compile"):
        adambo.AdamBO(problem).step(*batches(0)[:2])
