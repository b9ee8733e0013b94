"""MAML on all tasks at once makes the steps of MAML from task to task."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adambo
from adambo import MAML, Draw
from adambo.models.bert import BertEncoder
from adambo.models.recurrent import SentenceRNN
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation
from adambo.vmapped import RightUnderVmap

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


class Sentences(nn.Module):
    """Embeddings, whose padding is not learnt, then something to be tried, and their mean."""

    def __init__(self, then, **how):
        super().__init__()
        self.words, self.linear, self.then = nn.Embedding(6, 4, **how), nn.Linear(4, 4), then

    def forward(self, tokens):
        return self.then(self.linear(self.words(tokens))).mean(1)


def on_sentences(then, **how):
    torch.manual_seed(0)
    network, head = Sentences(deepcopy(then), **how).double(), nn.Linear(4, 2).double()

    def loss(batch):
        return F.cross_entropy(head(network(batch[0])), batch[1])

    return adambo.Problem(loss, loss, network, head)


def sentence_draws():
    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 6, (5, 3), generator=generator), torch.randint(2, (5,), generator=generator)

    return [Draw(upper=(batch(k),), lower=(batch(k + 9),)) for k in range(TASKS)]


@pytest.mark.parametrize("how", [{"padding_idx": 0}, {"padding_idx": -1}, {}], ids=str)
@pytest.mark.parametrize(
    "then",
    [nn.Identity(), nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(1, 3), lambda t: torch.layer_norm(t, (4,))],
    ids=["identity", "layer norm", "RMS norm", "group norm", "torch.layer_norm"],
)
def test_embeddings_and_norms_make_the_steps_of_one_task_after_the_other(then, how):
    expected, _ = trained(on_sentences(then, **how), sentence_draws())
    for found, known in zip(
        trained(on_sentences(then, **how), sentence_draws(), at_once=True)[0], expected, strict=True
    ):
        torch.testing.assert_close(found, known, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("then", "how", "named"),
    [
        (nn.BatchNorm1d(3), {}, "batch_norm"),
        (lambda t: F.instance_norm(t), {}, "instance_norm"),
        (nn.Identity(), {"scale_grad_by_freq": True}, "scale_grad_by_freq"),
        (lambda t: t * t.sum().item(), {}, "torch.vmap cannot follow"),
        (lambda t: torch.cdist(t, t), {}, "second derivative|cannot follow"),
    ],
)
def test_what_vmap_cannot_follow_is_refused_in_a_sentence(then, how, named):
    problem = on_sentences(then, **how)
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    solver = MAML(problem, at_once=True)
    with pytest.raises(adambo.AdamboError, match=named):
        solver.step(sentence_draws())
    assert all(torch.equal(p, q) for p, q in zip((*problem.x, *problem.y), before, strict=True))
    assert not any(solver.ledger.as_dict().values())


def test_losses_that_read_parameters_past_their_modules_are_refused():
    network, head = nn.Linear(3, 2), nn.Linear(2, 1)
    weight, parts = head.weight, list(network.parameters())
    losses = {
        "weight": lambda b: (network(b) @ weight.t()).square().mean(),
        "bias": lambda b: head(network(b)).square().mean() + sum(p.square().sum() for p in parts),
    }
    for loss in losses.values():
        problem = adambo.Problem(loss, loss, network, head)
        with pytest.raises(adambo.ProblemError, match="past its module"):
            MAML(problem, at_once=True).step([Draw((torch.ones(2, 3),), (torch.ones(2, 3),))])


def test_a_copy_of_a_solver_whose_losses_are_the_original_s_is_refused():
    solver = MAML(normalised_problem(), at_once=True)
    solver.step(draws_of(1))
    with pytest.raises(adambo.ProblemError, match=r"does not depend on y.*copy of a solver"):
        deepcopy(solver).step(draws_of(1))


def test_a_loss_without_y_a_loss_of_many_numbers_and_empty_batches_are_refused():
    network, head, one = nn.Linear(3, 2), nn.Linear(2, 1), torch.ones(2, 3)
    whole = lambda b: head(network(b)).sum()  # noqa: E731
    for lower, batch, said in (
        (lambda b: network(b).sum(), one, "does not depend on y"),
        (lambda b: head(network(b)), one, "one number"),
        (whole, torch.ones(0, 3), "empty"),
    ):
        with pytest.raises(adambo.AdamboError, match=said):
            MAML(adambo.Problem(whole, lower, network, head), at_once=True).step([Draw((one,), (batch,))])


def test_every_inner_loss_must_be_finite():
    network, head = nn.Linear(3, 2), nn.Linear(2, 1)
    loss = lambda b: head(network(b[0])).square().mean() + b[1].sum()  # noqa: E731
    good, bad = (torch.ones(2, 3), torch.zeros(1)), (torch.ones(2, 3), torch.full((1,), torch.inf))
    with pytest.raises(adambo.NonFiniteError, match="lower loss"):
        MAML(adambo.Problem(loss, loss, network, head), inner_steps=2, at_once=True).step([Draw((good,), (good, bad))])


def test_what_is_told_of_the_last_task_does_not_keep_the_others():
    info = MAML(normalised_problem(), at_once=True).step(draws_of(1))
    assert info.x_adapted[0].untyped_storage().nbytes() == info.x_adapted[0].nbytes


def test_microbatches_and_tasks_at_once_exclude_each_other():
    network, head = nn.Linear(3, 2), nn.Linear(2, 1)
    problem = adambo.EncoderHeadProblem(
        network, lambda h, b: head(h).sum(), lambda h, b: head(h).sum(), network, head, microbatches=2
    )
    with pytest.raises(adambo.SettingError, match="microbatches=2"):
        MAML(problem, at_once=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layer_norms_in_half_precision_do_not_overflow(dtype):
    rows = (800 + 3 * random(1, 4, 16)).to(dtype)
    with RightUnderVmap():
        found = F.layer_norm(rows, (16,))
    assert found.dtype == dtype
    torch.testing.assert_close(found, F.layer_norm(rows, (16,)), rtol=0.02, atol=0.02)
