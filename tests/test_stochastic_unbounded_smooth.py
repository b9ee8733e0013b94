"""The noisy problem of unbounded smoothness: its samples, and the assumptions on noise that it is made for."""

from __future__ import annotations

import torch
from torch.func import grad, jacrev

import adambo
from adambo.testing import StochasticUnboundedSmooth, UnboundedSmooth, flat, normal


def places(known: StochasticUnboundedSmooth, count: int = 20) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    spread = [1.0, 30.0]
    return [
        (known.e + scale * normal(3, generator=generator) / 10, scale * normal(3, generator=generator))
        for scale in spread
        for _ in range(count)
    ]


def test_the_mean_of_the_samples_is_the_problem_without_noise() -> None:
    known, plain = StochasticUnboundedSmooth(seed=3, samples=5), UnboundedSmooth(seed=3)
    assert torch.equal(known.x0, plain.x0)
    for x, y in places(known):
        for loss, truth in ((known.upper, plain.upper), (known.lower, plain.lower)):
            mean = torch.stack([loss(x, y, i) for i in range(5)]).mean()
            torch.testing.assert_close(mean, truth(x, y), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(loss(x, y, [0, 1, 2, 3, 4]), truth(x, y), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(loss(x, y), truth(x, y), rtol=0.0, atol=0.0)
            assert (loss(x, y, 0) - truth(x, y)).abs() > 1e-6
        assert torch.equal(known.gradient(x), plain.gradient(x))


def test_every_sample_is_strongly_convex_below_and_its_noise_is_bounded_everywhere() -> None:
    known = StochasticUnboundedSmooth(seed=1, noise=0.6)
    slope = float(known.t_i.abs().max()) + 0.6
    for x, y in places(known):
        for i in range(known.samples):
            H = hessian_of(known, x, y, i)
            torch.testing.assert_close(H, torch.diag(known.curvatures(x, y, i)), rtol=1e-12, atol=1e-12)
            assert known.curvatures(x, y, i).min() >= 1 - 0.6
            assert (H - hessian_of(known, x, y, None)).abs().max() <= 0.6 + 1e-9
            g_y = [grad(known.lower, argnums=1)(x, y, batch) for batch in (i, None)]
            assert (g_y[0] - g_y[1]).abs().max() <= slope + 1e-9
            f_x = [grad(known.upper)(x, y, batch) for batch in (i, None)]
            torch.testing.assert_close(f_x[0] - f_x[1], known.e_i[i], rtol=1e-9, atol=1e-9)


def hessian_of(known: StochasticUnboundedSmooth, x: torch.Tensor, y: torch.Tensor, i: int | None) -> torch.Tensor:
    found: torch.Tensor = jacrev(grad(known.lower, argnums=1), argnums=1)(x, y, i)
    return found


def test_the_curvature_of_phi_is_bounded_by_its_gradient_and_by_nothing_else() -> None:
    known = StochasticUnboundedSmooth(seed=2, distance=12.0)
    bends = torch.diagonal(jacrev(grad(known.phi))(known.x0))
    slopes = known.gradient(known.x0).abs()
    assert bends.min() > 5e4
    assert (bends <= 1 + known.b.square() + slopes).all()
    torch.testing.assert_close(grad(known.phi)(known.x0), known.gradient(known.x0), rtol=1e-12, atol=1e-12)


def test_a_stream_of_its_samples_drives_a_solver_to_the_optimum() -> None:
    known = StochasticUnboundedSmooth(seed=0, distance=1.0, noise=0.2)
    solver = adambo.AdamBO(known.problem(), lr=0.02, lower_lr=0.2, beta_sq=0.1, inverse=adambo.Neumann(step=0.4))
    stream = adambo.draws(known.batch, known.batch, solver.needs, seed=1)
    for _ in range(250):
        solver.step(next(stream))
    x = flat(solver.problem.x).detach()
    assert known.gradient(x).norm() < 0.1 * known.gradient(known.x0).norm()
