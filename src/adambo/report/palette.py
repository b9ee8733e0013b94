"""How an algorithm looks: its written name and a colour, a dash and a marker of its own, in every figure and page.

The eight hues are those of Okabe and Ito, which stay apart for people who confuse red and green; yellow and black give
way to tones that can be seen on white and on dark paper. Where two algorithms share a hue, dash and marker differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

VERMILION = ("#d55e00", "#ff8a45")
BLUE = ("#0068a8", "#5aa9ec")
GREEN = ("#00875f", "#35c79c")
PURPLE = ("#b3478a", "#ea90c4")
GOLD = ("#b07d00", "#f0c24b")
SKY = ("#2f9fd8", "#9bd8ff")
PLUM = ("#6a3d9a", "#b79bf0")
GREY = ("#4a4a4a", "#d5d5d5")

SOLID: tuple[float, ...] = ()
DASHED = (6.0, 3.0)
DOTTED = (1.5, 2.5)
MIXED = (8.0, 3.0, 1.5, 3.0)
DASHES = (SOLID, DASHED, DOTTED, MIXED)
MARKERS = ("circle", "square", "triangle", "diamond", "down", "star")

# Numbers that one setting takes, from small to large; on white paper from dark to light, on dark paper the other way.
RAMP_LIGHT = ("#3b0f70", "#31588c", "#1f8a8c", "#4a9e3f", "#b07d00")
RAMP_DARK = ("#c3a6ff", "#7fb2ff", "#41d1cb", "#8be27a", "#ffd95a")


class Style(NamedTuple):
    """The look of one curve: its colour on white and on dark paper, its dash in line widths, its marker."""

    light: str
    dark: str
    dash: tuple[float, ...]
    marker: str


ALGORITHMS: dict[str, tuple[str, Style]] = {
    "adambo": ("AdamBO", Style(*VERMILION, SOLID, "circle")),
    "vradambo": ("VR-AdamBO", Style(*VERMILION, DASHED, "square")),
    "maml": ("MAML", Style(*BLUE, SOLID, "square")),
    "anil": ("ANIL", Style(*SKY, SOLID, "triangle")),
    "stocbio": ("StocBiO", Style(*GREEN, SOLID, "diamond")),
    "ttsa": ("TTSA", Style(*GOLD, SOLID, "down")),
    "soba": ("SOBA", Style(*PURPLE, SOLID, "star")),
    "saba": ("SABA", Style(*PLUM, SOLID, "circle")),
    "masoba": ("MA-SOBA", Style(*PURPLE, DASHED, "circle")),
    "slip": ("SLIP", Style(*GREY, SOLID, "square")),
    "borep": ("BO-REP", Style(*BLUE, DASHED, "triangle")),
    "sustain": ("SUSTAIN", Style(*GREEN, DASHED, "down")),
    "vrbo": ("VRBO", Style(*GOLD, DASHED, "diamond")),
    "accbo": ("AccBO", Style(*PLUM, DASHED, "star")),
    "f2sa": ("F2SA", Style(*SKY, DASHED, "circle")),
    "fsla": ("FSLA", Style(*GREY, DASHED, "triangle")),
    "adam": ("Adam", Style(*GREY, DOTTED, "diamond")),
}
# For algorithms of one's own, in the order in which they come.
SPARE = tuple(
    Style(*hue, dash, marker)
    for dash, marker in ((MIXED, "down"), (DOTTED, "star"), (MIXED, "square"), (DOTTED, "circle"))
    for hue in (BLUE, GREEN, GOLD, PURPLE, SKY, PLUM)
)


def written_name(algorithm: str) -> str:
    return ALGORITHMS[algorithm][0] if algorithm in ALGORITHMS else algorithm


def styles(algorithms: Sequence[str]) -> list[Style]:
    """A look for each curve of a group, given the algorithm of each; several of one algorithm share its hue.

    Where all curves are one algorithm, its hue would say nothing: they get a ramp of colours instead.
    """
    if len(algorithms) > 1 and len(set(algorithms)) == 1:
        return ramp(len(algorithms))
    strangers = list(dict.fromkeys(name for name in algorithms if name not in ALGORITHMS))
    taken = {ALGORITHMS[name][1].light for name in algorithms if name in ALGORITHMS}
    # Of each dash and marker, hues that no other curve has come first.
    looks = list(dict.fromkeys((style.dash, style.marker) for style in SPARE))
    spare = sorted(SPARE, key=lambda style: (looks.index((style.dash, style.marker)), style.light in taken))
    chosen, seen = [], dict.fromkeys(algorithms, 0)
    for name in algorithms:
        own = ALGORITHMS[name][1] if name in ALGORITHMS else spare[strangers.index(name) % len(spare)]
        # The first variant has the look of its algorithm, later ones the next dashes and markers.
        turn, seen[name] = seen[name], seen[name] + 1
        chosen.append(
            own._replace(
                dash=DASHES[(DASHES.index(own.dash) + turn) % len(DASHES)],
                marker=MARKERS[(MARKERS.index(own.marker) + turn) % len(MARKERS)],
            )
        )
    return chosen


def ramp(count: int) -> list[Style]:
    places = [index / (count - 1) for index in range(count)]
    return [
        Style(between(RAMP_LIGHT, place), between(RAMP_DARK, place), DASHES[index % 4], MARKERS[index % 6])
        for index, place in enumerate(places)
    ]


def between(colours: Sequence[str], place: float) -> str:
    """The colour at `place` from 0 to 1 along the line of colours."""
    left = min(int(place * (len(colours) - 1)), len(colours) - 2)
    share = place * (len(colours) - 1) - left
    ends = [[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in colours[left : left + 2]]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(*ends, strict=True))
