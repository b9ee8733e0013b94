"""What holds on CUDA: the same numbers, no waiting for the device, and a bad loss that writes nothing."""

import copy
import warnings
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import adambo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]


@contextmanager
def waiting_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def head_problem(device="cuda", encoder=None, dtype=torch.float64, **options):
    torch.manual_seed(0)
    encoder = (encoder or nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))).to(device, dtype)
    head = nn.Linear(4, 3).to(device, dtype)

    def loss(features, batch):
        return F.cross_entropy(head(features).float(), batch[1])

    def regularised(features, batch):
        return loss(features, batch) + 0.1 * (head.weight.square().sum() + head.bias.square().sum())

    return adambo.EncoderHeadProblem(lambda b: encoder(b[0]), loss, regularised, encoder, head, **options)


def batches(device="cuda", n=6, dtype=torch.float64, shape=(5,)):
    generator = torch.Generator().manual_seed(1)
    return [
        [
            torch.randn(7, *shape, generator=generator).to(device, dtype),
            torch.randint(3, (7,), generator=generator).to(device),
        ]
        for _ in range(n)
    ]


@pytest.mark.parametrize("hypergradient_at", ["current", "updated"])
@pytest.mark.parametrize("samples", ["chained", "independent", "random", "shared"])
def test_the_steps_are_those_of_a_cpu(samples, hypergradient_at):
    ends = []
    for device in ("cpu", "cuda"):
        problem = head_problem(device)
        solver = adambo.AdamBO(
            problem,
            lr=0.01,
            lower_lr=0.1,
            inverse=adambo.Neumann(terms=3, samples=samples),
            lower_steps=2,
            hypergradient_at=hypergradient_at,
        )
        data = batches(device)
        solver.warm_start(data[:2])
        for t in range(10):
            u, *rest = (data[(t + k) % 6] for k in range(6))
            solver.step(adambo.Draw((u,), rest[:2], rest[2:3], rest[2:5]))
        solver.check()
        ends.append([p.detach().cpu() for p in (*problem.x, *problem.y)])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)  # cross-entropy is taken in float32


@pytest.mark.parametrize(
    "inverse",
    [adambo.Neumann(terms=3), adambo.ConjugateGradient(3), adambo.LinearSystem(lr=0.1)],
    ids=lambda i: type(i).__name__,
)
@pytest.mark.parametrize("lower_steps", [1, 5])
def test_an_ordinary_step_never_waits_for_the_device(inverse, lower_steps):
    solver = adambo.AdamBO(head_problem(concatenate=True), inverse=inverse, lower_steps=lower_steps)
    data = batches()
    for t in range(9):
        solver.step(data[t % 6], data[(t + 1) % 6])
    with waiting_is_an_error():
        for t in range(6):  # steps 9 to 14: none of them refreshes the curvature
            solver.step(data[t % 6], data[(t + 1) % 6])
    solver.check()
    assert solver.steps == 15


def task_problem(device, tasks=10):
    torch.manual_seed(0)
    encoder = nn.Linear(5, 4).to(device, torch.float64)
    table = nn.Parameter(torch.randn(tasks, 3, 4, dtype=torch.float64).to(device))

    def loss(features, batch):
        logits = torch.einsum("bnd,bcd->bnc", features, table[batch[2]])
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())

    def regularised(features, batch):
        return len(batch[2]) * loss(features, batch) + 0.1 * table[batch[2]].square().sum()

    return adambo.EncoderHeadProblem(lambda b: encoder(b[0]), loss, regularised, encoder, [table], tasks=lambda b: b[2])


def task_batch(device, ids, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(ids), 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (len(ids), 6), generator=generator)
    return [t.to(device) for t in (inputs, labels, torch.tensor(ids))]


def test_a_task_that_is_not_in_the_draw_is_found_out_on_the_device():
    solver = adambo.AdamBO(task_problem("cuda"), inverse=adambo.Neumann(terms=3, step=0.2))
    before = [p.detach().clone() for p in (*solver.problem.x, *solver.problem.y)]
    solver.step(task_batch("cuda", [1, 2, 3]), task_batch("cuda", [1, 2, 4]))
    with pytest.raises(adambo.NonFiniteError):
        solver.check()
    assert all(torch.equal(a, b) for a, b in zip(before, (*solver.problem.x, *solver.problem.y), strict=True))


@pytest.mark.parametrize("where", ["upper", "lower"])
@pytest.mark.parametrize("settings", [{}, {"lower_steps": 3}, {"hypergradient_at": "updated"}], ids=str)
def test_a_loss_that_is_not_finite_writes_nothing_and_is_reported(where, settings):
    problem = head_problem()
    solver = adambo.AdamBO(problem, lr=0.01, lower_lr=0.1, inverse=adambo.Neumann(terms=3, step=0.1), **settings)
    data = batches()
    for t in range(5):
        solver.step(data[t], data[t])
    solver.check()
    before = solver.state_dict()
    bad = copy.deepcopy(data[0])
    bad[0][0, 0] = float("nan")
    solver.step(*((bad, data[1]) if where == "upper" else (data[1], bad)))
    with pytest.raises(adambo.NonFiniteError, match="NaN or infinite"):
        solver.check()
    after = solver.state_dict()
    assert after["steps"] == before["steps"]
    for a, b in zip(after["x"] + after["y"], before["x"] + before["y"], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(
        after["upper_optimizer"]["state"].values(), before["upper_optimizer"]["state"].values(), strict=True
    ):
        assert all(torch.equal(a[k], b[k]) for k in b)
    solver.step(data[0], data[1])
    solver.check()
    assert solver.steps == before["steps"] + 1


def test_the_error_comes_by_itself_within_the_next_calls():
    solver = adambo.AdamBO(head_problem(), inverse=adambo.Neumann(terms=3, step=0.1))
    data = batches()
    for _ in range(3):
        solver.step(data[0], data[0])
    data[1][0][:] = float("inf")
    solver.step(data[1], data[1])  # step 3: no refresh of the curvature, which would see it on the host
    torch.cuda.synchronize()
    with pytest.raises(adambo.NonFiniteError):
        solver.step(data[0], data[0])
    assert solver.steps == 3


def test_an_optimiser_that_cannot_be_masked_is_checked_on_the_host():
    problem = head_problem()
    solver = adambo.AdamBO(problem, upper_optimizer=torch.optim.RMSprop(problem.x, lr=0.01))
    data = batches()
    solver.step(data[0], data[0])
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    data[1][0][:] = float("nan")
    with pytest.raises(adambo.NonFiniteError):
        solver.step(data[1], data[0])
    assert all(torch.equal(a, b) for a, b in zip(before, (*problem.x, *problem.y), strict=True))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 4, batch_first=True)

    def forward(self, sequences):
        return self.rnn(sequences)[0][:, -1]


def test_cudnn_rnns_stay_on_in_the_encoder():
    solver = adambo.AdamBO(head_problem(encoder=Recurrent()))
    data = batches(shape=(6, 5))
    for t in range(3):
        info = solver.step(data[t], data[t + 1])
    solver.check()
    assert all(torch.isfinite(h).all() for h in info.hypergradient)


def test_a_recurrent_lower_variable_is_named_and_the_switch_works():
    torch.manual_seed(0)
    x = nn.Parameter(torch.ones((), device="cuda"))
    y = Recurrent().cuda()
    batch = torch.randn(3, 6, 5, device="cuda")
    penalty = lambda: sum(p.square().sum() for p in y.parameters())  # noqa: E731
    upper = lambda b: y(b).square().mean()  # noqa: E731
    lower = lambda b: x * y(b).mean() + penalty()  # noqa: E731
    with pytest.raises(adambo.SecondDerivativeError, match=r"rnn \(LSTM\)"):
        adambo.AdamBO(adambo.Problem(upper, lower, x, y)).step(batch, batch)

    def switched(b):
        with adambo.twice_differentiable():
            return lower(b)

    adambo.AdamBO(adambo.Problem(upper, switched, x, y)).step(batch, batch)
    assert torch.isfinite(x.grad)


def test_autocast_keeps_z_and_the_hypergradient_in_float32():
    problem = head_problem(dtype=torch.float32)
    encode = problem.encoder

    def autocast(batch):
        with torch.autocast("cuda", torch.bfloat16):
            return encode(batch)

    problem.encoder = autocast
    with torch.autocast("cuda", torch.bfloat16):
        info = adambo.AdamBO(problem).step(*batches(dtype=torch.float32)[:2])
    assert {t.dtype for t in (*info.z, *info.hypergradient)} == {torch.float32}


def test_resume_is_bit_exact():
    data, ends = batches(), []
    for stop in (None, 4):
        solver = adambo.AdamBO(head_problem(), lr=0.01, lower_lr=0.1)
        for t in range(10):
            if t == stop:
                state = solver.state_dict()
                solver = adambo.AdamBO(head_problem(), lr=0.01, lower_lr=0.1)
                solver.load_state_dict(state)
            solver.step(data[t % 6], data[(t + 1) % 6])
        ends.append([p.detach() for p in (*solver.problem.x, *solver.problem.y)])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("tasks", [False, True], ids=["one head", "stacked heads"])
def test_a_bad_batch_undoes_a_warm_start(tasks):
    if tasks:
        problem, bad = task_problem("cuda"), task_batch("cuda", [1, 2, 3])
        good = task_batch("cuda", [3, 4, 5])
    else:
        problem, (good, bad) = head_problem(), batches(n=2)
    bad[0][:] = float("nan")
    solver = adambo.AdamBO(problem, lower_lr=0.1)
    before = [p.detach().clone() for p in problem.y]
    solver.warm_start([good, bad, good])
    with pytest.raises(adambo.NonFiniteError):
        solver.check()
    assert solver.steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, problem.y, strict=True))
    solver.warm_start([good])
    solver.step(good, good)
    solver.check()
    assert solver.steps == 1


def test_a_series_that_explodes_on_the_device_is_reported():
    curvature = torch.ones((), device="cuda", dtype=torch.float64)
    x, y = (torch.zeros(2, device="cuda", dtype=torch.float64, requires_grad=True) for _ in range(2))
    problem = adambo.Problem(lambda b: (y - 1).square().sum(), lambda b: 0.5 * curvature * (y - x).square().sum(), x, y)
    solver = adambo.AdamBO(problem, lower_lr=0.0, inverse=adambo.Neumann(terms=20))
    for _ in range(5):
        solver.step(0, 0)
    curvature.fill_(30.0)
    solver.step(0, 0)
    with pytest.raises(adambo.NonFiniteError):
        solver.check()
    assert solver.steps == 5
