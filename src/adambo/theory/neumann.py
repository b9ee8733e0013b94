"""How far a truncated Neumann series is from the inverse, and how large it can be.

paper            here
P                the matrix of the series: z = P ∇y F
Q                terms
l_{g,1}          l_g1; the step of the series is 1/l_g1

All bounds need every G(·; ζ), not only their mean, to be μ-strongly convex and l_{g,1}-smooth in y.
"""

from __future__ import annotations

import math
from typing import get_args

from adambo.errors import SettingError
from adambo.inverse.neumann import Samples
from adambo.theory.checks import check_condition_number, check_not_negative, check_positive, check_whole, is_number


def neumann_bias_bound(
    mu: float, l_g1: float, terms: int, samples: Samples = "chained", sigma_g2: float | None = None
) -> float:
    r"""‖E P − [∇²yy g]⁻¹‖ of a series of `terms` terms. With a = 1 − μ/l_{g,1}:

        independent, chained, prefix, random    a^Q / μ
        shared                                  a^Q / μ + (σ_{g,2}²/l_{g,1}³) Σ_{q=2}^{Q−1} (q(q−1)/2) a^{q−2}

    In one dimension with ∇²yy g = μ the first is an equality. The paper has no bound for one shared batch. This one
    expands the powers of A(ζ) = Ā + D: what is linear in D has no mean, and a^q holds q(q−1)/2 pairs of factors D. It
    stays below a^Q/μ + σ_{g,2}²/μ³.

    Args:
        mu, l_g1: The eigenvalues of every ∇²yy G(·; ζ) lie between them.
        terms: Q.
        samples: Which estimator, as in `adambo.Neumann`.
        sigma_g2: Bound of ‖∇²yy G(·; ζ) − ∇²yy g‖, which "shared" needs; 0 where the Hessian is the same for all ζ.

    Raises:
        SettingError: If an argument cannot be, or "shared" lacks its `sigma_g2`.

    Example:
        >>> neumann_bias_bound(0.5, 2.0, terms=4)
        0.6328125
        >>> neumann_bias_bound(0.5, 2.0, terms=4, samples="shared", sigma_g2=0.1)
        0.636875
    """
    _check(mu, l_g1, terms, samples)
    shrink = 1.0 - mu / l_g1
    bias = shrink**terms / mu
    if samples != "shared":
        return bias
    if not is_number(sigma_g2) or sigma_g2 is None or sigma_g2 < 0.0:
        raise SettingError(
            f"sigma_g2={sigma_g2!r}: one shared batch makes powers of one random matrix, whose mean is not the power "
            "of the mean. Give the bound sigma_g2 of the noise in the Hessian, 0 if all samples have the same; or "
            "choose samples='chained', which has no such bias."
        )
    pairs = math.fsum(q * (q - 1) / 2 * shrink ** (q - 2) for q in range(2, terms))
    return bias + (sigma_g2 / l_g1) ** 2 * pairs / l_g1


def neumann_norm_bound(mu: float, l_g1: float, terms: int, samples: Samples = "chained") -> float:
    r"""The largest ‖P‖ that any draw can give. With a = 1 − μ/l_{g,1}:

        independent, chained, prefix, shared    (1/l_{g,1}) Σ_{q<Q} a^q = (1 − a^Q)/μ
        random                                  Q/l_{g,1}, more than 1/μ once Q > l_{g,1}/μ

    Args:
        mu, l_g1: The eigenvalues of every ∇²yy G(·; ζ) lie between them.
        terms: Q.
        samples: Which estimator, as in `adambo.Neumann`.

    Raises:
        SettingError: If an argument cannot be.

    Example:
        >>> neumann_norm_bound(0.5, 2.0, terms=4), neumann_norm_bound(0.5, 2.0, terms=4, samples="random")
        (1.3671875, 2.0)
    """
    _check(mu, l_g1, terms, samples)
    if samples == "random":
        return terms / l_g1
    if mu == l_g1:
        return 1.0 / mu
    return -math.expm1(terms * math.log1p(-mu / l_g1)) / mu


def hypergradient_bias_bound(
    mu: float,
    l_g1: float,
    terms: int,
    gradient_norm: float,
    samples: Samples = "chained",
    sigma_g2: float | None = None,
) -> float:
    """‖E h − (∇x f − ∇²xy g [∇²yy g]⁻¹ ∇y f)‖ at one (x, y): the bias of P times ‖∇²xy g‖ ≤ l_{g,1} times ‖∇y f‖.

    Args:
        mu, l_g1, terms, samples, sigma_g2: As in `neumann_bias_bound`.
        gradient_norm: ‖∇y f(x, y)‖; at y*(x) it is at most l_{f,0}.

    Raises:
        SettingError: If an argument cannot be.

    Example:
        >>> hypergradient_bias_bound(0.5, 2.0, terms=4, gradient_norm=1.0)
        1.265625
    """
    check_not_negative(gradient_norm=gradient_norm)
    return l_g1 * neumann_bias_bound(mu, l_g1, terms, samples, sigma_g2) * gradient_norm


def _check(mu: float, l_g1: float, terms: int, samples: str) -> None:
    check_positive({"mu": mu, "l_g1": l_g1})
    check_condition_number(mu, l_g1)
    check_whole(1, terms=terms)
    check_positive({"terms": terms}, "Give one within float64.")
    if samples not in get_args(Samples):
        raise SettingError(f"samples={samples!r} is not an estimator; choose one of {', '.join(get_args(Samples))}.")
