"""The study of rates: its files, and what its numbers rest on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from adambo.studies.catalogue import conducted
from adambo.studies.findings import Effort
from adambo.studies.rate import averages
from adambo.studies.rate_conclusions import _about_lambda, _slower
from adambo.studies.rate_curve import NO_NOISE, NOISE, RATIOS, Curve, practical
from adambo.studies.rate_scalings import MU, PROBLEMS, REFERENCE, SCALINGS, THEOREM, power_of, problem_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = []
    for processes in (1, 2):
        folder = tmp_path_factory.mktemp("rate")
        conducted("rate", Effort(seeds=2, share=0.001, processes=processes)).write(folder, "rate", "adambo study rate")
        made.append(folder)
    return made


def test_the_files_are_the_same_for_one_process_and_for_two(folders: list[Path]) -> None:
    for name in ("rate.md", "rate.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (folders[0] / "rate.png").stat().st_size > 50_000


def test_every_method_of_the_table_has_its_numbers(folders: list[Path]) -> None:
    numbers = json.loads((folders[0] / "rate.json").read_text())
    assert len(numbers["horizons"]) == 8
    named = {(each["problem"], each["method"]) for each in numbers["series"]}
    assert named == {(kind, label) for kind in PROBLEMS for label in SCALINGS}
    page = (folders[0] / "rate.md").read_text()
    assert all(f"| {label} |" in page for label in SCALINGS)


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("label", [THEOREM, "SUSTAIN"])
def test_a_seed_has_the_same_numbers_in_any_company(kind: str, label: str) -> None:
    few, many = (averages(kind, label, 0.5, 300, seeds) for seeds in (2, 5))
    for one, other in zip(few, many, strict=True):
        assert other[:2] == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("noise", [1e-3, 0.05, 0.5, 0.8])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_smoothness_does_not_depend_on_the_seeds(kind: str, noise: float) -> None:
    """Deviations of every seed are scaled to the same largest norm."""
    assert {problem_of(kind, noise, seeds).smoothness for seeds in (2, 3, 8, 20)} == {round(2 + noise, 12)}


@pytest.mark.parametrize("horizon", [256, 1024, 16384])
def test_adambo_is_scaled_as_the_theorem_says(horizon: int) -> None:
    smoothness = problem_of("quadratic", 0.5, 2).smoothness
    made, reference = (SCALINGS[THEOREM].at(each, smoothness) for each in (horizon, REFERENCE))
    factor = math.sqrt(REFERENCE / horizon)
    assert made.beta == pytest.approx(factor * reference.beta)
    assert made.lr == pytest.approx(factor * reference.lr)
    assert made.lower_lr == pytest.approx(2 * made.beta / MU)
    assert horizon >= 1 / made.beta**2 - 1e-9
    assert made.terms >= math.log(made.beta) / math.log(1 - MU / smoothness) / 2
    assert made.beta <= MU / (4 * smoothness)


def test_slopes_are_those_of_a_power_law_and_leave_out_seeds_that_diverged() -> None:
    horizons = [2**k for k in range(3, 11)]
    norms = [[3.0 * T**-0.25, 5.0 * T**-0.4, math.inf if T == 512 else 1.0] for T in horizons]
    squares = [[value**2 for value in row] for row in norms]
    curve = Curve(horizons, [[norm, square, norm] for norm, square in zip(norms, squares, strict=True)])
    assert curve.slopes == pytest.approx([-0.25, -0.4])
    assert curve.square_slopes == pytest.approx([-0.5, -0.8])
    assert curve.diverged == 1
    assert curve.cells[-1] == "1 of 3"


def test_the_average_is_over_the_points_before_each_step() -> None:
    """With one step the mean is the gradient where the runs start, of which the problem has a closed form."""
    problem = problem_of("unbounded", 0.5, 2)
    start = np.linalg.norm(np.sinh(problem.x0 - problem.e) + problem.b**2 * (problem.x0 - problem.e), axis=1)
    mean, square, _ = averages("unbounded", "SOBA", 0.5, 1, 2)
    assert mean == pytest.approx(start.tolist())
    assert square == pytest.approx((start**2).tolist())


def test_a_tiny_lambda_leaves_circles_as_wide_as_the_ratio_of_the_rates() -> None:
    """Without noise AdamBO's last gradients are proportional to η/β, whatever the horizon; λ = 1 removes them."""
    ends = {
        ratio: [averages("quadratic", f"AdamBO, λ = 1e-8, η = {ratio}", 1e-3, T, 2)[2][0] for T in (512, 2048)]
        for ratio in ("β", "4β")
    }
    for short, long in ends.values():
        assert long > 0.7 * short
    assert 3.0 < ends["4β"][1] / ends["β"][1] < 5.5
    assert averages("quadratic", THEOREM, 1e-3, 2048, 2)[2][0] < 0.1 * ends["β"][1]


def power_law(norm: float, square: float, end: float = 1.0) -> Curve:
    """A curve whose two seeds fall with these slopes, and end at `end`."""
    horizons = [2**k for k in range(7, 15)]
    return Curve(horizons, [[[T**norm] * 2, [T**square] * 2, [end] * 2] for T in horizons])


def test_a_method_that_is_slower_in_the_mean_square_alone_is_named() -> None:
    told = _slower(
        {("unbounded", "SUSTAIN", NOISE): power_law(-0.35, -0.43), ("quadratic", "SLIP", NOISE): power_law(-0.3, 0)}
    )
    assert "SUSTAIN on unbounded smoothness, mean square (−0.43 [−0.43, −0.43] against −2/3)" in told
    assert "mean norm" not in told
    assert "SLIP" not in told  # of its squares nothing is proved
    assert [power_of(proved) for proved in ("−1/5", "−2/3", "–")] == [-1 / 5, -2 / 3, None]


@pytest.mark.parametrize(("ratio", "told"), [(16.0, True), (756.0, False), (4.0, False)])
def test_circles_are_told_of_only_if_they_are_as_wide_as_expected(ratio: float, told: bool) -> None:
    curves = {("quadratic", practical(each), NOISE): power_law(-0.3, -0.5) for each in RATIOS}
    ends = {practical("4β"): ratio, practical("β/4"): 1.0, THEOREM: 1.0}
    curves |= {("quadratic", label, NO_NOISE): power_law(0.0, 0.0, end) for label, end in ends.items()}
    assert ("x circles" in _about_lambda("quadratic", curves, [2**k for k in range(7, 15)])) is told
