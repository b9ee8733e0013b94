"""Looking at one's own problem: whether its derivatives are right, and what the theory's constants are there."""

from adambo.diagnostics.hypergradient import HypergradientCheck, check_hypergradient

__all__ = ["HypergradientCheck", "check_hypergradient"]
