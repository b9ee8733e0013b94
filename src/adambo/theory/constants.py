"""The constants of the assumptions, and those that the proof makes of them.

paper                            here
μ, l_{g,1}, l_{g,2}, l_{f,0}     mu, l_g1, l_g2, l_f0
L_{x,0}, L_{x,1}, L_{y,0}, L_{y,1}    L_x0, L_x1, L_y0, L_y1
σ_f, σ_{g,1}, σ_{g,2}            sigma_f, sigma_g1, sigma_g2
r, L_0, L_1, C_L, σ_φ            r, L0, L1, C_L, sigma_phi
C_{φ,0}, C_{φ,1}                 C_phi0, C_phi1
G, L, ψ, C_{u,0}, C_{u,1}        G, L, psi, C_u0, C_u1
λ, Δ_1                           lam (the `eps` of adambo.AdamBO), Delta1
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from adambo.errors import SettingError
from adambo.theory.checks import Statement, check_condition_number, check_positive, check_sgd, check_statement


@dataclass(frozen=True, kw_only=True)
class ProblemConstants:
    r"""What the assumptions of AdamBO's theorem say about a problem.

    All are bounds, so that a larger one (a smaller `mu`) is as true. The proof needs more of single samples than the
    paper assumes. Every G(·; ζ) is μ-strongly convex in y: without it the Neumann series of samples has no bound. And
    where h is compared at y and at y*(x) on the same samples (`step_bound`), every ∇x F(·; ξ) is as smooth as ∇x f, and
    ‖∇y F(x, y*(x); ξ)‖ ≤ l_{f,0}, noise included. Where only the mean ∇y f is bounded so, give l_{f,0} + σ_f as `l_f0`.

    Args:
        mu: μ, strong convexity of g in y.
        l_g1: l_{g,1}, Lipschitz constant of ∇g, also of every sample; at least `mu`.
        l_g2: l_{g,2}, Lipschitz constant of ∇²xy g and ∇²yy g, also of every sample.
        l_f0: l_{f,0}, bound of ‖∇y f‖ at (x, y*(x)), also of every sample.
        L_x0, L_x1: Relaxed smoothness: ‖∇x f(z) − ∇x f(z')‖ ≤ (L_{x,0} + L_{x,1} ‖∇x f(z)‖) ‖z − z'‖ for z' near z.
        L_y0, L_y1: The same for ∇y f.
        sigma_f: σ_f, bound of the noise in ∇x F and in ∇y F.
        sigma_g1: σ_{g,1}, of the noise in ∇y G: Pr(‖noise‖ ≥ s) ≤ 2 exp(−2s²/σ_{g,1}²).
        sigma_g2: σ_{g,2}, bound of the noise in ∇²xy G and in ∇²yy G.

    Raises:
        SettingError: If one of them is not positive and finite, or `mu` exceeds `l_g1`.

    Example:
        >>> constants = ProblemConstants(mu=0.5, l_g1=2, l_g2=0.3, l_f0=1, L_x0=1, L_x1=0.5, L_y0=0.8, L_y1=0.2,
        ...                              sigma_f=0.1, sigma_g1=0.2, sigma_g2=0.1)
        >>> round(constants.derived().L0, 6)
        41.231056
    """

    mu: float
    l_g1: float
    l_g2: float
    l_f0: float
    L_x0: float
    L_x1: float
    L_y0: float
    L_y1: float
    sigma_f: float
    sigma_g1: float
    sigma_g2: float

    def __post_init__(self) -> None:
        advice = "Constants are bounds, so a looser one is as true: where the quantity is zero, give a small number."
        check_positive(asdict(self), advice)
        check_condition_number(self.mu, self.l_g1)

    def derived(self, statement: Statement = "corrected") -> DerivedConstants:
        r"""The constants that follow from these alone. With κ' = √(1 + l_{g,1}²/μ²):

            r     = 1 / (κ' √(L_{x,1}² + L_{y,1}²))
            L_0   = κ' (L_{x,0} + L_{x,1} l_{g,1} l_{f,0}/μ + (l_{g,1}/μ) S + l_{f,0} l_{g,2} (l_{g,1} + μ)/μ²)
            L_1   = κ' L_{x,1}        C_L = r L_1        S = L_{y,0} + L_{y,1} l_{f,0}
            C_φ0  = ((μ + 3 l_{g,1} + σ_{g,2})/μ) σ_f + ((3 l_{g,1} + σ_{g,2})/μ) l_{f,0}
            C_φ1  = ((3 l_{g,1} + σ_{g,2})/μ) S + L_0
            σ_φ   = ((μ + 3 l_{g,1} + σ_{g,2})/μ) σ_f + ((2 l_{g,1} + σ_{g,2})/μ) (l_{f,0} + S r)

        Args:
            statement: In the definition that is "printed", the first term of σ_φ has lost its factor σ_f.

        Raises:
            SettingError: If the constants lie so far apart that one of these is beyond float64.
        """
        check_statement(statement)
        ratio = self.l_g1 / self.mu
        stretch = math.hypot(1.0, ratio)
        growth = math.hypot(self.L_x1, self.L_y1)
        slope = self.L_y0 + self.L_y1 * self.l_f0
        bend = self.l_f0 * (self.l_g2 / self.mu) * (ratio + 1.0)
        noisy = 1.0 + 3.0 * ratio + self.sigma_g2 / self.mu
        pull = 2.0 * ratio + self.sigma_g2 / self.mu
        r = 1.0 / stretch / growth
        L0 = stretch * (self.L_x0 + self.L_x1 * ratio * self.l_f0 + ratio * slope + bend)
        derived = DerivedConstants(
            r=r,
            L0=L0,
            L1=stretch * self.L_x1,
            C_L=self.L_x1 / growth,
            C_phi0=noisy * self.sigma_f + (pull + ratio) * self.l_f0,
            C_phi1=(pull + ratio) * slope + L0,
            sigma_phi=noisy * (self.sigma_f if statement == "corrected" else 1.0) + pull * (self.l_f0 + slope * r),
        )
        _check_range(asdict(derived))
        return derived


@dataclass(frozen=True, kw_only=True)
class DerivedConstants:
    """What follows from the `ProblemConstants`: Φ is (L_0, L_1)-smooth within r, h_t has noise σ_φ there."""

    r: float
    L0: float
    L1: float
    C_L: float
    C_phi0: float
    C_phi1: float
    sigma_phi: float

    def of_run(self, lam: float, Delta1: float, C1: float) -> RunConstants:
        r"""The constants that also depend on where a run begins, and on Adam's λ.

            G = max{4λ, 2σ_φ, 4C_φ0, C_φ1/L_1, √(C_1 Δ_1 L_0/C_L), C_1 Δ_1 L_1/C_L}
            L = L_0 + L_1 G     ψ = C_L G²/(2L)     C_u0 = C_φ0 + G     C_u1 = C_φ1 + L_1 G

        Args:
            lam: λ, what Adam adds to its denominator.
            Delta1: Δ_1 = Φ(x_1) − inf Φ.
            C1: "Large enough" in the paper; what its proof does with it needs at least 32.

        Example:
            >>> derived = DerivedConstants(r=1, L0=2, L1=1, C_L=1, C_phi0=1, C_phi1=1, sigma_phi=1)
            >>> derived.of_run(lam=0.1, Delta1=0.5, C1=32)
            RunConstants(G=16.0, L=18.0, psi=7.111111111111111, C_u0=17.0, C_u1=17.0)
        """
        check_positive({"lam": lam, "Delta1": Delta1, "C1": C1})
        start = C1 * Delta1 / self.C_L
        G = max(
            *(4.0 * lam, 2.0 * self.sigma_phi, 4.0 * self.C_phi0, self.C_phi1 / self.L1),
            *(math.sqrt(start) * math.sqrt(self.L0), start * self.L1),
        )
        L = self.L0 + self.L1 * G
        run = RunConstants(
            G=G, L=L, psi=self.C_L * G / 2.0 * (G / L), C_u0=self.C_phi0 + G, C_u1=self.C_phi1 + self.L1 * G
        )
        _check_range(asdict(run))
        return run


@dataclass(frozen=True, kw_only=True)
class RunConstants:
    """Bounds along a run: ‖∇Φ(x_t)‖ ≤ G while Φ(x_t) − inf Φ ≤ ψ; Φ is L-smooth there, and ‖û_t‖ ≤ C_u0."""

    G: float
    L: float
    psi: float
    C_u0: float
    C_u1: float


@dataclass(frozen=True, kw_only=True)
class LowerLevel:
    r"""The lower-level SGD beside the Adam steps above it, with γ = 2β/μ as in the theorem.

    Args:
        mu, l_g1: Strong convexity and smoothness of g.
        sigma_g1: Of the noise in ∇y G; 0 is allowed here.
        lam, eta: λ and the learning rate of Adam.
        beta: Weight of the new sample in Adam's momentum; at most μ/(4 l_{g,1}), which is γ ≤ 1/(2 l_{g,1}).

    Raises:
        SettingError: If one of them cannot be.

    Example:
        >>> level = LowerLevel(mu=1.0, l_g1=2.0, sigma_g1=0.1, lam=1.0, eta=0.01, beta=0.1)
        >>> level.gamma, round(level.K, 12)
        (0.2, 0.008)
    """

    mu: float
    l_g1: float
    sigma_g1: float
    lam: float
    eta: float
    beta: float

    def __post_init__(self) -> None:
        check_positive({name: value for name, value in asdict(self).items() if name != "sigma_g1"})
        check_sgd(self.mu, self.l_g1, self.sigma_g1, self.gamma, f"beta={self.beta!r} makes ")

    @property
    def gamma(self) -> float:
        """γ = 2β/μ, the learning rate of y."""
        return 2.0 * self.beta / self.mu

    @property
    def K(self) -> float:
        """K = 4η² l²_{g,1}/(λ² μ³ γ): what a squared step of Adam costs in ‖y − y*‖²."""
        return (2.0 * self.eta * self.l_g1 / (self.lam * self.mu)) ** 2 / (self.mu * self.gamma)

    @property
    def variance(self) -> float:
        """8γσ²_{g,1}/μ, the unit of the variance terms."""
        return 8.0 * self.gamma * self.sigma_g1**2 / self.mu


def _check_range(values: dict[str, float]) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise SettingError(
                f"{name} is {value!r} in float64: the constants lie too far apart to compute with. Choose units of x, "
                "y and of the losses in which they are nearer to 1."
            )
