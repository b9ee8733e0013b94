"""The parameters of the theorem, against a second computation without logarithms, in 60 decimal digits."""

from __future__ import annotations

import math
from decimal import ROUND_UP, Context, Decimal, Inexact, localcontext

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_theory_constants import TABLE, WORKED, few, magnitudes, problems, reference

import adambo
from adambo import AdamBO, Neumann
from adambo.testing import StochasticQuadratic
from adambo.theory import ProblemConstants, ProofConstants, oracle_calls, theorem_parameters

TESTED = ProofConstants(c1=0.1, c2=0.1, c3=0.1, C1=32, C2=16)
START = {"lam": 0.1, "Delta1": 1.0, "y_error": 1.0}
SAMPLES = ["independent", "chained", "prefix", "shared", "random"]


def worked(epsilon=0.1, delta=0.1, proof=TESTED, changes=None, **others):
    constants = ProblemConstants(**WORKED | (changes or {}))
    return theorem_parameters(constants, epsilon, delta, **START | others, proof=proof)


def expected(values, epsilon, delta, lam, Delta1, y_error, proof, printed):
    """The choice of the theorem with every power taken: a Decimal has room for ε⁸ where a float has none."""
    constants = reference(values, lam, Delta1, proof.C1, printed)
    with localcontext() as context:
        context.prec = 60
        e = Decimal(1).exp()
        mu, l1, lf, sg1 = (Decimal(values[name]) for name in ("mu", "l_g1", "l_f0", "sigma_g1"))
        eps, d, lam, Delta1, y_error = map(Decimal, (epsilon, delta, lam, Delta1, y_error))
        c1, c2, c3, C2 = map(Decimal, (proof.c1, proof.c2, proof.c3, proof.C2))
        G, L, r, s = (constants[name] for name in ("G", "L", "r", "sigma_phi"))
        iota, one = (4 / d).ln(), Decimal(1)
        a1 = 8 * e * s**4 * G**2 * max(one, iota) / (c1**2 * d * lam**2 * eps**4)
        B = e * C2 * Delta1 * L * s * G**3 / (c1 * c2 * d * lam**2 * eps**4)
        B *= (1 + s**2 * G / (c1 * lam * eps**2)) * max(one, iota.sqrt(), iota)
        a3 = 32 * e * s**4 * G**2 / (c1**2 * d * lam**2 * eps**4)
        C_beta = max(a1, 8 * B, a3**2, (48 * B) ** 2)
        beta = c1 * lam * eps**2 / (s**2 * G * max(one, iota.sqrt(), C_beta.ln()))
        beta = min(one, beta) if printed else min(mu / (4 * l1), beta)
        eta = c2 * min(
            r * lam / G,
            lam / (6 * L),
            s * lam * beta / (L * G * max(one, iota.sqrt(), (1 / beta).ln(), C_beta.ln())),
            lam * lam.sqrt() * beta / (L * G.sqrt()),
        )
        Q, rate = Decimal(0), 1 - mu / l1
        if rate > 0:
            goal = c3 * lam * mu**2 * eps**2 / (G * l1**2 * lf**2)
            Q = max(beta.ln() / rate.ln(), goal.ln() / rate.ln()) / 2
        # With many more digits than β has zeros, 1 − β is exact enough for its logarithm.
        context.prec = 60 + max(0, -beta.adjusted())
        T0 = (sg1**2 * beta / (mu**2 * y_error**2)).ln() / (1 - beta).ln() if beta < 1 else Decimal(0)
        T = max(1 / beta**2, C2 * Delta1 * G / (eta * eps**2))
        return {"C_beta": C_beta, "beta": beta, "gamma": 2 * beta / mu, "eta": eta, "Q": Q, "T0": T0, "T": T}


def near(count, exact):
    """Whether `count` is `exact` rounded up, to 1e-9 where it is large."""
    return abs(Decimal(count) - exact) <= 1 + exact * Decimal("1e-9") and count >= exact * (1 - Decimal("1e-9"))


def test_the_worked_example_has_the_digits_of_its_table():
    here = worked()
    assert f"{here.run.G:.10g}" == TABLE["G"]
    assert f"{here.iota:.10g}" == "3.688879454"
    assert f"{here.ln_C_beta:.10g}" == "137.8297007"
    assert f"{here.beta:.10g}" == "5.848906547e-11"
    assert f"{here.gamma:.10g}" == "2.339562619e-10"
    assert f"{here.eta:.10g}" == "4.204179485e-18"
    assert (here.Q, here.T0) == (41, 434179663404)
    assert f"{here.T:.10g}" == "2.704034149e+22"


def test_with_constants_small_enough_the_parameters_are_smaller_still():
    here = worked(proof=ProofConstants(c1=1e-5, c2=0.1, c3=1e-3, C1=64, C2=64))
    assert [f"{value:.1e}" for value in (here.beta, here.eta, here.T)] == ["2.2e-15", "3.3e-23", "2.1e+29"]
    assert here.Q == 59
    assert here == worked(proof=None)  # the defaults


proofs = st.builds(
    lambda c1, c2, c3, C1, C2: ProofConstants(c1=c1, c2=c2, c3=c3, C1=C1, C2=C2), *[magnitudes for _ in range(5)]
)


@few
@given(
    values=problems(),
    epsilon=(st.floats(-100.0, 0.0) | st.floats(0.0, 30.0)).map(lambda power: 10.0**power),
    delta=st.floats(1e-9, 0.999),
    start=st.tuples(magnitudes, magnitudes, magnitudes),
    proof=proofs,
    printed=st.booleans(),
)
def test_all_parameters_agree_with_sixty_digits(values, epsilon, delta, start, proof, printed):
    lam, Delta1, y_error = start
    exact = expected(values, epsilon, delta, lam, Delta1, y_error, proof, printed)
    here = theorem_parameters(
        ProblemConstants(**values),
        epsilon,
        delta,
        lam=lam,
        Delta1=Delta1,
        y_error=y_error,
        proof=proof,
        statement="printed" if printed else "corrected",
    )
    for name in ("C_beta", "beta", "gamma", "eta", "T"):
        if name != "T" or here.T > 1:
            assert getattr(here, f"ln_{name}") == pytest.approx(float(exact[name].ln()), abs=1e-9), name
    for name in ("beta", "gamma", "eta"):
        assert getattr(here, name) == pytest.approx(float(exact[name]), rel=1e-9)
    assert near(here.T, exact["T"])
    assert near(here.T0, max(Decimal(0), exact["T0"]))
    assert near(here.Q, max(Decimal(1), exact["Q"]))


def test_the_logarithm_of_beta_slows_eta_where_no_other_is_larger():
    """ε is so large that C_β < 1, and μ/l_g1 so small that its cap on β is."""
    changes = {"mu": 1e-3, "l_g1": 1e3}
    exact = expected(WORKED | changes, 1e60, 0.5, 1e9, 1.0, 1.0, TESTED, False)
    assert (1 / exact["beta"]).ln() > 15 > exact["C_beta"].ln()
    here = worked(epsilon=1e60, delta=0.5, lam=1e9, changes=changes)
    assert here.ln_eta == pytest.approx(float(exact["eta"].ln()), abs=1e-9)


def test_a_tiny_epsilon_overflows_nothing():
    here = worked(epsilon=1e-100)
    exact = expected(WORKED, 1e-100, 0.1, 0.1, 1.0, 1.0, TESTED, False)
    assert here.ln_T == pytest.approx(float(exact["T"].ln()), abs=1e-9)
    assert near(here.T, exact["T"])
    assert len(str(here.T)) == 422
    assert here.oracle_calls("independent") > here.oracle_calls("chained") > here.T
    smallest = worked(epsilon=5e-324)
    assert smallest.beta == smallest.eta == 0.0  # below float64, and only the numbers: their logarithms are there
    assert math.isfinite(smallest.ln_beta)
    assert math.isfinite(smallest.ln_eta)


@few
@given(powers=st.tuples(st.floats(-100, 2), st.floats(-100, 2)), delta=st.floats(1e-6, 0.9))
def test_more_is_asked_for_a_smaller_epsilon(powers, delta):
    small, large = (worked(epsilon=10.0**power, delta=delta) for power in sorted(powers))
    assert small.ln_beta <= large.ln_beta
    assert small.ln_eta <= large.ln_eta
    assert small.Q >= large.Q
    assert small.T0 >= large.T0
    assert small.ln_T >= large.ln_T
    assert small.oracle_calls() >= large.oracle_calls()


@few
@given(deltas=st.tuples(st.floats(1e-12, 0.99), st.floats(1e-12, 0.99)), power=st.floats(-50, 0))
def test_more_is_asked_for_a_smaller_probability_of_failure(deltas, power):
    rare, usual = (worked(epsilon=10.0**power, delta=delta) for delta in sorted(deltas))
    assert rare.ln_beta <= usual.ln_beta
    assert rare.T >= usual.T


def test_orders_in_epsilon_are_those_of_the_theorem():
    """Per decade of ε: 2 decades of β, γ, η and T_0, 4 of T, up to logarithms; Q grows by a constant."""
    far, near_zero = worked(epsilon=1e-90), worked(epsilon=1e-100)
    decades = 10 * math.log(10)
    for name, order in (("ln_beta", 2), ("ln_gamma", 2), ("ln_eta", 2), ("ln_T", -4)):
        assert (getattr(far, name) - getattr(near_zero, name)) / decades == pytest.approx(order, abs=0.02), name
    assert (math.log(near_zero.T0) - math.log(far.T0)) / decades == pytest.approx(2, abs=0.02)
    assert math.isclose(near_zero.Q - far.Q, decades / -math.log(1 - 0.5 / 2), abs_tol=2)
    assert near_zero.beta < 1e-200
    calls = math.log(near_zero.oracle_calls("independent")) - math.log(far.oracle_calls("independent"))
    assert calls / decades == pytest.approx(4, abs=0.03)


def test_a_start_that_is_near_needs_no_warm_start():
    assert worked(y_error=0).T0 == 0
    assert worked(y_error=1e-9).T0 == 0  # where the formula is negative
    assert worked(changes={"sigma_g1": 1e9}).T0 == 0
    assert worked(y_error=2.0).T0 > worked(y_error=1.0).T0 > 0


def test_one_term_is_enough_where_the_curvature_is_known():
    assert worked(changes={"mu": 2.0}).Q == 1
    assert worked(epsilon=1e9).Q >= 1
    here = worked(epsilon=1e-100, changes={"mu": 2.0})
    assert here.oracle_calls() == here.oracle_calls("independent") == here.T0 + 4 * here.T


def test_the_corrected_beta_keeps_the_lower_rate_where_sgd_is_stable():
    loose = {"proof": ProofConstants(c1=1e9), "epsilon": 1e3}
    here = worked(**loose)
    assert here.beta == pytest.approx(0.5 / (4 * 2.0))
    assert here.gamma == pytest.approx(1 / (2 * 2.0))
    printed = worked(**loose, statement="printed")
    assert printed.beta == 1.0
    assert printed.T0 == 0
    assert printed.T >= 1


def test_the_two_statements_conclude_differently():
    assert worked().conclusion.endswith("(1/T) Σ ‖∇Φ(x_t)‖² ≤ ε².")
    assert "(1/T) Σ ‖∇Φ(x_t)‖ ≤ ε²." in worked(statement="printed").conclusion
    assert worked(statement="printed").derived.sigma_phi > worked().derived.sigma_phi


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 0.0}, "delta=0.0 is no probability"),
        ({"delta": 1.0}, "delta=1.0 is no probability"),
        ({"lam": 0.0}, "lam=0.0"),
        ({"Delta1": -1.0}, "Delta1=-1.0"),
        ({"y_error": -1.0}, "y_error=-1.0"),
        ({"y_error": math.inf}, "y_error=inf"),
        ({"statement": "true"}, "statement='true'"),
        ({"changes": {"sigma_g1": 0.0}}, "sigma_g1=0.0 is not a positive"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    with pytest.raises(adambo.SettingError, match=message):
        worked(**changes)


def test_constants_of_the_proof_say_what_they_break():
    assert ProofConstants().unmet(0.5, 2.0) == []
    broken = ProofConstants(c1=0.1, c2=0.2, c3=0.1, C1=16, C2=8).unmet(0.5, 2.0)
    assert broken == ["C1 ≥ 32", "16/C2 + 7168 c1 + 67 c3 < 1 (it is 726)", "c2 ≤ mu/(2 (mu + l_g1)) = 0.1"]
    with pytest.raises(adambo.SettingError, match="c1=0"):
        ProofConstants(c1=0)


@few
@given(steps=st.integers(0, 10**30), warm=st.integers(0, 10**30), terms=st.integers(1, 10**4))
def test_oracle_calls_are_the_formulas_of_both_estimators(steps, warm, terms):
    assert oracle_calls(steps, warm, terms) == warm + (terms + 3) * steps
    assert 2 * oracle_calls(steps, warm, terms, "independent") == 2 * warm + (8 + terms * (terms - 1)) * steps


@pytest.mark.parametrize("terms", [1, 2, 4])
@pytest.mark.parametrize("samples", SAMPLES)
def test_oracle_calls_are_those_of_a_run(samples, terms):
    known = StochasticQuadratic()
    solver = AdamBO(known.problem(), inverse=Neumann(terms=terms, step=0.2, samples=samples))
    solver.warm_start([[0], [1], [2]])
    for _ in range(5):
        hessian = tuple([0] for _ in range(solver.needs.hessian))
        level = terms - 1 if samples == "random" else None  # the longest
        solver.step(adambo.Draw(upper=([0],), lower=([1],), cross=([2],), hessian=hessian, level=level))
    counts = solver.ledger.as_dict()
    del counts["curvature_vector"], counts["samples"]
    assert sum(counts.values()) == oracle_calls(5, 3, terms, samples)


def test_no_number_depends_on_how_the_caller_sets_decimals():
    usual = worked()
    for changed in (Context(prec=5), Context(rounding=ROUND_UP), Context(traps=[Inexact])):
        with localcontext(changed):
            assert worked() == usual
    assert (usual.Q, usual.T0) == (41, 434179663404)


def test_what_holds_no_constants_is_refused():
    with pytest.raises(adambo.SettingError, match=r"constants= is a dict.*ProblemConstants\(\*\*numbers\)"):
        theorem_parameters(WORKED, 0.1, 0.1, **START)
    with pytest.raises(adambo.SettingError, match="proof= is a dict"):
        worked(proof={"c1": 1.0})
    for mu, l_g1, message in ((3.0, 2.0, "mu=3.0 exceeds"), (0.0, 2.0, "mu=0.0")):
        with pytest.raises(adambo.SettingError, match=message):
            ProofConstants().unmet(mu, l_g1)


@pytest.mark.parametrize(
    "wrong",
    [(-1, 0, 1), (0, -1, 1), (0, 0, 0), (0, 0, 1, "none"), (1.5, 0, 1), (1, 0, 2.5), (math.nan, 0, 1), ("3", 0, 1)],
)
def test_oracle_calls_of_no_run_are_refused(wrong):
    with pytest.raises(adambo.SettingError):
        oracle_calls(*wrong)


@few
@given(l_g1=magnitudes, terms=st.integers(1, 60))
def test_the_number_of_terms_is_enough_and_no_larger(l_g1, terms):
    """Q is the smallest with (1 − μ/l)^{2Q} ≤ min{β, c_3 λ μ² ε²/(G l² l_f0²)}."""
    mu, changes = min(0.5, l_g1), {"l_g1": l_g1, "mu": min(0.5, l_g1)}
    assume(mu < l_g1)
    here = worked(epsilon=10.0**-terms, changes=changes)
    goal = 0.1 * 0.1 * (mu / l_g1) ** 2 / here.run.G
    ln_goal = min(here.ln_beta, math.log(goal) - 2 * terms * math.log(10))
    shrink = 2 * math.log1p(-mu / l_g1)
    assert here.Q * shrink <= ln_goal * (1 - 1e-9)
    assert (here.Q - 1) * shrink >= ln_goal * (1 + 1e-9)
