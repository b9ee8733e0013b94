"""The constants of the theorem, against a second computation in 60 decimal digits."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adambo
from adambo.theory import LowerLevel, ProblemConstants

WORKED = {
    "mu": 0.5,
    "l_g1": 2.0,
    "l_g2": 0.3,
    "l_f0": 1.0,
    "L_x0": 1.0,
    "L_x1": 0.5,
    "L_y0": 0.8,
    "L_y1": 0.2,
    "sigma_f": 0.1,
    "sigma_g1": 0.2,
    "sigma_g2": 0.1,
}
RUN = {"lam": 0.1, "Delta1": 1.0, "C1": 32.0}
TABLE = {  # ten digits each
    "r": "0.4503773491",
    "L0": "41.23105626",
    "L1": "2.061552813",
    "C_L": "0.9284766909",
    "C_phi0": "13.52",
    "C_phi1": "53.43105626",
    "sigma_phi": "13.21309426",
    "G": "71.0515306",
    "L": "187.707539",
    "psi": "12.48550664",
    "C_u0": "84.5715306",
    "C_u1": "199.907539",
}
few = settings(max_examples=100, deadline=None, database=None, derandomize=True)
magnitudes = st.floats(-3.0, 3.0).map(lambda power: 10.0**power)


@st.composite
def problems(draw):
    values = {name: draw(magnitudes) for name in WORKED}
    values["mu"], values["l_g1"] = sorted((values["mu"], values["l_g1"]))
    return values


def reference(values, lam, Delta1, C1, printed=False):
    """Every constant as the paper writes it, with Decimals, which neither overflow nor round where it matters."""
    with localcontext() as context:
        context.prec = 60
        v = {name: Decimal(value) for name, value in values.items()}
        mu, l1, l2, lf, sf, sg = (v[name] for name in ("mu", "l_g1", "l_g2", "l_f0", "sigma_f", "sigma_g2"))
        kappa = (1 + l1**2 / mu**2).sqrt()
        root = (v["L_x1"] ** 2 + v["L_y1"] ** 2).sqrt()
        Sy = v["L_y0"] + v["L_y1"] * lf
        c = {"r": 1 / (kappa * root), "L1": kappa * v["L_x1"], "C_L": v["L_x1"] / root}
        last = lf * (l1 * l2 + mu * l2) / mu**2
        c["L0"] = kappa * (v["L_x0"] + v["L_x1"] * l1 * lf / mu + l1 / mu * Sy + last)
        c["C_phi0"] = (mu + 3 * l1 + sg) / mu * sf + (2 * l1 + sg) / mu * lf + l1 * lf / mu
        c["C_phi1"] = (2 * l1 + sg) / mu * Sy + l1 / mu * Sy + c["L0"]
        first = (mu + 3 * l1 + sg) / mu * (1 if printed else sf)
        c["sigma_phi"] = first + (2 * l1 + sg) / mu * lf + (2 * l1 + sg) / mu * Sy * c["r"]
        lam, Delta1, C1 = map(Decimal, (lam, Delta1, C1))
        c["G"] = max(
            4 * lam,
            2 * c["sigma_phi"],
            4 * c["C_phi0"],
            c["C_phi1"] / c["L1"],
            (C1 * Delta1 * c["L0"] / c["C_L"]).sqrt(),
            C1 * Delta1 * c["L1"] / c["C_L"],
        )
        c["L"] = c["L0"] + c["L1"] * c["G"]
        c["psi"] = c["C_L"] * c["G"] ** 2 / (2 * c["L"])
        c["C_u0"], c["C_u1"] = c["C_phi0"] + c["G"], c["C_phi1"] + c["L1"] * c["G"]
        return c


def found(values, lam, Delta1, C1, statement="corrected"):
    derived = ProblemConstants(**values).derived(statement)
    return asdict(derived) | asdict(derived.of_run(lam, Delta1, C1))


def test_the_worked_example_has_the_digits_of_its_table():
    assert {name: f"{value:.10g}" for name, value in found(WORKED, **RUN).items()} == TABLE


@few
@given(values=problems(), lam=magnitudes, Delta1=magnitudes, C1=magnitudes, printed=st.booleans())
def test_all_constants_agree_with_sixty_digits(values, lam, Delta1, C1, printed):
    exact = reference(values, lam, Delta1, C1, printed)
    here = found(values, lam, Delta1, C1, "printed" if printed else "corrected")
    assert set(here) == set(exact)
    for name, value in here.items():
        assert value == pytest.approx(float(exact[name]), rel=1e-12), name


@few
@given(values=problems())
def test_the_printed_noise_lacks_a_factor_in_its_first_term(values):
    constants = ProblemConstants(**values)
    here, printed = constants.derived(), constants.derived("printed")
    assert replace(printed, sigma_phi=here.sigma_phi) == here
    factor = (values["mu"] + 3 * values["l_g1"] + values["sigma_g2"]) / values["mu"]
    gained = factor * (1 - values["sigma_f"])
    assert printed.sigma_phi - here.sigma_phi == pytest.approx(gained, abs=1e-12 * here.sigma_phi)


@few
@given(values=problems(), lam=magnitudes, Delta1=magnitudes, C1=magnitudes)
def test_the_gap_that_allows_a_gradient_of_G_is_psi(values, lam, Delta1, C1):
    """‖∇Φ‖² ≤ (2/C_L)(L_0 + L_1 ‖∇Φ‖)(Φ − inf Φ) is an equality at ‖∇Φ‖ = G, Φ − inf Φ = ψ; and r = C_L/L_1."""
    c = found(values, lam, Delta1, C1)
    assert c["G"] ** 2 == pytest.approx(2 / c["C_L"] * (c["L0"] + c["L1"] * c["G"]) * c["psi"])
    assert c["C_L"] / c["L1"] == pytest.approx(c["r"])
    assert 0 < c["C_L"] <= 1


@few
@given(values=problems(), name=st.sampled_from(sorted(set(WORKED) - {"mu"})), factor=st.floats(1.0, 10.0))
def test_a_looser_bound_makes_no_constant_better(values, name, factor):
    before = ProblemConstants(**values).derived()
    after = ProblemConstants(**values | {name: factor * values[name]}).derived()
    slack = 1 + 1e-12
    assert after.r <= before.r * slack
    for each in ("L0", "L1", "C_phi0", "C_phi1"):
        assert getattr(after, each) >= getattr(before, each) / slack


@few
@given(values=problems(), start=st.tuples(magnitudes, magnitudes, magnitudes), factor=st.floats(1.0, 10.0))
def test_the_gradient_bound_grows_with_what_a_run_begins_with(values, start, factor):
    derived = ProblemConstants(**values).derived()
    first = derived.of_run(*start)
    for place in range(3):
        changed = [value * (factor if k == place else 1) for k, value in enumerate(start)]
        assert derived.of_run(*changed).G >= first.G


def test_phi_is_as_smooth_as_the_constants_say():
    """f = eˣ + sin y, g = ½ a (y − bx)²: ∇Φ = eˣ + b cos bx, whose slope no constant bounds."""
    a, b = 1.5, 0.8
    values = WORKED | {"mu": a, "l_g1": a * (1 + b * b), "l_g2": 1e-9, "l_f0": 1.0}
    values |= {"L_x0": 1e-9, "L_x1": 2.0, "L_y0": 1.0, "L_y1": 0.1}  # |eˣ − eˣ'| ≤ 2 eˣ |x − x'| for |x − x'| ≤ ½
    c = ProblemConstants(**values).derived()

    def gradient(x):
        return math.exp(x) + b * math.cos(b * x)

    for x in (k / 10 for k in range(-50, 100)):
        for step in (-c.r, -c.r / 7, c.r / 7, c.r):
            change = abs(gradient(x + step) - gradient(x))
            assert change <= (c.L0 + c.L1 * abs(gradient(x))) * abs(step)


@pytest.mark.parametrize("name", WORKED)
@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.inf, math.nan, 10**400, True, "1", None])
def test_what_is_no_positive_number_is_refused_by_name(name, value):
    with pytest.raises(adambo.SettingError, match=rf"^{name}=.* is not a positive, finite number\. .*small number"):
        ProblemConstants(**WORKED | {name: value})


def test_strong_convexity_may_equal_smoothness_but_not_exceed_it():
    derived = ProblemConstants(**WORKED | {"mu": 2.0}).derived()
    assert math.isclose(derived.L1, math.sqrt(2) * WORKED["L_x1"])
    with pytest.raises(adambo.SettingError, match=r"mu=2\.5 exceeds l_g1=2\.0.*Lower mu or raise l_g1"):
        ProblemConstants(**WORKED | {"mu": 2.5})


@pytest.mark.parametrize("changes", [{"mu": 1e-200}, {"L_x0": 1e308, "l_g1": 1e10}, {"L_x1": 1e-200, "L_y1": 1e200}])
def test_constants_beyond_float64_are_refused_with_a_sentence(changes):
    with pytest.raises(adambo.SettingError, match="too far apart"):
        ProblemConstants(**WORKED | changes).derived()


def test_other_arguments_are_checked_too():
    derived = ProblemConstants(**WORKED).derived()
    for name in RUN:
        with pytest.raises(adambo.SettingError, match=f"^{name}=0"):
            derived.of_run(**RUN | {name: 0})
    with pytest.raises(adambo.SettingError, match="neither 'corrected' nor 'printed'"):
        ProblemConstants(**WORKED).derived("right")


def test_every_constant_is_explained():
    for field in fields(ProblemConstants):
        assert f"{field.name}:" in ProblemConstants.__doc__ or f"{field.name}, " in ProblemConstants.__doc__, field.name


def test_the_lower_level_refuses_a_rate_for_which_nothing_is_proved():
    level = LowerLevel(mu=0.5, l_g1=2.0, sigma_g1=0.0, lam=1.0, eta=0.3, beta=0.0625)
    assert level.gamma == 0.25
    assert math.isclose(level.K, 4 * 0.3**2 * 2**2 / (0.5**3 * 0.25))
    with pytest.raises(adambo.SettingError, match=r"beta=0\.07 makes gamma=0\.28, above 1/\(2 l_g1\) = 0\.25"):
        replace(level, beta=0.07)
    for name in ("mu", "l_g1", "lam", "eta", "beta"):
        with pytest.raises(adambo.SettingError, match=f"^{name}=0"):
            replace(level, **{name: 0.0})
    with pytest.raises(adambo.SettingError, match="sigma_g1=-1"):
        replace(level, sigma_g1=-1.0)
