"""The truncated Neumann series [∇²yy g]⁻¹ v ≈ s Σ_{q<Q} (I − s ∇²yy g)^q v, with s = 1/l_g1.

paper            here
Q                terms (StocBiO and VRBO count products instead: Q products are Q + 1 terms)
1/l_g1           step
ζ^(q,j)          draw.hessian, in the order in which the factors are applied
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from adambo.closed_form.series import EXPLODED
from adambo.draw import Needs
from adambo.errors import CurvatureError, SettingError
from adambo.guard import Guard
from adambo.inverse.base import Inverse, unpacked
from adambo.inverse.curvature import Curvature
from adambo.point import Point
from adambo.vectors import Vector, add_, added, as_blocks, scaled

Samples = Literal["chained", "independent", "prefix", "shared", "random"]
Factor = Callable[[int, Vector], Vector]
SAFETY = 1.25


class Neumann(Inverse):
    r"""A series of `terms` terms. With A(ζ) = I − s ∇²yy g(·; ζ) and fresh samples in every step:

        independent   s Σ_q A(ζ^(q,1)) … A(ζ^(q,q)) v     Q(Q−1)/2 samples; the paper's estimator, smallest variance
        chained       s (v + A(ζ^(Q−1)) (v + A(ζ^(Q−2)) (… v)))    Q−1 samples, same expectation
        prefix        s Σ_q A(ζ^(q)) … A(ζ^(1)) v         Q−1 samples, same expectation
        random        s Q A(ζ^(k)) … A(ζ^(1)) v           k ~ U{0 … Q−1} samples, same expectation, large variance
        shared        s Σ_q A(ζ)^q v                      1 sample; biased unless the Hessian is the same for all

    Args:
        terms: Number of terms Q; the last power is Q − 1. 3 if neither is given.
        products: Number of products, for those who count them: terms = products + 1.
        step: s. It converges for s < 2/λ_max, and an explicit number above that is refused. "auto" takes
            s = 1/(1.25 λ_max). λ_max is estimated by power iteration in the first step and refreshed in the steps
            1, 2, 4, …, 128, 256, 384, … (`Curvature`), counted in the ledger under `curvature_vector`; and at once (on
            CUDA: as an error) where a series has grown beyond what s ≤ 2/λ_max allows.
        samples: Which of the estimators above.

    Example:
        >>> Neumann(terms=4, samples="independent").needs.hessian
        6
        >>> Neumann(products=3).terms
        4
    """

    def __init__(
        self,
        terms: int | None = None,
        products: int | None = None,
        step: float | Literal["auto"] = "auto",
        samples: Samples = "chained",
    ) -> None:
        if terms is not None and products is not None:
            raise SettingError(f"Give terms={terms} or products={products}, not both: Q products are Q + 1 terms.")
        if not isinstance(terms, int | None) or not isinstance(products, int | None):
            raise SettingError(f"terms={terms!r}, products={products!r}: the length of a series is an integer.")
        self.terms = products + 1 if products is not None else 3 if terms is None else terms
        if self.terms < 1:
            raise SettingError(
                f"A Neumann series has at least one term (the identity), but {self.terms} were asked for."
            )
        if step != "auto" and not (isinstance(step, int | float) and 0 < step < float("inf")):
            raise SettingError(f"step={step!r} is neither a positive number nor 'auto'.")
        if samples not in get_args(Samples):
            raise SettingError(
                f"samples={samples!r} is not an estimator; choose one of {', '.join(get_args(Samples))}."
            )
        self.samples = samples
        self._asked = step
        self._curvature = Curvature()
        self._warned = False
        factors = {"independent": self.terms * (self.terms - 1) // 2, "shared": min(1, self.terms - 1)}
        self.needs = Needs(
            hessian=factors.get(samples, self.terms - 1), levels=self.terms if samples == "random" else 0
        )

    @property
    def is_automatic(self) -> bool:
        """Whether the step follows the curvature."""
        return self._asked == "auto"

    @property
    def step(self) -> float:
        """The step s in use; for "auto", known once the curvature is."""
        if self._asked != "auto":
            return self._asked
        if self._curvature.largest is None:
            raise CurvatureError("The automatic Neumann step is chosen in the first step of the solver, not before.")
        return 1.0 / (SAFETY * self._curvature.largest)

    @property
    def largest_curvature(self) -> float | None:
        return self._curvature.largest

    def on_one_batch(self) -> Neumann:
        """The series with the step in use and one batch for all factors, where every sampling is this; cheapest."""
        return Neumann(terms=self.terms, step=self.step, samples="shared")

    def prepare(self, point: Point, step: int) -> None:
        self._curvature.begin_step()
        if not self._curvature.is_due(point, step):
            return
        self._check(self._curvature.estimate(point, step))

    def _check(self, largest: float) -> None:
        if self._asked != "auto" and self._asked > 2.0 / largest:
            raise CurvatureError(
                f"Neumann(step={self._asked:g}) exceeds 2/λ_max = {2.0 / largest:.6g} (the largest eigenvalue of the "
                f"lower Hessian is about {largest:.6g} here), so the series diverges. Use step='auto', or a number "
                f"below {1.0 / largest:.3g}."
            )

    def draw_level(self, step: int) -> int | None:
        if self.samples != "random":
            return None
        generator = torch.Generator().manual_seed(step)
        return int(torch.randint(self.terms, (), generator=generator))

    def accept(self, point: Point, z: Vector, guard: Guard) -> None:
        self._curvature.accept(guard)

    def solve_again(self, point: Point, v: Vector) -> Vector:
        # No new step, which the other point would not have: a series that has exploded becomes NaN, and is reported.
        return self._judged_series(point, v, self._step_beside(v))

    def _step_beside(self, v: Vector) -> float | Tensor:
        """s; on a GPU as a tensor, so that a captured graph can be given another one."""
        return v[0].new_full((), self.step) if v[0].is_cuda else self.step

    def _judged_series(self, point: Point, v: Vector, s: float | Tensor) -> Vector:
        if v[0].is_cuda and (z := self._at_once(point, v, s)) is not None:
            return z  # judged already
        z = self._series(point, v, s)
        exploded = self._excess(point, z, v, s) > EXPLODED
        if isinstance(exploded, bool):
            return [torch.full_like(t, torch.nan) for t in z] if exploded else z
        return [torch.where(exploded, torch.nan, t) for t in z]

    def solve(self, point: Point, v: Vector) -> Vector:
        if v[0].is_cuda:  # where nobody waits for the device
            s, same = self._step_beside(v), self.samples in _SAME_ON_ONE_BATCH
            name = type(self), self.samples
            replayed = point.replayed(v, s, self.terms, self._judged_series, name) if same else None
            return self._judged_series(point, v, s) if replayed is None else replayed
        z = self._series(point, v, self.step)
        excess = self._excess(point, z, v, self.step)
        if 1.001 < excess < math.inf:  # one, and rounding; what is not finite is the guard's
            # The curvature has grown since it was measured, or this batch is sharper than those before.
            self._check(self._curvature.estimate(point, 0))
            z = self._series(point, v, self.step)
            self._warn_of_growth(float(self._excess(point, z, v, self.step)))
        return z

    def _excess(self, point: Point, z: Vector, v: Vector, s: float | Tensor) -> Tensor | float:
        """‖z‖ / (s Q ‖v‖) of the worst task: at most 1 where no factor I − s ∇²yy g expands, which is s ≤ 2/λ_max."""
        allowed = s * self.terms
        if point.y.blocks == 1 and not isinstance(allowed, Tensor):  # in Python numbers: a tenth of the time
            found, given = (math.hypot(*torch._foreach_norm(t)) for t in (z, v))
            return found / max(allowed * given, sys.float_info.min)
        found, given = (torch.linalg.vector_norm(as_blocks(t, point.y.blocks), dim=1) for t in (z, v))
        ratio: Tensor = found / (allowed * given).clamp_min(torch.finfo(given.dtype).tiny)
        return point.problem.processes.worst(ratio.max())  # with tasks of their own, all processes decide alike

    def _warn_of_growth(self, excess: float) -> None:
        if excess > 1.001 and not self._warned:
            self._warned = True
            warnings.warn(
                f"The Neumann series grows where it should shrink: z is {excess:.3g} times what its terms may add up "
                f"to with step={self.step:.3g}. The lower loss is not convex in y there: add a regulariser, or use "
                "fewer terms.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _at_once(self, point: Point, v: Vector, s: float | Tensor) -> Vector | None:
        """The series where one batch serves all factors, so that these three samplings are the same; else None."""
        return point.neumann(v, s, self.terms) if self.samples in _SAME_ON_ONE_BATCH else None

    def _series(self, point: Point, v: Vector, s: float | Tensor) -> Vector:
        if (z := self._at_once(point, v, s)) is not None:
            return z
        if self.samples == "chained" and not isinstance(s, Tensor):
            w = v
            for index in range(self.terms - 1):
                w = point.contracted(w, s, v, index)
            return scaled(w, s)
        factor = self._factor(point, s)
        series = {"independent": _independent, "chained": _chained, "prefix": _prefix, "shared": _shared}
        if self.samples == "random":
            level = point.draw.level
            return scaled(_product(factor, v, len(point.draw.hessian) if level is None else level), s * self.terms)
        return scaled(series[self.samples](factor, v, self.terms), s)

    @staticmethod
    def _factor(point: Point, s: float | Tensor) -> Factor:
        def factor(index: int, w: Vector) -> Vector:
            """A(ζ^index) w"""
            product = point.hessian(w, index)
            if not isinstance(s, Tensor):
                return added(w, product, -s)
            return [torch.addcmul(a, b, s, value=-1) for a, b in zip(w, product, strict=True)]

        return factor

    def state_dict(self) -> dict[str, Any]:
        return {"curvature": self._curvature.state_dict()}

    def load_state_dict(self, state: dict[str, Any], y: Vector) -> None:
        self._curvature.load_state_dict(unpacked(state, {"curvature"}, "Neumann")["curvature"])


_SAME_ON_ONE_BATCH = ("chained", "prefix", "shared")


def _independent(factor: Factor, v: Vector, terms: int) -> Vector:
    total, index = scaled(v, 1.0), 0
    for q in range(1, terms):
        w = v
        for _ in range(q):
            w, index = factor(index, w), index + 1
        add_(total, w)
    return total


def _chained(factor: Factor, v: Vector, terms: int) -> Vector:
    s = v
    for index in range(terms - 1):
        s = factor(index, s)
        add_(s, v)
    return s


def _prefix(factor: Factor, v: Vector, terms: int) -> Vector:
    total, r = scaled(v, 1.0), v
    for index in range(terms - 1):
        r = factor(index, r)
        add_(total, r)
    return total


def _shared(factor: Factor, v: Vector, terms: int) -> Vector:
    return _chained(lambda _, w: factor(0, w), v, terms)


def _product(factor: Factor, v: Vector, level: int) -> Vector:
    for index in range(level):
        v = factor(index, v)
    return v
