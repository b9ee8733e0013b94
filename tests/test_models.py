"""The networks: padding changes nothing, rows do not see each other, and nothing is read back on the host."""

from collections import Counter
from math import cos, sin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import adambo
from adambo.data.sequences import Padded, Sequences
from adambo.errors import ConfigError
from adambo.models.recurrent import FrozenVectors, PairEncoder, SentenceRNN, pool
from adambo.models.transformer import Positions, ScoreHead, SentenceTransformer

bert = pytest.importorskip("adambo.models.bert")

few = settings(max_examples=25, deadline=None, database=None, derandomize=True)
WORDS, WIDTH, LONGEST = 11, 6, 24
ROWS = [[3, 1, 4, 1, 5], [9], [2, 6, 5], [3, 5, 8, 9, 7, 9, 3]]
OTHERS = [[8, 4], [6, 2, 6, 4, 3, 3, 8, 3], [2], [7, 9, 5]]
# Where a value on the device is read by the host: `if tensor`, .item(), .tolist(), indexing by a mask, and the like.
HOST_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}


def table_of(words=WORDS, width=WIDTH):
    return torch.randn(words, width, generator=torch.Generator().manual_seed(0)) * 20 + 3


def network(kind, dropout=0.0, layers=2, **options):
    """A small network from (tokens, lengths) to features."""
    torch.manual_seed(0)
    if kind == "bert":
        encoder = bert.BertEncoder(
            WORDS + 2, layers, heads=2, hidden=8, feed_forward=12, dropout=dropout, max_length=LONGEST
        )
        with torch.no_grad():
            for p in encoder.parameters():
                if p.dim() == 2:
                    p.mul_(10)  # BERT starts so small that words hardly see each other
        return Masked(encoder)
    if kind == "transformer":
        options = {"heads": 3, "feed_forward": 10, "pooling": "mean"} | options
        return SentenceTransformer(table_of(), layers, dropout=dropout, **options)
    return SentenceRNN(table_of(), layers, hidden=7, dropout=dropout, pooling=kind)


class Masked(nn.Module):
    """BERT takes a mask where the others take lengths."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.width = encoder, encoder.width

    def forward(self, tokens, lengths):
        return self.encoder(tokens, Padded(tokens, lengths).mask)


def batch_of(rows, extra=0):
    tokens, lengths = Sequences(rows).take(torch.arange(len(rows)))
    return F.pad(tokens, (0, extra)), lengths


def count(module):
    return sum(p.numel() for p in module.parameters())


every_network = pytest.mark.parametrize("kind", ["bert", "transformer", "max", "mean", "last"])


@every_network
def test_more_padding_changes_no_result(kind):
    model = network(kind).eval()
    expected = model(*batch_of(ROWS))
    assert expected.shape == (4, model.width)
    assert expected.std() > 1e-3
    torch.testing.assert_close(model(*batch_of(ROWS, extra=9)), expected, rtol=0, atol=1e-5)


@every_network
def test_what_stands_in_the_padding_changes_no_result(kind):
    model = network(kind).eval()
    tokens, lengths = batch_of(ROWS, extra=2)
    garbage = torch.where(Padded(tokens, lengths).mask, tokens, 7)
    torch.testing.assert_close(model(garbage, lengths), model(tokens, lengths), rtol=0, atol=1e-5)


@every_network
def test_a_row_alone_has_the_result_that_it_has_in_a_batch(kind):
    model = network(kind).eval()
    together = model(*batch_of(ROWS))
    for row, expected in zip(ROWS, together, strict=True):
        torch.testing.assert_close(model(*batch_of([row]))[0], expected, rtol=0, atol=1e-5)


@every_network
def test_rows_in_another_order_give_results_in_that_order(kind):
    model = network(kind).eval()
    tokens, lengths = batch_of(ROWS)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(tokens[order], lengths[order]), model(tokens, lengths)[order], rtol=0, atol=1e-5)


@every_network
def test_words_in_another_order_give_another_result(kind):
    model = network(kind).eval()
    tokens, lengths = batch_of([[1, 2, 3, 4], [1, 3, 2, 4]])
    first, second = model(tokens, lengths)
    assert (first - second).abs().max() > 1e-4


@every_network
def test_evaluation_without_gradients_gives_the_same(kind):
    model = network(kind, dropout=0.5).eval()
    batch = batch_of(ROWS)
    expected = model(*batch)
    with torch.no_grad():
        torch.testing.assert_close(model(*batch), expected, rtol=0, atol=1e-5)


@every_network
def test_dropout_acts_in_training_alone(kind):
    model, batch = network(kind, dropout=0.5), batch_of(ROWS)
    assert not torch.equal(model(*batch), model(*batch))
    model.eval()
    assert torch.equal(model(*batch), model(*batch))


@pytest.mark.filterwarnings("error")
def test_one_layer_has_no_dropout_between_layers_and_no_warning():
    model, batch = network("max", dropout=0.5, layers=1), batch_of(ROWS)
    assert torch.equal(model(*batch), model(*batch))


@every_network
def test_equal_seeds_give_equal_networks_and_layers_differ(kind):
    model, again = network(kind), network(kind)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    assert not any(
        torch.equal(p, q) for k, p in enumerate(matrices) for q in matrices[:k] if p.shape == q.shape and p.any()
    )


class HostReads(TorchDispatchMode):
    """Notes the operations whose result the host waits for."""

    def __init__(self):
        super().__init__()
        self.met = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (name := func.overloadpacket.__name__) in HOST_READS:
            self.met[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
@every_network
def test_nothing_is_read_back_on_the_host(kind, training):
    model, batch = network(kind, dropout=0.1).train(training), batch_of(ROWS)
    with HostReads() as reads:
        model(*batch)
        with torch.no_grad():
            model(*batch)
    assert not reads.met


def test_a_mask_of_two_dimensions_would_be_read_back():
    model = network("bert").encoder.bert
    tokens, lengths = batch_of(ROWS)
    with HostReads() as reads:
        model(input_ids=tokens, attention_mask=Padded(tokens, lengths).mask)
    assert reads.met


def test_bert_equals_the_library_s_with_its_own_mask():
    encoder = network("bert").eval().encoder
    tokens, lengths = batch_of(ROWS)
    mask = Padded(tokens, lengths).mask
    expected = encoder.bert(input_ids=tokens, attention_mask=mask.long()).pooler_output
    torch.testing.assert_close(encoder(tokens, mask), expected, rtol=0, atol=1e-6)


@every_network
def test_second_derivatives_are_right_inside_twice_differentiable(kind):
    model, batch = network(kind).double(), batch_of(ROWS)
    parameters = [p for p in model.parameters() if p.dim() == 2]
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters]
    target = torch.randn(4, model.width, dtype=torch.double, generator=generator)

    def gradients(**options):
        loss = (model(*batch) * target).sum().exp()
        return torch.autograd.grad(loss, parameters, **options)

    def moved(step):
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=step)

    with adambo.twice_differentiable():
        along = sum((g * d).sum() for g, d in zip(gradients(create_graph=True), directions, strict=True))
        products = torch.autograd.grad(along, parameters)
        moved(1e-5)
        ahead = gradients()
        moved(-2e-5)
        behind = gradients()
    for product, a, b in zip(products, ahead, behind, strict=True):
        difference = (a - b) / 2e-5
        assert (product - difference).norm() <= 1e-5 * (difference.norm() + 1e-3 * max(p.norm() for p in products))


@every_network
def test_bfloat16_autocast_gives_nearly_the_same(kind):
    model, batch = network(kind).eval(), batch_of(ROWS)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*batch)
        low.float().square().sum().backward()
    torch.testing.assert_close(low.float(), model(*batch), rtol=0.05, atol=0.05)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_parameters_of_bert_are_those_of_its_formula():
    pieces, layers, h, f, positions = 40, 3, 8, 12, 20
    model = bert.BertEncoder(pieces, layers, 2, h, f, 0.1, positions)
    embeddings = pieces * h + positions * h + h + 2 * h
    attention = 4 * (h * h + h) + 2 * h
    feed_forward = h * f + f + f * h + h + 2 * h
    assert count(model) == embeddings + layers * (attention + feed_forward) + h * h + h


def test_bert_of_the_paper_has_70_million_parameters():
    with torch.device("meta"):
        model = bert.BertEncoder(30_522, 8, 8, 768, 2048, 0.1, 128)
    assert count(model) == 30_522 * 768 + 128 * 768 + 3 * 768 + 8 * (4 * 590_592 + 4 * 768 + 3_148_544) + 590_592


def test_parameters_of_the_rnn_are_those_of_its_formula():
    h, features = 7, 5
    sentence = SentenceRNN(table_of(), 3, h, 0.0, "max")
    expected = (WIDTH * h + h * h + 2 * h) + 2 * (2 * h * h + 2 * h)
    assert count(sentence) == expected
    assert count(PairEncoder(sentence, features)) == expected + 4 * h * features + features


def test_parameters_of_the_transformer_are_those_of_its_formula():
    d, f = WIDTH, 10
    layer = 4 * (d * d + d) + d * f + f + f * d + d + 4 * d
    assert count(network("transformer")) == 2 * layer + 2 * d
    assert count(ScoreHead(d)) == 2 * d + 2


@pytest.mark.parametrize("kind", ["transformer", "max"])
def test_word_vectors_are_neither_parameters_nor_part_of_a_checkpoint(kind):
    model = network(kind)
    assert model.double().words.vectors.dtype == torch.double  # but they go where the module goes
    assert model.float().words.vectors.dtype == torch.float
    assert not any(b.shape[:1] == (WORDS + 2,) for b in model.buffers())
    assert not any(p.shape[0] == WORDS + 2 for p in model.parameters())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    other = network(kind)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(*batch_of(ROWS)), model.eval()(*batch_of(ROWS)))


def test_word_vectors_are_standardised_and_shifted_by_one():
    table = table_of()
    table[:, 2] = 5.0
    words = FrozenVectors(table)
    vectors = words(torch.arange(WORDS + 2)).double()
    assert not vectors[[0, -1]].any()
    for dimension in range(WIDTH):
        values = table[:, dimension].tolist()
        mean = sum(values) / WORDS
        spread = (sum((value - mean) ** 2 for value in values) / WORDS) ** 0.5
        expected = [(value - mean) / spread if spread else 0.0 for value in values]
        assert vectors[1:-1, dimension].tolist() == pytest.approx(expected, abs=1e-5)
    assert not words(torch.tensor([1])).requires_grad


@few
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from(["max", "mean", "last"]), st.integers(0, 99)
)
def test_pooling_equals_a_loop_over_sentences(lengths, how, seed):
    states = torch.randn(len(lengths), 7, 3, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    pooled = pool(states, torch.tensor(lengths), how)
    for sentence, length, result in zip(states, lengths, pooled, strict=True):
        words = sentence[:length]
        expected = {"max": words.max(dim=0).values, "mean": words.mean(dim=0), "last": words[-1]}[how]
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_the_maximum_of_negative_states_is_not_that_of_the_padding():
    states = torch.tensor([[[-3.0], [-2.0], [0.0]]])
    assert pool(states, torch.tensor([2]), "max").item() == -2.0


def test_the_rnn_is_the_recursion_that_its_name_says():
    model = network("last", layers=1).double()
    weights = {name.removesuffix("_l0"): p for name, p in model.rnn.named_parameters()}
    results = model(*batch_of(ROWS))
    for row, result in zip(ROWS, results, strict=True):
        h = torch.zeros(7, dtype=torch.double)
        for word in row:
            x = model.words.vectors[word]
            h = torch.tanh(
                weights["weight_ih"] @ x + weights["bias_ih"] + weights["weight_hh"] @ h + weights["bias_hh"]
            )
        torch.testing.assert_close(result, h, rtol=0, atol=1e-12)


def test_a_pair_is_its_two_sentences_each_by_itself():
    torch.manual_seed(0)
    sentence = network("max")
    pairs = PairEncoder(sentence, 5)
    first, second = (Padded(*batch_of(rows)) for rows in (ROWS, OTHERS))
    assert first.tokens.shape != second.tokens.shape
    features = pairs(first, second)
    assert features.shape == (4, 5)
    for row, other, result in zip(ROWS, OTHERS, features, strict=True):
        u, v = sentence(*batch_of([row]))[0], sentence(*batch_of([other]))[0]
        joined = torch.cat([u, v, (u - v).abs(), u * v])
        torch.testing.assert_close(result, torch.tanh(pairs.project(joined)), rtol=0, atol=1e-5)
    assert (pairs(second, first) - features).abs().max() > 1e-3


def test_a_pair_calls_the_rnn_once():
    pairs = PairEncoder(network("max"), 5)
    calls = []
    pairs.sentence.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0].shape))
    pairs(Padded(*batch_of(ROWS)), Padded(*batch_of(OTHERS)))
    assert calls == [(8, 8)]


@pytest.mark.parametrize("width", [6, 7])
def test_positions_are_the_sinusoids_of_the_paper(width):
    table = Positions(width)(50)
    assert table.shape == (50, width)
    for t in (0, 1, 17, 49):
        for i in range(width):
            angle = t / 10_000 ** (2 * (i // 2) / width)
            assert table[t, i].item() == pytest.approx(cos(angle) if i % 2 else sin(angle), abs=1e-5)


def test_a_score_is_the_last_logit():
    head, features = ScoreHead(4), torch.randn(5, 4)
    expected = features @ head.logits.weight[1] + head.logits.bias[1]
    torch.testing.assert_close(head(features), expected)


def test_heads_that_do_not_divide_the_width_are_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"heads=4 does not divide the 6 dimensions.*one of 1, 2, 3, 6"):
        network("transformer", heads=4)


def test_unknown_pooling_is_refused():
    with pytest.raises(ConfigError, match=r"pooling='sum'.*max, mean or last"):
        network("sum")
    with pytest.raises(ConfigError, match=r"pooling='last'.*mean or max"):
        network("transformer", pooling="last")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", ["bert", "transformer", "max"])
def test_on_cuda_a_batch_and_a_forward_wait_for_nothing(kind):
    model = network(kind, dropout=0.1).cuda()
    sequences = Sequences(ROWS, device="cuda")
    indices = torch.tensor([3, 0, 1])
    model(*sequences.take(indices))
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = model(*sequences.take(indices))
        result.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = network(kind).eval()(*Sequences(ROWS).take(indices))
    torch.testing.assert_close(model.eval()(*sequences.take(indices)).cpu(), expected, rtol=1e-3, atol=1e-3)
