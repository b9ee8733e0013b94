"""Sentences and pairs of sentences through a plain RNN over frozen word vectors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from adambo.data.sequences import Padded, WordByWord
from adambo.errors import ConfigError

Pooling = Literal["max", "mean", "last"]


class FrozenVectors(nn.Module):
    """Word vectors by the numbers of `adambo.data.words`: 0 is padding, row r of the table has r + 1, then unknown.

    Each dimension is standardised over the table (mean 0, variance 1). The vectors as they come are long (norms around
    40 in the 300-d table), which drives a tanh into saturation, and their dimensions differ in scale. Padding and
    unknown are zero, the mean vector.

    The vectors are neither parameters nor part of a state dict: they are data, and a checkpoint needs no copy of them.
    """

    vectors: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        variance, mean = torch.var_mean(table.float(), dim=0, correction=0)
        # A dimension that is the same for all words says nothing; it becomes 0 and not 0/0.
        standardised = (table - mean) / torch.where(variance > 0, variance.sqrt(), torch.inf)
        vectors = F.pad(standardised, (0, 0, 1, 1))
        self.register_buffer("vectors", vectors, persistent=False)
        self.width = table.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.vectors)


def pool(states: Tensor, lengths: Tensor, how: Pooling) -> Tensor:
    """One vector per row: the maximum, the mean or the last of its first `lengths` states; padding has no influence.

    Args:
        states: (n, length, width)
        lengths: (n,), all 1 or more
        how: "max", "mean" or "last"
    """
    if how == "last":
        last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, last).squeeze(1)
    padding = (torch.arange(states.shape[1], device=states.device) >= lengths[:, None]).unsqueeze(2)
    if how == "max":
        return states.masked_fill(padding, -torch.inf).amax(dim=1)
    return states.masked_fill(padding, 0).sum(dim=1) / lengths[:, None].to(states.dtype)


class SentenceRNN(nn.Module):
    """A tanh RNN over word vectors; the states of a sentence are pooled to one vector.

    An RNN reads from left to right, so padding on the right cannot change the states of a sentence, and pooling leaves
    the rest out. Where one batch has long and short sentences, `of_words` spends nothing on padding.

    Args:
        table: (n, d) vectors of the words, see `FrozenVectors`.
        layers: Of the RNN.
        hidden: Width of its states and of the result.
        dropout: Between layers, in training.
        pooling: See `pool`.
    """

    def __init__(self, table: Tensor, layers: int, hidden: int, dropout: float, pooling: Pooling) -> None:
        super().__init__()
        check_pooling(pooling, ("max", "mean", "last"))
        self.words = FrozenVectors(table)
        # After the last layer there is no dropout, and torch warns where one layer is to have some.
        self.rnn = nn.RNN(self.words.width, hidden, layers, dropout=dropout if layers > 1 else 0.0, batch_first=True)
        self.width, self.pooling = hidden, pooling

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, length) numbers of words and (n,) lengths -> (n, hidden)"""
        states, _ = self.rnn(self.words(tokens))
        return pool(states, lengths, self.pooling)

    def of_words(self, sentences: WordByWord) -> Tensor:
        """The same of n sentences without padding -> (n, hidden)"""
        tokens, sizes, places, lengths = sentences
        states = self.rnn(PackedSequence(self.words(tokens), sizes))[0].data
        table = states.new_zeros(len(lengths) * len(sizes), self.width).index_copy(0, places, states)
        return pool(table.view(len(lengths), len(sizes), self.width), lengths, self.pooling)


class PairEncoder(nn.Module):
    """Features of a pair of sentences with vectors u, v: tanh(W [u, v, |u - v|, u * v] + b).

    Args:
        sentence: Encodes both sentences, in one call.
        features: Width of the result.
    """

    def __init__(self, sentence: SentenceRNN, features: int) -> None:
        super().__init__()
        self.sentence = sentence
        self.project = nn.Linear(4 * sentence.width, features)
        self.width = features

    def forward(self, first: Padded, second: Padded) -> Tensor:
        """n first and n second sentences -> (n, features)"""
        length = max(first.tokens.shape[1], second.tokens.shape[1])
        tokens = torch.cat([F.pad(part.tokens, (0, length - part.tokens.shape[1])) for part in (first, second)])
        return self._of_both(self.sentence(tokens, torch.cat([first.lengths, second.lengths])))

    def of_words(self, sentences: WordByWord) -> Tensor:
        """n first and then n second sentences, without padding -> (n, features)"""
        return self._of_both(self.sentence.of_words(sentences))

    def _of_both(self, states: Tensor) -> Tensor:
        u, v = states.chunk(2)
        return torch.tanh(self.project(torch.cat([u, v, (u - v).abs(), u * v], dim=1)))


def check_pooling(pooling: str, known: tuple[str, ...]) -> None:
    """Refuse a way of pooling that the network does not have."""
    if pooling not in known:
        raise ConfigError(f"pooling={pooling!r} is not known here: give {', '.join(known[:-1])} or {known[-1]}.")
