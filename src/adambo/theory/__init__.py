"""The constants, parameters and bounds of AdamBO's convergence theorem, with the repairs that its proof needs.

Good for orders in ε, and for tests: the parameters that the theorem asks for are far too small to run with.
"""

from adambo.theory.constants import DerivedConstants, LowerLevel, ProblemConstants, RunConstants, Statement
from adambo.theory.lower_error import (
    contraction_error_bound,
    printed_error_bound,
    recursion_error_bound,
    steps_within,
    uniform_error_bound,
    unrolled_recursion,
    warm_start_bound,
)
from adambo.theory.momentum import averages, averaging_weights, momentum_weight, step_bound
from adambo.theory.neumann import hypergradient_bias_bound, neumann_bias_bound, neumann_norm_bound
from adambo.theory.parameters import ProofConstants, TheoremParameters, oracle_calls, theorem_parameters

__all__ = [
    "DerivedConstants",
    "LowerLevel",
    "ProblemConstants",
    "ProofConstants",
    "RunConstants",
    "Statement",
    "TheoremParameters",
    "averages",
    "averaging_weights",
    "contraction_error_bound",
    "hypergradient_bias_bound",
    "momentum_weight",
    "neumann_bias_bound",
    "neumann_norm_bound",
    "oracle_calls",
    "printed_error_bound",
    "recursion_error_bound",
    "step_bound",
    "steps_within",
    "theorem_parameters",
    "uniform_error_bound",
    "unrolled_recursion",
    "warm_start_bound",
]
