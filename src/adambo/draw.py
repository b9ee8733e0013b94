"""Which minibatches a step consumes.

A draw has four roles: `upper` (ξ), `lower` (ζ, one per lower step), `cross` (ζ⁰) and `hessian` (the factors of the
series). Whether two roles hold different batches (independence, as the theory wants) or the same object (thrift: its
forward is then computed once) is decided by whoever builds the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, overload

from torch import Tensor

from adambo.errors import SampleError

ROLES = ("upper", "lower", "cross", "hessian")
Batch = Any


@dataclass(frozen=True)
class Needs:
    """The most batches of each role that one step can use.

    `levels` is the number Q of truncation levels of a randomised series, 0 for every other estimator. `slots` says into
    how many fixed minibatches (lower, upper) a method with a table divides the data, 0 for all others; or their sizes,
    in proportion to which they are then drawn.
    """

    upper: int = 0
    lower: int = 0
    cross: int = 0
    hessian: int = 0
    levels: int = field(default=0, compare=False)
    slots: tuple[int | tuple[int, ...], int | tuple[int, ...]] = field(default=(0, 0), compare=False)

    def __add__(self, other: Needs) -> Needs:
        return Needs(
            self.upper + other.upper,
            self.lower + other.lower,
            self.cross + other.cross,
            self.hessian + other.hessian,
            self.levels + other.levels,
            other.slots if self.slots == (0, 0) else self.slots,
        )


@dataclass(frozen=True, eq=False)
class Draw:
    """The batches of one step. A batch is any object.

    Args:
        upper: Batches of the upper loss.
        lower: Batches of the lower steps, in their order.
        cross: Batches of the cross derivative ∇²xy g.
        hessian: Batches of the Hessian factors, in the order in which they are applied.
        level: The truncation level k of a randomised series. None: the solver takes one that follows from the number of
            its step, the same in every run and on every process; `adambo.draws` draws levels from its seed.
        seed: Seed of dropout, for methods that evaluate one draw at two points.
        slot: SABA's table rows (lower, upper).
        snapshot: A draw of its own (a large batch).
    """

    upper: Sequence[Batch] = ()
    lower: Sequence[Batch] = ()
    cross: Sequence[Batch] = ()
    hessian: Sequence[Batch] = ()
    level: int | None = None
    seed: int | None = None
    slot: tuple[int, int] | None = None
    snapshot: Draw | None = None

    @classmethod
    def of(cls, upper: Batch, lower: Batch, needs: Needs, level: int | None = None) -> Draw:
        """The thrifty draw: one upper batch and one lower batch serve every role."""
        return cls(
            upper=(upper,) * needs.upper,
            lower=(lower,) * needs.lower,
            cross=(lower,) * needs.cross,
            hessian=(lower,) * needs.hessian,
            level=level,
        )

    def trimmed(self, needs: Needs, taker: str) -> Draw:
        """Just what `taker` uses of this draw: extra batches go, too few are an error."""
        for role in ROLES:
            batches, need = getattr(self, role), getattr(needs, role)
            if not isinstance(batches, Sequence) or isinstance(batches, str | bytes):
                raise SampleError(
                    f"Draw({role}=...) takes a sequence of batches, but came {type(batches).__name__}. For one batch "
                    f"write {role}=(batch,)."
                )
            have = len(batches)
            if have < need:
                raise SampleError(
                    f"{taker} needs {need} {role} batch{'es' if need > 1 else ''} per step, but the draw holds {have}. "
                    "Build the stream with needs=solver.needs, or call solver.step(upper_batch, lower_batch) to let "
                    "one lower batch serve every lower role (cheaper; the Hessian factors are then not independent)."
                )
        if not isinstance(self.snapshot, Draw | None):
            raise SampleError(
                f"Draw(snapshot=...) takes a Draw of its own, but came {type(self.snapshot).__name__}. For one large "
                "upper and one large lower batch give Draw.of(upper, lower, solver.needs)."
            )
        if not isinstance(self.seed, int | None):
            raise SampleError(f"The draw has seed={self.seed!r}, but dropout is seeded with an integer, or None.")
        if needs.levels and self.level is not None and self.level not in range(needs.levels):
            raise SampleError(
                f"{taker} truncates its series at a level from 0 to {needs.levels - 1}, but the draw has level "
                f"{self.level}. Build the stream with needs=solver.needs, or leave level=None."
            )
        hessian = needs.hessian if not needs.levels or self.level is None else self.level
        return replace(
            self,
            upper=_kept(self.upper, needs.upper),
            lower=_kept(self.lower, needs.lower),
            cross=_kept(self.cross, needs.cross),
            hessian=_kept(self.hessian, hessian),
        )


def _kept(batches: Sequence[Batch], count: int) -> Sequence[Batch]:
    """The first `count`, each of which stays one object: a sequence of another kind may make them anew when read."""
    return (batches if isinstance(batches, tuple | list | LazyBatches) else tuple(batches[:count]))[:count]


def is_empty(batch: Batch) -> bool:
    """Whether a batch holds nothing: a tensor without elements, or anything whose length is 0."""
    if isinstance(batch, Tensor):
        return batch.numel() == 0
    try:
        return len(batch) == 0
    except TypeError:
        return False


class LazyBatches(Sequence[Batch]):
    """Batches that are made when they are first read, and then stay the same objects."""

    def __init__(self, makers: Sequence[Callable[[], Batch]]) -> None:
        self._makers = makers
        self._made: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return LazyBatches([partial(self.__getitem__, k) for k in range(*index.indices(len(self)))])
        index = range(len(self))[index]
        if index not in self._made:
            self._made[index] = self._makers[index]()
        return self._made[index]
