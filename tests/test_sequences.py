"""Padded tables and batches of their rows."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adambo.data.sequences import Padded, Sequences
from adambo.errors import DataError

few = settings(max_examples=60, deadline=None, database=None, derandomize=True)
rows_of_numbers = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=12)


@few
@given(rows_of_numbers, st.data(), st.integers(1, 4))
def test_a_batch_is_its_rows_each_followed_by_zeros(rows, data, multiple):
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    tokens, lengths = Sequences(rows, multiple=multiple).take(torch.tensor(indices))
    assert lengths.tolist() == [len(rows[index]) for index in indices]
    for index, padded in zip(indices, tokens.tolist(), strict=True):
        row = list(rows[index])
        assert padded == row + [0] * (tokens.shape[1] - len(row))


@few
@given(rows_of_numbers, st.data(), st.integers(1, 4))
def test_a_batch_is_as_wide_as_its_longest_row_up_to_the_multiple(rows, data, multiple):
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    width = Sequences(rows, multiple=multiple).take(torch.tensor(indices)).tokens.shape[1]
    longest = max(len(rows[index]) for index in indices)
    assert longest <= width < longest + multiple
    # A model need not have positions beyond the longest row of all.
    assert width % multiple == 0 or width == max(map(len, rows))


@few
@given(rows_of_numbers)
def test_the_mask_tells_numbers_from_padding(rows):
    batch = Sequences(rows).take(torch.arange(len(rows)))
    assert torch.equal(batch.mask, batch.tokens != 0)
    assert batch.mask.dtype == torch.bool


def test_the_mask_goes_by_the_lengths_and_not_by_the_numbers():
    batch = Padded(torch.tensor([[0, 3, 0], [4, 0, 0]]), torch.tensor([2, 1]))
    assert batch.mask.tolist() == [[True, True, False], [True, False, False]]


@few
@given(rows_of_numbers, st.integers(1, 15), st.randoms(use_true_random=False))
def test_buckets_hold_every_index_once_in_classes_of_similar_length(rows, count, chance):
    indices = chance.sample(range(len(rows)), chance.randint(1, len(rows)))
    buckets = [bucket.tolist() for bucket in Sequences(rows).buckets(torch.tensor(indices), count)]
    assert sorted(index for bucket in buckets for index in bucket) == sorted(indices)
    assert len(buckets) == min(count, len(indices))
    sizes = [len(bucket) for bucket in buckets]
    assert max(sizes) - min(sizes) <= 1
    lengths = [[len(rows[index]) for index in bucket] for bucket in buckets]
    assert all(max(first) <= min(second) for first, second in pairwise(lengths))


@few
@given(rows_of_numbers, st.integers(1, 15), st.randoms(use_true_random=False))
def test_parts_for_an_evaluation_hold_every_index_once_the_longest_rows_first(rows, size, chance):
    indices = chance.sample(range(len(rows)), chance.randint(1, len(rows)))
    parts = [part.tolist() for part in Sequences(rows).by_length(torch.tensor(indices), size)]
    flat = [index for part in parts for index in part]
    assert sorted(flat) == sorted(indices)
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert [len(rows[index]) for index in flat] == sorted((len(rows[index]) for index in indices), reverse=True)


def test_rows_of_equal_length_stay_in_their_order():
    sequences = Sequences([[1]] * 6)
    indices = torch.tensor([4, 0, 5, 2])
    assert torch.cat(sequences.buckets(indices, 2)).tolist() == [4, 0, 5, 2]
    assert torch.cat(sequences.by_length(indices, 3)).tolist() == [4, 0, 5, 2]


@pytest.mark.parametrize(("rows", "words"), [([], "no rows"), ([[1], [], [2]], "Row 1 of 3 is empty.*unknown")])
def test_tables_without_anything_to_read_are_refused(rows, words):
    with pytest.raises(DataError, match=words):
        Sequences(rows)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_row_that_is_not_there_is_refused_on_the_host(index):
    sequences = Sequences([[1], [2], [3]])
    assert len(sequences) == 3
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        sequences.take(torch.tensor([0, index]))


def test_batches_do_not_share_memory_with_the_table():
    sequences = Sequences([[1, 2], [3, 4]])
    sequences.take(torch.arange(2)).tokens.zero_()
    assert sequences.take(torch.arange(2)).tokens.tolist() == [[1, 2], [3, 4]]
