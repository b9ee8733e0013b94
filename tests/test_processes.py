"""Two processes with half a batch each make the steps of one process with the whole batch.

Both processes are started once; they run every scenario below and write what they found to a file each. The same
scenarios on the whole batch, in one process without a process group, are what the tests compare them with.
"""

import random
import traceback
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import adambo

STEPS = 4
SETTINGS = {"lr": 0.02, "lower_lr": 0.1}
OWN_SETTINGS = {
    "AdamBO": {"eps": 1e-3},
    "VRAdamBO": {"eps": 1e-3, "option": 2},
    "BOREP": {"radius": 0.05},
    "MAML": {"inner_steps": 2},
    "ANIL": {"inner_steps": 2},
    "SOBA": {"fresh": True},
}
BASELINES = sorted(adambo.algorithms.ALL.keys() - {"AdamBO"})
META = {"MAML", "ANIL"}  # one head for all tasks
GRADIENTS_APART = META | {"SABA", "F2SA"}  # not with FSDP2, which knows one backward pass
TASKS, MU = 6, 0.2


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh()).double()


def linear():
    torch.manual_seed(2)
    return nn.Linear(4, 1).double()


def my_part(tensor, rank, dim=0):
    return tensor if rank is None else tensor.chunk(2, dim)[rank].contiguous()


def batch_of(rank, *key):
    """Twelve examples that depend on `key` alone, or the half of them that belongs to a process."""
    generator = torch.Generator().manual_seed(random.Random(repr(key)).randrange(2**40))
    inputs = torch.randn(12, 3, dtype=torch.double, generator=generator)
    signs = torch.randn(12, dtype=torch.double, generator=generator).sign()
    return my_part(inputs, rank), my_part(signs, rank)


def draw_of(rank, step, needs, independent):
    if not independent:
        return adambo.Draw.of(batch_of(rank, step, "upper"), batch_of(rank, step, "lower"), needs)
    roles = {role: getattr(needs, role) for role in ("upper", "lower", "cross", "hessian")}
    return adambo.Draw(
        **{role: tuple(batch_of(rank, step, role, k) for k in range(count)) for role, count in roles.items()}
    )


def wrapped(encoder, wrap, rank):
    if wrap is None or rank is None:
        return encoder
    if wrap == "ddp":
        return DistributedDataParallel(encoder)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    fully_shard(encoder[0], mesh=mesh)  # layers of their own, so that one has inputs which require gradients
    fully_shard(encoder[2], mesh=mesh)
    return fully_shard(encoder, mesh=mesh)


def upper_loss(head, features, signs):
    return (head(features).squeeze(-1) - signs).square().mean() + 0.1 * features.square().mean()


def lower_loss(head, features, signs):
    penalty = MU / 2 * sum(p.square().sum() for p in head.parameters())
    return functional.softplus(-signs * head(features).squeeze(-1)).mean() + penalty


def build(rank, *, wrap=None, encoder_head=True, concatenate=False):
    encoder, head = wrapped(network(), wrap, rank), linear()
    if encoder_head:
        return adambo.EncoderHeadProblem(
            encoder=lambda batch: encoder(batch[0]),
            upper=lambda features, batch: upper_loss(head, features, batch[1]),
            lower=lambda features, batch: lower_loss(head, features, batch[1]),
            x=encoder,
            y=head,
            concatenate=concatenate,
        )
    return adambo.Problem(
        upper=lambda batch: upper_loss(head, encoder(batch[0]), batch[1]),
        lower=lambda batch: lower_loss(head, encoder(batch[0]), batch[1]),
        x=encoder,
        y=head,
    )


def whole(tensors):
    """Copies; what FSDP2 holds in pieces is put together."""
    return [(t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone() for t in tensors]


def make(problem, algorithm="AdamBO", **more):
    return adambo.algorithms.ALL[algorithm](problem, **SETTINGS, **OWN_SETTINGS.get(algorithm, {}), **more)


def trajectory(
    rank, *, wrap=None, encoder_head=True, concatenate=False, independent=False, surrogate=False, **solver_settings
):
    problem = build(rank, wrap=wrap, encoder_head=encoder_head, concatenate=concatenate)
    solver = make(problem, **solver_settings)
    solver.warm_start([batch_of(rank, "warm", k) for k in range(2)])
    hypergradients = []
    for step in range(STEPS):
        draw = draw_of(rank, step, solver.needs, independent)
        if surrogate:
            solver.upper_optimizer.zero_grad()
            solver.surrogate(draw).backward()
            hypergradients += whole(p.grad for p in problem.x)
            solver.upper_optimizer.step()
            solver.update()
        else:
            hypergradients += whole(solver.step(draw).hypergradient)
    return {"hypergradients": hypergradients, "x": whole(problem.x), "y": whole(problem.y)}


def tasks_of_step(step, rank, split):
    """Four tasks with six examples each; a process has two of the tasks, or three examples of each."""
    generator = torch.Generator().manual_seed(100 + step)
    ids = torch.randperm(TASKS, generator=generator)[:4]
    inputs = torch.randn(4, 6, 3, dtype=torch.double, generator=generator)
    targets = torch.randn(4, 6, dtype=torch.double, generator=generator)
    if split:
        return my_part(ids, rank), my_part(inputs, rank), my_part(targets, rank)
    return ids, my_part(inputs, rank, dim=1), my_part(targets, rank, dim=1)


def stacked_problem(rank, wrap, encoder_head):
    encoder = wrapped(network(), wrap, rank)
    torch.manual_seed(3)
    heads = torch.randn(TASKS, 4, dtype=torch.double).requires_grad_()

    def errors(features, batch):
        return (torch.einsum("bnd,bd->bn", features, heads[batch[0]]) - batch[2]).square().mean(dim=1)

    def lower(features, batch):
        return errors(features, batch).sum() + MU / 2 * heads[batch[0]].square().sum()

    arguments = {"x": encoder, "y": heads, "tasks": lambda batch: batch[0]}
    if encoder_head:
        return adambo.EncoderHeadProblem(
            lambda batch: encoder(batch[1]), lambda features, b: errors(features, b).mean(), lower, **arguments
        )
    return adambo.Problem(lambda b: errors(encoder(b[1]), b).mean(), lambda b: lower(encoder(b[1]), b), **arguments)


def tasks_of_anil(rank, *, concatenate=False, first_order=False):
    """Several tasks; the upper loss reaches x beside the features too, but on the first process alone."""
    problem = build(rank, concatenate=concatenate)
    upper, beside = problem.upper, {None: 0.5, 0: 1.0, 1: 0.0}[rank]

    def reaching(features, batch):
        loss = upper(features, batch)
        return loss + beside * sum(p.square().sum() for p in problem.x) if beside else loss

    problem.upper = reaching
    solver = make(problem, "ANIL", first_order=first_order)
    hypergradients = []
    for step in range(STEPS):
        solver.step([draw_of(rank, 3 * step + k, solver.needs, True) for k in range(3)])
        hypergradients += whole(p.grad for p in problem.x)
    return {"hypergradients": hypergradients, "x": whole(problem.x), "y": whole(problem.y)}


def stacked_trajectory(rank, *, split, wrap=None, encoder_head=True, step=0.1, **more):
    problem = stacked_problem(rank, wrap, encoder_head)
    if more.get("algorithm") is None or hasattr(make(problem, **more).inverse, "terms"):
        more["inverse"] = adambo.Neumann(terms=3, step=step)
    solver = make(problem, **more)
    solver.warm_start([tasks_of_step(k, rank, split) for k in (50, 51)])
    hypergradients = []
    for k in range(2 * STEPS):  # a task may be new to one process in a step that measures no curvature
        batch = tasks_of_step(k, rank, split)
        hypergradients += whole(solver.step(batch, batch).hypergradient)
    found = {"hypergradients": hypergradients, "x": whole(problem.x), "y": whole(problem.y)}
    return found | ({"s": solver.inverse.step} if solver.inverse is not None else {})


def with_nan(rank, batch, owner):
    """The batch, with one NaN on the process `owner`."""
    inputs, signs = batch
    return (inputs, signs * torch.where(torch.arange(len(signs)) == 0, torch.nan, 1.0)) if rank == owner else batch


def failed_warm_start(rank, algorithm):
    """A warm start with tasks split over the processes, whose second batch is bad on one of them."""
    problem = stacked_problem(rank, None, True)
    solver = make(problem, algorithm)
    before = whole(problem.y)
    ids, inputs, targets = tasks_of_step(51, rank, True)
    bad = (ids, inputs * (float("nan") if rank == 1 else 1.0), targets)
    error = None
    try:
        solver.warm_start([tasks_of_step(50, rank, True), bad])
    except adambo.AdamboError as raised:
        error = raised
    return {"error": type(error).__name__, "before": before, "after": whole(problem.y)}


def stops_at_nan(rank, *, where, good_steps=3, wrap="ddp", **more):
    """One bad step among good ones: what it raised, and whether it left a trace."""
    problem = build(rank, wrap=wrap)
    solver = make(problem, **more)
    good = [draw_of(rank, step, solver.needs, True) for step in range(8)]
    for draw in good[:good_steps]:
        solver.step(draw)
    before, steps = whole([*problem.x, *problem.y]), solver.steps
    bad = {role: list(getattr(good[-1], role)) for role in ("upper", "lower", "cross", "hessian")}
    for role in where:
        first = len(bad[role]) - 1 if role == "lower" else 0  # the lower steps before the last one are good
        bad[role][first:] = [with_nan(rank, batch, owner=1) for batch in bad[role][first:]]
    error = None
    try:
        solver.step(adambo.Draw(**bad))
    except adambo.AdamboError as raised:
        error = raised
    found = {"error": type(error).__name__, "says": str(error), "before": before, "steps": solver.steps - steps}
    found["after"] = whole([*problem.x, *problem.y])
    solver.step(good[good_steps])
    found["continued"] = whole([*problem.x, *problem.y])
    return found


def without_the_bad_step(good_steps, **more):
    problem = build(None)
    solver = make(problem, **more)
    for step in range(good_steps + 1):
        solver.step(draw_of(None, step, solver.needs, True))
    return whole([*problem.x, *problem.y])


def starts_from_rank_0(rank):
    x = torch.full((2,), float(rank or 0), requires_grad=True)
    y = torch.full((3,), 10.0 + float(rank or 0), requires_grad=True)
    adambo.Problem(lambda b: y.sum(), lambda b: (y.sum() - x.sum()).square(), x, y)
    return {"x": whole([x]), "y": whole([y])}


def drawn(rank):
    needs = adambo.Needs(upper=1, lower=1, cross=1, hessian=9, levels=10)
    stream = adambo.draws(upper=torch.arange(1000), lower=torch.arange(1000), needs=needs, seed=5, batch_size=8)
    draws = [next(stream) for _ in range(40)]
    return {
        "levels": [d.level for d in draws],
        "upper": [d.upper[0] for d in draws],
        "lower": [d.lower[0] for d in draws],
    }


SCENARIOS = {
    "ddp": lambda rank: trajectory(rank, wrap="ddp"),
    "ddp, independent draws": lambda rank: trajectory(
        rank, wrap="ddp", independent=True, inverse=adambo.Neumann(terms=3, samples="independent")
    ),
    "ddp, concatenated": lambda rank: trajectory(rank, wrap="ddp", concatenate=True, independent=True),
    "ddp in the losses": lambda rank: trajectory(rank, wrap="ddp", encoder_head=False),
    "ddp in the losses, independent draws": lambda rank: trajectory(
        rank, wrap="ddp", encoder_head=False, independent=True, lower_steps=3
    ),
    "not wrapped": lambda rank: trajectory(rank, encoder_head=False),
    "not wrapped, encoder and head": lambda rank: trajectory(rank),
    "ddp, 3 lower steps": lambda rank: trajectory(rank, wrap="ddp", lower_steps=3),
    "ddp, 3 lower steps, updated": lambda rank: trajectory(rank, wrap="ddp", lower_steps=3, hypergradient_at="updated"),
    "ddp, conjugate gradients": lambda rank: trajectory(rank, wrap="ddp", inverse=adambo.ConjugateGradient(5)),
    "ddp, linear system": lambda rank: trajectory(rank, wrap="ddp", inverse=adambo.LinearSystem(lr=0.5, steps=2)),
    "ddp, surrogate": lambda rank: trajectory(rank, wrap="ddp", surrogate=True),
    "ddp, surrogate, 3 lower steps": lambda rank: trajectory(rank, wrap="ddp", surrogate=True, lower_steps=3),
    "ddp in the losses, surrogate, updated": lambda rank: trajectory(
        rank, wrap="ddp", encoder_head=False, surrogate=True, hypergradient_at="updated"
    ),
    "fsdp": lambda rank: trajectory(rank, wrap="fsdp"),
    "fsdp, concatenated": lambda rank: trajectory(rank, wrap="fsdp", concatenate=True),
    "fsdp, independent draws": lambda rank: trajectory(rank, wrap="fsdp", independent=True, lower_steps=2),
    "fsdp, updated": lambda rank: trajectory(rank, wrap="fsdp", lower_steps=3, hypergradient_at="updated"),
    "fsdp in the losses": lambda rank: trajectory(rank, wrap="fsdp", encoder_head=False),
    "fsdp, surrogate": lambda rank: trajectory(rank, wrap="fsdp", surrogate=True),
    "ANIL, several tasks": tasks_of_anil,
    "ANIL, several tasks, concatenated": lambda rank: tasks_of_anil(rank, concatenate=True),
    "ANIL, several tasks, first order": lambda rank: tasks_of_anil(rank, first_order=True),
    "tasks split": lambda rank: stacked_trajectory(rank, split=True),
    "tasks split, ddp": lambda rank: stacked_trajectory(rank, split=True, wrap="ddp", lower_steps=2),
    "tasks split, in the losses": lambda rank: stacked_trajectory(rank, split=True, encoder_head=False),
    "same tasks": lambda rank: stacked_trajectory(rank, split=False, step="auto"),
    "same tasks, ddp": lambda rank: stacked_trajectory(rank, split=False, wrap="ddp", lower_steps=2),
    "same tasks, in the losses": lambda rank: stacked_trajectory(rank, split=False, encoder_head=False),
}
for name in BASELINES:
    SCENARIOS |= {
        f"{name}, ddp": lambda rank, name=name: trajectory(rank, algorithm=name, wrap="ddp", independent=True),
        f"{name}, ddp, concatenated": lambda rank, name=name: trajectory(
            rank, algorithm=name, wrap="ddp", concatenate=True
        ),
        f"{name}, ddp in the losses": lambda rank, name=name: trajectory(
            rank, algorithm=name, wrap="ddp", encoder_head=False
        ),
        f"{name}, not wrapped": lambda rank, name=name: trajectory(rank, algorithm=name, independent=True),
    }
    if name not in META:
        SCENARIOS |= {
            f"{name}, tasks split": lambda rank, name=name: stacked_trajectory(rank, algorithm=name, split=True),
            f"{name}, same tasks, ddp": lambda rank, name=name: stacked_trajectory(
                rank, algorithm=name, split=False, wrap="ddp"
            ),
        }
    if name not in GRADIENTS_APART:
        SCENARIOS[f"{name}, fsdp"] = lambda rank, name=name: trajectory(rank, algorithm=name, wrap="fsdp")
ONLY_IN_TWO = {
    f"NaN in the upper loss of {name}": lambda rank, name=name: stops_at_nan(rank, algorithm=name, where=["upper"])
    for name in BASELINES
} | {
    "tasks split, automatic step": lambda rank: stacked_trajectory(rank, split=True, step="auto"),
    "NaN in the upper loss": lambda rank: stops_at_nan(rank, where=["upper"]),
    "NaN in the first step": lambda rank: stops_at_nan(rank, where=["upper"], good_steps=0),
    "NaN in every role of the first step": lambda rank: stops_at_nan(
        rank, where=["upper", "lower", "cross", "hessian"], good_steps=0
    ),
    "NaN in the last lower step": lambda rank: stops_at_nan(rank, where=["lower"], lower_steps=3),
    "NaN after y has moved": lambda rank: stops_at_nan(rank, where=["upper"], hypergradient_at="updated"),
    "NaN in the cross term": lambda rank: stops_at_nan(rank, where=["cross"]),
    "NaN in the upper loss, fsdp": lambda rank: stops_at_nan(rank, where=["upper"], wrap="fsdp"),
    "NaN in the cross term, fsdp": lambda rank: stops_at_nan(rank, where=["cross"], wrap="fsdp"),
    "NaN in a Hessian factor, fsdp": lambda rank: stops_at_nan(rank, where=["hessian"], wrap="fsdp"),
    "failed warm start": lambda rank: failed_warm_start(rank, "AdamBO"),
    "failed warm start, SNAG": lambda rank: failed_warm_start(rank, "AccBO"),
    "first values": starts_from_rank_0,
    "draws": drawn,
}


def run_all(rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    found = {}
    for name, scenario in (SCENARIOS | ONLY_IN_TWO).items():
        try:
            found[name] = scenario(rank)
        except Exception:
            found[name] = {"failed": traceback.format_exc()}
    torch.save(found, f"{folder}/found{rank}")
    with suppress(Exception):
        dist.barrier()
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_both(tmp_path_factory):
    """name -> what the two processes found, by rank."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(run_all, args=(str(folder),), nprocs=2)
    found = [torch.load(folder / f"found{rank}", weights_only=True) for rank in (0, 1)]

    def of(name):
        for own in found:
            assert "failed" not in own[name], own[name]["failed"]
        return [own[name] for own in found]

    return of


def assert_all_close(found, expected, atol):
    for name in ("hypergradients", "x", "y"):
        assert len(found[name]) == len(expected[name])
        for mine, theirs in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_make_the_steps_of_one(by_both, name):
    alone = SCENARIOS[name](None)
    assert max(h.abs().max() for h in alone["hypergradients"]) > 1e-3
    for found in by_both(name):
        assert_all_close(found, alone, atol=1e-10)


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_processes_hold_the_same_values_bit_for_bit(by_both, name):
    first, second = by_both(name)
    for part in ("x", "y"):
        assert all(torch.equal(a, b) for a, b in zip(first[part], second[part], strict=True))


def test_with_tasks_split_over_processes_both_use_one_automatic_step_for_the_series(by_both):
    first, second = by_both("tasks split, automatic step")
    assert first["s"] == second["s"]


@pytest.mark.parametrize("name", [name for name in ONLY_IN_TWO if name.startswith("NaN")])
def test_nan_on_one_process_stops_both_and_changes_nothing(by_both, name):
    for found in by_both(name):
        assert found["error"] == "NonFiniteError"
        assert found["steps"] == 0
        assert all(torch.equal(a, b) for a, b in zip(found["before"], found["after"], strict=True))


@pytest.mark.parametrize(
    ("name", "good_steps", "settings"),
    [
        ("NaN in the upper loss", 3, {}),
        ("NaN in the first step", 0, {}),
        ("NaN in every role of the first step", 0, {}),
        ("NaN in the last lower step", 3, {"lower_steps": 3}),
        ("NaN after y has moved", 3, {"hypergradient_at": "updated"}),
    ],
)
def test_after_nan_on_one_process_both_continue_as_if_it_had_not_been(by_both, name, good_steps, settings):
    expected = without_the_bad_step(good_steps, **settings)
    for found in by_both(name):
        for mine, theirs in zip(found["continued"], expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["failed warm start", "failed warm start, SNAG"])
def test_a_failed_warm_start_is_undone_on_all_processes(by_both, name):
    for found in by_both(name):
        assert found["error"] == "NonFiniteError"
        assert all(torch.equal(a, b) for a, b in zip(found["before"], found["after"], strict=True))


def test_both_processes_start_from_the_values_of_the_first(by_both):
    for found in by_both("first values"):
        assert found["x"][0].tolist() == [0.0, 0.0]
        assert found["y"][0].tolist() == [10.0, 10.0, 10.0]


def test_processes_draw_different_batches_but_the_same_truncation_levels(by_both):
    first, second = by_both("draws")
    assert first["levels"] == second["levels"]
    assert len(set(first["levels"])) > 5
    for role in ("upper", "lower"):
        assert not any(torch.equal(a, b) for a, b in zip(first[role], second[role], strict=True))


def test_the_first_process_draws_what_a_single_process_draws(by_both):
    alone, (first, _) = drawn(None), by_both("draws")
    assert alone["levels"] == first["levels"]
    assert all(torch.equal(a, b) for a, b in zip(alone["upper"], first["upper"], strict=True))
