"""Trajectories and estimators computed by an independent program, to 1e-12.

Every algorithm has a line in `BUILDERS`; all cases of both files are followed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import adambo
from adambo.testing import divided, flat

GOLDEN = Path(__file__).parent / "golden"
SCALAR = json.loads((GOLDEN / "golden_trajectories.json").read_text())
VECTOR = json.loads((GOLDEN / "golden_vector.json").read_text())
FIRST_STEP = {"adambo": 1, "vr_adambo": 1}  # the schedule counts t from 1 for these, from 0 for the others
ESTIMATORS = ("independent", "chained", "prefix", "shared", "random")


# Algorithms -----------------------------------------------------------------------------------------------------------


def build_adambo(problem, settings):
    return adambo.AdamBO(
        problem,
        lr=settings["eta"],
        lower_lr=settings["gamma"],
        beta=settings["beta"],
        beta_sq=settings["beta_sq"],
        eps=settings["lam"],
        inverse=neumann(settings),
        lower_steps=settings.get("lower_steps", 1),
        hypergradient_at=settings.get("hypergradient_at", "current"),
    )


def neumann(settings, samples="independent"):
    length = {"products": settings["Q"]} if settings.get("terms") == "Q+1" else {"terms": settings["Q"]}
    return adambo.Neumann(**length, step=1 / settings["l"], samples=settings.get("estimator", samples))


def z_rates(settings):
    """SOBA and SABA call the lower rates rho, the others gamma and nu."""
    gamma, nu = (settings.get(new, settings.get(old)) for old, new in (("rho", "gamma"), ("rho_z", "nu")))
    return {"lr": settings["eta"], "lower_lr": gamma, "z_lr": nu}


def rates(settings):
    return {"lr": settings["eta"], "lower_lr": settings["gamma"]}


def adaptation(settings):
    return rates(settings) | {"inner_steps": settings["S"], "first_order": settings["first_order"]}


def acceleration(settings):
    option = {"I": 1, "II": 2}[settings.get("option", "I")]
    periodic = {"lower_steps": settings["N"], "period": settings["I"]} if option == 2 else {}
    named = {"nesterov": settings["alpha"], "averaging": settings["nu"], "beta": settings["beta"], "option": option}
    return rates(settings) | named | periodic


def build_saba(problem, settings):
    slots = {"quadratic": 3, "curved": 3, "two_samples": 2, "deterministic": 1}[settings["problem"]]
    solver = adambo.SABA(problem, **z_rates(settings), lower_slots=slots, upper_slots=slots)
    if settings["memory_init"] == "full":
        solver.fill_memory(lower=range(slots), upper=range(slots))
    return solver


BUILDERS = {
    "adambo": build_adambo,
    "maml": lambda p, s: adambo.MAML(p, **adaptation(s)),
    "anil": lambda p, s: adambo.ANIL(p, **adaptation(s)),
    "stocbio": lambda p, s: adambo.StocBiO(p, **rates(s), lower_steps=s["D"], inverse=neumann(s, "prefix")),
    "ttsa": lambda p, s: adambo.TTSA(p, **rates(s), inverse=neumann(s, "random")),
    "soba": lambda p, s: adambo.SOBA(p, **z_rates(s)),
    "saba": build_saba,
    "ma_soba": lambda p, s: adambo.MASOBA(p, **z_rates(s), beta=s["beta"], lagged=s["lagged"]),
    "bo_rep": lambda p, s: adambo.BOREP(
        p, **z_rates(s), beta=s["beta"], lower_steps=s["N"], period=s["I"], radius=s["R"] or float("inf")
    ),
    "slip": lambda p, s: adambo.SLIP(p, **z_rates(s), beta=s["beta"], order=s["order"]),
    "sustain": lambda p, s: adambo.SUSTAIN(
        p, **rates(s), rho_f=s["mom_f"], rho_g=s["mom_g"], inverse=neumann(s, "random")
    ),
    "vrbo": lambda p, s: adambo.VRBO(p, **rates(s), inverse=neumann(s, "prefix"), period=s["q"], inner_steps=s["m"]),
    "accbo": lambda p, s: adambo.AccBO(
        p, **acceleration(s), inverse=neumann(s, "random"), hypergradient_at=s["hypergrad_at"]
    ),
    "f2sa": lambda p, s: adambo.F2SA(
        p, **rates(s), penalised_lr=s["alpha"], lower_steps=s["n_inner"], penalty=s["lam0"], penalty_growth=s["dlam"]
    ),
    "fsla": lambda p, s: adambo.FSLA(p, **z_rates(s), rho=s["rho"]),
    "vr_adambo": lambda p, s: adambo.VRAdamBO(
        p, **acceleration(s), beta_sq=s["beta_sq"], eps=s["lam"], inverse=neumann(s, "chained")
    ),
}


# What a step may be compared on, by its name in the JSON --------------------------------------------------------------


def told(name):
    """A quantity that the step tells: a vector, a number, or a tensor."""

    def observe(solver, info):
        value = getattr(info, name)
        return flat(value) if isinstance(value, list) else torch.as_tensor(value, dtype=torch.float64).reshape(-1)

    return observe


OBSERVED = {
    "x": lambda solver, info: flat(solver.problem.x),
    "y": lambda solver, info: flat(solver.problem.y),
    "hypergrad": lambda solver, info: flat(info.hypergradient),
}
TOLD = "z m m_hat v_hat k h_f h_g v u v_used y_hat lam_used direction x_adapted y_adapted meta_x meta_y projections"
OBSERVED |= {name: told(name) for name in TOLD.split()}


# Problems -------------------------------------------------------------------------------------------------------------


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


def mean_over(loss, batch):
    """A batch is one index, or a list of them."""
    return loss(batch) if isinstance(batch, int) else torch.stack([loss(i) for i in batch]).mean()


@dataclass
class Scalar:
    """Section 4.0: G_i = a_i/2 (y − b_i x)², F_j = ½ (y − d_j)² + c_j/2 x²."""

    lower: list
    upper: list
    x0: float
    y0: float

    @classmethod
    def named(cls, name):
        given = SCALAR["problems"][name]
        if name == "deterministic":
            return cls([[given["a"], given["b"]]] * 2, [[1.0, given["c"]]] * 2, given["x0"], given["y0"])
        return cls(given["lower_a_b"], given["upper_d_c"], given["x0"], given["y0"])

    def problem(self):
        x, y = (numbers([start]).requires_grad_() for start in (self.x0, self.y0))

        def G(i):
            a, b = self.lower[i]
            return a / 2 * (y - b * x).square().sum()

        def F(j):
            d, c = self.upper[j]
            return (y - d).square().sum() / 2 + c / 2 * x.square().sum()

        return adambo.Problem(lambda b: mean_over(F, b), lambda b: mean_over(G, b), x, y)

    samples = 2

    @staticmethod
    def hessian(settings, t):
        """The Hessian batches of step t, by the written schedule."""
        return {
            "independent": [t + q for q in range(1, settings["Q"]) for _ in range(q)],
            "shared": [t + 1],
        }.get(settings.get("estimator", "independent"), [t + j for j in range(1, settings["Q"])])

    def draw(self, algorithm, settings, step, t, needs):
        """The written schedule, as far as the method needs it; s counts inner steps."""
        hessian = [t // 2]  # of a z-update
        if algorithm == "vrbo":
            per_correction = needs.hessian // needs.lower
            hessian = [t + j + s for s in range(needs.lower) for j in range(1, per_correction + 1)]
        elif algorithm == "adambo":
            hessian = self.hessian(settings, t)
        elif "Q" in settings:
            hessian = [t + j for j in range(1, needs.hessian + 1)]
        schedule = {
            "upper": [t + 1 + s for s in range(needs.upper)],
            "lower": [t + s for s in range(needs.lower)],
            "cross": [(t + 1) // 2 + s for s in range(needs.cross)],
            "hessian": hessian[: needs.hessian],
        }
        indices = {role: [index % self.samples for index in given] for role, given in schedule.items()}
        if "k" in step:
            indices["level"] = step["k"]
        if algorithm == "saba":
            slots = 2 if settings["problem"] == "two_samples" else 1
            indices["slot"] = (t % slots, (t + 1) % slots)
        if algorithm == "vrbo" and t % settings["q"] == 0:
            indices["snapshot"] = "full"
        return as_draw(indices, self.samples, needs)


@dataclass
class Vector:
    """x in two tensors, y in two tensors, three samples; every draw is written in the JSON."""

    given: dict

    @classmethod
    def named(cls, name):
        return cls({k: numbers(v) if isinstance(v, list) else v for k, v in VECTOR["problems"][name].items()})

    def problem(self):
        given = self.given
        x, y = (
            [t.requires_grad_() for t in divided(given[f"{name}0"], given[f"{name}_shapes"].int().tolist())]
            for name in "xy"
        )

        def G(i):
            r = flat(y) - given["B"][i] @ flat(x) - given["c"][i]
            g = r @ given["A"][i] @ r / 2
            if given["kappa"]:
                g = g + given["kappa"] * (1 + (flat(y) - given["W"] @ flat(x)).square()).sqrt().sum()
            return g

        def F(j):
            u, w = flat(x) - given["e"][j], flat(y) - given["d"][j]
            return w @ w / 2 + u @ given["C"][j] @ u / 2 + given["coupling"] * flat(x).sin() @ flat(y)[:3]

        return adambo.Problem(lambda b: mean_over(F, b), lambda b: mean_over(G, b), x, y)

    samples = 3

    @staticmethod
    def hessian(settings, t):
        return {
            "independent": [t + 2 * q + j for q in range(1, settings["Q"]) for j in range(q, 0, -1)],
            "shared": [t + 1],
        }.get(settings["estimator"], [t + j for j in range(1, settings["Q"])])

    def draw(self, algorithm, settings, step, t, needs):
        return as_draw(step["draw"], self.samples, needs)


def as_draw(indices, samples, needs):
    roles = {role: tuple(value) for role, value in indices.items() if isinstance(value, list) and role != "slot"}
    others = {name: indices[name] for name in ("level", "slot") if name in indices}
    if indices.get("snapshot") == "full":
        everything = list(range(samples))
        others["snapshot"] = adambo.Draw.of(everything, everything, needs)
    return adambo.Draw(**roles, **others)


def close(found, expected):
    torch.testing.assert_close(found.detach(), numbers(expected).reshape(-1), rtol=0.0, atol=1e-12)


def named(item):
    return "-".join(str(item[key]) for key in ("algorithm", "variant", "problem") if key in item)


CASES = [
    pytest.param(kind, case, id=named(case))
    for kind, file in ((Scalar, SCALAR), (Vector, VECTOR))
    for case in file["cases"]
]
POINTS = [
    pytest.param(kind, values, id=values["problem"])
    for kind, file, key in ((Scalar, SCALAR, "estimators_at_x0_y0"), (Vector, VECTOR, "at_x0_y0"))
    for values in file[key]
]


# Tests ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_follows_the_golden_trajectory(kind, case):
    known, algorithm = kind.named(case["problem"]), case["algorithm"]
    settings = case["hyperparameters"] | {"problem": case["problem"]}
    solver = BUILDERS[algorithm](known.problem(), settings)
    solver.warm_start([t % known.samples for t in range(settings.get("T0", 0))])
    close(flat(solver.problem.y), case["init"]["y"])
    for t, step in enumerate(case["steps"], start=FIRST_STEP.get(algorithm, 0)):
        info = solver.step(known.draw(algorithm, settings, step, t, solver.needs))
        for name, observe in OBSERVED.items():
            if name in step:
                close(observe(solver, info), step[name])


def test_all_cases_are_here():
    assert len(CASES) == 58 + 70
    assert {case.values[1]["algorithm"] for case in CASES} == BUILDERS.keys()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("kind", "values"), POINTS)
def test_the_estimators_have_their_golden_values(kind, values, estimator):
    known = kind.named(values["problem"])
    settings = {"Q": values["Q"], "l": values["l"], "estimator": estimator}
    hessian = tuple(index % known.samples for index in kind.hessian(settings, values["t"]))
    v = divided(numbers(values["v"]).reshape(-1), [p.shape for p in known.problem().y])

    def estimate(inverse, batches):
        point = known.problem().at(adambo.Draw(upper=(0,), cross=(0,), hessian=batches))
        return flat(inverse.solve(point, v))

    if estimator == "random":
        for level, expected in enumerate(values["random_by_k"]):
            close(estimate(neumann(settings), hessian[:level]), expected)
    else:
        close(estimate(neumann(settings), hessian), values.get(estimator, values.get(f"{estimator}_Q_terms")))
    if estimator == "prefix":
        one_more = (*hessian, (values["t"] + values["Q"]) % known.samples)
        by_products = adambo.Neumann(products=values["Q"], step=1 / values["l"], samples="prefix")
        close(estimate(by_products, one_more), values["prefix_Q_products"])


@pytest.mark.parametrize("values", [pytest.param(v, id=v["problem"]) for v in VECTOR["at_x0_y0"]])
def test_the_oracles_have_their_golden_values(values):
    known = Vector.named(values["problem"])
    problem = known.problem()
    lower = values["t"] % known.samples
    point = problem.at(adambo.Draw((values["upper"],), (lower,), (values["cross"],), (values["cross"],)))
    v, zero = point.f_y, [torch.zeros_like(t) for t in point.f_y]
    grad_x_f = flat(problem.at(point.draw).hypergradient(zero))
    close(flat(v), values["v"])
    close(grad_x_f, values["grad_x_F"])
    close(flat(point.lower_gradient()), values["grad_y_G"])
    close(flat(point.hessian(v)), values["hvp_of_v"])
    close(grad_x_f - flat(problem.at(point.draw).hypergradient(v)), values["jvp_of_v"])
    close(flat(torch.autograd.grad(problem.lower(lower), problem.x)), values["grad_x_G"])


@pytest.mark.parametrize("values", [pytest.param(v, id=v["problem"]) for v in VECTOR["at_x0_y0"]])
def test_the_exact_hypergradient_at_the_lower_solution_is_golden(values):
    known = Vector.named(values["problem"])
    problem = known.problem()
    for p, value in zip(problem.y, divided(numbers(values["ystar_x0"]), [p.shape for p in problem.y]), strict=True):
        p.data.copy_(value)
    everything = [0, 1, 2]
    point = problem.at(adambo.Draw((everything,), (everything,), (everything,), (everything,)))
    close(flat(point.lower_gradient()), [0.0] * 4)
    close(flat(point.hypergradient(adambo.Exact().solve(point, point.f_y))), values["grad_phi_x0"])


@pytest.mark.parametrize("values", [pytest.param(v, id=v["problem"]) for v in SCALAR["estimators_at_x0_y0"]])
def test_the_upper_gradient_of_the_scalar_problem_is_golden(values):
    point = Scalar.named(values["problem"]).problem().at(adambo.Draw(upper=((values["t"] + 1) % 2,)))
    close(flat(point.f_y), [values["v"]])
