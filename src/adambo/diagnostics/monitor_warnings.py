"""The warnings of `LowerErrorMonitor`, and when each of them is due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

WINDOW = 50  # steps in which an error is compared with itself
GROWTH = 4.0  # of the lower error in that window; tracking with noise stays well below a factor of two
FOLLOWED = 0.5  # part of its target's way that a lower level must have made to be said to track
MATTERS = 0.5  # part of the first hypergradient: an error of y that changes the hypergradient by less does no harm
DIVERGES = 2.0  # step · curvature, from which on every factor of a series, and every lower step, expands
MANY = 1e6  # times, beyond which a ratio says how small the first value was
USELESS = 1.0  # residual of z = 0: a z with a larger one is worse than none
NOISE = 2.0  # a step's own hypergradient, in true ones, that is made of noise
UPHILL = 3.0  # hypergradient norms, in first ones, with which an upper loss above its first value is not noise
RISE = 0.1  # of the first upper loss, by which one must be above it to climb; less is circling around an optimum
STEEPER = 4.0  # local smoothness, in first ones, from which on it is not the same problem any more


class MonitorWarning(RuntimeWarning):
    """A run shows signs of failing, before its losses are NaN."""


class LowerLevelDoesNotTrack(MonitorWarning):
    """y falls behind y*(x), and the hypergradient is wrong for it."""


class NeumannStepTooLarge(MonitorWarning):
    """The series for z, or the iteration on z, expands where it should contract."""


class UpperStepTooLarge(MonitorWarning):
    """The upper loss climbs above where it began, with growing hypergradients."""


class UpperSmoothnessExplodes(MonitorWarning):
    """The same, in a region where hypergradients change many times faster than where the run began."""


@dataclass(frozen=True)
class MonitorRecord:
    """One measurement, on the reference draw. What a method does not have, or is not finite, is None.

    Attributes:
        step: The steps made before it.
        upper_loss: f(x, y*(x)), with y*(x) as the monitor found it.
        hypergradient_norm: ‖∇Φ‖ there.
        lower_error: ‖y − y*(x)‖.
        residual: ‖∇²yy g z − ∇y f‖ / ‖∇y f‖ of the solver's z.
        bias: ‖h − ∇Φ‖ / ‖∇Φ‖, where h is the hypergradient with the solver's y and z.
        cosine: Of the angle between h and ∇Φ.
        lower_bias: The part of `bias` that y has: the same, for the exact z at the solver's y.
        x_update, y_update: ‖x_t − x_{t−1}‖ / ‖x_t‖ of the last step, and of y.
        smoothness: ‖∇Φ(x) − ∇Φ(x')‖ / ‖x − x'‖, where x' is the x of the measurement before; at first, a point near x.
        curvature: A lower bound of the largest eigenvalue of ∇²yy g.
        solved: Whether y*(x) and z are as accurate as was asked for; if not, all of the above is in doubt.
    """

    step: int
    upper_loss: float | None
    hypergradient_norm: float | None
    lower_error: float | None
    residual: float | None
    bias: float | None
    cosine: float | None
    lower_bias: float | None
    x_update: float | None
    y_update: float | None
    smoothness: float | None
    curvature: float | None
    solved: bool


class Earlier(NamedTuple):
    """What the lower error is compared with: that of `step`, since when y*(x) has gone `target_moved`."""

    step: int
    lower_error: float
    target_moved: float


class Rates(NamedTuple):
    """The step sizes of a solver; None where it has none of the kind, or is told by nobody.

    `z_setting` says in which setting `z_step` is found. `x_step` is the length of the last step of x, `gradient_norm`
    the norm of the hypergradient that it was made with, `first_gradient_norm` that of the first step.
    """

    lr: float
    lower_lr: float
    lower_steps: int
    z_step: float | None
    z_setting: str
    gradient_norm: float | None
    first_gradient_norm: float | None
    x_step: float | None


Due = list[tuple[type[MonitorWarning], str]]


def due_warnings(now: MonitorRecord, first: MonitorRecord, earlier: Iterable[Earlier], rates: Rates) -> Due:
    """The warnings that the measurement `now` gives reason for, with what they say.

    Args:
        now: The last measurement.
        first: The first one, which gives upper loss, hypergradients and smoothness their scale.
        earlier: Measurements of the lower error in the window.
        rates: Of the solver.
    """
    expands = _series_expands(now, rates)
    if expands is not None:
        return [(NeumannStepTooLarge, expands)]  # whatever else goes wrong comes of it
    climbs, oversteps = _climbs(now, first, rates), _oversteps(now, rates)
    # Steps that overshoot even along a right hypergradient leave the lower level behind; smaller ones are led astray.
    lag = None if climbs and oversteps else _does_not_track(now, first, earlier, rates, climbs)
    if lag is not None:
        return [(LowerLevelDoesNotTrack, lag)]
    if not climbs:
        return []
    if _many_times(now.smoothness, first.smoothness, STEEPER):
        return [(UpperSmoothnessExplodes, _steep(now, first, rates))]
    return [(UpperStepTooLarge, _too_far(now, first, rates))]


def _does_not_track(
    now: MonitorRecord, first: MonitorRecord, earlier: Iterable[Earlier], rates: Rates, climbs: bool
) -> str | None:
    error, bias, norm, scale = now.lower_error, now.lower_bias, now.hypergradient_norm, _scale(first, rates)
    if error is None or bias is None or norm is None or scale is None or bias * norm < MATTERS * scale:
        return None
    if _is_noise(norm * (1 + bias), rates):  # an error of y makes the step's own hypergradient larger, too
        return None
    for then in earlier:
        if error >= GROWTH * then.lower_error and error >= FOLLOWED * then.target_moved and error > 0:
            grew = f"grew {_times(error, then.lower_error)} in {now.step - then.step} steps, to {error:.3g}"
            return _lag(f"{grew}, while y*(x) moved by {then.target_moved:.3g}", bias, now, rates)
    if climbs and bias >= MATTERS:
        return _lag(f"is {error:.3g}, and the upper loss rose {_climb(now, first)}", bias, now, rates)
    return None


def _lag(what: str, bias: float, now: MonitorRecord, rates: Rates) -> str:
    text = (
        f"The lower level does not track: its error ‖y − y*(x)‖ {what}, with lr/lower_lr = {_ratio(rates)}. The "
        f"hypergradient is off by {bias:.0%} for it. "
    )
    curvature = now.curvature or 0.0
    if rates.lower_lr * curvature > DIVERGES:
        return text + (
            f"The lower step itself diverges: lower_lr · curvature = {rates.lower_lr * curvature:.3g}, above 2. Set "
            f"lower_lr to about {1 / curvature:.2g}."
        )
    room = f", with room up to about {1 / curvature:.2g}" if rates.lower_lr * curvature < 0.5 and curvature > 0 else ""
    return text + (
        f"Raise lower_steps (now {rates.lower_steps}) or lower_lr (now {rates.lower_lr:.3g}{room}), or lower lr (now "
        f"{rates.lr:.3g})."
    )


def _series_expands(now: MonitorRecord, rates: Rates) -> str | None:
    if rates.z_step is None or not now.curvature or rates.z_step * now.curvature < DIVERGES:
        return None
    if now.residual is not None and now.residual < USELESS:
        return None  # ∇y f has next to nothing in the directions that expand
    residual = "not finite" if now.residual is None else f"{now.residual:.3g}"
    return (
        f"The step of z is too large: {rates.z_setting} = {rates.z_step:.3g} times the largest curvature of the lower "
        f"loss, {now.curvature:.3g} or more, is {rates.z_step * now.curvature:.3g}. From 2 on the series for z expands "
        f"instead of contracting (the residual of the linear system is {residual}; z = 0 has 1). {_cure(now, rates)}"
    )


def _climbs(now: MonitorRecord, first: MonitorRecord, rates: Rates) -> bool:
    """Whether the upper loss is above its first value, on a slope that is steep, and not made of noise."""
    if now is first or now.upper_loss is None or first.upper_loss is None or now.hypergradient_norm is None:
        return False
    if _is_noise(now.hypergradient_norm, rates):
        return False
    if now.upper_loss <= first.upper_loss + RISE * abs(first.upper_loss):
        return False
    return _many_times(now.hypergradient_norm, _scale(first, rates), UPHILL)


def _scale(first: MonitorRecord, rates: Rates) -> float | None:
    """The size of hypergradients where the run began: of ∇Φ, or of a step's own, with its noise, if that is larger."""
    known = [size for size in (first.hypergradient_norm, rates.first_gradient_norm) if size is not None]
    return max(known, default=None)


def _is_noise(norm: float, rates: Rates) -> bool:
    """Whether the step's own hypergradient is mostly something else than ∇Φ: noise moves x then, and will again."""
    return rates.gradient_norm is not None and rates.gradient_norm > NOISE * norm


def _oversteps(now: MonitorRecord, rates: Rates) -> bool:
    """Whether a step changes the hypergradient by more than twice what it is: then it overshoots, whatever y does."""
    if rates.x_step is None or not rates.gradient_norm or now.smoothness is None:
        return False
    return rates.x_step * now.smoothness >= DIVERGES * rates.gradient_norm


def _too_far(now: MonitorRecord, first: MonitorRecord, rates: Rates) -> str:
    return (
        f"The upper step is too large: since step {first.step}, {now.step - first.step} steps ago, the upper loss rose "
        f"{_climb(now, first)}, while its smoothness, {_shown(now.smoothness)}, is what it was. Steps of the present "
        f"length ({_shown(now.x_update)} of ‖x‖) lead uphill. Lower lr (now {rates.lr:.3g}{_room(now, rates)})."
    )


def _steep(now: MonitorRecord, first: MonitorRecord, rates: Rates) -> str:
    return (
        f"The upper smoothness explodes: since step {first.step}, {now.step - first.step} steps ago, hypergradients "
        f"change {_times(now.smoothness, first.smoothness)} as fast (smoothness {_shown(first.smoothness)} then, "
        f"{_shown(now.smoothness)} now), and the upper loss rose {_climb(now, first)}. A step size that was right at "
        f"the start is too large here: lower lr (now {rates.lr:.3g}{_room(now, rates)}), clip the hypergradient, or "
        "take a method whose step does not grow with it (AdamBO, BOREP, SLIP)."
    )


def _climb(now: MonitorRecord, first: MonitorRecord) -> str:
    return (
        f"from {_shown(first.upper_loss)} to {_shown(now.upper_loss)} and the hypergradient grew "
        f"{_times(now.hypergradient_norm, first.hypergradient_norm)}, to {_shown(now.hypergradient_norm)}"
    )


def _room(now: MonitorRecord, rates: Rates) -> str:
    if not now.smoothness or rates.lr < DIVERGES / now.smoothness:
        return ""
    return f"; gradient descent needs less than 2/smoothness = {DIVERGES / now.smoothness:.2g}"


def _ratio(rates: Rates) -> str:
    return f"{rates.lr / rates.lower_lr:.3g}" if rates.lower_lr > 0 else "infinite"


def _cure(now: MonitorRecord, rates: Rates) -> str:
    if "automatic" in rates.z_setting:
        return f"The curvature has grown since it was measured, because x moves fast: lower lr (now {rates.lr:.3g})."
    or_automatic = ", or to 'auto'" if "Neumann" in rates.z_setting else ""
    return f"Set {rates.z_setting} to {1 / (now.curvature or 1.0):.2g} or less{or_automatic}."


def _many_times(now: float | None, then: float | None, times: float) -> bool:
    return now is not None and then is not None and then > 0 and now >= times * then


def _times(now: float | None, then: float | None) -> str:
    return f"{now / then:.3g}×" if now is not None and then and now < MANY * then else "more than a million times"


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
