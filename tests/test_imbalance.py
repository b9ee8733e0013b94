"""Imbalanced sets of two classes, and their halves."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adambo.data.imbalance import halves, imbalanced, left_out
from adambo.errors import ConfigError, DataError

few = settings(max_examples=60, deadline=None, database=None, derandomize=True)
labels_of_two = st.lists(st.integers(0, 1), min_size=0, max_size=80)


@pytest.mark.parametrize(("share", "positives"), [(0.8, 4000), (0.9, 9000), (0.5, 1000), (0.95, 19_000), (0.2, 250)])
def test_the_paper_s_shares_are_met_exactly(share, positives):
    labels = [0] * 1500 + [1] * 20_000
    random.Random(1).shuffle(labels)
    kept = imbalanced(labels, share, minority_kept=1000, seed=0)
    assert Counter(labels[index] for index in kept) == {0: 1000, 1: positives}
    assert len(set(kept)) == len(kept)
    assert positives / len(kept) == pytest.approx(share, abs=1e-12)


@few
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
def test_a_share_of_whole_numbers_is_met_exactly(kept, positive, negative, seed):
    labels = [0, 1] * (12 * 60)
    chosen = imbalanced(labels, positive / (positive + negative), kept * negative, seed)
    counts = Counter(labels[index] for index in chosen)
    assert counts == {0: kept * negative, 1: kept * positive}
    assert chosen == sorted(set(chosen))


def test_what_is_kept_follows_from_the_seed():
    labels = [0, 1] * 200
    first = imbalanced(labels, 0.8, 20, seed=0)
    random.seed(3)
    assert first == imbalanced(labels, 0.8, 20, seed=0)
    assert first != imbalanced(labels, 0.8, 20, seed=1)


def test_every_example_of_a_class_is_kept_equally_often():
    labels = [0] * 10 + [1] * 10
    counts = Counter(index for seed in range(2000) for index in imbalanced(labels, 0.5, 3, seed))
    # Binomial(2000, 0.3): mean 600, standard deviation 20.5.
    assert all(abs(counts[index] - 600) < 5 * 20.5 for index in range(20))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0] * 5 + [1] * 100, "10 examples of class 0 are kept, but there are 5"),
        ([0] * 100 + [1] * 30, "40 examples of class 1 are kept, but there are 30"),
        ([1] * 100, "two classes 0 and 1, but the labels are: 1"),
        ([0] * 100, "the labels are: 0"),
        ([], "the labels are: none"),
        ([0, 1, 2] * 100, "the labels are: 0, 1, 2"),
    ],
)
def test_data_with_too_little_of_a_class_is_refused_with_its_counts(labels, words):
    with pytest.raises(DataError, match=words):
        imbalanced(labels, 0.8, 10, seed=0)


@pytest.mark.parametrize(("share", "kept"), [(0.0, 10), (1.0, 10), (1.5, 10), (float("nan"), 10), (0.8, 0)])
def test_a_share_that_cannot_be_is_refused(share, kept):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        imbalanced([0, 1] * 100, share, kept, seed=0)


@few
@given(labels_of_two, st.data(), st.integers(0, 1000))
def test_halves_share_nothing_and_have_equally_many_of_each_class(labels, data, seed):
    indices = data.draw(st.lists(st.sampled_from(range(len(labels))), unique=True)) if labels else []
    train, validation = halves(indices, labels, seed)
    assert sorted(train + validation) == sorted(indices)
    assert not set(train) & set(validation)
    assert (train, validation) == (sorted(train), sorted(validation))
    assert abs(len(train) - len(validation)) <= 1
    for label in (0, 1):
        counts = [sum(labels[index] == label for index in half) for half in (train, validation)]
        assert abs(counts[0] - counts[1]) <= 1


@few
@given(st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_order_of_the_indices_changes_no_half(seed, chance):
    labels = [0, 1, 1, 1, 1] * 10
    indices = list(range(0, 50, 2))
    expected = halves(indices, labels, seed)
    chance.shuffle(indices)
    assert halves(indices + indices[:3], labels, seed) == expected


def test_halves_follow_from_the_seed():
    labels = [0, 1] * 50
    assert halves(range(100), labels, 0) == halves(range(100), labels, 0)
    assert halves(range(100), labels, 0) != halves(range(100), labels, 1)


def test_the_halves_of_an_imbalanced_set_keep_its_share():
    labels = [0, 1] * 1000
    train, validation = halves(imbalanced(labels, 0.9, 100, seed=0), labels, seed=0)
    for half in (train, validation):
        assert Counter(labels[index] for index in half) == {0: 50, 1: 450}


def test_a_validation_split_comes_from_what_is_left_over_or_not_at_all():
    kept = imbalanced([0, 1] * 100, positive_share=0.8, minority_kept=10, seed=0)
    held_out = left_out(200, kept, share=0.3, seed=0)
    assert len(held_out) == len(set(held_out)) == 60
    assert not set(held_out) & set(kept)
    assert left_out(200, kept, 0.3, seed=0) == held_out != left_out(200, kept, 0.3, seed=1)
    assert left_out(200, kept, 0.9, seed=0) == []
    assert left_out(200, kept, 0.0, seed=0) == []
