"""What can be set in an experiment: one dataclass per experiment, every field with a sentence that `--help` shows.

Defaults here are those of a first try with one's own data. The paper's values are presets (presets/*.yaml), each with
its source. A field that is added later has for its default what runs did before, whose folders lack it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from adambo.errors import ConfigError

WITH_ADAM_ABOVE = ("adambo", "adam")  # torch.optim's, which knows weight decay
MOST = 1e12  # of epochs, steps and seconds: beyond it, numbers of steps are no longer exact


@dataclass(kw_only=True)
class RunConfig:
    """What every experiment has."""

    algorithm: str = "adambo"
    """Which algorithm; `adambo list` names them."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the algorithm, such as settings.lr and settings.lower_lr."""
    warm_start: int = 0
    """Lower steps before the first step (with one head per task: on each of them)."""
    decay: Literal["none", "cube_root"] = "none"
    """Both step sizes are constant, or fall as (epoch + 2)^(-1/3), epochs counted from 0."""
    seed: int = 0
    """Of everything random: data, initial values, order of batches, dropout."""
    epochs: float | None = 1.0
    """Stop after so many passes over the training data."""
    steps: int | None = None
    """Stop after so many upper steps, if that comes first."""
    seconds: float | None = None
    """Stop after so many seconds of training (evaluations not counted), if that comes first."""
    oracle_calls: int | None = None
    """Stop after so many gradients and products with second derivatives, if that comes first."""
    evaluate_every: float | None = 1.0
    """Epochs from one evaluation to the next; the first is before training, the last at its end; null: only that."""
    evaluate_on: Literal["all", "validation"] = "all"
    """The splits that evaluations score: all there are, or that of validation alone, for those who choose by it."""
    checkpoint_every: float | None = 1.0
    """Epochs from one checkpoint to the next, and one whenever the run stops; null: only if it is interrupted."""
    monitor_every: int | None = None
    """Steps from one measurement of the lower error, z and the hypergradient to the next; null: none are made."""
    upper_weight_decay: float = 0.0
    """Of Adam above, added to its gradient (as L2) as in the authors' code (0.01); for adambo and adam alone."""
    validation: float = 0.0
    """Share of the training data that is held out and scored as the split "validation"; sweeps choose by it."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of the encoder: full, TensorFloat-32 products, or bfloat16 autocast. Heads and optimisers stay in fp32."""
    compile: bool = False
    """Compile the encoder with torch.compile."""
    threads: int | None = None
    """Threads of a computation on the CPU; without it, as many as torch chooses."""
    data_dir: str | None = None
    """Folder of the data files; without it, the environment variable ADAMBO_DATA says where they are."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse values that cannot work, with a sentence."""
        limits = {
            "epochs": self.epochs,
            "steps": self.steps,
            "seconds": self.seconds,
            "oracle_calls": self.oracle_calls,
        }
        if all(limit is None for limit in limits.values()):
            raise ConfigError("A run needs an end: give epochs, steps, seconds or oracle_calls.")
        for name, limit in limits.items():
            fits = limit is None or 0 < limit <= MOST
            require(fits, f"{name}={limit}: give a number above 0, or null; not above {MOST:g}")
        require(self.seed in range(2**63), f"seed={self.seed}: give a number from 0 to 2^63 - 1")
        require(self.warm_start >= 0, f"warm_start={self.warm_start}: give 0 or more lower steps")
        for name, every in (("evaluate_every", self.evaluate_every), ("checkpoint_every", self.checkpoint_every)):
            fits = every is None or 0 < every <= MOST
            require(fits, f"{name}={every}: give a number of epochs above 0, not above {MOST:g}")
        often = self.monitor_every
        fits = often is None or 0 < often <= MOST
        require(fits, f"monitor_every={often}: give a number of steps, 1 or more, or null")
        require(self.threads is None or 0 < self.threads <= 1024, f"threads={self.threads}: give 1 to 1024, or null")
        decay = self.upper_weight_decay
        require(0 <= decay <= MOST, f"upper_weight_decay={decay}: give 0 or more, not above {MOST:g}")
        require(
            decay == 0 or self.algorithm in WITH_ADAM_ABOVE,
            f"upper_weight_decay={decay}: {self.algorithm} has no Adam above. Leave it at 0, or choose "
            f"{' or '.join(WITH_ADAM_ABOVE)}",
        )
        require(0 <= self.validation < 1, f"validation={self.validation}: give a share from 0 to below 1")
        require(
            self.evaluate_on == "all" or self.validation > 0,
            "evaluate_on=validation: with validation=0 there is no such split. Give a share above 0, or evaluate all",
        )


@dataclass(kw_only=True)
class HyperRepresentationConfig(RunConfig):
    """Many few-shot tasks share an encoder (x) and have linear heads (y) on its features."""

    adapter: Literal["per_task", "shared"] = "per_task"
    """One head per task, which persists between visits (the paper's text), or one for all (its released code)."""
    tasks: int = 500
    """Number of training tasks, K."""
    ways: int = 2
    """Classes in a task."""
    shots: int = 5
    """Examples per class to learn from (support)."""
    queries: int = 5
    """Examples per class to be judged by (query); none of them is in the support set."""
    tasks_per_step: int = 25
    """Tasks in one step."""
    test_tasks: int = 500
    """Tasks of the test split (and of the validation split, if there is one)."""
    mu: float = 2e-4
    """Weight of the regulariser mu/2 |y|^2 of the lower loss."""
    fine_tune_steps: int = 3
    """Gradient steps on a copy of the head in every evaluation, the same for all methods."""
    fine_tune_lr: float | Literal["auto"] = "auto"
    """Their step size; auto is one over a bound of the curvature, from the features of each task."""
    allow_small_classes: bool = False
    """Let test tasks use classes with too few examples for a whole task, as the released code does."""
    microbatches: int = 1
    """Parts of a step that the encoder works through one by one: less memory, one more forward pass."""

    def check(self) -> None:
        super().check()
        for name in ("tasks", "shots", "queries", "tasks_per_step", "test_tasks", "fine_tune_steps", "microbatches"):
            value = getattr(self, name)
            require(0 < value <= 10**7, f"{name}={value}: give 1 or more (and up to ten million)")
        require(self.ways >= 2, f"ways={self.ways}: a task has 2 classes or more")
        require(
            self.tasks % self.tasks_per_step == 0,
            f"tasks_per_step={self.tasks_per_step} does not divide tasks={self.tasks}: every step takes equally many",
        )
        require(self.mu >= 0, f"mu={self.mu}: give 0 or more")
        require(
            self.fine_tune_lr == "auto" or self.fine_tune_lr > 0, f"fine_tune_lr={self.fine_tune_lr}: above 0, or auto"
        )


@dataclass(kw_only=True)
class BertTrecConfig(HyperRepresentationConfig):
    """Few-shot question classification (TREC, 6 classes) on an 8-layer BERT trained from scratch."""

    layers: int = 8
    """Layers of the BERT."""
    heads: int = 8
    """Attention heads of each."""
    hidden: int = 768
    """Width of the features."""
    feed_forward: int = 2048
    """Width inside a layer."""
    dropout: float = 0.1
    """Dropout of hidden states and attention; off in evaluations."""
    max_length: int = 128
    """Longer questions are cut to so many word pieces."""

    def check(self) -> None:
        super().check()
        check_transformer(self.layers, self.heads, self.hidden, self.feed_forward, self.dropout)
        require(self.max_length >= 3, f"max_length={self.max_length}: give 3 or more word pieces")


@dataclass(kw_only=True)
class RnnSnliConfig(HyperRepresentationConfig):
    """Few-shot inference between sentences (SNLI, 3 classes) on a 3-layer RNN over word vectors."""

    layers: int = 3
    """Layers of the RNN."""
    hidden: int = 4096
    """Its width."""
    features: int = 4096
    """Width of the features, to which what is known of a pair is projected."""
    pair_features: Literal["all", "both"] = "all"
    """What is known of a pair of sentences with vectors u and v: [u, v, |u - v|, u * v], or [u, v] alone."""
    pooling: Literal["max", "mean", "last"] = "max"
    """How the states of a sentence become one vector."""
    dropout: float = 0.0
    """Dropout between layers; off in evaluations."""
    vectors: Literal["vectors300", "glove100", "glove"] = "vectors300"
    """Word vectors: the 300-d table, the 100-d GloVe table, or a GloVe text file."""
    vector_scale: Literal["standardised", "unit", "raw"] = "standardised"
    """Each dimension of them with mean 0 and variance 1 over the table, each word with length 1, or as they come."""
    max_length: int = 64
    """Longer sentences are cut to so many words."""

    def check(self) -> None:
        super().check()
        check_recurrent(self.layers, self.hidden, self.dropout, self.max_length)
        require(self.features > 0, f"features={self.features}: give 1 or more")


@dataclass(kw_only=True)
class DigitsConfig(HyperRepresentationConfig):
    """Few-shot digits (scikit-learn's, no download), each thrown onto a random place of a larger field."""

    field_side: int = 12
    """Side of the field, in pixels; a digit has 8."""
    channels: int = 16
    """Channels of the first of two convolutions; the second has twice as many."""
    features: int = 32
    """Width of the features."""

    def check(self) -> None:
        super().check()
        require(self.field_side >= 8, f"field_side={self.field_side}: a digit needs 8 pixels")
        require(self.channels > 0 and self.features > 0, "channels and features: give 1 or more")
        require(self.ways <= 10, f"ways={self.ways}: there are 10 digits")


@dataclass(kw_only=True)
class DigitsCleaningConfig(RunConfig):
    """Data hyper-cleaning: which labels are wrong? x weighs every training digit, y is the classifier."""

    wrong_share: float = 0.4
    """Share of the training labels that are replaced by a wrong one."""
    train_examples: int = 800
    """Digits with weights, of 1797; so many labels of them are wrong."""
    clean_examples: int = 300
    """Digits with right labels, the upper level's data; all others are the test split."""
    batch_size: int = 100
    """Examples in a batch of either level."""
    hidden: int = 0
    """Width of a hidden layer of the classifier; 0: none, a linear one."""
    mu: float = 1e-2
    """Weight of the regulariser mu/2 |y|^2 of the lower loss."""

    def check(self) -> None:
        super().check()
        require(0 <= self.wrong_share < 1, f"wrong_share={self.wrong_share}: give a share from 0 to below 1")
        require(self.batch_size > 0, f"batch_size={self.batch_size}: give 1 or more")
        require(self.hidden >= 0, f"hidden={self.hidden}: give 0 or more")
        require(self.mu >= 0, f"mu={self.mu}: give 0 or more")
        used = self.train_examples + self.clean_examples
        require(
            min(self.train_examples, self.clean_examples) >= self.batch_size and used < 1797,
            f"train_examples={self.train_examples} and clean_examples={self.clean_examples}: give each a batch "
            f"({self.batch_size}) or more, and leave some of the 1797 digits for the test",
        )


def defaults(config: type[RunConfig]) -> dict[str, Any]:
    """What a run has that is older than a field: its default, which is what runs did before."""
    return {each.name: each.default for each in fields(config) if each.default is not MISSING}


def require(holds: bool, sentence: str) -> None:
    """The sentence as an error, unless it holds."""
    if not holds:
        raise ConfigError(f"{sentence}.")


def check_transformer(layers: int, heads: int, hidden: int, feed_forward: int, dropout: float) -> None:
    for name, value in (("layers", layers), ("heads", heads), ("hidden", hidden), ("feed_forward", feed_forward)):
        require(value > 0, f"{name}={value}: give 1 or more")
    require(hidden % heads == 0, f"heads={heads} does not divide hidden={hidden}")
    require(0 <= dropout < 1, f"dropout={dropout}: give a share from 0 to below 1")


def check_recurrent(layers: int, hidden: int, dropout: float, max_length: int) -> None:
    for name, value in (("layers", layers), ("hidden", hidden), ("max_length", max_length)):
        require(value > 0, f"{name}={value}: give 1 or more")
    require(0 <= dropout < 1, f"dropout={dropout}: give a share from 0 to below 1")
