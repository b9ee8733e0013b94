"""Losses that say what they see, computed on memory of their own: what a CUDA graph replays, without the graph."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adambo
from adambo import captured_losses
from adambo.closed_form import Programmes
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
    monkeypatch.setattr(captured_losses, "_Still", Still)
    return forms


class Still:
    has_drawn = False

    def __init__(self, device):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


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
        z = point.replayed(v, inverse.solve_again, "name", 4)
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
