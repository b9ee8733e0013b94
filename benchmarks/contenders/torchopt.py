"""TorchOpt (Ren et al., JMLR 2023): `diff.implicit.custom_root` around the lower steps, with one of its linear solvers.

As its tutorials have it, the lower loss is a function of the lower and of the upper parameters, the encoder inside it.
"on features" is the best that the interface allows: the implicit function is that of the features, which autograd then
takes to the parameters of the encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measuring import Step
from torch import Tensor
from torch.func import functional_call
from torch.func import grad as gradient_of
from workloads import Workload

from contenders.contender import Contender, Settings

Tensors = tuple[Tensor, ...]


class TorchOpt(Contender):
    """Neumann series: `solve_inv(ns=True)`."""

    name = "TorchOpt, ns"
    package = ("torchopt", "torchopt")

    def estimator(self, settings: Settings) -> str:
        return f"Neumann, {settings.terms} terms"

    def linear_solver(self, settings: Settings) -> Callable[..., Any]:
        from torchopt.linear_solve import solve_inv

        return solve_inv(ns=True, maxiter=settings.products(), alpha=settings.neumann_step)

    def build(self, workload: Workload, settings: Settings) -> Step:
        from torchopt.diff.implicit import custom_root

        x, y = dict(workload.x.named_parameters()), tuple(workload.y.parameters())
        upper_optimizer = settings.optimizer_of(x.values())
        upper_batch, lower_batch = workload.upper_batch, workload.lower_batch

        def lower_loss(y: Tensors, x_values: Tensors) -> Tensor:
            if workload.has_encoder:
                parameters = dict(zip(x, x_values, strict=True))
                seen = functional_call(workload.x, parameters, (lower_batch[0],))
            else:
                (seen,) = x_values
            return workload.lower(seen, y, lower_batch)

        @custom_root(gradient_of(lower_loss, argnums=0), argnums=1, solve=self.linear_solver(settings))
        def solve(y: Tensors, x_values: Tensors) -> Tensors:
            return lower_steps(workload, settings, workload.seen(lower_batch))

        def step() -> None:
            upper_optimizer.zero_grad()
            solution = solve(y, tuple(x.values()))
            workload.upper(workload.seen(upper_batch), solution, upper_batch).backward()
            upper_optimizer.step()

        return step


def lower_steps(workload: Workload, settings: Settings, seen: Tensor) -> Tensors:
    """Moves y by SGD, at features that are computed once."""
    y, seen = tuple(workload.y.parameters()), seen.detach()
    optimizer = torch.optim.SGD(y, lr=settings.lower_lr)
    for _ in range(settings.lower_steps):
        with torch.enable_grad():
            loss = workload.lower(seen, y, workload.lower_batch)
        optimizer.zero_grad()
        loss.backward(inputs=y)
        optimizer.step()
    return y


class TorchOptOnFeatures(TorchOpt):
    name = "TorchOpt, ns, on features"

    def not_offered(self, workload: Workload) -> str | None:
        return None if workload.has_encoder else "there are no features here"

    def build(self, workload: Workload, settings: Settings) -> Step:
        from torchopt.diff.implicit import custom_root

        y = tuple(workload.y.parameters())
        upper_optimizer = settings.optimizer_of(workload.x.parameters())
        upper_batch, lower_batch = workload.upper_batch, workload.lower_batch

        def lower_loss(y: Tensors, features: Tensor) -> Tensor:
            return workload.lower(features, y, lower_batch)

        @custom_root(gradient_of(lower_loss, argnums=0), argnums=1, solve=self.linear_solver(settings))
        def solve(y: Tensors, features: Tensor) -> Tensors:
            return lower_steps(workload, settings, features)

        def step() -> None:
            upper_optimizer.zero_grad()
            upper_features, lower_features = workload.seen_of_both()
            workload.upper(upper_features, solve(y, lower_features), upper_batch).backward()
            upper_optimizer.step()

        return step


class TorchOptNormalCG(TorchOpt):
    """`solve_normal_cg`, its default: conjugate gradients on the normal equations, two products an iteration."""

    name = "TorchOpt, normal_cg"

    def estimator(self, settings: Settings) -> str:
        return f"CG on the normal equations, {settings.products()} iterations"

    def terms_for_accuracy(self, dimensions: int) -> int:
        return 4 * dimensions

    def linear_solver(self, settings: Settings) -> Callable[..., Any]:
        from torchopt.linear_solve import solve_normal_cg

        return solve_normal_cg(maxiter=settings.products(), rtol=1e-8)
