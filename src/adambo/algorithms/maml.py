"""MAML (Finn, Abbeel, Levine; ICML 2017): learn the network from which a few gradient steps lead to any task.

    paper            here
    θ                (x, y) = problem.x, problem.y: all of it is adapted, and all of it is learnt
    α, β             lower_lr, lr (γ, η elsewhere in this library)
    task T_i         one draw of the list given to step
    support, query   draw.lower (ζ_0 … ζ_{S−1}, one batch per inner step), draw.upper (ξ)

Oracle calls per task and step: 1 ∇x f, 1 ∇y f, S ∇x g, S ∇y g, and S products with the Hessian of g in θ, which are
counted as ∇²yy g; none of these in first order. The Hessian product of inner step s takes its sample ζ_s again.

The AdamBO paper does not say which S it used; its code has S = 1 (the default here), that of SLIP S = 5. That code
adapts only the head, and no second derivative survives in it; what is here is the method of the MAML paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

from torch import Tensor

from adambo.algorithms.meta_learning import MetaLearning, Task
from adambo.algorithms.settings import checked_count
from adambo.algorithms.tasks_at_once import TasksAtOnce
from adambo.draw import Draw
from adambo.kernels import twice_differentiable
from adambo.problem import Problem
from adambo.vectors import Vector


class MAML(MetaLearning):
    r"""One step, for every task from the same θ_t = (x_t, y_t):

        θ_0 = θ_t,    θ_{s+1} = θ_s − γ ∇θ G(θ_s; ζ_s)                          s = 0 … S−1
        v = (I − γ H_0)(I − γ H_1) … (I − γ H_{S−1}) ∇θ F(θ_S; ξ)               H_s = ∇²θθ G(θ_s; ζ_s)
        θ_{t+1} = θ_t − η · mean of v over the tasks

    In first order v = ∇θ F(θ_S; ξ). The adapted θ_S is thrown away; `info.x_adapted` and `info.y_adapted` show that of
    the last task.

    The products differentiate the whole network twice, so attention and recurrent layers run on kernels that allow it
    (`adambo.twice_differentiable`): in the products, and in the inner steps they belong to, since fused kernels would
    draw other dropout masks there. The upper loss and first order keep the fast ones.

    A warm start is no part of the method: where one is asked for, it pre-trains the initial head y by SGD.

    Args:
        problem: What is optimised; y is one head, without `tasks`.
        lr, lower_lr: η and γ.
        inner_steps: S.
        first_order: Leave the second derivatives out (FOMAML).
        at_once: Go through all tasks of a step (or through so many of them) side by side, by `torch.vmap`: few launches
            on a GPU, and memory for some copies of all parameters per task. For problems whose x and y are given as
            modules, whose batches are tensors (or tuples, lists, dictionaries, or other pytrees of them) of one shape
            for all tasks, and whose losses `torch.vmap` can follow. Dropout follows torch's generator, not draw.seed.

    Example:
        Two tasks with the optima −1 and 3: the best start is in the middle.

        >>> import torch
        >>> from adambo import Draw, Problem
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> loss = lambda goal: (x + y - goal).square().sum()
        >>> solver = MAML(Problem(loss, loss, x, y), lr=0.1, lower_lr=0.1)
        >>> for _ in range(100):
        ...     info = solver.step([Draw(upper=(goal,), lower=(goal,)) for goal in (-1.0, 3.0)])
        >>> round(float((x + y).detach()), 2)
        1.0
    """

    summary: ClassVar = "learns a network that adapts by a few gradient steps, differentiating through them"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, S ∇x g, S ∇y g, S ∇²θθ g per task"

    adapts_x: ClassVar = True

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-2,
        lower_lr: float = 1e-2,
        inner_steps: int = 1,
        first_order: bool = False,
        at_once: bool | int = False,
    ) -> None:
        super().__init__(problem, lr, lower_lr, inner_steps, first_order)
        if not isinstance(at_once, bool):
            checked_count(at_once, "at_once")
        self._tasks = TasksAtOnce(problem, self.theta, None if at_once is True else at_once) if at_once else None

    def _over_tasks(self, draws: Sequence[Draw]) -> tuple[Vector, Tensor, Vector]:
        if self._tasks is None:
            return super()._over_tasks(draws)
        found = self._tasks.run(draws, self.lower_optimizer.param_groups[0]["lr"], self.first_order)
        self._count(draws)
        self.guard.watch("the upper loss", found.losses[:, 0])
        self.guard.watch("the lower loss", found.losses[:, 1:])
        return found.meta, found.losses[:, :2], found.adapted

    def _count(self, draws: Sequence[Draw]) -> None:
        """What one task after the other would have counted."""
        ledger, steps = self.ledger, len(draws) * self.inner_steps
        ledger.grad_x_f += len(draws)
        ledger.grad_y_f += len(draws)
        ledger.grad_x_g += steps
        ledger.grad_y_g += steps
        ledger.hessian_vector += 0 if self.first_order else steps
        for draw in draws:
            for name, batches in (("lower", draw.lower), ("upper", draw.upper)):
                for batch in batches:
                    ledger.read(name, batch)

    def _inner_gradient(self, task: Task, s: int) -> tuple[Tensor, Vector]:
        self.ledger.grad_x_g += 1
        with nullcontext() if self.first_order else twice_differentiable():
            return super()._inner_gradient(task, s)

    def _product(self, task: Task, s: int, v: Vector) -> Vector:
        with twice_differentiable():
            return super()._product(task, s, v)
