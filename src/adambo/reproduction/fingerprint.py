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
    legends = [legend for part in (drawing, *drawing.subfigs) for legend in part.legends]
    named = [text.get_text() for legend in legends for text in legend.get_texts()]
    parts = [drawing.get_suptitle(), *named, *(part for place in drawing.axes for part in _parts(place))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _parts(place: Axes) -> Iterator[str]:
    yield from (place.get_title(), place.get_xlabel(), place.get_ylabel())
    yield from (text.get_text() for text in place.texts)
    for line in place.lines:
        yield " ".join(_rounded(line.get_xydata()))
    for band in place.collections:  # in which order a band is gone around is a matter of matplotlib's version
        yield " ".join(sorted({point for path in band.get_paths() for point in _rounded(path.vertices)}))


def _rounded(points: object) -> list[str]:
    pairs = np.asarray(points, dtype=float).reshape(-1, 2)
    return [f"{x:.{DIGITS}g},{y:.{DIGITS}g}" for x, y in pairs]
