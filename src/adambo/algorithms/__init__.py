"""One paper, one file. `ALL` lists them by name; each class says in `summary` and `cost` what it is."""

from adambo.algorithms.adambo import AdamBO
from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info
from adambo.algorithms.slip import SLIP
from adambo.algorithms.sustain import SUSTAIN

__all__ = [
    "SLIP",
    "SUSTAIN",
    "AdamBO",
    "Algorithm",
    "Info",
]

ALL: dict[str, type[Algorithm]] = {name: globals()[name] for name in __all__ if name not in ("Algorithm", "Info")}
