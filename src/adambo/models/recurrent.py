"""Sentences and pairs of sentences through a plain RNN over frozen word vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adambo.data.sequences import Padded, WordByWord
from adambo.errors import ConfigError
from adambo.models.recurrence import states_of

Pooling = Literal["max", "mean", "last"]
VectorScale = Literal["standardised", "unit", "raw"]
PairFeatures = Literal["all", "both"]


class FrozenVectors(nn.Module):
    """Word vectors by the numbers of `adambo.data.words`: 0 is padding, row r of the table has r + 1, then unknown.

    The vectors as they come are long (norms around 40 in the 300-d table), which drives a tanh into saturation, and
    their dimensions differ in scale; so each dimension is standardised over the table, unless something else is asked
    for. Padding and unknown are zero: the mean vector where vectors are standardised, and else the origin.

    The vectors are neither parameters nor buffers: they are data, which nobody writes, so that steps and checkpoints
    need no copy of them. They go where the module goes.

    Args:
        table: (n, d), a row per word.
        scale: "standardised" (every dimension has mean 0 and variance 1 over the table), "unit" (every word has
            length 1) or "raw" (as they come).

    Example:
        >>> FrozenVectors(torch.tensor([[3.0, 4.0]]), "unit")(torch.tensor([0, 1, 2])).tolist()
        [[0.0, 0.0], [0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """

    def __init__(self, table: Tensor, scale: VectorScale = "standardised") -> None:
        super().__init__()
        check_choice("vector_scale", scale, get_args(VectorScale))
        rows = {"standardised": standardised, "unit": of_unit_length, "raw": Tensor.float}[scale](table)
        self.vectors = F.pad(rows, (0, 0, 1, 1))
        self.width = table.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.vectors)

    def _apply(self, change: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`to`, `cuda`, `double`: with all that it has."""
        super()._apply(change, recurse)  # type: ignore[no-untyped-call]
        self.vectors = change(self.vectors)
        return self


def standardised(table: Tensor) -> Tensor:
    """Every dimension with mean 0 and variance 1 over the rows."""
    variance, mean = torch.var_mean(table.float(), dim=0, correction=0)
    # A dimension that is the same for all words says nothing; it becomes 0 and not 0/0.
    return (table - mean) / torch.where(variance > 0, variance.sqrt(), torch.inf)


def of_unit_length(table: Tensor) -> Tensor:
    """Every row divided by its length; a row of zeros has none and stays."""
    length = torch.linalg.vector_norm(table.float(), dim=1, keepdim=True)
    return table / torch.where(length > 0, length, torch.inf)


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


def largest_states(states: Tensor, places: Tensor, count: int, longest: int) -> Tensor:
    """The maximum over the states of each of `count` sentences, which are at `places` of a (count · longest) table.

    Where the largest stand is found without a graph; they are then picked out of the states, and so is the gradient put
    back. (Through the table it went over all padding four times: 8 of the 31 ms of a step of `rnn-snli` on an H200.) Of
    equal states the first has the gradient.
    """
    with torch.no_grad():
        table = states.new_full((count * longest, states.shape[1]), -torch.inf).index_copy_(0, places, states)
        step = table.view(count, longest, -1).argmax(1)
        row = places.new_zeros(count * longest).index_copy_(0, places, torch.arange(len(places), device=places.device))
        chosen = row.view(count, longest).gather(1, step)
    return states.gather(0, chosen)


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
        vector_scale: See `FrozenVectors`.
    """

    def __init__(
        self,
        table: Tensor,
        layers: int,
        hidden: int,
        dropout: float,
        pooling: Pooling,
        vector_scale: VectorScale = "standardised",
    ) -> None:
        super().__init__()
        check_pooling(pooling, ("max", "mean", "last"))
        self.words = FrozenVectors(table, vector_scale)
        # After the last layer there is no dropout, and torch warns where one layer is to have some.
        self.rnn = nn.RNN(self.words.width, hidden, layers, dropout=dropout if layers > 1 else 0.0, batch_first=True)
        self.width, self.pooling = hidden, pooling

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, length) numbers of words and (n,) lengths -> (n, hidden)"""
        count, longest = tokens.shape
        states = states_of(self.rnn, self.words(tokens.t()).flatten(0, 1), [count] * longest)
        return pool(states.view(longest, count, self.width).transpose(0, 1), lengths, self.pooling)

    def of_words(self, sentences: WordByWord) -> Tensor:
        """The same of n sentences without padding -> (n, hidden)"""
        tokens, sizes, places, lengths = sentences
        states = states_of(self.rnn, self.words(tokens), sizes.tolist())
        if self.pooling == "max":
            return largest_states(states, places, len(lengths), len(sizes))
        table = states.new_zeros(len(lengths) * len(sizes), self.width).index_copy(0, places, states)
        return pool(table.view(len(lengths), len(sizes), self.width), lengths, self.pooling)


class PairEncoder(nn.Module):
    """Features of a pair of sentences with vectors u, v: tanh(W [u, v, |u - v|, u * v] + b).

    Args:
        sentence: Encodes both sentences, in one call.
        features: Width of the result.
        pair_features: "all", or "both" for [u, v] alone; comparing the two is then left to W and to the head.
    """

    def __init__(self, sentence: SentenceRNN, features: int, pair_features: PairFeatures = "all") -> None:
        super().__init__()
        check_choice("pair_features", pair_features, get_args(PairFeatures))
        self.sentence, self.compares = sentence, pair_features == "all"
        self.project = nn.Linear((4 if self.compares else 2) * sentence.width, features)
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
        pair = [u, v, (u - v).abs(), u * v] if self.compares else [u, v]
        return torch.tanh(self.project(torch.cat(pair, dim=1)))


def check_pooling(pooling: str, known: tuple[str, ...]) -> None:
    """Refuse a way of pooling that the network does not have."""
    check_choice("pooling", pooling, known)


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value of `name` that is not one of those known."""
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not known here: give {', '.join(known[:-1])} or {known[-1]}.")
