"""The constants, parameters and bounds of AdamBO's convergence theorem, with the repairs that its proof needs.

Good for orders in ε, and for tests: the parameters that the theorem asks for are far too small to run with.

Where statements of the paper had to change, and where that is said:

the mean of ‖∇Φ‖², not of ‖∇Φ‖, is at most ε²                      TheoremParameters.conclusion
β ≤ μ/(4 l_{g,1}), which γ ≤ 1/(2 l_{g,1}) asks for                theorem_parameters, LowerLevel
every G(·; ζ) is strongly convex                                   ProblemConstants, neumann_bias_bound
every ∇x F(·; ξ) is smooth, ‖∇y F(x, y*(x); ξ)‖ ≤ l_{f,0}          ProblemConstants, step_bound
the closed form of the lower-level error does not follow           printed_error_bound, contraction_error_bound
its moments are joined by Hölder's inequality, with K L² ≤ β       recursion_error_bound
x may depend on the samples of y                                   recursion_error_bound
‖y − y*‖ ≤ r is not assumed: a record ends where it fails          steps_within
"""

from adambo.theory.checks import Statement
from adambo.theory.constants import DerivedConstants, LowerLevel, ProblemConstants, RunConstants
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
