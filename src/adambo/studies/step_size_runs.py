"""Runs of all methods with all step sizes on one problem, and the step sizes with which they converged."""

from __future__ import annotations

import numpy as np

from adambo.studies.batched_methods import Settings
from adambo.studies.batched_problems import Array, batched
from adambo.studies.batched_recursive import true_gradients
from adambo.studies.interval import Interval, geometric
from adambo.testing import StochasticQuadratic, StochasticUnboundedSmooth

WARM_START = 50
PER_DECADE, SMALLEST, LARGEST = 4, -6, 2
GRID = [10.0 ** (k / PER_DECADE) for k in range(SMALLEST * PER_DECADE, LARGEST * PER_DECADE + 1)]
CONTROL, DISTANCES = 0, (2, 4, 6, 8, 10, 12)  # a distance of 0 stands for the quadratic
PLACES = (CONTROL, *DISTANCES)
TOLERANCE, DIVERGED, NOISE = 0.5, 1e9, 0.1
ADAM = {"AdamBO, β_sq = 0.001": ("AdamBO", 1e-3), "AdamBO, β_sq = 0.1": ("AdamBO", 0.1)}
ADAM["VR-AdamBO"] = ("VR-AdamBO", 1e-3)


def final_gradients(label: str, distance: int, steps: int, seeds: int) -> list[list[float]]:
    """The mean of ‖∇phi(x_t)‖ over the last tenth of a run, for each seed and step size; inf if it diverged."""
    rows = [(seed, lr) for seed in range(seeds) for lr in GRID]
    known = [problem_of(distance, seed) for seed in range(seeds)]
    problem = batched([known[seed] for seed, _ in rows])
    method, beta_sq = ADAM.get(label, (label, 1e-3))
    settings = Settings(
        lr=np.array([[lr] for _, lr in rows]),
        lower_lr=0.2,
        beta=0.1,
        beta_sq=beta_sq,
        terms=6,
        penalty=10.0,
        penalty_growth=0.04,
    )
    last, total = max(1, steps // 10), np.zeros(len(rows))
    with np.errstate(all="ignore"):
        for t, found in enumerate(true_gradients(method, problem, settings, [s for s, _ in rows], steps, WARM_START)):
            if t >= steps - last:
                total = total + found
    total = np.where(np.isfinite(total), total / last, np.inf)
    final: list[list[float]] = total.reshape(seeds, len(GRID)).tolist()
    return final


def problem_of(distance: int, seed: int) -> StochasticQuadratic | StochasticUnboundedSmooth:
    """The problem of a seed, of which every step size makes a run."""
    if distance == CONTROL:
        return StochasticQuadratic(dx=3, dy=3, seed=seed, L=2.0, distance=5.0, noise=NOISE)
    return StochasticUnboundedSmooth(dim=3, seed=seed, distance=float(distance), noise=NOISE)


def stable_step(distance: int, seeds: int) -> Interval:
    """The step size from which on a plain gradient step leads away from the optimum, over the seeds.

    On the cosh it is 2 d/phi′(d), the smallest over the coordinates, where the start is d away; on the quadratic, 2
    over the largest eigenvalue of ∇²phi.
    """
    found = []
    for seed in range(seeds):
        problem = problem_of(distance, seed)
        if isinstance(problem, StochasticQuadratic):
            hessian = problem.B.T @ problem.B + problem.C
            found.append(2 / float(np.linalg.eigvalsh(hessian.numpy()).max()))
        else:
            found.append(2 * distance / float(problem.gradient(problem.x0).max()))
    return geometric(found)


class Range:
    """Final gradients of a method on one problem, (seeds, step sizes), and the step sizes with which it converged."""

    def __init__(self, final: list[list[float]]) -> None:
        self.final = np.array(final)
        self.converged = self.final <= TOLERANCE
        self.diverged = ~(self.final <= DIVERGED)
        self.some = self.converged.any(axis=1)

    @property
    def decades(self) -> list[float]:
        """How many decades of step sizes converge, for each seed; gaps do not count."""
        return (self.converged.sum(axis=1) / PER_DECADE).tolist()  # type: ignore[no-any-return]

    @property
    def best(self) -> Array:
        found: Array = self.final.min(axis=1)
        return found

    def smallest(self) -> list[float]:
        return [GRID[int(np.argmax(row))] for row in self.converged[self.some]]

    def largest(self) -> list[float]:
        return [GRID[len(GRID) - 1 - int(np.argmax(row[::-1]))] for row in self.converged[self.some]]

    def holes(self) -> list[int]:
        """How many step sizes between the smallest and the largest that converge do not, for each seed with such."""
        ends = [np.flatnonzero(row) for row in self.converged[self.some]]
        return [int(each[-1] - each[0] + 1 - len(each)) for each in ends]

    def largest_finite(self) -> list[float]:
        """The largest step size up to which no run of the seed diverged, even if it stalled."""
        ends = np.where(self.diverged.any(axis=1), self.diverged.argmax(axis=1), len(GRID)) - 1
        return [GRID[int(end)] for end in ends]
