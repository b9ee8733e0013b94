"""Sentences through a Transformer encoder over frozen word vectors, and a score of what comes out."""

from __future__ import annotations

from math import pi
from typing import Literal

import torch
from torch import Tensor, nn

from adambo.data.sequences import Packed
from adambo.errors import ConfigError
from adambo.models.recurrent import FrozenVectors, VectorScale, check_pooling, pool


class Positions(nn.Module):
    """The sinusoids of "Attention is all you need", for any length.

    p[t, 2i] = sin(t / 10000^(2i/width)),  p[t, 2i+1] = cos(t / 10000^(2i/width)),  and cos(a) = sin(a + π/2)
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        dimension = torch.arange(width)
        frequencies = 10_000.0 ** -(2 * (dimension // 2) / width)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("phases", (dimension % 2) * (pi / 2), persistent=False)

    def forward(self, length: int) -> Tensor:
        """(length, width)"""
        return self.at(torch.arange(length, device=self.frequencies.device))

    def at(self, times: Tensor) -> Tensor:
        """(..., width) for places (...)"""
        return torch.sin(times[..., None].to(self.frequencies.dtype) * self.frequencies + self.phases)


class SentenceTransformer(nn.Module):
    """Word vectors plus positions, pre-norm Transformer layers, and the pooled states of the words.

    Padding is masked in the attention and left out by the pooling, so that it changes no result.

    Args:
        table: (n, d) vectors of the words, see `FrozenVectors`; d is the width of all states and of the result.
        layers: Of the encoder.
        heads: Of the attention of each layer; they divide d.
        feed_forward: Width inside a layer.
        dropout: In the layers, in training.
        pooling: "mean" or "max" over the words.
        vector_scale: See `FrozenVectors`.
    """

    def __init__(
        self,
        table: Tensor,
        layers: int,
        heads: int,
        feed_forward: int,
        dropout: float,
        pooling: Literal["mean", "max"],
        vector_scale: VectorScale = "standardised",
    ) -> None:
        super().__init__()
        check_pooling(pooling, ("mean", "max"))
        self.words = FrozenVectors(table, vector_scale)
        self.width, self.pooling = self.words.width, pooling
        if self.width % heads:
            raise ConfigError(
                f"heads={heads} does not divide the {self.width} dimensions of the word vectors, and each head gets an "
                f"equal part of them. Give one of {', '.join(str(n) for n in range(1, 21) if self.width % n == 0)}."
            )
        self.positions = Positions(self.width)
        # Nested tensors would need the lengths on the host.
        self.encoder = nn.TransformerEncoder(
            self._layer(heads, feed_forward, dropout), layers, nn.LayerNorm(self.width), enable_nested_tensor=False
        )
        # torch makes all layers as copies of that one, with equal initial values.
        self.encoder.layers = nn.ModuleList(self._layer(heads, feed_forward, dropout) for _ in range(layers))

    def _layer(self, heads: int, feed_forward: int, dropout: float) -> nn.TransformerEncoderLayer:
        return nn.TransformerEncoderLayer(
            self.width, heads, feed_forward, dropout, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, length) numbers of words and (n,) lengths -> (n, d)"""
        length = tokens.shape[1]
        padding = torch.arange(length, device=tokens.device) >= lengths[:, None]
        states = self.encoder(self.words(tokens) + self.positions(length), src_key_padding_mask=padding)
        return pool(states, lengths, self.pooling)

    def of_packed(self, packed: Packed) -> Tensor:
        """Rows that share shelves -> (n, d), as if each were alone; for pooling "mean"."""
        if self.pooling != "mean":
            raise ConfigError(f'pooling={self.pooling!r}: packed rows can be pooled by their "mean" alone.')
        tokens, places, owners, first = packed
        apart = owners[:, :, None] != owners[:, None, :]  # padding looks at padding, not at nothing
        heads = self.encoder.layers[0].self_attn.num_heads
        states = self.encoder(
            self.words(tokens) + self.positions.at(places), mask=apart.repeat_interleave(heads, 0), is_causal=False
        )
        # A matrix of rows by words: sums in one order, where adding up by index would take them as they come.
        belongs = torch.arange(1, len(first) + 1, device=owners.device)[:, None] == owners.flatten()
        shares = belongs / belongs.sum(1, keepdim=True).to(self.positions.frequencies.dtype)
        with torch.autocast(tokens.device.type, enabled=False):
            pooled: Tensor = shares @ states.flatten(0, 1).to(shares.dtype)
        return pooled


class ScoreHead(nn.Module):
    """A score for each example: the last of two logits, as the AdamBO paper's networks have two outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logits = nn.Linear(width, 2)

    def forward(self, features: Tensor) -> Tensor:
        """(n, width) -> (n,)"""
        logits: Tensor = self.logits(features)
        return logits[:, -1]
