"""Saving and loading a solver: all that the next steps depend on, checked before anything is loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from adambo.errors import StateError
from adambo.vectors import copy_

if TYPE_CHECKING:
    from adambo.algorithms.base import Algorithm


def saved(solver: Algorithm) -> dict[str, Any]:
    """The state of `solver`, copied: plain containers, numbers and tensors."""
    return copy.deepcopy(
        {
            "algorithm": type(solver).__name__,
            "steps": solver.steps,
            "x": [p.detach() for p in solver.problem.x],
            "y": [p.detach() for p in solver.problem.y],
            "upper_optimizer": solver.upper_optimizer.state_dict(),
            "lower_optimizer": solver.lower_optimizer.state_dict(),
            "inverse": None
            if solver.inverse is None
            else {"kind": type(solver.inverse).__name__, "state": solver.inverse.state_dict()},
            "buffers": list(solver.problem.buffers),
            "ledger": solver.ledger.as_dict(),
            "memory": solver.memory.state_dict(),
            "own": solver.own_state(),
        }
    )


def load(solver: Algorithm, state: dict[str, Any]) -> None:
    """Make `state` that of `solver`, or leave it as it is and say why not."""
    with _explained():
        _check(solver, state)
    before = saved(solver)
    try:
        with _explained():
            _write(solver, state)
    except StateError:
        _write(solver, before)
        raise


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except StateError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise StateError(
            f"The state cannot be read: {type(error).__name__}: {error}. It is damaged, or was not made by "
            "solver.state_dict(); nothing was loaded."
        ) from error


def check_forms(tensors: Sequence[Tensor], like: Sequence[Tensor], name: str) -> None:
    """Refuse a part of a state whose shapes or types are not those of `like`."""
    mine, theirs = _forms(like), _forms(tensors)
    if mine != theirs:
        raise StateError(f"The state has {name} as {theirs}, but this problem needs {mine}.")


def _check(solver: Algorithm, state: dict[str, Any]) -> None:
    names = {
        "algorithm",
        "steps",
        "x",
        "y",
        "upper_optimizer",
        "lower_optimizer",
        "inverse",
        "buffers",
        "ledger",
        "memory",
        "own",
    }
    if not isinstance(state, dict) or set(state) != names:
        came = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"The state of a solver has {sorted(names)}, but this one has {came}. Give what state_dict() returned."
        )
    if state["algorithm"] != type(solver).__name__:
        raise StateError(
            f"This state was saved by {state['algorithm']}; it cannot continue as {type(solver).__name__}."
        )
    for name in ("x", "y", "buffers"):
        mine, theirs = (_forms(part) for part in (getattr(solver.problem, name), state[name]))
        if mine != theirs:
            raise StateError(
                f"The state has {name} as {theirs}, but the problem has {mine}. Build the problem with the same "
                "model before loading."
            )
    for name in ("upper_optimizer", "lower_optimizer"):
        _check_optimizer(getattr(solver, name), state[name], name)
    if not isinstance(state["steps"], int) or state["steps"] < 0:
        raise StateError(f"The state has steps={state['steps']!r}, which is no number of steps.")
    kind = None if state["inverse"] is None else state["inverse"]["kind"]
    if kind != (None if solver.inverse is None else type(solver.inverse).__name__):
        raise StateError(
            f"The state was saved with inverse={kind}, but this solver has {type(solver.inverse).__name__}."
        )


def _forms(tensors: Sequence[Tensor]) -> list[str]:
    return [f"{tuple(t.shape)} of {t.dtype}" for t in tensors]


def _check_optimizer(optimizer: Optimizer, state: dict[str, Any], name: str) -> None:
    mine, saved = (
        [(len(group["params"]), sorted(group)) for group in groups]
        for groups in (optimizer.param_groups, state["param_groups"])
    )
    if mine != saved:
        raise StateError(
            f"The state's {name} has {saved} (parameters per group, and their settings), but this "
            f"{type(optimizer).__name__} has {mine}. Build the solver with the same optimiser; attach "
            "schedulers before loading, if there were any (they add initial_lr)."
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, own in state["state"].items():
        for key, value in own.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise StateError(
                    f"The state's {name} holds {key} of shape {tuple(value.shape)} for a parameter of shape "
                    f"{tuple(parameters[index].shape)}. It belongs to another model."
                )


def _write(solver: Algorithm, state: dict[str, Any]) -> None:
    state = copy.deepcopy(state)
    if solver.inverse is not None:
        solver.inverse.load_state_dict(state["inverse"]["state"], solver.problem.y)
    solver.memory.load_state_dict(state["memory"])
    solver.load_own_state(state["own"])
    solver.upper_optimizer.load_state_dict(state["upper_optimizer"])
    solver.lower_optimizer.load_state_dict(state["lower_optimizer"])
    solver.ledger.load(state["ledger"])
    copy_(solver.problem.x, state["x"])
    copy_(solver.problem.y, state["y"])
    copy_(solver.problem.buffers, state["buffers"])
    solver.steps = int(state["steps"])
    solver.guard.clear()
