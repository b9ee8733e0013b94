"""Whether a contender's hypergradient is right: float64, a small problem, dense linear algebra as the truth.

    h = ∇x f − ∇²xy g [∇²yy g]⁻¹ ∇y f

The step that is checked is the step that is timed: with SGD of rate 1 in the place of Adam, h is how far x has moved.
Series and iterations are long enough to have converged, so what is compared is what a contender computes in the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd import grad
from workloads import Workload

from contenders.contender import Contender, Settings

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Verdict:
    """Relative errors: of the hypergradient, and of the way of y; or how the contender failed."""

    hypergradient: float = float("nan")
    lower: float = float("nan")
    failure: str = ""

    @property
    def is_right(self) -> bool:
        return self.hypergradient <= TOLERANCE and self.lower <= TOLERANCE

    def __str__(self) -> str:
        if self.failure:
            return f"fails: {self.failure}"
        if self.is_right:
            return f"{self.hypergradient:.0e}"
        found = f"wrong by {self.hypergradient:.2g}" if not self.hypergradient <= TOLERANCE else "right"
        return found + ("" if self.lower <= TOLERANCE else f", y wrong by {self.lower:.2g}")


@contextmanager
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def judge(contender: Contender, build: Callable[[], Workload], settings: Settings) -> Verdict:
    """How far one step of the contender is from the truth, on the small workload that `build` makes."""
    with float64():
        torch.manual_seed(0)
        workload = build()
        x, y = ([t.detach().clone() for t in part.parameters()] for part in (workload.x, workload.y))
        size = 0.5 / float(torch.linalg.eigvalsh(_hessian(workload, y)).max())
        moved = _lower_steps(workload, y, size, settings.lower_steps)
        truth = dense_hypergradient(workload, y if contender.at == "current" else moved)
        settings = replace(
            settings,
            terms=contender.terms_for_accuracy(sum(t.numel() for t in y)),
            neumann_step=size,
            lower_lr=size,
            upper_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        )
        try:
            contender.build(workload, settings)()
        except Exception as error:  # whatever a peer raises is its result, and stands in the table
            return Verdict(failure=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        found = [a - b.detach() for a, b in zip(x, workload.x.parameters(), strict=True)]
        way, true_way = (
            [b.detach() - a for a, b in zip(y, end, strict=True)] for end in (workload.y.parameters(), moved)
        )
        return Verdict(_relative_error(found, truth), _relative_error(way, true_way))


def dense_hypergradient(workload: Workload, y: Sequence[Tensor]) -> list[Tensor]:
    """∇x f − ∇²xy g [∇²yy g]⁻¹ ∇y f at (x, y), by a dense solve."""
    x, y = list(workload.x.parameters()), [t.detach().clone().requires_grad_() for t in y]
    f = workload.upper(workload.seen(workload.upper_batch), y, workload.upper_batch)
    f_x = grad(f, x, retain_graph=True, allow_unused=True, materialize_grads=True)
    hessian = _hessian(workload, y)
    if torch.linalg.eigvalsh(hessian).min() <= 0:
        raise ValueError("The lower loss of a small workload is not strongly convex at the point of comparison.")
    z = torch.linalg.solve(hessian, _flat(grad(f, y)))
    cross = grad(_lower_gradient(workload, y), x, z)
    return [a - b for a, b in zip(f_x, cross, strict=True)]


def _lower_gradient(workload: Workload, y: Sequence[Tensor]) -> Tensor:
    """∇y g, flat and with a graph."""
    g = workload.lower(workload.seen(workload.lower_batch), y, workload.lower_batch)
    return _flat(grad(g, y, create_graph=True))


def _hessian(workload: Workload, y: Sequence[Tensor]) -> Tensor:
    y = [t.detach().clone().requires_grad_() for t in y]
    g_y = _lower_gradient(workload, y)
    return torch.stack([_flat(grad(entry, y, retain_graph=True)) for entry in g_y])


def _lower_steps(workload: Workload, y: Sequence[Tensor], size: float, steps: int) -> list[Tensor]:
    moved = [t.clone() for t in y]
    for _ in range(steps):
        at = [t.requires_grad_() for t in moved]
        g = workload.lower(workload.seen(workload.lower_batch), at, workload.lower_batch)
        moved = [t.detach() - size * d for t, d in zip(at, grad(g, at), strict=True)]
    return moved


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _relative_error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    difference = _flat([a - b for a, b in zip(found, truth, strict=True)])
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(_flat(truth)))
