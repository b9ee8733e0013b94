"""How the settings of each method depend on the horizon, what is proved for it, and the problems it runs on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adambo.studies.batched_methods import Settings
from adambo.studies.batched_problems import BatchedProblem, batched
from adambo.testing import StochasticQuadratic, StochasticUnboundedSmooth

REFERENCE = 1024  # the horizon at which all methods have the settings that are named here
MU = 1.0
THEOREM, SMALLER = "AdamBO, λ = 1, η = β", "AdamBO, λ = 1, η = β/4"


@dataclass(frozen=True)
class Scaling:
    """A method, its settings as powers of the horizon, and what is proved for it.

    Attributes:
        method: Its name in the simulation.
        powers: Of η, γ and β: each is its value at the reference horizon times (T/1024)^(−power).
        lr: η at the reference horizon, where γ = 1/16 and β = 1/32.
        norm, square: Proved powers of T for the mean of the norm and of its square, as words; "–" where there is none.
        eps: λ.
    """

    method: str
    powers: tuple[float, float, float]
    lr: float
    norm: str
    square: str
    eps: float = 1e-8

    def at(self, horizon: int, smoothness: float) -> Settings:
        ratio = horizon / REFERENCE
        lr, lower_lr, beta = (
            value * ratio**-power for value, power in zip((self.lr, 1 / 16, 1 / 32), self.powers, strict=True)
        )
        # The theorem's caps. At the default horizons only weights that fall faster than T^(−1/2) meet them, below 256.
        lower_lr, beta = min(lower_lr, 1 / (2 * smoothness)), min(beta, MU / (4 * smoothness))
        terms = math.ceil(math.log(beta) / math.log(1 - MU / smoothness))
        return Settings(lr, lower_lr, beta, beta_sq=0.01, eps=self.eps, terms=terms)

    @property
    def words(self) -> str:
        eta, gamma, beta = (_POWERS[power] for power in self.powers)
        weight = "" if self.method in ("SOBA", "StocBiO", "TTSA") else f", β ∝ {beta}"
        return f"η ∝ {eta}, γ ∝ {gamma}{weight}"


_POWERS = {1 / 3: "T^(−1/3)", 2 / 5: "T^(−2/5)", 1 / 2: "T^(−1/2)", 3 / 5: "T^(−3/5)", 2 / 3: "T^(−2/3)"}
_POWERS[3 / 4] = "T^(−3/4)"
_half, _third, _two_thirds = (1 / 2, 1 / 2, 1 / 2), (1 / 3, 1 / 3, 2 / 3), (2 / 3, 2 / 3, 2 / 3)
SCALINGS = {
    THEOREM: Scaling("AdamBO", _half, 1 / 32, "−1/4", "−1/2", 1.0),
    SMALLER: Scaling("AdamBO", _half, 1 / 128, "−1/4", "−1/2", 1.0),
    "AdamBO, λ = 1e-8, η = β": Scaling("AdamBO", _half, 1 / 32, "–", "–"),
    "AdamBO, λ = 1e-8, η = β/4": Scaling("AdamBO", _half, 1 / 128, "–", "–"),
    "AdamBO, λ = 1e-8, η = 4β": Scaling("AdamBO", _half, 1 / 8, "–", "–"),
    "SLIP": Scaling("SLIP", (3 / 4, 1 / 2, 1 / 2), 1 / 64, "−1/4", "–"),
    "BO-REP": Scaling("BO-REP", (3 / 4, 1 / 2, 1 / 2), 1 / 64, "−1/4", "–"),
    "SOBA": Scaling("SOBA", _half, 1 / 32, "−1/4", "−1/2"),
    "StocBiO": Scaling("StocBiO", _half, 1 / 32, "–", "–"),
    "TTSA": Scaling("TTSA", (3 / 5, 2 / 5, 1 / 2), 1 / 32, "−1/5", "−2/5"),
    "SUSTAIN": Scaling("SUSTAIN", _third, 1 / 32, "−1/3", "−2/3"),
    "AccBO": Scaling("AccBO", _two_thirds, 1 / 64, "−1/3", "–"),
    "VR-AdamBO, λ = 1": Scaling("VR-AdamBO", (1 / 3, 2 / 3, 2 / 3), 1 / 16, "–", "–", 1.0),
}


def power_of(proved: str) -> float | None:
    """A proved power as a number; None where there is none.

    Example:
        >>> power_of("−1/4"), power_of("–")
        (-0.25, None)
    """
    if proved == "–":
        return None
    numerator, denominator = proved.removeprefix("−").split("/")
    return -int(numerator) / int(denominator)


PROBLEMS = {"quadratic": "stochastic quadratic", "unbounded": "unbounded smoothness"}


def problem_of(kind: str, noise: float, seeds: int) -> BatchedProblem:
    """One problem per seed."""
    if kind == "quadratic":
        return batched([StochasticQuadratic(seed=seed, mu=MU, L=2.0, noise=noise) for seed in range(seeds)])
    return batched([StochasticUnboundedSmooth(seed=seed, distance=2.0, noise=noise) for seed in range(seeds)])
