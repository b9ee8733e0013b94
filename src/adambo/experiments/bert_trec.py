"""`bert-trec`: few-shot question classification on a BERT that is trained from scratch."""

from __future__ import annotations

import torch

from adambo.data.catalogue import locate_word_pieces
from adambo.data.files import data_folder
from adambo.data.labelled import Labelled
from adambo.data.sequences import Sequences
from adambo.data.tasks import distinct_indices, split_indices
from adambo.data.trec import read_trec
from adambo.data.word_pieces import read_vocabulary, word_piece_ids
from adambo.experiments.config import BertTrecConfig
from adambo.experiments.hyper_representation import HyperRepresentation, Inputs, Shelves, TaskSet, tasks_of
from adambo.experiments.solver_workload import Encoder, padded_to, padding_is_left_out, prepare_device
from adambo.sources import key_of


def build(config: BertTrecConfig) -> HyperRepresentation:
    from adambo.models.bert import BertEncoder  # takes seconds to import

    device, folder = prepare_device(config), data_folder(config.data_dir)
    vocabulary = locate_word_pieces(folder)
    train, test = read_trec(folder, "train"), read_trec(folder, "test")
    is_maml = config.algorithm == "maml"  # which wants rows of one shape for all tasks
    packs = padding_is_left_out(config) and not is_maml

    def table(split: Labelled) -> Inputs:
        questions = Sequences(word_piece_ids(split.texts, vocabulary, config.max_length), device, padded_to(device))
        return Shelves(questions) if packs else questions

    tables = [table(train), table(test)]
    # 72 questions of the training file are repeats, and 11 are in the test file too: each is used once, on one side.
    distinct = distinct_indices(train.texts, apart_from=test.texts)
    split = split_indices(len(distinct), config.validation, key_of(config.seed, "validation"))
    kept, held_out = ([distinct[k] for k in part] for part in split)
    classes = len(train.classes)
    splits = {"train": TaskSet(tables[0], tasks_of(config, train.labels, classes, "train", kept))}
    if held_out:
        splits["validation"] = TaskSet(tables[0], tasks_of(config, train.labels, classes, "validation", held_out))
    splits["test"] = TaskSet(tables[1], tasks_of(config, test.labels, classes, "test"))

    torch.manual_seed(config.seed)
    words = len(read_vocabulary(vocabulary))
    bert = BertEncoder(
        words, config.layers, config.heads, config.hidden, config.feed_forward, config.dropout, config.max_length
    ).to(device)
    encoder = Encoder(
        config,
        bert,
        (lambda network, packed: network.of_packed(packed))
        if packs
        else (lambda network, padded: network(padded.tokens, padded.mask)),
    )
    # Every task has its own copies of 67 million weights: those of all 25 ran out of 100 GiB of an H200.
    return HyperRepresentation(
        config, encoder, config.hidden, classes, splits, device, at_once=config.precision != "bf16" and 9
    )
