"""Every algorithm on CUDA: the same numbers as on a CPU, no waiting, and a bad loss that writes nothing."""

import copy

import pytest
import torch
from states import assert_same
from test_gpu import Recurrent, batches, head_problem, task_batch, task_problem, waiting_is_an_error

import adambo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]
META = {"MAML", "ANIL"}
CASES = {name: {} for name in adambo.algorithms.ALL} | {
    "SLIP, per tensor": {"norm": "per_tensor"},
    "SLIP, Gauss-Seidel": {"order": "gauss_seidel"},
    "BOREP, ball": {"radius": 1e-3},
    "AccBO, option 2": {"option": 2},
    "AccBO, updated": {"hypergradient_at": "updated"},
    "VRAdamBO, option 2": {"option": 2},
    "MASOBA, not lagged": {"lagged": False},
    "SABA, host memory": {"store": "cpu"},
    "SABA, plain x": {"saga_x": False},
    "MAML, first order": {"first_order": True},
}


def make(case, problem):
    name = case.partition(",")[0]
    settings = {"lr": 0.01, "lower_lr": 0.1}
    usual = adambo.algorithms.ALL[name](problem, **settings).inverse
    if usual is not None and problem.tasks is not None:  # on a device nobody asks whether a task is new
        settings["inverse"] = adambo.Neumann(terms=usual.terms, step=0.2, samples=usual.samples)
    if name == "F2SA" and problem.tasks is not None:
        settings["smoothness"] = 5.0
    return adambo.algorithms.ALL[name](problem, **settings, **CASES[case])


def values(solver):
    return [p.detach().cpu() for p in (*solver.problem.x, *solver.problem.y)]


@pytest.mark.parametrize("case", CASES)
def test_the_steps_are_those_of_a_cpu_and_wait_for_nothing(case):
    ends = []
    for device in ("cpu", "cuda"):
        data = batches(device)
        solver = make(case, head_problem(device, concatenate=True))
        if not case.startswith(tuple(META)):
            solver.warm_start(data[:2])
        for t in range(9):
            solver.step(data[t % 6], data[(t + 1) % 6])
        with waiting_is_an_error():
            for t in range(6):  # steps 9 to 14: none of them refreshes the curvature
                solver.step(data[t % 6], data[(t + 1) % 6])
        solver.check()
        ends.append(values(solver))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)  # cross-entropy is taken in float32


@pytest.mark.parametrize("case", [case for case in CASES if case.partition(",")[0] not in META])
def test_stacked_tasks_make_the_steps_of_a_cpu_and_wait_for_nothing(case):
    ends = []
    for device in ("cpu", "cuda"):
        solver = make(case, task_problem(device))
        pairs = [(task_batch(device, [t % 7, 8, 9], t), task_batch(device, [9, t % 7, 8], t + 50)) for t in range(15)]
        for u, v in pairs[:9]:
            solver.step(u, v)
        with waiting_is_an_error():
            for u, v in pairs[9:]:
                solver.step(u, v)
        solver.check()
        ends.append(values(solver))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize("where", ["upper", "lower"])
@pytest.mark.parametrize("good_steps", [0, 5])
@pytest.mark.parametrize("case", CASES)
def test_a_loss_that_is_not_finite_writes_nothing_and_is_reported(case, good_steps, where):
    solver, untouched = (make(case, head_problem()) for _ in range(2))
    data = batches()
    for t in range(good_steps):
        for one in (solver, untouched):
            one.step(data[t], data[t])
    before = solver.state_dict()
    bad = copy.deepcopy(data[0])
    bad[0][0, 0] = float("nan")

    def bad_step():  # the first one measures curvature, and finds it out at once
        solver.step(*((bad, data[1]) if where == "upper" else (data[1], bad)))
        solver.check()

    with pytest.raises(adambo.NonFiniteError):
        bad_step()
    after = solver.state_dict()
    for name in ("steps", "x", "y"):
        assert_same(after[name], before[name])
    for t in range(4):
        for one in (solver, untouched):
            one.step(data[t], data[t + 1])
            one.check()
    assert_same(values(solver), values(untouched))


@pytest.mark.parametrize("case", CASES)
def test_resume_is_bit_exact(case):
    data, ends = batches(), []
    for stop in (None, 5):
        solver = make(case, head_problem())
        for t in range(10):
            if t == stop:
                state = solver.state_dict()
                solver = make(case, head_problem())
                solver.load_state_dict(state)
            solver.step(data[t % 6], data[(t + 1) % 6])
        ends.append(values(solver))
    assert_same(*ends)


def test_maml_differentiates_a_cudnn_rnn_twice_and_leaves_cudnn_on():
    problem = head_problem(encoder=Recurrent())
    solver = adambo.MAML(problem, inner_steps=2)
    data = batches(shape=(6, 5))
    for t in range(3):
        info = solver.step(data[t], data[t + 1])
    solver.check()
    assert torch.backends.cudnn.enabled
    assert all(torch.isfinite(h).all() for h in info.meta_x)


@pytest.mark.parametrize("store", ["device", "cpu", "disk"])
def test_the_tables_of_saba_may_live_anywhere(store):
    ends = []
    for where in ("device", store):
        solver = adambo.SABA(head_problem(), lr=0.01, lower_lr=0.1, lower_slots=4, upper_slots=3, store=where)
        data = batches(n=7)
        solver.fill_memory(lower=data[:4], upper=data[4:])
        for t in range(12):
            i, j = t * 3 % 4, t * 2 % 3
            solver.step(adambo.Draw((data[4 + j],), (data[i],), slot=(i, j)))
        solver.check()
        ends.append(values(solver))
    assert_same(*ends)


@pytest.mark.parametrize("name", ["SUSTAIN", "AccBO", "VRAdamBO", "FSLA"])
def test_both_points_see_the_same_dropout(name):
    """With x and y at rest the two evaluations of a draw agree, and cancel up to what momentum keeps."""
    encoder = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))
    solver = adambo.algorithms.ALL[name](head_problem(encoder=encoder), lr=0.0, lower_lr=0.0)
    data = batches()
    found, moments = [], []
    for _ in range(2):
        state = torch.cuda.get_rng_state()
        info = solver.step(adambo.Draw.of(data[0], data[1], solver.needs, 0 if solver.needs.levels else None))
        assert torch.equal(state, torch.cuda.get_rng_state())
        found.append(info.hypergradient[0].clone())
        moments.append(solver.upper_optimizer.state[solver.problem.x[0]]["m"].clone())
    solver.check()
    assert not torch.equal(*found)  # masks change from step to step
    beta = solver.upper_optimizer.param_groups[0]["beta"]
    if name != "FSLA":  # whose z has moved
        torch.testing.assert_close(moments[1], (1 - beta) * moments[0] + beta * found[1], rtol=0, atol=1e-6)
