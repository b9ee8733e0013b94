"""The study of step sizes: its files, and what its numbers rest on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from adambo.studies import step_sizes_longer
from adambo.studies.catalogue import conducted
from adambo.studies.findings import Effort
from adambo.studies.step_size_runs import CONTROL, DISTANCES, GRID, PER_DECADE, Range, final_gradients, stable_step
from adambo.studies.step_sizes import METHODS, NORMALISED, PLAIN, _control


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = []
    for processes in (1, 2):
        folder = tmp_path_factory.mktemp("step-sizes")
        found = conducted("step-sizes", Effort(seeds=2, share=0.02, processes=processes))
        found.write(folder, "step-sizes", "adambo study step-sizes")
        made.append(folder)
    return made


def test_the_files_are_the_same_for_one_process_and_for_two(folders: list[Path]) -> None:
    for name in ("step-sizes.md", "step-sizes.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (folders[0] / "step-sizes.png").stat().st_size > 50_000


def test_every_method_has_its_numbers_for_every_seed_and_step_size(folders: list[Path]) -> None:
    numbers = json.loads((folders[0] / "step-sizes.json").read_text())
    assert len(numbers["final_gradients"]) == len(METHODS) * (1 + len(DISTANCES))
    assert {np.shape(each) for each in numbers["longer"].values()} == {(2, len(GRID))}
    assert all(np.shape(each["by_seed"]) == (2, len(GRID)) for each in numbers["final_gradients"])


def test_a_gradient_step_beyond_the_bound_leads_away_on_the_cosh() -> None:
    """On cosh alone, without the lower level: x − η sinh x comes nearer to 0 exactly if η < 2 d/sinh d."""
    d = 6.0
    bound = 2 * d / math.sinh(d)
    assert abs(d - 0.99 * bound * math.sinh(d)) < d < abs(d - 1.01 * bound * math.sinh(d))
    found = stable_step(6, seeds=3)
    assert 2 * d / (math.sinh(d) + 1.5**2 * d) < found.mean < bound  # 0.5 ≤ b ≤ 1.5


def test_plain_methods_diverge_beyond_the_bound_and_not_well_below_it() -> None:
    bound = stable_step(10, seeds=2).mean
    found = Range(final_gradients("StocBiO", 10, 60, 2))
    for lr, diverged in zip(GRID, found.diverged.T, strict=True):
        if lr > 1.2 * bound:
            assert diverged.all()
        if lr < 0.4 * bound:
            assert not diverged.any()


def test_normalised_steps_arrive_only_if_they_are_long_enough() -> None:
    """After T steps of length η, x is at most ηT from its start: with ηT < d√3 − 1 the gradient is still large."""
    steps, d = 200, 6
    found = Range(final_gradients("SLIP", d, steps, 2))
    for lr, converged in zip(GRID, found.converged.T, strict=True):
        if lr * steps < d * 3**0.5 - 1:
            assert not converged.any()
    assert Range(final_gradients("SLIP", 2, steps, 2)).some.all()


def test_the_range_counts_the_step_sizes_that_converge() -> None:
    row = [math.inf] * len(GRID)
    row[5], row[6], row[9] = 0.1, 0.4, 0.2
    found = Range([row, [1.0] * len(GRID)])
    assert found.decades == [3 / PER_DECADE, 0.0]
    assert (found.smallest(), found.largest()) == ([GRID[5]], [GRID[9]])
    assert found.holes() == [2]
    assert found.some.tolist() == [True, False]
    assert found.largest_finite()[1] == GRID[-1]
    assert Range([[1.0] * 3 + [math.inf] + [1.0] * (len(GRID) - 4)]).largest_finite() == [GRID[2]]


def test_on_the_quadratic_the_bound_is_that_of_gradient_descent() -> None:
    found = Range(final_gradients("StocBiO", CONTROL, 300, 2))
    bound = stable_step(CONTROL, seeds=2)
    edges = np.array(found.largest_finite())
    assert ((edges > bound.mean / 4) & (edges < 4 * bound.mean)).all()


def test_the_page_says_within_how_many_steps(folders: list[Path]) -> None:
    page = (folders[0] / "step-sizes.md").read_text()
    assert "9 of 9 of them converge within 20 steps at no step size" in page
    assert "1000 steps" not in page
    assert "Normalisation helps" not in page  # after 20 steps far out no method has converged


def some_that_converge(count: int) -> Range:
    return Range([[0.1] * count + [10.0] * (len(GRID) - count)] * 2)


@pytest.mark.parametrize(("near", "far", "helps"), [(2, 3, True), (2, 0, False), (8, 3, False)])
def test_normalisation_helps_only_if_normalised_methods_converge_far_out(near: int, far: int, helps: bool) -> None:
    ranges = {(label, CONTROL): some_that_converge(near) for label in NORMALISED}
    ranges |= {(label, DISTANCES[-1]): some_that_converge(far) for label in NORMALISED}
    ranges |= {(label, CONTROL): some_that_converge(5) for label in PLAIN}
    ranges |= {(label, DISTANCES[-1]): some_that_converge(0) for label in PLAIN}
    assert ("Normalisation helps" in _control(ranges)) is helps


def test_what_is_slow_is_told_from_what_never_converges() -> None:
    found = {"SOBA": (some_that_converge(0), some_that_converge(1)), "TTSA": (some_that_converge(0),) * 2}
    told = step_sizes_longer.sentence(found, 1000)
    assert "In 10000 steps" in told
    assert "that do not in 1000: SOBA (2 of 2 seeds, best final ‖∇Φ‖ 0.1 [0.1, 0.1])" in told
    assert told.endswith("Not even then: TTSA.")
