"""The stream of draws: what a batch depends on, when it is made, and what a step takes of a draw."""

from collections import Counter, deque

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import adambo
from adambo import Draw, Needs

NEEDS = Needs(upper=1, lower=2, cross=1, hessian=3)
ROLES = ("upper", "lower", "cross", "hessian")


class CountingSource:
    """Makes a number per batch, and keeps count."""

    def __init__(self):
        self.made = 0

    def __call__(self, generator):
        self.made += 1
        return int(torch.randint(2**40, (), generator=generator))


def stream_of(seed=0, reuse=False, needs=NEEDS):
    return adambo.draws(CountingSource(), CountingSource(), needs, seed=seed, reuse=reuse)


def everything(draw):
    return [batch for role in ROLES for batch in getattr(draw, role)]


def as_numbers(draw):
    return {role: [b.tolist() if isinstance(b, torch.Tensor) else b for b in getattr(draw, role)] for role in ROLES}


@pytest.mark.parametrize("reuse", [False, True])
def test_a_batch_that_nobody_reads_is_never_made(reuse):
    upper, lower = CountingSource(), CountingSource()
    stream = adambo.draws(upper, lower, NEEDS, reuse=reuse)
    draws = [next(stream) for _ in range(100)]
    assert (upper.made, lower.made) == (0, 0)
    _ = draws[40].hessian[1]
    assert (upper.made, lower.made) == (0, 1)


def test_a_batch_is_made_once_and_stays_the_same_object():
    made = []
    stream = adambo.draws(lambda g: made.append(0) or [0], lambda g: made.append(0) or [0], NEEDS)
    draw = next(stream)
    assert draw.lower[1] is draw.lower[1]
    assert draw.lower[-1] is draw.lower[1]
    assert draw.lower[0] is not draw.lower[1]
    assert len(made) == 2


def test_a_draw_has_just_what_is_needed():
    assert [len(getattr(next(stream_of()), role)) for role in ROLES] == [1, 2, 1, 3]


def test_all_batches_of_a_run_are_different():
    stream = stream_of()
    numbers = [b for _ in range(50) for b in everything(next(stream))]
    assert len(set(numbers)) == 50 * 7


def test_a_stream_repeats_itself_by_its_seed():
    first, second, other = stream_of(seed=3), stream_of(seed=3), stream_of(seed=4)
    for _ in range(5):
        draw = everything(next(first))
        assert draw == everything(next(second))
        assert not set(draw) & set(everything(next(other)))


def test_reading_in_another_order_gives_the_same_batches():
    forwards = everything(next(stream_of()))
    draw = next(stream_of())
    backwards = [getattr(draw, role)[k] for role in reversed(ROLES) for k in reversed(range(getattr(NEEDS, role)))]
    assert forwards == backwards[::-1]


def test_seek_goes_to_any_step_at_once():
    stream = stream_of()
    steps = [everything(next(stream)) for _ in range(10)]
    for step in (7, 0, 9, 3):
        stream.seek(step)
        assert everything(next(stream)) == steps[step]
    stream.seek(10**9)
    assert len(everything(next(stream))) == 7
    with pytest.raises(adambo.SettingError, match="count from 0"):
        stream.seek(-1)


def test_the_batches_of_one_role_do_not_depend_on_how_many_the_others_need():
    few, many = next(stream_of(needs=Needs(1, 1, 1, 1))), next(stream_of(needs=Needs(2, 5, 3, 8)))
    for role in ROLES:
        assert getattr(few, role)[0] == getattr(many, role)[0]


def test_a_stream_does_not_touch_the_random_numbers_of_the_program():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    everything(next(stream_of()))
    assert torch.equal(torch.rand(3), expected)


def test_the_program_s_random_numbers_do_not_touch_a_stream():
    torch.manual_seed(0)
    first = everything(next(stream_of()))
    torch.manual_seed(1)
    assert everything(next(stream_of())) == first


def test_with_reuse_one_lower_object_serves_every_lower_role():
    stream = adambo.draws(lambda g: object(), lambda g: object(), NEEDS, reuse=True)
    first, second = next(stream), next(stream)
    assert {id(b) for role in ROLES[1:] for b in getattr(first, role)} == {id(first.lower[0])}
    assert [len(getattr(first, role)) for role in ROLES] == [1, 2, 1, 3]
    assert first.upper[0] is not first.lower[0]
    assert second.lower[0] is not first.lower[0]


def test_a_saved_stream_goes_on_where_it_was():
    stream = stream_of(seed=9)
    for _ in range(3):
        next(stream)
    other = stream_of()
    other.load_state_dict(stream.state_dict())
    assert everything(next(other)) == everything(next(stream))


@pytest.mark.parametrize("state", [{}, {"seed": 0}, {"seed": 0, "step": 1, "reuse": True}, None, "garbage"])
def test_a_state_of_another_kind_is_refused_and_the_stream_stays_where_it_is(state):
    stream = stream_of(seed=1)
    next(stream)
    before = stream.state_dict()
    with pytest.raises(adambo.StateError):
        stream.load_state_dict(state)
    assert stream.state_dict() == before


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index, index**2


@pytest.mark.parametrize(
    "dataset", [torch.arange(20), list(range(20)), Squares(), TensorDataset(torch.arange(20), torch.arange(20) ** 2)]
)
def test_a_dataset_gives_batches_without_repeats(dataset):
    stream = adambo.draws(dataset, dataset, NEEDS, batch_size=(15, 20))
    for _ in range(5):
        draw = next(stream)
        for role, size in zip(ROLES, (15, 20, 20, 20), strict=True):
            for batch in getattr(draw, role):
                indices = batch[0] if isinstance(batch, list | tuple) else batch
                assert len(set(indices.tolist())) == size


def test_every_example_of_a_dataset_is_drawn_equally_often():
    stream = adambo.draws(torch.arange(10), torch.arange(10), Needs(upper=1), batch_size=3)
    counts = Counter(k for _ in range(2000) for k in next(stream).upper[0].tolist())
    # Binomial(2000, 0.3): mean 600, standard deviation 20.5.
    assert set(counts) == set(range(10))
    assert all(abs(count - 600) < 5 * 20.5 for count in counts.values())


def test_examples_are_collated_as_asked():
    stream = adambo.draws(Squares(), Squares(), Needs(upper=1, lower=1), batch_size=4, collate=dict)
    assert all(square == k**2 for k, square in next(stream).upper[0].items())
    inputs, squares = next(adambo.draws(Squares(), Squares(), Needs(upper=1), batch_size=4)).upper[0]
    assert torch.equal(inputs**2, squares)


def test_an_iterable_is_read_in_order_and_started_again_at_its_end():
    stream = adambo.draws(upper=["a", "b"], lower=list(range(8)), needs=NEEDS)
    assert as_numbers(next(stream)) == {"upper": ["a"], "lower": [0, 1], "cross": [2], "hessian": [3, 4, 5]}
    assert as_numbers(next(stream)) == {"upper": ["b"], "lower": [6, 7], "cross": [0], "hessian": [1, 2, 3]}
    assert as_numbers(next(stream)) == {"upper": ["a"], "lower": [4, 5], "cross": [6], "hessian": [7, 0, 1]}
    stream.seek(1)
    assert as_numbers(next(stream)) == {"upper": ["b"], "lower": [6, 7], "cross": [0], "hessian": [1, 2, 3]}


def test_with_reuse_an_iterable_gives_one_lower_item_per_step():
    stream = adambo.draws(upper=["a"], lower=[[1], [2], [3]], needs=NEEDS, reuse=True)
    assert [next(stream).hessian[-1] for _ in range(4)] == [[1], [2], [3], [1]]


def test_a_data_loader_is_a_source():
    loader = DataLoader(torch.arange(12), batch_size=4)
    stream = adambo.draws(upper=loader, lower=loader, needs=Needs(upper=1, lower=1, cross=1))
    assert as_numbers(next(stream)) == {
        "upper": [[0, 1, 2, 3]],
        "lower": [[0, 1, 2, 3]],
        "cross": [[4, 5, 6, 7]],
        "hessian": [],
    }
    assert next(stream).upper[0].tolist() == [4, 5, 6, 7]


def test_a_one_shot_iterator_ends_the_stream_with_its_last_whole_draw():
    stream = adambo.draws(upper=lambda g: 0, lower=iter(range(7)), needs=Needs(upper=1, lower=2, cross=1))
    assert [as_numbers(d)["lower"] for d in stream] == [[0, 1], [3, 4]]


def test_a_one_shot_iterator_cannot_be_read_again_and_the_message_says_so():
    stream = adambo.draws(upper=lambda g: 0, lower=iter(range(9)), needs=Needs(upper=1, lower=1))
    for _ in range(3):
        next(stream)
    stream.seek(0)
    with pytest.raises(adambo.StateError, match=r"one-shot.*DataLoader"):
        next(stream)


def test_an_iterable_without_batches_is_an_error_and_not_a_run_of_no_steps():
    stream = adambo.draws(upper=[], lower=[1], needs=Needs(upper=1, lower=1))
    with pytest.raises(adambo.AdamboError):
        next(stream)


def test_warm_start_batches_are_not_those_of_the_steps():
    stream = stream_of()
    warm = list(stream.warm_start_batches(5))
    assert len(set(warm)) == 5
    assert not set(warm) & {b for _ in range(20) for b in everything(next(stream))}
    assert warm == list(stream_of().warm_start_batches(5))


@pytest.mark.parametrize("source", [3, None, torch.arange(4), Squares(), {"a": 1}])
def test_an_unknown_source_is_refused_with_the_three_kinds_there_are(source):
    with pytest.raises(adambo.SettingError, match=r"batch_size.*function.*iterable"):
        adambo.draws(upper=source, lower=[0], needs=NEEDS)


@pytest.mark.parametrize("size", [0, -1, 21])
def test_a_batch_size_that_cannot_be_drawn_is_refused(size):
    with pytest.raises(adambo.SettingError, match=r"batch_size=.*20 examples.*1 to 20"):
        adambo.draws(Squares(), Squares(), NEEDS, batch_size=size)


def test_levels_are_uniform_and_repeatable():
    needs = Needs(upper=1, lower=1, cross=1, hessian=4, levels=5)
    stream = stream_of(seed=2, needs=needs)
    levels = [next(stream).level for _ in range(5000)]
    again = stream_of(seed=2, needs=needs)
    assert levels == [next(again).level for _ in range(5000)]
    again.seek(1234)
    assert next(again).level == levels[1234]
    # Binomial(5000, 0.2): mean 1000, standard deviation 28.3.
    counts = Counter(levels)
    assert set(counts) == {0, 1, 2, 3, 4}
    assert all(abs(count - 1000) < 5 * 28.3 for count in counts.values())


def test_without_a_randomised_series_there_is_no_level():
    assert next(stream_of()).level is None


# What a step takes of a draw, on a problem that notes which batches it is given.


class NotingProblem(adambo.Problem):
    def __init__(self):
        self.seen = []
        x = torch.tensor([0.5], dtype=torch.double, requires_grad=True)
        y = torch.tensor([2.0], dtype=torch.double, requires_grad=True)

        def upper(batch):
            self.seen.append(("upper", batch))
            return ((y - batch).square() + x * y).sum()

        def lower(batch):
            self.seen.append(("lower", batch))
            return ((1 + batch) * (y - x.exp()).square() + 0.1 * y**4).sum()

        super().__init__(upper, lower, x, y)

    def values(self):
        return [self.x[0].tolist(), self.y[0].tolist()]


def solver_of(problem, **settings):
    return adambo.AdamBO(problem, lr=0.1, lower_lr=0.05, eps=1e-3, **settings)


@pytest.mark.parametrize("samples", ["chained", "independent", "prefix", "shared"])
def test_two_batches_mean_the_written_out_thrifty_draw(samples):
    short, long = NotingProblem(), NotingProblem()
    inverse = {"terms": 4, "samples": samples}
    one = solver_of(short, lower_steps=2, inverse=adambo.Neumann(**inverse))
    other = solver_of(long, lower_steps=2, inverse=adambo.Neumann(**inverse))
    for step in range(3):
        u, low = 0.1 * step, 0.3 + step
        one.step(u, low)
        other.step(Draw((u,), (low,) * 2, (low,), (low,) * other.needs.hessian))
    assert short.values() == long.values()


def test_extra_batches_are_ignored():
    short, long = NotingProblem(), NotingProblem()
    solver_of(short).step(Draw((0.1,), (0.2,), (0.3,), (0.4, 0.5)))
    solver_of(long).step(Draw((0.1, 9), (0.2, 9, 9), (0.3, 9), (0.4, 0.5, 9)))
    assert short.values() == long.values()
    assert not any(batch == 9 for _, batch in long.seen)


def test_a_randomised_series_reads_its_level_and_no_more():
    problem = NotingProblem()
    solver = solver_of(problem, inverse=adambo.Neumann(terms=5, step=0.01, samples="random"))
    source = CountingSource()
    stream = adambo.draws(lambda g: 0.5, lambda g: source(g) / 2**40, solver.needs, seed=1)
    for _ in range(20):
        draw, source.made = next(stream), 0
        solver.step(draw)
        assert source.made == 2 + draw.level


@pytest.mark.parametrize("role", ROLES)
def test_too_few_batches_are_an_error_before_any_loss_is_called(role):
    problem = NotingProblem()
    solver = solver_of(problem)
    roles = {"upper": (0.1,), "lower": (0.2,), "cross": (0.3,), "hessian": (0.4, 0.5)}
    with pytest.raises(adambo.SampleError, match=rf"needs \d {role} batch.*holds.*needs=solver.needs"):
        solver.step(Draw(**(roles | {role: roles[role][:-1]})))
    assert problem.seen == []


def test_where_two_roles_hold_one_object_its_forward_is_computed_once():
    problem = NotingProblem()
    solver_of(problem).step(0.1, 0.2)
    assert problem.seen == [("upper", 0.1), ("lower", 0.2)]


def test_one_batch_alone_is_not_a_draw():
    with pytest.raises(adambo.SampleError, match=r"two batches.*one float.*adambo\.draws"):
        solver_of(NotingProblem()).step(0.1)


def test_every_warm_start_batch_is_counted_also_where_it_takes_the_memory_of_an_earlier_one():
    solver = solver_of(NotingProblem())
    solver.problem.seen = deque(maxlen=0)  # so that nobody keeps the batches
    solver.warm_start(torch.tensor(0.1 * k) for k in range(20))
    assert solver.ledger.grad_y_g == 20
    assert solver.ledger.samples == 20


def test_all_batches_of_a_step_are_about_the_tasks_that_were_drawn_for_it():
    def tasks(generator):
        return torch.randperm(30, generator=generator)[:4].tolist()

    def source(generator, ids):
        return ids, float(torch.rand((), generator=generator))

    needs = adambo.Needs(upper=1, lower=2, cross=1, hessian=3)
    stream = adambo.draws(source, source, needs, tasks=tasks)
    seen = []
    for _ in range(5):
        batches = everything(next(stream))
        assert len({tuple(ids) for ids, _ in batches}) == 1
        assert len({number for _, number in batches}) == 7
        seen.append(tuple(batches[0][0]))
    assert len(set(seen)) > 1
    assert len({tuple(ids) for ids, _ in stream.warm_start_batches(5)}) > 1


@pytest.mark.parametrize("source", [range(6), deque([1, 2, 3, 4])], ids=["range", "deque"])
def test_any_iterable_of_batches_is_a_source(source):
    assert next(adambo.draws(source, source, adambo.Needs(upper=1, lower=2))).lower[1] == list(source)[1]


def test_a_batch_size_for_a_loader_that_makes_its_own_batches_is_refused():
    loader = torch.utils.data.DataLoader(range(8), batch_size=2)
    with pytest.raises(adambo.SettingError, match="makes its own batches"):
        adambo.draws(loader, loader, adambo.Needs(upper=1, lower=1), batch_size=4)
