"""Looking at one's own problem: whether its derivatives are right, and what the theory's constants are there."""

from adambo.diagnostics.constants import EstimatedConstants, estimate_constants
from adambo.diagnostics.hypergradient import HypergradientCheck, check_hypergradient
from adambo.diagnostics.lanczos import Extremes, extreme_eigenvalues
from adambo.diagnostics.lower_error import LowerErrorMonitor
from adambo.diagnostics.monitor_warnings import (
    LowerLevelDoesNotTrack,
    MonitorRecord,
    MonitorWarning,
    NeumannStepTooLarge,
    UpperSmoothnessExplodes,
    UpperStepTooLarge,
)
from adambo.diagnostics.noise import Estimate
from adambo.diagnostics.smoothness import SmoothnessProbe
from adambo.diagnostics.smoothness_fit import SmoothnessFit, SmoothnessRecord, fit_smoothness
from adambo.diagnostics.suggest import suggest
from adambo.diagnostics.suggestion import Suggestion

__all__ = [
    "Estimate",
    "EstimatedConstants",
    "Extremes",
    "HypergradientCheck",
    "LowerErrorMonitor",
    "LowerLevelDoesNotTrack",
    "MonitorRecord",
    "MonitorWarning",
    "NeumannStepTooLarge",
    "SmoothnessFit",
    "SmoothnessProbe",
    "SmoothnessRecord",
    "Suggestion",
    "UpperSmoothnessExplodes",
    "UpperStepTooLarge",
    "check_hypergradient",
    "estimate_constants",
    "extreme_eigenvalues",
    "fit_smoothness",
    "suggest",
]
