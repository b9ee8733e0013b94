"""The simulation of many runs at once against the library's own solvers, oracle by oracle and step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import grad

import adambo
from adambo import Draw, Neumann
from adambo.studies.batched_methods import Settings
from adambo.studies.batched_problems import POPULATION, BatchedProblem, batched
from adambo.studies.batched_recursive import METHODS
from adambo.studies.batched_samples import Sampler
from adambo.testing import KnownProblem, StochasticQuadratic, StochasticUnboundedSmooth, flat

KINDS = {
    "quadratic": lambda seed: StochasticQuadratic(dx=3, dy=4, seed=seed, L=2.0, noise=0.4),
    "unbounded": lambda seed: StochasticUnboundedSmooth(dim=3, seed=seed, distance=2.0, noise=0.4),
}


def problems(kind: str, runs: int = 3) -> tuple[list[KnownProblem], BatchedProblem]:
    known = [KINDS[kind](seed) for seed in range(runs)]
    return known, batched(known)


@pytest.mark.parametrize("kind", KINDS)
def test_every_oracle_is_the_derivative_of_the_loss(kind: str) -> None:
    known, many = problems(kind)
    x, y, v = many.x0, many.y0, np.cos(many.y0)
    for i in (0, 2, POPULATION):
        samples = np.full(len(known), i)
        for run, one in enumerate(known):
            a, b, direction = (torch.from_numpy(values[run]) for values in (x, y, v))
            batch = None if i == POPULATION else i

            def f(s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
                return one.upper(s, t, batch)  # noqa: B023

            def g(s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
                return one.lower(s, t, batch)  # noqa: B023

            def along(s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
                return grad(g, argnums=1)(s, t).dot(direction)  # noqa: B023

            truth = {
                "f_x": grad(f)(a, b),
                "f_y": grad(f, argnums=1)(a, b),
                "g_x": grad(g)(a, b),
                "g_y": grad(g, argnums=1)(a, b),
            }
            for name, value in truth.items():
                np.testing.assert_allclose(getattr(many, name)(x, y, samples)[run], value, rtol=1e-12, atol=1e-12)
            for name, value in {"hessian": grad(along, argnums=1)(a, b), "cross": grad(along)(a, b)}.items():
                np.testing.assert_allclose(getattr(many, name)(x, y, v, samples)[run], value, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(many.gradient(x)[run], grad(one.phi)(a), rtol=1e-12, atol=1e-12)


def solver(name: str, problem: adambo.Problem, s: Settings, bound: float, run: int) -> adambo.Algorithm:
    lr = float(np.ravel(s.lr)[run])
    rates = {"lr": lr, "lower_lr": s.lower_lr}
    series = {kind: Neumann(terms=s.terms, step=1 / bound, samples=kind) for kind in ("chained", "prefix", "random")}
    storm = {"nesterov": s.nesterov, "averaging": s.averaging, "beta": s.beta}
    adam = {"beta_sq": s.beta_sq, "eps": s.eps, "inverse": series["chained"]}
    settings = {
        "AdamBO": {"beta": s.beta} | adam,
        "VR-AdamBO": storm | adam,
        "SLIP": {"beta": s.beta},
        "BO-REP": {"beta": s.beta, "lower_steps": s.lower_steps, "period": s.period},
        "AccBO": storm | {"inverse": series["random"]},
        "StocBiO": {"lower_steps": s.lower_steps, "inverse": series["prefix"]},
        "SOBA": {},
        "MA-SOBA": {"beta": s.beta},
        "SABA": {"lower_slots": 4, "upper_slots": 4},
        "TTSA": {"inverse": series["random"]},
        "SUSTAIN": {"rho_f": s.beta, "rho_g": s.beta, "inverse": series["random"]},
        "FSLA": {"rho": s.beta},
        "VRBO": {"inverse": series["prefix"], "period": s.period},
        "F2SA": {"penalty": s.penalty, "penalty_growth": s.penalty_growth, "smoothness": bound},
    }[name]
    made: adambo.Algorithm = adambo.algorithms.ALL[name.replace("-", "")](problem, **rates, **settings)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_simulated_method_makes_the_steps_of_its_solver(name: str, kind: str) -> None:
    known, many = problems(kind)
    lr = np.array([[0.01], [0.03], [0.1]])
    s = Settings(lr=lr, lower_lr=0.1, beta=0.3, beta_sq=0.2, eps=0.1, terms=4, penalty=2.0, penalty_growth=0.5)
    runs = METHODS[name](many, s)
    solvers = [solver(name, one.problem(), s, many.smoothness, run) for run, one in enumerate(known)]
    if name == "SABA":
        for each in solvers:
            each.fill_memory(lower=range(4), upper=range(4))
    whole = Draw(upper=(None,), lower=(None,), cross=(None,), hessian=(None,) * 3)
    for samples in Sampler([5, 6, 7], 4, runs.needs, s.terms).steps(6):
        runs.step(samples)
        runs.t += 1
        for run, each in enumerate(solvers):
            roles = {
                role: tuple(int(i) for i in getattr(samples, role)[:, run])
                for role in ("upper", "lower", "cross", "hessian")
            }
            slot = {"slot": (roles["lower"][0], roles["upper"][0])} if name == "SABA" else {}
            large = {"snapshot": whole} if name == "VRBO" else {}
            each.step(Draw(**roles, level=int(samples.level[run]), **slot, **large))
    for run, each in enumerate(solvers):
        np.testing.assert_allclose(runs.x[run], flat(each.problem.x).detach(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(runs.y[run], flat(each.problem.y).detach(), rtol=1e-12, atol=1e-12)
    assert (np.abs(runs.x - many.x0).max(axis=1) > 1e-3).all()


def test_the_samples_of_a_seed_do_not_depend_on_its_company() -> None:
    alone = list(Sampler([3], 4, (1, 2, 1, 5), 6).steps(300))
    beside = list(Sampler([1, 3, 3], 4, (1, 2, 1, 5), 6).steps(300))
    for one, many in zip(alone, beside, strict=True):
        for role in ("upper", "lower", "cross", "hessian"):
            assert (getattr(many, role)[:, 1:] == getattr(one, role)).all()
        assert (many.level[1:] == one.level).all()
    assert any((many.hessian[:, 0] != many.hessian[:, 1]).any() for many in beside)
    counts = np.bincount(np.concatenate([one.hessian.ravel() for one in alone]), minlength=4)
    assert counts.min() > 0.9 * counts.mean()
