"""Lower losses whose derivatives in `y` are known in closed form, read from the graph that autograd has recorded.

A linear head under a cross-entropy or a squared loss, and an L2 regulariser, need no second backward pass: their
gradients, Hessian products and cross derivatives are a few matrix products. `read` finds such terms in a loss; what it
does not know is left to autograd. Both give the same numbers to rounding.
"""

from adambo.closed_form.descent import descended
from adambo.closed_form.form import ClosedForm
from adambo.closed_form.programmes import Programmes
from adambo.closed_form.reading import Reading, read
from adambo.closed_form.series import Solved, solved

__all__ = ["ClosedForm", "Programmes", "Reading", "Solved", "descended", "read", "solved"]
