"""What the authors' published code computes where it differs from the paper: to measure the difference, not to use it.

their code (BERT, TREC)     here
hessian_q                   products
neumann_lr                  step
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from adambo.errors import SettingError
from adambo.inverse import Neumann
from adambo.inverse.neumann import Factor
from adambo.point import Point
from adambo.vectors import Vector, add_, scaled, zeros


class ReleasedNeumann(Neumann):
    r"""The Neumann sum of the authors' code for AdamBO and StocBiO, for comparisons with the paper's.

        z = s [A v + A² v + … + A^Q v + A^Q v]      A = I − s ∇²yy g(·; ζ), one batch for all factors

    The loop of that code overwrites the vector it starts from: the term v of the series is missing and the last one
    counts twice. These are Q + 1 terms, as in a series of Q products, so for small s both are near (Q + 1) s v. And
    that code sets s = 1e-4 whatever else is asked for: z is then about 4e-4 ∇y f with Q = 3, the implicit term of the
    hypergradient is practically absent, and the method is close to Adam on ∇x f. With `step="auto"` the effect of the
    sum is measured apart from that of the step. Where s is one over the only curvature there is (`step="auto"` in the
    AUC experiments), A is 0 and so is z.

    Args:
        products: Q, the number of products.
        step: s; "auto" as in `Neumann`, which also says what is refused.

    Example:
        >>> ReleasedNeumann(products=3).step, ReleasedNeumann(products=3).needs.hessian
        (0.0001, 1)
    """

    def __init__(self, products: int = 3, step: float | Literal["auto"] = 1e-4) -> None:
        if not isinstance(products, int) or products < 1:
            raise SettingError(
                f"products={products!r}: the sum of the released code begins with A v, so give 1 or more."
            )
        super().__init__(products=products, step=step, samples="shared")

    def on_one_batch(self) -> ReleasedNeumann:
        return ReleasedNeumann(self.terms - 1, self.step)

    def _at_once(self, point: Point, v: Vector, s: float | Tensor) -> Vector | None:
        return None  # what is at hand there is the paper's series

    def _series(self, point: Point, v: Vector, s: float | Tensor) -> Vector:
        return scaled(released_sum(self._factor(point, s), v, self.terms - 1), s)


def released_sum(factor: Factor, v: Vector, products: int) -> Vector:
    """A v + A² v + … + A^Q v + A^Q v, where factor(0, w) is A w."""
    total, power = zeros(v), v
    for _ in range(products):
        power = factor(0, power)
        add_(total, power)
    add_(total, power)
    return total
