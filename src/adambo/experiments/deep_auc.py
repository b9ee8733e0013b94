"""What the AUC experiments share: batches, slots and the judgement by the AUC of whole splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adambo.algorithms import Algorithm
from adambo.draw import Draw
from adambo.errors import ConfigError
from adambo.experiments.config import AucConfig
from adambo.experiments.plain_adam import PlainAdam
from adambo.experiments.settings import build_solver
from adambo.experiments.solver_workload import LARGER, Encoder, StreamWorkload, reference_draw
from adambo.problem import EncoderHeadProblem
from adambo.problems.deep_auc import AucVariables, Examples, auc_loss, deep_auc
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

    def of_any_length(self) -> Split:
        return self._replace(groups=[torch.cat(self.groups)])

    def examples(self, indices: Tensor) -> Examples:
        """A batch knows the numbers of its examples, not the examples: so batches can be joined and divided at will."""
        return Examples(indices, self.positive[indices.to(self.positive.device, non_blocking=True)])


class DeepAuc(StreamWorkload):
    """One epoch is as many steps as one pass over the lower level's half of the training data takes.

    Args:
        config: Of the run.
        encoder: inputs -> the last logit, one number per example.
        lower, upper: The halves of the training data, parts of one table.
        judged: Further splits, "test" among them.
        p: Share of positives in the training data.
        device: Where the run computes.
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
    ) -> None:
        self.encoder, self._halves, self._judged, self.p = encoder, (lower, upper), judged, p
        self.variables = AucVariables().to(device)
        self._score = torch.sigmoid if config.score == "sigmoid" else _unchanged
        self._margin = config.margin
        size = config.batch_size
        _refuse_large_batches(config, min(sum(map(len, half.groups)) for half in self._halves))
        solver: Algorithm
        if config.algorithm == "adam":
            solver = PlainAdam(self._cross_entropy(), **config.settings)
            self._stream = draws(self._from_both(lower, upper, size), lambda _: None, solver.needs, config.seed)
        else:
            problem = deep_auc(
                lambda examples: self._score(encoder(lower.take(examples))),
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
            above: Any = slots[1] if slots else drawn(upper, size)
            below: Any = slots[0] if slots else drawn(lower, size)
            large = (
                drawn(upper.of_any_length(), config.snapshot_batch),
                drawn(lower.of_any_length(), config.snapshot_batch),
            )
            self._stream = draws(above, below, solver.needs, config.seed, snapshot=None if slots else large)
        steps = -(-sum(len(group) for group in lower.groups) // size)
        super().__init__(config, solver, steps_per_epoch=steps, metric="auc")

    def reference(self) -> Draw:
        lower, upper = (drawn(half.of_any_length(), LARGER * self.config.batch_size) for half in self._halves)
        return reference_draw(self.config.seed, upper, lower)

    def _cross_entropy(self) -> EncoderHeadProblem:
        """One level: the ordinary loss of the logit. The number b of the AUC serves as its offset."""

        def loss(features: Tensor, batch: Examples) -> Tensor:
            logits = features + self.variables.b
            return nn.functional.binary_cross_entropy_with_logits(logits, batch.positive)

        return EncoderHeadProblem(
            lambda batch: self.encoder(self._halves[0].take(batch.inputs)),
            loss,
            loss,
            self.encoder.network,
            [self.variables.b],
        )

    @staticmethod
    def _from_both(lower: Split, upper: Split, size: int) -> Callable[[torch.Generator], Examples]:
        """Batches of the same size as one of each level's together, from all training data."""
        return drawn(lower._replace(groups=[*lower.groups, *upper.groups]), 2 * size)  # parts of one table

    @torch.no_grad()
    def evaluate(self) -> Scores:
        both = {"train": list(self._halves)}
        return {name: self._judge(parts) for name, parts in (both | {k: [v] for k, v in self._judged.items()}).items()}

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


def _refuse_large_batches(config: AucConfig, half: int) -> None:
    sizes = {"batch_size": config.batch_size}
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
