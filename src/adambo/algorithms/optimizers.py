"""The torch.optim objects of a solver: building the usual ones, and checking those a user brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from adambo.errors import SettingError
from adambo.processes import is_sharded
from adambo.vectors import Vector


def sgd(parameters: Vector, lr: float, name: str = "lower_lr") -> SGD:
    """Plain SGD; fused on CUDA, where the fused kernel can be masked without a synchronisation."""
    return SGD(parameters, lr=checked_rate(lr, name), fused=fused(parameters))


def checked_rate(lr: float, name: str) -> float:
    if not (isinstance(lr, int | float) and 0 <= lr < float("inf")):
        raise SettingError(f"{name}={lr!r} is not a step size: give a finite number, 0 or larger.")
    return lr


def fused(parameters: Vector) -> bool | None:
    """What to say to torch.optim about its fused kernels."""
    return True if all(p.is_cuda and not is_sharded(p) for p in parameters) else None


def fitting(optimizer: Optimizer, parameters: Vector, name: str, variable: str) -> Optimizer:
    """`optimizer`, if it moves just these parameters."""
    if not isinstance(optimizer, Optimizer):
        raise SettingError(f"{name} is a {type(optimizer).__name__}, not a torch.optim.Optimizer.")
    if isinstance(optimizer, LBFGS):
        raise SettingError(
            f"{name}=LBFGS calls its loss several times per step; a stochastic method cannot offer that."
        )
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if {id(p) for p in held if p.requires_grad} != {id(p) for p in parameters}:
        raise SettingError(
            f"{name} holds {len(held)} tensors which are not the {len(parameters)} of {variable}. It must move all of "
            f"{variable} and nothing else: build it from problem.{variable}."
        )
    return optimizer


def check_plain(optimizer: Optimizer) -> None:
    """Refuse what would change rows of a stacked `y` whose tasks are not in the batch."""
    plain = isinstance(optimizer, SGD) and all(
        not (group["momentum"] or group["weight_decay"] or group["maximize"]) for group in optimizer.param_groups
    )
    if not plain:
        raise SettingError(
            f"lower_optimizer={type(optimizer).__name__} keeps or decays something for every row of a stacked y, also "
            "for tasks that are not in the batch. Use torch.optim.SGD without momentum and weight decay."
        )


def has_hooks(optimizer: Optimizer) -> bool:
    """Whether somebody wants to see every step of it."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks)


def plain_rate(optimizer: Optimizer) -> float | None:
    """The step size of an optimiser that only goes against the gradient, at one rate; None for any other."""
    if type(optimizer) is not SGD or has_hooks(optimizer):
        return None
    rates = {group["lr"] for group in optimizer.param_groups}
    extras = any(group[name] for group in optimizer.param_groups for name in ("momentum", "weight_decay", "maximize"))
    rate = rates.pop() if len(rates) == 1 else None
    return float(rate) if isinstance(rate, int | float) and not extras else None


def optimizer_state(
    optimizer: Optimizer, parameters: Vector, name: str, kept: Callable[[dict[str, Any]], float] | None = None
) -> Vector:
    """What `optimizer` keeps under `name`; without the bias of a zero start, if `kept` says how much of it is kept."""
    state = optimizer.state
    if kept is None:
        return [state[p][name] for p in parameters]
    share = {p: kept(group) for group in optimizer.param_groups for p in group["params"]}
    return [state[p][name] / (1 - share[p] ** state[p]["step"].double()) for p in parameters]
