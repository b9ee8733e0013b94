"""The derivatives of a problem on the batches of several draws, and what they tell about its constants."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from adambo.diagnostics.lanczos import Extremes, extreme_eigenvalues
from adambo.diagnostics.noise import Estimate, Samples, bound_of, largest, mean_error, not_seen
from adambo.diagnostics.sampled_hessian import SampledHessian, as_vector, tasks_of
from adambo.draw import Draw
from adambo.errors import NonFiniteError
from adambo.ledger import Ledger
from adambo.masks import SameMasks
from adambo.point import Point
from adambo.problem import Problem
from adambo.vectors import as_blocks

NOISIEST = 4  # draws whose Hessian noise is measured by Lanczos' method
NOISE_PRODUCTS = 24
FLIPS = 3  # random signs with which the error of the mean Hessian is imitated
FLIP_PRODUCTS = 12
ONE_DRAW = "one draw shows no noise: give several"
NEVER_TWICE = "no task is in two draws: give several draws of the same tasks"

Rows = dict[int, list[Tensor]]


class SampledProblem:
    """A problem at its current parameters, on a batch of each role of each draw.

    Args:
        problem: The problem.
        draws: Each with one batch in each role.
        ledger: Where oracle calls are counted.
        seed: Of everything random, and of dropout in draws that have no seed.
    """

    def __init__(self, problem: Problem, draws: Sequence[Draw], ledger: Ledger, seed: int) -> None:
        self.problem, self.draws, self.ledger, self.seed = problem, draws, ledger, seed

    def constants(self, tolerance: float, max_products: int | None, probes: int) -> dict[str, Estimate]:
        hessian = SampledHessian([self._point(k, "lower", "hessian") for k in range(len(self.draws))])
        ends = extreme_eigenvalues(
            hessian.mean, hessian.like, tolerance=tolerance, max_products=max_products, seed=self.seed
        )
        products = [] if len(self.draws) == 1 else [hessian.all(v) for v in _vectors(ends)]
        mu, l_g1 = self._curvature(hessian, ends, products)
        f_x, f_y, g_y = self._gradients()
        slope = max(float(torch.stack(rows).mean(dim=0).norm()) for rows in g_y.values())
        distance = f", within {slope / mu.value:.2g} of here" if mu.value > 0 else ""
        l_f0 = largest([self._norm_of_mean(rows) for rows in f_y.values()])
        upper = [self._samples(f_x).bound()] if len(f_x) > 1 else []
        upper += [self._samples(rows).bound() for rows in f_y.values() if len(rows) > 1]
        lower = [self._samples(rows).sub_gaussian() for rows in g_y.values() if len(rows) > 1]
        unseen = not_seen(ONE_DRAW if len(self.draws) == 1 else NEVER_TWICE)
        curved = [self._hessian_noise(hessian, ends, products), self._cross_noise(hessian, probes)]
        return {
            "mu": mu,
            "l_g1": l_g1,
            "l_f0": _with_note(l_f0, f"‖∇y f‖ here; the constant belongs at y*(x){distance}"),
            "sigma_f": _with_note(
                largest(upper or [unseen]),
                "largest seen; the upper end: one draw of 1,000 exceeds it, if the noise is sub-Gaussian",
            ),
            "sigma_g1": _with_note(
                largest(lower or [unseen]), "smallest on the draws, a lower bound; the upper end: of normal noise"
            ),
            "sigma_g2": largest([e for e in curved if e is not None] or [unseen]),
        }

    def _point(self, k: int, *roles: str) -> Point:
        draw = self.draws[k]
        masks = SameMasks(draw, self.seed + k if draw.seed is None else draw.seed, self.problem.device)
        part = Draw(**{role: getattr(draw, role) for role in roles})
        return self.problem.at(part, self.ledger, masks=masks)

    # Gradients --------------------------------------------------------------------------------------------------------

    def _gradients(self) -> tuple[list[Tensor], Rows, Rows]:
        """∇x f, and ∇y f and ∇y g by task, all draws."""
        f_x: list[Tensor] = []
        f_y: Rows = defaultdict(list)
        g_y: Rows = defaultdict(list)
        for k in range(len(self.draws)):
            upper, lower = self._point(k, "upper"), self._point(k, "lower")
            for rows, point, vector in ((f_y, upper, upper.f_y), (g_y, lower, lower.lower_gradient())):
                lines = _finite(as_blocks(vector, point.y.blocks))
                for task, line in zip(tasks_of(point.y).tolist(), lines, strict=True):
                    rows[task].append(line)
            f_x.append(_finite(torch.cat([t.detach().reshape(-1) for t in upper.f_x])))
        return f_x, f_y, g_y

    def _samples(self, vectors: list[Tensor]) -> Samples:
        return Samples(torch.stack(vectors), self.seed)

    def _norm_of_mean(self, vectors: list[Tensor]) -> Estimate:
        if len(vectors) == 1:
            return Estimate(float(torch.linalg.vector_norm(vectors[0].double())), 0.0, math.inf)
        return self._samples(vectors).norm_of_mean()

    # Curvature --------------------------------------------------------------------------------------------------------

    def _curvature(
        self, hessian: SampledHessian, ends: Extremes, products: list[list[Tensor]]
    ) -> tuple[Estimate, Estimate]:
        """The smallest eigenvalue of the mean Hessian, and its norm, over all tasks."""
        sizes = torch.stack([-ends.smallest, ends.largest])
        errors = torch.stack([ends.smallest_error, ends.largest_error])
        rounding = 8 * torch.finfo(hessian.like.dtype).eps * float(sizes.abs().max())
        # Noise pushes eigenvalues apart, so that the smallest is too small on average, and the norm too large: by no
        # more than the norm of the mean's error (Weyl), and by about as much where many eigenvalues are near the end.
        inward = self._error_of_mean_hessian(hessian) if products else 0.0

        def spread(end: int, task: int) -> float:
            """Of the mean, to first order: that of vᵀ ∇²yy G v over the draws, with the eigenvector v of the mean."""
            if not products:
                return 0.0
            v = _vectors(ends)[end][task]
            found = [h[places == task] @ v for h, places in zip(products[end], hessian.places, strict=True)]
            return mean_error(torch.cat(found), self.seed)

        task = int(ends.smallest.argmin())
        mu, over = float(ends.smallest[task]), spread(0, task)
        low = float((ends.smallest - ends.smallest_error).min()) - over
        end, task = divmod(int(sizes.argmax()), len(ends.smallest))
        norm, beyond = float(sizes[end, task]), spread(end, task)
        high = float((sizes + errors).max()) + beyond
        return (
            Estimate(mu, low, mu + max(over, inward) + rounding, self._note(mu, low, ends)),
            Estimate(norm, max(0.0, norm - max(beyond, inward) - rounding), high, f"‖∇²yy g‖ {self._of_what('large')}"),
        )

    def _error_of_mean_hessian(self, hessian: SampledHessian) -> float:
        """Its norm, the largest over the tasks and over a few errors that are made like it."""
        generator, found = torch.Generator().manual_seed(self.seed), 0.0
        for _ in range(FLIPS):
            signs = (1.0 - 2.0 * (torch.randperm(len(hessian), generator=generator) % 2)).tolist()
            ends = extreme_eigenvalues(
                lambda v, signs=signs: hessian.flipped(signs, v),  # type: ignore[misc]
                hessian.like,
                tolerance=1e-2,
                max_products=FLIP_PRODUCTS,
                relative_to="larger",
                seed=self.seed,
            )
            found = max(found, float(torch.maximum(ends.largest, -ends.smallest).max()))
        return found

    def _of_what(self, tendency: str) -> str:
        if len(self.draws) == 1:
            return "on one draw, whose own error is not in the interval"
        return f"of the mean of the draws, which noise makes too {tendency} on average"

    def _note(self, mu: float, low: float, ends: Extremes) -> str:
        note = f"λ_min(∇²yy g) {self._of_what('small')}; {ends.products} products"
        if not bool(ends.converged.all()):
            note += ", too few to tell: an upper bound of it; raise max_products"
        if mu <= 0:
            return note + ". The lower level is NOT STRONGLY CONVEX here: add a regulariser such as mu/2 · ‖y‖²"
        return note + ("; cannot be told from 0, so perhaps not strongly convex" if low <= 0 else "")

    def _hessian_noise(self, hessian: SampledHessian, ends: Extremes, products: list[list[Tensor]]) -> Estimate | None:
        """The largest ‖∇²yy G − ∇²yy g‖ over the draws."""
        compared = [k for k in range(len(hessian)) if hessian.is_compared(k)]
        if not compared:
            return None
        seen = torch.zeros(len(hessian), dtype=torch.float64)
        for found in products:
            mean = hessian.mean_of(found)
            for k in compared:
                seen[k] = max(float(seen[k]), float((found[k] - mean[hessian.places[k]]).norm(dim=1).max()))
        noisiest = sorted(compared, key=lambda k: -float(seen[k]))[:NOISIEST]
        for k in noisiest:
            of_draw = extreme_eigenvalues(
                lambda v, k=k: hessian.deviation(k, v),  # type: ignore[misc]
                hessian.like[hessian.places[k]],
                tolerance=1e-2,
                max_products=NOISE_PRODUCTS,
                relative_to="larger",
                seed=self.seed,
            )
            seen[k] = float(torch.maximum(of_draw.largest, -of_draw.smallest).max())
        norms = seen[compared]
        if len(noisiest) < len(compared):
            # The others looked quieter: none is taken to be noisier than the least noisy of those.
            others = torch.tensor([k not in noisiest for k in compared])
            norms = torch.where(others, seen[noisiest].min(), norms)
        note = f"∇²yy: norm on the {len(noisiest)} of {len(compared)} draws that looked noisiest, a lower bound"
        return _with_note(bound_of(norms, _error_of_mean(norms)), note)

    def _cross_noise(self, hessian: SampledHessian, probes: int) -> Estimate | None:
        """The largest ‖(∇²xy G − ∇²xy g) U‖ over the draws, of one task, with orthonormal directions U of y."""
        task = int(hessian.counts.argmax())
        draws = [k for k, places in enumerate(hessian.places) if bool((places == task).any())]
        if len(draws) < 2:
            return None
        size = hessian.like.shape[1]
        count = min(probes, size)
        start = torch.randn(size, count, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        directions = torch.linalg.qr(start)[0].T.to(hessian.like.device)
        # Twice, so that no more than two such matrices are held at a time.
        mean = self._crossed(draws[0], hessian.tasks[task], directions) / len(draws)
        for k in draws[1:]:
            mean += self._crossed(k, hessian.tasks[task], directions) / len(draws)
        norms = []
        for k in draws:
            off = self._crossed(k, hessian.tasks[task], directions) - mean
            norms.append(torch.linalg.eigvalsh((off @ off.T).double())[-1].clamp_min(0.0).sqrt().cpu())
        found = torch.stack(norms)
        all_of_y = count == size
        note = f"∇²xy: norm {'in all' if all_of_y else 'a lower bound, from'} {count} directions of y"
        return _with_note(bound_of(found, _error_of_mean(found)), note)

    def _crossed(self, k: int, task: Tensor, directions: Tensor) -> Tensor:
        """∇²xy G u for each direction u of one task, one line each."""
        point = self._point(k, "cross")
        like = point.y.values()
        row = (tasks_of(point.y) == task).double().unsqueeze(1)
        lines = [torch.cat([t.reshape(-1) for t in point.cross(as_vector(row * u, like))]) for u in directions]
        return _finite(torch.stack(lines))


def _vectors(ends: Extremes) -> tuple[Tensor, Tensor]:
    return ends.smallest_vectors, ends.largest_vectors


def _error_of_mean(norms: Tensor) -> float:
    """How far a mean may be from the expectation, judged by the norms of the deviations from it."""
    return float(norms.square().mean().sqrt()) / math.sqrt(len(norms) - 1)


def _with_note(estimate: Estimate, note: str) -> Estimate:
    return Estimate(estimate.value, estimate.low, estimate.high, estimate.note or note)


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError(
            "A derivative of the problem is NaN or infinite on one of the draws, so no constant bounds it. Look at the "
            "batches, and for a kink in the losses (sqrt or norm at zero)."
        )
    return values
