"""Many quadratic lower problems at once, stacked along the first axis of `y`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adambo.problem import EncoderHeadProblem, Problem
from adambo.testing.known_problem import KnownProblem, divided, flat, normal, spd, two_tensors
from adambo.vectors import Vector


class TaskQuadratics(KnownProblem):
    r"""K tasks that share `x`; task i has its own y_i of dimension dy.

        g = Σ_i ½ (y_i − B_i x − c_i)ᵀ A_i (y_i − B_i x − c_i)
        f = mean_i ½ ‖y_i − d_i‖² + ½ ‖B_i x − e_i‖²

        y_i*(x) = B_i x + c_i      ∇phi(x) = mean_i B_iᵀ (2 B_i x + c_i − d_i − e_i)

    A batch is a list of task ids; None is all of them. `y` is two stacked tables, (K, dy − 1) and (K, 1). The features
    of the encoder are B_i x.

    Args:
        count: K.
        dx, dy: Dimensions; dy is at least 2.
        seed: Seeds everything.

    Example:
        >>> known = TaskQuadratics(count=5)
        >>> [tuple(p.shape) for p in known.problem().y]
        [(5, 2), (5, 1)]
    """

    def __init__(self, count: int = 5, dx: int = 3, dy: int = 3, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.count, self.dy = count, dy
        self.A = torch.stack([spd(dy, 1.0, 2.0 + k % 3, generator) for k in range(count)])
        self.B = normal(count, dy, dx, generator=generator) / dx**0.5
        self.c, self.d, self.e = (normal(count, dy, generator=generator) for _ in range(3))
        self.x0 = normal(dx, generator=generator)
        self.y0 = normal(count * dy, generator=generator)
        self.x_shapes = two_tensors(dx)
        self.y_shapes = [(count, dy - 1), (count, 1)]

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        ids = self.ids(batch)
        return self._upper(self.encode(x, ids), self._stacked(y)[ids], ids)

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        ids = self.ids(batch)
        return self._lower(self.encode(x, ids), self._stacked(y)[ids], ids)

    def encode(self, x: Tensor, ids: Tensor) -> Tensor:
        """The features B_i x of the named tasks, one line each."""
        return torch.einsum("kij,j->ki", self.B[ids], x)

    def ids(self, batch: Sequence[int] | None) -> Tensor:
        return torch.arange(self.count) if batch is None else torch.as_tensor(batch)

    def y_star(self, x: Tensor) -> Tensor:
        rows = self.B @ x + self.c
        return flat([rows[:, :-1], rows[:, -1:]])

    def phi(self, x: Tensor) -> Tensor:
        features = self.encode(x, self.ids(None))
        return ((features + self.c - self.d).square() + (features - self.e).square()).sum(dim=1).mean() / 2

    def gradient(self, x: Tensor) -> Tensor:
        pull = 2 * self.B @ x + self.c - self.d - self.e
        return torch.einsum("kij,ki->j", self.B, pull).div(self.count)

    @property
    def optimum(self) -> Tensor:
        left = 2 * torch.einsum("kij,kil->jl", self.B, self.B)
        x: Tensor = torch.linalg.solve(left, torch.einsum("kij,ki->j", self.B, self.d + self.e - self.c))
        return x

    def problem(self) -> Problem:
        """The plain form: losses of (x, y) that gather the rows of their tasks."""
        x, tables = self.parameters()

        def upper(batch: list[int]) -> Tensor:
            ids = self.ids(batch)
            return self._upper(self.encode(flat(x), ids), _rows(tables, ids), ids)

        def lower(batch: list[int]) -> Tensor:
            ids = self.ids(batch)
            return self._lower(self.encode(flat(x), ids), _rows(tables, ids), ids)

        return Problem(upper, lower, x, tables, tasks=self.ids)

    def encoder_head_problem(self) -> EncoderHeadProblem:
        """The same as an encoder with one head per task."""
        x, tables = self.parameters()

        def encode(batch: list[int]) -> Tensor:
            return self.encode(flat(x), self.ids(batch))

        def upper(features: Tensor, batch: list[int]) -> Tensor:
            return self._upper(features, _rows(tables, self.ids(batch)), self.ids(batch))

        def lower(features: Tensor, batch: list[int]) -> Tensor:
            return self._lower(features, _rows(tables, self.ids(batch)), self.ids(batch))

        return EncoderHeadProblem(encode, upper, lower, x, tables, tasks=self.ids)

    def single_task(self, task: int) -> Problem:
        """Task `task` alone, without stacking."""
        x = [t.requires_grad_() for t in divided(self.x0, self.x_shapes)]
        y = self._stacked(self.y0)[task].clone().requires_grad_()
        ids = torch.tensor([task])
        return Problem(
            upper=lambda batch: self._upper(self.encode(flat(x), ids), y.unsqueeze(0), ids),
            lower=lambda batch: self._lower(self.encode(flat(x), ids), y.unsqueeze(0), ids),
            x=x,
            y=y,
        )

    def _stacked(self, y: Tensor) -> Tensor:
        """The (K, dy) table behind the flat y."""
        split = self.count * (self.dy - 1)
        return torch.cat([y[:split].reshape(self.count, -1), y[split:].reshape(self.count, 1)], dim=1)

    def _upper(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        return ((rows - self.d[ids]).square() + (features - self.e[ids]).square()).sum(dim=1).mean() / 2

    def _lower(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        r = rows - features - self.c[ids]
        return torch.einsum("ki,kij,kj->", r, self.A[ids], r) / 2


def _rows(tables: Vector, ids: Tensor) -> Tensor:
    return torch.cat([table[ids] for table in tables], dim=1)
