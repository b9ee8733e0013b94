"""The parameters of AdamBO's convergence theorem, computed in logarithms.

paper                    here
ε, δ                     epsilon, delta
c_1, c_2, c_3, C_1, C_2  ProofConstants
β, γ, η                  beta, gamma, eta (`beta`, `lower_lr`, `lr` of adambo.AdamBO)
Q, T_0, T                Q, T0, T
C_β, ι                   exp(ln_C_beta), iota
‖y_0 − y*(x_1)‖          y_error
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import get_args

from adambo.errors import SettingError
from adambo.inverse.neumann import Samples
from adambo.theory.checks import (
    Statement,
    check_condition_number,
    check_not_negative,
    check_positive,
    check_probability,
    check_statement,
    check_whole,
)
from adambo.theory.constants import DerivedConstants, ProblemConstants, RunConstants

DIGITS = Context(prec=28, rounding=ROUND_HALF_EVEN, traps=[])  # whatever the caller has decimals do


@dataclass(frozen=True, kw_only=True)
class ProofConstants:
    """The numbers that the paper calls small enough (c1, c2, c3) and large enough (C1, C2), without values.

    The defaults meet all that its proof is known to ask of them in the worked example of the tests.

    Example:
        >>> ProofConstants(C1=8).unmet(mu=0.5, l_g1=2.0)
        ['C1 ≥ 32']
    """

    c1: float = 1e-5
    c2: float = 0.1
    c3: float = 1e-3
    C1: float = 64.0
    C2: float = 64.0

    def __post_init__(self) -> None:
        check_positive(asdict(self))

    def unmet(self, mu: float, l_g1: float) -> list[str]:
        """The conditions known to be needed by the proof that these numbers break; an empty list proves nothing."""
        check_positive({"mu": mu, "l_g1": l_g1})
        check_condition_number(mu, l_g1)
        left = 16.0 / self.C2 + 7168.0 * self.c1 + 67.0 * self.c3
        largest = mu / (2.0 * (mu + l_g1))  # also gives K L² ≤ β/4, for which c2 ≤ μ/(√2 l_g1) is enough
        conditions = {
            "C1 ≥ 32": self.C1 >= 32.0,
            f"16/C2 + 7168 c1 + 67 c3 < 1 (it is {left:.3g})": left < 1.0,
            f"c2 ≤ mu/(2 (mu + l_g1)) = {largest:.3g}": self.c2 <= largest,
        }
        return [condition for condition, holds in conditions.items() if not holds]


@dataclass(frozen=True, kw_only=True)
class TheoremParameters:
    """What `theorem_parameters` found. `T0`, `T` and oracle calls are whole numbers of any size, right to 12 digits."""

    statement: Statement
    iota: float
    derived: DerivedConstants
    run: RunConstants
    ln_C_beta: float  # noqa: N815
    ln_beta: float
    ln_gamma: float
    ln_eta: float
    ln_T: float  # noqa: N815
    Q: int
    T0: int
    T: int

    @property
    def beta(self) -> float:
        """β; 0.0 where it is below float64, as `gamma` and `eta` are then: the logarithms remain."""
        return math.exp(self.ln_beta)

    @property
    def gamma(self) -> float:
        return math.exp(self.ln_gamma)

    @property
    def eta(self) -> float:
        return math.exp(self.ln_eta)

    def oracle_calls(self, samples: Samples = "chained") -> int:
        """All calls of the run; the paper's own estimator is "independent"."""
        return oracle_calls(self.T, self.T0, self.Q, samples)

    @property
    def conclusion(self) -> str:
        """What the theorem says of a run with these parameters."""
        always = "With probability 1 − δ, ‖∇Φ(x_t)‖ ≤ G for all t ≤ T, and (1/T) Σ ‖∇Φ(x_t)‖"
        if self.statement == "corrected":
            return f"{always}² ≤ ε²."
        return f"{always} ≤ ε². (So it is printed; the proof bounds the mean of the squares.)"


def theorem_parameters(
    constants: ProblemConstants,
    epsilon: float,
    delta: float,
    *,
    lam: float,
    Delta1: float,
    y_error: float,
    proof: ProofConstants | None = None,
    statement: Statement = "corrected",
) -> TheoremParameters:
    r"""The parameter choice of the theorem, every inequality taken as an equality.

        β   = min{μ/(4 l_{g,1}), c_1 λ ε² / (σ_φ² G max{1, √ι, ln C_β})}         γ = 2β/μ
        η   = c_2 min{rλ/G, λ/(6L), σ_φ λ β / (L G max{1, √ι, ln 1/β, ln C_β}), λ^{3/2} β/(L √G)}
        Q   = ½ ln min{β, c_3 λ μ² ε² / (G l_{g,1}² l_{f,0}²)} / ln(1 − μ/l_{g,1})
        T_0 = ln(σ_{g,1}² β/(μ² ‖y_0 − y_0*‖²)) / ln(1 − β)        T = max{1/β², C_2 Δ_1 G/(η ε²)}

    Q, T_0 and T are rounded up, Q to at least 1 and T_0 to at least 0. They describe orders in ε: β, γ, η ~ ε²,
    Q ~ ln 1/ε, T_0 ~ ε⁻², T ~ ε⁻⁴, up to logarithms. As settings they are useless (T ≈ 10²² for an easy problem).

    Args:
        constants: Of the problem.
        epsilon: ε, the stationarity asked for.
        delta: δ, the probability of failure.
        lam: λ, what Adam adds to its denominator.
        Delta1: Δ_1 = Φ(x_1) − inf Φ.
        y_error: ‖y_0 − y*(x_1)‖ before the warm start; 0 is allowed.
        proof: c_1, c_2, c_3, C_1, C_2.
        statement: "printed" is the paper's: σ_φ has lost a factor σ_f, β is capped by 1 though its lemmas need
            γ ≤ 1/(2 l_{g,1}), and the conclusion has the norm where the proof has its square.

    Raises:
        SettingError: If an argument cannot be.

    Example:
        >>> constants = ProblemConstants(mu=0.5, l_g1=2, l_g2=0.3, l_f0=1, L_x0=1, L_x1=0.5, L_y0=0.8, L_y1=0.2,
        ...                              sigma_f=0.1, sigma_g1=0.2, sigma_g2=0.1)
        >>> proof = ProofConstants(c1=0.1, c2=0.1, c3=0.1, C1=32, C2=16)
        >>> found = theorem_parameters(constants, 0.1, 0.1, lam=0.1, Delta1=1, y_error=1, proof=proof)
        >>> found.Q, f"{found.T:.3e}", f"{found.beta:.3e}"
        (41, '2.704e+22', '5.849e-11')
    """
    if not isinstance(constants, ProblemConstants) or not isinstance(proof, ProofConstants | None):
        wrong = ("constants", constants) if not isinstance(constants, ProblemConstants) else ("proof", proof)
        raise SettingError(
            f"{wrong[0]}= is a {type(wrong[1]).__name__}, but the theorem takes constants=ProblemConstants(...) and "
            "proof=ProofConstants(...); ProblemConstants(**numbers) makes them of a dict."
        )
    check_positive({"epsilon": epsilon})
    check_not_negative(y_error=y_error)
    check_probability(delta)
    check_statement(statement)
    proof = proof or ProofConstants()
    derived = constants.derived(statement)
    run = derived.of_run(lam, Delta1, proof.C1)
    iota = math.log(4.0) - math.log(delta)
    ln_c1, ln_c2, ln_c3, _, ln_C2 = map(math.log, asdict(proof).values())
    ln_eps, ln_lam, ln_G, ln_L = map(math.log, (epsilon, lam, run.G, run.L))
    ln_sigma, ln_mu, ln_l = map(math.log, (derived.sigma_phi, constants.mu, constants.l_g1))
    ln_gap = ln_C2 + math.log(Delta1)  # C_2 Δ_1

    # C_β first: it does not depend on β. `noise` is ln(σ_φ² G / (c_1 λ ε²)).
    noise = 2.0 * ln_sigma + ln_G - ln_c1 - ln_lam - 2.0 * ln_eps
    square = 1.0 + 2.0 * noise - math.log(delta)
    B = 1.0 + ln_gap + ln_L + ln_sigma + 3.0 * ln_G - ln_c1 - ln_c2 - math.log(delta) - 2.0 * ln_lam - 4.0 * ln_eps
    B += _ln_sum(0.0, noise) + math.log(max(1.0, math.sqrt(iota), iota))
    a1 = math.log(8.0) + square + math.log(max(1.0, iota))
    ln_C_beta = max(a1, math.log(8.0) + B, 2.0 * (math.log(32.0) + square), 2.0 * (math.log(48.0) + B))

    # μ ≤ l_g1 makes this cap at most 1/4, so that β ≤ 1/2 follows.
    cap = math.log(0.25) + ln_mu - ln_l if statement == "corrected" else 0.0
    ln_beta = min(cap, -noise - math.log(max(1.0, math.sqrt(iota), ln_C_beta)))
    slowest = math.log(max(1.0, math.sqrt(iota), -ln_beta, ln_C_beta))
    ln_eta = ln_c2 + min(
        math.log(derived.r) + ln_lam - ln_G,
        ln_lam - math.log(6.0) - ln_L,
        ln_sigma + ln_lam + ln_beta - ln_L - ln_G - slowest,
        1.5 * ln_lam + ln_beta - ln_L - 0.5 * ln_G,
    )
    bias = ln_c3 + ln_lam + 2.0 * (ln_mu + ln_eps - ln_l - math.log(constants.l_f0)) - ln_G
    ln_T = max(-2.0 * ln_beta, ln_gap + ln_G - ln_eta - 2.0 * ln_eps)
    return TheoremParameters(
        statement=statement,
        iota=iota,
        derived=derived,
        run=run,
        ln_C_beta=ln_C_beta,
        ln_beta=ln_beta,
        ln_gamma=math.log(2.0) + ln_beta - ln_mu,
        ln_eta=ln_eta,
        ln_T=ln_T,
        Q=_terms(min(ln_beta, bias), constants),
        T0=_warm_start_steps(ln_beta, y_error, constants),
        T=_whole(ln_T),
    )


def oracle_calls(steps: int, warm_start_steps: int, terms: int, samples: Samples = "chained") -> int:
    """Oracle calls of AdamBO: one per warm-start step, then ∇x F, ∇y F, ∇y G, ∇²xy G and the series in every step.

        independent                 T_0 + T (4 + Q(Q − 1)/2)       the estimator as printed
        chained, prefix, shared     T_0 + T (Q + 3)                the paper's T_0 + Q T, made exact
        random                      T_0 + T (Q + 3) at most; (Q − 1)/2 in place of Q − 1 products on average

    Args:
        steps: T.
        warm_start_steps: T_0.
        terms: Q.
        samples: Which estimator, as in `adambo.Neumann`.

    Raises:
        SettingError: If an argument cannot be.

    Example:
        >>> oracle_calls(100, 10, 3), oracle_calls(100, 10, 3, "independent")
        (610, 710)
    """
    check_whole(0, steps=steps, warm_start_steps=warm_start_steps)
    check_whole(1, terms=terms)
    if samples not in get_args(Samples):
        raise SettingError(f"samples={samples!r} is not an estimator; choose one of {', '.join(get_args(Samples))}.")
    products = terms * (terms - 1) // 2 if samples == "independent" else terms - 1
    return warm_start_steps + steps * (4 + products)


def _terms(ln_bias: float, constants: ProblemConstants) -> int:
    """The Q with (1 − μ/l_g1)^{2Q} = exp(ln_bias); one term is exact where μ = l_g1."""
    if constants.mu == constants.l_g1 or ln_bias >= 0.0:
        return 1
    return max(1, _whole(math.log(-ln_bias) - math.log(-2.0 * math.log1p(-constants.mu / constants.l_g1))))


def _warm_start_steps(ln_beta: float, y_error: float, constants: ProblemConstants) -> int:
    if y_error == 0.0 or ln_beta == 0.0:  # there already; or, for β = 1, in one step
        return 0
    ln_goal = 2.0 * (math.log(constants.sigma_g1) - math.log(constants.mu) - math.log(y_error)) + ln_beta
    if ln_goal >= 0.0:  # nearer than the noise lets it stay
        return 0
    beta = math.exp(ln_beta)
    ln_rate = math.log(-math.log1p(-beta)) if beta > 1e-20 else ln_beta
    return _whole(math.log(-ln_goal) - ln_rate)


def _ln_sum(a: float, b: float) -> float:
    """ln(eᵃ + eᵇ)"""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _whole(ln: float) -> int:
    """The whole number above eˡⁿ; what exceeds a small one by rounding errors alone is taken for it."""
    with localcontext(DIGITS):
        value = Decimal(ln).exp()
        if value < 10**9:
            value *= 1 - Decimal("1e-13")
        return int(value.to_integral_value(ROUND_CEILING))
