"""`neumann`: bias and variance of the Neumann series for the ways to sample it, and what reuse of a batch costs.

Every moment is exact (`series_moments`), so that intervals are over problems, not over draws; the cost is what the
library's own series counts in its ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from adambo.draw import Draw
from adambo.inverse import Neumann
from adambo.ledger import Ledger
from adambo.studies import neumann_figure, neumann_sheets
from adambo.studies.cells import computed
from adambo.studies.findings import Effort, Findings
from adambo.studies.neumann_sheets import BATCHES, LONGEST, TERMS
from adambo.studies.series_moments import FRESH, MODES, REUSED, Place, moments
from adambo.testing import StochasticQuadratic
from adambo.theory import neumann_bias_bound

SEEDS = 12
CONDITIONS = (2.0, 5.0, 20.0)
NOISES = (0.1, 0.5, 0.9)
TILTS = (0.0, 1.0, 4.0)


def study(effort: Effort) -> Findings:
    """The findings. A share of the effort is a share of the seeds: nothing here has steps."""
    seeds = effort.seeds if effort.seeds is not None else effort.steps(SEEDS, smallest=2)
    kinds = [(condition, noise) for condition in CONDITIONS for noise in NOISES]
    cells = [(condition, noise, seed) for condition, noise in kinds for seed in range(seeds)]
    found = computed(problem_cell, cells, effort.processes)
    of = {kind: found[k * seeds : (k + 1) * seeds] for k, kind in enumerate(kinds)}
    tilted = computed(tilted_cell, [(tilt, seed) for tilt in TILTS for seed in range(seeds)], effort.processes)
    tilts = {tilt: tilted[k * seeds : (k + 1) * seeds] for k, tilt in enumerate(TILTS)}
    costs = {mode: [products(mode, Q) for Q in TERMS] for mode in MODES}

    def draw(figure: Figure) -> None:
        neumann_figure.draw(figure, of, costs)

    return Findings(
        title="Bias and variance of the Neumann series",
        setting=SETTING,
        sheets=neumann_sheets.sheets(of, tilts, costs),
        conclusions=neumann_sheets.conclusions(of, tilts, costs),
        draw=draw,
        size=(11.0, 6.6),
        numbers={
            "terms": list(TERMS),
            "hessian products per step": costs,
            "problems": {f"condition {c:g}, noise {n:g}": cells for (c, n), cells in of.items()},
            "tilts": {f"{tilt:g}": cells for tilt, cells in tilts.items()},
        },
    )


def problem_cell(condition: float, noise: float, seed: int) -> dict[str, Any]:
    """Moments on one problem: [bias, variance] by mode and terms, and what they are to be held against.

    Args:
        condition: L/μ of the mean Hessian, μ = 1.
        noise: ‖∇²yy G_i − ∇²yy g‖ is at most that.
        seed: Of the problem.
    """
    place = Place(StochasticQuadratic(seed=seed, mu=1.0, L=condition, noise=noise))
    scale = float(torch.linalg.matrix_norm(place.J.mean(0), ord=2) * place.v.mean(0).norm())
    sigma = place.hessian_noise(1)
    truncation = truncation_biases(place)
    floors = {mode: [list(moments(place, mode, [None], batch)[0]) for batch in BATCHES] for mode in REUSED}
    return {
        "truth": float(place.truth.norm()),
        "bound": [scale * neumann_bias_bound(place.mu, place.l_g1, Q) for Q in TERMS],
        "bound shared": [scale * neumann_bias_bound(place.mu, place.l_g1, Q, "shared", sigma_g2=sigma) for Q in TERMS],
        "moments": {mode: [list(each) for each in moments(place, mode, TERMS)] for mode in MODES},
        "floor": floors,
        "floor to second order": [second_order_floor(place, batch) for batch in BATCHES],
        "terms to the floor": [
            next((Q for Q, bias in enumerate(truncation, start=1) if bias < floor[0]), LONGEST + 1)
            for floor in floors["shared"]
        ],
    }


def truncation_biases(place: Place) -> list[float]:
    """‖E h − ∇Φ‖ of 1 … `LONGEST` terms with fresh batches: J A^Q H⁻¹ ∇y f is what the series leaves out."""
    H = place.H.mean(0)
    left, biases = torch.linalg.solve(H, place.v.mean(0)), []
    for _ in range(LONGEST):
        left = left - torch.mv(H, left) / place.l_g1
        biases.append(float(torch.mv(place.J.mean(0), left).norm()))
    return biases


def second_order_floor(place: Place, batch: int) -> float:
    """‖J H⁻¹ E[D H⁻¹ D] H⁻¹ ∇y f‖: what E[(H + D)⁻¹] − H⁻¹ is to second order in D, the noise of one batch."""
    H = place.H.mean(0)
    inverse, D = torch.linalg.inv(H), place.H - H
    bent = (D @ inverse @ D).mean(0) / batch
    return float((place.J.mean(0) @ inverse @ bent @ inverse @ place.v.mean(0)).norm())


def tilted_cell(tilt: float, seed: int) -> dict[str, list[float]]:
    """[bias, variance] of thirty terms where the samples agree about dy*/dx (tilt 0) or hardly do (4)."""
    known = StochasticQuadratic(seed=seed, mu=1.0, L=5.0, noise=0.5)
    known.N_i = tilt * known.N_i
    place = Place(known)
    return {mode: list(moments(place, mode, [30])[0]) for mode in ("chained", *REUSED)}


def products(mode: str, terms: int) -> float:
    """Hessian products of one step, as the library counts them; for a random level, the mean over the levels."""
    known = StochasticQuadratic(dx=1, dy=1, samples=2)
    problem, inverse = known.problem(), Neumann(terms=terms, step=0.1, samples=_samples(mode))
    levels: Sequence[int | None] = range(terms) if mode == "random" else [None]
    ledger = Ledger()
    for level in levels:
        draw = Draw(upper=([0],), cross=([0],), hessian=[[0] for _ in range(inverse.needs.hessian)], level=level)
        point = problem.at(draw.trimmed(inverse.needs, "the study") if level is not None else draw, ledger)
        inverse.solve(point, [torch.ones_like(p) for p in problem.y])
    return ledger.hessian_vector / len(levels)


def _samples(mode: str) -> Any:
    return mode if mode in FRESH else "shared"


SETTING = """\
The hypergradient h = ∇x F − J P ∇y F with P = s Σ_{q<Q} (products of q factors I − s ∇²yy G), at (x, y*(x)) of
`StochasticQuadratic` problems: four samples, dimensions 3 and 4, the mean lower Hessian with eigenvalues from μ = 1 to
2, 5 or 20 ("condition"), sample Hessians within 0.1, 0.5 or 0.9 of the mean in norm ("noise"; all other gradients are
as noisy). The step s is one over the largest eigenvalue of any sample. Bias is ‖E h − ∇Φ‖, variance E‖h − E h‖²; both
are exact, by recursions for the second moments where every factor has a batch of its own, and by enumeration of all
batches where one is used again. Intervals are over problems.

The first five modes are those of `adambo.Neumann(samples=)`. "Shared with cross" gives the batch of the factors to the
cross derivative J too, as `Draw.of(upper, lower, needs)` does, the thrifty draw of `solver.step(upper, lower)`; there
all modes but `random` are this one. "Shared with all" gives it to the upper gradients as well. The bound is
‖J‖ ‖∇y f‖ times `theory.neumann_bias_bound` with the μ and l of the samples; for one shared batch its σ² is
E‖∇²yy G − ∇²yy g‖²."""
