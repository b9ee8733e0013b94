"""Short programmes of many small kernels, launched at once.

A step on a linear head is some fifty kernels of a few microseconds each, and a host needs longer to launch one than the
GPU to run it. A programme is a pure function of tensors; once it has come a few times in the same form, it is captured
as a CUDA graph, and from then on one launch runs all of it. On a CPU, and before that, it simply runs.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from adambo.vectors import Vector

logger = logging.getLogger("adambo")

PATIENCE = 2  # runs in one form before it is captured: what changes in every step (a rate, a shape) never is
KEPT = 16  # graphs at a time
MOST = 64  # captures beyond one in so many runs: a graph that is used less does not pay


class Programmes:
    """Runs programmes, and keeps the graphs of those that come again."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Captured] = {}
        self._captures = self._runs = 0
        self._can_capture = True

    def __reduce__(self) -> Any:
        return Programmes, ()  # graphs belong to one process

    @property
    def captured(self) -> int:
        """How many graphs are kept."""
        return len(self._graphs)

    def run(self, form: Hashable, function: Callable[[Vector], Vector], inputs: Sequence[Tensor]) -> Vector | None:
        """function(inputs) by a graph; None where there is none (yet), so that the caller does it in its own way.

        Args:
            form: All that the function depends on, besides the values of its inputs.
            function: Makes no host wait, and gives tensors; none where it finds that it cannot be captured.
            inputs: Its tensors.
        """
        if not inputs[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return None
        key = (form, _precision(), *((t.shape, t.dtype, t.device) for t in inputs))
        if key not in self._graphs:
            seen = self._seen[key] = self._seen.pop(key, 0) + 1
            while len(self._seen) > KEPT:
                del self._seen[next(iter(self._seen))]
            if seen <= PATIENCE or not self._can_capture or self._captures >= MOST + self._runs // MOST:
                return None
            self._captures += 1
            while len(self._graphs) >= KEPT:
                del self._graphs[next(iter(self._graphs))]  # the one that was not used for the longest time
            try:
                graph = _Captured(function, inputs)
            except _CannotBeCaptured as error:
                self._can_capture = False
                # As text: with the error, a record of the log would hold the frames and graphs it comes from.
                logger.warning("A programme could not be captured as a CUDA graph and runs without: %s", str(error))
            if not self._can_capture:
                gc.collect()  # graphs of autograd that the attempt left behind belong to the stream of captures
                return None
        else:
            graph = self._graphs.pop(key)
        self._graphs[key] = graph
        self._runs += 1
        return graph.run(inputs)


class _CannotBeCaptured(Exception):
    """A function that runs well does something that no graph can hold."""


class _Captured:
    """A programme as a CUDA graph, on inputs in memory of its own."""

    def __init__(self, function: Callable[[Vector], Vector], inputs: Sequence[Tensor]) -> None:
        self._inputs = [t.detach().clone() for t in inputs]
        self._graph = torch.cuda.CUDAGraph()
        self._device = inputs[0].device
        stream = _stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        # One stream for all captures, and one thread (autograd has others for a GPU): cuBLAS keeps some 32 MiB for each
        # stream of each thread.
        with torch.no_grad(), torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
            self._results = function(self._inputs)  # once before, so that libraries have set themselves up
            if self._results:
                try:
                    with _capturing(self._graph):
                        self._results = function(self._inputs)
                except RuntimeError as error:
                    raise _CannotBeCaptured(str(error)) from error
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def run(self, inputs: Sequence[Tensor]) -> Vector:
        if not self._results:
            return []
        with torch.no_grad(), torch.cuda.device(self._device):
            torch._foreach_copy_(self._inputs, list(inputs))
            self._graph.replay()
            return list(torch._foreach_mul(self._results, 1.0))  # copies: the next run overwrites the results


@contextmanager
def _capturing(graph: Any) -> Iterator[None]:
    """What the block launches goes into `graph`, and is not run."""
    collects = gc.isenabled()
    gc.disable()  # garbage may be of a GPU, such as the graphs of an earlier run, and to free it breaks the capture
    try:
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()
    finally:
        if collects:
            gc.enable()


@lru_cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _precision() -> Any:
    """How float32 matrices are multiplied, which a graph does not forget."""
    matmul: Any = torch.backends.cuda.matmul
    return matmul.fp32_precision if hasattr(matmul, "fp32_precision") else torch.get_float32_matmul_precision()
