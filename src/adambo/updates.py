"""The few upper rules that torch.optim lacks, as torch.optim.Optimizer subclasses that can be used on their own.

Each of them keeps a momentum `m` in its state and moves along it. `beta` is the weight of the new gradient, as in the
papers: one minus what PyTorch calls momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from adambo.errors import SettingError
from adambo.processes import is_sharded
from adambo.vectors import Vector, scaled

Norm = Literal["global", "per_tensor"]


class MomentumRule(Optimizer):
    """What the rules share. A subclass says which way to go, given the moment before and after the gradient came.

    On CUDA a solver sets `found_inf` for the time of a step, as torch's fused optimisers have it: where it is not zero
    nothing changes, which is decided on the device.
    """

    found_inf: Tensor | None = None

    def __init__(self, params: Iterable[Any], lr: float, beta: float, **defaults: Any) -> None:
        if not 0 <= lr < float("inf"):
            raise SettingError(f"lr={lr!r} is not a step size: give a finite number, 0 or larger.")
        if not 0 < beta <= 1:
            raise SettingError(f"beta={beta} is the weight of the new gradient in the momentum; it lies in (0, 1].")
        super().__init__(params, {"lr": lr, "beta": beta} | defaults)

    @property
    def masks_on_device(self) -> bool:
        """Tells whoever masks steps on the device that `found_inf` is understood."""
        return not any(is_sharded(p) for group in self.param_groups for p in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step along what lies in `p.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts = [_Part(self, group) for group in self.param_groups]
        for part, direction in zip(parts, self._directions(parts), strict=True):
            part.move(direction)
        return loss

    def _directions(self, parts: list[_Part]) -> list[Vector]:
        """Bring the state of every group up to date, and say where each goes."""
        raise TypeError(f"{type(self).__name__} does not say where to go: define _directions.")


class _Part:
    """One parameter group during one step."""

    def __init__(self, rule: MomentumRule, group: dict[str, Any]) -> None:
        self.group, self.state = group, rule.state
        self.parameters: Vector = [p for p in group["params"] if p.grad is not None]
        self.bad = rule.found_inf
        self.gradients = self.masked([p.grad for p in self.parameters if p.grad is not None])

    def masked(self, values: Sequence[Tensor]) -> Vector:
        """`values`, or zeros where the step must not count."""
        if self.bad is None:
            return list(values)
        bad, zero = self.bad > 0, torch.zeros_like(self.bad)
        return [torch.where(bad, zero.to(v), v) for v in values]

    def of_state(self, name: str) -> Vector:
        for p in self.parameters:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p)
        return [self.state[p][name] for p in self.parameters]

    def average(self, name: str, values: Vector, kept: float, weight: float) -> Vector:
        """state ← kept · state + weight · values"""
        state = self.of_state(name)
        if not state:
            return state
        keep: Any = kept
        if self.bad is not None:
            keep = torch.where(self.bad > 0, 1.0, torch.full_like(self.bad, kept, dtype=torch.float64)).to(state[0])
        torch._foreach_mul_(state, keep)
        torch._foreach_add_(state, values, alpha=weight)
        return state

    def move(self, direction: Vector) -> None:
        """p ← p − lr · direction"""
        if not self.parameters:
            return
        if self.bad is not None:
            direction = self.masked(direction)
        rate = self.group["lr"]
        if isinstance(rate, Tensor):
            direction, rate = list(torch._foreach_mul(direction, rate)), 1.0
        torch._foreach_add_(self.parameters, direction, alpha=-rate)


class MovingAverage(MomentumRule):
    r"""m ← (1 − β) m + β h,   x ← x − lr m,   from m = 0.

    Args:
        params: What is moved.
        lr, beta: The step size, and β.
        lagged: Move along the m of the step before (the first step does nothing).

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = MovingAverage([p], lr=1.0, beta=0.25)
        >>> p.grad = torch.ones(1); optimizer.step()
        >>> float(p.detach())
        -0.25
    """

    def __init__(self, params: Iterable[Any], lr: float, beta: float = 0.1, lagged: bool = False) -> None:
        super().__init__(params, lr, beta, lagged=lagged)

    def _directions(self, parts: list[_Part]) -> list[Vector]:
        directions = []
        for part in parts:
            beta, lagged = part.group["beta"], part.group["lagged"]
            before = scaled(part.of_state("m"), 1.0) if lagged and part.parameters else []
            after = part.average("m", part.gradients, 1 - beta, beta)
            directions.append(before if lagged else after)
        return directions


class NormalizedMomentum(MomentumRule):
    r"""m ← (1 − β) m + β h,   x ← x − lr m/‖m‖,   from m = 0. Where m is zero, nothing moves.

    Args:
        params: What is moved.
        lr, beta: The length of a step, and β.
        norm: "global", one Euclidean norm over all parameters of all groups, or "per_tensor", one for each tensor:
            then every tensor moves by lr in every step.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = NormalizedMomentum([p], lr=1.0)
        >>> p.grad = torch.tensor([3.0, 4.0]); optimizer.step()
        >>> p.detach()
        tensor([-0.6000, -0.8000])
    """

    def __init__(self, params: Iterable[Any], lr: float, beta: float = 0.1, norm: Norm = "global") -> None:
        super().__init__(params, lr, beta, norm=checked_norm(norm))

    def _directions(self, parts: list[_Part]) -> list[Vector]:
        moments = [part.average("m", part.gradients, 1 - part.group["beta"], part.group["beta"]) for part in parts]
        return _normalized(moments, parts[0].group["norm"])


class RecursiveMomentum(MomentumRule):
    r"""Variance-reduced (STORM) momentum, from the gradients of one sample at two points:

        m ← h + (1 − β) (m − h'),   x ← x − lr m     or, normalised,   x ← x − lr m/‖m‖

    with h in `p.grad` at the current point, and h' the gradient of the *same sample* at the point before, given to
    `look_back` ahead of `step`. Without h', as in the first step, m ← h + (1 − β) m.

    Args:
        params: What is moved.
        lr, beta: The step size, and β.
        norm: None, or a normalisation as in `NormalizedMomentum`.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = RecursiveMomentum([p], lr=1.0, beta=0.5)
        >>> p.grad = torch.ones(1); optimizer.step()
        >>> p.grad = torch.tensor([3.0]); optimizer.look_back([torch.tensor([2.0])]); optimizer.step()
        >>> float(p.detach())  # m was 1, and then 3 + 0.5 (1 − 2)
        -3.5
    """

    def __init__(self, params: Iterable[Any], lr: float, beta: float = 0.1, norm: Norm | None = None) -> None:
        super().__init__(params, lr, beta, norm=None if norm is None else checked_norm(norm))

    _before: dict[Tensor, Tensor] | None = None

    def look_back(self, gradients: Sequence[Tensor] | None) -> None:
        """Give h', in the order of the parameters, for the next step alone; None if there is no point before."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._before = dict(zip(parameters, gradients, strict=True)) if gradients is not None else None

    def _directions(self, parts: list[_Part]) -> list[Vector]:
        moments = [self._moment(part) for part in parts]
        self._before = None
        norm = parts[0].group["norm"]
        return moments if norm is None else _normalized(moments, norm)

    def _moment(self, part: _Part) -> Vector:
        keep = 1 - part.group["beta"]
        new = part.gradients
        if self._before:
            new = list(torch._foreach_sub(new, scaled(part.masked([self._before[p] for p in part.parameters]), keep)))
        return part.average("m", new, keep, 1.0)


class VRAdam(RecursiveMomentum):
    r"""Adam with a variance-reduced first moment (Li, Rakhlin, Jadbabaie 2023):

        m ← h + (1 − β) (m − h'),   v ← (1 − β_sq) v + β_sq h²,   x ← x − lr m / (√(v/(1 − (1 − β_sq)^t)) + eps)

    m is not bias-corrected, and v is made of h, not of m. See `RecursiveMomentum` for h'.

    Args:
        params: What is moved.
        lr, beta, beta_sq, eps: The step size, β, β_sq, and what is added to the square root.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = VRAdam([p], lr=1.0, eps=0.0)
        >>> p.grad = torch.tensor([7.0]); optimizer.step()
        >>> round(float(p.detach()), 6)
        -1.0
    """

    def __init__(
        self, params: Iterable[Any], lr: float, beta: float = 0.1, beta_sq: float = 1e-3, eps: float = 1e-8
    ) -> None:
        super().__init__(params, lr, beta)
        if not 0 < beta_sq <= 1:
            raise SettingError(f"beta_sq={beta_sq} is the weight of the new square; it lies in (0, 1].")
        if not isinstance(eps, int | float) or not 0 <= eps < float("inf"):
            raise SettingError(f"eps={eps} is added to a square root; it is 0 or larger, and finite.")
        self.defaults |= {"beta_sq": beta_sq, "eps": eps}
        for group in self.param_groups:
            group.setdefault("beta_sq", beta_sq)
            group.setdefault("eps", eps)

    def _directions(self, parts: list[_Part]) -> list[Vector]:
        return [_adapted(part, moment) for part, moment in zip(parts, super()._directions(parts), strict=True)]


def _adapted(part: _Part, moment: Vector) -> Vector:
    """m / (√v̂ + eps), after counting the step and averaging the squares."""
    if not moment:
        return moment
    beta_sq = part.group["beta_sq"]
    squares = part.average("v", [g.square() for g in part.gradients], 1 - beta_sq, beta_sq)
    for p in part.parameters:
        counted = 1.0 if part.bad is None else (part.bad == 0).float()
        part.state[p]["step"] = part.state[p].get("step", torch.zeros((), device=p.device)) + counted
    steps = torch.stack([part.state[p]["step"] for p in part.parameters]).double().clamp_min(1)
    corrections = (1 - (1 - beta_sq) ** steps).sqrt().unbind()
    roots = [v.sqrt() / c.to(v) + part.group["eps"] for v, c in zip(squares, corrections, strict=True)]
    return [m / root for m, root in zip(moment, roots, strict=True)]


def checked_norm(norm: Norm) -> Norm:
    if norm not in ("global", "per_tensor"):
        raise SettingError(
            f"norm={norm!r} is neither 'global' (one norm over all tensors, the papers' rule) nor 'per_tensor'."
        )
    return norm


def _normalized(moments: list[Vector], norm: Norm) -> list[Vector]:
    """Every m over its norm, or zeros where the norm is zero."""
    together = [m for part in moments for m in part]
    if not together:
        return moments
    # In float64, where the squares of small and large float32 numbers neither vanish nor overflow.
    norms = [_whole(n) for n in torch._foreach_norm(together, 2, dtype=torch.float64)]
    if norm == "global":
        length = torch.linalg.vector_norm(torch.stack([n.to(norms[0]) for n in norms]))
        if len({(m.dtype, m.device) for m in together}) == 1 and together[0].dtype in (torch.float32, torch.float64):
            units = iter(_units(together, length))
            return [[next(units) for _ in part] for part in moments]
        norms = [length] * len(norms)
    lengths = iter(norms)
    return [[_unit(m, next(lengths)) for m in part] for part in moments]


def _units(together: Vector, length: Tensor) -> Vector:
    """All m over one length, in a few launches."""
    vanishes = length < _NO_LENGTH
    units = list(torch._foreach_div(together, torch.where(vanishes, 1.0, length).to(together[0])))
    torch._foreach_mul_(units, (~vanishes).to(together[0]))
    return units


def _unit(m: Tensor, length: Tensor) -> Tensor:
    wide = torch.promote_types(m.dtype, torch.float32)  # half precision has no room for the quotient's parts
    vanishes = length < _NO_LENGTH
    unit = m.to(wide) / torch.where(vanishes, 1.0, length).to(m.device, wide)
    return torch.where(vanishes.to(m.device), 0.0, unit).to(m.dtype)


_NO_LENGTH = 1e-150  # below it, squares vanish in float64 too


def _whole(norm: Tensor) -> Tensor:
    whole: Tensor = norm.full_tensor() if is_sharded(norm) else norm  # type: ignore[attr-defined]
    return whole
