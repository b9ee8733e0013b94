"""Products of float32 matrices whose operands are rounded to half precision, summed and kept in float32.

Who allows TensorFloat-32 (`torch.set_float32_matmul_precision("high")`) has operands rounded to 10 bits. Half precision
has 10 bits as well, in half of the memory: where a large matrix meets a few rows again and again, as in an RNN, reading
it is what takes the time, and it is read in half of it. (96 rows and 4096 × 4096 weights on an H200: 17 instead of 31
microseconds.) What half precision lacks is range: gradients are scaled into it by a power of two first.

Where halves will not do, all of this is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

HEADROOM = 4  # the largest gradient becomes at most 2^-4: it may grow a millionfold on its way before it overflows
SMALLEST = -120  # exponent; what is smaller than that is scaled as if it were so large
HAVE_THEM = torch.cuda.is_available() and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


def suffice_for(operand: Tensor) -> bool:
    """Whether products of it may have operands of 10 bits, on a device and with a torch that have such products."""
    return (
        HAVE_THEM
        and operand.is_cuda
        and operand.dtype == torch.float32
        and torch.get_float32_matmul_precision() != "highest"
    )


def rounding_of(operand: Tensor) -> Callable[[Tensor], Tensor]:
    """How the operands of its products are rounded."""
    return Tensor.half if suffice_for(operand) else lambda unrounded: unrounded


def add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """into += left @ right"""
    if left.dtype == into.dtype:
        into.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(into, left, right, out_dtype=torch.float32, out=into)
    else:  # a CPU has no such product: this is what it would give
        into.addmm_(left.float(), right.float())


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, in float32 if they are halves."""
    if left.dtype != torch.half:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def scale_of(gradients: Tensor) -> Tensor | None:
    """The power of two that brings them into the range of half precision; on their device, nobody waits for it."""
    if not suffice_for(gradients):
        return None
    largest = torch.linalg.vector_norm(gradients, torch.inf)
    exponent = torch.frexp(largest).exponent.clamp(min=SMALLEST)  # largest < 2^exponent
    return torch.ldexp(torch.ones_like(largest), -HEADROOM - exponent)


def times(gradients: Tensor, scale: Tensor | None) -> Tensor:
    """A copy of them, scaled."""
    return gradients.clone(memory_format=torch.contiguous_format) if scale is None else gradients.contiguous() * scale


def divided(scaled: Tensor, scale: Tensor | None) -> Tensor:
    """The same without their scale, in their place."""
    return scaled if scale is None else scaled.div_(scale)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`torch.nn.functional.linear`, of inputs that are not large."""
    if suffice_for(inputs):
        result: Tensor = _Linear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return F.linear(inputs, weight, bias)


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return product(inputs.half(), weight.half().t()).add_(bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated once more, which plain products can be
            return g @ weight, g.t() @ inputs, g.sum(0)
        scale = scale_of(g)
        halves = times(g, scale).half()
        for_inputs, for_weight = product(halves, weight.half()), product(halves.t(), inputs.half())
        return divided(for_inputs, scale), divided(for_weight, scale), g.sum(0)
