"""Problems with known answers, and the contract that every algorithm passes: for testing your own algorithm.

    class TestMine(adambo.testing.AlgorithmContract):
        def make(self, problem, **settings):
            return Mine(problem, **settings)

runs the whole contract under pytest.
"""

import sys

if sys.modules.get("pytest") is not None:  # then its messages show the values in the contract's assertions
    sys.modules["pytest"].register_assert_rewrite("adambo.testing.contract")

from adambo.testing.auc import AUC
from adambo.testing.comparison import raises, same
from adambo.testing.contract import AlgorithmContract
from adambo.testing.known_problem import KnownProblem, divided, flat, normal, spd
from adambo.testing.quadratic import AtRest, Quadratic, StochasticQuadratic
from adambo.testing.softmax_head import RidgeSoftmaxHead
from adambo.testing.task_quadratics import TaskQuadratics
from adambo.testing.unbounded_smooth import StochasticUnboundedSmooth, UnboundedSmooth

__all__ = [
    "AUC",
    "AlgorithmContract",
    "AtRest",
    "KnownProblem",
    "Quadratic",
    "RidgeSoftmaxHead",
    "StochasticQuadratic",
    "StochasticUnboundedSmooth",
    "TaskQuadratics",
    "UnboundedSmooth",
    "divided",
    "flat",
    "normal",
    "raises",
    "same",
    "spd",
]
