"""Mean and variance of the hypergradient h = ∇x F − J P ∇y F on a `StochasticQuadratic`, exactly, at (x0, y*(x0)).

Where every factor A(ζ) = I − s ∇²yy G(·; ζ) has a batch of its own, second moments obey linear recursions in

    𝒜(S) = E[A S A] = Ā S Ā + (s²/b) mean_i D_i S D_i,      D_i = ∇²yy G_i − ∇²yy g,      b samples in a batch

and where one batch serves several roles, all batches are enumerated: one of b samples out of n is a vector of n counts
with a multinomial chance. So no draws are needed, and 64 samples in a batch cost no more than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from adambo.errors import SettingError
from adambo.inverse.neumann import Samples
from adambo.testing import StochasticQuadratic

Reuse = Literal["shared", "shared with cross", "shared with all"]
FRESH: tuple[Samples, ...] = ("independent", "chained", "prefix", "random")
REUSED: tuple[Reuse, ...] = get_args(Reuse)
MODES: tuple[str, ...] = (*FRESH, *REUSED)


class Moments(NamedTuple):
    """Of the estimate h: ‖E h − ∇Φ‖ and E‖h − E h‖²."""

    bias: float
    variance: float

    @property
    def squared_error(self) -> float:
        """E‖h − ∇Φ‖²."""
        return self.bias**2 + self.variance


class Place:
    """Everything that h is made of at (x0, y*(x0)), sample by sample.

    Attributes:
        H, J, v, g: ∇²yy G_i, ∇²xy G_i (dx by dy), ∇y F_i and ∇x F_i, stacked along the first axis.
        truth: ∇Φ(x0).
        mu, l_g1: Between them lie the eigenvalues of all H_i.
    """

    def __init__(self, known: StochasticQuadratic) -> None:
        x, y = known.x0, known.y_star(known.x0)
        self.H = known.A_i
        self.J = (known.N_i - known.A_i @ known.B).mT
        self.v = y - known.d + known.d_i
        self.g = torch.mv(known.C, x - known.e) + known.e_i
        self.truth = known.gradient(x)
        eigenvalues = torch.linalg.eigvalsh(self.H)
        self.mu, self.l_g1 = float(eigenvalues.min()), float(eigenvalues.max())

    def hessian_noise(self, batch: int) -> float:
        """√E‖∇²yy G(·; ζ) − ∇²yy g‖² for batches of so many samples."""
        shares, chances = batches(len(self.H), batch)
        deviations = torch.einsum("cn,nij->cij", shares, self.H - self.H.mean(0))
        return math.sqrt(float(chances @ torch.linalg.matrix_norm(deviations, ord=2).square()))


def moments(place: Place, mode: str, terms: Sequence[int | None], batch: int = 1) -> list[Moments]:
    """Mean and variance of h with the step s = 1/l_g1, for several numbers of terms.

    Args:
        place: Where.
        mode: One of `FRESH`, with a batch of its own for every role and factor; or one of `REUSED`: one batch for all
            factors; for them and the cross derivative; for them, the cross derivative and the upper gradients.
        terms: The numbers Q; None is the inverse itself, which only `REUSED` have.
        batch: Samples in each batch, drawn with replacement.

    Raises:
        SettingError: If there is no such mode.

    Example:
        >>> place = Place(StochasticQuadratic(dx=2, dy=2, samples=3, noise=0.0))
        >>> [found.variance < 1e-12 for found in moments(place, "chained", [1, 5])]
        [True, True]
    """
    if mode in FRESH:
        return _fresh(place, mode, [Q for Q in terms if Q is not None], batch)
    if mode not in REUSED:
        raise SettingError(f"mode={mode!r}: choose one of {', '.join(MODES)}.")
    return _reused(place, mode, terms, batch)


def _fresh(place: Place, mode: str, terms: Sequence[int], batch: int) -> list[Moments]:
    s, identity = 1.0 / place.l_g1, torch.eye(place.H.shape[1], dtype=torch.float64)
    mean_A, D = identity - s * place.H.mean(0), s * (place.H - place.H.mean(0))
    W = _second(place.v, place.v, batch)

    def after_a_factor(S: Tensor) -> Tensor:
        return mean_A @ S @ mean_A + (D @ S @ D).mean(0) / batch

    collected = _SECOND[mode](after_a_factor, mean_A, W, max(terms))
    found, power, series = [], identity, torch.zeros_like(identity)
    for Q in range(1, max(terms) + 1):
        series, power = series + power, power @ mean_A
        found.append(_fresh_moments(place, s * series, s**2 * collected[Q - 1], batch))
    return [found[Q - 1] for Q in terms]


def _fresh_moments(place: Place, P: Tensor, S: Tensor, batch: int) -> Moments:
    """From E P and S = E[P ∇y F ∇y Fᵀ Pᵀ], with a batch of its own for J."""
    mean_J, mean_h = place.J.mean(0), place.g.mean(0) - place.J.mean(0) @ P @ place.v.mean(0)
    squares = mean_J.T @ mean_J + torch.einsum("nij,nik->jk", *[place.J - mean_J] * 2) / len(place.J) / batch
    square = _second(place.g, place.g, batch).trace() - 2 * (mean_J @ P @ _second(place.v, place.g, batch)).trace()
    return _found(place, mean_h, square + (squares @ S).trace())


def _reused(place: Place, mode: str, terms: Sequence[int | None], batch: int) -> list[Moments]:
    shares, chances = batches(len(place.H), batch)
    H, J = (torch.einsum("cn,nij->cij", shares, each) for each in (place.H, place.J))
    v, g = shares @ place.v, shares @ place.g
    s, identity = 1.0 / place.l_g1, torch.eye(H.shape[1], dtype=torch.float64)
    wanted = {Q for Q in terms if Q is not None}
    series: dict[int | None, Tensor] = {None: torch.linalg.inv(H)} if None in terms else {}
    P, A = s * identity.expand_as(H), identity - s * H
    for Q in range(1, max(wanted, default=0) + 1):
        if Q in wanted:
            series[Q] = P
        P = s * identity + A @ P
    return [_reused_moments(place, mode, series[Q], J, v, g, chances, batch) for Q in terms]


def _reused_moments(
    place: Place, mode: str, P: Tensor, J: Tensor, v: Tensor, g: Tensor, chances: Tensor, batch: int
) -> Moments:
    """From the series P, and J, ∇y F and ∇x F, of all batches."""
    if mode == "shared":
        W = _second(place.v, place.v, batch)
        return _fresh_moments(
            place, torch.einsum("c,cij->ij", chances, P), torch.einsum("c,cij->ij", chances, P @ W @ P.mT), batch
        )
    K = J @ P
    if mode == "shared with all":
        h = g - torch.einsum("cij,cj->ci", K, v)
        return _found(place, chances @ h, chances @ h.square().sum(1))
    mean_K = torch.einsum("c,cij->ij", chances, K)
    square = _second(place.g, place.g, batch).trace() - 2 * (mean_K @ _second(place.v, place.g, batch)).trace()
    square = square + (torch.einsum("c,cij,cik->jk", chances, K, K) @ _second(place.v, place.v, batch)).trace()
    return _found(place, place.g.mean(0) - mean_K @ place.v.mean(0), square)


def _found(place: Place, mean: Tensor, square: Tensor) -> Moments:
    variance = float(square - mean.square().sum())
    return Moments(float((mean - place.truth).norm()), max(variance, 0.0))


def _second(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """E[a bᵀ] of the means over one batch."""
    mean_a, mean_b = a.mean(0), b.mean(0)
    return torch.outer(mean_a, mean_b) + (a - mean_a).T @ (b - mean_b) / len(a) / batch


Factor = Callable[[Tensor], Tensor]


def _independent(after: Factor, mean_A: Tensor, W: Tensor, terms: int) -> list[Tensor]:
    """Different terms have only ∇y F in common: E Σ = Σ E[w_q w_qᵀ], and the products of the means."""
    found, R, mean, total, own = [], W, torch.eye(len(W), dtype=W.dtype), torch.zeros_like(W), torch.zeros_like(W)
    for _ in range(terms):
        total, own = total + mean, own + R - mean @ W @ mean.T
        found.append(own + total @ W @ total.T)
        R, mean = after(R), mean_A @ mean
    return found


def _chained(after: Factor, mean_A: Tensor, W: Tensor, terms: int) -> list[Tensor]:
    """s_{j+1} = v + A s_j"""
    found, mean = [W], torch.eye(len(W), dtype=W.dtype)
    for _ in range(1, terms):
        cross = mean_A @ mean @ W
        found.append(W + cross + cross.T + after(found[-1]))
        mean = torch.eye(len(W), dtype=W.dtype) + mean_A @ mean
    return found


def _prefix(after: Factor, mean_A: Tensor, W: Tensor, terms: int) -> list[Tensor]:
    """r_j = A r_{j−1}, summed up."""
    found, R, with_r = [W], W, W  # with_r = E[(r_0 + … + r_j) r_jᵀ]
    for _ in range(1, terms):
        R, cross = after(R), with_r @ mean_A
        found.append(found[-1] + cross + cross.T + R)
        with_r = cross + R
    return found


def _random(after: Factor, mean_A: Tensor, W: Tensor, terms: int) -> list[Tensor]:
    """Q r_k with k drawn from 0 … Q − 1"""
    found, R, total = [], W, torch.zeros_like(W)
    for Q in range(1, terms + 1):
        total = total + R
        found.append(Q * total)
        R = after(R)
    return found


_SECOND = {"independent": _independent, "chained": _chained, "prefix": _prefix, "random": _random}


@lru_cache(maxsize=8)
def batches(samples: int, batch: int) -> tuple[Tensor, Tensor]:
    """All batches that differ: the share of every sample in each, and the chance of each.

    Example:
        >>> shares, chances = batches(2, 2)
        >>> shares.tolist(), [round(chance, 12) for chance in chances.tolist()]
        ([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]], [0.25, 0.5, 0.25])
    """
    counts = torch.tensor(_compositions(batch, samples), dtype=torch.float64)
    chances = math.lgamma(batch + 1) - torch.lgamma(counts + 1).sum(1) - batch * math.log(samples)
    return counts / batch, torch.softmax(chances, dim=0)


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in _compositions(total - first, parts - 1)]
