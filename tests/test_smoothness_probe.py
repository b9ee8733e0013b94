"""The smoothness probe: against functions whose second derivatives are known, and without a trace in the problem."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import adambo
from adambo import Draw, Problem
from adambo.data.sequences import Sequences
from adambo.diagnostics import SmoothnessFit, SmoothnessProbe, SmoothnessRecord, fit_smoothness
from adambo.diagnostics.line import fitted_lines, resampled, upper_line
from adambo.diagnostics.place import coarsest_rounding, parameter_rounding
from adambo.errors import NonFiniteError, SampleError, SettingError, StateError
from adambo.inverse.neumann import SAFETY
from adambo.models.recurrent import SentenceRNN
from adambo.models.transformer import SentenceTransformer
from adambo.testing import Quadratic, StochasticQuadratic, TaskQuadratics, UnboundedSmooth, flat

ONE = Draw(upper=(0,))


def scalar_problem(function, start=4.0):
    """f = function(x) + ½ y², with x and y numbers that do not meet in f."""
    x = torch.tensor([start], dtype=torch.double, requires_grad=True)
    y = torch.zeros(1, dtype=torch.double, requires_grad=True)
    return Problem(lambda b: function(x).sum() + y.square().sum() / 2, lambda b: (y - x).square().sum() / 2, x, y)


def walked(problem, values, draw=ONE, **options):
    """A probe that measured between neighbours of `values`, which x[0] takes one after the other."""
    probe = SmoothnessProbe(problem, draw)
    for value in values:
        with torch.no_grad():
            problem.x[0].fill_(value)
        if probe._visited is not None:
            probe.measure(**options)
        probe.visit()
    return probe


def line_of_records(L0=1.0, L1=0.5, scatter=0.0, n=60, smallest=-2.0, largest=2.0):
    generator = torch.Generator().manual_seed(0)
    norms = 10 ** (smallest + (largest - smallest) * torch.rand(n, generator=generator, dtype=torch.double))
    noise = 1 + scatter * (2 * torch.rand(n, generator=generator, dtype=torch.double) - 1)
    return [
        SmoothnessRecord(t, "grad_x_f", float(g), float((L0 + L1 * g) * c), 1e-3, True)
        for t, (g, c) in enumerate(zip(norms, noise, strict=True))
    ]


def trained(solver, probe, draw, steps):
    for _ in range(steps):
        probe.visit()
        solver.step(draw)
        probe.measure(draw)


def sentence_problem(kind, dropout=0.0, dtype=torch.double):
    """Two classes of a few sentences: an encoder above, a linear head below."""
    torch.manual_seed(0)
    table = torch.randn(11, 6)
    if kind == "rnn":
        encoder = SentenceRNN(table, layers=2, hidden=8, dropout=dropout, pooling="last")
    else:
        encoder = SentenceTransformer(table, 1, heads=2, feed_forward=12, dropout=dropout, pooling="mean")
    encoder, head = encoder.to(dtype), nn.Linear(encoder.width, 2).to(dtype)
    rows = [[1 + (3 * i + 5 * j * j + i * j) % 11 for j in range(2 + i % 5)] for i in range(16)]
    tokens, lengths = Sequences(rows).take(torch.arange(16))
    labels = torch.tensor([sum(row) % 2 for row in rows])

    def loss(features, batch):
        return nn.functional.cross_entropy(head(features)[batch], labels[batch])

    def lower(features, batch):
        return loss(features, batch) + 0.05 * sum(p.square().sum() for p in head.parameters())

    problem = adambo.EncoderHeadProblem(lambda batch: encoder(tokens, lengths), loss, lower, encoder, head)
    return problem, Draw.of(torch.arange(8), torch.arange(8, 16), adambo.Needs(1, 1, 1, 2))


# Functions whose second derivatives are known


def test_a_step_measures_the_mean_second_derivative_exactly():
    problem = scalar_problem(torch.exp)
    probe = walked(problem, [1.0, 1.5])
    (record,) = [r for r in probe.records() if r["of"] == "grad_x_f"]
    assert record["gradient_norm"] == pytest.approx(math.exp(1.0), rel=1e-14)
    assert record["smoothness"] == pytest.approx((math.exp(1.5) - math.exp(1.0)) / 0.5, rel=1e-12)
    assert record["distance"] == 0.5
    assert record["resolved"]


def test_the_largest_change_per_distance_on_the_segment_counts():
    # The derivative of cos is −sin, from 0 to π and back to 0: over the whole segment it does not change at all.
    problem = scalar_problem(torch.cos)
    (record,) = [r for r in walked(problem, [0.0, math.pi], points=8).records() if r["of"] == "grad_x_f"]
    fractions = [k * math.pi / 8 for k in range(1, 9)]
    assert record["smoothness"] == pytest.approx(max(math.sin(t) / t for t in fractions), rel=1e-12)
    assert record["distance"] == pytest.approx(math.pi / 8)


def test_an_exponential_has_no_L0_and_L1_is_one():
    fit = walked(scalar_problem(torch.exp), [-3 + 0.01 * k for k in range(800)]).fit("grad_x_f")
    # Over a step s the mean of the second derivative is exp(x) (exp(s) − 1)/s.
    assert pytest.approx(math.expm1(0.01) / 0.01, rel=1e-9) == fit.L1
    assert pytest.approx(0.0, abs=1e-9) == fit.L0
    assert fit.L1_interval[0] <= fit.L1 * (1 + 1e-9)
    assert fit.exponent == pytest.approx(1.0, abs=1e-6)
    assert fit.verdict == "grows with the gradient norm"
    assert fit.r_squared > 1 - 1e-9


def test_a_fourth_power_grows_with_two_thirds_of_an_exponent():
    fit = walked(scalar_problem(lambda x: x**4), [0.5 * 1.01**k for k in range(300)]).fit("grad_x_f")
    assert fit.exponent == pytest.approx(2 / 3, abs=1e-3)
    assert fit.verdict == "grows with the gradient norm"
    # |f″| = 12 x² and |f′| = 4 |x|³
    L0, L1 = fit.envelope
    below = [12 * x**2 <= L0 + L1 * 4 * x**3 + 1e-9 for x in (0.5 * 1.01**k for k in range(300))]
    assert sum(below) >= 0.94 * 300


def test_a_quadratic_is_bounded_by_its_own_curvature():
    known = Quadratic(dx=3, dy=4, seed=0, distance=20.0)
    problem = known.problem()
    solver = adambo.AdamBO(problem, lr=1.0, lower_lr=0.2)
    solver.warm_start([None] * 30)
    probe, draw = SmoothnessProbe(solver), Draw.of(None, None, solver.needs)
    trained(solver, probe, draw, 120)
    largest = float(torch.linalg.eigvalsh(known.C)[-1])
    found = [r for r in probe.records() if r["of"] == "grad_x_f"]
    assert len(found) == 120
    assert all(0 < r["smoothness"] <= largest + 1e-9 for r in found)
    assert [r["step"] for r in found] == list(range(1, 121))
    fit = probe.fit("grad_x_f")
    assert fit.verdict == "bounded"
    assert fit.L1 * fit.norms[1] < fit.L0
    assert sum(fit.envelope[0] + fit.envelope[1] * r["gradient_norm"] >= r["smoothness"] for r in found) >= 114


def test_adambo_on_the_unbounded_smooth_problem_finds_its_constants():
    known = UnboundedSmooth(dim=1, distance=6.0)
    problem = known.problem()
    solver = adambo.AdamBO(problem, lr=0.1, lower_lr=0.5)
    solver.warm_start([None] * 50)
    probe, draw = SmoothnessProbe(solver), Draw.of(None, None, solver.needs)
    trained(solver, probe, draw, 130)
    fit = probe.fit("grad_x_f")
    # ∇x f = sinh(x − e), and cosh ≤ 1 + |sinh|. y follows b x, so a step is √(1 + b²) times as long as that in x.
    assert all(r["smoothness"] <= 1.06 * (1 + r["gradient_norm"]) for r in probe.records() if r["of"] == "grad_x_f")
    assert fit.verdict == "grows with the gradient norm"
    assert pytest.approx(1 / math.sqrt(1 + float(known.b) ** 2), rel=0.1) == fit.L1
    assert probe.fit("grad_y_f").verdict == "bounded"


def test_measuring_here_finds_the_second_derivative_without_a_step():
    known = UnboundedSmooth(dim=1, distance=3.0)
    problem = known.problem()
    y_part = float(known.b * known.e)
    probe = SmoothnessProbe(problem, ONE)
    for x in torch.linspace(1.0, 7.0, 25, dtype=torch.double):
        with torch.no_grad():
            problem.x[0].fill_(float(known.e + x))
            problem.y[0].fill_(y_part)  # where ∇y f = 0: the step is along x alone
        here, _ = probe.measure_here(Draw(upper=(None,)), lengths=(1e-5,))
        assert here.gradient_norm == pytest.approx(math.sinh(float(x)), rel=1e-12)
        assert here.smoothness == pytest.approx(math.cosh(float(x)), rel=1e-4)
    fit = probe.fit()
    assert pytest.approx(1.0, abs=1e-2) == fit.L1
    assert fit.verdict == "grows with the gradient norm"


def test_refinements_turn_to_the_largest_eigenvalue_of_the_upper_hessian():
    known = Quadratic(dx=4, dy=3, seed=1)
    x, y = known.parameters()
    scale = torch.tensor([1.0, 5.0, 30.0, 100.0], dtype=torch.double)
    problem = Problem(
        lambda b: scale @ flat(x).square() / 2 + flat(x)[:3] @ flat(y), lambda b: flat(y).square().sum(),
        x, y,
    )  # fmt: skip
    hessian = torch.zeros(7, 7, dtype=torch.double)
    hessian[:4, :4] = scale.diag()
    hessian[:3, 4:] = torch.eye(3)
    hessian[4:, :3] = torch.eye(3)
    with torch.no_grad():
        x[0].copy_(torch.tensor([3.0, 1.0]))
        x[1].fill_(1e-3)  # hardly a gradient in the steep directions
    probe = SmoothnessProbe(problem, ONE)
    along_gradient = probe.measure_here()[0].smoothness
    turned = probe.measure_here(refinements=15)[0].smoothness
    assert along_gradient < 10
    assert turned == pytest.approx(float(torch.linalg.eigvalsh(hessian).abs().max()), rel=1e-3)


def test_steep_directions_that_end_first_look_like_growth_and_refinements_see_through_it():
    x, y = (torch.ones(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=torch.double)
    problem = Problem(lambda b: (scale * x.square()).sum() / 2 + 0 * y.sum(), lambda b: (y - x).square().sum(), x, y)
    walking, here = SmoothnessProbe(problem, ONE), SmoothnessProbe(problem, ONE)
    for _ in range(150):
        walking.visit()
        with torch.no_grad():
            x.sub_(0.009 * scale * x)
        walking.measure()
        here.measure_here(refinements=12)
    assert walking.fit().verdict == "grows with the gradient norm"  # which a quadratic does not, as it goes on to say:
    assert "steep directions first looks the same" in str(walking.fit())
    assert "measure_here(refinements=10) settles it" in str(walking.fit())
    assert here.fit().verdict == "bounded"
    assert (walking.fit().refinements, here.fit().refinements) == (0, 12)
    assert pytest.approx(100.0, rel=1e-2) == here.fit().L0


def test_the_hypergradient_is_that_of_the_closed_form():
    known = UnboundedSmooth(dim=3, distance=2.0)
    problem = known.problem()
    lower = Draw(upper=(None,), cross=(None,))
    probe = SmoothnessProbe(problem, lower, of=("hypergradient",), inverse=adambo.Exact())
    starts, norms, changes = [known.e + 2.0, known.e + 1.5], [], []
    for start in starts:
        with torch.no_grad():
            for parts, values in ((problem.x, start), (problem.y, known.y_star(start))):
                for p, value in zip(parts, torch.split(values, [q.numel() for q in parts]), strict=True):
                    p.copy_(value.reshape(p.shape))
        found = [] if probe._visited is None else probe.measure()
        probe.visit()
        norms.append(float(known.gradient(start).norm()))
    (record,) = found
    distance = math.hypot(0.5 * 3**0.5, float((known.b * 0.5).norm()))
    changes = known.gradient(starts[1]) - known.gradient(starts[0])
    assert record.gradient_norm == pytest.approx(norms[0], rel=1e-12)
    assert record.distance == pytest.approx(distance, rel=1e-12)
    assert record.smoothness == pytest.approx(float(changes.norm()) / distance, rel=1e-10)


def test_neumann_keeps_one_step_for_both_points():
    # g = ½ eˣ y² − x y, f = y: two terms with step s give z = s (2 − s eˣ), and h = (1 − eˣ y) z.
    x, y = (torch.tensor([v], dtype=torch.double, requires_grad=True) for v in (0.0, 3.0))
    problem = Problem(lambda b: y.sum(), lambda b: (x.exp() * y.square() / 2 - x * y).sum(), x, y)
    inverse = adambo.Neumann(terms=2, step="auto")
    probe = SmoothnessProbe(problem, Draw(upper=(0,), cross=(0,)), of=("hypergradient",), inverse=inverse)
    probe.visit()
    with torch.no_grad():
        x.fill_(math.log(8.0))  # a new solve would take a shorter step here: the curvature is 8 times what it was
    (record,) = probe.measure()
    s = 1 / SAFETY
    h = [(1 - 3 * bend) * s * (2 - s * bend) for bend in (1.0, 8.0)]
    assert record.gradient_norm == pytest.approx(abs(h[0]), rel=1e-9)
    assert record.smoothness == pytest.approx(abs(h[1] - h[0]) / math.log(8.0), rel=1e-9)
    assert inverse.largest_curvature is None  # the probe worked with a copy


# Noise


def test_noise_of_the_batch_cancels():
    known = StochasticQuadratic(dx=3, dy=4, seed=0, samples=4, noise=50.0)
    problem = known.problem()
    probes = [SmoothnessProbe(problem) for _ in range(5)]
    for probe in probes:
        probe.visit()
    with torch.no_grad():
        for p in (*problem.x, *problem.y):
            p.add_(1e-3)
    draws = [Draw(upper=(batch,)) for batch in (0, 1, 2, 3, None)]
    found = [probe.measure(draw)[0].smoothness for probe, draw in zip(probes, draws, strict=True)]
    # F_i is f and a linear form, so every sample has the smoothness of the population; its gradients are far apart.
    assert found == pytest.approx([found[-1]] * 5, rel=1e-8)
    norms = [probe.records()[0]["gradient_norm"] for probe in probes]
    assert max(norms) > 2 * min(norms)


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_dropout_is_the_same_at_both_points(kind):
    problem, draw = sentence_problem(kind, dropout=0.5)
    probe = SmoothnessProbe(problem, draw)
    found = []
    for size in (1e-3, 1e-6):
        probe.visit()
        with torch.no_grad():
            for p in problem.x:
                p.add_(size)
        found.append(probe.measure()[0].smoothness)
    # With other masks the second would be a thousand times the first.
    assert found[1] == pytest.approx(found[0], rel=0.2)


def test_a_change_that_rounding_hides_is_left_out():
    x, y = torch.full((3,), 3.0, requires_grad=True), torch.ones(3, requires_grad=True)
    problem = Problem(lambda b: (x.exp() * y).sum(), lambda b: (y - x).square().sum(), x, y)
    probe = SmoothnessProbe(problem, ONE, of=("grad_x_f",))
    for k in range(20):
        probe.visit()
        with torch.no_grad():
            x.sub_(0.1 if k % 2 else 4e-7)
        probe.measure()
    assert [r["resolved"] for r in probe.records()] == [False, True] * 10
    fit = probe.fit()
    assert (fit.n, fit.left_out) == (10, 10)


def test_rounding_is_seen_where_a_gradient_is_a_sum_that_cancels():
    """Least squares in float32, down to the optimum: there a gradient is all rounding, however small its norm."""
    generator = torch.Generator().manual_seed(0)
    A, b = torch.randn(2000, 8, generator=generator), torch.randn(2000, generator=generator)
    x, y = torch.full((8,), 3.0, requires_grad=True), torch.zeros(1, requires_grad=True)
    problem = Problem(
        lambda _: (A @ x - b).square().mean() / 2 + 0 * y.sum(), lambda _: (y - x.sum()).square().sum(), x, y
    )
    probe = SmoothnessProbe(problem, ONE, of=("grad_x_f",))
    before = None
    while before is None or not torch.equal(x, before):
        if before is not None:
            probe.measure()
        probe.visit()
        before = x.detach().clone()
        (slope,) = torch.autograd.grad(problem.upper(None), x)
        with torch.no_grad():
            x.sub_(0.15 * slope)
    smallest, *_, biggest = torch.linalg.eigvalsh((A.T @ A / 2000).double()).tolist()
    clear = [r["smoothness"] for r in probe.records() if r["resolved"]]
    hidden = [r["smoothness"] for r in probe.records() if not r["resolved"]]
    assert min(len(clear), len(hidden)) >= 10
    assert all(0.9 * smallest <= s <= 1.1 * biggest for s in clear)
    assert max(hidden) > 1.5 * biggest


def test_autocast_rounds_more_than_parameters_do():
    problem = scalar_problem(torch.exp)
    assert coarsest_rounding(problem) == parameter_rounding(problem) == torch.finfo(torch.float64).eps
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert coarsest_rounding(problem) == torch.finfo(torch.bfloat16).eps
        assert parameter_rounding(problem) == torch.finfo(torch.float64).eps


# Networks


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_a_network_along_training(kind):
    problem, draw = sentence_problem(kind)
    solver = adambo.AdamBO(problem, lr=2e-3, lower_lr=0.1)
    probe = SmoothnessProbe(solver, draw)
    trained(solver, probe, draw, 12)
    for of in ("grad_x_f", "grad_y_f"):
        found = [r for r in probe.records() if r["of"] == of]
        assert [r["step"] for r in found] == list(range(1, 13))
        assert all(r["resolved"] and r["smoothness"] > 0 for r in found)
        assert isinstance(probe.fit(of), SmoothnessFit)


@pytest.mark.parametrize("of", [("grad_x_f", "grad_y_f"), ("hypergradient",)])
def test_nothing_of_the_problem_is_changed(of):
    problem, draw = sentence_problem("rnn", dropout=0.3)
    norm_layer = nn.BatchNorm1d(8).double()
    encode = problem.encoder
    problem = adambo.EncoderHeadProblem(
        lambda batch: norm_layer(encode(batch)), problem.upper, problem.lower, [*problem.modules[:1], norm_layer],
        problem.modules[1],
    )  # fmt: skip
    solver = adambo.AdamBO(problem, lr=1e-2, lower_lr=0.1)
    probe = SmoothnessProbe(solver, of=of)
    probe.visit()
    solver.step(draw)
    for p in (*problem.x, *problem.y):
        p.grad = torch.full_like(p, 7.0)

    def everything():
        states = [*problem.x, *problem.y, *(p.grad for p in (*problem.x, *problem.y)), *problem.buffers]
        return [*(t.detach().clone() for t in states), torch.get_rng_state()]

    before, counts = everything(), solver.ledger.as_dict()
    probe.measure(draw, points=2)
    probe.measure_here(draw, refinements=1)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
    assert solver.ledger.as_dict() == counts
    assert problem.buffers


def test_training_is_bit_for_bit_the_same_with_a_probe():
    ends = []
    for measured in (False, True):
        problem, draw = sentence_problem("transformer", dropout=0.3, dtype=torch.float32)
        solver = adambo.AdamBO(problem, lr=1e-2, lower_lr=0.1)
        probe = SmoothnessProbe(solver)
        torch.manual_seed(3)
        for _ in range(4):
            probe.visit()
            solver.step(draw)
            if measured:
                probe.measure(draw)
                probe.measure_here(draw)
        ends.append(flat([*problem.x, *problem.y]).detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_tasks_are_measured_on_the_rows_of_the_draw(form):
    known = TaskQuadratics(count=5)
    problem = getattr(known, form)()
    solver = adambo.AdamBO(problem, lr=0.1, lower_lr=0.1)
    draw = Draw.of([1, 3], [1, 3], solver.needs)
    probe = SmoothnessProbe(solver)
    probe.visit()
    before = [p.detach().clone() for p in (*problem.x, *problem.y)]
    solver.step(draw)
    after = [p.detach().clone() for p in (*problem.x, *problem.y)]
    with torch.no_grad():
        for table in problem.y:
            table[0] += 100.0  # a row that f on this draw does not know
    _, in_y = probe.measure(draw)
    way = torch.cat([(b - a).reshape(-1) for a, b in zip(before, after, strict=True)])
    assert in_y.distance == pytest.approx(float(way.norm()), rel=1e-12)
    # ∇y f = (y_i − d_i)/2 for the two tasks
    change = torch.cat([(b - a).reshape(-1) / 2 for a, b in zip(before, after, strict=True)][2:])
    assert in_y.smoothness == pytest.approx(float(change.norm() / way.norm()), rel=1e-10)
    assert torch.equal(problem.y[0][1:], after[2][1:])


def test_oracle_calls_are_counted_where_the_caller_says():
    ledger = adambo.Ledger()
    problem = Quadratic().problem()
    probe = SmoothnessProbe(problem, Draw(upper=(None,), cross=(None,)), of=("hypergradient",), ledger=ledger)
    probe.visit()
    with torch.no_grad():
        problem.x[0].add_(1.0)
    probe.measure(points=2)
    assert ledger.as_dict() == {
        "grad_x_f": 4, "grad_y_f": 4, "grad_x_g": 0, "grad_y_g": 0, "hessian_vector": 40, "cross_vector": 4,
        "curvature_vector": 0, "samples": 3,
    }  # fmt: skip


# The fit


def test_least_squares_keeps_its_bounds_and_is_the_minimum():
    generator = torch.Generator().manual_seed(0)
    for trial in range(30):
        g = torch.rand(20, generator=generator, dtype=torch.double)
        L = (torch.rand(20, generator=generator, dtype=torch.double) + (trial % 3 - 1) * g).abs()
        a, b = fitted_lines(g, L, torch.arange(20).unsqueeze(0))[0].tolist()
        assert a >= 0
        assert b >= 0
        grid = torch.cartesian_prod(*(torch.linspace(0, 2, 101, dtype=torch.double),) * 2)
        costs = (L - grid[:, :1] - grid[:, 1:] * g).square().sum(dim=1)
        assert float((L - a - b * g).square().sum()) <= float(costs.min()) + 1e-12


def test_the_envelope_is_above_95_percent_and_no_higher_than_it_must_be():
    records = line_of_records(scatter=0.6, n=200)
    g = torch.tensor([r.gradient_norm for r in records], dtype=torch.double)
    L = torch.tensor([r.smoothness for r in records], dtype=torch.double)
    L0, L1 = upper_line(g, L)
    below = L0 + L1 * g + 1e-12 >= L
    assert 190 <= int(below.sum()) <= 196
    assert 1.0 <= L0 <= 1.6 + 1e-9
    assert 0.5 <= L1 <= 0.8 + 1e-9


def test_intervals_hold_the_truth_and_are_seeded():
    records = line_of_records(L0=1.0, L1=0.5, scatter=0.2, n=200)
    fit = fit_smoothness(records)
    assert fit.L0_interval[0] <= 1.0 <= fit.L0_interval[1]
    assert fit.L1_interval[0] <= 0.5 <= fit.L1_interval[1]
    assert fit.L1_interval[1] - fit.L1_interval[0] < 0.1
    low, high = fit.band(10.0)
    assert low <= 1.0 + 0.5 * 10.0 <= high
    assert fit == fit_smoothness(records)
    assert fit.L1_interval != fit_smoothness(records, seed=1).L1_interval


def test_scatter_alone_is_bounded_and_a_small_range_cannot_be_told():
    assert fit_smoothness(line_of_records(L0=2.0, L1=0.0, scatter=0.5)).verdict == "bounded"
    narrow = fit_smoothness(line_of_records(L0=0.0, L1=1.0, smallest=0.0, largest=0.2))
    assert narrow.verdict == "cannot be told"
    low, high = narrow.norms
    assert f"from {low:.3g} to {high:.3g}" in str(narrow)
    noisy = fit_smoothness(line_of_records(L0=1.0, L1=0.01, scatter=0.9, n=10))
    assert noisy.verdict == "cannot be told"


def test_growth_by_less_than_two_is_bounded_and_by_more_is_growth():
    low, high = fit_smoothness(line_of_records()).norms
    for growth, verdict in ((1.75, "bounded"), (1.95, "bounded"), (2.05, "grows with the gradient norm")):
        fit = fit_smoothness(line_of_records(L0=1.0, L1=(growth - 1) / (high - growth * low)))
        assert fit.growth == pytest.approx(growth)
        assert fit.verdict == verdict


def test_gradient_norms_have_to_span_a_factor_of_three():
    narrow, wide = (fit_smoothness(line_of_records(0.0, 1.0, smallest=0.0, largest=end)) for end in (0.47, 0.6))
    assert narrow.growth == pytest.approx(narrow.norms[1] / narrow.norms[0])
    assert 2.2 < narrow.growth < 3 < wide.growth
    assert narrow.verdict == "cannot be told"
    assert wide.verdict == "grows with the gradient norm"


def test_growth_that_refinements_confirm_has_no_caveat():
    records = line_of_records()
    assert "settles it" in str(fit_smoothness(records))
    for refinements, settled in ((9, False), (10, True)):
        refined = [replace(record, refinements=refinements) for record in records]
        assert fit_smoothness(refined).verdict == "grows with the gradient norm"
        assert (fit_smoothness(refined).caveat == "") is settled
    mixed = [replace(record, refinements=10 * (record.step % 2)) for record in records]
    assert "settles it" in str(fit_smoothness(mixed))


def test_points_that_resemble_their_neighbours_make_intervals_wider():
    """The same points in two orders: with errors of one sign in runs of eight, and with errors that alternate."""
    points = line_of_records(n=64, smallest=0.0, largest=1.0)
    signs = [1.0 if t % 16 < 8 else -1.0 for t in range(64)]
    runs = [replace(p, smoothness=p.smoothness + s) for p, s in zip(points, signs, strict=True)]
    order = [t for pair in zip(*(range(start, 64, 16) for start in range(16)), strict=True) for t in pair]
    mixed = [runs[t] for t in sorted(order, key=lambda t: (t % 8, t))]
    width = [fit.L0_interval[1] - fit.L0_interval[0] for fit in (fit_smoothness(runs), fit_smoothness(mixed))]
    assert width[0] > 1.4 * width[1]
    chosen = next(iter(resampled(64, seed=0)))
    assert ((chosen[:, 1::4] - chosen[:, ::4]) % 64 == 1).all()


def test_gradients_of_exactly_zero_are_no_end_of_the_range():
    at_rest = [SmoothnessRecord(t, "grad_x_f", 0.0, 0.0, 1e-3, True) for t in range(3)]
    straight = [SmoothnessRecord(t, "grad_x_f", float(t), float(t), 1e-3, True) for t in range(1, 20)]
    fit = fit_smoothness([*at_rest, *straight])
    assert fit.growth_interval == pytest.approx((18.1 / 1.9,) * 2)  # from the 5 % to the 95 % quantile of the others
    assert fit.verdict == "grows with the gradient norm"
    assert pytest.approx(1.0) == fit.L1
    narrow = [replace(record, gradient_norm=2.0 + record.step / 10, smoothness=1.0) for record in straight]
    assert fit_smoothness([*at_rest[:1], *narrow]).verdict == "cannot be told"  # less than a factor of 3 apart
    flat = fit_smoothness([replace(record, gradient_norm=1.0) for record in at_rest * 3])
    assert (flat.growth, flat.L0, flat.L1, flat.verdict) == (1.0, 0.0, 0.0, "cannot be told")


def test_records_that_are_no_finite_numbers_are_refused():
    for wrong in (math.nan, math.inf, -1.0, "a"):
        for name in ("gradient_norm", "smoothness", "distance"):
            with pytest.raises(SettingError, match="not finite"):
                fit_smoothness([replace(record, **{name: wrong}) for record in line_of_records()])
    apart = [
        replace(r, gradient_norm=10.0 ** (30 * k), smoothness=10.0 ** (30 * k))
        for k, r in enumerate(line_of_records(n=10))
    ]
    with pytest.raises(SampleError, match="too far apart"):
        fit_smoothness(apart)


def test_the_verdict_says_when_steps_were_too_long_for_the_inequality():
    records = [SmoothnessRecord(r.step, r.of, r.gradient_norm, r.smoothness, 5.0, True) for r in line_of_records()]
    assert "exceed 1/L1 = 2" in str(fit_smoothness(records))
    assert "exceed" not in str(fit_smoothness(line_of_records()))


def test_records_are_plain_data_and_can_be_fitted_when_read_again():
    probe = walked(scalar_problem(torch.exp), [0.1 * k for k in range(30)])
    read = json.loads(json.dumps(probe.records()))
    assert fit_smoothness(read) == probe.fit()
    for record in read:
        del record["refinements"]  # as in records of before it was one of their names
    assert fit_smoothness(read) == probe.fit()
    with pytest.raises(SettingError, match="A smoothness record has step"):
        fit_smoothness([{"step": 1}])
    plain = json.loads(json.dumps(probe.fit().as_dict()))
    assert plain["L1"] == probe.fit().L1
    assert "resamples" not in plain


# The figure


def test_the_figure_is_a_png_with_points_lines_and_the_verdict(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    probe = walked(scalar_problem(torch.cosh), [0.1 * k for k in range(40)])
    fit = probe.figure(tmp_path / "smoothness.png", "grad_x_f")
    assert (tmp_path / "smoothness.png").read_bytes().startswith(b"\x89PNG")
    place = drawn[0].axes[0]
    assert (place.get_xscale(), place.get_yscale()) == ("log", "log")
    assert place.get_title(loc="left").endswith("grows with the gradient norm along the directions taken")
    assert fit.verdict in place.get_title(loc="left")
    assert "norm of ∇x f" in place.get_xlabel()
    (points,) = [c for c in place.collections if len(c.get_offsets()) == 38]  # at x = 0 the gradient is zero
    assert points.get_array().tolist() == list(range(1, 39))
    assert len(place.get_lines()) == 2


def test_without_matplotlib_the_figure_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; import adambo.diagnostics as d; from adambo.errors import *\n"
        "r = [d.SmoothnessRecord(t, 'grad_x_f', t + 1.0, t + 2.0, 0.1, True) for t in range(9)]\n"
        "p = d.SmoothnessProbe.__new__(d.SmoothnessProbe); p._records, p.of = r, ('grad_x_f',)\n"
        f"try: p.figure({str(tmp_path / 'a.png')!r})\n"
        "except SettingError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'adambo[experiments]'" in out


# Misuse


def test_misuse_is_refused_with_a_sentence():
    problem = Quadratic().problem()
    probe = SmoothnessProbe(problem, Draw(upper=(None,)))
    with pytest.raises(StateError, match=r"visit\(\) before the step"):
        probe.measure()
    probe.visit()
    with pytest.raises(StateError, match="have not moved"):
        probe.measure()
    with pytest.raises(SampleError, match="at least 8 points, but there are 0"):
        probe.fit()
    with pytest.raises(SettingError, match="points=0"):
        probe.measure(points=0)
    for lengths in ((0.0,), (), 5.0, ["a"], "1"):
        with pytest.raises(SettingError, match="lengths="):
            probe.measure_here(lengths=lengths)
    with pytest.raises(SettingError, match="changes no parameter"):
        probe.measure_here(lengths=(1e-300,))
    with pytest.raises(SettingError, match="not a gradient that is measured"):
        probe.fit("f_x")
    with pytest.raises(SampleError, match="The probe has no draw"):
        SmoothnessProbe(problem).measure_here()
    with pytest.raises(SampleError, match="an upper batch"):
        SmoothnessProbe(problem).measure_here(Draw(lower=(None,)))
    with pytest.raises(SampleError, match="lower batch as well"):
        SmoothnessProbe(problem, Draw(upper=(None,)), of=("hypergradient",))
    with pytest.raises(SettingError, match="names no gradients"):
        SmoothnessProbe(problem, of="grad_x_f")
    with pytest.raises(SettingError, match="a solver or a problem"):
        SmoothnessProbe(nn.Linear(2, 2))
    with pytest.raises(SettingError, match=r"seed=1\.5"):
        SmoothnessProbe(problem, seed=1.5)
    assert probe.records() == []


def test_a_gradient_of_zero_has_no_direction_and_an_infinite_one_no_norm():
    at_rest = scalar_problem(lambda x: x**4, start=0.0)
    with pytest.raises(StateError, match="no direction"):
        SmoothnessProbe(at_rest, ONE).measure_here()
    far = scalar_problem(torch.exp, start=709.0)
    probe = SmoothnessProbe(far, ONE)
    probe.visit()
    with torch.no_grad():
        far.x[0].fill_(711.0)
    with pytest.raises(NonFiniteError, match="grad_x_f"):
        probe.measure()
    assert far.x[0].tolist() == [711.0]


def test_an_upper_loss_without_x_is_pointed_to_the_hypergradient():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    problem = Problem(lambda b: y.square().sum(), lambda b: (y - x).square().sum(), x, y)
    probe = SmoothnessProbe(problem, ONE)
    for _ in range(9):
        probe.measure_here()
    with pytest.raises(SampleError, match="hypergradient is to be had"):
        probe.fit("grad_x_f")
    assert pytest.approx(2.0, rel=1e-3) == probe.fit("grad_y_f").L0
