"""The study `neumann`: its exact moments against the library's own series, draw by draw, and its files."""

from __future__ import annotations

import json
import math
from itertools import product

import pytest
import torch
from test_theory_bounds import scalar_estimates

from adambo import Draw, Neumann
from adambo.studies import neumann
from adambo.studies.findings import Effort
from adambo.studies.neumann_sheets import SHOWN, TERMS
from adambo.studies.series_moments import FRESH, MODES, REUSED, Moments, Place, batches, moments
from adambo.testing import StochasticQuadratic, divided, flat


def hypergradients(known, terms, mode, sizes=1):
    """h of the library at (x0, y*) for every draw of the roles, with its chance."""
    place = Place(known)
    problem = known.problem()
    with torch.no_grad():
        for p, value in zip(problem.y, divided(known.y_star(known.x0), known.y_shapes), strict=True):
            p.copy_(value)
    inverse = Neumann(terms=terms, step=1 / place.l_g1, samples=mode if mode in FRESH else "shared")
    every = [list(batch) for batch in product(range(known.samples), repeat=sizes)]
    factors = inverse.needs.hessian
    levels = range(terms) if mode == "random" else [None]
    found = []
    for chosen in product(every, repeat=factors if mode in (*FRESH, "shared") else min(factors, 1)):
        same = mode in ("shared with cross", "shared with all") and bool(chosen)
        for cross in [chosen[0]] if same else every:
            for upper in [chosen[0]] if same and mode == "shared with all" else every:
                for level in levels:
                    used = chosen if level is None else chosen[:level]
                    point = problem.at(Draw(upper=(upper,), cross=(cross,), hessian=used, level=level))
                    point.backward(inverse.solve(point, point.f_y))
                    found.append(flat([p.grad for p in problem.x]))
                    for p in problem.x:
                        p.grad = None
    return torch.stack(found), place


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("terms", "samples", "sizes"), [(3, 3, 1), (2, 2, 2)])
def test_moments_are_those_of_all_draws_of_the_library(mode, terms, samples, sizes):
    known = StochasticQuadratic(dx=2, dy=2, seed=3, samples=samples, noise=0.8)
    h, place = hypergradients(known, terms, mode, sizes)
    found = moments(place, mode, [terms], batch=sizes)[0]
    assert found.bias == pytest.approx(float((h.mean(0) - place.truth).norm()), rel=1e-9)
    assert found.variance == pytest.approx(float((h - h.mean(0)).square().sum(1).mean()), rel=1e-9)
    assert found.squared_error == pytest.approx(float((h - place.truth).square().sum(1).mean()), rel=1e-9)


@pytest.mark.parametrize("mode", [*FRESH, "shared"])
def test_moments_in_one_dimension_are_those_of_the_specification(mode):
    """Two samples with curvatures 1.5 and 2.5, l = 4, Q = 4, only the series is random."""
    place = Place(StochasticQuadratic(dx=1, dy=1, samples=2))
    place.H = torch.tensor([[[1.5]], [[2.5]]], dtype=torch.float64)
    place.J = torch.ones(2, 1, 1, dtype=torch.float64)
    place.v, place.g = torch.full((2, 1), 0.9, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    place.l_g1, place.truth = 4.0, torch.zeros(1, dtype=torch.float64)
    found = moments(place, mode, [4])[0]
    values = [(chance, 0.9 * value) for chance, value in scalar_estimates(mode, (1.5, 2.5), 4.0, 4)]
    mean = sum(chance * value for chance, value in values)
    assert found.bias == pytest.approx(mean)
    assert found.variance == pytest.approx(sum(chance * (value - mean) ** 2 for chance, value in values))
    deviation = {"independent": 0.0368, "chained": 0.0543, "random": 0.3105, "shared": 0.0778}.get(mode)
    assert deviation is None or math.sqrt(found.variance) == pytest.approx(deviation, abs=5e-5)


def test_a_batch_is_its_counts():
    shares, chances = batches(4, 64)
    assert len(chances) == math.comb(67, 3)
    assert float(chances.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(chances @ shares, torch.full((4,), 0.25, dtype=torch.float64))
    # The variance of one share is (1/4)(3/4)/64.
    assert float(chances @ (shares[:, 0] - 0.25).square()) == pytest.approx(3 / 16 / 64)


def test_many_terms_reach_the_inverse_and_the_floor_is_of_second_order():
    place = Place(StochasticQuadratic(seed=1, mu=1.0, L=2.0, noise=0.05))
    for mode in REUSED:
        far, end = moments(place, mode, [200, None])
        assert far.bias == pytest.approx(end.bias, rel=1e-6)
        assert far.variance == pytest.approx(end.variance, rel=1e-6)
    floor = moments(place, "shared", [None])[0].bias
    exact = [found.bias for found in moments(place, "chained", [1, 7, 20])]
    assert [neumann.truncation_biases(place)[Q - 1] for Q in (1, 7, 20)] == pytest.approx(exact, rel=1e-9)
    assert neumann.second_order_floor(place, 1) == pytest.approx(floor, rel=0.05)
    assert moments(place, "chained", [200])[0].bias < 1e-9 < floor
    assert Moments(3.0, 1.0).squared_error == 10.0


def test_products_are_counted_as_the_specification_says():
    for Q in (1, 4, 6):
        found = {mode: neumann.products(mode, Q) for mode in MODES}
        assert found.pop("independent") == Q * (Q - 1) / 2
        assert found.pop("random") == (Q - 1) / 2
        assert set(found.values()) == {Q - 1}


def test_the_study_is_the_same_with_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(neumann, "CONDITIONS", (5.0, 20.0))
    monkeypatch.setattr(neumann, "NOISES", (0.1, 0.5))
    one, two = (neumann.study(Effort(seeds=2, processes=n)) for n in (1, 2))
    assert one.numbers == two.numbers
    page, figure, numbers = one.write(tmp_path, "neumann", "adambo study neumann")
    assert figure.stat().st_size > 10_000
    assert one.conclusions[0].startswith("The bound was exceeded in 0 of ")
    text = page.read_text()
    assert all(sentence in text for sentence in one.conclusions)
    cells = json.loads(numbers.read_text())["problems"][f"condition {SHOWN[0]:g}, noise {SHOWN[1]:g}"]
    for cell in cells:
        for k in range(len(TERMS)):
            biases = [cell["moments"][mode][k][0] for mode in FRESH]
            assert biases == pytest.approx([biases[0]] * 4, rel=1e-4)
            assert biases[0] <= cell["bound"][k]
