"""ANIL (Raghu, Raghu, Bengio, Vinyals; ICLR 2020): MAML whose inner steps move the head alone.

    paper            here
    body, head       x, y = problem.x, problem.y: the head is adapted, both are learnt
    α, β             lower_lr, lr (γ, η elsewhere in this library)
    task T_i         one draw of the list given to step
    support, query   draw.lower (ζ_0 … ζ_{S−1}, one batch per inner step), draw.upper (ξ)

Oracle calls per task and step: 1 ∇x f, 1 ∇y f, S ∇y g, and S ∇²yy g, S ∇²xy g, which first order leaves out. The
products of inner step s take its sample ζ_s again, and both come out of one backward pass.

The AdamBO paper does not say which S it used; its code has S = 1 (the default here), that of SLIP S = 5. In that code
the outer step of ANIL does nothing (its gradients have been set to None); here both x and y are learnt.
"""

from __future__ import annotations

from typing import ClassVar

from adambo.algorithms.meta_learning import MetaLearning, Task
from adambo.vectors import Vector


class ANIL(MetaLearning):
    r"""One step, for every task from the same (x_t, y_t); H_s and J_s are ∇²yy G and ∇²xy G at (x_t, y_s; ζ_s):

        y_0 = y_t,    y_{s+1} = y_s − γ ∇y G(x_t, y_s; ζ_s)                     s = 0 … S−1
        v_S = ∇y F(x_t, y_S; ξ),    v_s = v_{s+1} − γ H_s v_{s+1}               s = S−1 … 0
        h_x = ∇x F(x_t, y_S; ξ) − γ Σ_s J_s v_{s+1},    h_y = v_0
        x_{t+1} = x_t − η · mean of h_x,    y_{t+1} = y_t − η · mean of h_y     over the tasks

    In first order h_x = ∇x F and h_y = ∇y F at (x_t, y_S). The adapted y_S is thrown away; `info.y_adapted` shows that
    of the last task. With an `EncoderHeadProblem` every batch is encoded once.

    A warm start is no part of the method: where one is asked for, it pre-trains the initial head y by SGD.

    Args:
        problem: What is optimised; y is one head, without `tasks`.
        lr, lower_lr: η and γ.
        inner_steps: S.
        first_order: Leave the second derivatives out.

    Example:
        >>> import torch
        >>> from adambo import Problem
        >>> x, y = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        >>> problem = Problem(lambda b: (x * y - 1).square().sum(), lambda b: (y - x - 1).square().sum(), x, y)
        >>> solver = ANIL(problem, lr=0.1, lower_lr=0.3)
        >>> for _ in range(200):
        ...     info = solver.step(0, 0)
        >>> round(float(x.detach() * info.y_adapted[0]), 2)
        1.0
    """

    summary: ClassVar = "learns an encoder and a head, of which the head alone adapts by a few gradient steps"
    cost: ClassVar = "1 ∇x f, 1 ∇y f, S ∇y g, S ∇²yy g, S ∇²xy g per task"

    adapts_x: ClassVar = False

    def _product(self, task: Task, s: int, v: Vector) -> Vector:
        self.ledger.cross_vector += 1
        return super()._product(task, s, v)
