"""Local smoothness as a function of the gradient norm: (L0, L1) by least squares, an upper envelope, and what they say.

L ≈ L0 + L1 ‖∇‖        L0, L1 ≥ 0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import torch

from adambo.diagnostics.line import fitted_lines, growth_of, interval, log_slopes, resampled, upper_line
from adambo.errors import SampleError, SettingError

Quantity = Literal["grad_x_f", "grad_y_f", "hypergradient"]
Verdict = Literal["grows with the gradient norm", "bounded", "cannot be told"]

FEWEST = 8  # points
RANGE = 3.0  # between small and large gradient norms, below which growth cannot be told from scatter
FACTOR = 2.0  # of growth over that range, from which on smoothness is said to grow
REFINED = 10  # refinements, from which on the steepest direction is taken to be found


@dataclass(frozen=True)
class SmoothnessRecord:
    """One measurement: how fast a gradient changes around one point.

    Attributes:
        step: The number of the step.
        of: Which gradient: "grad_x_f", "grad_y_f" or "hypergradient".
        gradient_norm: Its norm at the point z from which the change is measured.
        smoothness: ‖∇(z') − ∇(z)‖ / ‖z' − z‖; where several z' were tried, the largest.
        distance: ‖z' − z‖ there.
        resolved: Whether the change stands clear of rounding.
        refinements: How often the direction was turned to the steepest one.
    """

    step: int
    of: Quantity
    gradient_norm: float
    smoothness: float
    distance: float
    resolved: bool
    refinements: int = 0


@dataclass(frozen=True)
class SmoothnessFit:
    """What the records of one gradient say. Intervals are 95 %, by a seeded bootstrap.

    A step sees the curvature along itself alone, so smoothness may only be larger than measured. And where directions
    differ in curvature, a descent that finishes the steep ones first looks like growth (by the condition number at
    most); `SmoothnessProbe.measure_here(refinements=10)` turns to the steep direction at every point, and settles it.

    Attributes:
        of: Which gradient.
        L0, L1: Of L0 + L1 ‖∇‖, by least squares with L0, L1 ≥ 0.
        L0_interval, L1_interval: Their intervals.
        envelope: (L0, L1) with which the inequality holds at 95 % of the points: what a theorem may be given.
        growth: How many times larger L0 + L1 ‖∇‖ is at the large end of `norms` than at the small one.
        growth_interval: Its interval, which decides the verdict.
        exponent: p of L ∝ ‖∇‖^p, the slope in a log-log plot: 0 for a quadratic, 1 for an exponential; above 1,
            (L0, L1) does not bound it either.
        exponent_interval: Its interval.
        r_squared: The part of the variance of L that the line explains.
        norms: The gradient norms below which 5 % and 95 % of the points lie.
        longest: The longest distance measured over. The inequality speaks of distances up to 1/L1.
        n: The points.
        left_out: Points that are none of them, because rounding hides their change.
        refinements: The fewest of any point.
        verdict: "grows with the gradient norm" if the interval of `growth` lies above 2, "bounded" if it lies below,
            "cannot be told" otherwise, or if `norms` are less than a factor of 3 apart.
    """

    of: Quantity
    L0: float
    L1: float
    L0_interval: tuple[float, float]
    L1_interval: tuple[float, float]
    envelope: tuple[float, float]
    growth: float
    growth_interval: tuple[float, float]
    exponent: float
    exponent_interval: tuple[float, float]
    r_squared: float
    norms: tuple[float, float]
    longest: float
    n: int
    left_out: int
    refinements: int
    verdict: Verdict
    resamples: tuple[tuple[float, float], ...] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"

    @property
    def reason(self) -> str:
        """The verdict's numbers in a sentence or two."""
        low, high = self.norms
        seen = f"gradient norms from {low:.3g} to {high:.3g} ({self.n} points)"
        line = f"smoothness ≈ {self.L0:.3g} + {self.L1:.3g} · norm (L1 from {_between(self.L1_interval)})"
        if not high >= RANGE * low:
            return f"{seen} are less than a factor of {RANGE:g} apart, too close to see growth. Here {line}."
        grown = f"over {seen} it grows by a factor of {self.growth:.3g} (from {_between(self.growth_interval)})"
        found = f"{line}; {grown}; exponent {self.exponent:.2f}.{self.caveat}"
        if self.longest * self.L1 > 1:
            found += (
                f" Some distances (up to {self.longest:.3g}) exceed 1/L1 = {1 / self.L1:.3g}, beyond which the "
                "inequality says nothing: measure over shorter steps."
            )
        return found

    @property
    def caveat(self) -> str:
        """What else than growth may look like it here, as a sentence; empty if nothing known."""
        if self.verdict != "grows with the gradient norm" or self.refinements >= REFINED:
            return ""
        return (
            " That is along the directions taken: a descent that finishes steep directions first looks the same, even "
            f"on a quadratic. measure_here(refinements={REFINED}) settles it."
        )

    def band(self, gradient_norm: float) -> tuple[float, float]:
        """The interval of L0 + L1 · gradient_norm."""
        pairs = torch.tensor(self.resamples, dtype=torch.float64)
        return interval(pairs[:, 0] + pairs[:, 1] * gradient_norm)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the record of a run."""
        return {name: value for name, value in asdict(self).items() if name != "resamples"}


def fit_smoothness(
    records: Iterable[SmoothnessRecord | Mapping[str, Any]], of: Quantity = "grad_x_f", *, seed: int = 0
) -> SmoothnessFit:
    """Fit what `SmoothnessProbe.records` gave, also when it was saved and read again.

    Neighbouring points of a trajectory resemble each other, so the bootstrap draws runs of n^(1/3) points.

    Args:
        records: Of one probe or of several, in their order; those of other gradients are passed over.
        of: The gradient in question.
        seed: Seeds the bootstrap.

    Raises:
        SettingError: If `of` is no gradient that is measured, or a record is not one, with finite numbers.
        SampleError: If fewer than 8 points are left.

    Example:
        >>> points = [SmoothnessRecord(t, "grad_x_f", 2.0**t, 1.0 + 0.5 * 2.0**t, 0.1, True) for t in range(12)]
        >>> fit = fit_smoothness(points)
        >>> fit.verdict, round(fit.L0, 6), round(fit.L1, 6)
        ('grows with the gradient norm', 1.0, 0.5)
    """
    if of not in get_args(Quantity):
        raise SettingError(
            f"of={of!r} is not a gradient that is measured: give one of {', '.join(get_args(Quantity))}."
        )
    mine = [record for record in map(_as_record, records) if record.of == of]
    used = [record for record in mine if record.resolved]
    if len(used) < FEWEST:
        raise SampleError(_too_few(mine, used, of))
    norms = torch.tensor([record.gradient_norm for record in used], dtype=torch.float64)
    smoothness = torch.tensor([record.smoothness for record in used], dtype=torch.float64)
    # A gradient that is exactly zero, as at heads of zeros, is no end of a range in which others lie.
    apart = norms[norms > 0] if bool((norms > 0).any()) else norms
    low, high = (float(q) for q in torch.quantile(apart, torch.tensor([0.05, 0.95], dtype=torch.float64)))
    everything = torch.arange(len(used)).unsqueeze(0)
    L0, L1 = fitted_lines(norms, smoothness, everything)[0]
    line = torch.cat([fitted_lines(norms, smoothness, chosen) for chosen in resampled(len(used), seed)])
    if not bool(line.isfinite().all()):
        raise SampleError(
            f"The points of {of} lie too far apart for a line in float64: gradient norms from {low:.3g} to {high:.3g}. "
            "Leave the largest out."
        )
    slopes = torch.cat([log_slopes(norms, smoothness, chosen) for chosen in resampled(len(used), seed)])
    growths = growth_of(line, low, high)
    residual = (smoothness - L0 - L1 * norms).square().sum()
    spread = (smoothness - smoothness.mean()).square().sum()
    return SmoothnessFit(
        of=of,
        L0=float(L0),
        L1=float(L1),
        L0_interval=interval(line[:, 0]),
        L1_interval=interval(line[:, 1]),
        envelope=upper_line(norms, smoothness),
        growth=float(growth_of(torch.stack([L0, L1]), low, high)),
        growth_interval=interval(growths),
        exponent=float(log_slopes(norms, smoothness, everything)[0]),
        exponent_interval=interval(slopes),
        r_squared=float(1 - residual / spread) if spread > 0 else 0.0,
        norms=(low, high),
        longest=max(record.distance for record in used),
        n=len(used),
        left_out=len(mine) - len(used),
        refinements=min(record.refinements for record in used),
        verdict=_verdict(low, high, interval(growths)),
        resamples=tuple((float(a), float(b)) for a, b in line.tolist()),
    )


def _verdict(low: float, high: float, growth: tuple[float, float]) -> Verdict:
    if not high >= RANGE * low or not high > 0:
        return "cannot be told"
    if growth[0] > FACTOR:
        return "grows with the gradient norm"
    return "bounded" if growth[1] < FACTOR else "cannot be told"


def _between(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3g} to {interval[1]:.3g}"


def _as_record(record: SmoothnessRecord | Mapping[str, Any]) -> SmoothnessRecord:
    if not isinstance(record, SmoothnessRecord):
        names = [f.name for f in fields(SmoothnessRecord)]
        if not isinstance(record, Mapping) or (set(names) ^ set(record)) - {"refinements"}:
            raise SettingError(f"A smoothness record has {', '.join(names)}, but came {record!r}.")
        record = SmoothnessRecord(**record)
    numbers = (record.gradient_norm, record.smoothness, record.distance)
    if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
        raise SettingError(f"A smoothness record has a negative number, or one that is not finite: {record!r}.")
    return record


def _too_few(mine: list[SmoothnessRecord], used: list[SmoothnessRecord], of: str) -> str:
    if mine and all(record.gradient_norm == 0 and record.smoothness == 0 for record in mine):
        return (
            f"{of} is zero at all {len(mine)} points measured: the upper loss does not depend on that variable "
            "directly. Measure another gradient; the hypergradient is to be had with of=('hypergradient',)."
        )
    hidden = f" (of {len(mine)}; rounding hides the change in the others)" if len(used) < len(mine) else ""
    advice = (
        "Measure over longer steps, or in float64, outside autocast."
        if hidden
        else "Measure more often: probe.measure(draw) after a step, or probe.measure_here(draw) anywhere."
    )
    return f"A fit of {of} needs at least {FEWEST} points, but there are {len(used)}{hidden}. {advice}"
