"""`digits-cleaning`: find the wrong labels among handwritten digits, with data that comes with scikit-learn."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from adambo.algorithms import Algorithm
from adambo.draw import Draw
from adambo.experiments.config import DigitsCleaningConfig
from adambo.experiments.plain_adam import PlainAdam
from adambo.experiments.settings import build_solver
from adambo.experiments.solver_workload import LARGER, StreamWorkload, judged, prepare_device, reference_draw
from adambo.problem import Problem
from adambo.problems.hyper_cleaning import Weighed, hyper_cleaning
from adambo.sources import key_of
from adambo.stream import draws
from adambo.training.metrics import accuracy, auroc
from adambo.training.workload import Scores

CLASSES = 10


class DigitsCleaning(StreamWorkload):
    """x is a logit for each training digit; the classifier y learns from digits in proportion to its sigmoid.

    A label is called wrong when the weight of its digit is below one half. The split "weights" has precision and
    recall of that, and the AUC of the weights as a ranking of right over wrong labels.

    Args:
        config: Of the run.
        train, clean: Digits with some wrong labels, and with right ones for the upper level.
        judged_splits: Further splits, "test" among them.
        wrong: Which training labels are wrong.
    """

    config: DigitsCleaningConfig

    def __init__(
        self,
        config: DigitsCleaningConfig,
        train: Weighed,
        clean: Weighed,
        judged_splits: dict[str, Weighed],
        wrong: Tensor,
    ) -> None:
        self._splits, self._wrong, self._levels = {"train": clean} | judged_splits, wrong, (clean, train)
        device = train.inputs.device
        self.logits = nn.Parameter(torch.zeros(len(wrong), device=device))
        self.classifier = make_classifier(train.inputs.shape[1], config.hidden).to(device)
        size = config.batch_size
        above: Any = drawn(clean, size)
        below: Any = drawn(train, size)
        large: Any = (drawn(clean, 2 * size), drawn(train, 2 * size))
        solver: Algorithm
        if config.algorithm == "adam":
            solver = PlainAdam(self._cross_entropy(), **config.settings)
            above = drawn(train, size)
        else:
            tables = {}
            if config.algorithm == "saba":
                above, below, large = parts(clean, size), parts(train, size), None
                tables = {"upper_slots": sizes(above), "lower_slots": sizes(below)}
            problem = hyper_cleaning(self.logits, self.classifier, config.mu)
            solver = build_solver(config.algorithm, problem, config.settings, **tables)
        self._stream = draws(above, below, solver.needs, config.seed, snapshot=large)
        super().__init__(config, solver, steps_per_epoch=-(-len(wrong) // size), metric="accuracy")

    def reference(self) -> Draw:
        size = LARGER * self.config.batch_size
        return reference_draw(self.config.seed, *(drawn(level, size) for level in self._levels))

    def _cross_entropy(self) -> Problem:
        """One level: the classifier learns from all labels as they are; the weights stay at one half."""

        def loss(batch: Weighed) -> Tensor:
            return nn.functional.cross_entropy(self.classifier(batch.inputs), batch.labels)

        return Problem(loss, loss, x=[self.logits], y=self.classifier)

    @torch.no_grad()
    def evaluate(self) -> Scores:
        scores: dict[str, dict[str, float]] = {}
        with judged(self.classifier):
            for name, split in self.scored(self._splits).items():
                outputs = self.classifier(split.inputs)
                loss = nn.functional.cross_entropy(outputs, split.labels)
                scores[name] = {"accuracy": accuracy(outputs.argmax(1), split.labels), "loss": loss.item()}
        return scores | {"weights": self._found()}

    def _found(self) -> dict[str, float]:
        weights, wrong = self.logits.sigmoid(), self._wrong
        called = weights < 0.5
        right_calls = int((called & wrong).sum())
        found = {
            "precision": right_calls / max(1, int(called.sum())),
            "recall": right_calls / max(1, int(wrong.sum())),
        }
        if 0 < int(wrong.sum()) < len(wrong):
            found["auc"] = auroc(-weights, wrong.long())
        return found


def build(config: DigitsCleaningConfig) -> DigitsCleaning:
    from sklearn.datasets import load_digits

    device = prepare_device(config)
    digits = load_digits()
    chance = random.Random(key_of(config.seed, "split"))
    order = chance.sample(range(len(digits.target)), len(digits.target))
    train, clean = order[: config.train_examples], order[config.train_examples :][: config.clean_examples]
    test = order[config.train_examples + config.clean_examples :]
    kept = len(train) - round(config.validation * len(train))
    train, held_out = train[:kept], train[kept:]

    labels = torch.tensor(digits.target)
    wrong = torch.zeros(len(train), dtype=torch.bool)
    wrong[chance.sample(range(len(train)), round(config.wrong_share * len(train)))] = True
    shift = torch.tensor([chance.randrange(1, CLASSES) for _ in train])
    given = torch.where(wrong, (labels[train] + shift) % CLASSES, labels[train])
    images = torch.tensor(digits.data, dtype=torch.float32) / 16

    def examples(chosen: list[int], named: Tensor) -> Weighed:
        return Weighed(torch.arange(len(chosen), device=device), images[chosen].to(device), named.to(device))

    splits = {"validation": examples(held_out, labels[held_out])} if held_out else {}
    splits["test"] = examples(test, labels[test])
    torch.manual_seed(config.seed)
    return DigitsCleaning(config, examples(train, given), examples(clean, labels[clean]), splits, wrong.to(device))


def make_classifier(inputs: int, hidden: int) -> nn.Sequential:
    if hidden == 0:
        return nn.Sequential(nn.Linear(inputs, CLASSES))
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def drawn(split: Weighed, size: int) -> Any:
    """Batches of distinct examples."""

    def batch(generator: torch.Generator) -> Weighed:
        chosen = torch.randperm(len(split.labels), generator=generator)[:size].to(
            split.labels.device, non_blocking=True
        )
        return Weighed(*(part[chosen] for part in split))

    return batch


def parts(split: Weighed, size: int) -> list[Weighed]:
    """Fixed batches for a method with a table."""
    return [Weighed(*cut) for cut in zip(*(torch.split(part, size) for part in split), strict=True)]


def sizes(batches: list[Weighed]) -> list[int]:
    return [len(batch.labels) for batch in batches]
