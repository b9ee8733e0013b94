"""MAML on all tasks at once makes the steps of MAML from task to task."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adambo
from adambo import MAML, Draw
from adambo.models.bert import BertEncoder
from adambo.models.recurrent import SentenceRNN
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation

TASKS = 4


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normalised_problem(kind=adambo.EncoderHeadProblem):
    """LayerNorm, whose second derivative is the delicate one."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 4), nn.LayerNorm(4)).double()
    head = nn.Linear(4, 2).double()

    def upper(features, batch):
        return F.cross_entropy(head(features), batch[1])

    def lower(features, batch):
        return upper(features, batch) + 0.1 * head.weight.square().sum()

    if kind is adambo.EncoderHeadProblem:
        return kind(lambda batch: encoder(batch[0]), upper, lower, encoder, head)
    return kind(lambda b: upper(encoder(b[0]), b), lambda b: lower(encoder(b[0]), b), encoder, head)


def batch_of(seed, rows=5):
    return random(seed, rows, 3), torch.randint(2, (rows,), generator=torch.Generator().manual_seed(seed))


def draws_of(steps):
    return [
        Draw(upper=(batch_of(10 * k),), lower=tuple(batch_of(10 * k + s) for s in range(1, steps + 1)))
        for k in range(TASKS)
    ]


def trained(problem, draws, **settings):
    solver = MAML(problem, lr=0.2, lower_lr=0.3, **settings)
    for _ in range(3):
        info = solver.step(draws)
    told = [info.upper_loss, info.lower_loss, *info.meta_x, *info.meta_y, *info.x_adapted, *info.y_adapted]
    return [t.detach().clone() for t in (*problem.x, *problem.y, *told)], solver


@pytest.mark.parametrize("kind", [adambo.Problem, adambo.EncoderHeadProblem])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("inner_steps", [1, 3])
def test_the_steps_are_those_of_one_task_after_the_other(inner_steps, first_order, kind):
    draws, settings = draws_of(inner_steps), {"inner_steps": inner_steps, "first_order": first_order}
    one_by_one, slow = trained(normalised_problem(kind), draws, **settings)
    at_once, fast = trained(normalised_problem(kind), draws, at_once=True, **settings)
    for found, expected in zip(at_once, one_by_one, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert fast.ledger.as_dict() == slow.ledger.as_dict()


@pytest.mark.parametrize("most", [1, 3, 4, 9])
def test_a_few_tasks_at_a_time_make_the_same_steps(most):
    draws = draws_of(1)
    expected, _ = trained(normalised_problem(), draws, at_once=True)
    for found, known in zip(trained(normalised_problem(), draws, at_once=most)[0], expected, strict=True):
        torch.testing.assert_close(found, known, rtol=0, atol=1e-12)


def test_no_number_of_tasks_below_one_is_taken():
    with pytest.raises(adambo.SettingError, match="at_once"):
        MAML(normalised_problem(), at_once=-2)


@pytest.mark.parametrize("pooling", ["max", "mean", "last"])
def test_an_rnn_learns_from_all_tasks_at_once(pooling):
    def problem():
        torch.manual_seed(0)
        rnn, head = SentenceRNN(torch.randn(20, 3), 2, 4, 0.0, pooling).double(), nn.Linear(4, 2).double()

        def loss(batch):
            return F.cross_entropy(head(rnn(*batch[:2])), batch[2])

        return adambo.Problem(loss, loss, rnn, head)

    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        tokens, lengths = (
            torch.randint(1, high, shape, generator=generator) for high, shape in ((20, (5, 6)), (7, (5,)))
        )
        batch = (tokens, lengths, torch.randint(2, (5,), generator=generator))
        return Draw(upper=(batch,), lower=(batch,))

    draws = [draw(k) for k in range(TASKS)]
    expected, _ = trained(problem(), draws)
    for found, known in zip(trained(problem(), draws, at_once=3)[0], expected, strict=True):
        torch.testing.assert_close(found, known, rtol=0, atol=1e-12)


def test_the_meta_gradient_of_a_bert_agrees_with_finite_differences():
    torch.manual_seed(0)
    bert = BertEncoder(20, 1, 2, 8, 8, dropout=0.0, max_length=8).double()
    heads = Heads(nn.Parameter(random(1, 1, 3, 8)), nn.Parameter(random(2, 1, 3)))
    problem = hyper_representation(lambda inputs: bert(*inputs), bert, heads, mu=0.1, adapter="shared")
    tokens = torch.randint(1, 20, (TASKS, 6, 5), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(5) < torch.tensor([5, 4, 5, 3, 5, 2])[:, None]
    labels = torch.randint(3, (TASKS, 1, 6), generator=torch.Generator().manual_seed(4))
    draws = []
    for k in range(TASKS):
        episodes = Episodes(torch.tensor([k]), (tokens[k], mask), labels[k], support=3)
        draws.append(Draw(upper=(episodes,), lower=(episodes,)))
    solver = MAML(problem, lr=0.0, lower_lr=0.5, at_once=True)
    info = solver.step(draws)
    directions = [random(5 + k, *p.shape) for k, p in enumerate(solver.theta)]
    slope = sum(float((m * d).sum()) for m, d in zip((*info.meta_x, *info.meta_y), directions, strict=True))

    def after(distance):
        with torch.no_grad():
            torch._foreach_add_(solver.theta, directions, alpha=distance)
        value = solver.step(draws).upper_loss.item()
        with torch.no_grad():
            torch._foreach_add_(solver.theta, directions, alpha=-distance)
        return value

    assert slope == pytest.approx((after(1e-6) - after(-1e-6)) / 2e-6, rel=1e-6)


def test_dropout_differs_between_tasks():
    """With the mask m of an inner step θ' = θ − γ m, so the losses of tasks differ where their masks do."""
    module, y = nn.ParameterList([torch.zeros(50)]), nn.ParameterList([torch.zeros(1)])
    problem = adambo.Problem(
        lambda b: (module[0] * b).sum() + 0 * y[0].sum(),
        lambda b: F.dropout(module[0] * b, 0.5).sum() + 0 * y[0].sum(),
        module,
        y,
    )
    weights = random(1, 50).float()
    info = MAML(problem, lr=0.0, lower_lr=0.1, at_once=True).step([Draw((weights,), (weights,))] * 2)
    alone = MAML(problem, lr=0.0, lower_lr=0.1, at_once=True).step([Draw((weights,), (weights,))])
    assert info.upper_loss != alone.upper_loss
    torch.testing.assert_close(info.meta_x[0], weights)  # θ' − θ does not depend on θ


def test_one_mask_serves_an_inner_step_there_and_back():
    """G = Σ m θ²/2, F = Σ θ'², θ' = (1 − γ m) θ: F = Σ (1 − γ m)² θ² and its gradient have one m, 0 or 2."""
    module, y = nn.ParameterList([torch.ones(50)]), nn.ParameterList([torch.zeros(1)])
    problem = adambo.Problem(
        lambda b: module[0].square().sum() + 0 * y[0].sum(),
        lambda b: F.dropout(module[0].square() / 2, 0.5).sum() + 0 * y[0].sum(),
        module,
        y,
    )
    info = MAML(problem, lr=0.0, lower_lr=0.1, at_once=True).step([Draw((torch.ones(1),), (torch.ones(1),))])
    known = {2.0, round(2 * 0.8**2, 4)}
    assert {round(value, 4) for value in info.meta_x[0].tolist()} == known
    assert info.upper_loss.item() == pytest.approx(info.meta_x[0].sum().item() / 2)


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was():
    problem, draws = normalised_problem(), draws_of(1)
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    bad = (torch.full((5, 3), torch.nan, dtype=torch.float64), draws[1].upper[0][1])
    with pytest.raises(adambo.NonFiniteError, match="upper loss"):
        MAML(problem, at_once=True).step([draws[0], Draw(upper=(bad,), lower=draws[1].lower)])
    assert all(torch.equal(p, q) for p, q in zip((*problem.x, *problem.y), before, strict=True))


def test_parameters_that_are_no_part_of_a_module_are_refused():
    x, y = (torch.zeros(2, requires_grad=True) for _ in range(2))
    problem = adambo.Problem(lambda b: (x * y * b).sum(), lambda b: (x * y * b).sum(), x, y)
    with pytest.raises(adambo.SettingError, match=r"at_once=True.*modules"):
        MAML(problem, at_once=True)


def test_batches_of_unequal_shapes_are_refused():
    draws = draws_of(1)
    draws[2] = Draw(upper=(batch_of(1, rows=4),), lower=draws[2].lower)
    with pytest.raises(adambo.SampleError, match=r"equal shapes.*at_once"):
        MAML(normalised_problem(), at_once=True).step(draws)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.GroupNorm(1, 2)])
def test_layers_that_vmap_differentiates_wrongly_are_refused(layer):
    network, head = nn.Sequential(nn.Linear(3, 2), layer), nn.Linear(2, 1)
    problem = adambo.Problem(lambda b: head(network(b)).sum(), lambda b: head(network(b)).sum(), network, head)
    with pytest.raises(adambo.SettingError, match=type(layer).__name__):
        MAML(problem, at_once=True)
