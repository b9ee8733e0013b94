"""Whatever cannot work is refused with what came, why and what to do; and nothing has changed afterwards."""

import copy
from contextlib import contextmanager

import pytest
import torch
from states import assert_same
from torch import nn

import adambo
from adambo import AdamBO, Draw, Neumann, Problem

NAN, INF = float("nan"), float("inf")


def parameter(*shape, dtype=torch.double):
    return torch.ones(*shape, dtype=dtype).requires_grad_()


def upper_loss(x, y, batch):
    return batch * (y - 2).square().sum() + 0.1 * x.square().sum()


def lower_loss(x, y, batch):
    return batch * (y - x.sum()).square().sum() + 0.1 * y.pow(4).sum()


class Toy:
    """A good problem in two small tensors; a batch is a factor. `upper` and `lower` replace its losses."""

    def __init__(self, upper=upper_loss, lower=lower_loss, solver=AdamBO, **settings):
        self.x, self.y = parameter(2), parameter(3)
        self.problem = Problem(lambda b: upper(self.x, self.y, b), lambda b: lower(self.x, self.y, b), self.x, self.y)
        momentum = torch.optim.SGD(self.problem.y, lr=0.01, momentum=0.9)
        self.solver = solver(self.problem, lr=0.1, lower_optimizer=momentum, **settings)


def snapshot(solver):
    """All that a failed call must leave as it was: the ledger may go on counting."""
    state = solver.state_dict()
    del state["ledger"]
    return copy.deepcopy(state)


@contextmanager
def raises_unchanged(solver, kind, match):
    """The block raises `kind` with the words of `match` in their order, and leaves the solver as it was."""
    before = snapshot(solver)
    with pytest.raises(kind, match=r"(?s)" + match):
        yield
    assert_same(snapshot(solver), before)


# Parameters.


def make(x, y):
    return Problem(upper=lambda b: None, lower=lambda b: None, x=x, y=y)


def test_a_tensor_may_not_be_in_x_and_in_y():
    shared = parameter(2)
    with pytest.raises(adambo.ProblemError, match=r"y\[1\].*\(2,\).*also in x.*one of them"):
        make([parameter(3), shared], [parameter(2), shared])


def test_a_module_of_x_may_not_hold_a_tensor_of_y():
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    with pytest.raises(adambo.ProblemError, match="also in x"):
        make(nn.Sequential(body, head), head)


def test_tied_weights_may_not_be_in_both():
    embedding, decoder = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    decoder.weight = embedding.weight
    with pytest.raises(adambo.ProblemError, match="also in x"):
        make(embedding, decoder)


@pytest.mark.parametrize("part", [slice(0, 4), slice(2, 6), slice(1, 3)], ids=["equal", "overlapping", "inside"])
def test_tensors_of_x_and_y_may_not_share_memory(part):
    memory = torch.zeros(6)
    with pytest.raises(adambo.ProblemError, match="also in x"):
        make(memory[0:4].requires_grad_(), memory[part].requires_grad_())


def test_neighbours_in_one_piece_of_memory_are_fine():
    memory = torch.zeros(6)
    problem = make(memory[0:3].requires_grad_(), memory[3:6].requires_grad_())
    assert [len(p) for p in (*problem.x, *problem.y)] == [3, 3]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_integers_have_no_gradients(dtype):
    with pytest.raises(adambo.ProblemError, match=rf"x\[0\].*{dtype}.*floating-point"):
        make(torch.ones(2, dtype=dtype), parameter(2))


@pytest.mark.parametrize("name", ["x", "y"])
def test_the_result_of_a_computation_cannot_be_optimised(name):
    parts = {"x": parameter(2), "y": parameter(3)} | {name: parameter(2) * 2}
    with pytest.raises(adambo.ProblemError, match=rf"{name}\[0\].*not a leaf.*detach\(\)\.requires_grad_"):
        make(**parts)


@pytest.mark.parametrize("part", [[], torch.ones(2), nn.Linear(2, 2).requires_grad_(False), nn.ReLU(), ()])
@pytest.mark.parametrize("name", ["x", "y"])
def test_something_must_require_gradients(name, part):
    parts = {"x": parameter(2), "y": parameter(3)} | {name: part}
    with pytest.raises(adambo.ProblemError, match=rf"{name} has no parameter.*requires_grad_\(True\)"):
        make(**parts)


@pytest.mark.parametrize("part", [{"w": parameter(2)}, "encoder", b"encoder", 3, None])
@pytest.mark.parametrize("name", ["x", "y"])
def test_what_is_no_parameter_is_refused_by_its_type(name, part):
    parts = {"x": parameter(2), "y": parameter(3)} | {name: part}
    with pytest.raises(adambo.ProblemError, match=rf"{name} is a {type(part).__name__}.*module.*tensor.*iterable"):
        make(**parts)


def test_named_parameters_are_refused_with_the_way_out():
    with pytest.raises(adambo.ProblemError, match=r"x holds a tuple.*leave the names out.*module\.parameters\(\)"):
        make(nn.Linear(2, 2).named_parameters(), parameter(2))


def test_one_tensor_may_not_be_named_twice():
    twice = parameter(2)
    with pytest.raises(adambo.ProblemError, match=r"x names the same tensor twice.*once"):
        make([twice, twice], parameter(2))


def test_modules_tensors_generators_and_lists_of_them_are_parameters():
    layers = nn.Linear(2, 3), nn.Linear(3, 1)
    expected = [p for layer in layers for p in layer.parameters()]
    for x in (
        nn.Sequential(*layers),
        nn.Sequential(*layers).parameters(),
        list(layers),
        (layer for layer in layers),
        [layers[0], *layers[1].parameters()],
    ):
        found = make(x, parameter(2)).x
        assert [id(p) for p in found] == [id(p) for p in expected]


def test_frozen_parameters_are_left_out():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    assert [id(p) for p in make(layer, parameter(2)).x] == [id(layer.weight)]


# Losses.


@pytest.mark.parametrize("name", ["upper", "lower"])
@pytest.mark.parametrize(
    ("value", "came"),
    [
        (lambda x, y, b: y.square(), r"a tensor of shape \(3,\)"),
        (lambda x, y, b: y.square().sum().reshape(1), r"a tensor of shape \(1,\)"),
        (lambda x, y, b: 1.5, "float"),
        (lambda x, y, b: None, "NoneType"),
        (lambda x, y, b: (y.sum(), 1), "tuple"),
    ],
    ids=["vector", "one-element", "float", "None", "tuple"],
)
def test_a_loss_is_one_number(name, value, came):
    toy = Toy(**{name: value})
    with raises_unchanged(toy.solver, adambo.ProblemError, rf"The {name} loss returned {came}.*one number.*\.mean\(\)"):
        toy.solver.step(1.0, 1.0)


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("name", ["upper", "lower"])
@pytest.mark.parametrize(
    "value",
    [
        lambda x, y, b: x.square().sum(),
        lambda x, y, b: (y.detach() - x.sum()).square().sum(),
        lambda x, y, b: y.sum().detach(),
    ],
    ids=["x alone", "y detached", "all detached"],
)
def test_both_losses_depend_on_y(name, value, at):
    toy = Toy(**{name: value}, hypergradient_at=at)
    with raises_unchanged(toy.solver, adambo.ProblemError, rf"The {name} loss does not depend on y.*detaches"):
        toy.solver.step(1.0, 1.0)


def test_one_of_the_losses_depends_on_x():
    toy = Toy(upper=lambda x, y, b: y.square().sum(), lower=lambda x, y, b: (y - 1).square().sum())
    with raises_unchanged(toy.solver, adambo.ProblemError, r"Neither loss depends on x.*detaches"):
        toy.solver.step(1.0, 1.0)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("call", range(1, 5))
def test_an_error_of_the_user_s_own_passes_through_and_changes_nothing(call, at):
    calls = []

    def lower(x, y, batch):
        calls.append(batch)
        if len(calls) == call + 4:
            raise Interrupted
        return lower_loss(x, y, batch)

    toy = Toy(lower=lower, lower_steps=3, hypergradient_at=at)
    draw = Draw((1.0,), (1.0, 1.1, 1.2), (1.3,), (1.3, 1.3))
    toy.solver.step(draw)
    assert len(calls) == 4
    with raises_unchanged(toy.solver, Interrupted, ""):
        toy.solver.step(draw)


# Values that are not finite.


def bad_draw(role, index, value):
    roles = {"upper": [1.0], "lower": [1.0, 1.1, 1.2], "cross": [1.3], "hessian": [1.4, 1.5]}
    roles[role][index] = value
    return Draw(**roles)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize(
    ("role", "index"),
    [("upper", 0), ("lower", 0), ("lower", 1), ("lower", 2), ("cross", 0), ("hessian", 0), ("hessian", 1)],
)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_value_that_is_not_finite_stops_the_step(steps_before, role, index, at, value):
    toy = Toy(lower_steps=3, hypergradient_at=at)
    for _ in range(steps_before):
        toy.solver.step(bad_draw("upper", 0, 1.0))
    with raises_unchanged(toy.solver, adambo.NonFiniteError, r"NaN or infinite.*(Look at|Check)"):
        toy.solver.step(bad_draw(role, index, value))


@pytest.mark.parametrize(("role", "named"), [("upper", "the upper loss"), ("lower", "the lower loss")])
def test_the_loss_that_is_not_finite_is_named(role, named):
    toy = Toy(lower_steps=3)
    with pytest.raises(adambo.NonFiniteError, match=rf"{named}.*Nothing was changed"):
        toy.solver.step(bad_draw(role, -1, NAN))


def test_a_gradient_that_is_not_finite_under_a_finite_loss_stops_the_step():
    # √0 = 0, with an infinite slope; times 0 it is NaN.
    toy = Toy(upper=lambda x, y, b: (y - 2).square().sum() + (b * (x - 1).abs().sum()).sqrt())
    with raises_unchanged(toy.solver, adambo.NonFiniteError, r"NaN or infinite.*the hypergradient"):
        toy.solver.step(1.0, 1.0)


@pytest.mark.parametrize("at", ["current", "updated"])
def test_after_a_bad_step_the_run_goes_on_as_if_it_had_not_been(at):
    with_bad, without = Toy(lower_steps=3, hypergradient_at=at), Toy(lower_steps=3, hypergradient_at=at)
    good = [Draw((1.0 + k,), (1.0, 1.1, 1.2 + k), (1.3,), (1.4, 1.5 + k)) for k in range(4)]
    for k, draw in enumerate(good):
        for role in ("upper", "lower", "cross", "hessian"):
            with pytest.raises(adambo.NonFiniteError):
                with_bad.solver.step(bad_draw(role, 0, NAN))
        with_bad.solver.step(draw)
        without.solver.step(draw)
        assert_same(snapshot(with_bad.solver), snapshot(without.solver), f"step {k}")


def test_a_bad_draw_costs_no_truncation_level():
    with_bad, without = (Toy(inverse=Neumann(terms=9, step=0.01, samples="random")) for _ in range(2))
    for _ in range(4):
        with pytest.raises(adambo.NonFiniteError):
            with_bad.solver.step(NAN, 1.0)
        with_bad.solver.step(1.0, 1.0)
        without.solver.step(1.0, 1.0)
    assert_same(snapshot(with_bad.solver), snapshot(without.solver))


@pytest.mark.parametrize("batches", [[NAN], [1.0, NAN], [1.0, 1.1, INF, 1.2]])
def test_a_bad_batch_undoes_the_whole_warm_start(batches):
    toy = Toy()
    toy.solver.warm_start([1.0])
    with raises_unchanged(toy.solver, adambo.NonFiniteError, "NaN or infinite.*the lower loss"):
        toy.solver.warm_start(batches)


def test_an_error_while_warm_start_batches_are_made_undoes_the_warm_start():
    def batches():
        yield 1.0
        raise Interrupted

    toy = Toy()
    with raises_unchanged(toy.solver, Interrupted, ""):
        toy.solver.warm_start(batches())


@pytest.mark.parametrize("settings", [{}, {"lower_steps": 3}, {"hypergradient_at": "updated"}], ids=str)
@pytest.mark.parametrize(("role", "index"), [("upper", 0), ("lower", -1), ("cross", 0)])
def test_a_surrogate_of_a_bad_draw_changes_nothing_and_leaves_nothing_to_update(settings, role, index):
    toy = Toy(**settings)
    roles = {"upper": [1.0], "lower": [1.1, 1.2, 1.3][: toy.solver.lower_steps], "cross": [1.4], "hessian": [1.4, 1.4]}
    roles[role][index] = NAN
    with raises_unchanged(toy.solver, adambo.NonFiniteError, "NaN or infinite"):
        toy.solver.surrogate(Draw(**roles))
    with raises_unchanged(toy.solver, adambo.StateError, "nothing to write"):
        toy.solver.update()


# Batches.


@pytest.mark.parametrize("empty", [[], (), "", {}, torch.zeros(0), torch.zeros(3, 0)], ids=repr)
@pytest.mark.parametrize(("role", "index"), [("upper", 0), ("lower", 0), ("lower", 2), ("cross", 0), ("hessian", 1)])
@pytest.mark.parametrize("at", ["current", "updated"])
def test_an_empty_batch_is_refused(role, index, empty, at):
    toy = Toy(lower_steps=3, hypergradient_at=at)
    toy.solver.step(bad_draw("upper", 0, 1.0))
    kind = type(empty).__name__
    name = "upper" if role == "upper" else "lower"
    with raises_unchanged(toy.solver, adambo.SampleError, rf"{name} loss.*empty batch \({kind}\).*drop_last"):
        toy.solver.step(bad_draw(role, index, empty))


def test_an_empty_batch_undoes_the_warm_start():
    toy = Toy()
    with raises_unchanged(toy.solver, adambo.SampleError, "empty batch"):
        toy.solver.warm_start([1.0, []])


@pytest.mark.parametrize("batch", [0, 1, None, False, True, "a", 0.0, torch.tensor(0.0)], ids=repr)
def test_any_object_is_a_batch(batch):
    def upper(x, y, b):
        assert b is batch
        return upper_loss(x, y, 1.0)

    def lower(x, y, b):
        assert b is batch
        return lower_loss(x, y, 1.0)

    toy, number = Toy(upper, lower), Toy()
    toy.solver.warm_start([batch])
    toy.solver.step(batch, batch)
    toy.solver.step(Draw((batch,), (batch,), (batch,), (batch, batch)))
    number.solver.warm_start([1.0])
    for _ in range(2):
        number.solver.step(1.0, 1.0)
    assert_same(snapshot(toy.solver), snapshot(number.solver))


def test_no_batch_is_no_warm_start():
    toy = Toy()
    before = snapshot(toy.solver)
    toy.solver.warm_start([])
    assert_same(snapshot(toy.solver), before)


@pytest.mark.parametrize("role", ["upper", "lower", "cross", "hessian"])
def test_too_few_batches_are_refused(role):
    toy = Toy(lower_steps=2)
    draw = {"upper": [1.0], "lower": [1.0] * 2, "cross": [1.0], "hessian": [1.0] * 2}
    draw[role].pop()
    with raises_unchanged(
        toy.solver, adambo.SampleError, rf"AdamBO needs \d {role} batch.*holds \d.*needs=solver\.needs"
    ):
        toy.solver.step(Draw(**draw))


@pytest.mark.parametrize("level", [-1, 4])
def test_a_level_outside_the_series_is_refused(level):
    toy = Toy(inverse=Neumann(terms=4, samples="random"))
    with raises_unchanged(toy.solver, adambo.SampleError, rf"level from 0 to 3.*{level}.*level=None"):
        toy.solver.step(Draw((1.0,), (1.0,), (1.0,), (1.0,) * 3, level=level))


# Settings.


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"beta_sq": 0}, r"beta_sq=0 .*\(0, 1\].*1e-6"),
        ({"beta_sq": 1.5}, r"beta_sq=1\.5.*\(0, 1\]"),
        ({"beta": 0}, r"beta=0 .*\(0, 1\]"),
        ({"beta": -0.1}, r"beta=-0\.1.*\(0, 1\]"),
        ({"beta": 1.01}, r"beta=1\.01.*\(0, 1\]"),
        ({"beta": NAN}, r"beta=nan.*\(0, 1\]"),
        ({"eps": -1e-8}, r"eps=-1e-08.*0 or larger"),
        ({"eps": INF}, r"eps=inf.*finite"),
        ({"lr": -0.1}, r"lr=-0\.1.*0 or larger"),
        ({"lr": NAN}, r"lr=nan.*finite"),
        ({"lr": "1e-4"}, r"lr='1e-4'.*number"),
        ({"lower_lr": -1}, r"lower_lr=-1.*0 or larger"),
        ({"lower_lr": INF}, r"lower_lr=inf.*finite"),
        ({"lower_lr": None}, r"lower_lr=None.*number"),
        ({"lower_steps": 0}, r"lower_steps=0.*at least 1"),
        ({"lower_steps": -3}, r"lower_steps=-3.*at least 1"),
        ({"lower_steps": 1.5}, r"lower_steps=1\.5.*integer"),
        ({"lower_steps": "2"}, r"lower_steps='2'.*integer"),
        ({"hypergradient_at": "next"}, r"'next'.*'current'.*'updated'"),
        ({"hypergradient_at": None}, r"None.*'current'.*'updated'"),
        ({"inverse": "neumann"}, r"inverse"),
        ({"upper_optimizer": torch.optim.Adam}, r"upper_optimizer.*torch\.optim\.Optimizer"),
        ({"lower_optimizer": 0.1}, r"lower_optimizer is a float.*torch\.optim\.Optimizer"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_be_used_is_refused(settings, match):
    x, y = parameter(2), parameter(3)
    with pytest.raises(adambo.SettingError, match=match):
        AdamBO(Problem(lambda b: y.sum(), lambda b: y.square().sum(), x, y), **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"terms": 3, "products": 2}, r"terms=3 or products=2, not both.*Q \+ 1"),
        ({"terms": 0}, "at least one term.*0"),
        ({"terms": -1}, "at least one term.*-1"),
        ({"terms": 2.5}, "2.5"),
        ({"terms": "3"}, "3"),
        ({"products": -1}, "at least one term"),
        ({"products": "3"}, "3"),
        ({"step": 0}, r"step=0.*positive number.*'auto'"),
        ({"step": -0.1}, r"step=-0\.1.*positive"),
        ({"step": NAN}, r"step=nan.*positive"),
        ({"step": "automatic"}, r"step='automatic'.*'auto'"),
        ({"samples": "fresh"}, r"samples='fresh'.*chained, independent, prefix, shared, random"),
        ({"samples": None}, r"samples=None.*chained"),
        ({"samples": ["chained"]}, r"samples=.*chained"),
    ],
    ids=str,
)
def test_a_series_that_cannot_be_summed_is_refused(settings, match):
    with pytest.raises(adambo.SettingError, match=match):
        Neumann(**settings)


@pytest.mark.parametrize(
    "make_inverse",
    [
        lambda: adambo.LinearSystem(lr=0.0),
        lambda: adambo.LinearSystem(lr=NAN),
        lambda: adambo.LinearSystem(lr=0.1, steps=0),
        lambda: adambo.ConjugateGradient(iterations=0),
        lambda: adambo.ConjugateGradient(tolerance=-1.0),
        lambda: adambo.ConjugateGradient(damping=-1.0),
    ],
)
def test_an_inverse_that_cannot_work_is_refused(make_inverse):
    with pytest.raises(adambo.SettingError, match=r"needs .* but was given"):
        make_inverse()


def test_an_optimiser_moves_its_own_variable_and_all_of_it():
    x, y = [parameter(2), parameter(2)], [parameter(3)]
    problem = Problem(lambda b: y[0].sum(), lambda b: y[0].square().sum(), x, y)
    for upper in (torch.optim.Adam(x[:1]), torch.optim.Adam(y), torch.optim.Adam([*x, *y])):
        with pytest.raises(adambo.SettingError, match=r"upper_optimizer holds \d tensors.*2 of x.*problem\.x"):
            AdamBO(problem, upper_optimizer=upper)
    with pytest.raises(adambo.SettingError, match=r"lower_optimizer holds 2 tensors.*1 of y.*problem\.y"):
        AdamBO(problem, lower_optimizer=torch.optim.SGD(x, lr=0.1))


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda y: torch.optim.SGD(y, lr=0.1, momentum=0.9),
        lambda y: torch.optim.SGD(y, lr=0.1, weight_decay=0.1),
        lambda y: torch.optim.SGD(y, lr=0.1, maximize=True),
        lambda y: torch.optim.Adam(y),
    ],
    ids=["momentum", "weight decay", "maximize", "Adam"],
)
def test_a_lower_optimiser_with_a_memory_is_refused_for_stacked_tasks(make_optimizer):
    x, y = parameter(2), parameter(5, 3)
    problem = Problem(lambda b: y.sum(), lambda b: y.square().sum(), x, y, tasks=lambda b: b)
    with pytest.raises(adambo.SettingError, match=r"row of a stacked y.*SGD without momentum and weight decay"):
        AdamBO(problem, lower_optimizer=make_optimizer(problem.y))


# Tasks.


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([1, 1], r"named \[1, 1\].*only once"),
        ([0, 5], r"named \[0, 5\].*0 to 4"),
        ([-1, 2], r"named \[-1, 2\].*0 to 4"),
        ([0.0, 1.0], r"integers.*torch\.float32"),
        (torch.tensor([0.0, 1.0]), r"integers.*torch\.float32"),
        (torch.tensor([True, False, True, False, False]), r"integers.*torch\.bool"),
        (torch.tensor([[0, 1]]), r"integers.*\(1, 2\)"),
        (torch.tensor(1), r"integers.*\(\)"),
        ([], r"integers.*\(0,\)"),
        (None, "integers"),
        ([[0], [1, 2]], "integers"),
        (["a", "b"], "integers"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Problem, adambo.EncoderHeadProblem])
def test_task_ids_that_name_no_rows_are_refused(kind, ids, match):
    x, y = parameter(3), parameter(5, 3)

    def loss(*arguments):
        return (y[torch.tensor([0, 1])] - x).square().sum()

    arguments = {"x": x, "y": y, "tasks": lambda batch: ids}
    problem = Problem(loss, loss, **arguments) if kind is Problem else kind(lambda b: x, loss, loss, **arguments)
    solver = AdamBO(problem)
    with raises_unchanged(solver, adambo.SampleError, match):
        solver.step("batch", "batch")
    with raises_unchanged(solver, adambo.SampleError, match):
        solver.warm_start(["batch"])


@pytest.mark.parametrize(
    "y", [[parameter(5, 3), parameter(4, 3)], [parameter(5, 3), torch.tensor(1.0).requires_grad_()]]
)
def test_stacked_tensors_have_one_row_per_task(y):
    with pytest.raises(adambo.ProblemError, match=r"one row per task.*shapes.*Stack"):
        Problem(lambda b: None, lambda b: None, parameter(2), y, tasks=lambda b: b)


# Order of calls.


def test_update_without_a_surrogate_is_refused():
    toy = Toy()
    with raises_unchanged(toy.solver, adambo.StateError, r"nothing to write.*surrogate\(draw\)"):
        toy.solver.update()
    toy.solver.surrogate(1.0, 1.0).backward()
    toy.solver.upper_optimizer.step()
    toy.solver.update()
    with raises_unchanged(toy.solver, adambo.StateError, "nothing to write"):
        toy.solver.update()


@pytest.mark.parametrize("settings", [{"lower_steps": 2}, {"hypergradient_at": "updated"}], ids=str)
def test_two_surrogates_that_have_no_mean_are_refused(settings):
    toy = Toy(**settings)
    toy.solver.surrogate(1.0, 1.0)
    with raises_unchanged(toy.solver, adambo.StateError, r"waits for update\(\).*lower_steps=1"):
        toy.solver.surrogate(1.0, 1.0)


def test_a_hypergradient_of_an_earlier_step_is_gone_and_the_message_says_so():
    toy = Toy()
    info = toy.solver.step(1.0, 1.0)
    assert len(info.hypergradient) == 1
    toy.solver.step(1.0, 1.0)
    with pytest.raises(adambo.StateError, match=r"hypergradient of this step is gone.*right after its step"):
        _ = info.hypergradient


# Curvature.


def test_a_lower_loss_without_curvature_is_refused():
    toy = Toy(lower=lambda x, y, b: (y * x.sum()).sum())
    with raises_unchanged(toy.solver, adambo.CurvatureError, r"no curvature.*no inverse.*regulariser"):
        toy.solver.step(1.0, 1.0)


def test_a_singular_lower_hessian_has_no_exact_inverse():
    toy = Toy(lower=lambda x, y, b: (y.sum() - x.sum()).square(), inverse=adambo.Exact())
    with raises_unchanged(toy.solver, adambo.AdamboError, r"NaN or infinite|singular"):
        toy.solver.step(1.0, 1.0)


def test_a_step_for_which_the_series_diverges_is_refused_with_one_that_does_not():
    # g = 2‖y − Σx‖² has the Hessian 4·I: the series diverges for steps above 1/2.
    def lower(x, y, b):
        return 2 * (y - x.sum()).square().sum()

    toy = Toy(lower=lower, inverse=Neumann(step=0.51))
    with raises_unchanged(toy.solver, adambo.CurvatureError, r"step=0\.51.*2/λ_max = 0\.5 .*step='auto'"):
        toy.solver.step(1.0, 1.0)
    Toy(lower=lower, inverse=Neumann(step=0.49)).solver.step(1.0, 1.0)


def test_a_hessian_too_large_to_build_is_refused():
    toy = Toy(inverse=adambo.Exact(limit=2))
    with raises_unchanged(toy.solver, adambo.CurvatureError, r"3×3.*limit of 2.*ConjugateGradient"):
        toy.solver.step(1.0, 1.0)


def test_every_error_is_an_adambo_error_and_of_a_kind_that_python_knows():
    kinds = {
        adambo.ProblemError: ValueError,
        adambo.SettingError: ValueError,
        adambo.SampleError: ValueError,
        adambo.NonFiniteError: ArithmeticError,
        adambo.CurvatureError: ArithmeticError,
        adambo.SecondDerivativeError: RuntimeError,
        adambo.StateError: RuntimeError,
    }
    for kind, known in kinds.items():
        assert issubclass(kind, adambo.AdamboError)
        assert issubclass(kind, known)
