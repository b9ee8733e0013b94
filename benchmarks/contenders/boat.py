"""BOAT (Liu et al.; PyPI boat-torch): `Problem.run_iter` with gm_op NGD and na_op NS or CG.

BOAT takes the losses as dotted names of functions, and the step of its Neumann series is the learning rate of the
lower optimiser. At the end of a step it computes both losses once more and writes their history to a file, here to
nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar

import torch
from measuring import Step
from torch import Tensor, nn
from workloads import Workload

from contenders.contender import Contender, Settings

Feed = dict[str, Any]


def upper_loss(
    feed: Feed, upper_model: nn.Module, lower_model: nn.Module, params: Sequence[Tensor] | None = None, **of: Workload
) -> Tensor:
    workload = of["workload"]
    y = list(lower_model.parameters()) if params is None else params
    return workload.upper(workload.seen(feed["batch"]), y, feed["batch"])


def lower_loss(
    feed: Feed, upper_model: nn.Module, lower_model: nn.Module, params: Sequence[Tensor] | None = None, **of: Workload
) -> Tensor:
    workload = of["workload"]
    y = list(lower_model.parameters()) if params is None else params
    return workload.lower(workload.seen(feed["batch"]), y, feed["batch"])


class Boat(Contender):
    """na_op NS: a Neumann series of k products."""

    name = "BOAT, NS"
    package = ("boat-torch", "boat_torch")
    operation: ClassVar[str] = "NS"

    def estimator(self, settings: Settings) -> str:
        return f"Neumann, {settings.terms} terms, step tied to the lower rate"

    def build(self, workload: Workload, settings: Settings) -> Step:
        import boat_torch

        x, y = workload.x, workload.y
        config = {
            "fo_op": None,
            "gm_op": ["NGD"],
            "na_op": [self.operation],
            "lower_level_model": y,
            "upper_level_model": x,
            "lower_level_var": list(y.parameters()),
            "upper_level_var": list(x.parameters()),
            "lower_level_opt": torch.optim.SGD(y.parameters(), lr=settings.lower_lr),
            "upper_level_opt": settings.optimizer_of(x.parameters()),
            "lower_iters": settings.lower_steps,
            "device": "cpu",
            "CG": {"k": settings.products(), "tolerance": 1e-10},
            "GDA": {"alpha_init": 0.0, "alpha_decay": 0.5},
            "RGT": {"truncate_iter": 0},
            "accumulate_grad": False,
            "copy_last_param": True,
            "return_grad": False,
            "loss_log_path": os.devnull,
        }
        losses = {
            f"{level}_level_loss": {"function": f"{__name__}.{level}_loss", "params": {"workload": workload}}
            for level in ("upper", "lower")
        }
        problem = boat_torch.Problem(config, losses)
        problem.build_ll_solver()
        problem.build_ul_solver()
        upper_feed, lower_feed = {"batch": workload.upper_batch}, {"batch": workload.lower_batch}
        steps = count()
        return lambda: problem.run_iter(lower_feed, upper_feed, current_iter=next(steps))


class BoatCG(Boat):
    name = "BOAT, CG"
    operation = "CG"

    def estimator(self, settings: Settings) -> str:
        return f"conjugate gradients, {settings.products()} products"

    def terms_for_accuracy(self, dimensions: int) -> int:
        return dimensions + 1
