"""Bilevel optimisation in PyTorch: AdamBO and fifteen others, hypergradients at the price of a backward pass."""

from adambo import algorithms
from adambo.algorithms import *  # noqa: F403  (what it exports is listed there, once)
from adambo.diagnostics import HypergradientCheck, check_hypergradient
from adambo.draw import Draw, Needs
from adambo.errors import (
    AdamboError,
    CurvatureError,
    NonFiniteError,
    ProblemError,
    SampleError,
    SecondDerivativeError,
    SettingError,
    StateError,
)
from adambo.inverse import ConjugateGradient, Exact, Inverse, LinearSystem, Neumann
from adambo.kernels import twice_differentiable
from adambo.ledger import Ledger
from adambo.lower_graph import plain_autograd
from adambo.point import Point
from adambo.problem import EncoderHeadProblem, Problem
from adambo.stream import DrawStream, draws
from adambo.version import __version__

__all__ = [
    *algorithms.__all__,
    "AdamboError",
    "ConjugateGradient",
    "CurvatureError",
    "Draw",
    "DrawStream",
    "EncoderHeadProblem",
    "Exact",
    "HypergradientCheck",
    "Inverse",
    "Ledger",
    "LinearSystem",
    "Needs",
    "Neumann",
    "NonFiniteError",
    "Point",
    "Problem",
    "ProblemError",
    "SampleError",
    "SecondDerivativeError",
    "SettingError",
    "StateError",
    "__version__",
    "check_hypergradient",
    "draws",
    "plain_autograd",
    "twice_differentiable",
]
