"""Losses that say what they see, computed on memory of their own: what a CUDA graph replays, without the graph."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adambo
from adambo import captured_losses
from adambo.closed_form import Programmes, programmes
from adambo.problems.deep_auc import AucVariables, Examples, deep_auc
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation


@pytest.fixture
def computed_elsewhere(monkeypatch):
    """Programmes that run at once, on copies of their inputs, and note their forms."""
    forms = []

    def run(self, form, function, inputs):
        forms.append(form)
        return [t.clone() for t in function([t.clone() for t in inputs])]

    monkeypatch.setattr(Programmes, "run", run)
    monkeypatch.setattr(captured_losses, "_is_on_gpu", lambda tensor: True)
    return forms


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, outputs)).double()


def on_tasks(adapter):
    encoder = network(4)
    forms = ((9, 3, 4), (9, 3)) if adapter == "per_task" else ((1, 3, 4), (1, 3))
    heads = Heads(*(nn.Parameter(random(1, *form)) for form in forms))
    labels = torch.randint(3, (4, 6), generator=torch.Generator().manual_seed(2))
    batch = Episodes(torch.tensor([7, 1, 4, 0]), random(3, 24, 5), labels, support=4)
    return hyper_representation(encoder, encoder, heads, 0.1, adapter), batch, batch


def on_auc():
    score = network(1)
    problem = deep_auc(lambda inputs: score(inputs).sigmoid().flatten(), score, AucVariables().double(), 0.7)
    return problem, *(Examples(random(seed, 8, 5), (random(seed + 9, 8) < 0.5).double()) for seed in (1, 2))


class Pair(nn.Module):
    """Losses on two features, one of which has no gradient; `how` they use what they are given differs."""

    def __init__(self, how="plain"):
        super().__init__()
        self.encoder, self.weights, self.how = network(4), nn.Parameter(random(1, 3, 4)), how
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def encode(self, batch):
        return {"features": self.encoder(batch[0]), "fixed": [batch[0][:, :3].contiguous()]}

    def loss(self, features, seen):
        logits = features["features"] @ self.weights.T + features["fixed"][0] * seen[1]
        if self.how == "scaled":
            logits = logits * self.scale
        loss = F.cross_entropy(logits, seen[0]) + 0.1 * self.weights.square().sum()
        return loss + 0.1 * logits.sigmoid().square().mean() if self.how == "nonlinear" else loss

    def problem(self):
        x = [self.encoder, self.scale] if self.how == "scaled" else self.encoder
        return adambo.EncoderHeadProblem(
            self.encode, self.loss, self.loss, x, self.weights, losses_see=lambda batch: (batch[1], 0.25, "words", None)
        )

    def batches(self):
        return [(random(seed, 8, 5), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])) for seed in (1, 2)]


def own(how):
    pair = Pair(how)
    return pair.problem(), *pair.batches()


PROBLEMS = {
    "heads": lambda: on_tasks("per_task"),
    "one head": lambda: on_tasks("shared"),
    "auc": on_auc,
    "own": lambda: own("plain"),
    "nonlinear": lambda: own("nonlinear"),
}


def hypergradient(make, elsewhere):
    problem, upper, lower = make()
    point = problem.at(adambo.Draw((upper,), (lower,), (lower,), (lower,) * 3))
    inverse = adambo.Neumann(terms=4, step=0.1)
    v, z = point.f_y, None
    if elsewhere:
        z = point.replayed(v, v[0].new_full((), 0.1), 4, inverse._judged_series, "name")
        assert z is not None
    else:
        z = inverse.solve_again(point, v)
    h, g_y = point.hypergradient(z), point.lower_gradient()
    return [point.f.detach(), point.lower_loss(), *v, *z, *h, *g_y], point.ledger


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_computed_elsewhere_is_what_is_computed_here(name, computed_elsewhere, monkeypatch):
    mine, counted = hypergradient(PROBLEMS[name], True)
    monkeypatch.undo()
    theirs, expected = hypergradient(PROBLEMS[name], False)
    assert computed_elsewhere
    assert counted == expected
    for found, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_of_the_upper_loss_alone(name, computed_elsewhere, monkeypatch):
    def gradients():
        problem, upper, lower = PROBLEMS[name]()
        point = problem.at(adambo.Draw((upper,), (lower,), (lower,)))
        return [*point.f_y, *point.f_x, *point.g_x]

    mine = gradients()
    monkeypatch.undo()
    for found, other in zip(mine, gradients(), strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=1e-14)


def test_a_loss_that_reads_x_past_its_features_is_not_captured(computed_elsewhere, monkeypatch):
    def gradients():
        problem, upper, lower = own("scaled")
        solver = adambo.AdamBO(problem, inverse=adambo.Neumann(terms=3, step=0.1))
        for _ in range(2):
            solver.step(upper, lower)
        return [p.detach() for p in (*problem.x, *problem.y)], len(computed_elsewhere)

    mine, tried = gradients()
    assert tried == 1, "it is tried once, and then known"
    monkeypatch.undo()
    for found, other in zip(mine, gradients()[0], strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("see", "captured"),
    [
        (lambda batch: (batch[1], 0.25), True),
        (lambda batch: (batch[1], 0.25, object()), False),
        (lambda batch: (batch[1], nn.Parameter(torch.tensor(0.25, dtype=torch.float64))), False),
    ],
    ids=["tensors and numbers", "an object", "something to differentiate"],
)
def test_only_tensors_and_numbers_can_be_inputs_of_a_graph(see, captured, computed_elsewhere):
    pair = Pair()
    problem = adambo.EncoderHeadProblem(pair.encode, pair.loss, pair.loss, pair.encoder, pair.weights, losses_see=see)
    adambo.AdamBO(problem, inverse=adambo.Neumann(terms=3, step=0.1)).step(*pair.batches())
    assert bool(computed_elsewhere) == captured


def test_losses_see_is_given_in_the_place_of_the_batch():
    problem, upper, lower = own("plain")
    adambo.AdamBO(problem).step(upper, lower)  # the loss indexes what it is given as losses_see made it
    with pytest.raises(adambo.ProblemError, match="losses_see"):
        adambo.EncoderHeadProblem(
            lambda b: b, lambda f, b: f, lambda f, b: f, nn.Linear(1, 1), nn.Linear(1, 1), losses_see=3
        )


def one_step(make, *, elsewhere, monkeypatch, steps=1):
    if not elsewhere:
        monkeypatch.setattr(captured_losses, "_is_on_gpu", lambda tensor: False)
    problem, upper, lower = make()
    solver = adambo.AdamBO(problem, inverse=adambo.Neumann(terms=3, step=0.1))
    for _ in range(steps):
        solver.step(upper, lower)
    return [p.detach() for p in (*problem.x, *problem.y)], problem


def assert_same_steps(make, monkeypatch):
    mine, _ = one_step(make, elsewhere=True, monkeypatch=monkeypatch)
    theirs, problem = one_step(make, elsewhere=False, monkeypatch=monkeypatch)
    for found, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=1e-14)
    return problem


def with_losses(encode, loss, see, modules=()):
    encoder, weights = network(4), nn.Parameter(random(1, 3, 4))
    batches = [(random(seed, 8, 5), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])) for seed in (1, 2)]
    problem = adambo.EncoderHeadProblem(
        lambda batch: encode(encoder(batch[0])),
        lambda features, seen: loss(weights, features, seen),
        lambda features, seen: loss(weights, features, seen) + 0.1 * weights.square().sum(),
        [encoder, *modules],
        weights,
        losses_see=see,
    )
    return problem, *batches


def cross_entropy(weights, features, labels):
    return F.cross_entropy(features @ weights.T, labels)


def test_one_feature_that_comes_twice_has_both_derivatives(computed_elsewhere, monkeypatch):
    def loss(weights, features, labels):
        return F.cross_entropy(features[0] @ weights.T + features[1].square() @ weights.T, labels)

    assert_same_steps(lambda: with_losses(lambda h: (h, h), loss, lambda batch: batch[1]), monkeypatch)
    assert computed_elsewhere


def test_features_that_are_not_in_one_piece(computed_elsewhere, monkeypatch):
    make = lambda: with_losses(lambda h: torch.stack([h, 2 * h], 2)[:, :, 1], cross_entropy, lambda batch: batch[1])  # noqa: E731
    assert_same_steps(make, monkeypatch)
    problem, upper, lower = make()
    draw = adambo.Draw((upper,), (lower,), (lower,))
    assert problem.encodings(draw).features(upper, "x").is_contiguous()


@pytest.mark.parametrize(
    "pair",
    [
        ({"up": "labels", "down": None}, {"up": None, "down": "labels"}),
        (("labels", 1), ("labels", True)),
        (("labels", 1), ("labels", 1.0)),
        (("labels", 1), ["labels", 1]),
    ],
)
def test_what_looks_different_to_a_loss_is_another_form(pair, computed_elsewhere):
    def loss(weights, features, seen):
        leaves = torch.utils._pytree.tree_leaves(seen)
        return cross_entropy(weights, features, next(t for t in leaves if isinstance(t, torch.Tensor)))

    seen = []

    def see(batch):
        return torch.utils._pytree.tree_map(lambda t: batch[1] if t == "labels" else t, seen[0])

    problem, upper, lower = with_losses(lambda h: h, loss, see)
    for each in pair:
        seen[:] = [each]
        problem.at(adambo.Draw((upper,), (lower,), (lower,))).f  # noqa: B018
    assert len(set(computed_elsewhere)) == 2


def test_two_shapes_may_depend_on_different_features(computed_elsewhere, monkeypatch):
    def loss(weights, features, labels):
        return cross_entropy(weights, features[0 if len(labels) == 8 else 1], labels)

    problem, upper, _ = with_losses(lambda h: (h, 2 * h), loss, lambda batch: batch[1])
    short = (upper[0][:5], upper[1][:5])
    points = [problem.at(adambo.Draw((batch,), (batch,), (batch,))) for batch in (upper, short, upper)]
    first, _, again = (point.f_x for point in points)
    for found, other in zip(again, first, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=0)


def test_a_loss_that_writes_a_buffer_is_left_to_python_and_writes_it_as_often(computed_elsewhere, monkeypatch):
    def make():
        norm = nn.BatchNorm1d(4).double()

        def loss(weights, features, labels):
            return cross_entropy(weights, norm(features), labels)

        return with_losses(lambda h: h, loss, lambda batch: batch[1], [norm])

    _, problem = one_step(make, elsewhere=True, monkeypatch=monkeypatch, steps=3)
    _, reference = one_step(make, elsewhere=False, monkeypatch=monkeypatch, steps=3)
    assert computed_elsewhere
    for mine, theirs in zip(problem.buffers, reference.buffers, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_an_empty_batch_is_refused_before_it_is_encoded(computed_elsewhere):
    calls = []
    problem, _, lower = with_losses(lambda h: calls.append(1) or h, cross_entropy, lambda batch: batch[1])
    with pytest.raises(adambo.SampleError, match="empty"):
        adambo.AdamBO(problem).step([], lower)
    assert not calls


def test_a_loss_that_was_exchanged_is_another_form(computed_elsewhere):
    problem, upper, lower = with_losses(lambda h: h, cross_entropy, lambda batch: batch[1])
    draw = adambo.Draw((upper,), (lower,), (lower,))
    before, weights = problem.at(draw).f, problem.y[0]
    problem.upper = lambda features, labels: 2 * cross_entropy(weights, features, labels)
    torch.testing.assert_close(problem.at(draw).f, 2 * before)
    assert len(set(computed_elsewhere)) == 2


def test_a_head_that_is_trained_and_one_that_is_evaluated_are_two_forms(computed_elsewhere):
    problem, upper, lower = with_losses(lambda h: h, cross_entropy, lambda batch: batch[1])
    for mode in (True, False):
        for module in problem.modules:
            module.train(mode)
        problem.at(adambo.Draw((upper,), (lower,), (lower,))).f  # noqa: B018
    assert len(set(computed_elsewhere)) == 2


def test_an_error_in_a_loss_says_what_the_loss_was_given():
    problem, upper, lower = with_losses(
        lambda h: h, lambda weights, features, batch: cross_entropy(weights, features, batch[1]), lambda batch: batch[1]
    )
    with pytest.raises(Exception) as caught:  # noqa: PT011
        adambo.AdamBO(problem).step(upper, lower)
    assert "losses_see made of the batch: torch.int64 (8,)" in "".join(caught.value.__notes__)


def test_hooks_on_y_are_run_by_python(computed_elsewhere):
    problem, upper, lower = with_losses(lambda h: h, cross_entropy, lambda batch: batch[1])
    problem.y[0].register_hook(lambda gradient: 2 * gradient)
    adambo.AdamBO(problem).step(upper, lower)
    assert not computed_elsewhere


class OnGpu:
    """As much of a tensor as `Programmes` looks at."""

    is_cuda, shape, dtype, device = True, (1,), torch.float32, torch.device("cuda", 0)


class Graph:
    def __init__(self, function, inputs):
        self.run = function


@pytest.fixture
def programmes_without_a_gpu(monkeypatch):
    monkeypatch.setattr(programmes, "_Captured", Graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Programmes()


def test_the_graph_that_was_not_used_for_the_longest_time_goes_first(programmes_without_a_gpu):
    kept = programmes_without_a_gpu
    for form in range(programmes.KEPT + 3):
        for _ in range(programmes.PATIENCE + 1):
            kept.run("always", lambda inputs: ["always"], [OnGpu()])
            kept.run(form, lambda inputs: ["now and then"], [OnGpu()])
    assert kept.captured == programmes.KEPT
    assert kept.run("always", lambda inputs: ["captured anew"], [OnGpu()]) == ["always"]


def test_forms_that_come_once_in_a_while_are_captured_for_as_long_as_it_pays(programmes_without_a_gpu):
    kept = programmes_without_a_gpu

    def captured(form, runs):
        return [kept.run(form, lambda inputs: [form], [OnGpu()]) for _ in range(runs)][-1] is not None

    assert all(captured(form, 4 * programmes.MOST) for form in range(2 * programmes.MOST))
    assert not all(captured(-form, programmes.PATIENCE + 1) for form in range(1, 20 * programmes.MOST))
