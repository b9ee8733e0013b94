"""The constants of a problem, against spectra and noise that are prescribed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import grad
from torch.nn.functional import cross_entropy

import adambo
from adambo import Draw, EncoderHeadProblem, Ledger, NonFiniteError, Problem, SampleError, SettingError
from adambo.diagnostics import Estimate, estimate_constants
from adambo.diagnostics.noise import Samples, largest
from adambo.diagnostics.sampled_hessian import SampledHessian
from adambo.testing import AUC, Quadratic, RidgeSoftmaxHead, StochasticQuadratic, TaskQuadratics, normal
from adambo.theory import ProblemConstants


def draw_of(batch, **others):
    return Draw(upper=(batch,), lower=(batch,), **others)


def quadratic(eigenvalues, dtype=torch.float64, seed=0):
    """g = ½ (y − x₀)ᵀ A (y − x₀) with this spectrum in a random basis; f = ½ ‖y − 1‖²."""
    n = len(eigenvalues)
    basis = torch.linalg.qr(normal(n, n, generator=torch.Generator().manual_seed(seed)))[0]
    A = (basis * eigenvalues @ basis.T).to(dtype)
    x, y = torch.ones(1, dtype=dtype, requires_grad=True), torch.zeros(n, dtype=dtype, requires_grad=True)
    return Problem(lambda b: (y - 1).square().sum() / 2 + x.sum(), lambda b: (y - x) @ A @ (y - x) / 2, x, y)


def spectrum(kind, n, kappa):
    if kind == "log-uniform":
        return torch.logspace(0, 1, n, base=1 / kappa, dtype=torch.float64)
    if kind == "two points":
        return torch.cat([torch.ones(n - n // 2), torch.full((n // 2,), 1 / kappa)]).double()
    if kind == "one":
        return torch.full((n,), 1 / kappa, dtype=torch.float64)
    crowd = 0.05 * torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.where(torch.arange(n) % 2 == 0, 1 - crowd, (1 + crowd) / kappa)
    found[0], found[-1] = 1.0, 1 / kappa
    return found


# Curvature ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [1.0, 10.0, 1e4])
@pytest.mark.parametrize("n", [1, 5, 100])
@pytest.mark.parametrize("kind", ["log-uniform", "two points", "one", "crowded ends"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_mu_and_l_g1_of_a_known_spectrum_within_five_percent(kind, n, kappa, dtype):
    eigenvalues = spectrum(kind, n, kappa)
    mu, norm = float(eigenvalues.min()), float(eigenvalues.max())
    found = estimate_constants(quadratic(eigenvalues, dtype), [draw_of(0)])
    assert found.mu.value == pytest.approx(mu, rel=0.05)
    assert found.l_g1.value == pytest.approx(norm, rel=0.05)
    rounding = 10 * norm * torch.finfo(dtype).eps
    assert found.mu.low - rounding <= mu <= found.mu.high + rounding
    assert found.l_g1.low - rounding <= norm <= found.l_g1.high + rounding
    assert found.mu.low <= found.mu.value <= found.mu.high


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_thousand_dimensions_with_condition_number_1e4(dtype):
    found = estimate_constants(quadratic(spectrum("log-uniform", 1000, 1e4), dtype), [draw_of(0)])
    assert found.mu.value == pytest.approx(1e-4, rel=0.05)
    assert found.l_g1.value == pytest.approx(1.0, rel=0.05)


def test_a_spectrum_that_the_products_do_not_resolve_has_an_interval_that_holds():
    found = estimate_constants(quadratic(spectrum("log-uniform", 300, 1e4)), [draw_of(0)], max_products=40)
    assert found.products == 40
    assert found.mu.low <= 1e-4 < found.mu.value
    assert "max_products" in found.mu.note


def test_the_softmax_head_has_the_eigenvalues_of_its_dense_hessian():
    known = RidgeSoftmaxHead(inputs=5, features=6, classes=4, examples=40, mu=0.01)
    eigenvalues = torch.linalg.eigvalsh(known.hessian(known.x0, known.y0))
    slope = grad(known.upper, argnums=1)(known.x0, known.y0)
    draw = Draw(upper=(known.upper_batch,), cross=(known.lower_batch,))
    for problem in (known.problem(), known.encoder_head_problem()):
        found = estimate_constants(problem, [draw])
        assert found.mu.value == pytest.approx(float(eigenvalues[0]), rel=1e-6)
        assert found.l_g1.value == pytest.approx(float(eigenvalues[-1]), rel=1e-6)
        assert found.l_f0.value == pytest.approx(float(slope.norm()), rel=1e-9)


def test_one_number_as_y():
    known = AUC()
    halves = [list(range(k, 20, 2)) for k in range(2)]
    found = estimate_constants(known.problem(), [draw_of(half) for half in halves])
    assert found.mu.value == pytest.approx(known.curvature)
    assert found.l_g1.value == pytest.approx(known.curvature)


@pytest.mark.parametrize("lowest", [-0.5, -4.0])
def test_negative_curvature_is_told(lowest):
    eigenvalues = torch.linspace(lowest, 2.0, 20, dtype=torch.float64)
    found = estimate_constants(quadratic(eigenvalues), [draw_of(0)])
    assert found.mu.value == pytest.approx(lowest, rel=1e-6)
    assert found.l_g1.value == pytest.approx(max(2.0, -lowest), rel=1e-6)  # what the gradient's Lipschitz constant is
    assert "NOT STRONGLY CONVEX" in found.mu.note
    assert found.known()["mu"] < 0  # and refused by whoever wants to use it


def test_a_singular_hessian_is_told():
    eigenvalues = torch.cat([torch.zeros(3), torch.ones(10)]).double()
    found = estimate_constants(quadratic(eigenvalues), [draw_of(0)])
    assert abs(found.mu.value) < 1e-12
    assert found.mu.low <= 0
    assert "STRONGLY CONVEX" in found.mu.note.upper()


# Noise ----------------------------------------------------------------------------------------------------------------


def noise_of(known):
    """The norms of the noise of every sample at (x0, y0), in closed form: ∇x F, ∇y F, ∇y G, ∇²yy G, ∇²xy G."""
    bends = known.A_i - known.A
    r = known.y0 - known.y_star(known.x0)
    in_y = torch.einsum("kij,j->ki", bends, r) + known.b_i + torch.einsum("kij,j->ki", known.N_i, known.x0)
    crossed = known.N_i - bends @ known.B
    return (
        known.e_i.norm(dim=1),
        known.d_i.norm(dim=1),
        in_y.norm(dim=1),
        torch.linalg.matrix_norm(bends, ord=2),
        torch.linalg.matrix_norm(crossed, ord=2),
    )


@pytest.mark.parametrize("samples", [3, 4, 11])
def test_the_noise_of_a_population_that_is_enumerated(samples):
    known = StochasticQuadratic(dx=3, dy=5, mu=0.5, samples=samples, noise=0.8)
    e, d, in_y, bends, crossed = noise_of(known)
    found = estimate_constants(known.problem(), [draw_of(k) for k in range(samples)])
    assert found.draws == samples
    assert found.mu.value == pytest.approx(0.5)
    assert found.l_g1.value == pytest.approx(4.0)
    assert found.l_f0.value == pytest.approx(float((known.y0 - known.d).norm()))
    assert found.sigma_f.value == pytest.approx(float(torch.maximum(e, d).max()))
    assert found.sigma_g2.value == pytest.approx(float(torch.maximum(bends, crossed).max()))
    sigma = found.sigma_g1.value
    s = in_y.sort().values
    share = torch.arange(samples, 0, -1).double() / samples  # of the noise that is as large as s, or larger
    bound = 2 * torch.exp(-2 * s.square() / sigma**2)
    assert (share <= bound + 1e-9).all()
    assert (share >= bound - 1e-9).any()  # and no smaller σ would do
    for estimate in (found.sigma_f, found.sigma_g1, found.sigma_g2, found.l_f0, found.mu, found.l_g1):
        assert estimate.low <= estimate.value <= estimate.high


def test_the_noise_of_the_hessian_alone():
    """Where x does not meet y in the lower loss there is no cross derivative, so the noise of the Hessian is left."""
    generator = torch.Generator().manual_seed(0)
    bends = normal(6, 30, 30, generator=generator)
    bends = bends + bends.mT - (bends + bends.mT).mean(dim=0)
    x, y = (torch.ones(k, dtype=torch.float64, requires_grad=True) for k in (1, 30))
    problem = Problem(lambda k: (x * y.sum()).sum(), lambda k: 40 * y.square().sum() + y @ bends[k] @ y / 2, x, y)
    found = estimate_constants(problem, [draw_of(k) for k in range(6)])
    truth = torch.linalg.matrix_norm(bends, ord=2)
    assert found.sigma_g2.value <= float(truth.max()) * (1 + 1e-9)  # of the four that look noisiest: a lower bound
    assert found.sigma_g2.value >= 0.95 * float(truth.sort().values[2])
    assert "lower bound" in found.sigma_g2.note


def test_few_probes_of_the_cross_derivative_give_a_lower_bound_and_all_give_it_exactly():
    generator = torch.Generator().manual_seed(0)
    N = normal(5, 12, 4, generator=generator)
    x, y = (torch.ones(k, dtype=torch.float64, requires_grad=True) for k in (4, 12))
    problem = Problem(lambda k: x.sum() * y.sum(), lambda k: y.square().sum() + y @ N[k] @ x, x, y)
    truth = float(torch.linalg.matrix_norm(N - N.mean(dim=0), ord=2).max())
    draws = [draw_of(k) for k in range(5)]
    few, every = (estimate_constants(problem, draws, probes=probes).sigma_g2 for probes in (3, 12))
    assert 0.2 * truth < few.value < truth
    assert "lower bound" in few.note
    assert every.value == pytest.approx(truth)


def test_intervals_hold_the_truth_about_as_often_as_they_promise():
    """With normal noise in ∇y f and in one number that is the Hessian: in 88 of 100 repetitions or more."""
    held = {"l_f0": 0, "mu": 0}
    for repetition in range(100):
        noise = normal(20, 4, generator=torch.Generator().manual_seed(repetition))
        x, y = (torch.ones(k, dtype=torch.float64, requires_grad=True) for k in (1, 3))
        problem = Problem(
            lambda k, y=y, noise=noise: 2 * y.sum() + y @ noise[k, :3],
            lambda k, y=y, x=x, noise=noise: (1 + 0.2 * noise[k, 3]) * (y - x).square().sum() / 2,
            x,
            y,
        )
        found = estimate_constants(problem, [draw_of(k) for k in range(20)], probes=1)
        held["l_f0"] += found.l_f0.low <= 2 * math.sqrt(3) <= found.l_f0.high
        held["mu"] += found.mu.low <= 1.0 <= found.mu.high
    assert held["mu"] >= 88
    assert held["l_f0"] >= 88


def matrices(eigenvalues, draws, noise, seed):
    """g = ½ (y − x)ᵀ (diag + N_k) (y − x) with symmetric normal N_k, one per draw."""
    n = len(eigenvalues)
    N = normal(draws, n, n, generator=torch.Generator().manual_seed(seed))
    H = eigenvalues.diag() + noise * (N + N.mT) / math.sqrt(2)
    x, y = torch.ones(1, dtype=torch.float64, requires_grad=True), torch.zeros(n, dtype=torch.float64)
    y.requires_grad_()
    return Problem(lambda k: (y - 1).square().sum() + x.sum(), lambda k: (y - x) @ H[k] @ (y - x) / 2, x, y)


@pytest.mark.parametrize("draws", [4, 12])
def test_intervals_hold_the_ends_of_a_spectrum_where_many_eigenvalues_are_near_them(draws):
    """As a ridge makes it. Noise pushes eigenvalues apart, so that every value is beyond the truth."""
    eigenvalues = torch.cat([torch.ones(8), torch.full((8,), 4.0)]).double()
    held = {"mu": 0, "l_g1": 0}
    for seed in range(12):
        problem = matrices(eigenvalues, draws, 0.1, seed)
        found = estimate_constants(problem, [draw_of(k) for k in range(draws)], probes=1)
        assert found.mu.value < 1.0
        assert found.l_g1.value > 4.0
        held["mu"] += found.mu.low <= 1.0 <= found.mu.high
        held["l_g1"] += found.l_g1.low <= 4.0 <= found.l_g1.high
    assert min(held.values()) >= 11
    assert "too small on average" in found.mu.note
    assert "too large on average" in found.l_g1.note


def test_flipped_signs_make_the_deviations_from_the_mean_task_by_task():
    known = TaskQuadratics(count=3, dy=2)
    scales = [1.0, 2.0, 4.0, 9.0]
    batches = [[0, 1], [0], [1, 0], [2]]
    x, y = known.parameters()
    points = []
    for scale, batch in zip(scales, batches, strict=True):
        problem = Problem(
            lambda b: x[0].sum(), lambda b, s=scale: s * y[0][b].square().sum() / 2, x, [y[0]], tasks=lambda b: b
        )
        points.append(problem.at(Draw(lower=(batch,), hessian=(batch,))))
    hessian = SampledHessian(points)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found = hessian.flipped(signs.tolist(), torch.ones_like(hessian.like))[:, 0]
    for task, draws in enumerate(([0, 1, 2], [0, 2], [3])):
        own, count = torch.tensor([scales[k] for k in draws], dtype=torch.float64), len(draws)
        truth = float((signs[draws] * (own - own.mean())).sum()) / count * math.sqrt(count / max(1, count - 1))
        assert float(found[task]) == pytest.approx(truth, abs=1e-9)


def test_the_norm_has_room_for_what_few_products_do_not_see():
    found = estimate_constants(
        quadratic(torch.linspace(1, 1e-2, 300, dtype=torch.float64)), [draw_of(0)], max_products=20
    )
    assert found.l_g1.value < 0.9999 < 1.0 <= found.l_g1.high
    assert found.l_g1.low <= found.l_g1.value


@pytest.mark.parametrize("draws", [2, 3, 5, 12])
def test_the_error_of_a_mean_of_few_normal_numbers_is_exceeded_about_once_in_twenty(draws):
    numbers = normal(400, draws, 1, generator=torch.Generator().manual_seed(draws))
    held = sum(abs(float(s.mean)) <= s.error_of_mean() for s in map(Samples, numbers))
    assert 0.9 * 400 <= held <= 0.99 * 400


@pytest.mark.parametrize(("size", "sigma"), [(1, 2.0), (2, 2.0), (5, 2.535)])
@pytest.mark.parametrize("draws", [3, 20])
def test_the_interval_of_sub_gaussian_noise_holds_the_constant_of_a_normal_one(draws, size, sigma):
    """Pr(‖noise‖ ≥ s) ≤ 2 exp(−2s²/σ²): in one and two dimensions σ = 2 by the tail, in five by s = 2.3."""
    numbers = normal(100, draws, size, generator=torch.Generator().manual_seed(draws))
    found = [Samples(vectors).sub_gaussian() for vectors in numbers]
    assert sum(e.low <= sigma <= e.high for e in found) >= 93
    assert all(e.low <= e.value <= e.high for e in found)
    tiny = Samples(1e-100 * numbers[0]).sub_gaussian()
    assert tiny.high == pytest.approx(1e-100 * found[0].high)


def test_the_upper_end_of_a_bound_is_exceeded_once_in_a_thousand_by_sub_gaussian_noise():
    samples = Samples(normal(30, 2, generator=torch.Generator().manual_seed(0)))
    sigma = samples.sub_gaussian().value * math.sqrt(30 / 29)
    assert 2 * math.exp(-2 * samples.bound().high ** 2 / sigma**2) == pytest.approx(1e-3)


def test_the_largest_of_several_estimates_has_no_end_below_theirs():
    wide, sure, unseen = Estimate(2.0, 0.1, 2.1, "wide"), Estimate(1.9, 1.8, 9.0), Estimate(math.nan, 0.0, math.inf)
    assert largest([unseen, sure, wide]) == Estimate(2.0, 1.8, 9.0, "wide")
    assert math.isnan(largest([unseen, unseen]).value)


def test_the_noise_of_the_hessian_is_as_uncertain_as_the_mean_that_it_is_measured_from():
    """Ten draws with ±D alternating: every deviation is ‖D‖, and their mean may be off by ‖D‖/√9."""
    x, y = (torch.ones(k, dtype=torch.float64, requires_grad=True) for k in (1, 4))
    problem = Problem(
        lambda k: (x * y.sum()).sum(), lambda k: 5 * y.square().sum() + (-1) ** k * y[0].square() / 2, x, y
    )
    found = estimate_constants(problem, [draw_of(k) for k in range(10)]).sigma_g2
    assert found.value == pytest.approx(1.0)
    assert found.low == pytest.approx(2 / 3)


def test_how_far_the_lower_optimum_may_be_is_told():
    problem = quadratic(torch.full((5,), 0.25, dtype=torch.float64))  # y* = (1, …, 1), and y = 0
    assert "within 2.2 of here" in estimate_constants(problem, [draw_of(0)]).l_f0.note  # √5


def test_more_draws_make_intervals_shorter():
    known = StochasticQuadratic(samples=200, noise=0.5)

    def widths(count):
        found = estimate_constants(known.problem(), [draw_of(k) for k in range(count)])
        return [e.high - e.low for e in (found.mu, found.l_g1, found.l_f0)], found.sigma_g1.high - found.sigma_g1.low

    (many, of_noise), (few, of_few) = widths(200), widths(10)
    assert all(a < b / 2 for a, b in zip(many, few, strict=True))
    assert of_noise < of_few


def test_one_draw_shows_no_noise_and_says_so():
    found = estimate_constants(StochasticQuadratic().problem(), [draw_of(2)])
    for estimate in (found.sigma_f, found.sigma_g1, found.sigma_g2):
        assert math.isnan(estimate.value)
        assert (estimate.low, estimate.high) == (0.0, math.inf)
        assert "several" in estimate.note
    assert set(found.known()) == {"mu", "l_g1", "l_f0"}


def test_without_noise_none_is_found():
    found = estimate_constants(Quadratic().problem(), [draw_of(k) for k in range(4)])
    for estimate in (found.sigma_f, found.sigma_g1, found.sigma_g2):
        assert estimate.high < 1e-12
    assert found.mu.high - found.mu.low < 1e-12


# Tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_with_tasks_each_is_a_problem_of_its_own(form):
    known = TaskQuadratics(count=6, dy=4)
    known.A[4] *= 10  # the largest curvature, and
    known.A[2] /= 10  # the smallest
    batches = [[0, 4], [2, 1], [4, 5]]
    found = estimate_constants(getattr(known, form)(), [draw_of(b) for b in batches])
    eigenvalues = torch.linalg.eigvalsh(known.A[[0, 1, 2, 4, 5]])
    assert found.mu.value == pytest.approx(float(eigenvalues.min()))
    assert found.l_g1.value == pytest.approx(float(eigenvalues.max()))
    rows = known._stacked(known.y0)
    slopes = [(rows[k] - known.d[k]).norm() / 2 for k in (0, 1, 2, 4, 5)]  # the upper loss is the mean of two tasks
    assert found.l_f0.value == pytest.approx(float(max(slopes)))
    assert found.sigma_g1.value == pytest.approx(0.0, abs=1e-12)  # task 4, which came twice, has no noise


def test_the_mean_and_the_noise_of_a_task_are_over_the_draws_that_name_it():
    """Two tasks; a batch is (ids, a number s), and the lower loss of task t is ½ (1 + t) s ‖y_t‖²."""
    x, y = torch.ones(1, dtype=torch.float64, requires_grad=True), torch.ones(2, 3, dtype=torch.float64)
    y.requires_grad_()

    def lower(batch):
        ids, s = batch
        return (s * (1.0 + torch.tensor(ids)) * y[ids].square().sum(dim=1)).sum() / 2 + x.sum() * y[ids].sum()

    problem = Problem(lambda b: y[b[0]].sum() * x.sum(), lower, x, y, tasks=lambda b: b[0])
    batches = [([0], 1.0), ([1, 0], 2.0), ([0, 1], 6.0)]
    found = estimate_constants(problem, [draw_of(b) for b in batches])
    assert found.mu.value == pytest.approx(3.0)  # task 0: the mean of 1, 2, 6
    assert found.l_g1.value == pytest.approx(8.0)  # task 1: twice the mean of 2, 6
    assert found.sigma_g2.value == pytest.approx(4.0)  # task 1: 12 − 8


def test_tasks_that_never_come_twice_show_no_noise_in_y():
    found = estimate_constants(TaskQuadratics().problem(), [draw_of(b) for b in ([0, 1], [2, 3])])
    assert math.isnan(found.sigma_g1.value)
    assert "task" in found.sigma_g1.note
    assert math.isnan(found.sigma_g2.value)
    assert found.sigma_f.value > 0  # x is shared


def test_a_loss_that_uses_a_whole_table_is_measured_all_the_same(caplog):
    x, y = (torch.ones(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2,), (3, 2)))
    problem = EncoderHeadProblem(
        encoder=lambda b: x * 1,
        upper=lambda h, b: (y * h).sum(),
        lower=lambda h, b: (y - h).square().sum(),
        x=x,
        y=y,
        tasks=lambda b: b,
    )
    ledger = Ledger()
    found = estimate_constants(problem, [draw_of([0, 2])], ledger=ledger)
    assert found.mu.value == pytest.approx(2.0)
    assert ledger.grad_x_f == 1  # what was given up is not counted
    assert "whole" in caplog.text


# Housekeeping ---------------------------------------------------------------------------------------------------------


def test_oracle_calls_are_counted():
    known, ledger = StochasticQuadratic(dy=4, samples=3), Ledger(grad_y_g=5)
    found = estimate_constants(known.problem(), [draw_of(k) for k in range(3)], ledger=ledger, probes=2)
    mean, ritz, deviations, flips = 3 * 4, 2 * 3, 3 * 3 * 4, 3 * 3 * 4  # 4 products each: the dimension
    assert ledger.curvature_vector == found.products == mean + ritz + deviations + flips
    assert (ledger.grad_x_f, ledger.grad_y_f, ledger.grad_y_g) == (3, 3, 5 + 3)
    assert ledger.cross_vector == 2 * 3 * 2
    assert (ledger.hessian_vector, ledger.grad_x_g) == (0, 0)
    alone = Ledger()
    estimate_constants(known.problem(), [draw_of(0)], ledger=alone)
    assert (alone.curvature_vector, alone.cross_vector, alone.grad_y_g) == (4, 0, 1)


def noisy_head():
    """Dropout and running statistics in the encoder, dropout in the lower loss."""
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3)).double()
    head = nn.Linear(6, 3).double()
    dropout = nn.Dropout(0.2)

    def lower(features, batch):
        ridge = sum(p.square().sum() for p in head.parameters())
        return cross_entropy(head(dropout(features)), batch[1]) + 0.05 * ridge

    problem = EncoderHeadProblem(
        encoder=lambda b: encoder(b[0]),
        upper=lambda h, b: cross_entropy(head(h), b[1]),
        lower=lower,
        x=encoder,
        y=head,
    )
    inputs, labels = torch.randn(40, 4).double(), torch.randint(3, (40,))
    return problem, [(inputs[k::4], labels[k::4]) for k in range(4)]


def test_nothing_is_changed():
    problem, batches = noisy_head()
    for p in (*problem.x, *problem.y):
        p.grad = torch.full_like(p, 7.0)
    watched = [*problem.x, *problem.y, *problem.buffers]
    before = [t.detach().clone() for t in watched]
    random_state = torch.get_rng_state()
    estimate_constants(problem, [draw_of(b) for b in batches])
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))
    assert all((p.grad == 7.0).all() for p in (*problem.x, *problem.y))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(p.requires_grad for p in (*problem.x, *problem.y))


def test_the_seed_decides_everything():
    problem, batches = noisy_head()
    draws = [draw_of(b) for b in batches]
    torch.manual_seed(0)
    first = estimate_constants(problem, draws, seed=1)
    torch.manual_seed(5)
    assert estimate_constants(problem, draws, seed=1) == first
    assert estimate_constants(problem, draws, seed=2).mu != first.mu  # other masks
    assert first.sigma_g2.value > 0


def test_dropout_is_noise_even_where_all_batches_are_the_same():
    problem, batches = noisy_head()
    found = estimate_constants(problem, [draw_of(batches[0], seed=k) for k in range(3)])
    same = estimate_constants(problem, [draw_of(batches[0], seed=9) for _ in range(3)])
    assert found.sigma_g1.value > 1e-3
    assert same.sigma_g1.high < 1e-12


def test_streams_are_read_as_far_as_asked():
    known = StochasticQuadratic(samples=4)
    stream = adambo.draws(known.batch, known.batch, needs=adambo.Needs(1, 1, 1, 1), seed=0)
    assert estimate_constants(known.problem(), stream).draws == 16
    assert estimate_constants(known.problem(), stream, count=3).draws == 3
    assert stream.step == 19
    assert estimate_constants(known.problem(), [draw_of(k) for k in range(4)], count=2).draws == 2


def test_each_role_has_its_own_batch():
    known = StochasticQuadratic(samples=4)
    draw = Draw(upper=(0,), lower=(1,), cross=(2,), hessian=(3,))
    found = estimate_constants(known.problem(), [draw])
    assert found.mu.value == pytest.approx(float(torch.linalg.eigvalsh(known.A_i[3])[0]))
    assert found.l_f0.value == pytest.approx(float((known.y0 - known.d + known.d_i[0]).norm()))


def test_what_is_found_can_be_used_by_the_theory():
    known = StochasticQuadratic(samples=6, noise=0.3)
    found = estimate_constants(known.problem(), [draw_of(k) for k in range(6)])
    others = {"l_g2": 0.1, "L_x0": 1.0, "L_x1": 0.1, "L_y0": 1.0, "L_y1": 0.1}
    constants = ProblemConstants(**others, **found.known())
    assert constants.mu == found.mu.value
    cautious = ProblemConstants(**others, **found.known(cautious=True))
    assert cautious.mu == found.mu.low < constants.mu
    assert cautious.sigma_g1 == found.sigma_g1.high > constants.sigma_g1
    assert cautious.derived().sigma_phi > constants.derived().sigma_phi


def test_it_prints_as_a_table():
    found = estimate_constants(StochasticQuadratic(mu=0.5).problem(), [draw_of(k) for k in range(4)])
    header, *lines = str(found).splitlines()
    assert "95 % interval" in header
    assert [line.split()[0] for line in lines] == ["mu", "l_g1", "l_f0", "sigma_f", "sigma_g1", "sigma_g2"]
    assert lines[0].split()[1] == "0.5"
    assert str(Estimate(1.0, 0.5, 2.0)) == "1 [0.5, 2]"


def test_misuse_is_explained():
    problem = Quadratic().problem()
    with pytest.raises(SettingError, match=r"solver\.problem"):
        estimate_constants(adambo.AdamBO(problem), [draw_of(0)])
    with pytest.raises(SampleError, match="at least one"):
        estimate_constants(problem, [])
    with pytest.raises(SampleError, match="Give a list"):
        estimate_constants(problem, draw_of(0))
    with pytest.raises(SampleError, match="one is int"):
        estimate_constants(problem, [3])
    with pytest.raises(SampleError, match="an upper batch"):
        estimate_constants(problem, [Draw(lower=(0,))])
    with pytest.raises(SampleError, match="lower role"):
        estimate_constants(problem, [Draw(upper=(0,))])
    with pytest.raises(SampleError, match="found 1"):
        estimate_constants(problem, [draw_of(0)], count=2)
    wrong_settings = [
        *({"count": 0}, {"probes": 0}, {"max_products": -1}, {"probes": 2.5}, {"tolerance": 0.0}, {"tolerance": "a"}),
        *({"tolerance": None}, {"seed": 1.5}, {"seed": "a"}, {"seed": True}, {"ledger": 3}),
    ]
    for wrong in wrong_settings:
        with pytest.raises(SettingError, match=next(iter(wrong))):
            estimate_constants(problem, [draw_of(0)], **wrong)
    problem.processes.active = True
    with pytest.raises(SettingError, match="group=None"):
        estimate_constants(problem, [draw_of(0)])


@pytest.mark.parametrize("where", ["upper", "lower"])
def test_nan_is_an_error(where):
    known = Quadratic().problem()
    losses = {"upper": known.upper, "lower": known.lower}
    plain = losses[where]
    losses[where] = lambda b: plain(b) * float("nan")
    with pytest.raises(NonFiniteError, match="NaN"):
        estimate_constants(Problem(**losses, x=known.x, y=known.y), [draw_of(0)])
