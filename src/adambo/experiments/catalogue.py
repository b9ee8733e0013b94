"""The experiments by name: what they are, what they need, how they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from adambo.algorithms import ALL
from adambo.experiments.auc_config import AucRnnConfig, AucTransformerConfig, CancerAucConfig
from adambo.experiments.config import (
    BertTrecConfig,
    DigitsCleaningConfig,
    DigitsConfig,
    RnnSnliConfig,
    RunConfig,
)
from adambo.training.workload import Workload

META_LEARNERS = ("maml", "anil")
HYPER_REPRESENTATION = ("maml", "anil", "stocbio", "ttsa", "saba", "masoba", "borep", "slip", "adambo")
AUC = ("stocbio", "ttsa", "saba", "masoba", "sustain", "vrbo", "borep", "slip", "accbo", "adambo")
EVERY = tuple(name.lower() for name in ALL)
EVERY_BILEVEL = tuple(
    name for name in EVERY if name not in META_LEARNERS
)  # which have a lower problem, not an inner loop


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: On the command line.
        summary: One line.
        config: What can be set.
        compared: The algorithms that `--algorithms all` means.
        allowed: Those that can run at all; "adam" is plain Adam on cross-entropy.
        metric: What is shown; larger is better.
        chance: What guessing gets.
        module: Where `build` is.
        data: The data sets it reads, names of `adambo.data.catalogue.DATASETS`.
    """

    name: str
    summary: str
    config: type[RunConfig]
    compared: tuple[str, ...]
    allowed: tuple[str, ...]
    metric: str
    chance: Callable[[Any], float]
    module: str
    data: Callable[[Any], tuple[str, ...]] = lambda config: ()

    def build(self, config: RunConfig) -> Workload:
        """Read the data, make network, problem and solver. Imported late: some networks take seconds to import."""
        workload: Workload = import_module(f"adambo.experiments.{self.module}").build(config)
        return workload


@dataclass(frozen=True)
class Study:
    """Several experiments that answer one question.

    Attributes:
        name: On the command line.
        summary: One line.
        runs: (experiment, algorithm, values by dotted key) of each run.
    """

    name: str
    summary: str
    runs: tuple[tuple[str, str, dict[str, Any]], ...]


def _guess_way(config: Any) -> float:
    return 1.0 / float(config.ways)


_EXPERIMENTS = (
    Experiment(
        "bert-trec", "few-shot question classification, 8-layer BERT from scratch, one linear head per task",
        BertTrecConfig, HYPER_REPRESENTATION, (*EVERY, "adam"), "accuracy", _guess_way, "bert_trec",
        lambda config: ("trec", "wordpiece"),
    ),
    Experiment(
        "rnn-snli", "few-shot inference between sentences, 3-layer RNN, one linear head per task",
        RnnSnliConfig, HYPER_REPRESENTATION, (*EVERY, "adam"), "accuracy", _guess_way, "rnn_snli",
        lambda config: ("snli", config.vectors),
    ),
    Experiment(
        "auc-transformer", "deep AUC on imbalanced tweets (p = 0.9), 2-layer Transformer",
        AucTransformerConfig, (*AUC, "adam"), (*EVERY_BILEVEL, "adam"), "auc", lambda config: 0.5, "tweet_auc",
        lambda config: ("sentiment140", config.vectors),
    ),
    Experiment(
        "auc-rnn", "deep AUC on imbalanced tweets (p = 0.8), 2-layer RNN",
        AucRnnConfig, (*AUC, "adam"), (*EVERY_BILEVEL, "adam"), "auc", lambda config: 0.5, "tweet_auc",
        lambda config: ("sentiment140", config.vectors),
    ),
    Experiment(
        "digits", "few-shot handwritten digits, a small convolutional encoder, one linear head per task",
        DigitsConfig, EVERY, (*EVERY, "adam"), "accuracy", _guess_way, "digits",
    ),
    Experiment(
        "digits-cleaning", "find the 40 % of wrong labels among handwritten digits, one weight per digit",
        DigitsCleaningConfig, (*EVERY_BILEVEL, "adam"), (*EVERY_BILEVEL, "adam"), "accuracy", lambda config: 0.1,
        "digits_cleaning",
    ),
    Experiment(
        "cancer-auc", "AUC on an imbalanced medical table, a small network",
        CancerAucConfig, (*EVERY_BILEVEL, "adam"), (*EVERY_BILEVEL, "adam"), "auc", lambda config: 0.5, "cancer_auc",
    ),
)  # fmt: skip

_LAMBDAS = tuple(10.0**k for k in range(-8, 0))
_STUDIES = (
    Study(
        "lambda-sensitivity", "AdamBO with λ (settings.eps) from 1e-8 to 1e-1 on auc-rnn, auc-transformer, bert-trec",
        tuple(
            (experiment, "adambo", {"settings.eps": value})
            for experiment in ("auc-rnn", "auc-transformer", "bert-trec")
            for value in _LAMBDAS
        ),
    ),
)  # fmt: skip

EXPERIMENTS: dict[str, Experiment | Study] = {each.name: each for each in (*_EXPERIMENTS, *_STUDIES)}
