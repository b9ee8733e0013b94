"""Both ends of the spectrum of a symmetric matrix that is known by its products alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adambo.errors import NonFiniteError, SettingError

MOST_PRODUCTS = 1000
MOST_MEMORY = 2**30  # bytes of the basis
FEWEST = 64  # products before a small residual is believed: it may be small by chance, away from the end
LOOKS = 2  # in a row, an eighth of the products apart, that find both ends at rest
CLUSTERED = 10.0  # tolerances
MISSED = 0.025  # probability at each end


@dataclass(frozen=True)
class Extremes:
    """The extreme eigenvalues of each of K matrices; every tensor but the vectors has one entry per matrix.

    A Ritz value lies inside the spectrum: the smallest eigenvalue is no larger than `smallest`, the largest is no
    smaller than `largest`.

    Attributes:
        smallest, largest: The extreme Ritz values.
        smallest_error, largest_error: How far beyond them the eigenvalues may lie. Where the iteration has converged,
            that is the norm of the residual, within which there is an eigenvalue, and at least ten tolerances (for
            eigenvalues that lie so close to the last one that they are taken for it). Where it has not, it is no less
            than what the bound of Kuczyński and Woźniakowski (1992) for random starts allows with a probability of
            2.5 %; infinite after very few products.
        smallest_vectors, largest_vectors: The Ritz vectors, one line per matrix.
        converged: Whether both ends reached the tolerance.
        products: How many were made.
    """

    smallest: Tensor
    largest: Tensor
    smallest_error: Tensor
    largest_error: Tensor
    smallest_vectors: Tensor
    largest_vectors: Tensor
    converged: Tensor
    products: int


def extreme_eigenvalues(
    product: Callable[[Tensor], Tensor],
    like: Tensor,
    *,
    tolerance: float = 1e-3,
    max_products: int | None = None,
    relative_to: Literal["each", "larger"] = "each",
    seed: int = 0,
) -> Extremes:
    r"""Lanczos' method with full reorthogonalisation, on K matrices at once.

        H Q_m = Q_m T_m + β_m q_{m+1} e_mᵀ        T_m s = θ s        ‖H Q_m s − θ Q_m s‖ = β_m |s_m|

    It goes on until both ends of all matrices have residuals below the tolerance and stay where they are (a start that
    hardly sees the last eigenvector rests at its neighbour for a while, so this takes 81 products or all n), or the
    products are spent. Everything but the products is in float64. For condition numbers up to 1e4 and dimensions up to
    1,000 the products allowed are always enough: a matrix of dimension n is known entirely after n of them.

    Args:
        product: Takes a matrix (K, n) in float64, whose line k is to be multiplied with the matrix k.
        like: A matrix (K, n) on the same device; its dtype is that in which the products are computed.
        tolerance: Of a residual, relative to its eigenvalue.
        max_products: None: 1,000, or fewer where the n-vectors that are kept would fill more than 1 GiB.
        relative_to: "larger": both residuals relative to the eigenvalue of larger size, where a norm is wanted.
        seed: Of the random start.

    Raises:
        NonFiniteError: If a product is.

    Example:
        >>> diagonal = torch.tensor([[1.0, 2.0, 7.0]], dtype=torch.float64)
        >>> found = extreme_eigenvalues(lambda v: diagonal * v, diagonal)
        >>> round(float(found.smallest), 6), round(float(found.largest), 6), found.products
        (1.0, 7.0, 3)
    """
    if like.dim() != 2 or not like.numel():
        raise SettingError(f"like= is a matrix with one line per problem, but came one of shape {tuple(like.shape)}.")
    if not 0 < tolerance < 1 or (max_products is not None and max_products < 1):
        raise SettingError(f"Give 0 < tolerance < 1 and max_products ≥ 1, not {tolerance!r} and {max_products!r}.")
    limit = max_products or max(2, min(MOST_PRODUCTS, MOST_MEMORY // (8 * like.numel())))
    iteration = _Iteration(like, min(limit, like.shape[1]), tolerance, relative_to == "larger", seed)
    while not iteration.is_over:
        iteration.extend(product)
    return iteration.found()


class _Iteration:
    def __init__(self, like: Tensor, limit: int, tolerance: float, together: bool, seed: int) -> None:
        self.blocks, self.size = like.shape
        self.limit, self.tolerance, self.together = limit, tolerance, together
        self.rounding = 8 * torch.finfo(like.dtype).eps
        start = torch.randn(self.blocks, self.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.next = (start / torch.linalg.vector_norm(start, dim=1, keepdim=True)).to(like.device)
        self.basis = self.next.new_empty(self.blocks, min(limit, 32), self.size)
        self.T = torch.zeros(self.blocks, limit, limit, dtype=torch.float64)
        self.steps, self.next_look = 0, FEWEST
        self.rested = torch.zeros(self.blocks, dtype=torch.int64)
        self.done = torch.zeros(self.blocks, dtype=torch.bool)
        self.values, self.errors = (torch.full((2, self.blocks), math.nan, dtype=torch.float64) for _ in range(2))
        self.vectors = self.next.new_zeros(2, self.blocks, self.size)
        self.believed = torch.zeros_like(self.done)

    @property
    def is_over(self) -> bool:
        return self.steps == self.limit or bool(self.done.all())

    def extend(self, product: Callable[[Tensor], Tensor]) -> None:
        """One product with each matrix."""
        m, q = self.steps, self.next
        if m == self.basis.shape[1]:
            more = self.basis.new_empty(self.blocks, min(m, self.limit - m), self.size)
            self.basis = torch.cat([self.basis, more], dim=1)
        self.basis[:, m] = q
        w = product(q).to(torch.float64)
        alpha = (q * w).sum(dim=1)
        basis = self.basis[:, : m + 1]
        for _ in range(2):  # once leaves what rounding brings in; twice is enough
            w = w - torch.einsum("kjn,kj->kn", basis, torch.einsum("kjn,kn->kj", basis, w))
        beta = torch.linalg.vector_norm(w, dim=1)
        self.next = w / beta.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)
        alpha, beta = torch.stack([alpha, beta]).cpu()
        if not bool(torch.isfinite(alpha + beta).all()):
            raise NonFiniteError(
                "A Hessian-vector product is NaN or infinite, so its matrix has no eigenvalues. Look at the lower "
                "batches, and for a kink in the lower loss (sqrt or norm at zero)."
            )
        self.steps = m + 1
        self.T[:, m, m] = alpha
        if self.steps < self.limit:
            self.T[:, m, m + 1] = self.T[:, m + 1, m] = beta
        scale = self.T.diagonal(dim1=1, dim2=2).abs().amax(dim=1)
        closed = beta <= 1e-13 * scale  # the space is invariant: it holds all that the start can reach
        if self.steps in (self.next_look, self.limit) or bool((closed & ~self.done).any()):
            self.next_look = max(FEWEST, self.steps + self.steps // 8)
            self._look(beta, closed)

    def _look(self, beta: Tensor, closed: Tensor) -> None:
        """Ritz values of the matrices that are not done, and whether they are now."""
        m, index = self.steps, torch.nonzero(~self.done).squeeze(1)
        eigenvalues, s = torch.linalg.eigh(self.T[index, :m, :m])
        values = torch.stack([eigenvalues[:, 0], eigenvalues[:, -1]])
        floor = self.rounding * values.abs().amax(dim=0)
        errors = torch.stack([s[:, -1, 0], s[:, -1, -1]]).abs() * beta[index]
        size = values.abs().amax(dim=0).expand_as(values) if self.together else values.abs()
        allowed = torch.maximum(self.tolerance * size, floor)
        # A residual may be small by chance, at an eigenvalue further in: then the Ritz value soon moves on.
        settled = (((values - self.values[:, index]).abs() <= allowed) & (errors <= allowed)).all(dim=0)
        self.rested[index] = torch.where(settled, self.rested[index] + 1, 0)
        complete = closed[index] | torch.tensor(m == self.size)
        believed = (self.rested[index] >= LOOKS) | complete
        # In a cluster it may rest at a neighbour of the last eigenvalue, by more than the residual tells.
        margin = torch.where(complete, 0.0, CLUSTERED * self.tolerance) * size
        self.values[:, index], self.errors[:, index] = values, torch.maximum(errors, margin) + floor
        self.believed[index] = believed
        finished = believed | torch.tensor(m == self.limit)
        for place, block in zip(torch.nonzero(finished).squeeze(1).tolist(), index[finished].tolist(), strict=True):
            ends = torch.stack([s[place, :, 0], s[place, :, -1]]).to(self.basis)
            self.vectors[:, block] = ends @ self.basis[block, :m]
        self.done[index] = finished

    def found(self) -> Extremes:
        # Pr(λ_max − θ > ε (λ_max − λ_min)) ≤ 1.648 √n exp(−√ε (2m − 1)), and the same at the other end.
        share = (math.log(1.648 * math.sqrt(self.size) / MISSED) / (2 * self.steps - 1)) ** 2
        spread = self.values[1] - self.values[0]
        missed = spread * (share / (1 - 2 * share)) if share < 0.5 else torch.full_like(spread, math.inf)
        errors = torch.where(self.believed, self.errors, torch.maximum(self.errors, missed))
        (smallest, largest), (below, above), (first, last) = self.values, errors, self.vectors
        return Extremes(smallest, largest, below, above, first, last, self.believed, self.steps)
