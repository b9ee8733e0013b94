"""What the AUC experiments share: batches, slots and the judgement by the AUC of whole splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adambo.algorithms import Algorithm
from adambo.data.imbalance import halves
from adambo.draw import Draw
from adambo.errors import ConfigError
from adambo.experiments.auc_config import AucConfig
from adambo.experiments.plain_adam import PlainAdam
from adambo.experiments.settings import build_solver
from adambo.experiments.solver_workload import LARGER, Encoder, StreamWorkload, reference_draw
from adambo.problem import EncoderHeadProblem
from adambo.problems.deep_auc import AucVariables, Examples, auc_loss, deep_auc
from adambo.sources import key_of
from adambo.stream import draws
from adambo.training.metrics import auroc
from adambo.training.workload import Scores

JUDGED_AT_ONCE = 2048  # examples in one call of the network when it is judged
Take = Callable[[Tensor], Any]


class Split(NamedTuple):
    """Examples of one split on the device: how to take them, 1 for positive ones, and their numbers by length."""

    take: Take
    positive: Tensor  # on the device
    groups: list[Tensor]  # all numbers, those of similar length together; on the host

    @property
    def size(self) -> int:
        return sum(len(group) for group in self.groups)

    def of_any_length(self) -> Split:
        return self._replace(groups=[torch.cat(self.groups)])

    def examples(self, indices: Tensor) -> Examples:
        """A batch knows the numbers of its examples, not the examples: so batches can be joined and divided at will."""
        return Examples(indices, self.positive[indices.to(self.positive.device, non_blocking=True)])


class DeepAuc(StreamWorkload):
    """One epoch is as many steps as draw all training data once, a batch for each level.

    Args:
        config: Of the run.
        encoder: inputs -> the last logit, one number per example.
        lower, upper: What the levels draw from, parts of one table; see `drawn_from`.
        judged: Further splits, "test" among them.
        p: Share of positives in the training data.
        device: Where the run computes.
        read: How steps take training examples, if otherwise than judgements do.
    """

    config: AucConfig

    def __init__(
        self,
        config: AucConfig,
        encoder: Encoder,
        lower: Split,
        upper: Split,
        judged: dict[str, Split],
        p: float,
        device: torch.device,
        read: Take | None = None,
    ) -> None:
        self.encoder, self._levels, self._judged, self.p = encoder, (lower, upper), judged, p
        self._read = read or lower.take
        self._training = [lower] if config.levels == "same" else [lower, upper]
        self.variables = AucVariables().to(device)
        self._score = torch.sigmoid if config.score == "sigmoid" else _unchanged
        self._margin = config.margin
        size = config.batch_size
        drawn_size = 2 * size if config.one_batch else size
        _refuse_large_batches(config, min(level.size for level in self._levels))
        solver: Algorithm
        if config.algorithm == "adam":
            solver = PlainAdam(self._cross_entropy(), **config.settings)
            self._stream = draws(self._from_all(2 * size), lambda _: None, solver.needs, config.seed)
        else:
            problem = deep_auc(
                lambda examples: self._score(encoder(self._read(examples))),
                encoder.network,
                self.variables,
                p,
                config.margin,
                config.microbatches,
                # On a GPU calls cost more than padding to one length; compiled code wants few lengths.
                concatenate=device.type == "cuda" and not config.compile,
            )
            slots = [_slots(half, size) for half in (lower, upper)] if config.algorithm == "saba" else []
            sizes = [[len(batch) for batch in half] for half in slots]  # batches of unequal size weigh unequally
            tables = {"lower_slots": sizes[0], "upper_slots": sizes[1]} if slots else {}
            solver = build_solver(config.algorithm, problem, with_known_curvature(config.settings, p), **tables)
            above: Any = slots[1] if slots else drawn(upper, drawn_size)
            below: Any = slots[0] if slots else drawn(lower, drawn_size)
            large = (
                drawn(upper.of_any_length(), config.snapshot_batch),
                drawn(lower.of_any_length(), config.snapshot_batch),
            )
            self._stream = draws(above, below, solver.needs, config.seed, snapshot=None if slots else large)
        if config.offset_lr is not None:
            _give_own_rate(solver.upper_optimizer, [self.variables.a, self.variables.b], config.offset_lr)
        steps = -(-lower.size // (size * (2 if config.levels == "same" else 1)))
        super().__init__(config, solver, steps_per_epoch=steps, metric="auc")

    def draw(self, number: int) -> Draw:
        """∇²yy g is 2p(1−p) on every batch, so the cross batch, which is encoded anyway, is that of its factors too."""
        draw = super().draw(number)
        if draw.slot is not None or not len(draw.cross):  # tables have fixed batches; plain Adam has one
            return draw
        if self.config.one_batch:
            lower, cross = (_spread(draw.upper, len(role)) for role in (draw.lower, draw.cross))
            draw = replace(draw, lower=lower, cross=cross)
        return replace(draw, hessian=_spread(draw.cross, len(draw.hessian)))

    def reference(self) -> Draw:
        lower, upper = (drawn(level.of_any_length(), LARGER * self.config.batch_size) for level in self._levels)
        return reference_draw(self.config.seed, upper, lower)

    def _cross_entropy(self) -> EncoderHeadProblem:
        """One level: the ordinary loss of the logit. The number b of the AUC serves as its offset."""

        def loss(features: Tensor, batch: Examples) -> Tensor:
            logits = features + self.variables.b
            return nn.functional.binary_cross_entropy_with_logits(logits, batch.positive)

        return EncoderHeadProblem(
            lambda batch: self.encoder(self._read(batch.inputs)),
            loss,
            loss,
            self.encoder.network,
            [self.variables.b],
        )

    def _from_all(self, size: int) -> Callable[[torch.Generator], Examples]:
        """Batches of all training data, whose parts are those of one table."""
        groups = [group for part in self._training for group in part.groups]
        return drawn(self._training[0]._replace(groups=groups), size)

    @torch.no_grad()
    def evaluate(self) -> Scores:
        splits = {"train": self._training} | {name: [split] for name, split in self._judged.items()}
        if len(self._training) > 1:  # two halves, which may be driven apart
            splits |= {"lower half": [self._training[0]], "upper half": [self._training[1]]}
        return {name: self._judge(parts) for name, parts in self.scored(splits).items()}

    def _judge(self, parts: Sequence[Split]) -> dict[str, float]:
        """AUC over whole splits, not a mean over batches."""
        outputs: list[Tensor] = []
        positive: list[Tensor] = []
        for split in parts:
            chunks = [chunk for group in split.groups for chunk in torch.split(group, JUDGED_AT_ONCE)]
            outputs += self.encoder.judged(split.take(chunk) for chunk in chunks)
            positive += [split.positive[chunk.to(split.positive.device)] for chunk in chunks]
        s, c = self._score(torch.cat(outputs)), torch.cat(positive)
        a, b, alpha = self.variables.a, self.variables.b, self.variables.alpha
        if isinstance(self.solver, PlainAdam):
            loss = nn.functional.binary_cross_entropy_with_logits(torch.cat(outputs) + b, c)
        else:
            loss = auc_loss(s, c, a, b, alpha, self.p, self._margin)
        return {"auc": auroc(s, c.long()), "loss": loss.item()}


def drawn_from(config: AucConfig, training: list[int], labels: Sequence[int]) -> tuple[list[int], list[int]]:
    """The examples of the lower and of the upper level.

    In the paper both have the same expectation. With a half for each, Φ is f of the upper half at the alpha* of the
    lower one: the AUC loss of the upper half *minus* p(1−p)(alpha* of the lower − alpha* of the upper half)². Whoever
    minimises that well drives the halves apart (docs/design/0009).
    """
    if config.levels == "same":
        return training, training
    return halves(training, labels, key_of(config.seed, "halves"))


def drawn(split: Split, size: int) -> Callable[[torch.Generator], Examples]:
    """Batches of distinct examples of similar length; a group is chosen in proportion to its size.

    Every example is then equally likely, so a mean over the batch is an unbiased estimate of the mean over the split.
    (A group that is smaller than a batch gives all it has.)
    """
    numbers = [group.tolist() for group in split.groups]

    def batch(generator: torch.Generator) -> Examples:
        chance = random.Random(int(torch.randint(2**62, (), generator=generator)))
        (group,) = chance.choices(numbers, [len(group) for group in numbers])
        return split.examples(torch.tensor(chance.sample(group, min(size, len(group)))))

    return batch


def with_known_curvature(settings: Mapping[str, Any], p: float) -> dict[str, Any]:
    """A Neumann series whose step is "auto" gets 1/(2p(1−p)): the curvature need not be measured."""
    inverse = settings.get("inverse") or {}
    method, step = inverse.get("method"), inverse.get("step")
    is_automatic = step == "auto" or (step is None and method == "neumann")  # which is its default
    if method not in ("neumann", "released_neumann") or not is_automatic:
        return dict(settings)
    return {**settings, "inverse": {**inverse, "step": 1 / (2 * p * (1 - p))}}


def _spread(batches: Sequence[Examples], count: int) -> tuple[Examples, ...]:
    """So many, evenly, of fewer."""
    return tuple(batches[k * len(batches) // count] for k in range(count))


def _give_own_rate(optimizer: Optimizer, parameters: list[nn.Parameter], rate: float) -> None:
    """Take these parameters, as far as the optimiser has them, into a group of their own."""
    (group,) = optimizer.param_groups
    own = {id(p) for p in parameters}
    apart = [p for p in group["params"] if id(p) in own]
    others = [p for p in group["params"] if id(p) not in own]
    assert [id(p) for p in group["params"]] == [id(p) for p in others + apart]  # some rules rely on the order of x
    group["params"] = others
    optimizer.add_param_group({**group, "params": apart, "lr": rate})


def _refuse_large_batches(config: AucConfig, half: int) -> None:
    sizes = {"2 * batch_size": 2 * config.batch_size} if config.one_batch else {"batch_size": config.batch_size}
    if config.algorithm in ("vrbo", "vradambo"):
        sizes["snapshot_batch"] = config.snapshot_batch
    for name, size in sizes.items():
        if size > half:
            raise ConfigError(f"{name}={size}: each level has {half} examples to draw from. Give {half} or fewer.")


def _slots(split: Split, size: int) -> list[Examples]:
    """Fixed batches for a method with a table."""
    return [split.examples(part) for group in split.groups for part in torch.split(group, size)]


def _unchanged(logits: Tensor) -> Tensor:
    return logits
