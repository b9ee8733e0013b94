"""hypertorch (Grazzi et al., ICML 2020): `hypergrad.fixed_point` on the map of a gradient step.

It is installed from its repository (github.com/prolearner/hypertorch), under the module name `hypergrad`. The packages
`hypertorch` and `hypergrad` of PyPI are other projects. The step of its series is that of the lower gradient step.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from measuring import Step
from torch import Tensor
from workloads import Workload

from contenders.contender import Contender, Settings

Tensors = Sequence[Tensor]


class Hypertorch(Contender):
    name = "hypertorch"
    package = ("hypertorch", "hypergrad.hypergradients")

    def absent(self) -> str | None:
        if find_spec("hypergrad") is None or find_spec("hypergrad.hypergradients") is None:
            return "hypertorch is not installed (not on PyPI: github.com/prolearner/hypertorch)"
        return None

    def version(self) -> str:
        return "hypertorch from its repository, without a version"

    def estimator(self, settings: Settings) -> str:
        return f"fixed point, {settings.terms} terms, step tied to the lower rate"

    def build(self, workload: Workload, settings: Settings) -> Step:
        from hypergrad import fixed_point

        x = list(workload.x.parameters())
        optimizer = settings.optimizer_of(x)
        upper_batch, lower_batch = workload.upper_batch, workload.lower_batch

        def outer_loss(y: Tensors, x: Tensors) -> Tensor:
            return workload.upper(workload.seen(upper_batch), y, upper_batch)

        def inner_map(y: Tensors, x: Tensors) -> Tensors:
            return gradient_step(workload, settings, workload.seen(lower_batch), y, create_graph=True)

        def step() -> None:
            optimizer.zero_grad()
            with torch.no_grad():
                seen = workload.seen(lower_batch)
            y = lower_steps(workload, settings, seen)
            fixed_point(y, x, settings.terms, inner_map, outer_loss)
            optimizer.step()

        return step


class HypertorchOnFeatures(Hypertorch):
    """The features as hyperparameters; autograd takes their hypergradients to the encoder."""

    name = "hypertorch, on features"

    def not_offered(self, workload: Workload) -> str | None:
        return None if workload.has_encoder else "there are no features here"

    def build(self, workload: Workload, settings: Settings) -> Step:
        from hypergrad import fixed_point

        optimizer = settings.optimizer_of(workload.x.parameters())

        def outer_loss(y: Tensors, features: Tensors) -> Tensor:
            return workload.upper(features[0], y, workload.upper_batch)

        def inner_map(y: Tensors, features: Tensors) -> Tensors:
            return gradient_step(workload, settings, features[1], y, create_graph=True)

        def step() -> None:
            optimizer.zero_grad()
            encoded = workload.seen_of_both()
            features = [part.detach().requires_grad_() for part in encoded]
            y = lower_steps(workload, settings, encoded[1])
            torch.autograd.backward(
                encoded, fixed_point(y, features, settings.terms, inner_map, outer_loss, set_grad=False)
            )
            optimizer.step()

        return step


def gradient_step(workload: Workload, settings: Settings, seen: Tensor, y: Tensors, create_graph: bool) -> Tensors:
    g_y = torch.autograd.grad(workload.lower(seen, y, workload.lower_batch), y, create_graph=create_graph)
    return [p - settings.lower_lr * d for p, d in zip(y, g_y, strict=True)]


def lower_steps(workload: Workload, settings: Settings, seen: Tensor) -> Tensors:
    """Moves y by gradient steps, at features that are computed once."""
    y, seen = list(workload.y.parameters()), seen.detach()
    for _ in range(settings.lower_steps):
        moved = gradient_step(workload, settings, seen, y, create_graph=False)
        with torch.no_grad():
            for p, value in zip(y, moved, strict=True):
                p.copy_(value)
    return y
