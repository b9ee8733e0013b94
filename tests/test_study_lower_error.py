"""The study `lower-error`: its simulation against the library's solver and closed forms, and its files."""

from __future__ import annotations

import math

import pytest
import torch

import adambo
from adambo import AdamBO, Draw, Neumann, Problem
from adambo.studies import lower_error, lower_error_sheets
from adambo.studies.findings import Effort
from adambo.studies.lower_error_runs import (
    BETA_SQ,
    FIRST_ERROR,
    SHARPEST,
    TERMS,
    adversary,
    coupled,
    minimisers,
    noises,
    setting,
    simulated,
    start,
)
from adambo.studies.lower_error_sheets import BETAS, BOUNDS, DELTAS, RUNS, share_interval
from adambo.theory import averages, contraction_error_bound, printed_error_bound, recursion_error_bound


def test_the_simulation_is_the_librarys_adambo():
    """The same noise in the same order: V_t of each run, and the momentum at y*, to 1e-12."""
    given, runs, steps = setting(2, 0.04), 3, 12
    known = given.known
    record = simulated(given, runs, steps, seed=5)
    for run in range(runs):
        generator = torch.Generator().manual_seed(5)
        x0, y0 = start(given, runs, generator)
        x, y = x0[run].clone().requires_grad_(), y0[run].clone().requires_grad_()
        problem = Problem(
            upper=lambda b, x=x, y=y: known.upper(x, y) + x @ b[:3] + y @ b[3:],
            lower=lambda b, x=x, y=y: known.lower(x, y) + y @ b,
            x=x,
            y=y,
        )
        solver = AdamBO(
            problem,
            lr=given.level.eta,
            lower_lr=given.level.gamma,
            beta=given.level.beta,
            beta_sq=BETA_SQ,
            eps=given.level.lam,
            inverse=Neumann(terms=TERMS, step=1 / SHARPEST),
        )
        stars = []
        for t in range(steps):
            error = (y - minimisers(known, x[None])[0]).detach().square().sum()
            assert float(error) == pytest.approx(float(record.errors[run, t]), abs=1e-12)
            if t == steps - 1:
                break
            below, above = (each[run] for each in noises(runs, generator))
            star = minimisers(known, x.detach()[None])[0]
            v = star - known.d + above[3:]
            stars.append(known.C @ (x.detach() - known.e) + above[:3] + known.B.T @ known.A @ given.series @ v)
            before = x.detach().clone()
            solver.step(Draw((above,), (below,), (below,), (below,) * (TERMS - 1)))
            step = (x.detach() - before).square().sum()
            assert float(step) == pytest.approx(float(record.squared_steps[run, t]), abs=1e-12)
        u = averages(given.level.beta, torch.stack(stars, dim=1)).norm(dim=0)
        torch.testing.assert_close(u, record.u_norms[run], rtol=1e-12, atol=1e-12)


def test_errors_with_x_at_rest_have_the_stationary_mean():
    given = setting(0, 0.05)
    still = given._replace(level=adambo.theory.LowerLevel(**{**vars_of(given.level), "eta": 1e-12}))
    V = simulated(still, 2000, 300, seed=1).errors[:, 200:]
    assert float(V.mean()) == pytest.approx(lower_error.stationary(given), rel=0.03)


def vars_of(level):
    return {name: getattr(level, name) for name in ("mu", "l_g1", "sigma_g1", "lam", "eta", "beta")}


def test_the_setting_obeys_the_theorem():
    for beta in BETAS:
        for seed in range(10):
            given = setting(seed, beta)
            level = given.level
            assert level.gamma <= 0.5 / level.l_g1
            assert abs(level.K * given.L**2 / beta - 0.25) < 1e-12
            assert torch.linalg.matrix_norm(given.known.B, ord=2) <= level.l_g1 / level.mu
    with pytest.raises(adambo.SettingError, match=r"above mu/\(4 l_g1\)"):
        setting(0, 0.2)


def test_the_noise_has_the_tail_that_the_theorem_assumes():
    below, _ = noises(200_000, torch.Generator().manual_seed(0))
    norms = below.norm(dim=1)
    for s in (0.2, 0.5, 0.8):
        assert float((norms >= s).double().mean()) == pytest.approx(math.exp(-2 * s**2 / 0.5**2), abs=3e-3)


def test_exceedances_for_other_deltas_are_those_of_the_bounds_themselves():
    """Errors scaled up until they do exceed: shifting by ln(1/δ) is the bound at that δ."""
    given = setting(1, 0.08)
    record = simulated(given, 100, 100, seed=0)
    smooth = torch.full_like(record.u_norms, given.L)
    found = lower_error.bounds_of(given, record.u_norms)
    errors = record.errors * 4.2
    of = {
        "recursion": lambda d: recursion_error_bound(given.level, FIRST_ERROR, record.u_norms, smooth, d, L=given.L),
        "contraction": lambda d: contraction_error_bound(
            given.level, FIRST_ERROR, record.u_norms, smooth, d, L=given.L
        ),
        "printed": lambda d: printed_error_bound(given.level, FIRST_ERROR, record.u_norms, smooth, d),
    }
    counts = {name: lower_error.exceeding(given.level, errors, found[name]) for name in of}
    assert counts == {name: [int((errors > bound(d)).any(1).sum()) for d in DELTAS] for name, bound in of.items()}
    assert counts["recursion"][0] > 0


def test_the_parts_of_the_bound_add_up():
    given = setting(3, 0.04)
    record = simulated(given, 20, 60, seed=0)
    total = lower_error.bounds_of(given, record.u_norms)["recursion"][:, -1].mean()
    assert sum(lower_error.parts(given, record.u_norms).values()) == pytest.approx(float(total), rel=1e-9)


def test_counter_examples_are_those_of_the_specification():
    found = lower_error.counter_examples(1000)
    rows = found["rows"]
    assert rows["(R), impulse in step 1"]["at 100"] == pytest.approx(5.64, abs=0.005)
    assert rows["(R), impulse in step 5"]["at 100"] == pytest.approx(7.29, abs=0.005)
    assert rows["(R), constant"]["largest"] == pytest.approx(16 / 15, rel=1e-6)
    assert rows["a path, impulse in step 1, coupling 64"]["first"] == 40
    assert rows["a path, impulse in step 1, coupling 1"]["first"] == 854
    assert rows["a path, impulse in step 1"]["first"] is None
    assert adversary(coupled(1.0), 10)[0] == 0.0
    sigma = rows["(R), constant"]["noise"]
    assert 0 < sigma < 1
    # It is in proportion to ‖û‖, and grows as β falls.
    ones = torch.ones(1000, dtype=torch.float64)
    assert lower_error.largest_noise(0.25, 3 * ones) == pytest.approx(3 * sigma, rel=0.02)
    by_beta = found["noise by beta"]
    assert by_beta[0.1] < by_beta[0.05] < by_beta[0.02]


def test_the_loosest_time_is_told():
    cell = {"steps": 250, "looseness": {name: [2.0, 50.0, 640.0, 30.0] for name in BOUNDS}}
    told = lower_error_sheets._looseness({0.08: [cell, cell]})
    assert "2 [2, 2] times the quantile at 0.2/β and 30 [30, 30] times at the end" in told
    assert "the loosest of the times is 5/β, with 640 [640, 640] times" in told


def test_the_interval_of_a_share():
    assert share_interval(0, 100) == (0.0, pytest.approx(1 - 0.025 ** (1 / 100)))
    assert share_interval(100, 100)[1] == 1.0
    low, high = share_interval(50, 100)
    assert low < 0.41 < 0.59 < high


def test_the_study_is_the_same_with_two_processes(tmp_path):
    one, two = (lower_error.study(Effort(seeds=2, share=0.02, processes=n)) for n in (1, 2))
    assert one.numbers == two.numbers
    page, figure, numbers = one.write(tmp_path, "lower-error", "adambo study lower-error")
    assert figure.stat().st_size > 10_000
    assert numbers.stat().st_size < 300_000
    assert f"No run of {RUNS * 2 * len(BETAS)} exceeded" in page.read_text()
    text = page.read_text()
    assert "runs last 0.4/β to 0.64/β steps" in text  # eight steps at least
    assert "times the quantile at 0.0064/β" in text
    assert not any(f"at {time}/β" in text for time in ("0.2", "5", "20"))
    for cell in one.numbers["beta"]["0.08"]:
        assert cell["largest step"] <= 1 + 1e-12
        assert set(cell["bounds"]) == set(BOUNDS)
