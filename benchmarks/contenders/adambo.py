"""This library, as its README uses it."""

from __future__ import annotations

import torch
from measuring import Step
from torch import Tensor
from workloads import Batch, Workload

from adambo import AdamBO, EncoderHeadProblem, Neumann, Problem
from contenders.contender import Contender, Settings


def problem_of(workload: Workload) -> Problem:
    """The workload as a problem of this library."""
    x, y = workload.x, list(workload.y.parameters())
    if not workload.has_encoder:
        return Problem(
            upper=lambda batch: workload.upper(workload.seen(batch), y, batch),
            lower=lambda batch: workload.lower(workload.seen(batch), y, batch),
            x=x,
            y=y,
        )
    tasks = None if workload.tasks is None else torch.arange(workload.tasks)

    def heads() -> list[Tensor]:
        return y if tasks is None else [table[tasks] for table in y]

    def upper(features: Tensor, batch: Batch) -> Tensor:
        return workload.upper(features, heads(), batch)

    def lower(features: Tensor, batch: Batch) -> Tensor:
        return workload.lower(features, heads(), batch)

    return EncoderHeadProblem(
        workload.seen, upper, lower, x, y, None if tasks is None else lambda batch: tasks, concatenate=True
    )


class Adambo(Contender):
    name = "adambo"
    package = ("adambo", "adambo")
    at = "current"

    def estimator(self, settings: Settings) -> str:
        return f"Neumann, {settings.terms} terms, automatic step"

    def build(self, workload: Workload, settings: Settings) -> Step:
        problem = problem_of(workload)
        make = settings.upper_optimizer
        solver = AdamBO(
            problem,
            lr=settings.lr,
            lower_lr=settings.lower_lr,
            inverse=Neumann(terms=settings.terms),
            lower_steps=settings.lower_steps,
            upper_optimizer=None if make is None else make(problem.x),
        )
        return lambda: solver.step(workload.upper_batch, workload.lower_batch)
