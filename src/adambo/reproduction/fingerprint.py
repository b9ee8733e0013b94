"""What a figure shows, in one line: so that a picture can be held against the records without drawing its pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DIGITS = 6  # fonts, pixels and the last bits of a mean may differ from machine to machine


def fingerprint(drawing: Figure) -> str:
    """Of all lines, bands and words in it.

    Example:
        >>> first, second = Figure(), Figure()
        >>> _ = first.subplots().plot([0, 1], [1, 2]), second.subplots().plot([0, 1], [1, 2.1])
        >>> fingerprint(first) == fingerprint(first), fingerprint(first) == fingerprint(second)
        (True, False)
    """
    legends = [text.get_text() for legend in drawing.legends for text in legend.get_texts()]
    parts = [drawing.get_suptitle(), *legends, *(part for place in drawing.axes for part in _parts(place))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _parts(place: Axes) -> Iterator[str]:
    yield from (place.get_title(), place.get_xlabel(), place.get_ylabel())
    yield from (text.get_text() for text in place.texts)
    for line in place.lines:
        yield _rounded(line.get_xydata())
    for band in place.collections:
        for path in band.get_paths():
            yield _rounded(path.vertices)


def _rounded(points: object) -> str:
    return " ".join(f"{value:.{DIGITS}g}" for value in np.ravel(np.asarray(points, dtype=float)))
