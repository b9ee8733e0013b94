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
        upper_loss: f on the upper batch, where the method evaluates it: at y_t, at y_{t+1}, at an average of y, or at
            the adapted parameters of a meta-learner.
        lower_loss: g on the first lower batch, where its gradient is taken first (with Nesterov steps, at the
            extrapolated point); in a step that rests y, on the cross batch.
        z: The estimate of [∇²yy g]⁻¹ ∇y f, where the method has one (in F2SA: its second lower variable).

    Further quantities of an algorithm (m, v, ...) are attributes under the name they have in its maths block. Those
    that lie in the optimiser, like the hypergradient in `x.grad`, are to be had until the next step.
    """

    def __init__(self, solver: Algorithm, upper_loss: Tensor, lower_loss: Tensor, **quantities: Any) -> None:
        self.upper_loss = upper_loss.detach()
        self.lower_loss = lower_loss.detach()
        self._solver, self._begun = solver, solver.begun
        self._late = {name: value for name, value in quantities.items() if callable(value)}
        for name in quantities.keys() - self._late.keys():
            setattr(self, name, quantities[name])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._late:
            raise AttributeError(f"This step tells no {name!r}, but {', '.join(dir(self))}.")
        self._refuse_if_gone(name)
        return self._late[name]()

    @property
    def hypergradient(self) -> Vector:
        """h_t as a flat list of tensors. It is what lies in `x.grad`, so it is to be had until the next step."""
        self._refuse_if_gone("hypergradient")
        return [p.grad.detach() for p in self._solver.problem.x if p.grad is not None]

    def _refuse_if_gone(self, name: str) -> None:
        if self._solver.begun != self._begun or self._solver.problem.x[0].grad is None:
            raise StateError(
                f"The {name} of this step is gone: the solver has begun another one, or x.grad was cleared. It costs "
                "nothing because it is not copied; read it right after its step."
            )

    def __dir__(self) -> list[str]:
        return sorted([*(name for name in vars(self) if not name.startswith("_")), *self._late, "hypergradient"])

    def __repr__(self) -> str:
        if self.upper_loss.device.type == "cpu":  # reading numbers from a GPU would make it wait
            return f"Info(upper_loss={float(self.upper_loss):.6g}, lower_loss={float(self.lower_loss):.6g})"
        return f"Info({', '.join(name for name in vars(self) if not name.startswith('_'))})"
