"""Micro-batches: the encoder works through a batch in parts; the answer is the same, and less is kept in memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import adambo
from adambo.problems.deep_auc import AucVariables, Examples, deep_auc
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation

ALL = adambo.algorithms.ALL
PARTS = [2, 3, 7]  # of batches with six examples: even, even, and more than there are


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def batch(seed, size=6):
    return randn(size, 5, seed=seed), torch.randint(3, (size,), generator=torch.Generator().manual_seed(seed))


class Encoder(nn.Module):
    """Notes how many examples each call is given, and whether a graph is recorded."""

    def __init__(self, *more):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *more, nn.Linear(8, 4)).double()
        self.calls = []

    def forward(self, inputs):
        self.calls.append((len(inputs), torch.is_grad_enabled()))
        return self.layers(inputs)


def problem_of(microbatches=1, encoder=None, encode=None, **more):
    encoder = Encoder() if encoder is None else encoder
    torch.manual_seed(2)
    head = nn.Linear(4, 3).double()

    def fit(features, b):
        return functional.cross_entropy(head(features), b[1])

    return adambo.EncoderHeadProblem(
        (lambda b: encoder(b[0])) if encode is None else encode,
        fit,
        lambda features, b: fit(features, b) + 0.1 * sum(p.square().sum() for p in head.parameters()),
        encoder,
        head,
        microbatches=microbatches,
        **more,
    )


def run(problem, name="AdamBO", steps=3, batches=batch, together=False, **settings):
    """Hypergradients, where the method shows them, and what the steps lead to."""
    solver = ALL[name](problem, **{"lr": 0.02, "lower_lr": 0.1, **settings})
    torch.manual_seed(3)
    found = []
    for k in range(steps):
        upper = batches(k)
        info = solver.step(upper, upper if together else batches(k + 50))
        if name == "AdamBO":
            found += [h.clone() for h in info.hypergradient]
    return [*found, *(p.detach().clone() for p in (*problem.x, *problem.y))]


def assert_close(found, expected, tolerance=1e-12):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("lower_steps", [1, 4])
@pytest.mark.parametrize("concatenate", [False, True])
@pytest.mark.parametrize("parts", PARTS)
def test_the_hypergradient_is_that_of_the_whole_batch(parts, concatenate, lower_steps):
    encoder = Encoder()
    problem = problem_of(parts, encoder, concatenate=concatenate)
    found = run(problem, lower_steps=lower_steps)
    assert_close(found, run(problem_of(), lower_steps=lower_steps))
    whole = 12 if concatenate else 6
    assert max(length for length, _ in encoder.calls) == -(-whole // parts)


@pytest.mark.parametrize("concatenate", [False, True])
def test_independent_batches_of_unequal_length_are_divided_one_by_one(concatenate):
    def hypergradient(parts):
        problem = problem_of(parts, concatenate=concatenate)
        solver = adambo.AdamBO(problem, lower_steps=2, inverse=adambo.Neumann(terms=3, samples="independent"))
        sizes = iter([7, 5, 6, 3, 8, 4, 1])
        draw = adambo.Draw(
            *[
                tuple(batch(size, size) for size in [next(sizes) for _ in range(count)])
                for count in (1, 2, 1, solver.needs.hessian)
            ]
        )
        return [h.clone() for h in solver.step(draw).hypergradient]

    expected = hypergradient(1)
    for parts in PARTS:
        assert_close(hypergradient(parts), expected)


def test_all_parts_but_the_last_are_encoded_again_and_only_for_batches_that_reach_x():
    encoder = Encoder()
    solver = adambo.AdamBO(problem_of(3, encoder))
    draw = adambo.Draw((batch(0),), (batch(1),), (batch(2),), (batch(3), batch(3)))
    solver.step(draw)
    # upper and cross batch: three parts each, two of which come again; a lower and two Hessian batches.
    assert sorted(encoder.calls, key=str) == [(2, False)] * 9 + [(2, True)] * (2 * 5)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("adapter", ["per_task", "shared"])
def test_hyper_representation_divides_its_tasks(adapter, parts):
    def episodes(seed):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(3, (5, 4), generator=generator)
        return Episodes(torch.randperm(9, generator=generator)[:5], randn(20, 5, seed=seed), labels, 2)

    def make(microbatches):
        encoder, count = Encoder(), 9 if adapter == "per_task" else 1
        torch.manual_seed(2)
        heads = Heads(nn.Parameter(randn(count, 3, 4, seed=8)), nn.Parameter(randn(count, 3, seed=9)))
        return hyper_representation(encoder, encoder, heads, 0.2, adapter, microbatches=microbatches), encoder

    problem, encoder = make(parts)
    found = run(problem, batches=episodes, together=True, lower_steps=2)
    assert_close(found, run(make(1)[0], batches=episodes, together=True, lower_steps=2))
    assert max(length for length, _ in encoder.calls) == 4 * -(-5 // parts)


def test_hyper_representation_divides_inputs_of_several_tensors():
    def make(microbatches):
        encoder = Encoder()
        heads = Heads(nn.Parameter(randn(9, 3, 4, seed=8)), nn.Parameter(randn(9, 3, seed=9)))

        def encode(inputs):
            return encoder(inputs["values"] * inputs["mask"])

        return hyper_representation(encode, encoder, heads, 0.2, microbatches=microbatches)

    def episodes(seed):
        inputs = {"values": randn(12, 5, seed=seed), "mask": (randn(12, 5, seed=seed + 7) > 0).double()}
        return Episodes(torch.tensor([1, 4, 6]), inputs, torch.tensor([[0, 1, 2, 0]] * 3), 2)

    expected = run(make(1), batches=episodes, together=True)
    for parts in PARTS:
        assert_close(run(make(parts), batches=episodes, together=True), expected)


@pytest.mark.parametrize("parts", PARTS)
def test_deep_auc_divides_its_examples(parts):
    def examples(seed):
        return Examples(randn(6, 5, seed=seed), (randn(6, seed=seed + 100) > 0).double())

    def make(microbatches):
        torch.manual_seed(1)
        network, variables = (
            nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
            AucVariables().double(),
        )
        lengths = []

        def score(inputs):
            lengths.append(len(inputs))
            return network(inputs).sigmoid().flatten()

        return deep_auc(score, network, variables, 0.7, microbatches=microbatches), lengths

    problem, lengths = make(parts)
    assert_close(run(problem, batches=examples), run(make(1)[0], batches=examples))
    assert max(lengths) == -(-6 // parts)


@pytest.mark.parametrize("name", ["AdamBO", "SUSTAIN", "FSLA", "StocBiO"])
def test_dropout_has_the_same_masks_when_a_part_is_encoded_again(name):
    """The reference keeps all activations: an encoder that loops over the parts by itself."""
    dropout = Encoder(nn.Dropout(0.5))

    def looped(b):
        return torch.cat([dropout(part) for part in b[0].tensor_split(3)])

    expected = run(problem_of(1, dropout, looped), name)
    encoder = Encoder(nn.Dropout(0.5))
    assert_close(run(problem_of(3, encoder), name), expected)
    without = run(problem_of(3, Encoder()), name)
    assert max(float((a - b).abs().max()) for a, b in zip(without, expected, strict=True)) > 1e-4


def test_encoding_again_leaves_the_random_numbers_as_they_were():
    solver = adambo.AdamBO(problem_of(3, Encoder(nn.Dropout(0.5))))
    reference_encoder = Encoder(nn.Dropout(0.5))
    reference = adambo.AdamBO(
        problem_of(1, reference_encoder, lambda b: torch.cat([reference_encoder(p) for p in b[0].tensor_split(3)]))
    )
    following = []
    for each in (solver, reference):
        torch.manual_seed(4)
        each.step(batch(0), batch(1))
        following.append(torch.rand(3))
    assert torch.equal(*following)


@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize("name", [name for name in ALL if name != "SABA"])
def test_every_method_takes_micro_batches(name, parts, caplog):
    settings = {"smoothness": 5.0} if name == "F2SA" else {}
    assert_close(run(problem_of(parts), name, **settings), run(problem_of(1), name, **settings))


def test_a_surrogate_may_be_differentiated_twice():
    gradients = []
    for parts in (1, 3):
        problem = problem_of(parts)
        S = adambo.AdamBO(problem, inverse=adambo.Neumann(terms=3, step=0.2)).surrogate(batch(0), batch(1))
        S.backward(retain_graph=True)
        once = [p.grad.clone() for p in problem.x]
        S.backward()
        assert_close([p.grad for p in problem.x], [2 * g for g in once])
        gradients.append(once)
    assert_close(*gradients)


def test_steps_in_two_halves():
    expected = run(problem_of(), steps=3)[-len(problem_of().x) - 2 :]
    problem = problem_of(3)
    solver = adambo.AdamBO(problem, lr=0.02, lower_lr=0.1)
    for k in range(3):
        solver.surrogate(batch(k), batch(k + 50)).backward()
        solver.upper_optimizer.step()
        solver.update()
    assert_close([p.detach() for p in (*problem.x, *problem.y)], expected)


def test_the_check_of_hypergradients_takes_them():
    check = adambo.check_hypergradient(problem_of(3), adambo.Draw((batch(0),), (batch(1),), (batch(1),)))
    assert check.passed, check


@pytest.mark.parametrize("parts", [1, 3])
def test_an_encoder_may_keep_few_activations_by_itself(parts):
    encoder, plain = Encoder(nn.Dropout(0.5)), Encoder(nn.Dropout(0.5))
    reference = problem_of(1, plain, lambda b: torch.cat([plain(part) for part in b[0].tensor_split(parts)]))
    thrifty = problem_of(parts, encoder, lambda b: checkpoint(encoder, b[0], use_reentrant=False))
    assert_close(run(thrifty), run(reference))
    assert len(encoder.calls) > len(plain.calls)


# Memory.


def peak_bytes(parts):
    """The most that a step has allocated at a time, beyond what there was before it."""
    torch.manual_seed(1)
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    encoder = nn.Sequential(nn.Linear(5, 32), *layers, nn.Linear(32, 4)).double()
    problem = problem_of(parts, encoder)
    solver = adambo.AdamBO(problem)
    examples = batch(0, 512)
    solver.step(examples, examples)  # Adam's moments are made
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        solver.step(examples, examples)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def test_activations_are_divided_by_the_number_of_parts():
    whole, halves, eighths = (peak_bytes(parts) for parts in (1, 2, 8))
    activations = 6 * 512 * 32 * 8  # of the hidden layers alone
    assert whole > activations
    assert halves < 0.65 * whole
    assert eighths < 0.3 * whole


# What is refused.


@pytest.mark.parametrize("parts", [0, -1, True, 1.5, "2", None])
def test_a_number_of_parts_is_a_number(parts):
    with pytest.raises(adambo.ProblemError, match=r"microbatches=.*1 or more"):
        problem_of(parts)


def test_batch_norm_is_refused():
    encoder = Encoder(nn.BatchNorm1d(8))
    with pytest.raises(adambo.ProblemError, match=r"BatchNorm.*microbatches=2.*LayerNorm"):
        run(problem_of(2, encoder))
    run(problem_of(1, encoder))


def test_batch_norm_that_only_applies_what_it_knows_is_not_refused():
    def make(parts):
        encoder = Encoder(nn.BatchNorm1d(8).double()).eval()
        with torch.no_grad():
            encoder.layers[2].running_mean += 0.3
        return problem_of(parts, encoder)

    assert_close(run(make(3)), run(make(1)))


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.double))

    def forward(self, inputs):
        self.calls += 1
        return inputs


def test_an_encoder_that_writes_into_a_buffer_is_refused():
    with pytest.raises(adambo.ProblemError, match=r"buffer.*microbatches=3"):
        run(problem_of(3, Encoder(Counter())))
    run(problem_of(1, Encoder(Counter())))


def test_layer_norm_is_not_refused():
    assert_close(run(problem_of(3, Encoder(nn.LayerNorm(8)))), run(problem_of(1, Encoder(nn.LayerNorm(8)))))


def test_batch_norm_in_the_network_of_deep_auc_is_refused():
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    examples = Examples(torch.randn(6, 5), torch.tensor([0.0, 1.0] * 3))

    def step():
        problem = deep_auc(lambda inputs: network(inputs).flatten(), network, AucVariables(), 0.5, microbatches=2)
        adambo.AdamBO(problem).step(examples, examples)

    with pytest.raises(adambo.ProblemError, match="BatchNorm"):
        step()


class Texts:
    """A batch that is no tensor."""

    def __init__(self, words, labels):
        self.words, self.labels = words, labels

    def __getitem__(self, place):
        return (self.words, self.labels)[place]


@pytest.mark.parametrize(
    "bad",
    [
        Texts(randn(6, 5), torch.zeros(6, dtype=torch.long)),
        (randn(6, 5), torch.zeros(6, dtype=torch.long), 3),
        (randn(6, 5), torch.zeros(4, dtype=torch.long)),
    ],
    ids=["object", "number", "lengths"],
)
def test_a_batch_that_cannot_be_divided_is_refused_with_the_way_out(bad):
    problem = problem_of(2)
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    with pytest.raises(adambo.SampleError, match=r"microbatches=.*divide="):
        adambo.AdamBO(problem).step(bad, bad)
    assert all(torch.equal(a, b) for a, b in zip(before, (*problem.x, *problem.y), strict=True))


def test_batches_of_another_form_are_divided_by_a_function_of_one_s_own():
    asked = []

    def divide(texts, parts):
        asked.append(parts)
        return [Texts(*pair) for pair in zip(texts.words.split([1, 5]), texts.labels.split([1, 5]), strict=True)]

    def texts(seed):
        return Texts(*batch(seed))

    encoder = Encoder()
    assert_close(run(problem_of(4, encoder, divide=divide), batches=texts), run(problem_of(), batches=batch))
    assert set(asked) == {4}
    assert {length for length, _ in encoder.calls} == {1, 5}


@pytest.mark.parametrize(
    "features",
    [lambda f: {"scores": f, "note": "text"}, lambda f: {"scores": f, "mean": f.mean()}],
    ids=["text", "one number"],
)
def test_features_that_cannot_be_joined_again_are_refused(features):
    encoder = Encoder()
    torch.manual_seed(2)
    head = nn.Linear(4, 3).double()

    def loss(f, b):
        return functional.cross_entropy(head(f["scores"]), b[1]) + head.weight.square().sum()

    problem = adambo.EncoderHeadProblem(lambda b: features(encoder(b[0])), loss, loss, encoder, head, microbatches=2)
    with pytest.raises(adambo.SampleError, match="microbatches"):
        adambo.AdamBO(problem).step(batch(0), batch(1))
