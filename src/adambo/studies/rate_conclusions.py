"""What the study of rates did, and what follows from its numbers, in words."""

from __future__ import annotations

from adambo.studies.interval import Interval, geometric
from adambo.studies.rate_curve import NO_NOISE, NOISE, NOISES, RATIOS, Curves, practical
from adambo.studies.rate_scalings import PROBLEMS, SCALINGS, SMALLER, THEOREM, power_of

NEAR = 1.5  # a factor within which a ratio is taken for the one that is expected
STEEPER = (
    "What a slope steeper than −1/4 says, and what not: on these problems the way from the start takes of the "
    "order of √T steps, a share T^(−1/2) of the run, and the noise leaves a floor of the order of √η ∝ T^(−1/4). "
    "Both give T^(−1/2) in the mean of squares; the mean norm lies between −1/2 and −1/4, the nearer to −1/4 the "
    "more the noise outweighs the start. The theorem bounds the worst case of a class; these are two members of it."
)


def setting(seeds: int, horizons: list[int]) -> str:
    return (
        f"Every horizon T in {', '.join(map(str, horizons))} is a run of its own, for each of {seeds} seeds of the "
        "problem (matrices, samples, start) and of the draws; shown is the mean over t of the true ‖∇Φ(x_t)‖, and of "
        "its square. The theorem of AdamBO has ε ∝ T^(−1/4) and β, γ, η ∝ ε², so all three fall as T^(−1/2), with "
        "γ = 2β/μ; the number of Neumann terms is ⌈ln β/ln(1 − μ/l)⌉, which makes the bias of the series at most of "
        "the order of β. At T = 1024 every method has β = 1/32 and γ = 1/16, plain and Adam-like methods η = 1/32 if "
        "nothing else is said (VR-AdamBO 1/16), normalised ones steps of length 1/64; β_sq = 0.01. Before the first "
        "step y makes ⌈ln(1/γ)/γ⌉ SGD steps, which are not counted.\n\n"
        "The problems have four samples, of which a step draws one per role: `StochasticQuadratic` (μ = 1, L = 2, "
        "start about 1 from zero) and `StochasticUnboundedSmooth` (cosh in x, start 2 from the optimum in each of the "
        "three coordinates). Other methods are scaled as we read their own theory (rates of steps "
        "in ε, turned into powers of T): normalised ones with η ∝ ε³ (SLIP, "
        "BO-REP) or η, β ∝ ε² at ε ∝ T^(−1/3) (AccBO, whose γ we let fall alike); SUSTAIN with η, γ ∝ T^(−1/3) and "
        "β = ρ ∝ η², TTSA with its two time scales, SOBA with T^(−1/2). The theory of StocBiO lets batches "
        "grow; with one sample per step its steps are scaled as those of SGD, and nothing is proved. Nothing is proved "
        "for VR-AdamBO either: it takes η ∝ T^(−1/3), β ∝ η² from VRAdam and γ = 2β/μ from AdamBO. Proved powers are "
        "up to logarithms."
    )


def conclusions(curves: Curves, horizons: list[int]) -> list[str]:
    sentences = []
    for kind, label in [(kind, label) for kind in PROBLEMS for label in (THEOREM, SMALLER)]:
        curve = curves[kind, label, NOISE]
        if curve.slope and curve.square_slope:
            sentences.append(
                f"{label}, scaled as the theorem says, {PROBLEMS[kind]}: the mean norm falls with slope "
                f"{curve.slope.text()}, {_against(curve.slope, -1 / 4)} the proved −1/4; the mean square, of which the "
                f"proof speaks, with {curve.square_slope.text()}, {_against(curve.square_slope, -1 / 2)} −1/2."
            )
    if any("steeper than the proved" in sentence for sentence in sentences):
        sentences.append(STEEPER)
    for kind in PROBLEMS:
        few, many = (curves[kind, THEOREM, noise] for noise in (min(NOISES), max(NOISES)))
        if few.slope and many.slope and not few.diverged + many.diverged:
            more = Interval.of([b - a for a, b in zip(few.slopes, many.slopes, strict=True)])
            order = (
                "the less noise, the steeper, as is to be expected" if more.low > 0 else "no difference beyond chance"
            )
            sentences.append(
                f"{PROBLEMS[kind].capitalize()}: slope {few.slope.text()} with noise {min(NOISES):g} and "
                f"{many.slope.text()} with {max(NOISES):g}, seed by seed a difference of {more.text()}: {order}."
            )
    return [
        *sentences,
        *(_about_lambda(kind, curves, horizons) for kind in PROBLEMS),
        _normalised(curves),
        _slower(curves),
    ]


def _about_lambda(kind: str, curves: Curves, horizons: list[int]) -> str:
    """What a tiny λ does, with noise and without, for three ratios of η to β."""
    slopes = [
        f"{slope.text()} for η = {ratio}" for ratio in RATIOS if (slope := curves[kind, practical(ratio), NOISE].slope)
    ]
    said = f"λ = 1e-8, {PROBLEMS[kind]}: slopes of the mean norm {', '.join(slopes)}."
    wide, narrow = (curves[kind, practical(ratio), NO_NOISE] for ratio in ("4β", "β/4"))
    theorem = curves[kind, THEOREM, NO_NOISE]
    if not (wide.finite.all() and narrow.finite.all() and theorem.finite.all()):
        return said
    kept, tamed = (geometric((curve.end[-1] / curve.end[-5]).tolist()) for curve in (wide, theorem))
    apart = geometric((wide.end[-1] / narrow.end[-1]).tolist())
    still = int((theorem.end[-1] > theorem.end[-5] / 2).sum())
    said += (
        f" With next to no noise, from T = {horizons[-5]} to {horizons[-1]} the norm at the end of the run changes by "
        f"a factor {kept.text()} at η = 4β, and by {tamed.text()} at λ = 1, η = β (where {still} of {tamed.seeds} "
        f"seeds do not halve it); at the largest T it is "
        f"{apart.text()} times larger at η = 4β than at η = β/4, where η/β is 16 times larger."
    )
    if kept.low < 1 / NEAR or apart.low < 16 / NEAR or apart.high > 16 * NEAR:
        return said
    noisy = curves[kind, practical("β/4"), NOISE].slope
    hidden = " Noise in the second moment hides this while η/β is small." if noisy and noisy.high < 0 else ""
    return (
        f"{said} So there is a floor that smaller steps do not lower: with a tiny λ x moves by the order of η per step "
        "in each coordinate however small the gradient is, and momentum forgets within 1/β steps, so x circles around "
        f"the optimum at a distance of the order of η/β, which does not depend on T.{hidden} The theorem excludes it: "
        "its bound on η/β falls with λ, as λ^(3/2), and with the smoothness"
        f"{', which is why a ratio of 1 can be too much even at λ = 1' if still else ''}."
    )


def _normalised(curves: Curves) -> str:
    found = [
        f"{label} {slope.text()} ({PROBLEMS[kind]})"
        for label in ("SLIP", "BO-REP", "AccBO")
        for kind in PROBLEMS
        if (slope := curves[kind, label, NOISE].square_slope)
    ]
    return (
        f"The mean of squares under normalised steps: {', '.join(found)}. Their theory bounds the mean norm alone: "
        "with steps of fixed length the way from the start takes a share of the run that falls only as the proved rate "
        "of the norm does, and in the mean of squares that share weighs the square of the first gradients."
    )


def _slower(curves: Curves) -> str:
    """Which methods fall more slowly than their own theory says, in the mean norm or in the mean square."""
    behind = []
    for (kind, label, noise), curve in curves.items():
        scaling = SCALINGS[label]
        for name, found, proved in (
            ("norm", curve.slope, scaling.norm),
            ("square", curve.square_slope, scaling.square),
        ):
            power = power_of(proved)
            if noise == NOISE and found and power is not None and found.low > power:
                behind.append(f"{label} on {PROBLEMS[kind]}, mean {name} ({found.text()} against {proved})")
    lost = sum(curve.diverged for curve in curves.values())
    runs = "No run diverged." if not lost else f"Runs that diverged: {lost}; slopes are those of the other seeds."
    if not behind:
        return f"No method with a proved rate falls more slowly than it, within the intervals. {runs}"
    return (
        f"Slower than proved, at these constants and horizons: {'; '.join(behind)}. The proofs leave out logarithms "
        f"and speak of small ε, so that is no contradiction, but no confirmation either. {runs}"
    )


def _against(slope: Interval, proved: float) -> str:
    if slope.high < proved:
        return "steeper than"
    return "flatter than" if slope.low > proved else "not to be told from"
