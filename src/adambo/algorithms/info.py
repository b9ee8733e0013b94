"""What a step tells about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from adambo.errors import StateError
from adambo.vectors import Vector

if TYPE_CHECKING:
    from adambo.algorithms.base import Algorithm


class Info:
    """Tensors of one step, still on their device: reading them is what synchronises.

    Attributes:
        upper_loss: f on the upper batch.
        lower_loss: g on the first lower batch, before the step.
        z: The estimate of [∇²yy g]⁻¹ ∇y f.

    Further quantities of an algorithm are attributes under the name they have in its maths block.
    """

    def __init__(self, solver: Algorithm, upper_loss: Tensor, lower_loss: Tensor, **quantities: Any) -> None:
        self.upper_loss = upper_loss.detach()
        self.lower_loss = lower_loss.detach()
        self._solver, self._step = solver, solver.steps
        for name, value in quantities.items():
            setattr(self, name, value)

    @property
    def hypergradient(self) -> Vector:
        """h_t as a flat list of tensors. It is what lies in `x.grad`, so it is to be had until the next step."""
        gradient = [p.grad for p in self._solver.problem.x]
        if self._solver.steps != self._step + 1 or any(part is None for part in gradient):
            raise StateError(
                f"The hypergradient of step {self._step} is gone: x.grad was cleared or filled anew since. It costs "
                "nothing because it is not copied; read it right after its step."
            )
        return [part.detach() for part in gradient if part is not None]

    def __repr__(self) -> str:
        names = [name for name in vars(self) if not name.startswith("_")]
        return f"Info({', '.join(names)}, hypergradient)"
