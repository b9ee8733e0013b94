"""The constants of AdamBO's theorem as they are at one point of one's own problem, each with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from adambo.diagnostics.noise import Estimate
from adambo.diagnostics.sampled_problem import SampledProblem
from adambo.draw import Draw
from adambo.errors import SampleError, SettingError, WholeTableUsed
from adambo.ledger import Ledger
from adambo.problem import Problem

FROM_A_STREAM = 16  # draws


@dataclass(frozen=True)
class EstimatedConstants:
    """What `estimate_constants` found, at the (x, y) where it was called; each constant is an `Estimate`.

    The theorem wants bounds that hold wherever a run comes by, so these numbers are its constants at their best.

    Attributes:
        mu: The smallest eigenvalue of ∇²yy g. Zero or below: the lower level is not strongly convex here.
        l_g1: The norm of ∇²yy g. The theorem's constant also bounds ∇²xy g and ∇²xx g, and every sample: the
            Hessian of a sample has a norm of `l_g1` + `sigma_g2` at most.
        l_f0: ‖∇y f‖ here; the constant belongs at (x, y*(x)). It also bounds every sample, whose norm is `l_f0` +
            `sigma_f` at most.
        sigma_f: Bound of the noise in ∇x F and ∇y F: the largest seen.
        sigma_g1: Of the noise in ∇y G: the smallest σ with Pr(‖noise‖ ≥ s) ≤ 2 exp(−2s²/σ²) on the draws, which show
            little of the tail: a lower bound. The upper end is what normal noise needs; heavier tails need more.
        sigma_g2: Bound of the noise in ∇²yy G and ∇²xy G: the largest seen, a lower bound.
        draws: How many were used.
        products: With the Hessian of one draw, all together.
    """

    mu: Estimate
    l_g1: Estimate
    l_f0: Estimate
    sigma_f: Estimate
    sigma_g1: Estimate
    sigma_g2: Estimate
    draws: int
    products: int

    def known(self, cautious: bool = False) -> dict[str, float]:
        """The numbers by name, for `adambo.theory.ProblemConstants(**others, **found.known())`.

        Those that these draws cannot tell are left out (one draw shows no noise), and noise that is zero, for which
        the theory wants a small number. A `mu` of zero or below stays, and is refused there.

        Args:
            cautious: Take the end of each interval that is the safer bound: the lower one of mu, the upper ones of all
                others.

        Example:
            >>> sure, unseen = Estimate(1.0, 0.9, 1.1), Estimate(math.nan, 0.0, math.inf)
            >>> found = EstimatedConstants(sure, sure, sure, unseen, unseen, unseen, draws=1, products=4)
            >>> found.known(cautious=True)
            {'mu': 0.9, 'l_g1': 1.1, 'l_f0': 1.1}
        """
        numbers = {}
        for name, estimate in self._estimates().items():
            number = estimate.value if not cautious else estimate.low if name == "mu" else estimate.high
            if math.isfinite(estimate.value) and math.isfinite(number) and (name == "mu" or number > 0):
                numbers[name] = number
        return numbers

    def _estimates(self) -> dict[str, Estimate]:
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in pairs if isinstance(value, Estimate)}

    def __str__(self) -> str:
        lines = [f"{'constant':<9} {'value':>10}  {'95 % interval':<23}"]
        for name, e in self._estimates().items():
            interval = f"[{e.low:.4g}, {e.high:.4g}]"
            lines.append(f"{name:<9} {e.value:>10.4g}  {interval:<23} {e.note}".rstrip())
        return "\n".join(lines)


def estimate_constants(
    problem: Problem,
    draws: Iterable[Draw],
    *,
    count: int | None = None,
    ledger: Ledger | None = None,
    tolerance: float = 1e-3,
    max_products: int | None = None,
    probes: int = 8,
    seed: int = 0,
) -> EstimatedConstants:
    """Measure the constants of AdamBO's theorem at the current parameters of `problem`. Nothing of it is changed.

    The lower Hessian is that of the mean over the draws; its ends come from Lanczos' method, noise from the spread
    over the draws, of which each gives one batch per role. Where a role is empty, a batch of another lower role serves.
    The intervals of mu and l_g1 are those of Lanczos' method, widened by how far the mean of the draws may be off: to
    first order outwards; inwards by the norm of its error, because noise makes mu too small and l_g1 too large. So the
    values are biased where many eigenvalues lie near an end (a ridge), and the intervals one-sided: more draws, or
    larger batches, help. All intervals take noise to be about normal; of log-normal noise, those of a mean hold in 83
    to 88 of 100 cases (2, 5 and 20 draws). Dropout belongs to the noise: a draw keeps one mask.

    With `tasks=`, each task is a lower problem of its own: mu is the smallest over the tasks of the draws, all others
    are the largest, and the noise in y is that of tasks which several draws name.

    In memory are kept: the graph of one lower loss per draw, a gradient in x per draw, twice `probes` vectors like x.

    Args:
        problem: The problem; in one process.
        draws: A sequence of draws, or a stream, from which `count` are taken. Twenty or more make the noise levels
            trustworthy; one is enough for mu, l_g1 and l_f0 of its batch.
        count: How many to use. None: all of a sequence, 16 of a stream.
        ledger: Where oracle calls are counted; products with the Hessian as `curvature_vector`.
        tolerance: Of Lanczos' residuals, relative to mu and to l_g1.
        max_products: The most products with the mean Hessian, each of which is one per draw. None: what a condition
            number of 1e4 needs in dimensions up to 1,000. Where they do not suffice, the interval of mu is wide, and
            its note says so.
        probes: Directions of y in which the noise of the cross derivative is measured; all of them, where y has no
            more.
        seed: Of the directions and of the bootstrap.

    Raises:
        SettingError: If the arguments cannot be used.
        SampleError: If there is no draw, or one lacks an upper or a lower batch.
        NonFiniteError: If a gradient or a product is NaN or infinite.

    Example:
        >>> from adambo.testing import StochasticQuadratic
        >>> known = StochasticQuadratic(mu=0.5, L=4.0, samples=4)
        >>> draws = [Draw(upper=(k,), lower=(k,), cross=(k,), hessian=(k,)) for k in range(4)]
        >>> found = estimate_constants(known.problem(), draws)
        >>> round(found.mu.value, 6), round(found.l_g1.value, 6)
        (0.5, 4.0)
    """
    if not isinstance(problem, Problem):
        raise SettingError(f"estimate_constants takes a problem (solver.problem), but came {type(problem).__name__}.")
    if problem.processes.active:
        raise SettingError(
            "This problem is shared by several processes, but constants are measured in one. Build "
            "it with group=None for that, from the same losses and parameters."
        )
    for name, number in (("count", count), ("max_products", max_products), ("probes", probes)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise SettingError(f"{name}={number!r} is not a whole number of 1 or more.")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise SettingError(f"seed={seed!r} is not a whole number.")
    if not isinstance(ledger, Ledger | None):
        raise SettingError(f"ledger={ledger!r} counts no oracle calls: give an adambo.Ledger(), or none.")
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise SettingError(f"tolerance={tolerance!r} is a relative error: give a number between 0 and 1, such as 1e-3.")
    taken = _taken(draws, count)

    def measured() -> tuple[EstimatedConstants, Ledger]:
        own = Ledger()
        sampled = SampledProblem(problem, taken, own, seed)
        return EstimatedConstants(
            **sampled.constants(tolerance, max_products, probes), draws=len(taken), products=own.curvature_vector
        ), own

    with problem.moved_to():  # to the same point, but module buffers come back
        try:
            found, own = measured()
        except WholeTableUsed as reason:
            problem.differentiate_whole_tables(reason)
            found, own = measured()
    if ledger is not None:
        ledger.add(own)
    return found


def _taken(draws: Iterable[Draw], count: int | None) -> list[Draw]:
    if not isinstance(draws, Iterable):
        raise SampleError(f"estimate_constants takes several draws, but came {type(draws).__name__}. Give a list.")
    limit = count if count is not None or isinstance(draws, Sequence) else FROM_A_STREAM
    taken = list(islice(draws, limit))
    if not taken or (count is not None and len(taken) < count):
        raise SampleError(
            f"estimate_constants was to use {count or 'at least one'} of the draws, but found {len(taken)}. Give more, "
            "or a stream: adambo.draws(...) has no end."
        )
    return [_one_of_each(draw) for draw in taken]


def _one_of_each(draw: Draw) -> Draw:
    if not isinstance(draw, Draw):
        raise SampleError(f"estimate_constants takes draws, but one is {type(draw).__name__}. Build adambo.Draw(...).")
    if not draw.upper or not (draw.lower or draw.cross or draw.hessian):
        raise SampleError(
            "estimate_constants needs an upper batch in every draw, and one of a lower role (lower, cross or hessian): "
            "Draw(upper=(batch,), lower=(batch,))."
        )
    lower, cross, hessian = (list(role[:1]) for role in (draw.lower, draw.cross, draw.hessian))
    return Draw(
        upper=(draw.upper[0],),
        lower=((lower or cross or hessian)[0],),
        cross=((cross or hessian or lower)[0],),
        hessian=((hessian or cross or lower)[0],),
        seed=draw.seed,
    )
