"""The formulations against closed forms, loops and finite differences."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from torch import nn

import adambo
from adambo.problems.deep_auc import AucVariables, Examples, auc_loss, deep_auc
from adambo.problems.hyper_cleaning import Weighed, hyper_cleaning
from adambo.problems.hyper_representation import Episodes, Heads, fine_tuned, hyper_representation


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def make_heads(count, classes=3, features=4, scale=0.3):
    return Heads(
        nn.Parameter(scale * torch.randn(count, classes, features)), nn.Parameter(scale * torch.randn(count, classes))
    )


def episodes_of(ids, examples=6, support=4, classes=3):
    labels = torch.randint(classes, (len(ids), examples))
    return Episodes(torch.tensor(ids), torch.randn(len(ids) * examples, 5), labels, support)


def test_logits_are_those_of_each_task_and_its_own_head():
    heads, features = make_heads(3), torch.randn(3, 6, 4)
    loop = torch.stack([features[t] @ heads.weights[t].T + heads.biases[t] for t in range(3)])
    assert torch.allclose(heads.logits(features), loop.transpose(1, 2))


def test_one_head_serves_all_tasks():
    head, features = make_heads(1), torch.randn(3, 6, 4)
    loop = torch.stack([features[t] @ head.weights[0].T + head.biases[0] for t in range(3)])
    assert torch.allclose(head.logits(features), loop.transpose(1, 2))


@pytest.mark.parametrize("adapter", ["per_task", "shared"])
def test_losses_are_mean_above_and_the_papers_sum_or_one_loss_below(adapter):
    mu, ids = 0.3, [4, 1]
    encoder, heads = nn.Linear(5, 4), make_heads(6 if adapter == "per_task" else 1)
    problem = hyper_representation(encoder, encoder, heads, mu, adapter)
    episodes = episodes_of(ids)
    features = encoder(episodes.inputs).view(2, 6, 4)

    def cross_entropy(task, examples):
        row = ids[task] if adapter == "per_task" else 0
        logits = features[task, examples] @ problem.y[0][row].T + problem.y[1][row]
        return nn.functional.cross_entropy(logits, episodes.labels[task, examples])

    support, query = slice(0, 4), slice(4, 6)
    rows = ids if adapter == "per_task" else [0]
    norm = sum(part[row].square().sum() for part in problem.y for row in rows)
    below = [cross_entropy(task, support) for task in range(2)]
    lower = sum(below) if adapter == "per_task" else sum(below) / 2
    assert torch.allclose(problem.lower(features, episodes), lower + mu / 2 * norm)
    above = [cross_entropy(task, query) for task in range(2)]
    assert torch.allclose(problem.upper(features, episodes), sum(above) / 2)


@pytest.mark.parametrize("adapter", ["per_task", "shared"])
def test_the_hypergradient_of_hyper_representation_agrees_with_finite_differences(adapter):
    encoder = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    problem = hyper_representation(encoder, encoder, make_heads(3 if adapter == "per_task" else 1), 0.2, adapter)
    episodes = episodes_of([0, 1, 2])
    draw = adambo.Draw(upper=(episodes,), cross=(episodes,))
    check = adambo.check_hypergradient(problem, draw, adambo.Exact())
    assert check.passed, check


def test_fine_tuning_is_gradient_descent_on_the_support_loss_of_a_copy():
    features, labels, mu, lr = torch.randn(3, 6, 4), torch.randint(3, (3, 6)), 0.2, 0.4
    heads = make_heads(3)
    before = [part.detach().clone() for part in heads]
    weights, biases = (part.detach().clone().requires_grad_() for part in heads)
    for _ in range(5):
        loss = Heads(weights, biases).losses(features, labels).sum()
        loss = loss + mu / 2 * (weights.square().sum() + biases.square().sum())
        gradients = torch.autograd.grad(loss, (weights, biases))
        weights, biases = (
            (part - lr * gradient).detach().requires_grad_()
            for part, gradient in zip((weights, biases), gradients, strict=True)
        )
    tuned = fine_tuned(heads, features, labels, mu, steps=5, lr=lr)
    assert torch.allclose(tuned.weights, weights)
    assert torch.allclose(tuned.biases, biases)
    assert all(torch.equal(part, kept) for part, kept in zip(heads, before, strict=True))


def test_the_automatic_rate_never_increases_the_support_loss_however_large_features_are():
    for scale in (1e-3, 1.0, 1e3):
        features, labels = scale * torch.randn(3, 6, 4), torch.randint(3, (3, 6))
        heads, losses = make_heads(3, scale=0.0), []
        for _ in range(20):
            losses.append(heads.losses(features, labels).sum() + 0.05 * heads.squared_norm())
            heads = fine_tuned(heads, features, labels, mu=0.1, steps=1)
        assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses))


@given(p=floats(0.05, 0.95), n=integers(2, 9), seed=integers(0, 2**31 - 1), margin=floats(0, 2))
@settings(max_examples=40, deadline=None)
def test_the_auc_loss_is_the_papers_formula_example_by_example(p, n, seed, margin):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    positive = torch.randint(2, (n,), generator=generator).double()
    a, b, alpha = torch.randn(3, generator=generator, dtype=torch.float64)
    total = 0.0
    for s, c in zip(scores.tolist(), positive.tolist(), strict=True):
        if c == 1:
            total += (1 - p) * (s - a) ** 2 - 2 * (1 + alpha) * (1 - p) * s
        else:
            total += p * (s - b) ** 2 + 2 * (1 + alpha) * p * s
        total += 2 * (1 + alpha) * p * (1 - p) * margin - p * (1 - p) * alpha**2
    assert auc_loss(scores, positive, a, b, alpha, p, margin).item() == pytest.approx(float(total) / n, abs=1e-10)


def auc_problem(p):
    network, variables = nn.Linear(3, 1), AucVariables()
    problem = deep_auc(lambda inputs: network(inputs).sigmoid().flatten(), network, variables, p)
    return problem, network, variables


def auc_batch(positives, negatives):
    labels = torch.cat([torch.ones(positives), torch.zeros(negatives)])
    return Examples(torch.randn(len(labels), 3), labels)


def test_the_lower_solution_of_auc_is_the_gap_of_mean_scores_and_its_curvature_is_known():
    p, batch = 0.8, auc_batch(8, 2)  # whose share of positives is p, so that means over it are means over classes
    problem, network, variables = auc_problem(p)
    scores = network(batch.inputs).sigmoid().flatten()
    gap = scores[8:].mean() - scores[:8].mean()
    point = problem.at(adambo.Draw(cross=(batch,), hessian=(batch,), lower=(batch,)))
    (curvature,) = point.hessian([torch.ones(())])
    assert float(curvature) == pytest.approx(2 * p * (1 - p))
    (slope,) = point.lower_gradient()
    assert (variables.alpha - slope / curvature).item() == pytest.approx(gap.item())


def test_one_neumann_term_with_the_known_curvature_is_the_exact_inverse_for_auc():
    p, (upper, lower) = 0.9, (auc_batch(7, 3), auc_batch(6, 4))
    problem, *_ = auc_problem(p)
    draw = adambo.Draw(upper=(upper,), cross=(lower,), hessian=(lower,) * 3)
    point = problem.at(draw)
    exact = adambo.Exact().solve(point, point.f_y)
    for terms in (1, 3):
        series = adambo.Neumann(terms=terms, step=1 / (2 * p * (1 - p))).solve(point, point.f_y)
        assert torch.allclose(series[0], exact[0])


def test_at_the_lower_solution_of_auc_the_hypergradient_is_the_plain_gradient():
    p, batch = 0.8, auc_batch(8, 2)
    problem, network, variables = auc_problem(p)
    scores = network(batch.inputs).sigmoid().flatten().detach()
    with torch.no_grad():
        variables.alpha.copy_(scores[8:].mean() - scores[:8].mean())
    point = problem.at(adambo.Draw(upper=(batch,), cross=(batch,), hessian=(batch,)))
    z = adambo.Exact().solve(point, point.f_y)
    assert float(z[0].abs()) < 1e-12
    for whole, plain in zip(point.hypergradient(z, keep_graph=True), point.f_x, strict=True):
        assert torch.allclose(whole, plain)


def test_with_other_data_below_the_auc_problem_rewards_that_the_two_differ():
    """Φ = f_u(x, α_l*) is the AUC loss of the upper data, max over α of f_u, minus p(1−p)(α_l* − α_u*)²."""
    p, upper, lower = 0.8, auc_batch(8, 2), auc_batch(16, 4)  # whose shares of positives are p
    problem, network, variables = auc_problem(p)

    def gap(batch):  # α* of a batch
        scores = network(batch.inputs).sigmoid().flatten()
        return scores[batch.positive == 0].mean() - scores[batch.positive == 1].mean()

    def upper_loss(alpha):
        scores = network(upper.inputs).sigmoid().flatten()
        return auc_loss(scores, upper.positive, variables.a, variables.b, alpha, p)

    objective = upper_loss(gap(upper)) - p * (1 - p) * (gap(lower) - gap(upper)).square()
    assert upper_loss(gap(lower)).item() == pytest.approx(objective.item(), abs=1e-12)
    expected = torch.autograd.grad(objective, [*network.parameters(), variables.a, variables.b])
    with torch.no_grad():
        variables.alpha.copy_(gap(lower))  # y*(x)
    point = problem.at(adambo.Draw(upper=(upper,), cross=(lower,), hessian=(lower,)))
    for found, known in zip(point.hypergradient(adambo.Exact().solve(point, point.f_y)), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-12)


def test_heads_that_are_no_parameters_stay_what_they_are():
    encoder = nn.Linear(3, 4)
    weights, bias = torch.zeros(1, 2, 4, requires_grad=True), torch.ones(1, 2)
    problem = hyper_representation(encoder, encoder, Heads(weights, bias), mu=0.1, adapter="shared")
    assert len(problem.y) == 1
    assert problem.y[0] is weights
    labels = torch.tensor([[0, 1, 0, 1]])
    episodes = Episodes(torch.tensor([0]), torch.randn(4, 3), labels, support=2)
    adambo.AdamBO(problem, lower_lr=0.5).step(episodes, episodes)
    assert torch.equal(bias, torch.ones(1, 2))
    assert weights.abs().max() > 0


def test_joined_batches_of_auc_make_the_same_steps_with_one_call_of_the_network():
    batches = [Examples(torch.randn(n, 3), (torch.rand(n) < 0.7).double()) for n in (6, 5, 7, 4, 6, 8)]
    start, ends, calls = nn.Linear(3, 1).state_dict(), [], []
    for concatenate in (False, True):
        network, variables = nn.Linear(3, 1), AucVariables()
        network.load_state_dict(start)
        calls.clear()

        def score(inputs, network=network):
            calls.append(len(inputs))
            return network(inputs).sigmoid().flatten()

        problem = deep_auc(score, network, variables, 0.7, concatenate=concatenate)
        inverse = adambo.Neumann(terms=3, step=1 / 0.42, samples="independent")
        solver = adambo.AdamBO(problem, lr=0.1, lower_lr=0.5, inverse=inverse)
        solver.step(adambo.Draw((batches[0],), (batches[1],), (batches[2],), tuple(batches[3:])))
        ends.append(torch.cat([p.detach().flatten() for p in (*problem.x, *problem.y)]))
    assert calls == [6 + 7 + 5 + 4 + 6 + 8]
    torch.testing.assert_close(ends[1], ends[0])


def test_cleaning_weighs_each_loss_by_the_sigmoid_of_its_own_logit():
    logits, classifier, mu = nn.Parameter(torch.randn(7)), nn.Linear(3, 2), 0.3
    problem = hyper_cleaning(logits, classifier, mu)
    batch = Weighed(torch.tensor([5, 0]), torch.randn(2, 3), torch.tensor([1, 0]))
    losses = [
        nn.functional.cross_entropy(classifier(batch.inputs[k : k + 1]), batch.labels[k : k + 1]) for k in range(2)
    ]
    weights = [1 / (1 + torch.exp(-logits[5])), 1 / (1 + torch.exp(-logits[0]))]
    norm = classifier.weight.square().sum() + classifier.bias.square().sum()
    expected = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / 2 + mu / 2 * norm
    assert torch.allclose(problem.lower(batch), expected)


def test_the_hypergradient_of_cleaning_agrees_with_finite_differences():
    problem = hyper_cleaning(nn.Parameter(torch.randn(4)), nn.Linear(3, 2), 0.3)
    train = Weighed(torch.arange(4), torch.randn(4, 3), torch.tensor([1, 0, 0, 1]))
    clean = Weighed(torch.arange(5), torch.randn(5, 3), torch.tensor([1, 0, 1, 1, 0]))
    check = adambo.check_hypergradient(problem, adambo.Draw(upper=(clean,), cross=(train,)), adambo.Exact())
    assert check.passed, check
