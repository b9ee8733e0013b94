"""The stream for methods with a table of fixed minibatches, and for those with a large batch now and then."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import adambo
from adambo import Needs, SettingError

SLOTS = Needs(upper=1, lower=1, slots=(5, 3))
NUMBERS = torch.arange(100)


def stream(upper=NUMBERS[:30], lower=NUMBERS, needs=SLOTS, batch_size=(10, 20), **options):
    return adambo.draws(upper=upper, lower=lower, needs=needs, batch_size=batch_size, **options)


def test_the_slots_divide_a_dataset_without_remainder_or_overlap():
    lower, upper = stream().slot_batches()
    assert [len(batch) for batch in lower] == [20] * 5
    assert sorted(torch.cat(list(lower)).tolist()) == list(range(100))
    assert sorted(torch.cat(list(upper)).tolist()) == list(range(30))
    assert torch.cat(list(lower)).tolist() != list(range(100)), "they are shuffled, once"


def test_uneven_slots_differ_by_one_example():
    lower, _ = stream(lower=NUMBERS[:93], batch_size=(10, 19)).slot_batches()
    assert sorted(len(batch) for batch in lower) == [18, 18, 19, 19, 19]


def test_slots_of_given_sizes_have_them_and_are_drawn_in_proportion():
    draws = stream(needs=Needs(upper=1, lower=1, slots=((70, 20, 10), 3)))
    assert [len(batch) for batch in draws.slot_batches()[0]] == [70, 20, 10]
    counts = [0, 0, 0]
    for _ in range(600):
        counts[next(draws).slot[0]] += 1
    for count, share in zip(counts, (0.7, 0.2, 0.1), strict=True):
        assert abs(count / 600 - share) < 5 * (share * (1 - share) / 600) ** 0.5


def test_a_draw_holds_the_batches_of_the_slots_it_names():
    draws = stream(seed=4)
    lower, upper = draws.slot_batches()
    seen = set()
    for _ in range(60):
        draw = next(draws)
        i, j = draw.slot
        assert torch.equal(draw.lower[0], lower[i])
        assert torch.equal(draw.upper[0], upper[j])
        seen.add((i, j))
    assert seen == {(i, j) for i in range(5) for j in range(3)}


def test_a_function_makes_the_same_batch_for_a_slot_every_time():
    def random_batch(generator):
        return torch.rand(4, generator=generator)

    draws = adambo.draws(random_batch, random_batch, SLOTS, seed=1)
    found = {}
    for _ in range(40):
        draw = next(draws)
        for name, batch in (("lower", draw.lower[0]), ("upper", draw.upper[0])):
            slot = (name, draw.slot[name == "upper"])
            assert torch.equal(found.setdefault(slot, batch), batch)
    assert len({tuple(batch.tolist()) for batch in found.values()}) == 8


def test_of_a_list_each_batch_is_a_slot():
    lower, upper = adambo.draws(list("abc"), list("vwxyz"), SLOTS).slot_batches()
    assert (list(lower), list(upper)) == (list("vwxyz"), list("abc"))


def test_with_tasks_a_slot_is_a_set_of_tasks_for_both_levels():
    def tasks(generator):
        return torch.randperm(50, generator=generator)[:4].tolist()

    def batch(generator, ids):
        return (float(torch.rand((), generator=generator)), ids)

    draws = adambo.draws(batch, batch, Needs(upper=1, lower=1, slots=(6, 6)), tasks=tasks)
    by_slot = {}
    for _ in range(50):
        draw = next(draws)
        i, j = draw.slot
        assert i == j
        assert draw.lower[0][1] == draw.upper[0][1] == by_slot.setdefault(i, draw.lower[0][1])
    assert len(by_slot) == 6


def test_slots_are_part_of_a_resumable_run():
    one, other = stream(seed=3), stream(seed=0)
    for _ in range(7):
        next(one)
    other.load_state_dict(one.state_dict())
    for _ in range(5):
        a, b = next(one), next(other)
        assert a.slot == b.slot
        assert torch.equal(a.lower[0], b.lower[0])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": (10, 33)}, "batch_size=20, or build the solver with lower_slots=4"),
        ({"lower": list("abc"), "batch_size": (10, None)}, "lower_slots=3"),
        ({"lower": DataLoader(TensorDataset(NUMBERS)), "batch_size": (10, None)}, "read in order"),
    ],
)
def test_sources_that_do_not_fit_the_slots_are_refused(options, says):
    with pytest.raises(SettingError, match=says):
        stream(**options)


def test_one_slot_per_level_is_no_division():
    draws = stream(needs=Needs(upper=1, lower=1, slots=(1, 1)))
    first, second = next(draws), next(draws)
    assert not torch.equal(first.lower[0], second.lower[0])
    with pytest.raises(SettingError, match="no slots"):
        draws.slot_batches()


@pytest.mark.parametrize("lower", [NUMBERS, list("vwxyz")], ids=["dataset", "list"])
def test_a_warm_start_takes_the_batches_of_slots(lower):
    draws = stream(lower=lower, batch_size=(10, 20 if isinstance(lower, torch.Tensor) else None))
    slots = [str(batch) for batch in draws.slot_batches()[0]]
    assert all(str(batch) in slots for batch in draws.warm_start_batches(4))


def test_with_tasks_both_levels_have_as_many_slots():
    with pytest.raises(SettingError, match="lower_slots=5 and upper_slots=3"):
        adambo.draws(lambda g, t: t, lambda g, t: t, SLOTS, tasks=lambda g: [0])


SERIES = Needs(upper=3, lower=3, cross=3, hessian=9)


def test_a_snapshot_is_one_large_batch_for_each_level_that_serves_every_role():
    draw = next(adambo.draws(NUMBERS, NUMBERS, SERIES, batch_size=5, snapshot=40))
    large = draw.snapshot
    assert [len(large.upper[0]), len(large.lower[0])] == [40, 40]
    assert large.cross[0] is large.lower[0]
    assert len(large.hessian) == 9
    assert all(batch is large.lower[0] for batch in large.hessian)
    assert not torch.equal(large.upper[0], large.lower[0])


def test_a_snapshot_that_nobody_reads_is_never_made():
    made = []

    def large(generator):
        made.append(generator)
        return "large"

    draws = adambo.draws(lambda g: "small", lambda g: "small", SERIES, snapshot=(large, large))
    for _ in range(3):
        assert next(draws).upper[0] == "small"
    assert made == []
    assert next(draws).snapshot.lower[0] == "large"
    assert len(made) == 1


@pytest.mark.parametrize("snapshot", [0, 101, "large", (1, 2)])
def test_a_snapshot_that_cannot_be_made_is_refused(snapshot):
    with pytest.raises(SettingError, match="snapshot"):
        adambo.draws(NUMBERS, NUMBERS, SERIES, batch_size=5, snapshot=snapshot)


def test_a_slice_of_lazy_batches_is_lazy():
    made = []
    draw = next(adambo.draws(lambda g: "u", lambda g: made.append(1), SERIES)).trimmed(SERIES, "a test")
    assert made == []
    assert len(draw.lower) == 3
    assert draw.lower[1] is draw.lower[1]
    assert made == [1]
