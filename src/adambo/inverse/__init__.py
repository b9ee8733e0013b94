"""Estimates of z = [∇²yy g]⁻¹ ∇y f from Hessian-vector products."""

from adambo.inverse.base import Inverse
from adambo.inverse.conjugate_gradient import ConjugateGradient
from adambo.inverse.exact import Exact
from adambo.inverse.linear_system import LinearSystem
from adambo.inverse.neumann import Neumann

__all__ = ["ConjugateGradient", "Exact", "Inverse", "LinearSystem", "Neumann"]
