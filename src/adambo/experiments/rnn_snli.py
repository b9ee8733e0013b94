"""`rnn-snli`: few-shot inference between sentences on an RNN over word vectors."""

from __future__ import annotations

import torch

from adambo.data.files import data_folder
from adambo.data.labelled import Labelled
from adambo.data.sequences import Sequences
from adambo.data.snli import read_snli
from adambo.data.tasks import split_indices
from adambo.data.word_vectors import read_vectors
from adambo.data.words import word_ids
from adambo.experiments.config import RnnSnliConfig
from adambo.experiments.hyper_representation import HyperRepresentation, Inputs, Pairs, PairsByWords, TaskSet, tasks_of
from adambo.experiments.solver_workload import Encoder, padded_to, padding_is_left_out, prepare_device
from adambo.models.recurrent import PairEncoder, SentenceRNN
from adambo.sources import key_of


def build(config: RnnSnliConfig) -> HyperRepresentation:
    device, folder = prepare_device(config), data_folder(config.data_dir)
    vectors = read_vectors(folder, config.vectors)

    is_maml = config.algorithm == "maml"  # which wants rows of one shape for all tasks
    by_words = padding_is_left_out(config) and not is_maml

    def pairs(split: Labelled) -> Inputs:
        assert split.second is not None
        first, second = (word_ids(texts, vectors.words, config.max_length) for texts in (split.texts, split.second))
        if by_words:
            return PairsByWords(Sequences([*first, *second], device))
        return Pairs(*(Sequences(rows, device, padded_to(device)) for rows in (first, second)))

    train, test = read_snli(folder, "train"), read_snli(folder, "test")
    classes = len(train.classes)
    # A premise occurs in several pairs; all of them are on one side, so that no premise is on both.
    premises = [text.lower() for text in train.texts]
    kept, held_out = split_indices(len(train), config.validation, key_of(config.seed, "validation"), groups=premises)
    chosen = {"train": tasks_of(config, train.labels, classes, "train", kept)}
    if held_out:
        chosen["validation"] = tasks_of(config, train.labels, classes, "validation", held_out)
    # Of 550,000 pairs the tasks use a few thousand: only those are tokenised and brought to the device.
    splits = {}
    for name, tasks in chosen.items():
        used, places = torch.unique(tasks.examples, return_inverse=True)
        splits[name] = TaskSet(pairs(train.select(used.tolist())), tasks._replace(examples=places))
    tests = tasks_of(config, test.labels, classes, "test")
    splits["test"] = TaskSet(pairs(test), tests)

    torch.manual_seed(config.seed)
    sentence = SentenceRNN(
        vectors.table, config.layers, config.hidden, config.dropout, config.pooling, config.vector_scale
    )
    network = PairEncoder(sentence, config.features, config.pair_features).to(device)
    encoder = Encoder(
        config,
        network,
        (lambda called, sentences: called.of_words(sentences)) if by_words else (lambda called, both: called(*both)),
    )
    # Every task has its own copies of 151 million weights, so a few of them at a time.
    return HyperRepresentation(
        config, encoder, config.features, classes, splits, device, at_once=config.precision != "bf16" and 5
    )
