"""On a GPU, captured programmes make the same steps as autograd, and nobody waits for them."""

import warnings

import pytest
import torch
from torch import nn

import adambo
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]


def host_waits(action):
    """How often the host waited for the device, as far as torch can tell."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(each.message) for each in caught)


def solver_and_episodes(lower_steps=1, samples="chained", dtype=torch.float64, **settings):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(5, 8), nn.Tanh()).to("cuda", dtype)
    heads = Heads(*(nn.Parameter(0.1 * torch.randn(50, *form, dtype=dtype, device="cuda")) for form in ((6, 8), (6,))))
    problem = hyper_representation(encoder, encoder, heads, mu=0.05)
    inverse = adambo.Neumann(terms=4, samples=samples)
    solver = adambo.AdamBO(problem, lr=0.01, lower_lr=0.05, lower_steps=lower_steps, inverse=inverse, **settings)

    def episodes(seed):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(50, generator=generator)[:20]
        inputs = torch.randn(400, 5, generator=generator, dtype=dtype)
        labels = torch.randint(6, (20, 20), generator=generator)
        return Episodes(ids.cuda(), inputs.cuda(), labels.cuda(), 10)

    return solver, episodes


def after(steps, plain, **settings):
    solver, episodes = solver_and_episodes(**settings)
    for seed in range(steps):
        batch = episodes(seed)
        if plain:
            with adambo.plain_autograd():
                info = solver.step(batch, batch)
        else:
            info = solver.step(batch, batch)
    solver.check()
    return [*(p.detach() for p in (*solver.problem.x, *solver.problem.y)), *info.z], solver


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("lower_steps", [1, 12])
@pytest.mark.parametrize("samples", ["chained", "prefix", "shared", "independent"])
def test_captured_programmes_make_the_steps_of_autograd(samples, lower_steps, at):
    mine, solver = after(12, False, lower_steps=lower_steps, samples=samples, hypergradient_at=at)
    theirs, reference = after(12, True, lower_steps=lower_steps, samples=samples, hypergradient_at=at)
    for found, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert solver.ledger == reference.ledger
    assert solver.problem.losses.captured
    assert solver.problem.programmes.captured or samples == "independent" or lower_steps == 1


@pytest.mark.parametrize("lower_steps", [1, 12])
def test_a_step_with_captured_programmes_waits_for_nothing(lower_steps):
    solver, episodes = solver_and_episodes(lower_steps, dtype=torch.float32)
    batch = episodes(0)
    for _ in range(33):  # curvature is measured, and waited for, in the steps 0, 1, 2, 4, … 32, 64
        solver.step(batch, batch)
    assert solver.problem.losses.captured
    torch.cuda.synchronize()
    assert host_waits(lambda: [solver.step(batch, batch) for _ in range(20)]) == 0
    assert host_waits(lambda: solver.problem.y[0].sum().item()) == 1


def test_an_exploding_series_is_reported_by_a_captured_programme_too():
    solver, episodes = solver_and_episodes()
    batch = episodes(0)
    for _ in range(9):
        solver.step(batch, batch)
    assert solver.problem.losses.captured
    with torch.no_grad():
        for p in solver.problem.x:
            p.mul_(30.0)
    solver.inverse._asked = 1e4
    solver.step(batch, batch)
    with pytest.raises(adambo.NonFiniteError):
        solver.check()


def test_z_of_an_earlier_step_is_not_overwritten():
    solver, episodes = solver_and_episodes()
    batch = episodes(0)
    for _ in range(9):
        info = solver.step(batch, batch)
    kept = [t.clone() for t in info.z]
    solver.step(batch, batch)
    torch.testing.assert_close(info.z, kept, rtol=0, atol=0)


def test_under_autocast_z_and_the_lower_steps_are_in_full_precision():
    solver, episodes = solver_and_episodes(dtype=torch.float32)
    batch = episodes(0)
    for _ in range(9):
        with torch.autocast("cuda", torch.bfloat16):
            info = solver.step(batch, batch)
    assert {t.dtype for t in info.z} == {torch.float32}
    point = solver.problem.at(adambo.Draw((batch,), (batch,), (batch,), (batch,)))
    with torch.autocast("cuda", torch.bfloat16):
        z = solver.inverse.solve(point, point.f_y)
    residual = sum(float((a - b).norm()) for a, b in zip(z, [t.bfloat16().float() for t in z], strict=True))
    assert residual > 0, "z has the digits of a bfloat16"
