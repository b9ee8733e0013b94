"""Few-shot tasks and divisions of a data set: plain functions of (data, seed)."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adambo.data.tasks import sample_tasks, split_indices
from adambo.errors import ConfigError, DataError

few = settings(max_examples=60, deadline=None, database=None, derandomize=True)
# Sizes of the classes of TREC's test split; ABBR is the first.
TREC_TEST = (9, 138, 94, 65, 81, 113)


def labels_of(sizes, seed=0):
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(labels)
    return labels


@st.composite
def shapes(draw):
    classes, ways = draw(st.integers(2, 6)), draw(st.integers(2, 4))
    shots, queries = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(0, 20), min_size=classes, max_size=classes))
    for label in range(min(ways, classes)):
        sizes[label] += shots + queries
    ways = min(ways, classes)
    draw(st.randoms(use_true_random=False)).shuffle(sizes)
    return sizes, {"classes": classes, "tasks": 7, "ways": ways, "shots": shots, "queries": queries}


@few
@given(shapes(), st.integers(0, 2**63 - 1))
def test_a_task_has_ways_classes_with_exactly_shots_and_queries_of_each(data, seed):
    sizes, shape = data
    labels = labels_of(sizes, seed=seed)
    tasks = sample_tasks(labels, seed=seed, **shape)
    each = shape["shots"] + shape["queries"]
    assert tasks.examples.shape == tasks.labels.shape == (7, shape["ways"] * each)
    assert tasks.support == shape["ways"] * shape["shots"]
    for examples, classes in zip(tasks.examples.tolist(), tasks.labels.tolist(), strict=True):
        assert classes == [labels[example] for example in examples]
        assert len(set(examples)) == len(examples)
        support, query = Counter(classes[: tasks.support]), Counter(classes[tasks.support :])
        assert len(support) == shape["ways"]
        assert set(support.values()) == {shape["shots"]}
        assert query == dict.fromkeys(support, shape["queries"])
        assert all(sizes[label] >= each for label in support)


@few
@given(shapes(), st.integers(0, 1000))
def test_tasks_use_only_the_examples_they_may(data, seed):
    sizes, shape = data
    labels = labels_of([2 * size for size in sizes])
    # Half of every class.
    among = [index for index, label in enumerate(labels) if labels[:index].count(label) % 2]
    tasks = sample_tasks(labels, seed=seed, among=among, **shape)
    assert set(tasks.examples.flatten().tolist()) <= set(among)
    backwards = sample_tasks(labels, seed=seed, among=among[::-1] + among[:1], **shape)
    assert torch.equal(tasks.examples, backwards.examples)


@few
@given(shapes(), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_order_of_the_data_changes_which_examples_are_meant_but_no_task(data, seed, chance):
    sizes, shape = data
    labels = labels_of(sizes)
    places = list(range(len(labels)))
    chance.shuffle(places)
    # The classes are mixed anew, but within a class everything stays in its order.
    shuffled = [labels[place] for place in places]
    moved = {}
    for label in set(labels):
        old, new = ([k for k, other in enumerate(which) if other == label] for which in (labels, shuffled))
        moved |= dict(zip(old, new, strict=True))
    tasks, others = (sample_tasks(which, seed=seed, **shape) for which in (labels, shuffled))
    assert torch.equal(tasks.labels, others.labels)
    assert [[moved[example] for example in task] for task in tasks.examples.tolist()] == others.examples.tolist()


def test_tasks_follow_from_the_seed_alone():
    labels, shape = labels_of([20] * 5), {"classes": 5, "tasks": 20, "ways": 2, "shots": 3, "queries": 3}
    tasks = sample_tasks(labels, seed=1, **shape)
    random.seed(5)
    torch.manual_seed(5)
    assert torch.equal(tasks.examples, sample_tasks(labels, seed=1, **shape).examples)
    assert not torch.equal(tasks.examples, sample_tasks(labels, seed=2, **shape).examples)
    more = sample_tasks(labels, seed=1, **shape | {"tasks": 30})
    assert torch.equal(tasks.examples, more.examples[:20])


def test_tasks_are_the_same_on_every_machine():
    tasks = sample_tasks([0, 1, 2] * 4, classes=3, tasks=2, ways=2, shots=1, queries=1, seed=7)
    assert tasks.examples.tolist() == [[7, 3, 1, 0], [5, 0, 8, 6]]


def test_classes_and_examples_are_drawn_equally_often():
    labels = labels_of([10, 40, 20])
    tasks = sample_tasks(labels, classes=3, tasks=3000, ways=2, shots=2, queries=1, seed=0)
    pairs = Counter(tuple(sorted(set(task))) for task in tasks.labels.tolist())
    # Binomial(3000, 1/3): mean 1000, standard deviation 25.8.
    assert set(pairs) == {(0, 1), (0, 2), (1, 2)}
    assert all(abs(count - 1000) < 5 * 25.8 for count in pairs.values())
    for columns in (tasks.examples[:, : tasks.support], tasks.examples[:, tasks.support :]):
        drawn = Counter(columns.flatten().tolist())
        for label, size in ((0, 10), (1, 40), (2, 20)):
            expected = 2000 * columns.shape[1] / 2 / size
            assert all(
                abs(drawn[k] - expected) < 5.5 * expected**0.5 for k, other in enumerate(labels) if other == label
            )


def test_a_class_too_small_for_a_task_is_never_drawn():
    tasks = sample_tasks(labels_of(TREC_TEST), classes=6, tasks=500, ways=2, shots=5, queries=5, seed=0)
    assert set(tasks.labels.flatten().tolist()) == {1, 2, 3, 4, 5}
    assert all(len(set(task)) == 2 for task in tasks.labels.tolist())


def test_small_classes_leave_their_places_to_the_others_where_they_are_allowed():
    labels = labels_of(TREC_TEST)
    tasks = sample_tasks(labels, classes=6, tasks=1500, ways=2, shots=5, queries=5, seed=0, allow_small_classes=True)
    single = 0
    for examples, classes in zip(tasks.examples.tolist(), tasks.labels.tolist(), strict=True):
        assert classes == [labels[example] for example in examples]
        assert len(set(examples)) == 20
        assert 0 not in classes
        assert set(classes[:10]) == set(classes[10:])
        single += len(set(classes)) == 1
    # 5 of the 15 pairs of classes have the small one: binomial(1500, 1/3), mean 500, standard deviation 18.3.
    assert abs(single - 500) < 5 * 18.3


def test_three_ways_with_a_small_class_stay_in_shape():
    tasks = sample_tasks(
        labels_of([1, 30, 30]), classes=3, tasks=5, ways=3, shots=2, queries=3, seed=0, allow_small_classes=True
    )
    for task in tasks.labels.tolist():
        assert sorted(Counter(task[:6]).values()) == [2, 4]
        assert sorted(Counter(task[6:]).values()) == [3, 6]


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ([9, 9, 12], {}, r"2 classes with 10 examples.*1 of 3 classes.*class 0: 9, class 1: 9, class 2: 12"),
        ([0, 20, 0], {}, "1 of 3 classes"),
        ([], {}, "0 of 3 classes"),
        ([9, 9, 9], {"allow_small_classes": True}, "0 of 3 classes"),
        ([9, 12, 0], {"allow_small_classes": True}, "No task could be drawn.*fewer than 10"),
        ([20, 20, 20], {"among": range(20)}, "of 3 classes have so many"),
        ([20, 20, 20, 20], {}, "from 0 to 2 for 3 classes, but 3 occurs"),
    ],
)
def test_data_that_cannot_make_a_task_is_refused_with_its_counts(sizes, options, words):
    with pytest.raises(DataError, match=words):
        sample_tasks(labels_of(sizes), classes=3, tasks=4, ways=2, shots=5, queries=5, seed=0, **options)


@few
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_the_two_parts_hold_everything_once(count, share, seed):
    kept, held_out = split_indices(count, share, seed)
    assert sorted(kept + held_out) == list(range(count))
    assert kept == sorted(kept)
    assert held_out == sorted(held_out)
    assert min(len(kept), len(held_out)) >= 1
    assert abs(len(held_out) - share * count) <= 1


@few
@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_no_group_is_in_both_parts(groups, share, seed):
    if len(set(groups)) == 1:
        groups.append("another")
    kept, held_out = split_indices(len(groups), share, seed, groups)
    assert sorted(kept + held_out) == list(range(len(groups)))
    assert min(len(kept), len(held_out)) >= 1
    assert not {groups[k] for k in kept} & {groups[k] for k in held_out}
    smallest = min(Counter(groups).values())
    assert len(held_out) <= max(share * len(groups) + 1, smallest)


def test_with_many_small_groups_the_share_is_exact():
    groups = [k % 400 for k in range(1000)]
    kept, held_out = split_indices(1000, 0.1, 3, groups)
    assert (len(kept), len(held_out)) == (900, 100)


def test_a_division_follows_from_the_seed_and_not_from_the_names_of_groups():
    groups = [f"premise {k % 30}" for k in range(90)]
    first = split_indices(90, 0.3, 0, groups)
    assert first == split_indices(90, 0.3, 0, groups)
    assert first == split_indices(90, 0.3, 0, [f"other {name}" for name in groups])
    assert first != split_indices(90, 0.3, 1, groups)
    assert split_indices(90, 0.3, 0) != split_indices(90, 0.3, 1)


def test_every_example_is_held_out_equally_often():
    drawn = Counter(k for seed in range(2000) for k in split_indices(10, 0.3, seed)[1])
    # Binomial(2000, 0.3): mean 600, standard deviation 20.5.
    assert all(abs(drawn[k] - 600) < 5 * 20.5 for k in range(10))


def test_nothing_is_held_out_of_a_share_of_zero():
    assert split_indices(5, 0.0, seed=1) == ([0, 1, 2, 3, 4], [])
    assert split_indices(0, 0.0, seed=1) == ([], [])


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, float("nan")])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(ConfigError, match="from 0 to below 1"):
        split_indices(10, share, seed=0)


@pytest.mark.parametrize(("count", "groups"), [(0, None), (1, None), (3, ["a", "a", "a"])])
def test_what_cannot_be_divided_is_refused(count, groups):
    with pytest.raises(DataError, match="never divided"):
        split_indices(count, 0.5, seed=0, groups=groups)
