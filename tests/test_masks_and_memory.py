"""What methods with two points and with a memory stand on: equal dropout masks, other values for a while, rows of y."""

from __future__ import annotations

import pytest
import torch
from states import assert_same
from torch import nn

import adambo
from adambo.guard import Guard
from adambo.lower_memory import LowerMemory
from adambo.masks import SameMasks
from adambo.processes import Processes

CPU = torch.device("cpu")


def guard():
    return Guard(CPU, Processes(None))


# Masks ----------------------------------------------------------------------------------------------------------------


def noise(masks, batch):
    with masks.of(batch):
        return torch.rand(3)


def test_a_batch_gets_the_same_random_numbers_whenever_it_is_evaluated():
    a, b, c = [1], [1], [1]  # equal, but different objects
    draw = adambo.Draw(upper=(a,), lower=(b,), cross=(b,), hessian=(c, a))
    first, again, other = (SameMasks(draw, seed, CPU) for seed in (7, 7, 8))
    torch.manual_seed(0)
    found = [noise(first, batch) for batch in (a, b, c)]
    torch.manual_seed(123)
    assert_same([noise(again, batch) for batch in (a, b, c)], found)
    assert_same(noise(first, b), found[1])
    different = [*found, *[noise(other, batch) for batch in (a, b, c)]]
    assert len({tuple(t.tolist()) for t in different}) == 6


def test_the_random_numbers_of_the_program_go_on_as_if_nothing_had_been():
    draw = adambo.Draw(upper=([1],))
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    noise(SameMasks(draw, 1, CPU), draw.upper[0])
    assert torch.initial_seed() == 5
    assert_same(torch.rand(4), expected)


@pytest.mark.parametrize("concatenate", [False, True])
@pytest.mark.parametrize("encoder_head", [False, True])
def test_with_masks_two_points_at_one_place_agree_under_dropout(encoder_head, concatenate):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh()).double()
    head = nn.Linear(8, 1).double()

    def loss(features, batch):
        return head(features).square().mean() + head.weight.square().sum()

    if encoder_head:
        problem = adambo.EncoderHeadProblem(encoder, loss, loss, encoder, head, concatenate=concatenate)
    else:
        problem = adambo.Problem(lambda b: loss(encoder(b), b), lambda b: loss(encoder(b), b), encoder, head)
    batches = [torch.randn(4, 3).double() for _ in range(3)]
    draw = adambo.Draw(upper=batches[:1], lower=batches[1:2], cross=batches[1:2], hessian=batches[2:])

    def everything(masks):
        point = problem.at(draw, masks=masks)
        z = point.hessian(point.f_y)
        return [*z, *point.lower_gradient(), *point.hypergradient(z)]

    assert_same(everything(SameMasks(draw, 3, CPU)), everything(SameMasks(draw, 3, CPU)))
    assert not torch.equal(everything(SameMasks(draw, 3, CPU))[0], everything(SameMasks(draw, 4, CPU))[0])
    point = problem.at(draw, masks=SameMasks(draw, 3, CPU))
    here = point.hypergradient(point.f_y)
    with point.elsewhere([p.detach().clone() for p in problem.x], point.y.values()) as same_place:
        assert_same(same_place.hypergradient(same_place.f_y), here)


# Elsewhere ------------------------------------------------------------------------------------------------------------


def small_problem():
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([1.0, 2.0], [3.0]))
    problem = adambo.Problem(lambda b: (y * x.sum()).square().sum(), lambda b: (y - x.prod()).square().sum(), x, y)
    return problem, problem.at(adambo.Draw((0,), (0,), (0,), (0,)))


def test_elsewhere_is_another_point_and_comes_back_bit_for_bit():
    problem, point = small_problem()
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    x = [torch.tensor([0.1, 0.2], dtype=torch.float64)]
    with point.elsewhere(x, [torch.tensor([5.0], dtype=torch.float64)]) as other:
        torch.testing.assert_close(other.f_y[0], torch.tensor([2 * 5 * 0.3**2], dtype=torch.float64))
        assert_same(x[0], before[0])  # exchanged: the values of x are kept in the memory that was given
    assert_same([p.detach() for p in (*problem.x, *problem.y)], before)
    torch.testing.assert_close(point.after_move().f_y[0], torch.tensor([2 * 3 * 3.0**2], dtype=torch.float64))


def test_elsewhere_comes_back_after_an_error():
    problem, point = small_problem()
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    with (
        pytest.raises(RuntimeError, match="stop"),
        point.elsewhere([torch.zeros(2, dtype=torch.float64)], [torch.zeros(1, dtype=torch.float64)]),
    ):
        raise RuntimeError("stop")
    assert_same([p.detach() for p in (*problem.x, *problem.y)], before)


def test_the_parts_of_a_hypergradient_are_those_of_the_whole():
    _, point = small_problem()
    z = [torch.tensor([0.7], dtype=torch.float64)]
    parts = [f - c for f, c in zip(point.f_x, point.cross(z), strict=True)]
    torch.testing.assert_close(parts, point.after_move().hypergradient(z))
    # g = (y − x₁x₂)²: ∇x g = −2 (y − x₁x₂) (x₂, x₁), and ∇²xy g z = −2 z (x₂, x₁)
    torch.testing.assert_close(point.after_move().g_x[0], torch.tensor([-4.0, -2.0], dtype=torch.float64))
    torch.testing.assert_close(point.cross(z)[0], torch.tensor([-2.8, -1.4], dtype=torch.float64))


# Memory ---------------------------------------------------------------------------------------------------------------


def rows_of(problem, ids):
    return problem.lower_variable(adambo.Draw(lower=(ids,)))


def stacked():
    table = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    x = torch.zeros(1, requires_grad=True)
    problem = adambo.Problem(lambda b: table.sum() + x.sum(), lambda b: table.sum(), x, [table], tasks=lambda b: b)
    return problem, LowerMemory(problem.y, 5)


def test_a_row_is_remembered_from_its_own_visits_only():
    problem, memory = stacked()
    first = [torch.full((2, 2), -1.0, dtype=torch.float64)]
    assert_same(memory.read("z", rows_of(problem, [0, 3]), first), first)
    values = [torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)]
    memory.write(rows_of(problem, [3, 0]), {"z": values}, guard())
    found = memory.read("z", rows_of(problem, [0, 1]), first)[0]
    assert found.tolist() == [[3.0, 4.0], [-1.0, -1.0]]
    memory.forget(rows_of(problem, [0]), guard())
    assert memory.read("z", rows_of(problem, [0, 3]), first)[0].tolist() == [[-1.0, -1.0], [1.0, 2.0]]


def test_what_is_not_kept_yet_starts_where_it_is_told_also_for_a_number():
    y = torch.tensor(4.0, requires_grad=True)
    x = torch.zeros(1, requires_grad=True)
    problem = adambo.Problem(lambda b: y, lambda b: y, x, [y])
    memory, whole = LowerMemory(problem.y, None), rows_of(problem, [0])
    assert_same(memory.read("z", whole, [torch.tensor(2.0)]), [torch.tensor(2.0)])
    memory.write(whole, {"z": [torch.tensor(9.0)]}, guard())
    assert_same(memory.read("z", whole, [torch.tensor(2.0)]), [torch.tensor(9.0)])


def test_a_state_of_another_shape_is_refused():
    problem, memory = stacked()
    memory.write(rows_of(problem, [1]), {"z": [torch.ones(1, 2, dtype=torch.float64)]}, guard())
    state = memory.state_dict()
    with pytest.raises(adambo.StateError, match="z as"):
        memory.load_state_dict(state | {"tables": {"z": [torch.ones(5, 3)]}})
    with pytest.raises(adambo.StateError, match="4 tasks"):
        memory.load_state_dict(state | {"seen": torch.ones(4, dtype=torch.bool)})
