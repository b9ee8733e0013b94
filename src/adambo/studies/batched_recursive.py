"""The methods that evaluate every sample at two points (SUSTAIN, FSLA, AccBO, VR-AdamBO, VRBO), many runs at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adambo.studies import batched_methods
from adambo.studies.batched_methods import BatchedMethod, RunningZ, Settings, norms, unit
from adambo.studies.batched_problems import Array, BatchedProblem, Indices
from adambo.studies.batched_samples import Sampler, Samples


class SUSTAIN(BatchedMethod):
    h: Array
    g: Array
    previous: tuple[Array, Array]

    def step(self, i: Samples) -> None:
        h, g = self._at(self.x, self.y, i)
        if self.t > 0:
            h_then, g_then = self._at(*self.previous, i)
            h = h + (1 - self.set.beta) * (self.h - h_then)
            g = g + (1 - self.set.beta) * (self.g - g_then)
        self.h, self.g, self.previous = h, g, (self.x, self.y)
        self.x, self.y = self.x - self.set.lr * h, self.y - self.set.lower_lr * g

    def _at(self, x: Array, y: Array, i: Samples) -> tuple[Array, Array]:
        h = self.estimate(x, y, i.upper[0], i.cross[0], self.random(x, y, i))
        return h, self.problem.g_y(x, y, i.lower[0])


class FSLA(RunningZ):
    x_then: Array

    def step(self, i: Samples) -> None:
        s, y, z = self.set, self.y, self.z
        self.y = y - s.lower_lr * self.problem.g_y(self.x, y, i.lower[0])
        self.z = self.z_next(i.upper[0], i.hessian[0])
        m = self.estimate(self.x, self.y, i.upper[0], i.cross[0], self.z)
        if self.t > 0:
            m = m + (1 - s.beta) * (self.m - self.estimate(self.x_then, y, i.upper[0], i.cross[0], z))
        self.m, self.x_then = m, self.x
        self.x = self.x - s.lr * m


class Accelerated(BatchedMethod):
    """Option 1: one Nesterov step below in each step, and averaging."""

    m: Array
    y_hat: Array
    y_prev: Array
    previous: tuple[Array, Array]

    def recursion(self, i: Samples, h: Array, h_then: Array | None) -> None:
        """m_t, ŷ_{t+1} and y_{t+1}."""
        s = self.set
        self.m = h if h_then is None else h + (1 - s.beta) * (self.m - h_then)
        self.previous = (self.x, self.y_hat)
        w = self.y + s.nesterov * (self.y - self.y_prev)
        self.y_prev, self.y = self.y, w - s.lower_lr * self.problem.g_y(self.x, w, i.lower[0])
        self.y_hat = self.y_hat + s.averaging * (self.y - self.y_hat)

    def begin(self) -> None:
        if self.t == 0:
            self.y_hat = self.y_prev = self.y


class AccBO(Accelerated):
    def step(self, i: Samples) -> None:
        self.begin()
        self.recursion(i, self._at(self.x, self.y_hat, i), self._at(*self.previous, i) if self.t > 0 else None)
        self.x = self.x - self.set.lr * unit(self.m)

    def _at(self, x: Array, y: Array, i: Samples) -> Array:
        return self.estimate(x, y, i.upper[0], i.cross[0], self.random(x, y, i))


class VRAdamBO(Accelerated):
    v: Array

    def step(self, i: Samples) -> None:
        self.begin()
        s, h = self.set, self._at(self.x, self.y_hat, i)
        self.v = s.beta_sq * h**2 + ((1 - s.beta_sq) * self.v if self.t > 0 else 0.0)
        self.recursion(i, h, self._at(*self.previous, i) if self.t > 0 else None)
        v_hat = self.v / (1 - (1 - s.beta_sq) ** (self.t + 1))
        self.x = self.x - s.lr * self.m / (np.sqrt(v_hat) + s.eps)

    def _at(self, x: Array, y: Array, i: Samples) -> Array:
        return self.estimate(x, y, i.upper[0], i.cross[0], self.chained(x, y, i))


class VRBO(BatchedMethod):
    """With inner_steps=1, and the population as its large batch."""

    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 3, 3, 3, 3 * (self.set.terms - 1)

    def step(self, i: Samples) -> None:
        s, products, population = self.set, self.set.terms - 1, self.problem.everything
        blocks = [(i.upper[k], i.lower[k], i.cross[k], i.hessian[k * products : (k + 1) * products]) for k in range(3)]
        if self.t % s.period == 0:
            whole = (population, population, population, np.stack([population] * products))
            self.v, self.u = self._at(self.x, self.y, *whole)
        E, g_y = self._at(self.x, self.y, *blocks[0])
        self.x = self.x - s.lr * self.v
        for k, block in enumerate(blocks):
            if k > 0:
                E, g_y = self._at(self.x, self.y, *block)
                self.y = self.y - s.lower_lr * self.u
            E_next, g_next = self._at(self.x, self.y, *block)
            self.v, self.u = self.v + (E_next - E), self.u + (g_next - g_y)

    def _at(
        self, x: Array, y: Array, upper: Indices, lower: Indices, cross: Indices, hessian: Indices
    ) -> tuple[Array, Array]:
        h = self.estimate(x, y, upper, cross, self.prefix(x, y, upper, hessian))
        return h, self.problem.g_y(x, y, lower)


METHODS: dict[str, type[BatchedMethod]] = {
    "AdamBO": batched_methods.AdamBO,
    "VR-AdamBO": VRAdamBO,
    "SLIP": batched_methods.SLIP,
    "BO-REP": batched_methods.BOREP,
    "AccBO": AccBO,
    "StocBiO": batched_methods.StocBiO,
    "SOBA": batched_methods.SOBA,
    "MA-SOBA": batched_methods.MASOBA,
    "SABA": batched_methods.SABA,
    "TTSA": batched_methods.TTSA,
    "SUSTAIN": SUSTAIN,
    "FSLA": FSLA,
    "VRBO": VRBO,
    "F2SA": batched_methods.F2SA,
}


def true_gradients(
    method: str, problem: BatchedProblem, settings: Settings, seeds: list[int], steps: int, warm_start: int
) -> Iterator[Array]:
    """‖∇phi(x_t)‖ of every run before each of `steps` steps; infinite or NaN once a run has diverged.

    Args:
        method: A name of METHODS.
        problem, settings: Of the runs.
        seeds: Of the samples of each run.
        steps, warm_start: How many of x, and before them of y alone.

    Example:
        >>> from adambo.studies.batched_problems import BatchedQuadratics
        >>> from adambo.testing import StochasticQuadratic
        >>> problem = BatchedQuadratics([StochasticQuadratic(seed=k) for k in range(2)])
        >>> found = list(true_gradients("SOBA", problem, Settings(lr=0.05, lower_lr=0.1), [0, 1], 200, 10))
        >>> bool((np.mean(found[-20:], axis=0) < 0.7 * found[0]).all())
        True
    """
    runs = METHODS[method](problem, settings)
    sampler = Sampler(seeds, problem.samples, runs.needs, settings.terms)
    with np.errstate(all="ignore"):
        runs.warm_start(sampler.lower(warm_start))
        for samples in sampler.steps(steps):
            yield norms(problem.gradient(runs.x))
            runs.step(samples)
            runs.t += 1
