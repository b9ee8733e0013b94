r"""The recurrence of a tanh RNN over rows without padding, differentiable twice, its weights read once per step.

    h_t = tanh(a_t + W h_{t−1})                          a_t: what step t is given, of the rows that reach it

An RNN is as fast as W can be multiplied with a few rows again and again. What need not wait for the step before is
therefore done for all steps at once: the inputs, and the gradient of W, which otherwise is written once per step. With
d_t = ∂L/∂a_t and g_t what comes from above h_t,

    d_t = (g_t + d_{t+1} W) ∘ (1 − h_t²)                 ∂L/∂W = Σ_t d_tᵀ h_{t−1}

which is again a recurrence, from the end; and differentiating it gives one from the beginning. (The kernels of cuDNN
have no second derivative, and those of plain torch write all gradients of W.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it would be unrolled, anew for every shape
def states_of(rnn: nn.RNN, inputs: Tensor, sizes: list[int]) -> Tensor:
    """The states of the last layer of a tanh RNN, from zero on.

    Args:
        rnn: Has the weights; one direction, tanh.
        inputs: (all rows, width): those of the first step, then those of the second, ..., by falling length of what
            they belong to, as in `torch.nn.utils.rnn.PackedSequence`.
        sizes: How many there are of each step; they never grow.
    """
    for layer in range(rnn.num_layers):
        if layer and rnn.dropout:
            inputs = F.dropout(inputs, rnn.dropout, rnn.training)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_in, w, b_in, b = (getattr(rnn, f"{name}_l{layer}") for name in names)
        given = F.linear(inputs, w_in, b_in + b)
        w = w.to(given.dtype)
        if torch._C._are_functorch_transforms_active():  # which differentiate plain operations as often as they like
            inputs = _plain(given, w, sizes)
        else:
            inputs = _Forward.apply(given, w, sizes)  # type: ignore[no-untyped-call]
    return inputs


def _plain(given: Tensor, w: Tensor, sizes: list[int]) -> Tensor:
    states: list[Tensor] = []
    for now in torch.split(given, sizes):
        states.append(torch.tanh(now + states[-1][: len(now)] @ w.t() if states else now))
    return torch.cat(states)


class _Forward(Function):
    """a, W -> h"""

    @staticmethod
    def forward(ctx: Any, given: Tensor, w: Tensor, sizes: list[int]) -> Tensor:
        h = given.clone()
        before = None
        for now in torch.split(h, sizes):
            if before is not None:
                now.addmm_(before[: len(now)], w.t())
            before = now.tanh_()
        ctx.save_for_backward(h, w)
        ctx.sizes = sizes
        return h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        h, w = ctx.saved_tensors
        return *_Backward.apply(g, h, w, ctx.sizes), None  # type: ignore[no-untyped-call]


class _Backward(Function):
    """g, h, W -> d, ∂L/∂W"""

    @staticmethod
    def forward(ctx: Any, g: Tensor, h: Tensor, w: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        d = g.clone(memory_format=torch.contiguous_format)
        after = None
        for now, state in zip(reversed(torch.split(d, sizes)), reversed(torch.split(h, sizes)), strict=True):
            if after is not None:
                now[: len(after)].addmm_(after, w)
            after = torch.ops.aten.tanh_backward.grad_input(now, state, grad_input=now)  # d_t in the place of g_t
        ctx.save_for_backward(g, h, w, d)
        ctx.sizes = sizes
        return d, _later(d, sizes).t() @ _earlier(h, sizes)

    @staticmethod
    def backward(ctx: Any, u: Tensor, v: Tensor) -> Any:
        """With u and v for d and ∂L/∂W: e_t = g_t + d_{t+1} W, q its adjoint, and p before the factor 1 − h²."""
        if torch.is_grad_enabled():
            raise NotImplementedError("This recurrence has two derivatives, and create_graph=True asks for a third.")
        g, h, w, d = ctx.saved_tensors
        sizes = ctx.sizes
        p = u.clone(memory_format=torch.contiguous_format)
        _later(p, sizes).addmm_(_earlier(h, sizes), v.t())
        q = 1 - h.square()
        before = None
        for now, factor in zip(torch.split(p, sizes), torch.split(q, sizes), strict=True):
            if before is not None:
                now.addmm_(before[: len(now)], w.t())
            before = factor.mul_(now)
        e = g.clone(memory_format=torch.contiguous_format)
        _add_to_earlier(e, _later(d, sizes) @ w, sizes)
        for_h = e.mul_(p).mul_(h).mul_(-2)
        _add_to_earlier(for_h, _later(d, sizes) @ v, sizes)
        return q, for_h, _later(d, sizes).t() @ _earlier(q, sizes), None


def _later(rows: Tensor, sizes: list[int]) -> Tensor:
    """Those of all steps but the first."""
    return rows[sizes[0] :]


def _earlier(rows: Tensor, sizes: list[int]) -> Tensor:
    """For each of these, the row of the step before."""
    if sizes[0] == sizes[-1]:
        return rows[: len(rows) - sizes[0]]
    return torch.cat([now[:following] for now, following in zip(torch.split(rows, sizes), sizes[1:], strict=False)])


def _add_to_earlier(rows: Tensor, later: Tensor, sizes: list[int]) -> None:
    """Add to the row of the step before what stands for one of `_later`."""
    for now, part in zip(torch.split(rows, sizes), torch.split(later, sizes[1:]), strict=False):
        now[: len(part)] += part
