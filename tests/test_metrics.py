"""Scores of whole splits against scikit-learn and against counting by hand."""

from math import isnan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from adambo.errors import DataError
from adambo.training.metrics import accuracy, auroc

few = settings(max_examples=60, deadline=None, database=None, derandomize=True)


@few
@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=60))
def test_auroc_equals_scikit_learn_s_with_many_ties(pairs):
    scores = torch.tensor([float(score) for score, _ in pairs])
    labels = torch.tensor([label for _, label in pairs])
    labels[:2] = torch.tensor([True, False])
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels.numpy(), scores.numpy()), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ties", [True, False])
def test_auroc_of_a_large_split_equals_scikit_learn_s(dtype, ties):
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(19_000, generator=generator) < 0.9).long()
    scores = torch.randn(19_000, generator=generator, dtype=torch.double) + 0.7 * labels
    scores = ((scores * 4).round() if ties else scores).to(dtype)
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores.double()), abs=1e-6)


@few
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.booleans()), min_size=2, max_size=12))
def test_auroc_is_the_share_of_pairs_in_the_right_order(pairs):
    scores, labels = [score for score, _ in pairs], [label for _, label in pairs]
    labels[:2] = [True, False]
    positives, negatives = ([s for s, c in zip(scores, labels, strict=True) if c is sign] for sign in (True, False))
    right = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    expected = right / len(positives) / len(negatives)
    assert auroc(torch.tensor(scores, dtype=torch.double), torch.tensor(labels)) == pytest.approx(expected, abs=1e-6)


def test_only_the_order_of_scores_counts_however_large_they_are():
    labels = torch.tensor([0, 1, 0, 1, 1])
    scores = torch.tensor([300.0, 500.0, 400.0, 350.0, float("inf")])
    assert auroc(scores, labels) == pytest.approx(5 / 6, abs=1e-6)
    assert auroc(scores / 1e30, labels) == pytest.approx(5 / 6, abs=1e-6)


def test_the_auroc_of_a_split_is_not_the_mean_over_its_batches():
    labels, scores = torch.tensor([0, 1, 0, 1]), torch.tensor([0.1, 0.2, 0.8, 0.9])
    batches = [auroc(scores[k : k + 2], labels[k : k + 2]) for k in (0, 2)]
    assert batches == [1.0, 1.0]
    assert auroc(scores, labels) == pytest.approx(0.75)


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 0, 0], []])
def test_one_class_alone_has_no_auroc(labels):
    with pytest.raises(DataError, match=rf"Of {len(labels)} examples, {sum(labels)} are positive"):
        auroc(torch.rand(len(labels)), torch.tensor(labels))


def test_scores_that_are_no_numbers_give_no_number():
    broken = torch.tensor([0.2, float("nan"), 0.4])
    assert isnan(auroc(broken, torch.tensor([0, 1, 1])))
    assert isnan(accuracy(torch.stack([broken, 1 - broken], dim=1), torch.tensor([0, 1, 1])))
    assert isnan(accuracy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)))


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_accuracy_is_the_share_of_right_predictions(pairs):
    right = sum(predicted == label for predicted, label in pairs)
    predicted, labels = (torch.tensor(column) for column in zip(*pairs, strict=True))
    scores = torch.nn.functional.one_hot(predicted, 4).float() - 2
    assert accuracy(predicted, labels) == accuracy(scores, labels) == pytest.approx(right / len(pairs), abs=1e-12)


def test_accuracy_of_many_tasks_is_that_of_all_their_examples():
    scores = torch.tensor([[[2.0, 1.0], [0.0, 1.0]], [[3.0, 1.0], [3.0, 1.0]]])
    assert accuracy(scores, torch.tensor([[0, 1], [1, 0]])) == 0.75
