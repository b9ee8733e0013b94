"""Encoder and head: how often the encoder runs, and that the answers are those of the plain problem."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import adambo
from adambo import Draw

SETTINGS = {"lr": 0.02, "lower_lr": 0.1, "eps": 1e-3}


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def batch_of(seed, size=5):
    return randn(size, 3, seed=seed), randn(size, seed=seed + 1000)


def draw_of(step, needs, independent):
    seed = 100 * step
    if not independent:
        return Draw.of(batch_of(seed, 4), batch_of(seed + 1), needs)
    counts = (needs.upper, needs.lower, needs.cross, needs.hessian)
    roles = [tuple(batch_of(seed + 10 * role + k) for k in range(count)) for role, count in enumerate(counts)]
    return Draw(*roles)


def parts():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    return encoder, nn.Linear(4, 1).double()


def upper_loss(head, features, targets):
    return (head(features).squeeze(-1) - targets).square().mean() + 0.1 * features.square().mean()


def lower_loss(head, features, targets):
    fit = functional.softplus(-targets * head(features).squeeze(-1)).mean()
    return fit + 0.1 * sum(p.square().sum() for p in head.parameters())


class Counting:
    """An encoder that notes the batches it is called with, and whether a graph is recorded."""

    def __init__(self, encoder):
        self.encoder, self.calls = encoder, []

    def __call__(self, batch):
        self.calls.append((batch, torch.is_grad_enabled()))
        return self.encoder(batch[0])

    def times(self, batch):
        return sum(b is batch for b, _ in self.calls)


def problems():
    """The two statements of one problem, each with its own parameters."""
    encoder, head = parts()
    plain = adambo.Problem(
        lambda b: upper_loss(head, encoder(b[0]), b[1]), lambda b: lower_loss(head, encoder(b[0]), b[1]), encoder, head
    )
    return plain, counted_problem()[0]


def counted_problem(**more):
    encoder, head = parts()
    counting = Counting(encoder)
    problem = adambo.EncoderHeadProblem(
        counting,
        lambda features, b: upper_loss(head, features, b[1]),
        lambda features, b: lower_loss(head, features, b[1]),
        x=encoder,
        y=head,
        **more,
    )
    return problem, counting


def run(problem, steps=5, independent=True, **settings):
    solver = adambo.AdamBO(problem, **SETTINGS, **settings)
    found = []
    for step in range(steps):
        info = solver.step(draw_of(step, solver.needs, independent))
        found += [h.clone() for h in info.hypergradient]
    return [*found, *(p.detach().clone() for p in (*problem.x, *problem.y))]


def assert_close(found, expected, atol=1e-12):
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=atol)


@pytest.mark.parametrize("independent", [True, False], ids=["independent", "thrifty"])
@pytest.mark.parametrize("lower_steps", [1, 5])
@pytest.mark.parametrize("at", ["current", "updated"])
def test_encoder_and_head_follow_the_trajectory_of_the_plain_problem(independent, lower_steps, at):
    plain, structured = problems()
    settings = {"independent": independent, "lower_steps": lower_steps, "hypergradient_at": at}
    assert_close(run(structured, **settings), run(plain, **settings))


@pytest.mark.parametrize(
    "inverse",
    [
        lambda: adambo.Neumann(terms=4, samples="independent"),
        lambda: adambo.Neumann(terms=4, samples="shared"),
        lambda: adambo.ConjugateGradient(4),
        lambda: adambo.LinearSystem(lr=0.5, steps=2),
        lambda: adambo.Exact(),
    ],
)
def test_every_inverse_gives_both_statements_the_same_answer(inverse):
    plain, structured = problems()
    assert_close(run(structured, inverse=inverse()), run(plain, inverse=inverse()))


def test_the_hypergradient_is_that_of_the_solved_lower_problem():
    """Ridge regression on features has y*(x) in closed form, through which autograd differentiates phi."""
    encoder, _ = parts()
    (inputs, targets), (val_inputs, val_targets) = batch_of(1, 9), batch_of(2, 7)
    y = torch.zeros(4, dtype=torch.double, requires_grad=True)

    def solved():
        features = encoder(inputs)
        return torch.linalg.solve(
            features.T @ features / 9 + 0.2 * torch.eye(4, dtype=torch.double), features.T @ targets / 9
        )

    phi = (encoder(val_inputs) @ solved() - val_targets).square().mean()
    expected = torch.autograd.grad(phi, list(encoder.parameters()))
    with torch.no_grad():
        y.copy_(solved())
    problem = adambo.EncoderHeadProblem(
        lambda b: encoder(b[0]),
        upper=lambda features, b: (features @ y - b[1]).square().mean(),
        lower=lambda features, b: 0.5 * (features @ y - b[1]).square().mean() + 0.1 * y @ y,
        x=encoder,
        y=y,
    )
    info = adambo.AdamBO(problem, inverse=adambo.Exact()).step((val_inputs, val_targets), (inputs, targets))
    assert_close(info.hypergradient, expected)


@pytest.mark.parametrize("lower_steps", [1, 5])
@pytest.mark.parametrize("at", ["current", "updated"])
def test_every_batch_object_is_encoded_once_per_step(lower_steps, at):
    problem, counting = counted_problem()
    solver = adambo.AdamBO(problem, **SETTINGS, lower_steps=lower_steps, hypergradient_at=at)
    for step in range(2):
        counting.calls.clear()
        upper, lower = batch_of(step), batch_of(step + 50)
        solver.step(upper, lower)
        assert counting.times(upper) == counting.times(lower) == 1
        assert len(counting.calls) == 2


@pytest.mark.parametrize("lower_steps", [1, 5])
@pytest.mark.parametrize("at", ["current", "updated"])
def test_only_the_upper_and_the_cross_batch_are_encoded_with_a_graph(lower_steps, at):
    problem, counting = counted_problem()
    solver = adambo.AdamBO(
        problem,
        **SETTINGS,
        lower_steps=lower_steps,
        hypergradient_at=at,
        inverse=adambo.Neumann(terms=4, samples="independent"),
    )
    draw = draw_of(0, solver.needs, independent=True)
    solver.step(draw)
    assert len(counting.calls) == 1 + lower_steps + 1 + 6
    for batch in (*draw.upper, *draw.cross, *draw.lower, *draw.hessian):
        assert counting.times(batch) == 1
    with_graph = [batch for batch, graph in counting.calls if graph]
    assert {id(b) for b in with_graph} == {id(draw.upper[0]), id(draw.cross[0])}


def test_one_object_in_all_four_roles_is_encoded_once():
    problem, counting = counted_problem()
    batch = batch_of(0)
    adambo.AdamBO(problem, **SETTINGS, lower_steps=3).step(batch, batch)
    assert len(counting.calls) == 1


def test_warm_start_encodes_every_batch_once_without_a_graph():
    problem, counting = counted_problem()
    adambo.AdamBO(problem, **SETTINGS).warm_start([batch_of(k) for k in range(4)])
    assert [graph for _, graph in counting.calls] == [False] * 4


# Concatenation.


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("lower_steps", [1, 5])
def test_concatenated_batches_are_one_call_with_the_same_answer(lower_steps, at):
    apart, _ = counted_problem()
    together, counting = counted_problem(concatenate=True)
    settings = {"independent": False, "lower_steps": lower_steps, "hypergradient_at": at, "steps": 3}
    assert_close(run(together, **settings), run(apart, **settings))
    assert len(counting.calls) == 3
    assert [len(batch[0]) for batch, _ in counting.calls] == [9, 9, 9]


def test_of_independent_batches_those_with_and_those_without_a_graph_are_one_call_each():
    apart, _ = counted_problem()
    together, counting = counted_problem(concatenate=True)
    assert_close(run(together, lower_steps=3), run(apart, lower_steps=3))
    assert [(len(batch[0]), graph) for batch, graph in counting.calls[:2]] in (
        [(10, True), (25, False)],  # upper and cross; three lower and two Hessian batches
        [(25, False), (10, True)],
    )
    assert len(counting.calls) == 2 * 5


@pytest.mark.parametrize("at", ["current", "updated"])
def test_independent_batches_can_be_one_call_that_gives_lower_batches_no_graph(at):
    apart, _ = counted_problem()
    together, counting = counted_problem(concatenate=True, one_call=True)
    settings = {"lower_steps": 3, "hypergradient_at": at}
    assert_close(run(together, **settings), run(apart, **settings))
    assert [(len(batch[0]), graph) for batch, graph in counting.calls] == [(35, True)] * 5


def test_what_is_encoded_in_one_call_for_the_lower_level_alone_has_no_graph():
    problem, _ = counted_problem(concatenate=True, one_call=True)
    upper, lower, cross = (batch_of(k) for k in range(3))
    encodings = problem.encodings(Draw((upper,), (lower,), (cross,)))
    graphs = [encodings.features(batch, "x").requires_grad for batch in (lower, upper, cross)]
    assert graphs == [False, True, True]


def test_features_of_the_lower_level_have_no_graph_beside_an_empty_upper_batch():
    problem, _ = counted_problem(concatenate=True, one_call=True)
    lower = batch_of(1)
    assert not problem.encodings(Draw(((),), (lower,))).features(lower, "x").requires_grad


def test_a_warm_start_in_one_call_builds_no_graph():
    problem, counting = counted_problem(concatenate=True, one_call=True)
    adambo.AdamBO(problem, **SETTINGS).warm_start([batch_of(k) for k in range(4)])
    assert [graph for _, graph in counting.calls] == [False] * 4


def test_batches_that_need_padding_are_joined_by_a_function_of_one_s_own():
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 4, padding_idx=0).double()
    y = torch.full((4,), 0.5, dtype=torch.double)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, 10, (3, length), generator=generator) for length in (2, 7, 4)]
    calls = []

    def encode(tokens):
        calls.append(tuple(tokens.shape))
        words = (tokens != 0).unsqueeze(-1)
        return (embedding(tokens) * words).sum(dim=1) / words.sum(dim=1)

    def padded(batches):
        longest = max(b.shape[1] for b in batches)
        rows = [functional.pad(b, (0, longest - b.shape[1])) for b in batches]
        return torch.cat(rows), [len(b) for b in batches]

    def hypergradient(concatenate):
        head = y.clone().requires_grad_()
        problem = adambo.EncoderHeadProblem(
            encode,
            upper=lambda features, b: (features @ head - b[:, 0]).square().mean(),
            lower=lambda features, b: (features @ head - b[:, -1]).square().mean() + head @ head,
            x=embedding.weight,
            y=head,
            concatenate=concatenate,
        )
        draw = Draw(texts[:1], texts[1:2], texts[1:2], (texts[1], texts[2]))
        return adambo.AdamBO(problem, lr=0.0).step(draw).hypergradient[0].clone()

    joined = hypergradient(padded)
    assert calls == [(6, 7), (3, 4)]
    assert joined.abs().max() > 0.01
    assert_close([joined], [hypergradient(False)])


@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        (randn(2, 3), randn(2, 4)),
        ((randn(2, 3), 1), (randn(2, 3), 1)),
        (randn(2, 3), (randn(2, 3),)),
        ((randn(2, 3), randn(4)), (randn(2, 3), randn(4))),
        ("one text", "another"),
    ],
    ids=["shapes", "numbers", "forms", "lengths", "text"],
)
def test_batches_that_cannot_be_joined_are_refused_with_the_ways_out(upper, lower):
    w, y = torch.ones(3, dtype=torch.double, requires_grad=True), torch.ones(1, dtype=torch.double, requires_grad=True)
    problem = adambo.EncoderHeadProblem(
        lambda b: b @ w, lambda h, b: (h * y).sum(), lambda h, b: (h - y).square().sum(), w, y, concatenate=True
    )
    with pytest.raises(adambo.SampleError, match=r"concatenate=True.*Pad.*function.*concatenate=False"):
        adambo.AdamBO(problem).step(upper, lower)


def test_dictionaries_with_another_order_of_keys_are_joined_by_name_or_refused():
    w, y = torch.ones(3, dtype=torch.double, requires_grad=True), torch.ones(1, dtype=torch.double, requires_grad=True)
    upper = {"left": randn(2, 3, seed=1), "right": randn(2, 3, seed=2)}
    lower = {"right": randn(2, 3, seed=3), "left": randn(2, 3, seed=4)}

    def hypergradient(concatenate):
        problem = adambo.EncoderHeadProblem(
            lambda b: (b["left"] @ w).tanh() + b["right"].sum(dim=1),
            lambda h, b: (h * y).square().sum(),
            lambda h, b: (h - y).square().sum(),
            w,
            y,
            concatenate=concatenate,
        )
        return [h.clone() for h in adambo.AdamBO(problem, lr=0.0, lower_lr=0.0).step(upper, lower).hypergradient]

    with suppress(adambo.SampleError):
        assert_close(hypergradient(True), hypergradient(False))


def test_features_that_cannot_be_divided_among_the_batches_are_refused():
    w, y = torch.ones(3, dtype=torch.double, requires_grad=True), torch.ones(1, dtype=torch.double, requires_grad=True)
    problem = adambo.EncoderHeadProblem(
        lambda b: (b @ w).mean(),
        lambda h, b: (h * y).sum(),
        lambda h, b: (h - y).square().sum(),
        w,
        y,
        concatenate=True,
    )
    with pytest.raises(adambo.SampleError, match=r"5 examples.*lengths \[2, 3\].*one row per example"):
        adambo.AdamBO(problem).step(randn(2, 3), randn(3, 3))


# The form of features.


@pytest.mark.parametrize("concatenate", [False, True])
@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda a, b: (a, b), lambda features: features),
        (lambda a, b: [a, b], lambda features: features),
        (lambda a, b: {"a": a, "more": {"b": b}}, lambda features: (features["a"], features["more"]["b"])),
    ],
    ids=["tuple", "list", "nested dictionary"],
)
def test_features_may_be_tuples_lists_and_dictionaries(pack, unpack, concatenate):
    def answer(pack, unpack, concatenate):
        torch.manual_seed(0)
        first, second = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
        y = torch.full((2,), 0.3, dtype=torch.double, requires_grad=True)

        def loss(features, batch):
            a, b = unpack(features)
            return ((a.tanh() * b) @ y - batch.sum(dim=1)).square().mean() + 0.2 * y @ y

        problem = adambo.EncoderHeadProblem(
            lambda batch: pack(first(batch), second(batch)), loss, loss, [first, second], y, concatenate=concatenate
        )
        solver = adambo.AdamBO(problem, **SETTINGS)
        for step in range(3):
            solver.step(randn(4, 3, seed=step), randn(5, 3, seed=step + 10))
        return [p.detach() for p in (*problem.x, *problem.y)]

    joined = answer(lambda a, b: torch.cat([a, b], dim=1), lambda features: features.split(2, dim=1), False)
    assert_close(answer(pack, unpack, concatenate), joined)


# Kernels.


def names_in_graph(tensor):
    nodes, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return {node.name() for node in nodes}


def attention_steps(backend):
    torch.manual_seed(0)
    attention, head = nn.MultiheadAttention(8, 2, batch_first=True).double(), nn.Linear(8, 1).double()

    def encode(tokens):
        return attention(tokens, tokens, tokens, need_weights=False)[0].mean(dim=1)

    def loss(features, tokens):
        fit = (head(features).squeeze(-1) - tokens[:, 0, 0]).square().mean()
        return fit + 0.1 * sum(p.square().sum() for p in head.parameters())

    problem = adambo.EncoderHeadProblem(encode, loss, loss, x=attention, y=head)
    solver = adambo.AdamBO(problem, **SETTINGS, lower_steps=2)
    with sdpa_kernel(backend):
        kernels = names_in_graph(encode(randn(2, 3, 8)))
        for step in range(3):
            solver.step(randn(2, 3, 8, seed=step), randn(2, 3, 8, seed=step + 10))
    return kernels, [p.detach() for p in (*problem.x, *problem.y)]


def test_fused_attention_works_in_the_encoder_and_gives_the_steps_of_plain_attention():
    fused, found = attention_steps([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    plain, expected = attention_steps(SDPBackend.MATH)
    assert any("FlashAttention" in name for name in fused)
    assert not any("FlashAttention" in name for name in plain)
    assert_close(found, expected)


@pytest.mark.parametrize("encoder_head", [True, False], ids=["EncoderHeadProblem", "Problem"])
def test_fused_attention_is_the_default_and_one_derivative_of_it_is_enough(encoder_head):
    torch.manual_seed(0)
    project, y = nn.Linear(4, 4).double(), torch.ones(4, dtype=torch.double, requires_grad=True)

    def encode(tokens):
        q = project(tokens).unsqueeze(1)
        features = functional.scaled_dot_product_attention(q, q, q).squeeze(1).mean(dim=1)
        if torch.is_grad_enabled():
            assert any("FlashAttention" in name for name in names_in_graph(features))
        return features

    def loss(features, tokens):
        return (features @ y - 1).square().mean() + y @ y

    if encoder_head:
        problem = adambo.EncoderHeadProblem(encode, loss, loss, project, y)
    else:
        problem = adambo.Problem(lambda b: loss(encode(b), b), lambda b: loss(encode(b), b), project, y)
    info = adambo.AdamBO(problem).step(randn(2, 3, 4), randn(2, 3, 4, seed=1))
    assert all(h.abs().max() > 0 for h in info.hypergradient)


class AttentionHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixing = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 1)

    def forward(self, tokens):
        return self.out(self.mixing(tokens, tokens, tokens, need_weights=False)[0].mean(dim=1)).squeeze(-1)


def attention_head_problem(lower_context):
    torch.manual_seed(0)
    encoder, head = nn.Linear(3, 4).double(), AttentionHead().double()

    def upper(features, tokens):
        return (head(features) - 1).square().mean()

    def lower(features, tokens):
        with lower_context():
            fit = (head(features) - tokens[:, 0, 0]).square().mean()
        return fit + 0.5 * sum(p.square().sum() for p in head.parameters())

    return adambo.EncoderHeadProblem(encoder, upper, lower, x=encoder, y=head)


def test_attention_between_y_and_the_lower_loss_is_named_together_with_the_switch():
    problem = attention_head_problem(lambda: sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
    solver = adambo.AdamBO(problem, **SETTINGS)
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    with pytest.raises(
        adambo.SecondDerivativeError,
        match=r"twice.*mixing \(MultiheadAttention\).*with adambo\.twice_differentiable\(\)",
    ):
        solver.step(randn(2, 3, 3), randn(2, 3, 3, seed=1))
    assert all(torch.equal(p, b) for p, b in zip((*problem.x, *problem.y), before, strict=True))
    assert solver.steps == 0


def test_attention_in_y_works_inside_the_switch():
    found = adambo.AdamBO(attention_head_problem(adambo.twice_differentiable), **SETTINGS)
    expected = adambo.AdamBO(attention_head_problem(lambda: sdpa_kernel(SDPBackend.MATH)), **SETTINGS)
    for solver in (found, expected):
        for step in range(3):
            solver.step(randn(2, 3, 3, seed=step), randn(2, 3, 3, seed=step + 10))
    assert_close(*([p.detach() for p in (*s.problem.x, *s.problem.y)] for s in (found, expected)))


def test_the_hypergradient_of_an_attention_head_passes_the_check_against_finite_differences():
    problem = attention_head_problem(adambo.twice_differentiable)
    batch = randn(2, 3, 3)
    assert adambo.check_hypergradient(problem, Draw(upper=(batch,), cross=(batch,))).passed


# Parts of x that a loss does not use.


def test_a_tensor_of_x_that_no_loss_uses_has_a_zero_hypergradient_and_stays():
    encoder, head = parts()
    idle = torch.ones(2, dtype=torch.double, requires_grad=True)
    problem = adambo.EncoderHeadProblem(
        lambda b: encoder(b[0]),
        lambda features, b: upper_loss(head, features, b[1]),
        lambda features, b: lower_loss(head, features, b[1]),
        x=[encoder, idle],
        y=head,
    )
    info = adambo.AdamBO(problem, **SETTINGS).step(batch_of(0), batch_of(1))
    assert len(info.hypergradient) == 5
    assert info.hypergradient[-1].tolist() == [0.0, 0.0]
    assert idle.tolist() == [1.0, 1.0]


def test_the_upper_loss_need_not_depend_on_x():
    """Hyper-cleaning: x weighs the training examples. g = ½ Σ σ(x_i) (y − t_i)² has y*(x) in closed form."""
    x = randn(6, seed=3).requires_grad_()
    targets, wanted = randn(6, seed=4), 0.3
    solution = (x.sigmoid() * targets).sum() / x.sigmoid().sum()
    (expected,) = torch.autograd.grad((solution - wanted).square(), x)
    y = solution.detach().clone().requires_grad_()
    problem = adambo.EncoderHeadProblem(
        lambda batch: targets,
        upper=lambda features, batch: (y - wanted).square(),
        lower=lambda features, batch: 0.5 * (x.sigmoid() * (y - features).square()).sum(),
        x=x,
        y=y,
    )
    info = adambo.AdamBO(problem, inverse=adambo.Exact()).step(0, 1)
    assert_close(info.hypergradient, [expected])


# Dropout.


@pytest.mark.parametrize("at", ["current", "updated"])
def test_all_oracles_of_a_step_see_one_dropout_mask_per_batch(at):
    torch.manual_seed(5)
    masks = {}

    def dropped(features, batch):
        """Dropout; the masks are kept to replay the run without randomness."""
        mask = functional.dropout(torch.ones_like(features), 0.5)
        masks.setdefault(id(batch), []).append(mask)
        return features * mask

    def replayed(features, batch):
        assert len(masks[id(batch)]) == 1
        return features * masks[id(batch)][0]

    def answer(problem_class, mask):
        encoder, head = parts()
        if problem_class is adambo.Problem:
            problem = adambo.Problem(
                lambda b: upper_loss(head, mask(encoder(b[0]), b), b[1]),
                lambda b: lower_loss(head, mask(encoder(b[0]), b), b[1]),
                encoder,
                head,
            )
        else:
            problem = adambo.EncoderHeadProblem(
                lambda b: mask(encoder(b[0]), b),
                lambda features, b: upper_loss(head, features, b[1]),
                lambda features, b: lower_loss(head, features, b[1]),
                encoder,
                head,
            )
        solver = adambo.AdamBO(problem, **SETTINGS, lower_steps=3, hypergradient_at=at)
        for draw in draws:
            solver.step(draw)
        return [p.detach() for p in (*problem.x, *problem.y)]

    needs = adambo.AdamBO(problems()[1], lower_steps=3).needs
    draws = [draw_of(step, needs, independent=False) for step in range(3)]
    assert_close(answer(adambo.EncoderHeadProblem, dropped), answer(adambo.Problem, replayed))


def test_every_step_draws_new_masks():
    torch.manual_seed(0)
    dropout, outputs = nn.Dropout(0.5), []
    x, y = torch.ones(50, dtype=torch.double, requires_grad=True), torch.ones(1, dtype=torch.double, requires_grad=True)

    def encode(batch):
        outputs.append(dropout(x))
        return outputs[-1]

    problem = adambo.EncoderHeadProblem(
        encode, lambda h, b: (h * y).sum(), lambda h, b: (h.mean() - y).square().sum(), x, y
    )
    solver = adambo.AdamBO(problem, lr=0.0)
    for _ in range(2):
        solver.step("one", "other")
    masks = {tuple((out != 0).tolist()) for out in outputs}
    assert len(outputs) == len(masks) == 4
