"""Looking at one's own problem: whether its derivatives are right, and what the theory's constants are there."""

from adambo.diagnostics.hypergradient import HypergradientCheck, check_hypergradient
from adambo.diagnostics.smoothness import SmoothnessProbe
from adambo.diagnostics.smoothness_fit import SmoothnessFit, SmoothnessRecord, fit_smoothness

__all__ = [
    "HypergradientCheck",
    "SmoothnessFit",
    "SmoothnessProbe",
    "SmoothnessRecord",
    "check_hypergradient",
    "fit_smoothness",
]
