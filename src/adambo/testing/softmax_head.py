"""A ridge-regularised softmax head on encoded features: the problem of the experiments, small enough to be solved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacrev
from torch.nn.functional import cross_entropy

from adambo.problem import EncoderHeadProblem
from adambo.testing.known_problem import KnownProblem, flat, normal


class RidgeSoftmaxHead(KnownProblem):
    r"""A linear softmax classifier y = (W, b) on the features tanh(inputs xᵀ).

        g(x, y) = CE(W φ_x + b; training data) + mu/2 ‖y‖²        f(x, y) = CE(W φ_x + b; validation data)

    y*(x) is found by Newton's method to machine precision and ∇phi by dense implicit differentiation with torch.func,
    so neither depends on the code of this library. There is no closed-form optimum. A batch is (inputs, labels); the
    data of the two levels are `upper_batch` and `lower_batch`, and None stands for them.

    Args:
        inputs, features, classes: Sizes of the model.
        examples: Per level.
        seed: Seeds data and start.
        mu: Weight of the ridge.

    Example:
        >>> known = RidgeSoftmaxHead()
        >>> y = known.y_star(known.x0)
        >>> bool(grad(known.lower, argnums=1)(known.x0, y).norm() < 1e-12)
        True
    """

    def __init__(
        self,
        inputs: int = 3,
        features: int = 2,
        classes: int = 3,
        examples: int = 12,
        seed: int = 0,
        mu: float = 0.1,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        teacher = normal(classes, inputs, generator=generator)

        def sample() -> tuple[Tensor, Tensor]:
            points = normal(examples, inputs, generator=generator)
            return points, (points @ teacher.T + normal(examples, classes, generator=generator) / 2).argmax(dim=1)

        self.upper_batch, self.lower_batch = sample(), sample()
        self.mu = mu
        self.x_shapes, self.y_shapes = [(features, inputs)], [(classes, features), (classes,)]
        self.x0 = normal(features * inputs, generator=generator)
        self.y0 = 0.1 * normal(classes * (features + 1), generator=generator)

    def upper(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        inputs, labels = self.upper_batch if batch is None else batch
        return cross_entropy(self._logits(self._encode(x, inputs), y), labels)

    def lower(self, x: Tensor, y: Tensor, batch: Any = None) -> Tensor:
        inputs, labels = self.lower_batch if batch is None else batch
        return cross_entropy(self._logits(self._encode(x, inputs), y), labels) + self.mu / 2 * y.square().sum()

    def y_star(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(self.y0)
        for _ in range(50):
            step = torch.linalg.solve(self.hessian(x, y), grad(self.lower, argnums=1)(x, y))
            y = y - step
            if float(step.norm()) < 1e-9:  # convergence is quadratic: what is left is its square
                break
        return y

    def hessian(self, x: Tensor, y: Tensor) -> Tensor:
        """∇²yy g, dense."""
        # jacrev twice: forward mode (torch.func.hessian) loads TorchScript decompositions, which warn.
        result: Tensor = jacrev(grad(self.lower, argnums=1), argnums=1)(x, y)
        return result

    def phi(self, x: Tensor) -> Tensor:
        return self.upper(x, self.y_star(x))

    def gradient(self, x: Tensor) -> Tensor:
        y = self.y_star(x)
        f_x, f_y = grad(self.upper, argnums=(0, 1))(x, y)
        J = jacrev(grad(self.lower, argnums=1), argnums=0)(x, y)
        result: Tensor = f_x - J.T @ torch.linalg.solve(self.hessian(x, y), f_y)
        return result

    @property
    def optimum(self) -> Tensor:
        raise AttributeError("phi is not convex here, so no optimum is known; compare gradients, or values of phi.")

    def encoder_head_problem(self) -> EncoderHeadProblem:
        """The same problem, with the structure stated."""
        x, y = self.parameters()
        return EncoderHeadProblem(
            encoder=lambda batch: self._encode(flat(x), batch[0]),
            upper=lambda features, batch: cross_entropy(self._logits(features, flat(y)), batch[1]),
            lower=lambda features, batch: (
                cross_entropy(self._logits(features, flat(y)), batch[1]) + self.mu / 2 * flat(y).square().sum()
            ),
            x=x,
            y=y,
        )

    def _encode(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ x.reshape(self.x_shapes[0]).T)

    def _logits(self, features: Tensor, y: Tensor) -> Tensor:
        (classes, width), _ = self.y_shapes
        return features @ y[: classes * width].reshape(classes, width).T + y[classes * width :]
