"""The library's methods, many runs at once on a `BatchedProblem`: for studies that need millions of small steps.

Each class is the step of the solver of that name, in the same order and on the same samples; the tests compare the two
to 1e-12. Methods that look back at the point before are in `batched_recursive`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from adambo.studies.batched_problems import Array, BatchedProblem, Indices
from adambo.studies.batched_samples import Samples


@dataclass(frozen=True)
class Settings:
    """Of all methods; each takes what it has.

    Attributes:
        lr: η, one number, or an array (runs, 1).
        lower_lr: γ; a running z moves at the same rate.
        beta: β; ρ of SUSTAIN and FSLA.
        beta_sq, eps: β_sq and λ.
        terms: Q of every Neumann series (StocBiO and VRBO make Q − 1 products).
        lower_steps, period: StocBiO's D = BO-REP's N, and BO-REP's I = VRBO's q.
        nesterov, averaging: α and ν of AccBO and VR-AdamBO.
        penalty, penalty_growth: F2SA's first λ, and δ.
    """

    lr: float | Array
    lower_lr: float
    beta: float = 0.1
    beta_sq: float = 1e-3
    eps: float = 1e-8
    terms: int = 3
    lower_steps: int = 3
    period: int = 2
    nesterov: float = 0.5
    averaging: float = 0.5
    penalty: float = 1.0
    penalty_growth: float = 0.01


class BatchedMethod(ABC):
    """A method on many problems at once.

    Attributes:
        x, y: Where the runs are.
        t: Steps so far.
        needs: Upper, lower, cross and Hessian samples of a step.
    """

    def __init__(self, problem: BatchedProblem, settings: Settings) -> None:
        self.problem, self.set = problem, settings
        self.x, self.y = problem.x0.copy(), problem.y0.copy()
        self.neumann_step = 1.0 / problem.smoothness
        self.t = 0

    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, 1, 1, self.set.terms - 1

    @abstractmethod
    def step(self, i: Samples) -> None:
        """One step on the samples of all runs."""

    def warm_start(self, samples: Indices) -> None:
        """One plain SGD step of y per line of samples."""
        for i in samples:
            self.y = self.y - self.set.lower_lr * self.problem.g_y(self.x, self.y, i)

    def estimate(self, x: Array, y: Array, upper: Indices, cross: Indices, z: Array) -> Array:
        """∇x F − ∇²xy G z."""
        return self.problem.f_x(x, y, upper) - self.problem.cross(x, y, z, cross)

    def chained(self, x: Array, y: Array, i: Samples) -> Array:
        v = w = self.problem.f_y(x, y, i.upper[0])
        for factor in i.hessian[: self.set.terms - 1]:
            w = v + w - self.neumann_step * self.problem.hessian(x, y, w, factor)
        return self.neumann_step * w

    def prefix(self, x: Array, y: Array, upper: Indices, hessian: Indices) -> Array:
        r = total = self.problem.f_y(x, y, upper)
        for factor in hessian:
            r = r - self.neumann_step * self.problem.hessian(x, y, r, factor)
            total = total + r
        return self.neumann_step * total

    def random(self, x: Array, y: Array, i: Samples) -> Array:
        w = self.problem.f_y(x, y, i.upper[0])
        for j, factor in enumerate(i.hessian[: int(i.level.max(initial=0))]):
            further = w - self.neumann_step * self.problem.hessian(x, y, w, factor)
            w = np.where((j < i.level)[:, None], further, w)
        return self.neumann_step * self.set.terms * w


class AdamBO(BatchedMethod):
    def __init__(self, problem: BatchedProblem, settings: Settings) -> None:
        super().__init__(problem, settings)
        self.m, self.v = np.zeros_like(self.x), np.zeros_like(self.x)

    def step(self, i: Samples) -> None:
        s = self.set
        h = self.estimate(self.x, self.y, i.upper[0], i.cross[0], self.chained(self.x, self.y, i))
        self.y = self.y - s.lower_lr * self.problem.g_y(self.x, self.y, i.lower[0])
        self.m = (1 - s.beta) * self.m + s.beta * h
        self.v = (1 - s.beta_sq) * self.v + s.beta_sq * h**2
        m_hat, v_hat = self.m / (1 - (1 - s.beta) ** (self.t + 1)), self.v / (1 - (1 - s.beta_sq) ** (self.t + 1))
        self.x = self.x - s.lr * m_hat / (np.sqrt(v_hat) + s.eps)


class StocBiO(BatchedMethod):
    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, self.set.lower_steps, 1, self.set.terms - 1

    def step(self, i: Samples) -> None:
        self.warm_start(i.lower[: self.set.lower_steps])
        z = self.prefix(self.x, self.y, i.upper[0], i.hessian[: self.set.terms - 1])
        self.x = self.x - self.set.lr * self.estimate(self.x, self.y, i.upper[0], i.cross[0], z)


class TTSA(BatchedMethod):
    def step(self, i: Samples) -> None:
        self.warm_start(i.lower[:1])
        z = self.random(self.x, self.y, i)
        self.x = self.x - self.set.lr * self.estimate(self.x, self.y, i.upper[0], i.cross[0], z)


class RunningZ(BatchedMethod):
    """Methods with a running z, and a moving average m of hypergradients."""

    def __init__(self, problem: BatchedProblem, settings: Settings) -> None:
        super().__init__(problem, settings)
        self.z, self.m = np.zeros_like(self.y), np.zeros_like(self.x)

    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, 1, 1, 1

    def z_next(self, upper: Indices, hessian: Indices) -> Array:
        p, x, y = self.problem, self.x, self.y
        return self.z - self.set.lower_lr * (p.hessian(x, y, self.z, hessian) - p.f_y(x, y, upper))

    def average(self, i: Samples) -> Array:
        h = self.estimate(self.x, self.y, i.upper[0], i.cross[0], self.z)
        return (1 - self.set.beta) * self.m + self.set.beta * h


class SOBA(RunningZ):
    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, 1, 0, 0

    def step(self, i: Samples) -> None:
        upper, lower = i.upper[0], i.lower[0]
        h, z_next = self.estimate(self.x, self.y, upper, lower, self.z), self.z_next(upper, lower)
        self.y = self.y - self.set.lower_lr * self.problem.g_y(self.x, self.y, lower)
        self.x, self.z = self.x - self.set.lr * h, z_next


class MASOBA(RunningZ):
    def step(self, i: Samples) -> None:
        m_next, z_next = self.average(i), self.z_next(i.upper[0], i.hessian[0])
        self.y = self.y - self.set.lower_lr * self.problem.g_y(self.x, self.y, i.lower[0])
        self.x, self.z, self.m = self.x - self.set.lr * self.m, z_next, m_next


class SLIP(RunningZ):
    def step(self, i: Samples) -> None:
        self.m, z_next = self.average(i), self.z_next(i.upper[0], i.hessian[0])
        self.y = self.y - self.set.lower_lr * self.problem.g_y(self.x, self.y, i.lower[0])
        self.x, self.z = self.x - self.set.lr * unit(self.m), z_next


class BOREP(RunningZ):
    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, self.set.lower_steps, 1, 1

    def step(self, i: Samples) -> None:
        if self.t % self.set.period == 0:
            self.warm_start(i.lower[: self.set.lower_steps])
        self.m, z_next = self.average(i), self.z_next(i.upper[0], i.hessian[0])
        self.x, self.z = self.x - self.set.lr * unit(self.m), z_next


class SABA(RunningZ):
    """With one slot per sample, and full tables at the start."""

    tables: dict[str, Array]

    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, 1, 0, 0

    def step(self, i: Samples) -> None:
        if self.t == 0:
            slots = [np.full(len(self.x), k) for k in range(self.problem.samples)]
            rows = [self._oracles(slot, slot) for slot in slots]
            self.tables = {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}
        upper, lower = i.upper[0], i.lower[0]
        new, runs, d = self._oracles(upper, lower), np.arange(len(self.x)), {}
        for name, value in new.items():
            table, slot = self.tables[name], upper if name in ("f_x", "f_y") else lower
            d[name] = value - table[runs, slot] + table.mean(axis=1)
            table[runs, slot] = value
        self.y = self.y - self.set.lower_lr * d["g_y"]
        self.z = self.z - self.set.lower_lr * (d["hessian"] - d["f_y"])
        self.x = self.x - self.set.lr * (d["f_x"] - d["cross"])

    def _oracles(self, upper: Indices, lower: Indices) -> dict[str, Array]:
        p, x, y, z = self.problem, self.x, self.y, self.z
        return {
            "f_x": p.f_x(x, y, upper),
            "f_y": p.f_y(x, y, upper),
            "g_y": p.g_y(x, y, lower),
            "hessian": p.hessian(x, y, z, lower),
            "cross": p.cross(x, y, z, lower),
        }


class F2SA(BatchedMethod):
    """With smoothness= the bound of the problem."""

    z: Array

    @property
    def needs(self) -> tuple[int, int, int, int]:
        return 1, 1, 1, 0

    def step(self, i: Samples) -> None:
        p, s, upper, lower, cross = self.problem, self.set, i.upper[0], i.lower[0], i.cross[0]
        z = self.y if self.t == 0 else self.z
        weight = s.penalty + s.penalty_growth * self.t
        rate = min(s.lower_lr, self.neumann_step) / weight
        self.z = z - s.lower_lr * p.g_y(self.x, z, lower)
        self.y = self.y - rate * (p.f_y(self.x, self.y, upper) + weight * p.g_y(self.x, self.y, lower))
        pull = p.g_x(self.x, self.y, cross) - p.g_x(self.x, self.z, cross)
        self.x = self.x - s.lr * (p.f_x(self.x, self.y, upper) + weight * pull)


def unit(m: Array) -> Array:
    """m/‖m‖, and 0 where m is."""
    return m / np.maximum(norms(m), 1e-300)[:, None]


def norms(vectors: Array) -> Array:
    """One Euclidean norm per run."""
    found: Array = np.sqrt(np.einsum("ri,ri->r", vectors, vectors))
    return found
