"""One paper, one file."""

from adambo.algorithms.adambo import AdamBO
from adambo.algorithms.base import Algorithm
from adambo.algorithms.info import Info

__all__ = ["AdamBO", "Algorithm", "Info"]
