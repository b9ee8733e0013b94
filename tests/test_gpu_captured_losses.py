"""On a GPU, losses that say what they see are replayed by CUDA graphs: digit for digit what Python would compute."""

import gc
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adambo
from adambo.closed_form import programmes
from adambo.problems.deep_auc import AucVariables, Examples, deep_auc
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]
STEPS = 14


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


def linear(width, outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, outputs)).cuda()


def on_tasks(adapter):
    encoder = linear(16, 8)
    heads = Heads(
        *(nn.Parameter(0.1 * random(1, 30 if adapter == "per_task" else 1, *form)) for form in ((6, 8), (6,)))
    )
    problem = hyper_representation(encoder, encoder, heads, 0.05, adapter)

    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(30, generator=generator)[:10].cuda()
        return Episodes(ids, random(seed, 200, 5), torch.randint(6, (10, 20), generator=generator).cuda(), 8)

    return problem, batch


def on_auc():
    network = linear(16, 1)
    problem = deep_auc(lambda inputs: network(inputs).sigmoid().flatten(), network, AucVariables().cuda(), 0.7)
    return problem, lambda seed: Examples(random(seed, 40, 5), (random(seed + 99, 40) < 0.5).float())


class Head(nn.Module):
    """A loss of one's own on features, with what a test wants in it."""

    def __init__(self, extra=None):
        super().__init__()
        self.encoder, self.weights, self.calls = linear(16, 8), nn.Parameter(0.1 * random(1, 6, 8)), 0
        self.penalty = nn.Parameter(torch.tensor(-2.0).cuda())
        self.extra = extra

    def encode(self, batch):
        features = self.encoder(batch[0])
        return torch.stack([features, -features], 2)[:, :, 0] if self.extra == "strided" else features

    def loss(self, features, targets):
        self.calls += 1
        logits = features @ self.weights.T
        if self.extra == "dropout":
            logits = F.dropout(logits, 0.3)
        loss = F.cross_entropy(logits, targets["labels"]) + 0.05 * self.weights.square().sum()
        if self.extra == "wait":
            return loss * (1.0 if loss.item() > -1 else 2.0)
        if self.extra == "penalty":
            return loss + self.penalty.exp() * self.weights.square().sum()
        if self.extra == "value of x":
            return loss * (1 + self.encoder[0].weight.detach().square().mean())
        if self.extra == "nonlinear":
            return loss + 0.1 * (features @ self.weights.T).sigmoid().square().mean()
        return loss

    def problem(self, **options):
        x = [self.encoder, self.penalty] if self.extra == "penalty" else self.encoder
        options.setdefault("losses_see", lambda batch: {"labels": batch[1], "rate": 1.0})
        return adambo.EncoderHeadProblem(self.encode, self.loss, self.loss, x, self.weights, **options)


def pairs(seed):
    return random(seed, 40, 5), torch.randint(6, (40,), generator=torch.Generator().manual_seed(seed)).cuda()


def moved(make, monkeypatch, capture=True, steps=STEPS, **settings):
    """Everything after some steps, and the solver; without capture every step is made by Python."""
    monkeypatch.setattr(programmes, "PATIENCE", 2 if capture else 10**9)
    problem, batch = make()
    solver = adambo.AdamBO(problem, **{"lr": 0.01, "lower_lr": 0.05} | settings)
    torch.manual_seed(3)
    for seed in range(steps):
        info = solver.step(batch(2 * seed), batch(2 * seed + (0 if isinstance(batch(0), Episodes) else 1)))
    solver.check()
    rates = [info.upper_loss, info.lower_loss]
    return [*(p.detach().clone() for p in (*problem.x, *problem.y)), *info.z, *rates], solver


PROBLEMS = {
    "heads": lambda: on_tasks("per_task"),
    "one head": lambda: on_tasks("shared"),
    "auc": on_auc,
    "own": lambda: (Head().problem(), pairs),
    "nonlinear": lambda: (Head("nonlinear").problem(), pairs),
    "value of x": lambda: (Head("value of x").problem(), pairs),
    "strided": lambda: (Head("strided").problem(), pairs),
}


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("lower_steps", [1, 3])
@pytest.mark.parametrize("name", PROBLEMS)
def test_replayed_losses_make_the_steps_of_python_digit_for_digit(name, lower_steps, at, monkeypatch):
    settings = {"lower_steps": lower_steps, "hypergradient_at": at}
    mine, solver = moved(PROBLEMS[name], monkeypatch, **settings)
    theirs, reference = moved(PROBLEMS[name], monkeypatch, capture=False, **settings)
    assert solver.problem.losses.captured
    assert not reference.problem.losses.captured
    assert solver.ledger == reference.ledger
    for found, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_python_runs_a_captured_loss_no_more(monkeypatch):
    head = Head()
    _, solver = moved(lambda: (head.problem(), pairs), monkeypatch, steps=33, inverse=adambo.Neumann(step=0.5))
    calls = head.calls
    for seed in range(20):
        solver.step(pairs(seed), pairs(seed + 50))
    assert head.calls == calls


def test_without_losses_see_nothing_is_captured(monkeypatch):
    head = Head()
    problem = head.problem(losses_see=None)
    problem.upper = problem.lower = lambda features, batch: head.loss(features, {"labels": batch[1]})
    _, solver = moved(lambda: (problem, pairs), monkeypatch)
    assert not solver.problem.losses.captured


@pytest.mark.parametrize("extra", ["dropout", "penalty"])
def test_a_loss_that_draws_numbers_or_reads_x_is_left_to_python(extra, monkeypatch):
    mine, _ = moved(lambda: (Head(extra).problem(), pairs), monkeypatch)
    theirs, _ = moved(lambda: (Head(extra).problem(), pairs), monkeypatch, capture=False)
    for found, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_loss_that_waits_for_the_device_is_left_to_python_and_said_so(monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, "adambo"):
        mine, _ = moved(lambda: (Head("wait").problem(), pairs), monkeypatch)
    assert "could not be captured" in caplog.text
    theirs, _ = moved(lambda: (Head("wait").problem(), pairs), monkeypatch, capture=False)
    for found, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def captured(function):
    made = programmes.Programmes()
    results = [made.run("form", function, [torch.ones(3, device="cuda")]) for _ in range(4)]
    return made.captured, results[-1]


def test_garbage_of_a_gpu_does_not_break_a_capture(caplog):
    class Cycle:
        def __init__(self):
            self.me, self.graph = self, torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = torch.ones(1 << 20, device="cuda") * 2.0

    def with_garbage(inputs):
        kept = [[] for _ in range(10_000)]  # makes Python collect
        return [inputs[0] * 2.0 * len(kept)]

    gc.disable()
    for _ in range(5):
        Cycle()
    gc.enable()
    count, (result,) = captured(with_garbage)
    assert count == 1
    assert result.tolist() == [20_000.0] * 3
    assert not caplog.text


def test_a_batch_of_another_size_is_another_graph(monkeypatch):
    def ragged(seed):
        inputs, labels = pairs(seed)
        return inputs[: 40 - seed % 3], labels[: 40 - seed % 3]

    mine, _ = moved(lambda: (Head().problem(), ragged), monkeypatch, steps=30)
    theirs, _ = moved(lambda: (Head().problem(), ragged), monkeypatch, capture=False, steps=30)
    for found, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_parameters_that_were_put_elsewhere_are_not_read_where_they_were(monkeypatch):
    def late(capture):
        head = Head()
        monkeypatch.setattr(programmes, "PATIENCE", 2 if capture else 10**9)
        solver = adambo.AdamBO(head.problem(), lr=0.01, lower_lr=0.05)
        for seed in range(12):
            solver.step(pairs(seed), pairs(seed + 50))
        head.weights.data = 2 * head.weights.data
        for seed in range(12, 20):
            solver.step(pairs(seed), pairs(seed + 50))
        solver.check()
        return [p.detach() for p in (*solver.problem.x, *solver.problem.y)]

    for found, expected in zip(late(True), late(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_nan_is_reported_by_a_replayed_loss_too(monkeypatch):
    _, solver = moved(lambda: (Head().problem(), pairs), monkeypatch)
    before = [p.detach().clone() for p in (*solver.problem.x, *solver.problem.y)]
    inputs, labels = pairs(0)
    solver.step((inputs * torch.nan, labels), (inputs, labels))
    with pytest.raises(adambo.NonFiniteError):
        solver.check()
    for now, then in zip((*solver.problem.x, *solver.problem.y), before, strict=True):
        torch.testing.assert_close(now.detach(), then, rtol=0, atol=0)
    solver.step(pairs(1), pairs(2))
    solver.check()


def test_a_series_that_explodes_is_reported_by_a_replayed_loss_too(monkeypatch):
    head = Head()
    _, solver = moved(lambda: (head.problem(), pairs), monkeypatch, inverse=adambo.Neumann(terms=4, step=0.5))
    with torch.no_grad():
        head.encoder[-1].weight.mul_(1e4)
        head.weights.zero_()
    calls = head.calls
    solver.step(pairs(0), pairs(1))
    assert head.calls == calls
    with pytest.raises(adambo.NonFiniteError):
        solver.check()


def test_the_reference_is_never_replayed(monkeypatch):
    head = Head()
    _, solver = moved(lambda: (head.problem(), pairs), monkeypatch, steps=33, inverse=adambo.Neumann(step=0.5))
    calls = head.calls
    with adambo.plain_autograd():
        solver.step(pairs(0), pairs(1))
    assert head.calls > calls


def test_other_algorithms_on_captured_losses(monkeypatch):
    for make in (adambo.SOBA, adambo.StocBiO, adambo.SLIP, adambo.MASOBA, adambo.TTSA):

        def after(capture, make=make):
            monkeypatch.setattr(programmes, "PATIENCE", 2 if capture else 10**9)
            problem, batch = on_tasks("shared")
            solver = make(problem)
            for seed in range(10):
                solver.step(batch(seed), batch(seed))
            solver.check()
            assert bool(problem.losses.captured) == capture, make.__name__
            return [p.detach().clone() for p in (*problem.x, *problem.y)]

        for found, expected in zip(after(True), after(False), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", [name for name in adambo.algorithms.ALL if name not in ("MAML", "ANIL", "SABA", "F2SA")]
)
def test_no_method_captures_beside_a_graph_of_autograd(name, caplog):
    problem, batch = on_auc()
    solver = adambo.algorithms.ALL[name](problem)
    sources = (lambda generator: batch(int(torch.randint(1000, (), generator=generator))),) * 2
    stream = adambo.draws(*sources, solver.needs, seed=0, snapshot=sources)
    with caplog.at_level(logging.WARNING, "adambo"):
        for _, draw in zip(range(STEPS), stream, strict=False):
            solver.step(draw)
    assert "could not be captured" not in caplog.text
    assert torch.rand(3, device="cuda").isfinite().all()  # torch's random numbers are usable
