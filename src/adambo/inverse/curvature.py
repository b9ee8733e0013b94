"""The largest eigenvalue of the lower Hessian, by power iteration on Hessian-vector products."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from adambo.errors import CurvatureError
from adambo.inverse.base import copied, unpacked
from adambo.point import Point
from adambo.vectors import Vector, dot, norm, scaled

FIRST_PRODUCTS = 20
LATER_PRODUCTS = 3
PERIOD = 128


class Curvature:
    """An estimate of λ_max(∇²yy g), kept up to date.

    It is made with 20 products in the first step, and refreshed with 3 more (from the vector found last) in the steps
    1, 2, 4, 8, … and then every 128 steps. Those steps read one number on the host; no other step does.
    """

    def __init__(self) -> None:
        self.largest: float | None = None
        self._direction: Vector | None = None

    def is_due(self, step: int) -> bool:
        return self.largest is None or step % PERIOD == 0 or (step < PERIOD and step & (step - 1) == 0)

    def estimate(self, point: Point) -> float:
        """Refresh the estimate at `point`."""
        products = LATER_PRODUCTS
        u = self._direction
        if u is None or [t.shape for t in u] != [t.shape for t in point.f_y]:
            u, products = _random_direction(point.f_y), FIRST_PRODUCTS
        rayleigh = growth = torch.zeros(())
        for _ in range(products):
            length = norm(u)
            u = [t / length.clamp_min(torch.finfo(length.dtype).tiny) for t in u]
            product = point.curvature(u)
            rayleigh, growth = dot(u, product), norm(product)
            u = product
        rayleigh_, largest = (float(t) for t in torch.stack([rayleigh, growth]).double().to("cpu"))
        if not largest < float("inf"):
            raise CurvatureError(
                "The lower Hessian is not finite at this point, so no Neumann step can be chosen. Check the lower loss "
                "for NaN, infinities or a kink (sqrt or norm at zero)."
            )
        if largest == 0.0:
            raise CurvatureError(
                "The lower loss has no curvature in y at this point (its Hessian is zero), so the lower problem has no "
                "unique solution and ∇²yy g no inverse. Add a regulariser such as mu/2 · ‖y‖² to the lower loss."
            )
        if rayleigh_ < 0:
            warnings.warn(
                f"The lower loss is not convex in y here: its dominant curvature is {rayleigh_:.3g}. A Neumann series "
                "grows along such directions; add a regulariser to the lower loss, or use few terms.",
                RuntimeWarning,
                stacklevel=2,
            )
        self.largest, self._direction = largest, scaled(u, 1.0 / largest)
        return largest

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self.largest, "direction": copied(self._direction)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = unpacked(state, {"largest", "direction"}, "a curvature estimate")
        self.largest, self._direction = state["largest"], copied(state["direction"])


def _random_direction(like: Vector) -> Vector:
    # A generator of its own: the random numbers of the user's program stay as they were.
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in like]
