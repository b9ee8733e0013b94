"""The figure of the study `stale-heads`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adambo.report.palette import BLUE, GOLD, GREEN, PLUM, VERMILION, ramp
from adambo.studies.interval import Interval, geometric
from adambo.studies.stale_heads_runs import LOWER_RATES, LOWER_STEPS, DigitsSize
from adambo.studies.stale_heads_sheets import DIGITS, Cells, Digits, accuracy, at, gradient, late, left_at_rest

COLOURS = (BLUE[0], GOLD[0], PLUM[0])
DIGITS_LOOKS = ((VERMILION[0], "-", "s"), (BLUE[0], "-", "o"), (GREEN[0], "--", "^"))


def draw(figure: Figure, of: Mapping[int, Cells], digits: Digits, size: DigitsSize) -> None:
    (visits, before, after), (gradients, accuracies, errors) = figure.subplots(2, 3)
    small = LOWER_RATES[1]
    _visits(visits, of[max(of)], small, max(of))
    _errors(before, of, "before", small, "current")
    _label(before, f"Error before a visit, γ = {small:g}", "‖y_k − y_k*(x)‖ before the lower steps")
    _errors(after, of, "after", small, "updated")
    _label(after, f"Error after the lower steps, γ = {small:g}", "‖y_k − y_k*(x)‖ after the lower steps")
    for colour, (K, cells) in zip(COLOURS, of.items(), strict=True):
        for place, line in (("current", "-"), ("updated", "--")):
            found = [gradient(cells, small, N, place) for N in LOWER_STEPS]
            _band(gradients, found, colour, line, "o", f"K = {K}, {place}")
    _label(gradients, f"Gradient in the last third, γ = {small:g}", "mean ‖∇Φ(x)‖ / that at the start")
    _with_legend_above(gradients, 2)
    _digits(accuracies, errors, digits, size)


def _with_legend_above(place: Axes, columns: int) -> None:
    """A logarithmic axis with room for the legend above the curves."""
    place.set_yscale("log")
    low, high = place.get_ylim()
    place.set_ylim(low, high * (high / low) ** 0.35)
    place.legend(frameon=False, fontsize=7, ncols=columns, loc="upper right")


def _visits(place: Axes, cells: Cells, rate: float, K: int) -> None:
    """Root mean square over tasks at each visit; the bound with the drifts of the run is dashed."""
    length = min(len(cell["curves"]["before"]) for cell in cells)
    for N, style in zip(LOWER_STEPS, ramp(len(LOWER_STEPS)), strict=True):
        column = at(rate, N, "current")
        for name, line in (("before", "-"), ("bound", "--")):
            mean = [geometric([c["curves"][name][n][column] for c in cells]).mean for n in range(length)]
            label = f"N = {N}" if name == "before" else None
            place.plot(range(1, length + 1), mean, color=style.light, ls=line, lw=1.3, label=label)
    place.set_xlabel("visit to the task (dashed: bound)")
    place.set_ylabel("‖y_k − y_k*(x)‖ before the visit")
    place.set_title(f"Errors by visit, K = {K}, γ = {rate:g}", loc="left", fontsize=9.5)
    place.grid(alpha=0.25, linewidth=0.6)
    _with_legend_above(place, 3)


def _errors(place: Axes, of: Mapping[int, Cells], name: str, rate: float, where: str) -> None:
    for colour, (K, cells) in zip(COLOURS, of.items(), strict=True):
        found = [late(cells, name, rate, N, where) for N in LOWER_STEPS]
        _band(place, found, colour, "-", "o", f"K = {K}")
        for predicted, line in (("bound", "--"), ("estimate", ":")):
            shrink = [(1 - rate) ** N if name == "after" else 1.0 for N in LOWER_STEPS]
            mean = [q * late(cells, predicted, rate, N, where).mean for q, N in zip(shrink, LOWER_STEPS, strict=True)]
            place.plot(LOWER_STEPS, mean, color=colour, ls=line, lw=1.1)
    place.plot([], [], color="0.4", ls="--", lw=1.1, label="bound")
    place.plot([], [], color="0.4", ls=":", lw=1.1, label="estimate")
    _with_legend_above(place, 3)


def _digits(accuracies: Axes, errors: Axes, digits: Digits, size: DigitsSize) -> None:
    for (rate, where), (colour, line, marker) in zip(DIGITS, DIGITS_LOOKS, strict=True):
        runs = [digits[(rate, where, N)] for N in LOWER_STEPS]
        for split, dash in (("test", line), ("train", ":")):
            known = [(N, accuracy(each, split)) for N, each in zip(LOWER_STEPS, runs, strict=True)]
            label = f"γ = {rate:g}, {where}" if split == "test" else None
            _points(accuracies, known, colour, dash, marker, label)
        known = [(N, accuracy(each, "head error")) for N, each in zip(LOWER_STEPS, runs, strict=True)]
        _points(errors, known, colour, line, marker, f"γ = {rate:g}, {where}")
    for rate, colour in zip(LOWER_RATES, (VERMILION[0], BLUE[0]), strict=True):
        rest = [left_at_rest(rate, N, size) for N in LOWER_STEPS]
        errors.plot(LOWER_STEPS, rest, color=colour, ls=":", lw=1.1)
    errors.plot([], [], color="0.4", ls=":", lw=1.1, label="slowest direction, x at rest")
    accuracies.plot([], [], color="0.4", ls=":", label="train")
    for place, title, y in (
        (accuracies, "Digits: final accuracy", "accuracy (solid, dashed: test)"),
        (errors, "Digits: error of the heads at the end", "‖y_k − y_k*(x)‖ / ‖y_k*(x)‖"),
    ):
        _label(place, title, y)
        place.legend(frameon=False, fontsize=7, loc="lower right" if place is accuracies else "lower left")


def _points(
    place: Axes, known: Sequence[tuple[int, Interval | None]], colour: str, line: str, marker: str, label: str | None
) -> None:
    kept = [(N, found) for N, found in known if found is not None]
    _band(place, [found for _, found in kept], colour, line, marker, label, [N for N, _ in kept])


def _band(
    place: Axes, found: Sequence[Interval], colour: str, line: str, marker: str, label: str | None,
    x: Sequence[int] = LOWER_STEPS,
) -> None:  # fmt: skip
    place.plot(x, [f.mean for f in found], color=colour, ls=line, marker=marker, ms=4, lw=1.3, label=label)
    place.fill_between(x, [f.low for f in found], [f.high for f in found], color=colour, alpha=0.10, lw=0)


def _label(place: Axes, title: str, y: str) -> None:
    place.set_xscale("log")
    place.set_xticks(LOWER_STEPS, [str(N) for N in LOWER_STEPS])
    place.minorticks_off()
    place.set_xlabel("lower steps per visit, N")
    place.set_ylabel(y)
    place.set_title(title, loc="left", fontsize=9.5)
    place.grid(alpha=0.25, linewidth=0.6)
