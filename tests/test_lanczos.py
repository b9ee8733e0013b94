"""Extreme eigenvalues by Lanczos' method, against spectra that are prescribed."""

from __future__ import annotations

import math

import pytest
import torch

from adambo import NonFiniteError, SettingError
from adambo.diagnostics import extreme_eigenvalues
from adambo.testing import normal


def log_uniform(n, kappa):
    return torch.logspace(0, 1, n, base=1 / kappa, dtype=torch.float64)


def linear(n, kappa):
    return torch.linspace(1, 1 / kappa, n, dtype=torch.float64)


def two_points(n, kappa):
    return torch.cat([torch.ones(n - n // 2), torch.full((n // 2,), 1 / kappa)]).double()


def one_small(n, kappa):
    return torch.cat([torch.ones(n - 1), torch.tensor([1 / kappa])]).double()


def crowded_below(n, kappa):
    """Half of the eigenvalues within 10 % of the smallest one."""
    crowd = (1 + 0.1 * torch.rand(n // 2, generator=torch.Generator().manual_seed(0))).double() / kappa
    return torch.cat([log_uniform(n - n // 2, kappa), crowd])


def crowded_above(n, kappa):
    """Half of the eigenvalues within 10 % of the largest one."""
    crowd = 1 - 0.1 * torch.rand(n // 2, generator=torch.Generator().manual_seed(0)).double()
    return torch.cat([log_uniform(n - n // 2, kappa), crowd])


SPECTRA = [log_uniform, linear, two_points, one_small, crowded_below, crowded_above]


def ends_of(eigenvalues, dtype=torch.float64, **settings):
    """In the basis of the eigenvectors: to Lanczos' method, which starts at random, all bases are the same."""
    eigenvalues = eigenvalues.to(dtype)
    return extreme_eigenvalues(
        lambda v: (eigenvalues * v.to(dtype)).double(), torch.zeros(1, len(eigenvalues), dtype=dtype), **settings
    )


def dense(eigenvalues, seed=0):
    basis = torch.linalg.qr(normal(len(eigenvalues), len(eigenvalues), generator=torch.Generator().manual_seed(seed)))
    return basis[0] * eigenvalues @ basis[0].T


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kappa", [1.0, 10.0, 1e4])
@pytest.mark.parametrize("n", [2, 5, 33, 100])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_both_ends_are_found_within_the_stated_error(spectrum, n, kappa, dtype):
    eigenvalues = spectrum(n, kappa).to(dtype).double()
    smallest, largest = float(eigenvalues.min()), float(eigenvalues.max())
    for seed in range(3):
        found = ends_of(eigenvalues, dtype, seed=seed)
        assert found.converged.all()
        assert found.products <= n
        assert float(found.smallest) == pytest.approx(smallest, rel=0.02)
        assert float(found.largest) == pytest.approx(largest, rel=0.02)
        rounding = 10 * torch.finfo(dtype).eps
        assert found.smallest - found.smallest_error <= smallest + rounding
        assert found.largest + found.largest_error >= largest - rounding
        assert found.smallest >= smallest - rounding
        assert found.largest <= largest + rounding


@pytest.mark.parametrize("spectrum", [log_uniform, crowded_below])
def test_a_thousand_dimensions_with_condition_number_1e4_need_fewer_products(spectrum):
    found = ends_of(spectrum(1000, 1e4))
    assert found.converged.all()
    assert found.products < 1000
    assert float(found.smallest) == pytest.approx(1e-4, rel=0.02)
    assert float(found.largest) == pytest.approx(1.0, rel=1e-6)


def test_a_dense_matrix_and_its_eigenvectors():
    H = dense(torch.cat([torch.linspace(1.0, 2.0, 58, dtype=torch.float64), torch.tensor([0.25, 5.0]).double()]))
    found = extreme_eigenvalues(lambda v: v @ H, torch.zeros(1, 60, dtype=torch.float64))
    for value, vector in ((0.25, found.smallest_vectors[0]), (5.0, found.largest_vectors[0])):
        torch.testing.assert_close(H @ vector, value * vector, rtol=0, atol=1e-2)
        assert float(vector.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "eigenvalues",
    [
        pytest.param(1e-4 + (1 - 1e-4) * torch.linspace(1, 0, 10).double().square(), id="hidden"),
        pytest.param(0.1 + 0.9 * torch.linspace(1, 0, 70).double().square(), id="dense at its end"),
        pytest.param(10 ** -torch.rand(70, generator=torch.Generator().manual_seed(0)).double(), id="irregular"),
        pytest.param(crowded_below(300, 10.0), id="crowded"),
    ],
)
def test_an_eigenvalue_that_many_starts_hardly_see_is_found_from_all_of_them(eigenvalues):
    smallest = float(eigenvalues.min())
    for seed in range(40):
        found = ends_of(eigenvalues, seed=seed)
        assert float(found.smallest) == pytest.approx(smallest, rel=0.02)
        assert found.smallest - found.smallest_error <= smallest * (1 + 1e-12)


def hidden_below(gap, bulk, seen=1e-4):
    """A smallest eigenvalue `gap` below 1, whose eigenvector the start of seed 0 hardly sees."""
    n = len(bulk) + 1
    start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = start / start.norm()
    basis = normal(n, n, generator=torch.Generator().manual_seed(100))
    beside = basis[:, 0] - start * (start @ basis[:, 0])
    share = seen / math.sqrt(n)  # a random vector would have about 1/√n
    basis[:, 0] = math.sqrt(1 - share**2) * beside / beside.norm() + share * start
    basis = torch.linalg.qr(basis)[0]
    eigenvalues = torch.cat([torch.tensor([1 / (1 + gap)], dtype=torch.float64), bulk])
    return float(eigenvalues[0]), basis * eigenvalues @ basis.T


ALONE = torch.cat([torch.ones(1), torch.linspace(2, 300, 148)]).double()


def test_a_value_that_rests_for_a_while_next_to_a_hidden_one_is_not_believed_at_once():
    smallest, H = hidden_below(0.05, ALONE)
    found = extreme_eigenvalues(lambda v: v @ H, torch.zeros(1, 150, dtype=torch.float64), seed=0)
    assert 72 < found.products < 150  # where it is found at 1, five percent off, with a small residual
    assert float(found.smallest) == pytest.approx(smallest, rel=1e-3)


def test_the_error_has_room_for_a_neighbour_that_is_taken_for_the_last_eigenvalue():
    smallest, H = hidden_below(0.005, ALONE, seen=1e-12)  # five tolerances away, and not seen at all
    found = extreme_eigenvalues(lambda v: v @ H, torch.zeros(1, 150, dtype=torch.float64), seed=0)
    assert found.products < 150
    assert found.converged.all()
    assert found.smallest - found.smallest_error <= smallest


def test_one_dimension_takes_one_product():
    found = ends_of(torch.tensor([3.0]))
    assert (float(found.smallest), float(found.largest), found.products) == (3.0, 3.0, 1)


def test_distinct_eigenvalues_count_not_dimensions():
    assert ends_of(torch.full((500,), 2.0)).products == 1
    assert ends_of(two_points(500, 100.0)).products == 2


def test_negative_and_zero_eigenvalues_are_found():
    found = ends_of(torch.linspace(-3, 2, 50, dtype=torch.float64))
    assert float(found.smallest) == pytest.approx(-3.0, rel=1e-2)
    nothing = ends_of(torch.zeros(50, dtype=torch.float64))
    assert (float(nothing.smallest), float(nothing.largest), nothing.products) == (0.0, 0.0, 1)
    singular = ends_of(torch.cat([torch.zeros(10), torch.ones(10)]).double())
    assert abs(float(singular.smallest)) < 1e-12
    assert singular.smallest - singular.smallest_error < 0


def test_matrices_of_different_difficulty_are_done_together():
    spectra = torch.stack(
        [log_uniform(120, 1e4), torch.full((120,), 7.0).double(), two_points(120, 3.0), 0 * linear(120, 2.0)]
    )
    found = extreme_eigenvalues(lambda v: spectra * v, spectra)
    assert found.converged.tolist() == [True] * 4
    torch.testing.assert_close(found.smallest, spectra.amin(dim=1), rtol=0.02, atol=1e-12)
    torch.testing.assert_close(found.largest, spectra.amax(dim=1), rtol=0.02, atol=1e-12)
    for k, vector in enumerate(found.smallest_vectors):
        torch.testing.assert_close(spectra[k] * vector, found.smallest[k] * vector, rtol=0, atol=1e-3)


@pytest.mark.parametrize("products", [12, 40, 150])
def test_spent_products_are_admitted_and_the_interval_still_holds(products):
    for seed in range(5):
        found = ends_of(log_uniform(1000, 1e4), max_products=products, seed=seed)
        assert found.products == products
        assert not found.converged.any()
        assert float(found.smallest) > 1.05e-4  # the Ritz value alone is an upper bound, and not a good one
        assert found.smallest - found.smallest_error <= 1e-4
        assert found.largest + found.largest_error >= 1.0


def test_very_few_products_promise_nothing():
    found = ends_of(log_uniform(1000, 1e4), max_products=2)
    assert found.smallest_error.item() == found.largest_error.item() == float("inf")


def test_the_norm_of_an_indefinite_matrix_needs_one_end_only():
    eigenvalues = torch.cat([torch.logspace(-6, -3, 299), torch.tensor([1.0])]).double()
    both, norm = ends_of(eigenvalues, max_products=200), ends_of(eigenvalues, relative_to="larger")
    assert not both.converged.any()
    assert norm.converged.all()
    assert norm.products < 100
    assert float(norm.largest) == pytest.approx(1.0)


def test_the_seed_decides_everything():
    H = log_uniform(200, 100.0)
    first, again, other = (ends_of(H, seed=seed, max_products=20) for seed in (0, 0, 1))
    assert torch.equal(first.smallest_vectors, again.smallest_vectors)
    assert float(first.smallest) == float(again.smallest) != float(other.smallest)


def test_no_random_number_of_the_program_is_used():
    state = torch.get_rng_state()
    ends_of(linear(10, 3.0))
    assert torch.equal(state, torch.get_rng_state())


def test_misuse_is_explained():
    square = torch.ones(1, 3, dtype=torch.float64)
    with pytest.raises(SettingError, match="one line per problem"):
        extreme_eigenvalues(lambda v: v, torch.ones(3))
    with pytest.raises(SettingError, match="tolerance"):
        extreme_eigenvalues(lambda v: v, square, tolerance=0.0)
    with pytest.raises(SettingError, match="max_products"):
        extreme_eigenvalues(lambda v: v, square, max_products=0)
    with pytest.raises(NonFiniteError, match="NaN"):
        extreme_eigenvalues(lambda v: v * float("nan"), square)
