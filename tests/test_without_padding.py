"""Batches without padding: the same rows, in another arrangement, give the same results and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import adambo
from adambo.data.sequences import Sequences, shelved
from adambo.models.recurrent import PairEncoder, SentenceRNN, largest_states, pool
from adambo.models.transformer import SentenceTransformer

bert = pytest.importorskip("adambo.models.bert")

few = settings(max_examples=60, deadline=None, database=None, derandomize=True)
rows_of_numbers = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=12)
ROWS = [[3, 1, 4, 1, 5], [9], [2, 6, 5], [3, 5, 8, 9, 7, 9, 3], [8, 4], [7], [6, 2, 6, 4]]


@few
@given(rows_of_numbers, st.data(), st.integers(1, 4), st.integers(1, 12))
def test_a_row_stands_on_its_shelf_from_its_first_number_on(rows, data, multiple, length):
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    packed = Sequences(rows, multiple=multiple).pack(torch.tensor(indices), length)
    width = packed.tokens.shape[1]
    tokens, positions, owners = (part.flatten().tolist() for part in packed[:3])
    for number, (index, begin) in enumerate(zip(indices, packed.first.tolist(), strict=True)):
        end = begin + len(rows[index])
        assert tokens[begin:end] == rows[index]
        assert positions[begin:end] == list(range(end - begin))
        assert owners[begin:end] == [number + 1] * (end - begin)
        assert begin // width == (end - 1) // width  # on one shelf
    assert sum(owner > 0 for owner in owners) == sum(len(rows[index]) for index in indices)
    assert all(token == 0 for token, owner in zip(tokens, owners, strict=True) if owner == 0)


@few
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_shelves_are_at_least_half_full_but_for_one(lengths):
    begins = shelved(lengths, 20)
    shelves = 1 + max(begins) // 20
    filled = [sum(n for n, b in zip(lengths, begins, strict=True) if b // 20 == k) for k in range(shelves)]
    assert sum(filled) == sum(lengths)
    assert max(filled) <= 20
    assert sum(2 * full < 20 for full in filled) <= 1


@few
@given(rows_of_numbers, st.data())
def test_word_by_word_is_the_order_of_torch_s_packed_sequences(rows, data):
    indices = torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10)))
    sequences = Sequences(rows)
    words, padded = sequences.word_by_word(indices), sequences.take(indices)
    order = padded.lengths.sort(stable=True, descending=True).indices
    expected = torch.nn.utils.rnn.pack_padded_sequence(padded.tokens[order], padded.lengths[order], batch_first=True)
    assert torch.equal(words.tokens, expected.data)
    assert torch.equal(words.sizes, expected.batch_sizes)
    assert torch.equal(words.lengths, padded.lengths)
    assert torch.equal(padded.tokens.flatten()[words.places], words.tokens)


def small_bert(dropout=0.0):
    torch.manual_seed(0)
    encoder = bert.BertEncoder(10, 2, heads=2, hidden=8, feed_forward=12, dropout=dropout, max_length=16).double()
    with torch.no_grad():
        for p in encoder.parameters():
            if p.dim() == 2:
                p.mul_(10)  # BERT starts so small that words hardly see each other
    return encoder


def same_with_gradients(model, expected, found):
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected)
    for result, other in zip(gradients(model, expected), gradients(model, found), strict=True):
        torch.testing.assert_close(other, result)


def gradients(model, output):
    found = torch.autograd.grad(output.square().sum(), list(model.parameters()), allow_unused=True, retain_graph=True)
    return [part for part in found if part is not None]


@pytest.mark.parametrize("length", [8, 16, 64])
def test_bert_reads_packed_rows_as_if_each_were_alone(length):
    model, sequences, indices = small_bert(), Sequences(ROWS), torch.tensor([2, 0, 6, 3, 1, 5, 4])
    padded = sequences.take(indices)
    expected = model(padded.tokens, padded.mask)
    found = model.of_packed(sequences.pack(indices, length))
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected)
    same_with_gradients(model, expected, found)


@pytest.mark.parametrize("length", [8, 16, 64])
def test_a_transformer_reads_packed_rows_as_if_each_were_alone(length):
    torch.manual_seed(0)
    model = SentenceTransformer(torch.randn(9, 6), 2, 3, 10, 0.0, "mean").double()
    sequences, indices = Sequences(ROWS), torch.tensor([2, 0, 6, 3, 1, 5, 4])
    padded = sequences.take(indices)
    expected, found = model(padded.tokens, padded.lengths), model.of_packed(sequences.pack(indices, length))
    torch.testing.assert_close(found, expected)
    same_with_gradients(model, expected, found)


def test_packed_rows_of_a_transformer_that_takes_maxima_are_refused():
    model = SentenceTransformer(torch.randn(9, 6), 1, 3, 10, 0.0, "max")
    with pytest.raises(adambo.errors.ConfigError, match="pooling='max'"):
        model.of_packed(Sequences(ROWS).pack(torch.tensor([0, 1])))


def test_packed_rows_are_pooled_in_full_precision_under_autocast():
    torch.manual_seed(0)
    model, sequences, indices = (
        SentenceTransformer(torch.randn(9, 6), 1, 3, 10, 0.0, "mean"),
        Sequences(ROWS),
        torch.arange(7),
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert model.of_packed(sequences.pack(indices)).dtype == torch.float32


@pytest.mark.parametrize("pooling", ["max", "mean", "last"])
def test_an_rnn_reads_words_without_padding_as_it_reads_them_padded(pooling):
    torch.manual_seed(0)
    model, sequences = SentenceRNN(torch.randn(9, 5), 2, 7, 0.0, pooling).double(), Sequences(ROWS)
    indices = torch.tensor([2, 0, 6, 3, 1, 5, 4])
    padded = sequences.take(indices)
    expected, found = model(padded.tokens, padded.lengths), model.of_words(sequences.word_by_word(indices))
    torch.testing.assert_close(found, expected)
    same_with_gradients(model, expected, found)


def test_pairs_without_padding_are_the_same_pairs():
    torch.manual_seed(0)
    model = PairEncoder(SentenceRNN(torch.randn(9, 5), 2, 7, 0.0, "max"), 4).double()
    first, second = Sequences(ROWS[:3]), Sequences(ROWS[3:6])
    indices = torch.tensor([2, 0, 1])
    expected = model(first.take(indices), second.take(indices))
    found = model.of_words(Sequences(ROWS[:6]).word_by_word(torch.cat([indices, indices + 3])))
    torch.testing.assert_close(found, expected)
    same_with_gradients(model, expected, found)


@pytest.mark.parametrize("kind", ["bert", "rnn"])
def test_a_second_derivative_without_padding_is_that_with_it(kind):
    sequences, indices = Sequences(ROWS), torch.tensor([2, 0, 3, 1])
    padded = sequences.take(indices)
    if kind == "bert":
        model = small_bert()
        outputs = lambda: (model(padded.tokens, padded.mask), model.of_packed(sequences.pack(indices, 8)))  # noqa: E731
    else:
        torch.manual_seed(0)
        model = SentenceRNN(torch.randn(9, 5), 2, 7, 0.0, "max").double()
        outputs = lambda: (model(padded.tokens, padded.lengths), model.of_words(sequences.word_by_word(indices)))  # noqa: E731
    parameters = [p for p in model.parameters() if p.dim() == 2]
    with adambo.twice_differentiable():
        products = []
        for output in outputs():
            first = torch.autograd.grad(output.exp().sum(), parameters, create_graph=True, allow_unused=True)
            squares = sum(part.square().sum() for part in first if part is not None)
            products.append([p for p in torch.autograd.grad(squares, parameters, allow_unused=True) if p is not None])
    assert products[0]
    for expected, found in zip(*products, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_largest_states_are_those_of_a_padded_table_and_so_is_their_gradient():
    lengths = torch.tensor([3, 1, 4])
    sentences = Sequences([[5, 6, 7], [8], [9, 9, 1, 2]]).word_by_word(torch.tensor([0, 1, 2]))
    states = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    table = torch.zeros(12, 5, dtype=torch.float64).index_copy(0, sentences.places, states).view(3, 4, 5)
    expected, above = pool(table, lengths, "max"), torch.randn(3, 5, dtype=torch.float64)
    found = largest_states(states, sentences.places, 3, 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    (mine,), (theirs,) = (torch.autograd.grad(each, states, above) for each in (found, expected))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_state_that_is_not_a_number_is_the_largest():
    states = torch.tensor([[1.0], [float("nan")], [2.0]])
    assert largest_states(states, torch.arange(3), 1, 3).isnan().all()
