"""A network that is called again and again with inputs of few shapes, as two CUDA graphs per shape: there and back.

A small network is some hundred kernels of a few microseconds each, and a host takes longer to launch them than a GPU to
run them. Runs that share a GPU share its host too, so what a host is spared there is time for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from adambo.closed_form.programmes import PATIENCE, capturing, matrix_precision, stream_of_captures

KEPT = 48  # shapes at a time


class CapturedNetwork:
    """Calls the network, after a few calls with one shape by graphs; with the same results and gradients.

    Where it cannot (on a CPU, without gradients, under autocast), it simply calls the network.

    Args:
        network: Has no dropout and no buffers that it writes into, and makes no host wait; tensors -> tensor.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, _Captured] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not _can_be_captured(inputs):
            result: Tensor = self._network(*inputs)
            return result
        parameters = [p for p in self._network.parameters() if p.requires_grad]
        key = (self._network.training, matrix_precision(), *((t.shape, t.dtype) for t in inputs))
        if key not in self._graphs:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= PATIENCE or len(self._graphs) == KEPT:
                eager: Tensor = self._network(*inputs)
                return eager
            self._graphs[key] = _Captured(self._network, parameters, inputs)
        return _Call.apply(self._graphs[key], inputs, *parameters)  # type: ignore[no-any-return, no-untyped-call]


def _can_be_captured(inputs: Sequence[Tensor]) -> bool:
    return (
        torch.is_grad_enabled()
        and inputs[0].is_cuda
        and not torch.is_autocast_enabled("cuda")  # whose copies of weights a graph would go on using
        and not torch.cuda.is_current_stream_capturing()
    )


class _Captured:
    """The network on inputs of one shape, in memory of its own.

    Attributes:
        generation: How often it was called: activations are those of the last call.
    """

    def __init__(self, network: nn.Module, parameters: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self.network, self.generation = network, 0
        self._inputs = [t.detach().clone() for t in inputs]
        self._there, self._back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        device = inputs[0].device
        stream = stream_of_captures(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
            gradients_of(network, parameters, self._inputs)  # once before, so that libraries have set themselves up
            with capturing(self._there):
                self._output = network(*self._inputs)
            self._weight = torch.empty_like(self._output)
            with capturing(self._back, self._there.pool()):
                # The graph of autograd is kept, and with it the activations: one may go back several times.
                self._gradients = torch.autograd.grad(self._output, parameters, self._weight, retain_graph=True)
        torch.cuda.current_stream(device).wait_stream(stream)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        self.generation += 1
        torch._foreach_copy_(self._inputs, list(inputs))
        self._there.replay()
        result: Tensor = self._output.detach().clone()
        return result

    def backward(self, weight: Tensor) -> Sequence[Tensor]:
        """Σ_k weight_k · ∂output_k/∂parameters of the last call."""
        self._weight.copy_(weight)
        self._back.replay()
        return list(torch._foreach_mul(self._gradients, 1.0))  # copies: the next call overwrites them


def gradients_of(
    network: nn.Module, parameters: Sequence[Tensor], inputs: Sequence[Tensor], weight: Tensor | None = None
) -> Sequence[Tensor]:
    """Σ_k weight_k · ∂output_k/∂parameters without graphs of CUDA."""
    with torch.enable_grad():
        output = network(*inputs)
        return torch.autograd.grad(output, parameters, torch.ones_like(output) if weight is None else weight)


class _Call(Function):
    """inputs, parameters -> output"""

    @staticmethod
    def forward(ctx: Any, captured: _Captured, inputs: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.captured, ctx.inputs = captured, inputs
        ctx.save_for_backward(*parameters)  # whose values must stay until the way back
        output = captured.forward(inputs)
        ctx.generation = captured.generation
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> Any:
        captured, parameters = ctx.captured, ctx.saved_tensors
        if ctx.generation == captured.generation:
            gradients = captured.backward(weight)
        else:  # another call has taken the place of this one's activations
            gradients = gradients_of(captured.network, parameters, ctx.inputs, weight)
        return None, None, *gradients
