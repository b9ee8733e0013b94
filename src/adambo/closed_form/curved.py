"""The curved parts of a loss: functions of one affine tensor, with their first two derivatives.

A curved part is h(a), where the loss is linear in h. `slope` is ∂loss/∂a and `bend(d)` is its derivative along d, the
Hessian product. `moved(t)` is the same part where the affine tensor has changed by t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor


class Curved(ABC):
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


class LogSoftmax(Curved):
    """Σ c · log_softmax(a), under which every cross-entropy is written.

    Args:
        a: The argument, or anything that differs from it by a constant along `dim`, as the result does.
        c: What the loss multiplies the result with.
        dim: The axis of the classes.
        weight: −Σ c over the classes: how much an example counts.
        p: softmax(a), where it is known.
    """

    def __init__(self, a: Tensor, c: Tensor, dim: int, weight: Tensor | None = None, p: Tensor | None = None) -> None:
        self.a, self.c, self.dim = a, c, dim
        self.weight = -c.sum(dim, keepdim=True) if weight is None else weight
        self._p = p

    @cached_property
    def p(self) -> Tensor:
        return torch.softmax(self.a, self.dim) if self._p is None else self._p

    @cached_property
    def _weighed(self) -> Tensor:
        return self.weight * self.p

    @cached_property
    def slope(self) -> Tensor:
        return self.c + self._weighed

    def bend(self, d: Tensor) -> Tensor:
        u = self._weighed * d
        return torch.addcmul(u, self.p, u.sum(self.dim, keepdim=True), value=-1)

    def moved(self, t: Tensor) -> LogSoftmax:
        return LogSoftmax(self.a + t, self.c, self.dim, self.weight)


class Square(Curved):
    """Σ c · a²"""

    def __init__(self, a: Tensor, c: Tensor) -> None:
        self.a, self.c = a, c
        self._twice = 2 * c

    @cached_property
    def slope(self) -> Tensor:
        return self._twice * self.a

    def bend(self, d: Tensor) -> Tensor:
        return self._twice * d

    def moved(self, t: Tensor) -> Square:
        return Square(self.a + t, self.c)


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
    def slope(self) -> Tensor:
        target = self.target if self.positive_weight is None else self.target * self.positive_weight
        return self._scale * self._p - self.c * target

    def bend(self, d: Tensor) -> Tensor:
        return self._curvature * d

    def moved(self, t: Tensor) -> BinaryCrossEntropy:
        return BinaryCrossEntropy(self.a + t, self.target, self.c, self.positive_weight)
