"""The monitor measures what is known in closed form, warns before constructed failures, and is silent otherwise."""

import copy
import json
import warnings
from functools import partial

import pytest
import torch

from adambo import AdamBO, ConjugateGradient, Draw, Neumann, Problem
from adambo.algorithms import BOREP, F2SA, FSLA, MAML, MASOBA, SLIP, SOBA, SUSTAIN, TTSA, StocBiO
from adambo.diagnostics import (
    LowerErrorMonitor,
    LowerLevelDoesNotTrack,
    MonitorWarning,
    NeumannStepTooLarge,
    UpperSmoothnessExplodes,
    UpperStepTooLarge,
)
from adambo.errors import CurvatureError, NonFiniteError, SampleError, SettingError, StateError
from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.configure import configure
from adambo.inverse import LinearSystem
from adambo.testing import (
    AUC,
    Quadratic,
    RidgeSoftmaxHead,
    StochasticQuadratic,
    TaskQuadratics,
    UnboundedSmooth,
    divided,
    flat,
    same,
)
from adambo.vectors import copy_

REFERENCE = Draw(upper=(None,), cross=(None,))
EVERYTHING = (None, None)


def watched(solver, steps, reference=REFERENCE, draw=lambda t: EVERYTHING, **settings):
    """The monitor after so many steps, or when the solver gives up; all losses are finite up to then."""
    monitor = LowerErrorMonitor(solver, reference, warn=False, **settings)
    monitor.observe()
    for t in range(steps):
        try:
            info = solver.step(*draw(t))
        except (NonFiniteError, CurvatureError):
            break
        assert torch.isfinite(info.upper_loss)
        monitor.observe()
    return monitor


def names(monitor):
    return [warning["name"] for warning in monitor.warnings]


# What is measured ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solve_lower", [False, True])
def test_on_a_quadratic_everything_is_what_closed_forms_say(solve_lower):
    known = Quadratic(dx=3, dy=4, seed=3)
    solver = AdamBO(known.problem(), lr=0.1, lower_lr=0.1, inverse=Neumann(terms=2, step=0.2))
    solver.step(*EVERYTHING)
    before = flat(solver.problem.x).detach().clone(), flat(solver.problem.y).detach().clone()
    monitor = LowerErrorMonitor(solver, REFERENCE, every=2, solve_lower=solve_lower, tolerance=1e-12)
    first = monitor.observe()
    assert monitor.observe() is None
    solver.step(*EVERYTHING)
    record = monitor.observe()
    assert (first.step, record.step, first.x_update) == (1, 2, None)

    x, y = flat(solver.problem.x).detach(), flat(solver.problem.y).detach()
    truth = known.gradient(x)
    f_y = y - known.d
    z = 0.2 * (f_y + (f_y - 0.2 * known.A @ f_y))
    own = known.C @ (x - known.e) + known.B.T @ known.A @ z
    at_y = known.C @ (x - known.e) + known.B.T @ f_y
    expected = {
        "upper_loss": known.phi(x),
        "hypergradient_norm": truth.norm(),
        "lower_error": (y - known.y_star(x)).norm(),
        "residual": (known.A @ z - f_y).norm() / f_y.norm(),
        "bias": (own - truth).norm() / truth.norm(),
        "cosine": own.dot(truth) / (own.norm() * truth.norm()),
        "lower_bias": (at_y - truth).norm() / truth.norm(),
        "x_update": (x - before[0]).norm() / x.norm(),
        "y_update": (y - before[1]).norm() / y.norm(),
        "smoothness": (truth - known.gradient(before[0])).norm() / (x - before[0]).norm(),
        "curvature": known.L,
    }
    for name, value in expected.items():
        assert getattr(record, name) == pytest.approx(float(value), rel=1e-8), name
    assert record.solved


def test_the_first_smoothness_is_close_to_the_largest_curvature_of_phi():
    known = Quadratic(seed=1)
    record = LowerErrorMonitor(SOBA(known.problem()), REFERENCE, tolerance=1e-10).observe()
    largest = float(torch.linalg.eigvalsh(known.B.T @ known.B + known.C)[-1])
    assert 0.9 * largest <= record.smoothness <= largest * (1 + 1e-4)


def test_a_curved_lower_level_is_solved_on_request():
    known = RidgeSoftmaxHead(seed=2)
    reference = Draw(upper=(known.upper_batch,), cross=(known.lower_batch,))
    for problem in (known.problem(), known.encoder_head_problem()):
        solver = AdamBO(problem, lr=0.05, lower_lr=0.5, inverse=ConjugateGradient(20))
        with torch.no_grad():
            copy_(problem.y, [3 * t for t in problem.y])
        x, y = flat(problem.x).detach(), flat(problem.y).detach()
        found = LowerErrorMonitor(solver, reference, solve_lower=True, tolerance=1e-9).observe()
        assert found.lower_error == pytest.approx(float((y - known.y_star(x)).norm()), rel=1e-6)
        assert found.upper_loss == pytest.approx(float(known.phi(x)), rel=1e-6)
        assert found.hypergradient_norm == pytest.approx(float(known.gradient(x).norm()), rel=1e-6)
        cheap = LowerErrorMonitor(solver, reference).observe()
        assert cheap.lower_error == pytest.approx(found.lower_error, rel=0.3)
        assert cheap.lower_error != found.lower_error


def test_with_tasks_the_rows_are_those_of_the_reference():
    known = TaskQuadratics(count=4)
    for problem in (known.problem(), known.encoder_head_problem()):
        solver = SOBA(problem, lr=0.05, lower_lr=0.1)
        chosen = [2, 0]
        record = LowerErrorMonitor(solver, Draw(upper=(chosen,), cross=(chosen,)), tolerance=1e-10).observe()
        rows = known._stacked(known.y0) - known._stacked(known.y_star(known.x0))
        assert record.lower_error == pytest.approx(float(rows[chosen].norm()), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "has_z"),
    [
        (SOBA, True),
        (lambda p: AdamBO(p, inverse=LinearSystem(lr=0.1, steps=2)), True),
        (lambda p: AdamBO(p, inverse=Neumann(terms=4, samples="random")), True),
        (lambda p: AdamBO(p, inverse=Neumann(terms=4, samples="independent")), True),
        (F2SA, False),
    ],
)
def test_what_a_method_does_not_have_is_absent(make, has_z):
    monitor = watched(make(Quadratic().problem()), 4, every=2)
    record = monitor.records()[-1]
    assert (record["residual"] is not None, record["cosine"] is not None) == (has_z, has_z)
    assert record["lower_error"] > 0
    json.dumps(monitor.records(), allow_nan=False)


def test_nothing_changes_and_calls_are_counted_apart():
    known = StochasticQuadratic(samples=5)
    runs = []
    for every in (None, 1, 3):
        torch.manual_seed(0)
        solver = AdamBO(known.problem(), lr=0.05, lower_lr=0.1)
        monitor = LowerErrorMonitor(solver, REFERENCE, every=every or 1)
        for t in range(7):
            solver.step([t % 5], [(2 * t) % 5])
            gradients = [p.grad.clone() for p in solver.problem.x]
            if every:
                monitor.observe()
            assert same(gradients, [p.grad for p in solver.problem.x])
            assert all(p.grad is None for p in solver.problem.y)
        runs.append((solver.state_dict(), torch.get_rng_state()))
        assert (monitor.ledger.hessian_vector > 0) == bool(every)
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


def test_running_statistics_and_dropout_are_left_alone():
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).double()
    head = torch.nn.Linear(4, 1).double()
    data = torch.randn(8, 3, dtype=torch.double)
    problem = Problem(
        upper=lambda b: (head(encoder(b)) - 1).square().mean(),
        lower=lambda b: (head(encoder(b)) - b.sum(1, keepdim=True)).square().mean() + head.weight.square().sum(),
        x=encoder,
        y=head,
    )
    monitor = LowerErrorMonitor(AdamBO(problem), Draw(upper=(data,), cross=(data,)))
    before = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    one = monitor.observe()
    assert same(before, (encoder.state_dict(), torch.get_rng_state()))
    assert LowerErrorMonitor(AdamBO(problem), Draw(upper=(data,), cross=(data,))).observe() == one


# Failures ------------------------------------------------------------------------------------------------------------


def slow_lower():
    """x is held by y alone, so that one that lags lets the two chase each other further and further out."""
    known = Quadratic(distance=2.0)
    known.C *= 0.01
    return known.problem()


@pytest.mark.parametrize(
    "solver",
    [
        lambda: SOBA(slow_lower(), lr=0.5, lower_lr=0.01, z_lr=0.2),
        lambda: StocBiO(slow_lower(), lr=0.5, lower_lr=0.01, lower_steps=1),
        lambda: AdamBO(slow_lower(), lr=0.5, lower_lr=0.01),
    ],
)
def test_a_lower_level_that_is_too_slow(solver):
    monitor = watched(solver(), 200)
    assert names(monitor)[0] == "LowerLevelDoesNotTrack"
    message = monitor.warnings[0]["message"]
    assert "lr/lower_lr = 50" in message
    assert "Raise lower_steps" in message


def test_a_lower_level_that_was_too_slow_is_cured_by_what_the_warning_says():
    cured = watched(StocBiO(slow_lower(), lr=0.1, lower_lr=0.2, lower_steps=10), 200)
    assert names(cured) == []


def test_a_lower_level_that_stops_following_is_told_by_the_growth_of_its_error():
    known = Quadratic(seed=4)
    solver = AdamBO(known.problem(), lr=0.1, lower_lr=0.0005)
    copy_(solver.problem.y, divided(known.y_star(known.x0) + 1e-3, known.y_shapes))
    monitor = watched(solver, 60)
    assert names(monitor) == ["LowerLevelDoesNotTrack"]
    assert "× in " in monitor.warnings[0]["message"]
    assert monitor.warnings[0]["step"] <= 50


def test_a_lower_step_that_diverges_is_called_so():
    known = Quadratic()
    solver = SOBA(known.problem(), lr=1e-4, lower_lr=0.7, z_lr=0.1)
    copy_(solver.problem.y, divided(known.y_star(known.x0) + 1e-3, known.y_shapes))
    monitor = watched(solver, 200)
    assert names(monitor)[0] == "LowerLevelDoesNotTrack"
    assert "lower_lr to about 0.25" in monitor.warnings[0]["message"]


@pytest.mark.parametrize("every", [1, 10, 25])
@pytest.mark.parametrize("lower_lr", [1.0, 3.0])
@pytest.mark.parametrize("method", [AdamBO, StocBiO, partial(SOBA, z_lr=0.1)])
@pytest.mark.filterwarnings("ignore:The lower step size")  # which the solver says itself
def test_a_lower_level_that_explodes_is_named_long_before_the_end(method, lower_lr, every):
    solver = method(Quadratic(seed=1).problem(), lr=0.01, lower_lr=lower_lr)
    monitor = watched(solver, 30, every=every)
    assert names(monitor)[0] == "LowerLevelDoesNotTrack"
    assert monitor.warnings[0]["step"] <= 25
    assert "diverges: lower_lr" in monitor.warnings[0]["message"]


@pytest.mark.parametrize("solve_lower", [False, True])
def test_where_no_lower_minimum_is_found_nothing_is_told_of_it(solve_lower):
    x, y = (torch.full((1,), 0.1, dtype=torch.double, requires_grad=True) for _ in range(2))
    problem = Problem(lambda b: (y + x).square().sum(), lambda b: (y.square() - 1).square().sum() / 4, x, y)
    record = LowerErrorMonitor(SOBA(problem), REFERENCE, solve_lower=solve_lower).observe()
    assert (record.lower_error, record.lower_bias, record.hypergradient_norm) == (None, None, None)
    assert not record.solved


@pytest.mark.parametrize("setting", [{"seed": 1.5}, {"ledger": 3}, {"solve_lower": "yes"}, {"warn": None}])
def test_settings_of_a_wrong_kind_are_refused(setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        LowerErrorMonitor(SOBA(Quadratic().problem()), REFERENCE, **setting)


def sharpening(step):
    """Upper steps raise x, and with it the curvature e^x of the lower loss, until a fixed step of z is too large."""
    x, y = (torch.zeros(size, dtype=torch.double, requires_grad=True) for size in (1, 2))
    problem = Problem(
        upper=lambda b: (y - 1).square().sum() - 3 * x.sum(),
        lower=lambda b: (x.exp() * (y - 0.1).square() * torch.tensor([0.5, 0.1])).sum(),
        x=x,
        y=y,
    )
    return AdamBO(problem, lr=0.02, lower_lr=0.05, inverse=Neumann(terms=30, step=step))


@pytest.mark.parametrize(
    "solver",
    [
        lambda: sharpening(1.0),
        lambda: SOBA(Quadratic().problem(), lr=0.01, lower_lr=0.1, z_lr=1.5),
        lambda: AdamBO(Quadratic().problem(), lr=0.01, lower_lr=0.1, inverse=LinearSystem(lr=1.5)),
        lambda: AdamBO(Quadratic().problem(), lr=0.01, lower_lr=0.1, inverse=Neumann(terms=30, step=0.6)),
    ],
)
def test_a_step_of_z_that_is_too_large(solver):
    solver = solver()
    monitor = watched(solver, 60, every=5)
    assert names(monitor)[0] == "NeumannStepTooLarge"
    assert "or less" in monitor.warnings[0]["message"]

    def go_on():
        for _ in range(700):
            solver.step(*EVERYTHING)

    with pytest.raises((NonFiniteError, CurvatureError)):
        go_on()


@pytest.mark.parametrize(
    "solver",
    [
        lambda: StocBiO(Quadratic(distance=2.0).problem(), lr=2.0, lower_lr=0.2, lower_steps=5),
        lambda: StocBiO(Quadratic(distance=2.0).problem(), lr=10.0, lower_lr=0.2, lower_steps=5),
        lambda: AdamBO(Quadratic(distance=2.0).problem(), lr=10.0, lower_lr=0.2),
    ],
)
def test_an_upper_step_that_is_too_large(solver):
    monitor = watched(solver(), 60)
    assert names(monitor)[0] == "UpperStepTooLarge"
    assert monitor.warnings[0]["step"] <= 10
    assert "Lower lr" in monitor.warnings[0]["message"]


@pytest.mark.parametrize("every", [1, 10, 50])
@pytest.mark.parametrize("distance", [0.2, 1.0, 2.0])
def test_an_upper_smoothness_that_explodes(distance, every):
    solver = StocBiO(UnboundedSmooth(distance=distance).problem(), lr=0.8, lower_lr=0.4, lower_steps=5)
    monitor = watched(solver, 100, every=every)
    assert solver.steps < 20  # it is over by then
    assert names(monitor)[-1] == "UpperSmoothnessExplodes"
    assert set(names(monitor)) <= {"UpperStepTooLarge", "UpperSmoothnessExplodes"}
    assert monitor.warnings[-1]["step"] < solver.steps + 1


# Healthy runs --------------------------------------------------------------------------------------------------------


def samples_of(known):
    generator = torch.Generator().manual_seed(0)
    return lambda t: (known.batch(generator), known.batch(generator))


def on_samples(method, **settings):
    known = StochasticQuadratic(samples=8)
    return lambda: (method(known.problem(), lr=0.02, lower_lr=0.05, **settings), REFERENCE, samples_of(known))


def on_tasks():
    known = TaskQuadratics(count=6)
    ids = list(range(6))
    solver = AdamBO(known.encoder_head_problem(), lr=0.02, lower_lr=0.2)
    return solver, Draw(upper=(ids,), cross=(ids,)), lambda t: ([t % 6, (t + 1) % 6],) * 2


def on_softmax():
    known = RidgeSoftmaxHead()
    reference = Draw(upper=(known.upper_batch,), cross=(known.lower_batch,))
    solver = AdamBO(known.encoder_head_problem(), lr=0.01, lower_lr=0.5)
    return solver, reference, lambda t: (known.upper_batch, known.lower_batch)


def on_auc():
    known = AUC()
    solver = SOBA(known.problem(), lr=0.05, lower_lr=0.5)
    return solver, REFERENCE, lambda t: EVERYTHING


def from_the_solution():
    """Where all that moves is noise."""
    known = StochasticQuadratic(samples=8)
    solver = StocBiO(known.problem(), lr=0.05, lower_lr=0.1)
    copy_(solver.problem.x, divided(known.optimum, known.x_shapes))
    copy_(solver.problem.y, divided(known.y_star(known.optimum), known.y_shapes))
    return solver, REFERENCE, samples_of(known)


HEALTHY = {
    "quadratic": lambda: (AdamBO(Quadratic(distance=2.0).problem(), lr=0.05, lower_lr=0.1), REFERENCE, None),
    "cosh": lambda: (AdamBO(UnboundedSmooth().problem(), lr=0.05, lower_lr=0.1), REFERENCE, None),
    "first order": lambda: (F2SA(Quadratic().problem(), lr=0.02, lower_lr=0.05), REFERENCE, None),
    "AdamBO": on_samples(AdamBO),
    "StocBiO": on_samples(StocBiO),
    "SOBA": on_samples(SOBA),
    "MASOBA": on_samples(MASOBA),
    "SLIP": on_samples(SLIP),
    "BOREP": on_samples(BOREP),
    "TTSA": on_samples(TTSA),
    "SUSTAIN": on_samples(SUSTAIN),
    "FSLA": on_samples(FSLA),
    "tasks": on_tasks,
    "softmax": on_softmax,
    "auc": on_auc,
    "noise alone": from_the_solution,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_gives_no_warning(name):
    solver, reference, draw = HEALTHY[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("error", MonitorWarning)
        monitor = watched(solver, 150, reference, draw or (lambda t: EVERYTHING))
    assert set(range(0, 151, 10)) <= {record["step"] for record in monitor.records()}
    assert len(monitor.records()) <= 25  # few steps call for a measurement of their own
    assert monitor.warnings == []


@pytest.mark.parametrize("name", ["digits", "digits-cleaning", "cancer-auc"])
def test_the_embedded_experiments_give_no_warning(name):
    workload = EXPERIMENTS[name].build(configure(name, "adambo", "tiny", {"monitor_every": 5}).config)
    workload.begin()
    for number in range(20):
        workload.observe()
        workload.step(number)
    assert {0, 5, 10, 15} <= {record["step"] for record in workload.monitor.records()}
    assert workload.monitor.warnings == []


# Warnings, state, refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [LowerLevelDoesNotTrack, NeumannStepTooLarge, UpperStepTooLarge, UpperSmoothnessExplodes]
)
def test_warnings_have_their_own_classes(kind):
    assert issubclass(kind, MonitorWarning)
    assert issubclass(kind, RuntimeWarning)


def test_a_warning_is_given_once_until_it_was_quiet_for_a_window():
    solver = SOBA(Quadratic().problem(), lr=0.0, lower_lr=0.1, z_lr=0.1)
    monitor = LowerErrorMonitor(solver, REFERENCE, every=4)

    def go():
        for t in range(120):
            solver._z_lr = 1.5 if t in range(12) or t in range(20, 24) or t > 90 else 0.2  # z recovers in between
            solver.step(*EVERYTHING)
            monitor.observe()

    with pytest.warns(NeumannStepTooLarge) as given:
        go()
    assert len(given) == 2
    assert [warning["step"] <= 12 or warning["step"] > 90 for warning in monitor.warnings] == [True, True]


def test_a_resumed_monitor_goes_on_as_if_it_had_not_stopped():
    def made():
        solver = StocBiO(Quadratic(distance=2.0).problem(), lr=1.0, lower_lr=0.2, lower_steps=5)
        return solver, LowerErrorMonitor(solver, REFERENCE, every=3, warn=False)

    def go(solver, monitor, steps):
        for _ in steps:
            solver.step(*EVERYTHING)
            monitor.observe()

    whole, watching = made()
    go(whole, watching, range(40))
    assert watching.warnings  # or there would be nothing to compare
    for stop in (1, 2, 3, 20):
        first, before = made()
        go(first, before, range(stop))
        second, after = made()
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        assert same(after.state_dict(), before.state_dict())
        go(second, after, range(40 - stop))
        assert same(after.state_dict(), watching.state_dict())


def test_what_cannot_be_watched_is_refused_with_a_sentence():
    problem = Quadratic().problem()
    solver = AdamBO(problem)
    for arguments, settings, error, part in (
        ((problem, REFERENCE), {}, SettingError, "watches a solver"),
        ((MAML(problem), REFERENCE), {}, SettingError, "no lower variable"),
        ((solver, Draw(upper=(None,))), {}, SampleError, "upper and a lower batch"),
        ((solver, [REFERENCE]), {}, SampleError, "reference draw"),
        ((solver, REFERENCE), {"every": 0}, SettingError, "every=0"),
        ((solver, REFERENCE), {"tolerance": 2.0}, SettingError, "tolerance=2.0"),
    ):
        with pytest.raises(error, match=part):
            LowerErrorMonitor(*arguments, **settings)
    with pytest.raises(StateError, match="has"):
        LowerErrorMonitor(solver, REFERENCE).load_state_dict({"records": []})


def test_a_loss_that_is_not_finite_gives_a_record_without_numbers():
    known = Quadratic()
    problem = known.problem()
    good = problem.upper
    problem.upper = lambda batch: good(batch) * float("nan")
    record = LowerErrorMonitor(AdamBO(problem), REFERENCE).observe()
    assert record.upper_loss is None
    assert record.hypergradient_norm is None
    assert record.lower_error > 0
