"""The configurations of the AUC experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adambo.experiments.config import MOST, RunConfig, check_recurrent, require


@dataclass(kw_only=True)
class AucConfig(RunConfig):
    """AUC as a min-max problem: x = (network, a, b), y = alpha; the lower loss is the negative upper one.

    A Neumann step "auto" is 1/(2p(1 - p)) here: the curvature is known.
    """

    positive_share: float = 0.9
    """p, the share of positives in the training data."""
    levels: Literal["same", "halves"] = "halves"
    """Both draw from all training data (the paper's formula), or each from a half of it (the authors' AccBO code)."""
    batch_size: int = 32
    """Examples in a batch."""
    snapshot_batch: int = 64
    """Examples in VRBO's large batch (and in the first of VR-AdamBO)."""
    one_batch: bool = False
    """One batch of 2 * batch_size examples serves all roles of a step but snapshots; else every role draws its own."""
    offset_lr: float | None = None
    """Rate of a and b, which Adam moves by about its rate a step, whatever their gradients; null: as all of x."""
    margin: float = 0.0
    """Extra margin of the released code, 2 (1 + alpha) p (1 - p) margin; the paper's formula has none."""
    score: Literal["sigmoid", "raw"] = "sigmoid"
    """The score is the sigmoid of the last logit, or that logit itself."""
    microbatches: int = 1
    """Parts of a batch that the network works through one by one: less memory, one more forward pass."""

    def check(self) -> None:
        super().check()
        require(0 < self.positive_share < 1, f"positive_share={self.positive_share}: give a share between 0 and 1")
        require(self.batch_size > 0, f"batch_size={self.batch_size}: give 1 or more")
        require(self.snapshot_batch > 0, f"snapshot_batch={self.snapshot_batch}: give 1 or more")
        require(
            not self.one_batch or (self.levels == "same" and self.algorithm != "saba"),
            "one_batch=true: one batch can serve both levels where they draw from the same data (levels=same), and for "
            "a method without a table of fixed batches for each (not saba). Leave it at false",
        )
        rate = self.offset_lr
        require(rate is None or 0 <= rate <= MOST, f"offset_lr={rate}: give 0 or more, not above {MOST:g}, or null")
        require(self.microbatches > 0, f"microbatches={self.microbatches}: give 1 or more")


@dataclass(kw_only=True)
class TweetAucConfig(AucConfig):
    """Deep AUC on imbalanced tweets (Sentiment140)."""

    minority_kept: int = 1000
    """Negatives kept; positives are then kept in the proportion p : 1 - p."""
    uniform_only: bool = True
    """Of the shared subset, only tweets sampled from the whole original file (its field u)."""
    test_split: Literal["heldout", "manual"] = "heldout"
    """Test on held-out tweets with the same kind of labels, or on those labelled by hand."""
    layers: int = 2
    """Layers of the network."""
    hidden: int = 4096
    """Its width: of the states of the RNN, of the feed-forward part of the Transformer."""
    dropout: float = 0.0
    """Dropout between layers; off in evaluations."""
    vectors: Literal["vectors300", "glove100", "glove"] = "vectors300"
    """Word vectors: the 300-d table, the 100-d GloVe table, or a GloVe text file."""
    vector_scale: Literal["standardised", "unit", "raw"] = "standardised"
    """Each dimension of them with mean 0 and variance 1 over the table, each word with length 1, or as they come."""
    max_length: int = 64
    """Longer tweets are cut to so many words."""
    length_buckets: int = 8
    """Batches are drawn within so many classes of length, chosen in proportion to their sizes; 1: from all."""

    def check(self) -> None:
        super().check()
        check_recurrent(self.layers, self.hidden, self.dropout, self.max_length)
        require(self.minority_kept > 0, f"minority_kept={self.minority_kept}: give 1 or more")
        require(self.length_buckets > 0, f"length_buckets={self.length_buckets}: give 1 or more")


@dataclass(kw_only=True)
class AucTransformerConfig(TweetAucConfig):
    """Deep AUC on Sentiment140 with a 2-layer Transformer."""

    heads: int = 6
    """Attention heads of each layer; they divide the width of the word vectors."""
    pooling: Literal["mean", "max"] = "mean"
    """How the states of a tweet become one vector."""


@dataclass(kw_only=True)
class AucRnnConfig(TweetAucConfig):
    """Deep AUC on Sentiment140 with a 2-layer RNN."""

    pooling: Literal["max", "mean", "last"] = "max"
    """How the states of a tweet become one vector."""


@dataclass(kw_only=True)
class CancerAucConfig(AucConfig):
    """AUC on an imbalanced medical table (scikit-learn's breast cancer data, no download)."""

    hidden: int = 16
    """Width of the two hidden layers."""

    def check(self) -> None:
        super().check()
        require(self.hidden > 0, f"hidden={self.hidden}: give 1 or more")
