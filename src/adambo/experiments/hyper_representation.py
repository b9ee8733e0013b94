"""The hyper-representation experiments: few-shot tasks made of questions, sentence pairs or digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adambo.algorithms import ANIL, MAML, SABA, Algorithm
from adambo.data.sequences import Packed, Sequences, WordByWord
from adambo.data.tasks import Tasks, sample_tasks
from adambo.draw import Draw
from adambo.experiments.config import HyperRepresentationConfig
from adambo.experiments.plain_adam import PlainAdam
from adambo.experiments.settings import build_solver
from adambo.experiments.solver_workload import LARGER, Encoder, SolverWorkload
from adambo.problem import EncoderHeadProblem
from adambo.problems.hyper_representation import Episodes, Heads, fine_tuned, hyper_representation
from adambo.sources import key_of
from adambo.training.workload import Scores

JUDGED_AT_ONCE = 1024  # examples in one call of the encoder when it is judged


class Inputs(Protocol):
    """Examples on the device, by their numbers."""

    def take(self, indices: Tensor) -> Any:
        """What the encoder takes for these examples."""

    def by_length(self, indices: Tensor, size: int) -> list[Tensor]:
        """The numbers in groups of examples of similar length."""


class TaskSet(NamedTuple):
    """The tasks of one split, and the examples they are made of."""

    inputs: Inputs
    tasks: Tasks


class HyperRepresentation(SolverWorkload):
    """Few-shot tasks; every step visits `tasks_per_step` of them, every epoch visits each once.

    Args:
        config: Of the run.
        encoder: Makes features of inputs.
        features: How many.
        classes: Of the data set, which is what a head tells apart.
        splits: "train", "test" and perhaps "validation".
        device: Where the run computes.
        at_once: How many tasks of a step MAML goes through at once, True for all; inputs are then tensors of one shape.
            (Not in bf16: torch.vmap loses its way among the types of autocast.)
    """

    config: HyperRepresentationConfig

    def __init__(
        self,
        config: HyperRepresentationConfig,
        encoder: Encoder,
        features: int,
        classes: int,
        splits: dict[str, TaskSet],
        device: torch.device,
        at_once: bool | int = False,
    ) -> None:
        self.encoder, self.splits, self.device = encoder, splits, device
        self._at_once = config.settings.get("at_once", at_once) if config.algorithm == "maml" else False
        self._per_task = config.adapter == "per_task" and config.algorithm not in ("maml", "anil", "adam")
        count = config.tasks if self._per_task else 1
        self.heads = Heads(
            nn.Parameter(torch.zeros(count, classes, features, device=device)),
            nn.Parameter(torch.zeros(count, classes, device=device)),
        )
        self._labels = splits["train"].tasks.labels.to(device)
        slots = config.tasks // config.tasks_per_step
        solver: Algorithm
        if config.algorithm == "adam":
            solver = PlainAdam(self._single_level(config.mu), **config.settings)
        else:
            adapter: Literal["per_task", "shared"] = "per_task" if self._per_task else "shared"
            problem = hyper_representation(
                self._encode, encoder.network, self.heads, config.mu, adapter, config.microbatches, concatenate=True
            )
            extra = {"lower_slots": slots, "upper_slots": slots} if config.algorithm == "saba" else {}
            extra |= {"at_once": at_once} if self._at_once and "at_once" not in config.settings else {}
            solver = build_solver(config.algorithm, problem, config.settings, **extra)
        super().__init__(config, solver, steps_per_epoch=slots, metric="accuracy")

    def _single_level(self, mu: float) -> EncoderHeadProblem:
        """All examples of a task are alike, and one head learns with the encoder."""

        def loss(features: Tensor, episodes: Episodes) -> Tensor:
            return self.heads.losses(features, episodes.labels).mean()

        two_levels = hyper_representation(self._encode, self.encoder.network, self.heads, mu, "shared")
        return EncoderHeadProblem(two_levels.encoder, loss, loss, self.encoder.network, list(self.heads))

    def begin(self) -> None:
        chunks = permutation(self.config.seed, 0, self.config.tasks).view(self.steps_per_epoch, -1)
        steps = self.config.warm_start
        if self._per_task:
            for chunk in chunks:
                self.solver.warm_start([self._episodes(chunk)] * steps)
        else:  # one head makes so many steps in all
            self.solver.warm_start([self._episodes(chunks[k % len(chunks)]) for k in range(steps)])
        if isinstance(self.solver, SABA):
            episodes = [self._episodes(chunk) for chunk in chunks]
            self.solver.fill_memory(lower=episodes, upper=episodes)

    def reference(self) -> Draw:
        count = min(LARGER * self.config.tasks_per_step, self.config.tasks)
        episodes = self._episodes(permutation(self.config.seed, 0, self.config.tasks)[:count])
        return Draw(upper=(episodes,), cross=(episodes,), seed=key_of(self.config.seed, "reference"))

    def draw(self, number: int) -> Any:
        epoch, place = divmod(number, self.steps_per_epoch)
        seed = key_of(self.config.seed, "step", number)
        slot = None
        if self.solver.needs.slots != (0, 0):  # a table has a row for every fixed set of tasks
            slot = int(permutation(self.config.seed, epoch, self.steps_per_epoch)[place])
            ids = permutation(self.config.seed, 0, self.config.tasks).view(self.steps_per_epoch, -1)[slot]
        else:
            ids = permutation(self.config.seed, epoch, self.config.tasks).view(self.steps_per_epoch, -1)[place]
        if isinstance(self.solver, MAML | ANIL):
            tasks = [self._episodes(one) for one in ids.view(-1, 1)]
            if self._at_once:
                tasks = self._padded_alike(tasks)
            return [self._draw_of(one, key_of(seed, k)) for k, one in enumerate(tasks)]
        return self._draw_of(self._episodes(ids), seed, slot)

    def _padded_alike(self, tasks: list[Episodes]) -> list[Episodes]:
        """The same tasks, with inputs in the place of their numbers."""
        together = self.splits["train"].inputs.take(torch.cat([each.inputs for each in tasks]))
        apart = [tree_map(lambda t, k=k: t.tensor_split(len(tasks))[k], together) for k in range(len(tasks))]
        return [replace(each, inputs=inputs) for each, inputs in zip(tasks, apart, strict=True)]

    def _draw_of(self, episodes: Episodes, seed: int, slot: int | None = None) -> Draw:
        needs = self.solver.needs
        level = seed % needs.levels if needs.levels else None
        whole = Draw.of(episodes, episodes, needs, level)
        return Draw(
            whole.upper, whole.lower, whole.cross, whole.hessian, level, seed,
            slot=None if slot is None else (slot, slot), snapshot=whole,
        )  # fmt: skip

    def _episodes(self, ids: Tensor) -> Episodes:
        tasks = self.splits["train"].tasks
        on_device = ids.to(self.device, non_blocking=True)
        return Episodes(on_device, tasks.examples[ids].flatten(), self._labels[on_device], tasks.support)

    def _encode(self, examples: Any) -> Tensor:
        """The features of training examples, by their numbers: such batches can be joined and divided at will."""
        are_numbers = isinstance(examples, Tensor)
        return self.encoder(self.splits["train"].inputs.take(examples) if are_numbers else examples)

    @torch.no_grad()
    def evaluate(self) -> Scores:
        return {name: self._score(split, own=name == "train") for name, split in self.scored(self.splits).items()}

    def _score(self, split: TaskSet, own: bool) -> dict[str, float]:
        """Fine-tune copies of heads on the support sets, judge them by the query sets.

        Tasks of training start from their own heads; others from the shared head or, where there is none, from zero.
        """
        features = self._features_of(split)
        labels, n = split.tasks.labels.to(self.device), split.tasks.support
        start = self.heads
        if not own and self._per_task:
            start = Heads(*(torch.zeros_like(part[:1]) for part in self.heads))
        heads = fine_tuned(
            start, features[:, :n], labels[:, :n], self.config.mu, self.config.fine_tune_steps, self.config.fine_tune_lr
        )
        right = heads.logits(features[:, n:]).argmax(1) == labels[:, n:]
        loss = heads.losses(features[:, n:], labels[:, n:]).mean()
        return {"accuracy": int(right.sum()) / right.numel(), "loss": loss.item()}

    def _features_of(self, split: TaskSet) -> Tensor:
        """(task, example, feature); an example that occurs in several tasks is encoded once."""
        used, places = torch.unique(split.tasks.examples, return_inverse=True)
        groups = split.inputs.by_length(used, JUDGED_AT_ONCE)
        outputs = self.encoder.judged(split.inputs.take(group) for group in groups)
        table = outputs[0].new_empty(len(used), outputs[0].shape[1])
        for group, output in zip(groups, outputs, strict=True):
            table[torch.searchsorted(used, group).to(self.device)] = output
        return table[places.to(self.device)]


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> Tensor:
    """The order of one epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(key_of(seed, "order", epoch)))


class Pairs:
    """Sentence pairs: two tables of equal length."""

    def __init__(self, first: Inputs, second: Inputs) -> None:
        self._first, self._second = first, second

    def take(self, indices: Tensor) -> Any:
        return self._first.take(indices), self._second.take(indices)

    def by_length(self, indices: Tensor, size: int) -> list[Tensor]:
        return self._first.by_length(indices, size)


class PairsByWords:
    """Sentence pairs without padding: one table, all first sentences and then all second ones."""

    def __init__(self, sentences: Sequences) -> None:
        self._sentences, self._count = sentences, len(sentences) // 2

    def take(self, indices: Tensor) -> WordByWord:
        return self._sentences.word_by_word(torch.cat([indices, indices + self._count]))

    def by_length(self, indices: Tensor, size: int) -> list[Tensor]:
        return self._sentences.by_length(indices, size)


class Shelves:
    """Sentences that are packed, several on a shelf."""

    def __init__(self, sentences: Sequences) -> None:
        self._sentences = sentences

    def take(self, indices: Tensor) -> Packed:
        return self._sentences.pack(indices)

    def by_length(self, indices: Tensor, size: int) -> list[Tensor]:
        return self._sentences.by_length(indices, size)


class Images:
    """Images of one size, (example, channel, row, column)."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def take(self, indices: Tensor) -> Tensor:
        return self._images[indices.to(self._images.device, non_blocking=True)]

    def by_length(self, indices: Tensor, size: int) -> list[Tensor]:
        return list(torch.split(indices, size))


def tasks_of(
    config: HyperRepresentationConfig,
    labels: Sequence[int],
    classes: int,
    name: str,
    among: Sequence[int] | None = None,
) -> Tasks:
    """The tasks of split `name`; only test tasks may be told to use small classes."""
    return sample_tasks(
        labels,
        classes=classes,
        tasks=config.tasks if name == "train" else config.test_tasks,
        ways=config.ways,
        shots=config.shots,
        queries=config.queries,
        seed=key_of(config.seed, name, "tasks"),
        allow_small_classes=config.allow_small_classes and name == "test",
        among=among,
    )
