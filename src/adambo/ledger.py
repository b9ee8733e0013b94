"""Counts oracle calls where they happen: the unit in which bilevel methods are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from adambo.errors import StateError


@dataclass
class Ledger:
    """One call is one evaluation on one batch, whatever the size of the batch. A warm start is counted too.

    Attributes:
        grad_x_f: Gradients of the upper loss in `x`.
        grad_y_f: Gradients of the upper loss in `y`.
        grad_x_g: Gradients of the lower loss in `x` (first-order methods only).
        grad_y_g: Gradients of the lower loss in `y`: the lower steps.
        hessian_vector: Products with ∇²yy g inside the hypergradient.
        cross_vector: Products with ∇²xy g.
        curvature_vector: Products with ∇²yy g spent on knowing its largest eigenvalue.
        samples: Distinct (batch, role) pairs read in each step, added up over the steps.

    Example:
        >>> ledger = Ledger()
        >>> ledger.begin_step()
        >>> batch = [1, 2, 3]
        >>> ledger.read("lower", batch); ledger.read("cross", batch); ledger.read("lower", batch)
        >>> ledger.samples
        2
    """

    grad_x_f: int = 0
    grad_y_f: int = 0
    grad_x_g: int = 0
    grad_y_g: int = 0
    hessian_vector: int = 0
    cross_vector: int = 0
    curvature_vector: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        self._seen: dict[tuple[str, int], Any] = {}  # holds the batch, so that its id stays its own

    def begin_step(self) -> None:
        """Forget which batches were read: a new step reads anew."""
        self._seen.clear()

    def read(self, role: str, batch: Any) -> None:
        """Count `batch` in `role`, once per step."""
        key = (role, id(batch))
        if key not in self._seen:
            self._seen[key] = batch
            self.samples += 1

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def add(self, other: Ledger) -> None:
        """Count what `other` has counted, too."""
        more = other.as_dict()
        self.load({name: count + more[name] for name, count in self.as_dict().items()})

    def load(self, counts: dict[str, int]) -> None:
        names = {field.name for field in fields(self)}
        if set(counts) != names:
            raise StateError(f"A ledger has the counts {sorted(names)}, but these were given: {sorted(counts)}.")
        for name, count in counts.items():
            setattr(self, name, int(count))
