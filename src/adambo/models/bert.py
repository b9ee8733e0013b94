"""A BERT from scratch as an encoder of sentences."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import BertConfig, BertModel

from adambo.data.sequences import Packed


class BertEncoder(nn.Module):
    """BERT with random initial values; the result is the pooler's: tanh(W h + b) with the last state h of [CLS].

    Attention runs on torch's fused kernels, which have one derivative; inside `adambo.twice_differentiable()` it runs
    on those that have two. Under `torch.autocast` the result has the lower precision.

    Args:
        vocabulary_size: Number of word pieces; 0 is padding.
        layers: Of the encoder.
        heads: Of the attention of each layer; they divide `hidden`.
        hidden: Width of all states and of the result.
        feed_forward: Width inside a layer.
        dropout: Of states and of attention, in training.
        max_length: The longest row there will be; so many positions are learnt.
    """

    def __init__(
        self,
        vocabulary_size: int,
        layers: int,
        heads: int,
        hidden: int,
        feed_forward: int,
        dropout: float,
        max_length: int,
    ) -> None:
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=vocabulary_size,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                hidden_size=hidden,
                intermediate_size=feed_forward,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
                max_position_embeddings=max_length,
                type_vocab_size=1,  # one sentence at a time
                pad_token_id=0,
                attn_implementation="sdpa",
            )
        )
        self.width = hidden

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(n, length) numbers of word pieces and a mask of them, True where it is no padding -> (n, hidden)"""
        # A mask of two dimensions would be read on the host, to see whether it can be left out. One of four is taken as
        # it is: which query (all alike) may look at which key.
        n, length = tokens.shape
        attended = mask[:, None, None, :].expand(n, 1, length, length)
        pooled: Tensor = self.bert(input_ids=tokens, attention_mask=attended).pooler_output
        return pooled

    def of_packed(self, packed: Packed) -> Tensor:
        """Rows that share shelves -> (n, hidden), as if each were alone: word pieces look at those of their own row."""
        tokens, positions, owners, first = packed
        attended = owners[:, None, :, None] == owners[:, None, None, :]  # padding looks at padding, not at nothing
        states = self.bert(input_ids=tokens, attention_mask=attended, position_ids=positions).last_hidden_state
        pooled: Tensor = self.bert.pooler(states.flatten(0, 1).index_select(0, first)[:, None])
        return pooled
