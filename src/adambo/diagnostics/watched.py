"""What a monitor can watch, and on which draw."""

from __future__ import annotations

from adambo.algorithms.base import Algorithm
from adambo.algorithms.meta_learning import MetaLearning
from adambo.draw import Draw
from adambo.errors import SampleError, SettingError


def check_solver(solver: Algorithm) -> None:
    """Refuse what has no lower level that could be measured in this process."""
    if not isinstance(solver, Algorithm):
        raise SettingError(f"LowerErrorMonitor watches a solver, such as AdamBO, but came {type(solver).__name__}.")
    if isinstance(solver, MetaLearning):
        raise SettingError(
            f"{type(solver).__name__} adapts copies that it throws away after each step: there is no lower variable "
            "whose error could be measured. Watch a bilevel method instead."
        )
    problem = solver.problem
    if problem.x_is_sharded or (problem.tasks is not None and problem.processes.active):
        raise SettingError(
            "LowerErrorMonitor needs all of x, and all rows of y, on one process, but x is in pieces (FSDP2), or there "
            "are tasks on several processes. Watch the same model in a run of one process."
        )


def reference_of(draw: Draw, solver: Algorithm) -> Draw:
    """One batch of each level, in all roles; refuses a draw that lacks one."""
    if not isinstance(draw, Draw) or not draw.upper or not (draw.cross or draw.lower):
        raise SampleError(
            "LowerErrorMonitor needs a reference draw with an upper and a lower batch: Draw(upper=(batch,), "
            "cross=(batch,)). Larger batches than those of the steps make sharper measurements."
        )
    lower = draw.cross[0] if draw.cross else draw.lower[0]
    products = 1 if solver.inverse is None else max(1, solver.inverse.needs.hessian)
    return Draw((draw.upper[0],), (lower,), (lower,), (lower,) * products, level=0, seed=draw.seed)
