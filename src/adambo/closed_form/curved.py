"""The curved parts of a loss: functions of one affine tensor, with their first two derivatives.

A curved part is a function h(a) in which the loss is linear. `slope` is ∂loss/∂a and `bend(d)` is its derivative along
d, the Hessian product. `moved(t)` is the same part where the affine tensor has changed by t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cached_property

import torch
from torch import Tensor


class Curved(ABC):
    """A part of the loss at one value of its argument.

    Attributes:
        a: The argument, up to what the slope does not depend on.
    """

    a: Tensor

    @property
    @abstractmethod
    def constants(self) -> list[Tensor]:
        """The tensors that stay when `a` moves."""

    @abstractmethod
    def slope_at(self, a: Tensor, constants: list[Tensor]) -> Tensor:
        """The slope at another argument, as a function of nothing else."""

    @property
    @abstractmethod
    def slope(self) -> Tensor:
        """∂loss/∂a"""

    @abstractmethod
    def bend(self, d: Tensor) -> Tensor:
        """∂²loss/∂a² · d"""

    @abstractmethod
    def moved(self, t: Tensor) -> Curved:
        """The same at a + t."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What it is made of, in a fixed order."""

    @abstractmethod
    def with_tensors(self, tensors: list[Tensor]) -> Curved:
        """The same of other tensors."""

    @property
    def form(self) -> Hashable:
        """All there is to it besides its tensors."""
        return type(self)


class LogSoftmax(Curved):
    """Σ c · log_softmax(a), under which every cross-entropy is written.

    Args:
        a: The argument, or anything that differs from it by a constant along `dim`, as the result does.
        c: What the loss multiplies the result with.
        dim: The axis of the classes.
        weight: −Σ c over the classes: how much an example counts; None where it has not been added up.
    """

    def __init__(self, a: Tensor, c: Tensor, dim: int, weight: Tensor | None = None) -> None:
        self.a, self.c, self.dim = a, c, dim
        self._weight = weight

    @cached_property
    def weight(self) -> Tensor:
        return -self.c.sum(self.dim, keepdim=True) if self._weight is None else self._weight

    @cached_property
    def p(self) -> Tensor:
        return torch.softmax(self.a, self.dim)

    @cached_property
    def _weighed(self) -> Tensor:
        return self.weight * self.p

    @property
    def constants(self) -> list[Tensor]:
        return [self.c, self.weight]

    def slope_at(self, a: Tensor, constants: list[Tensor]) -> Tensor:
        return torch.addcmul(constants[0], constants[1], torch.softmax(a, self.dim))

    @cached_property
    def slope(self) -> Tensor:
        return self.c + self._weighed

    def bend(self, d: Tensor) -> Tensor:
        u = self._weighed * d
        return torch.addcmul(u, self.p, u.sum(self.dim, keepdim=True), value=-1)

    def moved(self, t: Tensor) -> LogSoftmax:
        return LogSoftmax(self.a + t, self.c, self.dim, self.weight)

    def tensors(self) -> list[Tensor]:
        return [self.a, self.c]

    def with_tensors(self, tensors: list[Tensor]) -> LogSoftmax:
        a, c = tensors
        return LogSoftmax(a, c, self.dim)

    @property
    def form(self) -> Hashable:
        return LogSoftmax, self.dim


class Square(Curved):
    """Σ c · a²"""

    def __init__(self, a: Tensor, c: Tensor) -> None:
        self.a, self.c = a, c

    @cached_property
    def _twice(self) -> Tensor:
        return 2 * self.c

    @property
    def constants(self) -> list[Tensor]:
        return [self._twice]

    def slope_at(self, a: Tensor, constants: list[Tensor]) -> Tensor:
        return constants[0] * a

    @cached_property
    def slope(self) -> Tensor:
        return self._twice * self.a

    def bend(self, d: Tensor) -> Tensor:
        return self._twice * d

    def moved(self, t: Tensor) -> Square:
        return Square(self.a + t, self.c)

    def tensors(self) -> list[Tensor]:
        return [self.a, self.c]

    def with_tensors(self, tensors: list[Tensor]) -> Square:
        a, c = tensors
        return Square(a, c)


class BinaryCrossEntropy(Curved):
    """Σ c · ((1 + (w − 1) t) softplus(−a) + (1 − t) a) with targets t and the weight w of positive examples."""

    def __init__(self, a: Tensor, target: Tensor, c: Tensor, positive_weight: Tensor | None) -> None:
        self.a, self.target, self.c, self.positive_weight = a, target, c, positive_weight

    @cached_property
    def _p(self) -> Tensor:
        return torch.sigmoid(self.a)

    @cached_property
    def _scale(self) -> Tensor:
        if self.positive_weight is None:
            return self.c
        return self.c * (1 + (self.positive_weight - 1) * self.target)

    @cached_property
    def _curvature(self) -> Tensor:
        return self._scale * self._p * (1 - self._p)

    @cached_property
    def _at_zero(self) -> Tensor:
        target = self.target if self.positive_weight is None else self.target * self.positive_weight
        return -self.c * target

    @property
    def constants(self) -> list[Tensor]:
        return [self._at_zero, self._scale]

    def slope_at(self, a: Tensor, constants: list[Tensor]) -> Tensor:
        return torch.addcmul(constants[0], constants[1], torch.sigmoid(a))

    @cached_property
    def slope(self) -> Tensor:
        return torch.addcmul(self._at_zero, self._scale, self._p)

    def bend(self, d: Tensor) -> Tensor:
        return self._curvature * d

    def moved(self, t: Tensor) -> BinaryCrossEntropy:
        return BinaryCrossEntropy(self.a + t, self.target, self.c, self.positive_weight)

    def tensors(self) -> list[Tensor]:
        return [self.a, self.target, self.c, *([] if self.positive_weight is None else [self.positive_weight])]

    def with_tensors(self, tensors: list[Tensor]) -> BinaryCrossEntropy:
        a, target, c, *positive_weight = tensors
        return BinaryCrossEntropy(a, target, c, positive_weight[0] if positive_weight else None)
