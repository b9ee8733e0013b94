"""`auc-transformer` and `auc-rnn`: deep AUC on imbalanced tweets."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from adambo.data.files import data_folder
from adambo.data.imbalance import imbalanced, left_out, stratified
from adambo.data.labelled import Labelled
from adambo.data.sentiment140 import read_sentiment140
from adambo.data.sequences import Packed, Padded, Sequences, WordByWord
from adambo.data.word_vectors import WordVectors, read_vectors
from adambo.data.words import word_ids
from adambo.experiments.auc_config import AucRnnConfig, AucTransformerConfig, TweetAucConfig
from adambo.experiments.deep_auc import DeepAuc, Split, Take, drawn_from
from adambo.experiments.solver_workload import Encoder, padded_to, padding_is_left_out, prepare_device
from adambo.models.recurrent import SentenceRNN
from adambo.models.transformer import ScoreHead, SentenceTransformer
from adambo.sources import key_of


class TweetScore(nn.Module):
    """A network of sentences with a score on top."""

    def __init__(self, sentence: SentenceRNN | SentenceTransformer, width: int) -> None:
        super().__init__()
        self.sentence, self.head = sentence, ScoreHead(width)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = self.head(self.sentence(tokens, lengths))
        return score

    def without_padding(self, rows: Packed | WordByWord) -> torch.Tensor:
        sentence: Any = self.sentence  # an RNN reads word by word, a Transformer packed rows
        score: torch.Tensor = self.head(
            sentence.of_words(rows) if isinstance(rows, WordByWord) else sentence.of_packed(rows)
        )
        return score


def build(config: TweetAucConfig) -> DeepAuc:
    device, folder = prepare_device(config), data_folder(config.data_dir)
    vectors = read_vectors(folder, config.vectors)

    def table(split: Labelled) -> tuple[Sequences, torch.Tensor]:
        rows = word_ids(split.texts, vectors.words, config.max_length)
        positive = torch.tensor(split.labels, dtype=torch.float32, device=device)
        return Sequences(rows, device, padded_to(device)), positive

    tweets = read_sentiment140(folder, "train", config.uniform_only)
    kept = imbalanced(tweets.labels, config.positive_share, config.minority_kept, key_of(config.seed, "imbalance"))
    train = tweets.select(kept)
    spare = left_out(len(tweets), kept, config.validation, key_of(config.seed, "validation"))
    share = 0.0 if spare else config.validation
    training, held_out = stratified(train.labels, share, key_of(config.seed, "validation"))
    train_table, train_positive = table(train)

    def split(indices: list[int]) -> Split:
        count = max(1, min(config.length_buckets, len(indices) // (2 * config.batch_size)))  # a group fills a batch
        return Split(train_table.take, train_positive, train_table.buckets(torch.tensor(indices), count))

    lower, upper = (split(part) for part in drawn_from(config, training, train.labels))

    def whole(tweets: Labelled) -> Split:
        rows, positive = table(tweets)
        return Split(rows.take, positive, rows.buckets(torch.arange(len(rows)), config.length_buckets))

    judged = {"validation": whole(tweets.select(spare))} if spare else {}
    judged |= {"validation": split(held_out)} if held_out else {}
    judged["test"] = whole(read_sentiment140(folder, config.test_split, config.uniform_only))
    p = sum(train.labels[k] for k in training) / len(training)

    torch.manual_seed(config.seed)
    network = make_network(config, vectors).to(device)

    def call(called: Any, rows: Packed | WordByWord | Padded) -> torch.Tensor:
        score: torch.Tensor = called(*rows) if isinstance(rows, Padded) else called.without_padding(rows)
        return score

    encoder = Encoder(config, network, call)
    return DeepAuc(config, encoder, lower, upper, judged, p, device, without_padding(config, train_table))


def without_padding(config: TweetAucConfig, rows: Sequences) -> Take | None:
    """How a step takes its batches, which are of different lengths; rows of one length after the other are judged."""
    if not padding_is_left_out(config) or (isinstance(config, AucTransformerConfig) and config.pooling != "mean"):
        return None
    return rows.pack if isinstance(config, AucTransformerConfig) else rows.word_by_word


def make_network(config: TweetAucConfig, vectors: WordVectors) -> TweetScore:
    if isinstance(config, AucTransformerConfig):
        transformer = SentenceTransformer(
            vectors.table,
            config.layers,
            config.heads,
            config.hidden,
            config.dropout,
            config.pooling,
            config.vector_scale,
        )
        return TweetScore(transformer, vectors.table.shape[1])
    assert isinstance(config, AucRnnConfig)
    rnn = SentenceRNN(vectors.table, config.layers, config.hidden, config.dropout, config.pooling, config.vector_scale)
    return TweetScore(rnn, config.hidden)
