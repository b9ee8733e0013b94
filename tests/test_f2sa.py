"""F2SA keeps the contract, rests where its penalty says, and stays stable while the penalty grows."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from states import assert_same
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import adambo
from adambo import F2SA, Draw, NonFiniteError, SettingError, StateError
from adambo.testing import AlgorithmContract, Quadratic, StochasticQuadratic, TaskQuadratics, flat


def resting_point(known, lam):
    """(x, y, z) where all three steps stand still on a `Quadratic`.

    z = y*(x); y − y*(x) = (I + λA)⁻¹ (d − y*(x)); and with it ∇x f + λ (∇x g(y) − ∇x g(z)) = 0 is
    C (x − e) + λ BᵀA (I + λA)⁻¹ (Bx + c − d) = 0.
    """
    identity = torch.eye(len(known.A), dtype=torch.float64)
    pull = lam * known.B.T @ known.A @ torch.linalg.inv(identity + lam * known.A)
    x = torch.linalg.solve(known.C + pull @ known.B, known.C @ known.e + pull @ (known.d - known.c))
    z = known.y_star(x)
    return x, z + torch.linalg.solve(identity + lam * known.A, known.d - z), z


# The contract ---------------------------------------------------------------------------------------------------------


class RestsByItsPenalty(AlgorithmContract):
    """The penalty is constant on the way to the optimum, so that there is a point of rest."""

    implicit = False  # ∇x g(x, y) − ∇x g(x, z) cancels a term of x up to rounding only; see the test below
    lam = 3.0

    def test_reaches_the_optimum_from_afar(self):
        known = Quadratic(dx=2, dy=2, L=2.0)
        goal = resting_point(known, self.lam)
        known.x0 = goal[0] + 10.0
        solver = self.make(known.problem(), lr=0.2, lower_lr=0.4)
        solver.penalty_growth = 0.0
        for _ in range(300):
            info = solver.step(0, 0)
        found = [flat(part).detach() for part in (solver.problem.x, solver.problem.y, info.z)]
        for mine, expected in zip(found, goal, strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)


class TestAutomaticCap(RestsByItsPenalty):
    ledger_per_step: ClassVar = {"grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 2, "grad_x_g": 2, "samples": 3}

    def make(self, problem, **settings):
        return F2SA(problem, penalised_lr=1.0, penalty=self.lam, penalty_growth=0.1, **settings)  # the cap acts

    def expected_ledger(self, steps):
        return super().expected_ledger(steps) | {"curvature_vector": 20 + 3 + 3}


class TestThreeLowerSteps(RestsByItsPenalty):
    ledger_per_step: ClassVar = {
        "grad_x_f": 1,
        "grad_y_f": 3,
        "grad_y_g": 6,
        "grad_x_g": 2,
        "samples": 7,
        "curvature_vector": 0,
    }

    def make(self, problem, **settings):
        return F2SA(problem, penalised_lr=0.05, lower_steps=3, penalty=self.lam, smoothness=4.5, **settings)


# The mathematics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0.02, 0.5])
def test_it_follows_the_penalty_written_out_by_hand(cap):
    """Three lower steps, all batches different; a penalised step of 0.05 is capped in one case and not in the other."""
    known, lam, growth = StochasticQuadratic(), 2.0, 0.5
    solver = F2SA(known.problem(), 0.03, 0.1, 0.05, 3, lam, growth, smoothness=1 / cap)
    x, y = known.x0, known.y0
    z = y

    def gradient(function, x, y, batch, of):
        point = [x.clone().requires_grad_(), y.clone().requires_grad_()]
        return torch.autograd.grad(function(*point, batch), point)[of]

    for t in range(4):
        batches = [[(t + k) % known.samples] for k in range(7)]
        upper, lower, cross = batches[:3], batches[3:6], batches[6]
        info = solver.step(Draw(upper, lower, (cross,)))
        for s in range(3):
            g_z = gradient(known.lower, x, z, lower[s], of=1)
            slope = gradient(known.upper, x, y, upper[s], of=1) + lam * gradient(known.lower, x, y, lower[s], of=1)
            z, y = z - 0.1 * g_z, y - min(0.05, cap / lam) * slope
        g_x = gradient(known.lower, x, y, cross, of=0) - gradient(known.lower, x, z, cross, of=0)
        direction = gradient(known.upper, x, y, upper[0], of=0) + lam * g_x
        x = x - 0.03 * direction
        found = [flat(part) for part in (solver.problem.x, solver.problem.y, info.z, info.direction)]
        for mine, expected in zip(found, (x, y, z, direction), strict=True):
            torch.testing.assert_close(mine.detach(), expected, rtol=0, atol=1e-12)
        assert info.lam_used == lam
        lam += growth


def test_the_bias_of_the_resting_point_falls_like_one_over_the_penalty():
    known = Quadratic(dx=2, dy=2, L=2.0)
    distances = []
    for lam in (8.0, 16.0, 32.0):
        solver = F2SA(known.problem(), lr=0.2, lower_lr=0.4, penalty=lam, penalty_growth=0.0, smoothness=2.0)
        for _ in range(300):
            info = solver.step(0, 0)
        for part, expected in zip((solver.problem.x, solver.problem.y, info.z), resting_point(known, lam), strict=True):
            torch.testing.assert_close(flat(part).detach(), expected, rtol=0, atol=1e-6)
        distances.append(float((flat(solver.problem.x).detach() - known.optimum).norm()))
    assert distances[1] / distances[0] == pytest.approx(0.5, abs=0.1)
    assert distances[2] / distances[1] == pytest.approx(0.5, abs=0.1)


def test_a_term_of_x_alone_in_the_lower_loss_changes_rounding_only():
    known, ends = StochasticQuadratic(), []
    for weight in (0.0, 1e3):
        problem = known.problem()
        lower = problem.lower
        problem.lower = lambda b, p=problem, g=lower, w=weight: g(b) + w * (2 * flat(p.x)).sin().sum()
        solver = F2SA(problem, lr=0.05, lower_lr=0.1)
        for t in range(4):
            solver.step([t % 4], [(t + 1) % 4])
        ends.append(flat([*problem.x, *problem.y]).detach())
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-10)


# The penalty and its cap ----------------------------------------------------------------------------------------------


def end_of(steps=150, lower_lr=0.1, penalised_lr=None, smoothness=2.0):
    """The x of the golden problem (∇²yy g = 2, solution 3/9.5) while λ grows by 0.5 in every step."""
    x, y = (torch.tensor([start], dtype=torch.float64, requires_grad=True) for start in (0.4, 0.1))
    problem = adambo.Problem(
        lambda b: (y - 1).square().sum() / 2 + x.square().sum() / 4, lambda b: (y - 3 * x).square().sum(), x, y
    )
    solver = F2SA(problem, 0.05, lower_lr, penalised_lr, 2, penalty=1.0, penalty_growth=0.5, smoothness=smoothness)
    for _ in range(steps):
        solver.step(0, 0)
    return float(x.detach())


@pytest.mark.parametrize("lower_lr", [0.1, 0.5])
@pytest.mark.parametrize("smoothness", ["auto", 2.0])
def test_where_y_and_z_have_one_pace_a_growing_penalty_leads_to_the_solution(lower_lr, smoothness):
    assert end_of(lower_lr=lower_lr, smoothness=smoothness) == pytest.approx(3 / 9.5, abs=1e-3)


@pytest.mark.parametrize("smoothness", ["auto", 2.0])
def test_the_cap_saves_a_constant_penalised_step_from_divergence(smoothness):
    assert end_of(lower_lr=0.5, penalised_lr=0.05, smoothness=smoothness) == pytest.approx(3 / 9.5, abs=1e-3)
    assert abs(end_of(60, lower_lr=0.5, penalised_lr=0.05, smoothness=1e-9)) > 1e10


def test_a_z_that_lags_behind_y_drives_x_away():
    """As the docstring warns: the cap alone is no cure."""
    assert abs(end_of(60, lower_lr=0.1, penalised_lr=0.05)) > 1e10


def test_the_cap_is_one_over_the_measured_curvature_times_the_penalty():
    """From z = y the first step of y is a (∇y f + λ ∇y g), with a = 1/(L λ) instead of the 10 asked for."""
    known = Quadratic(dx=2, dy=2, L=4.0)
    solver = F2SA(known.problem(), lr=0.0, lower_lr=0.1, penalised_lr=10.0, penalty=5.0)
    solver.step(0, 0)
    slope = known.y0 - known.d + 5.0 * known.A @ (known.y0 - known.y_star(known.x0))
    torch.testing.assert_close(flat(solver.problem.y).detach(), known.y0 - slope / (4.0 * 5.0), rtol=0, atol=1e-10)


def test_without_a_step_of_its_own_y_takes_the_lower_one_over_the_penalty_and_follows_its_schedule():
    known = Quadratic()
    solver = F2SA(known.problem(), lr=0.0, lower_lr=0.1, penalty=2.0, penalty_growth=0.0, smoothness=4.0)
    schedule = LambdaLR(solver.lower_optimizer, lambda epoch: 0.5**epoch)
    y = known.y0
    for t in range(3):
        solver.step(0, 0)
        y = y - 0.1 * 0.5**t / 2.0 * (y - known.d + 2.0 * known.A @ (y - known.y_star(known.x0)))
        torch.testing.assert_close(flat(solver.problem.y).detach(), y, rtol=0, atol=1e-12)
        schedule.step()


def test_a_failed_step_does_not_let_the_penalty_grow():
    known = Quadratic()
    problem = known.problem()
    solver = F2SA(problem, lr=0.05, lower_lr=0.1, penalty=1.0, penalty_growth=0.25)
    solver.step(0, 0)
    upper = problem.upper
    problem.upper = lambda b: upper(b) * float("nan")
    with pytest.raises(NonFiniteError):
        solver.step(0, 0)
    assert solver.lam == 1.25
    problem.upper = upper
    assert solver.step(0, 0).lam_used == 1.25


def test_a_failed_step_leaves_no_trace_in_the_measured_curvature():
    known = Quadratic()
    problem = known.problem()
    solver, untouched = F2SA(problem, penalised_lr=1.0), F2SA(known.problem(), penalised_lr=1.0)
    upper = problem.upper
    problem.upper = lambda b: upper(b) + float("nan")
    with pytest.raises(NonFiniteError):
        solver.step(0, 0)
    problem.upper = upper
    for one in (solver, untouched):
        one.step(0, 0)
    assert_same(solver.state_dict() | {"ledger": None}, untouched.state_dict() | {"ledger": None})


def test_another_growth_of_the_penalty_is_set_between_steps():
    solver = F2SA(Quadratic().problem(), lr=0.05, lower_lr=0.1, penalty_growth=0.0)
    for t in range(1, 4):
        solver.penalty = t ** (1 / 7)
        assert solver.step(0, 0).lam_used == t ** (1 / 7)


def test_the_penalty_is_part_of_the_state_and_checked():
    one = F2SA(Quadratic().problem(), lr=0.05, lower_lr=0.1, penalty=2.0, penalty_growth=0.5)
    for _ in range(3):
        one.step(0, 0)
    other = F2SA(Quadratic().problem())
    state = one.state_dict()
    other.load_state_dict(state)
    assert other.lam == 3.5
    for bad in (-1.0, float("nan"), "2", None):
        before = other.state_dict()
        with pytest.raises(StateError, match="penalty"):
            other.load_state_dict(state | {"own": state["own"] | {"penalty": bad}})
        assert_same(other.state_dict(), before)


@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": 0.0},
        {"penalty": "1"},
        {"penalty_growth": -0.1},
        {"smoothness": 0},
        {"smoothness": "automatic"},
        {"penalised_lr": -1.0},
        {"lower_steps": 0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        F2SA(Quadratic().problem(), **settings)


def test_sharded_parameters_are_refused():
    problem = Quadratic().problem()
    problem.x_is_sharded = True
    with pytest.raises(SettingError, match="FSDP2"):
        F2SA(problem)


# Samples, encoders, tasks ---------------------------------------------------------------------------------------------


def test_it_needs_no_hessian_batches():
    assert F2SA(Quadratic().problem(), lower_steps=4).needs == adambo.Needs(upper=4, lower=4, cross=1)


@pytest.mark.parametrize("smoothness", ["auto", 5.0])
def test_the_encoder_runs_once_per_batch_and_with_a_graph_only_where_x_is_reached(smoothness):
    torch.manual_seed(0)
    encoder, head, calls = nn.Linear(3, 4).double(), nn.Linear(4, 1).double(), []

    def encode(batch):
        calls.append((id(batch), torch.is_grad_enabled()))
        return encoder(batch)

    def upper(features, batch):
        return (head(features) - 1).square().mean()

    def lower(features, batch):
        return head(features).square().mean() + 0.1 * sum(p.square().sum() for p in head.parameters())

    problem = adambo.EncoderHeadProblem(encode, upper, lower, encoder, head)
    solver = F2SA(problem, lower_steps=3, smoothness=smoothness)
    batches = [torch.rand(5, 3, dtype=torch.float64) for _ in range(7)]
    solver.step(Draw(batches[:3], batches[3:6], batches[6:]))
    reached = {id(batches[0]), id(batches[6])}
    assert sorted(calls) == sorted((id(b), id(b) in reached) for b in batches)


def test_the_lower_loss_sees_the_same_dropout_at_y_and_at_z():
    """With z = y the penalty cancels bit for bit, whatever its weight."""

    def direction(penalty):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
        head = nn.Linear(4, 1).double()

        def loss(batch):
            return (head(encoder(batch)) - 1).square().mean() + 0.1 * head.weight.square().sum()

        problem = adambo.Problem(loss, loss, encoder, head)
        solver = F2SA(problem, lower_lr=0.0, penalised_lr=0.0, penalty=penalty, smoothness=1.0)
        batches = [torch.rand(5, 3, dtype=torch.float64) for _ in range(2)]
        rng = torch.get_rng_state()
        info = solver.step(*batches)
        assert torch.equal(rng, torch.get_rng_state())
        return info.direction

    assert_same(direction(1e9), direction(1.0))


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_every_task_has_its_own_z_which_starts_at_its_y_and_waits_for_the_next_visit(form):
    known = TaskQuadratics()
    solver = F2SA(getattr(known, form)(), lr=0.0, lower_lr=0.1, smoothness=4.0)
    x = known.x0
    z = torch.cat([table.detach() for table in solver.problem.y], dim=1)
    for tasks in ([0, 1], [2, 0], [4], [1, 2, 0]):
        info = solver.step(Draw.of(tasks, tasks, solver.needs))
        for k in tasks:
            z[k] = z[k] - 0.1 * known.A[k] @ (z[k] - known.B[k] @ x - known.c[k])
        torch.testing.assert_close(torch.cat(info.z, dim=1), z[tasks], rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_a_task_feels_the_same_penalty_whatever_the_number_of_tasks_in_the_draw(form):
    """Each row moves as its own problem would, and x by the mean of the directions."""
    known, rows, directions = TaskQuadratics(), [], []
    for tasks in ([0], [3], [0, 3]):
        solver = F2SA(getattr(known, form)(), lr=0.1, lower_lr=0.1, penalty=2.0, lower_steps=2, smoothness=4.0)
        info = solver.step(Draw.of(tasks, tasks, solver.needs))
        directions.append(flat(info.direction))
        rows.append(torch.cat([table.detach() for table in solver.problem.y], dim=1))
    torch.testing.assert_close(rows[2][0], rows[0][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(rows[2][3], rows[1][3], rtol=0, atol=1e-12)
    torch.testing.assert_close(directions[2], (directions[0] + directions[1]) / 2, rtol=0, atol=1e-12)
