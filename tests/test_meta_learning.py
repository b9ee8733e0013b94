"""MAML and ANIL: the contract, closed-form fixed points, and autograd through the inner loop written out as truth."""

from __future__ import annotations

import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev
from torch.optim.lr_scheduler import LambdaLR

import adambo
from adambo import ANIL, MAML, Draw
from adambo.testing import AlgorithmContract, Quadratic, StochasticQuadratic, TaskQuadratics, flat
from adambo.testing.comparison import copies, same

BOTH = pytest.mark.parametrize("method", [MAML, ANIL])
RATES = {"lr": 0.1, "lower_lr": 0.05}


# The contract ---------------------------------------------------------------------------------------------------------


class MetaContract(AlgorithmContract):
    """lr moves x and y together, and y is an initial value: it does not end in y*(x)."""

    stacks_tasks = False
    lower_level_moves_alone = False

    def test_reaches_the_optimum_from_afar(self):
        """One task: where the adapted parameters minimise f, which is at x = e and y = d. The start follows from it."""
        known = Quadratic(dx=2, dy=2, L=2.0)
        goal = self.resting_start(known, rate=0.05)
        known.x0, known.y0 = goal[:2] + 5.0, goal[2:] - 5.0
        solver = self._solver(known.problem(), lr=1.0, lower_lr=0.05)
        for _ in range(300):
            solver.step(0, 0)
        x, y = (flat(part) for part in copies(solver))
        torch.testing.assert_close(torch.cat([x, y]), goal, rtol=0, atol=1e-6)


class MAMLContract(MetaContract):
    implicit = False  # the inner steps follow ∇x g as well

    def resting_start(self, known, rate):
        """θ_{s+1} = T θ_s + γ Mᵀ A c with T = I − γ Mᵀ A M, where g = ½ (Mθ − c)ᵀ A (Mθ − c), M = (−B, I)."""
        M = torch.cat([-known.B, torch.eye(2, dtype=torch.double)], dim=1)
        T = torch.eye(4, dtype=torch.double) - rate * M.T @ known.A @ M
        theta = torch.cat([known.e, known.d])
        for _ in range(2):
            theta = torch.linalg.solve(T, theta - rate * M.T @ known.A @ known.c)
        return theta


class ANILContract(MetaContract):
    def resting_start(self, known, rate):
        """y_{s+1} − y* = T (y_s − y*) with T = I − γ A, at x = e."""
        T = torch.eye(2, dtype=torch.double) - rate * known.A
        y_star = known.B @ known.e + known.c
        return torch.cat([known.e, y_star + torch.linalg.solve(T @ T, known.d - y_star)])


class TestMAML(MAMLContract):
    ledger_per_step: ClassVar = {
        "grad_x_f": 1,
        "grad_y_f": 1,
        "grad_x_g": 2,
        "grad_y_g": 2,
        "hessian_vector": 2,
        "samples": 3,
    }

    def make(self, problem, **settings):
        return MAML(problem, inner_steps=2, **settings)


class TestMAMLFirstOrder(MAMLContract):
    ledger_per_step: ClassVar = {"grad_x_f": 1, "grad_y_f": 1, "grad_x_g": 2, "grad_y_g": 2, "samples": 3}

    def make(self, problem, **settings):
        return MAML(problem, inner_steps=2, first_order=True, **settings)


class TestANIL(ANILContract):
    ledger_per_step: ClassVar = {
        "grad_x_f": 1,
        "grad_y_f": 1,
        "grad_y_g": 2,
        "hessian_vector": 2,
        "cross_vector": 2,
        "samples": 3,
    }

    def make(self, problem, **settings):
        return ANIL(problem, inner_steps=2, **settings)


class TestANILFirstOrder(ANILContract):
    ledger_per_step: ClassVar = {"grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 2, "samples": 3}

    def make(self, problem, **settings):
        return ANIL(problem, inner_steps=2, first_order=True, **settings)


@pytest.mark.parametrize("first_order", [False, True])
@BOTH
def test_several_tasks_rest_where_their_affine_meta_gradients_cancel(method, first_order):
    """With quadratic losses everything is affine in θ: the matrices come from torch.func, the point from one solve."""
    known, rate, S = StochasticQuadratic(dx=2, dy=2, L=2.0, samples=3), 0.05, 2
    theta0 = torch.zeros(4, dtype=torch.double)
    identity = torch.eye(4, dtype=torch.double)
    matrix, vector = torch.zeros_like(identity), torch.zeros_like(theta0)
    for task in range(3):

        def f(theta, task=task):
            return known.upper(theta[:2], theta[2:], task)

        def g(theta, task=task):
            return known.lower(theta[:2], theta[2:], task)

        moves = torch.diag(torch.tensor([float(method is MAML)] * 2 + [1.0] * 2, dtype=torch.double))
        T, drift = identity - rate * moves @ jacrev(grad(g))(theta0), -rate * moves @ grad(g)(theta0)
        D, slope = jacrev(grad(f))(theta0), grad(f)(theta0)
        chain = torch.linalg.matrix_power(T, S)  # θ_S = chain θ + (T + I) drift
        back = identity if first_order else chain.T
        matrix += back @ D @ chain
        vector += back @ (D @ (T @ drift + drift) + slope)
    goal = -torch.linalg.solve(matrix, vector)

    solver = method(known.problem(), lr=1.0, lower_lr=rate, inner_steps=S, first_order=first_order)
    for _ in range(200):
        solver.step([Draw((task,), (task,) * S) for task in range(3)])
    torch.testing.assert_close(torch.cat([flat(part) for part in copies(solver)]), goal, rtol=0, atol=1e-6)


# A nonlinear problem, and the inner loop written out ------------------------------------------------------------------


def upper(x, y, batch):
    return (features(x, batch) @ y[0] - batch[1]).square().mean() + 0.05 * x[0].pow(4).sum()


def lower(x, y, batch):
    return ((features(x, batch) @ y[0] + y[1]).tanh() - batch[1]).square().mean() + 0.1 * y[0].pow(4).sum()


def features(x, batch):
    return (batch[0] @ x[0] + x[1]).tanh()


def starting_values():
    generator = torch.Generator().manual_seed(3)
    shapes = [(3, 4), (4,), (4,), ()]
    values = [torch.randn(shape, generator=generator, dtype=torch.double) for shape in shapes]
    return values[:2], values[2:]


def problem_of(form="Problem", **options):
    x, y = ([t.clone().requires_grad_() for t in part] for part in starting_values())
    if form == "Problem":
        return adambo.Problem(lambda b: upper(x, y, b), lambda b: lower(x, y, b), x, y)
    return adambo.EncoderHeadProblem(
        lambda b: features(x, b),
        lambda h, b: (h @ y[0] - b[1]).square().mean() + 0.05 * x[0].pow(4).sum(),
        lambda h, b: ((h @ y[0] + y[1]).tanh() - b[1]).square().mean() + 0.1 * y[0].pow(4).sum(),
        x,
        y,
        **options,
    )


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.double) for shape in ((5, 3), (5,)))


def draw_of(S, seed=0):
    return Draw((batch_of(seed),), tuple(batch_of(seed + 1 + s) for s in range(S)))


def unrolled(f, g, x, y, draw, rate, *, moves_x, first_order):
    """The meta-gradient by autograd through the inner loop: no products, no reverse sweep."""
    x, y = ([t.detach().clone().requires_grad_() for t in part] for part in (x, y))
    x_s, y_s = x, y
    for batch in draw.lower:
        moved = [*x_s, *y_s] if moves_x else y_s
        gradients = torch.autograd.grad(g(x_s, y_s, batch), moved, create_graph=not first_order)
        moved = [t - rate * d for t, d in zip(moved, gradients, strict=True)]
        x_s, y_s = (moved[: len(x)], moved[len(x) :]) if moves_x else (x_s, moved)
    if first_order:
        x, y = x_s, y_s
    found = torch.autograd.grad(f(x_s, y_s, draw.upper[0]), [*x, *y], materialize_grads=True)
    return flat(found), flat([*x_s, *y_s]).detach()


@pytest.mark.parametrize("form", ["Problem", "EncoderHeadProblem", "concatenated"])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("S", [1, 3])
@BOTH
def test_the_meta_gradient_is_autograd_through_the_unrolled_inner_loop(method, S, first_order, form):
    problem, draw = problem_of(form, **({"concatenate": True} if form == "concatenated" else {})), draw_of(S)
    start = [p.detach().clone() for p in (*problem.x, *problem.y)]
    expected, end = unrolled(
        upper, lower, *starting_values(), draw, 0.3, moves_x=method is MAML, first_order=first_order
    )
    info = method(problem, lr=0.1, lower_lr=0.3, inner_steps=S, first_order=first_order).step(draw)
    torch.testing.assert_close(flat([*info.meta_x, *info.meta_y]), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(flat([*problem.x, *problem.y]), flat(start) - 0.1 * expected, rtol=0, atol=1e-12)
    adapted = [*info.x_adapted, *info.y_adapted] if method is MAML else info.y_adapted
    torch.testing.assert_close(flat(adapted), end if method is MAML else end[-5:], rtol=0, atol=1e-12)


@BOTH
def test_one_batch_object_may_serve_every_inner_step_and_the_upper_loss(method):
    for form in ("Problem", "EncoderHeadProblem"):
        batch = batch_of(0)
        draw = Draw((batch,), (batch,) * 3)
        expected, _ = unrolled(upper, lower, *starting_values(), draw, 0.3, moves_x=method is MAML, first_order=False)
        info = method(problem_of(form), lr=0.1, lower_lr=0.3, inner_steps=3).step(batch, batch)
        torch.testing.assert_close(flat([*info.meta_x, *info.meta_y]), expected, rtol=0, atol=1e-12)


# Several tasks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_order", [False, True])
@BOTH
def test_several_tasks_start_from_one_point_and_make_one_step_with_the_mean(method, first_order):
    settings = {"inner_steps": 2, "first_order": first_order, **RATES}
    tasks = [draw_of(2, seed) for seed in (0, 10, 20)]
    infos = [method(problem_of(), **settings).step(task) for task in tasks]
    mean = torch.stack([flat([*i.meta_x, *i.meta_y]) for i in infos]).mean(dim=0)
    solver = method(problem_of(), **settings)
    info = solver.step(tasks)
    torch.testing.assert_close(flat([*info.meta_x, *info.meta_y]), mean, rtol=0, atol=1e-12)
    start = flat([t for part in starting_values() for t in part])
    torch.testing.assert_close(
        flat([*solver.problem.x, *solver.problem.y]), start - RATES["lr"] * mean, rtol=0, atol=1e-12
    )
    for name in ("upper_loss", "lower_loss"):
        torch.testing.assert_close(getattr(info, name), torch.stack([getattr(i, name) for i in infos]).mean())
    assert same(info.y_adapted, infos[-1].y_adapted)
    assert (solver.steps, solver.ledger.grad_y_f, solver.ledger.grad_y_g, solver.ledger.samples) == (1, 3, 6, 9)


@BOTH
def test_losses_are_told_at_the_start_below_and_at_the_end_above(method):
    x, y = starting_values()
    draw = draw_of(1)
    info = method(problem_of(), **RATES).step(draw)
    torch.testing.assert_close(info.lower_loss, lower(x, y, draw.lower[0]))
    x_end = info.x_adapted if method is MAML else x
    torch.testing.assert_close(info.upper_loss, upper(x_end, info.y_adapted, draw.upper[0]))
    assert hasattr(info, "x_adapted") == (method is MAML)


@BOTH
def test_a_list_is_checked_before_anything_changes(method):
    solver = method(problem_of(), inner_steps=2, **RATES)
    before = solver.state_dict()
    good, short = draw_of(2), draw_of(1)
    with pytest.raises(adambo.SampleError, match=r"needs 2 lower batches.*holds 1"):
        solver.step([good, short])
    with pytest.raises(adambo.SampleError, match=r"empty list.*one draw per task"):
        solver.step([])
    with pytest.raises(adambo.SampleError, match=r"list of Draws.*holds Tensor.*Draw\.of\(upper, lower"):
        solver.step(batch_of(0))
    assert same(solver.state_dict(), before)


@BOTH
def test_stacked_tasks_are_refused_with_the_way_out(method):
    with pytest.raises(adambo.SettingError, match=r"one initial head.*list of draws, one per task"):
        method(TaskQuadratics().problem())


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"inner_steps": 0}, "at least 1"), ({"first_order": "yes"}, "False, True"), ({"lr": -1.0}, "lr=-1.0")],
)
@BOTH
def test_wrong_settings_are_named(method, setting, words):
    with pytest.raises(adambo.SettingError, match=words):
        method(problem_of(), **setting)


# The parameters and buffers of live modules ---------------------------------------------------------------------------


class Network(nn.Module):
    """Something in the body that is hard to differentiate twice, and a linear head."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = body().double(), nn.Linear(4, 1).double()

    def loss(self, batch):
        out = self.body(batch[0]) if not isinstance(self.body, nn.MultiheadAttention) else self.attend(batch[0])
        out = out[0] if isinstance(out, tuple) else out
        out = out.mean(dim=1) if out.dim() == 3 else out
        return (self.head(out).squeeze(-1) - batch[1]).square().mean()

    def attend(self, tokens):
        return self.body(tokens, tokens, tokens, need_weights=False)

    def forward(self, batch):
        return self.loss(batch)

    def problem(self, before=lambda batch: None):
        def loss(batch):
            before(batch)
            return self.loss(batch)

        return adambo.Problem(loss, loss, self.body, self.head)


def sequences(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*s, generator=generator, dtype=torch.double) for s in (shape, shape[:1]))


def kernels():
    cuda = torch.backends.cuda
    fused = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    return *fused, torch.backends.cudnn.enabled


LAYERS = {
    "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    "LSTM": lambda: nn.LSTM(4, 4, batch_first=True),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_maml_differentiates_attention_and_recurrent_layers_twice(layer):
    network = Network(LAYERS[layer])
    upper_batch, *lower_batches = (sequences(seed, 3, 5, 4) for seed in range(3))
    draw = Draw((upper_batch,), tuple(lower_batches))
    names = [*network.state_dict()]

    def loss(x, y, batch):
        with adambo.twice_differentiable():
            return functional_call(network, dict(zip(names, [*x, *y], strict=True)), (batch,))

    problem = network.problem()
    expected, _ = unrolled(loss, loss, problem.x, problem.y, draw, 0.3, moves_x=True, first_order=False)
    info = MAML(problem, lower_lr=0.3, inner_steps=2).step(draw)
    torch.testing.assert_close(flat([*info.meta_x, *info.meta_y]), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layer", LAYERS)
def test_maml_differentiates_layers_twice_in_single_precision_too(layer):
    """On a CPU other kernels serve float32."""
    wide, narrow = Network(LAYERS[layer]), Network(LAYERS[layer]).float()
    found = []
    for network, dtype in ((wide, torch.float64), (narrow, torch.float32)):
        batches = [tuple(t.to(dtype) for t in sequences(seed, 3, 5, 4)) for seed in range(2)]
        info = MAML(network.problem(), lower_lr=0.3).step(*batches)
        found.append(flat([*info.meta_x, *info.meta_y]).double())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first_order", [False, True])
@BOTH
def test_fast_kernels_are_switched_off_in_the_lower_level_of_second_order_maml_alone(method, first_order):
    network, seen, usual = Network(LAYERS["attention"]), [], kernels()
    problem = network.problem(lambda batch: seen.append(kernels()))
    solver = method(problem, inner_steps=2, first_order=first_order, **RATES)
    solver.step(sequences(0, 3, 5, 4), sequences(1, 3, 5, 4))
    plain = (False, False, True, False)
    assert usual != plain
    lower = plain if method is MAML and not first_order else usual
    assert seen == [lower] * 2 + [usual] + ([] if first_order else [lower] * 2)
    assert kernels() == usual


def test_a_head_that_anil_cannot_differentiate_twice_is_named():
    network = Network(LAYERS["attention"])
    problem = network.problem()
    swapped = adambo.Problem(problem.upper, problem.lower, x=network.head, y=network.body)
    solver = ANIL(swapped, **RATES)
    before = solver.state_dict()
    with pytest.raises(adambo.SecondDerivativeError, match=r"MultiheadAttention.*twice_differentiable"):
        solver.step(sequences(0, 3, 5, 4), sequences(1, 3, 5, 4))
    assert same(solver.state_dict()["y"], before["y"])


def test_kernels_are_as_they_were_after_a_failing_product():
    usual = kernels()

    def fail_on_the_way_back(batch):
        if kernels() != usual:
            raise KeyError("no more")

    solver = MAML(Network(LAYERS["attention"]).problem(fail_on_the_way_back), **RATES)
    with pytest.raises(KeyError):
        solver.step(sequences(0, 3, 5, 4), sequences(1, 3, 5, 4))
    assert kernels() == usual


def normalising():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


@pytest.mark.parametrize("evaluation", range(5))
@BOTH
def test_a_failure_anywhere_leaves_parameters_and_buffers_bit_identical(method, evaluation):
    """Two inner losses, the upper loss, two losses of the products: an error in each of them, and a NaN."""
    calls = []

    def count(batch):
        calls.append(batch)
        if len(calls) == 4 * 5 + evaluation + 1:
            raise KeyError("no more")

    network = Network(normalising)
    solver = method(network.problem(count), inner_steps=2, **RATES)
    for seed in range(4):
        solver.step(sequences(seed, 6, 4), sequences(seed + 10, 6, 4))
    before, held = solver.state_dict(), {name: t.clone() for name, t in network.state_dict().items()}
    with pytest.raises(KeyError):
        solver.step(sequences(4, 6, 4), sequences(14, 6, 4))
    bad = sequences(5, 6, 4)
    bad[1][0] = float("nan")
    with pytest.raises(adambo.NonFiniteError):
        solver.step([Draw.of(sequences(4, 6, 4), sequences(14, 6, 4), solver.needs), Draw.of(bad, bad, solver.needs)])
    del before["ledger"]
    assert same({name: value for name, value in solver.state_dict().items() if name != "ledger"}, before)
    assert same(dict(network.state_dict()), held)
    assert all(p.grad is None for p in network.head.parameters())


@BOTH
def test_running_statistics_learn_from_the_first_inner_loss(method):
    network, alone = Network(normalising), Network(normalising)
    draw = Draw((sequences(0, 6, 4),), tuple(sequences(seed, 6, 4) for seed in (1, 2)))
    method(network.problem(), inner_steps=2, **RATES).step(draw)
    alone.loss(draw.lower[0])
    assert same([*network.buffers()], [*alone.buffers()])


@BOTH
def test_the_initial_head_keeps_no_gradient(method):
    solver = method(problem_of(), **RATES)
    solver.problem.y[0].grad = torch.ones_like(solver.problem.y[0])
    solver.step(draw_of(1))
    assert all(p.grad is None for p in solver.problem.y)
    assert all(p.grad is not None for p in solver.problem.x)


# Dropout --------------------------------------------------------------------------------------------------------------


def masked_problem(masks):
    """Noise from torch's generator multiplies the head; `masks` collects it by loss and batch."""
    x, y = torch.ones(2, dtype=torch.double, requires_grad=True), torch.ones(2, dtype=torch.double, requires_grad=True)

    def loss(name):
        def value(batch):
            mask = torch.rand(2, dtype=torch.double)
            masks.append((name, batch, mask))
            return (mask * y - x).pow(4).sum() + y.square().sum()

        return value

    return adambo.Problem(loss("upper"), loss("lower"), x, y)


@BOTH
def test_an_inner_step_and_its_product_see_one_mask(method):
    masks = []
    solver = method(masked_problem(masks), inner_steps=2, **RATES)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    solver.step([Draw(("a",), ("b", "c")), Draw(("d",), ("e", "f"))])
    assert torch.equal(torch.get_rng_state(), state)
    by_batch = {}
    for name, batch, mask in masks:
        by_batch.setdefault((name, batch), []).append(mask)
    assert {key: len(seen) for key, seen in by_batch.items()} == {
        ("upper", "a"): 1,
        ("lower", "b"): 2,
        ("lower", "c"): 2,
        ("upper", "d"): 1,
        ("lower", "e"): 2,
        ("lower", "f"): 2,
    }
    assert all(torch.equal(seen[0], mask) for seen in by_batch.values() for mask in seen)
    assert len({tuple(seen[0].tolist()) for seen in by_batch.values()}) == 6  # tasks do not share their masks


@BOTH
def test_masks_change_from_step_to_step_and_follow_the_seed_of_a_draw(method):
    masks = []
    solver = method(masked_problem(masks), **RATES)
    for seed in (None, None, 5, 5):
        solver.step(Draw(("a",), ("b",), seed=seed))
    first = [mask.tolist() for _, batch, mask in masks if batch == "a"]
    assert first[0] != first[1]
    assert first[2] == first[3] != first[1]


# Work that is saved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_order", [False, True])
def test_anil_encodes_every_batch_once(first_order):
    problem, seen = problem_of("EncoderHeadProblem"), []
    encoder = problem.encoder
    problem.encoder = lambda batch: (seen.append(batch), encoder(batch))[1]
    draw = draw_of(3)
    ANIL(problem, inner_steps=3, first_order=first_order, **RATES).step(draw)
    assert sorted(map(id, seen)) == sorted(map(id, (*draw.upper, *draw.lower)))
    seen.clear()
    ANIL(problem, inner_steps=3, first_order=first_order, **RATES).step(draw.upper[0], draw.upper[0])
    assert len(seen) == 1


@pytest.mark.parametrize("first_order", [False, True])
def test_anil_encodes_all_tasks_in_one_call_and_goes_back_through_it_once_where_batches_are_joined(first_order):
    tasks, meta, calls, backwards = [draw_of(2, seed) for seed in (0, 10, 20)], [], [], []
    for joined in (False, True):
        problem = problem_of("EncoderHeadProblem", concatenate=joined)
        calls.clear(), backwards.clear()
        encoder = problem.encoder

        def counted(batch, encoder=encoder):
            calls.append(batch)
            encoded = encoder(batch)
            if encoded.requires_grad:
                encoded.register_hook(lambda gradient: backwards.append(gradient.shape))
            return encoded

        problem.encoder = counted
        info = ANIL(problem, inner_steps=2, first_order=first_order, **RATES).step(tasks)
        meta.append(flat([*info.meta_x, *info.meta_y]))
    torch.testing.assert_close(meta[1], meta[0], rtol=0, atol=1e-12)
    assert len(calls) == (2 if first_order else 1)  # in first order, lower batches are encoded without a graph
    assert len(backwards) == 1


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_anil_takes_the_mean_of_many_tasks_that_are_unrolled_one_by_one(joined, first_order):
    """Many, and several times: features of one task must never be taken for those of another that is gone."""
    for start in range(0, 12000, 4000):
        tasks = [draw_of(2, start + 100 * k) for k in range(25)]
        settings = {"moves_x": False, "first_order": first_order}
        each = [unrolled(upper, lower, *starting_values(), task, 0.3, **settings)[0] for task in tasks]
        problem = problem_of("EncoderHeadProblem", concatenate=joined)
        info = ANIL(problem, lr=0.1, lower_lr=0.3, inner_steps=2, first_order=first_order).step(tasks)
        expected = torch.stack(each).mean(dim=0)
        torch.testing.assert_close(flat([*info.meta_x, *info.meta_y]), expected, rtol=0, atol=1e-12)


def test_anil_lets_go_of_a_task_before_it_encodes_the_next():
    problem, encoded, alive = problem_of("EncoderHeadProblem"), [], []
    encoder = problem.encoder

    def watched(batch):
        alive.append(sum(reference() is not None for reference in encoded))
        result = encoder(batch)
        encoded.append(weakref.ref(result))
        return result

    problem.encoder = watched
    ANIL(problem, inner_steps=2, **RATES).step([draw_of(2, seed) for seed in (0, 10, 20, 30)])
    assert alive == [0, 1, 2] * 4


@pytest.mark.parametrize("first_order", [False, True])
def test_running_statistics_of_an_encoder_learn_from_the_first_inner_loss_of_each_task(first_order):
    network, alone = Network(normalising), Network(normalising)

    def loss(features, batch):
        return (network.head(features).squeeze(-1) - batch[1]).square().mean()

    problem = adambo.EncoderHeadProblem(lambda batch: network.body(batch[0]), loss, loss, network.body, network.head)
    tasks = [Draw((sequences(s, 6, 4),), (sequences(s + 1, 6, 4), sequences(s + 2, 6, 4))) for s in (0, 10)]
    ANIL(problem, inner_steps=2, first_order=first_order, **RATES).step(tasks)
    for task in tasks:
        alone.loss(task.lower[0])
    assert same([*network.buffers()], [*alone.buffers()])


@pytest.mark.parametrize("role", ["upper", "lower"])
@pytest.mark.parametrize("joined", [False, True])
def test_an_empty_batch_among_several_tasks_is_named_and_never_encoded(joined, role):
    x, y = (torch.ones(3, dtype=torch.double, requires_grad=True) for _ in range(2))

    def encode(batch):
        assert len(batch)
        return batch * x

    def loss(features, batch):
        return (features @ y).square().mean()

    problem = adambo.EncoderHeadProblem(encode, loss, loss, x, y, concatenate=joined)
    good, empty = torch.ones(2, 3, dtype=torch.double), torch.ones(0, 3, dtype=torch.double)
    bad = Draw((empty,), (good,)) if role == "upper" else Draw((good,), (empty,))
    with pytest.raises(adambo.SampleError, match=f"{role} loss was given an empty batch"):
        ANIL(problem, **RATES).step([Draw((good,), (good,)), bad])


@BOTH
def test_first_order_evaluates_every_sample_once(method):
    for first_order, visits in ((True, 1), (False, 2)):
        problem, calls = problem_of(), []
        healthy = problem.lower
        problem.lower = lambda batch, healthy=healthy, calls=calls: (calls.append(batch), healthy(batch))[1]
        draw = draw_of(3)
        method(problem, inner_steps=3, first_order=first_order, **RATES).step(draw)
        assert sorted(map(id, calls)) == sorted(map(id, draw.lower * visits))


# Missing dependences, rates, warm start -------------------------------------------------------------------------------


@BOTH
def test_parts_that_a_loss_does_not_use_have_a_zero_gradient(method):
    """g = Σ y₀ is linear and knows neither x nor y₁; f knows neither x₁ nor y₁. So v = ∇f, one step of γ away."""
    x, y = ([torch.ones(2, dtype=torch.double, requires_grad=True) for _ in range(2)] for _ in range(2))
    problem = adambo.Problem(lambda b: (x[0] * y[0]).square().sum() / 2, lambda b: y[0].sum(), x, y)
    info = method(problem, lr=0.1, lower_lr=0.25, inner_steps=2).step(0, 0)
    assert [t.tolist() for t in info.y_adapted] == [[0.5, 0.5], [1.0, 1.0]]
    assert [t.tolist() for t in info.meta_x] == [[0.25, 0.25], [0.0, 0.0]]
    assert [t.tolist() for t in info.meta_y] == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("level", ["upper", "lower"])
@BOTH
def test_a_loss_without_y_is_refused_and_nothing_moves(method, level):
    problem = problem_of()
    setattr(problem, level, lambda batch: problem.x[0].square().sum())
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    with pytest.raises(adambo.ProblemError, match=f"{level} loss does not depend on y"):
        method(problem, **RATES).step(draw_of(1))
    assert same([p.detach() for p in (*problem.x, *problem.y)], before)


@BOTH
def test_a_scheduler_on_the_lower_optimiser_sets_the_inner_rate(method):
    solver = method(problem_of(), lr=0.0, lower_lr=0.4)
    decay = LambdaLR(solver.lower_optimizer, lambda epoch: 0.5**epoch)
    (x, y), draw, moves = starting_values(), draw_of(1), []
    gradient = grad(lower, argnums=1)(x, y, draw.lower[0])
    for rate in (0.4, 0.2, 0.1):
        info = solver.step(draw)
        decay.step()  # torch warns here, which is an error in these tests, unless the optimiser has made a step
        moves = [end - start for end, start in zip(info.y_adapted, y, strict=True)]
        torch.testing.assert_close(flat(moves), -rate * flat(gradient), rtol=0, atol=1e-12)


@BOTH
def test_a_warm_start_moves_the_initial_head_alone(method):
    solver = method(problem_of(), **RATES)
    x, y = starting_values()
    batch = batch_of(0)
    gradient = grad(lower, argnums=1)(x, y, batch)
    solver.warm_start([batch])
    found_x, found_y = copies(solver)
    assert same(found_x, x)
    torch.testing.assert_close(flat(found_y), flat(y) - RATES["lower_lr"] * flat(gradient), rtol=0, atol=1e-12)
    assert solver.steps == 0


@BOTH
def test_both_levels_are_learnt_with_the_published_default(method):
    """Finding 12: in the published ANIL the outer step did nothing. S is 1 there, and here by default."""
    solver = method(problem_of())
    x, y = copies(solver)
    solver.step(draw_of(1))
    assert solver.needs == adambo.Needs(upper=1, lower=1)
    assert not any(
        torch.equal(p, q) for p, q in zip((*solver.problem.x, *solver.problem.y[:1]), (*x, *y[:1]), strict=True)
    )


@BOTH
def test_a_meta_gradient_that_is_not_finite_in_y_alone_stops_the_step(method):
    """√|y − y₀| at y₀ is zero, and has no slope there."""
    problem = problem_of()
    problem.lower = lambda batch: (problem.y[0] * 0).sum()
    problem.upper = lambda batch: (problem.y[0] - starting_values()[1][0]).abs().sqrt().sum()
    solver = method(problem, **RATES)
    before = solver.state_dict()
    with pytest.raises(adambo.NonFiniteError, match="the meta-gradient of y"):
        solver.step(0, 0)
    assert same([solver.state_dict()[part] for part in "xy"], [before[part] for part in "xy"])
    assert all(p.grad is None for p in problem.y)
