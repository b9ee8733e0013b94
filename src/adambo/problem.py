"""A bilevel problem: two losses of a batch, two sets of parameters.

    min over x  f(x, y*(x))      where  y*(x) = argmin over y  g(x, y)

The losses close over live modules, as in every PyTorch training loop. What is known of a problem at its current
parameters, for the batches of one draw, is a `Point`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from adambo.captured_losses import CapturedLosses
from adambo.closed_form import Programmes
from adambo.draw import Batch, Draw, is_empty
from adambo.encodings import Divide, Encodings, Ending, Join
from adambo.errors import ProblemError, SampleError, WholeTableUsed
from adambo.ledger import Ledger
from adambo.lower_variable import GatheredRows, LowerVariable, TableRows
from adambo.masks import SameMasks
from adambo.parameters import Parameters, modules_of, overlap, parameters_of
from adambo.point import Point
from adambo.processes import Processes, is_sharded, whole_or_local
from adambo.vectors import Vector, clones, copy_, forget_casts

logger = logging.getLogger("adambo")


class Problem:
    """Two losses and two sets of parameters.

    Args:
        upper: f(batch) -> scalar tensor, differentiable in `y` and usually in `x`.
        lower: g(batch) -> scalar tensor, differentiable in `y`, strongly convex in it if theory is to apply.
        x: The upper variable: a module, a parameter, or an iterable of them. Frozen parameters are left out.
        y: The lower variable, likewise.
        tasks: For many lower problems at once. `y` is then stacked, one row per task along the first axis of every
            tensor, and `tasks(batch)` gives the ids of the tasks in a batch. Only their rows are worked on (here their
            gradients are computed for the whole table; `EncoderHeadProblem` avoids that).
        group: The processes to average over: "auto" is the default process group where one is initialised.

    Raises:
        ProblemError: If the parameters cannot be used; the losses are checked when they are first called.

    Example:
        >>> x, y = torch.tensor([1.0], requires_grad=True), torch.tensor([0.0], requires_grad=True)
        >>> problem = Problem(upper=lambda b: (y - 1).square().sum(), lower=lambda b: (y - x).square().sum(), x=x, y=y)
        >>> point = problem.at(Draw(upper=(0,), lower=(0,), cross=(0,)))
        >>> point.f_y
        [tensor([-2.])]
    """

    def __init__(
        self,
        upper: Callable[..., Tensor],
        lower: Callable[..., Tensor],
        x: Parameters,
        y: Parameters,
        tasks: Callable[[Batch], Any] | None = None,
        *,
        group: Any = "auto",
    ) -> None:
        self.upper, self.lower, self.tasks = upper, lower, tasks
        self.x, self.y = parameters_of(x, "x"), parameters_of(y, "y")
        self.processes = Processes(group)
        self.modules = [m for part in (x, y) for m in modules_of(part)]
        self.device = self.y[0].device
        self.buffers = [b for module in self.modules for b in module.buffers()]
        self.x_is_sharded = any(is_sharded(p) for p in self.x)
        reduced = {id(p) for m in self.modules if isinstance(m, DistributedDataParallel) for p in m.parameters()}
        self._x_to_average = [p for p in self.x if id(p) not in reduced and not is_sharded(p)]
        self.programmes = Programmes()
        self.losses = CapturedLosses(None)
        self._check_parameters()
        self.processes.broadcast([*self._x_to_average, *self.y])

    def at(
        self,
        draw: Draw,
        ledger: Ledger | None = None,
        encodings: Encodings | None = None,
        masks: SameMasks | None = None,
    ) -> Point:
        """What is known at the current (x, y) for `draw`; nothing is computed before it is asked for.

        Args:
            draw: The batches, by role.
            ledger: Where oracle calls are counted.
            encodings: Features of the same draw, where they are known already because x has not moved.
            masks: For methods that evaluate the draw twice, and need the same dropout in both.
        """
        ledger = Ledger() if ledger is None else ledger
        encodings = encodings or self.encodings(draw, masks)
        return Point(self, draw, self.lower_variable(draw), encodings, ledger, masks)

    def lower_variable(self, draw: Draw) -> LowerVariable:
        """The part of `y` that `draw` is about."""
        if self.tasks is None:
            return LowerVariable(self.y, self.processes)
        batches = (*draw.lower[:1], *draw.cross[:1], *draw.upper[:1])
        if not batches:
            raise SampleError("The draw is empty, so it does not say which tasks it is about. Give it a batch.")
        y = self._rows_class(self.y, self.processes, self.tasks(batches[0]))
        if self._rows_class is TableRows:  # gathered rows find a batch about other tasks by themselves
            for batch in {
                id(b): b for role in (draw.upper, draw.lower, draw.cross, draw.hessian) for b in role
            }.values():
                y.refuse_other_tasks(self.tasks(batch))
        return y

    concatenate: bool | Join = False  # there is nothing to encode

    # Losses that contain the encoder may use a stacked table in any way, so plain problems differentiate all of it.
    _rows_class: type[TableRows] = TableRows

    def differentiate_whole_tables(self, reason: WholeTableUsed) -> None:
        """Give up gathering rows, for losses that use a stacked table as a whole: right as well, but dense in it."""
        logger.warning("%s Gradients in y are now computed for all tasks in every step.", reason)
        self._rows_class = TableRows

    def encodings(self, draw: Draw, masks: SameMasks | None = None) -> Encodings | None:
        """The features of the batches of `draw`, where the problem has an encoder."""
        return None

    def evaluate(
        self,
        name: str,
        batch: Batch,
        y: LowerVariable,
        encodings: Encodings | None,
        ending: Ending,
        masks: SameMasks | None = None,
    ) -> Tensor:
        """A loss at the current point, checked: `name` is "upper" or "lower".

        Args:
            ending: Where its graph ends, if there is an encoder: see `Encodings`.
            masks: Where dropout must be the same in every evaluation of the batch.
        """
        if is_empty(batch):
            raise SampleError(
                f"The {name} loss was given an empty batch ({type(batch).__name__}), on which a mean is undefined. "
                "Leave empty batches out of the stream (drop_last=True in a DataLoader)."
            )
        function = self.upper if name == "upper" else self.lower
        seen = self.losses.seen(batch)
        arguments = (seen,) if encodings is None else (encodings.features(batch, ending), seen)
        # With tasks, table[ids] is answered with the rows of the draw.
        with torch.enable_grad(), y.reading(), masks.of(batch) if masks else nullcontext():
            try:
                loss = function(*arguments)
            except Exception as error:
                if self.losses.losses_see is not None:
                    error.add_note(f"The {name} loss was given what losses_see made of the batch: {_described(seen)}.")
                if not isinstance(error, RuntimeError):
                    raise
                if encodings is None or "in-place operation" not in str(error):
                    raise
                raise ProblemError(
                    f"The {name} loss changes its features in place ({error}). Several losses read the same features: "
                    "leave inplace=True and methods like add_ to the encoder."
                ) from error
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ProblemError(
                f"The {name} loss returned {came}, but a loss is one number. Return a tensor without dimensions, for "
                "example the .mean() over the batch."
            )
        if not loss.requires_grad:
            raise ProblemError(
                f"The {name} loss does not depend on y: it carries no gradient at all. Both levels meet in y; make "
                "sure that the loss uses the parameters given as y, and that nothing detaches them (torch.no_grad, "
                "torch.inference_mode, .detach())."
            )
        return loss

    def average_x(self) -> None:
        """Average `x.grad` over processes, where neither DDP nor FSDP2 has done so in the backward pass."""
        if self.processes.active and self._x_to_average:
            gradients = [p.grad for p in self._x_to_average if p.grad is not None]
            for gradient, mean in zip(gradients, self.processes.average(gradients), strict=True):
                gradient.copy_(mean)

    @contextmanager
    def moved_to(self, x: Sequence[Tensor] | None = None, y: Sequence[Tensor] | None = None) -> Iterator[None]:
        """Evaluate at other values for a moment.

        The values are exchanged in place, tensor by tensor, so autograd's version check catches a graph that is used
        on the wrong side; `x` and `y` hold the original values meanwhile. Every backward pass must end inside. On
        exit parameters and module buffers are bit for bit what they were.
        """
        pairs = [*_paired(self.x, x, "x"), *_paired(self.y, y, "y")]
        buffers = clones(self.buffers)
        _exchange(pairs)
        try:
            yield
        finally:
            _exchange(pairs)
            # A graph made before stays usable: no backward pass reads what its forward pass wrote into a buffer.
            with _unsafe_preserve_version_counter(tuple(self.buffers)):
                copy_(self.buffers, buffers)

    def _check_parameters(self) -> None:
        for k, p in enumerate(self.y):
            if is_sharded(p):
                raise ProblemError(
                    f"y[{k}] is a DTensor: the lower variable must be whole on every process, since its Hessian "
                    "products are averaged there. Shard the encoder (x) alone."
                )
            if any(overlap(p, q) for q in self.x):
                raise ProblemError(
                    f"y[{k}], of shape {tuple(p.shape)}, is also in x. A tensor is moved either by the upper or by the "
                    "lower level; give shared weights to one of them only."
                )
        if self.tasks is not None and len({len(p) if p.dim() else -1 for p in self.y}) != 1:
            raise ProblemError(
                f"With tasks=, every tensor of y has one row per task, but their shapes are "
                f"{[tuple(p.shape) for p in self.y]}. Stack the lower variables along a first axis of one length."
            )


class EncoderHeadProblem(Problem):
    """The common structure: an encoder below, the lower variable on its features.

    Each distinct batch object is encoded once per step, whatever the number of lower steps and Hessian products: those
    work on the features. Nothing is differentiated twice through the encoder, so fused attention, cuDNN RNNs and
    `torch.compile` stay usable in it.

    Args:
        encoder: encode(batch) -> features (a tensor, or a tuple, list or dictionary of tensors). One batch object may
            hold support and query examples and fill every role: it is then encoded in one call.
        upper: f(features, batch) -> scalar tensor.
        lower: g(features, batch) -> scalar tensor.
        x, y, tasks, group: As for `Problem`. With `tasks`, losses read stacked tables by `table[tasks(batch)]`.
        concatenate: True encodes the batches of a step in one call (for ANIL, those of all its tasks), joined along
            their first axis (tensors, or tuples, lists and dictionaries of tensors, of equal trailing shapes). A
            function from a list of batches to (joined batch, list of lengths) does the same for batches that need
            padding or have another form. An encoder with BatchNorm then normalises over all of them.
        one_call: With `concatenate`, batches that serve lower steps or Hessian factors alone, which need no graph, get
            no call of their own: for encoders whose time is launches, or the reading of weights. Their activations
            are kept, and their rows gone through in the backward pass, for nothing.
        microbatches: The encoder works through a batch in so many parts, of which only one has its activations in
            memory at a time; the hypergradient is the same to rounding, if the encoder treats every example alone. It
            costs one more forward pass of all parts but the last, made in the backward pass.
        divide: A function (batch, parts) -> batches that hold all examples once, in their order, for batches that are
            not made of tensors with one example per row. The features of the parts are put together along their first
            axis.
        losses_see: A function of a batch. What it returns (tensors and numbers, alone or in tuples, lists and
            dictionaries) is given to the losses in the place of the batch, and says that they depend on nothing else,
            besides the features, y, and tensors on the GPU that stay where they are: no counters, no switches; and
            that they write nothing. On a GPU they are then captured as CUDA graphs after a few steps, as
            `torch.cuda.make_graphed_callables` does it, and Python runs them no more.

    Raises:
        ProblemError: As `Problem`; and in a step, for microbatches of a module that looks at a batch as a whole
            (BatchNorm) or writes into a buffer, as far as the module is known: as x or y, or as the encoder.
    """

    _rows_class = GatheredRows

    def __init__(
        self,
        encoder: Callable[[Batch], Any],
        upper: Callable[[Any, Batch], Tensor],
        lower: Callable[[Any, Batch], Tensor],
        x: Parameters,
        y: Parameters,
        tasks: Callable[[Batch], Any] | None = None,
        *,
        concatenate: bool | Join = False,
        one_call: bool = False,
        microbatches: int = 1,
        divide: Divide | None = None,
        losses_see: Callable[[Batch], Any] | None = None,
        group: Any = "auto",
    ) -> None:
        super().__init__(upper, lower, x, y, tasks, group=group)
        self.losses = CapturedLosses(losses_see)
        self.encoder, self.concatenate, self.one_call = encoder, concatenate, one_call
        self.microbatches, self.divide = microbatches, divide
        if isinstance(encoder, nn.Module) and encoder not in self.modules:
            self.modules.append(encoder)
            self.buffers += [b for b in encoder.buffers() if all(b is not known for known in self.buffers)]

        if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
            raise ProblemError(
                f"microbatches={microbatches!r} is not a number of parts: give a whole number, 1 or more."
            )
        if divide is not None and not callable(divide):
            raise ProblemError(f"divide={divide!r} is no function: give one (batch, parts) -> batches, or nothing.")
        if losses_see is not None and not callable(losses_see):
            raise ProblemError(
                f"losses_see is a {type(losses_see).__name__}, but should be a function of a batch, such as lambda "
                "batch: batch[1]."
            )

    def encodings(self, draw: Draw, masks: SameMasks | None = None) -> Encodings:
        if self.microbatches > 1:
            self._refuse_batch_norm()
        encoder = self.encoder if self.losses.losses_see is None else self._encode_in_one_piece
        return Encodings(
            encoder, draw, self.concatenate, masks, self.microbatches, self.divide, self.buffers, self.one_call
        )

    def _encode_in_one_piece(self, batch: Batch) -> Any:
        """Features in the layout that a captured loss is given them in, so that it has the same digits as this one."""
        return tree_map(lambda t: t.contiguous() if isinstance(t, Tensor) else t, self.encoder(batch))

    def _refuse_batch_norm(self) -> None:
        for layer in (layer for module in self.modules for layer in module.modules()):
            if isinstance(layer, _BatchNorm) and (layer.training or not layer.track_running_stats):
                raise ProblemError(
                    f"{type(layer).__name__} normalises over the batch it is given, so microbatches="
                    f"{self.microbatches} would change the hypergradient. Use a layer that treats every example "
                    "alone (LayerNorm, GroupNorm), or microbatches=1."
                )


def _described(seen: Any) -> str:
    """A value without its numbers."""
    return str(tree_map(lambda t: f"{t.dtype} {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__, seen))


def _paired(parameters: Vector, values: Sequence[Tensor] | None, name: str) -> list[tuple[Tensor, Tensor]]:
    if values is None:
        return []
    mine, given = ([(tuple(t.shape), t.dtype, t.device) for t in part] for part in (parameters, values))
    if mine != given:
        raise ProblemError(f"moved_to({name}=...) was given {given}, but {name} is {mine}.")
    held = [part for part in map(whole_or_local, values) if part.numel()]
    if len({part.data_ptr() for part in held}) < len(held) or any(
        size > 1 and stride == 0 for part in held for size, stride in zip(part.shape, part.stride(), strict=True)
    ):
        raise ProblemError(
            f"moved_to({name}=...) exchanges values, so each tensor given needs memory of its own; some share it, or "
            "are expanded. Give clones."
        )
    return list(zip(parameters, values, strict=True))


@torch.no_grad()
def _exchange(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for parameter, value in pairs:
        mine = parameter.clone()
        parameter.copy_(value)
        value.copy_(mine)
    forget_casts([parameter for parameter, _ in pairs])
