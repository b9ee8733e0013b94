"""AdamBO keeps the contract of every algorithm, in each of its settings."""

from __future__ import annotations

from typing import ClassVar

import torch

from adambo import AdamBO, ConjugateGradient, LinearSystem, Neumann
from adambo.testing import AlgorithmContract

TABLE = {"grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 1, "cross_vector": 1}


class Truncated(AlgorithmContract):
    """A Neumann series of Q terms rests where its own truncation says, not at the optimum."""

    terms, step = 3, 0.25

    def expected_point(self, known):
        power, P = torch.eye(len(known.A), dtype=torch.float64), torch.zeros_like(known.A)
        for _ in range(self.terms):
            P, power = P + self.step * power, power - self.step * known.A @ power
        return known.resting_point(P)


class TestChained(Truncated):
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 2, "samples": 5}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=3, step=0.25), **settings)


class TestIndependent(Truncated):
    terms = 4
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 6, "samples": 9}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=4, step=0.25, samples="independent"), **settings)


class TestPrefix(Truncated):
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 2, "samples": 5}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=3, step=0.25, samples="prefix"), **settings)


class TestShared(Truncated):
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 2, "samples": 4}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=3, step=0.25, samples="shared"), **settings)


class TestRandom(Truncated):
    # The truncation level is noise even on a deterministic problem, so x only comes near.
    tolerance = 0.05
    steps_from_afar = 1500
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 1, "samples": 4}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=3, step=0.25, samples="random"), **settings)


class TestAutomaticStep(AlgorithmContract):
    """With many terms the truncation is below the tolerance."""

    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 19, "samples": 22, "curvature_vector": 0}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=20), **settings)

    def expected_ledger(self, steps):
        return super().expected_ledger(steps) | {"curvature_vector": 20 + 3 + 3}


class TestUpdated(Truncated):
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 2, "samples": 5}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=Neumann(terms=3, step=0.25), hypergradient_at="updated", **settings)


class TestThreeLowerSteps(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE | {"grad_y_g": 3, "hessian_vector": 4, "samples": 6}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=ConjugateGradient(4), lower_steps=3, **settings)


class TestThreeLowerStepsUpdated(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE | {"grad_y_g": 3, "hessian_vector": 4, "samples": 6}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=ConjugateGradient(4), lower_steps=3, hypergradient_at="updated", **settings)


class TestConjugateGradient(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 5, "samples": 4, "curvature_vector": 0}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=ConjugateGradient(5), **settings)


class TestLinearSystem(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE | {"hessian_vector": 2, "samples": 5, "curvature_vector": 0}

    def make(self, problem, **settings):
        return AdamBO(problem, inverse=LinearSystem(lr=0.2, steps=2), **settings)
