"""The paper's networks on one device, and the contenders whose steps `gpu.py` measures on them.

Tokens and labels are random, from a fixed seed, with lengths as in TREC and in tweets: no data files are needed. All
contenders of a workload move one network, which is then compiled once; each has heads and optimisers of its own. There
is no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from measuring import Step
from torch import Tensor, nn

import adambo
from adambo.data.sequences import Padded
from adambo.models.recurrent import SentenceRNN
from adambo.models.transformer import ScoreHead, SentenceTransformer
from adambo.problems.deep_auc import AucVariables, Examples, deep_auc
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation

T = TypeVar("T")

BATCHES = 4  # that a contender goes through in turn, all of one shape
CLASSES, SUPPORT, QUERY, TASKS, TASKS_OF_MANY, MU = 6, 10, 10, 20, 25, 2e-4
TABLE, LARGE_TABLE = 500, 50_000
HALF = 32  # examples of deep AUC on either level
ATTEMPTS = 10  # at finding steps in which the curvature is not measured
LR, LOWER_LR = 1e-5, 1e-3  # small, so that random labels keep all contenders in one regime


@dataclass(frozen=True)
class Setting:
    """How a workload is computed.

    Attributes:
        device: Where.
        precision: Of the encoder: "fp32", "tf32" (matrix products) or "bf16" (autocast). Heads are in fp32.
        compiled: Whether the encoder is under torch.compile(mode="reduce-overhead"), which means CUDA graphs.
        small: Toy sizes, to try the program on a CPU.
    """

    device: torch.device
    precision: str
    compiled: bool = False
    small: bool = False

    def prepare(self) -> None:
        """Tell torch, for the whole process, whether products may use TensorFloat-32."""
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = self.precision != "fp32"


@dataclass(frozen=True)
class Contender:
    """Makes steps; `check` waits for the device and raises if one of them met a value that is not finite."""

    step: Step
    check: Callable[[], None]
    solver: adambo.Algorithm | None = None

    def undisturbed(self, measure: Callable[[Step], T]) -> T:
        """What `measure` finds in steps that do not measure the curvature of the lower level."""
        for _ in range(ATTEMPTS):
            before = self._curvature_products()
            found = measure(self.step)
            if self._curvature_products() == before:
                return found
        raise RuntimeError(f"The curvature was measured in each of {ATTEMPTS} stretches of steps.")

    def _curvature_products(self) -> int:
        return 0 if self.solver is None else self.solver.ledger.curvature_vector


class Encoder:
    """A network in the precision of a setting; `compiled` says whether calls go to its compiled form."""

    def __init__(self, network: nn.Module, setting: Setting) -> None:
        self.network = network.to(setting.device)
        self.compiled = setting.compiled
        self._graphs = torch.compile(self.network, mode="reduce-overhead", dynamic=False) if self.compiled else None
        self._device, self._bf16 = setting.device.type, setting.precision == "bf16"

    def __call__(self, *inputs: Tensor) -> Tensor:
        called: Any = self._graphs if self.compiled else self.network
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            features = called(*inputs)
        return features.float()

    def begin_step(self) -> None:
        """CUDA graphs write into the same memory in every step: what the last one left there is no longer needed."""
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()


class Workload(NamedTuple):
    """An encoder and those who use it.

    Attributes:
        encoder: Moved by all of them.
        contenders: By name; the first is the reference of the ratios. Each call builds a new one.
        resting: Builds an AdamBO that moves nothing and takes the same batch in every step.
    """

    encoder: Encoder
    contenders: dict[str, Callable[[], Contender]]
    resting: Callable[[], Contender]

    def compiled_difference(self) -> float:
        """Relative difference of AdamBO's x.grad with the encoder compiled and eager, at one point.

        The compiled one is asked in its fifth step: CUDA graphs are recorded in the second, and replayed from then on.
        """
        found = []
        for compiled, steps in ((False, 1), (True, 5)):
            self.encoder.compiled = compiled
            resting = self.resting()
            for _ in range(steps):
                resting.step()
            resting.check()
            found.append([p.grad.double() for p in self.encoder.network.parameters() if p.grad is not None])
        distance = torch.stack([(a - b).square().sum() for a, b in zip(*found, strict=True)]).sum()
        return float((distance / torch.stack([a.square().sum() for a in found[0]]).sum()).sqrt())


def bert(setting: Setting) -> Workload:
    """20 tasks of 10 + 10 questions on an 8-layer BERT, with heads out of a table of 500."""
    encoder, words = _bert_encoder(setting)
    batches = [_episodes(setting, seed, TASKS, TABLE, words) for seed in range(BATCHES)]

    def adambo_on(batches: list[Episodes] = batches, **options: Any) -> Callable[[], Contender]:
        return lambda: _adambo_on_tasks(encoder, batches, TABLE, **options)

    contenders = {"plain Adam": lambda: _adam_on_tasks(encoder, batches, TABLE), "AdamBO, 1 lower step": adambo_on()}
    contenders["AdamBO, 50 lower steps"] = adambo_on(lower_steps=50, hypergradient_at="updated")
    if not setting.compiled:
        contenders["AdamBO, 4 micro-batches"] = adambo_on(microbatches=4)
    return Workload(encoder, contenders, adambo_on(batches[:1], lr=0.0, lower_lr=0.0))


def heads(setting: Setting) -> Workload:
    """25 tasks of 10 + 10 questions on the same BERT, with heads out of a small and of a large table."""
    encoder, words = _bert_encoder(setting)

    def adambo_on(table: int, **options: Any) -> Callable[[], Contender]:
        batches = [_episodes(setting, seed, TASKS_OF_MANY, table, words) for seed in range(BATCHES)]
        return lambda: _adambo_on_tasks(encoder, batches, table, **options)

    contenders = {f"AdamBO, {table:,} heads": adambo_on(table) for table in (TABLE, LARGE_TABLE)}
    return Workload(encoder, contenders, adambo_on(TABLE, lr=0.0, lower_lr=0.0))


def rnn(setting: Setting) -> Workload:
    """Deep AUC, 32 + 32 tweets on a 2-layer RNN of width 4096."""
    width = 64 if setting.small else 4096
    return _auc(SentenceRNN(_word_vectors(setting), 2, width, 0.0, "max"), width, 0.8, setting)


def transformer(setting: Setting) -> Workload:
    """Deep AUC, 32 + 32 tweets on a 2-layer Transformer of width 300, 4096 inside a layer."""
    vectors, inside = _word_vectors(setting), 64 if setting.small else 4096
    sentence = SentenceTransformer(vectors, 2, 6, inside, 0.0, "mean")
    return _auc(sentence, vectors.shape[1], 0.9, setting)


WORKLOADS: dict[str, Callable[[Setting], Workload]] = {
    "bert": bert,
    "heads": heads,
    "rnn": rnn,
    "transformer": transformer,
}


def _bert_encoder(setting: Setting) -> tuple[Encoder, int]:
    from adambo.models.bert import BertEncoder  # takes seconds to import

    words, layers, attention, hidden, inside = (1000, 2, 2, 64, 128) if setting.small else (30_522, 8, 8, 768, 2048)
    torch.manual_seed(0)
    return Encoder(BertEncoder(words, layers, attention, hidden, inside, dropout=0.0, max_length=128), setting), words


def _episodes(setting: Setting, seed: int, tasks: int, table: int, words: int) -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    examples = SUPPORT + QUERY
    # TREC questions have 13.5 ± 4.5 word pieces; the longest of 400 has 35 on average.
    lengths = (13.5 + 4.5 * torch.randn(tasks * examples, generator=generator)).round().long().clamp(5, 34)
    lengths[0] = 35
    inputs = _sequences(generator, lengths, words, setting.device)
    ids = torch.randperm(table, generator=generator)[:tasks]
    labels = torch.randint(CLASSES, (tasks, examples), generator=generator)
    return Episodes(ids.to(setting.device), inputs, labels.to(setting.device), SUPPORT)


def _sequences(generator: torch.Generator, lengths: Tensor, words: int, device: torch.device) -> Padded:
    """Random rows of these lengths, padded to the longest."""
    longest = int(lengths.max())
    tokens = torch.randint(1, words, (len(lengths), longest), generator=generator)
    tokens[torch.arange(longest) >= lengths[:, None]] = 0
    return Padded(tokens.to(device), lengths.to(device))


def _heads(encoder: Encoder, table: int) -> Heads:
    device = next(encoder.network.parameters()).device
    weights = torch.empty(table, CLASSES, cast(int, encoder.network.width), device=device)
    torch.manual_seed(0)
    return Heads(nn.Parameter(weights.normal_(std=0.02)), nn.Parameter(torch.zeros(table, CLASSES, device=device)))


def _adam_on_tasks(encoder: Encoder, batches: list[Episodes], table: int) -> Contender:
    own = _heads(encoder, table)

    def loss(episodes: Episodes) -> Tensor:
        features = encoder(episodes.inputs.tokens, episodes.inputs.mask)
        rows = Heads(own.weights[episodes.ids], own.biases[episodes.ids])
        return rows.losses(features.view(*episodes.labels.shape, -1), episodes.labels).mean()

    return _adam(encoder, loss, [*encoder.network.parameters(), *own], cycle(batches))


def _adambo_on_tasks(
    encoder: Encoder,
    batches: list[Episodes],
    table: int,
    lr: float = LR,
    lower_lr: float = LOWER_LR,
    microbatches: int = 1,
    **options: Any,
) -> Contender:
    problem = hyper_representation(
        lambda padded: encoder(padded.tokens, padded.mask),
        encoder.network,
        _heads(encoder, table),
        MU,
        microbatches=microbatches,
    )
    solver = adambo.AdamBO(problem, lr=lr, lower_lr=lower_lr, **options)
    return _adambo(encoder, solver, cycle([(episodes, episodes) for episodes in batches]))


class Scored(nn.Module):
    """A network of sentences with a score on top."""

    def __init__(self, sentence: nn.Module, width: int) -> None:
        super().__init__()
        self.sentence, self.head = sentence, ScoreHead(width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.sentence(tokens, lengths))


def _word_vectors(setting: Setting) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(500 if setting.small else 20_000, 300)


def _auc(sentence: SentenceRNN | SentenceTransformer, width: int, p: float, setting: Setting) -> Workload:
    """Upper and lower batch of 32 tweets each go through the network together; plain Adam takes the 64."""
    encoder = Encoder(Scored(sentence, width), setting)
    words = len(sentence.words.vectors) - 1
    generator = torch.Generator().manual_seed(1)

    def tweets() -> Examples:
        positive = (torch.rand(HALF, generator=generator) < p).float().to(setting.device)
        lengths = torch.randint(6, 25, (HALF,), generator=generator)
        lengths[0] = 24
        return Examples(_sequences(generator, lengths, words, setting.device), positive)

    pairs = [(tweets(), tweets()) for _ in range(BATCHES)]

    def adam() -> Contender:
        offset = nn.Parameter(torch.zeros((), device=setting.device))

        def loss(batch: Examples) -> Tensor:
            logits = encoder(batch.inputs.tokens, batch.inputs.lengths) + offset
            return F.binary_cross_entropy_with_logits(logits, batch.positive)

        together = [_joined([*pair])[0] for pair in pairs]
        return _adam(encoder, loss, [*encoder.network.parameters(), offset], cycle(together))

    def bilevel(
        pairs: list[tuple[Examples, Examples]] = pairs, lr: float = LR, lower_lr: float = LOWER_LR
    ) -> Contender:
        variables = AucVariables().to(setting.device)
        auc = deep_auc(lambda padded: encoder(padded.tokens, padded.lengths).sigmoid(), encoder.network, variables, p)
        problem = adambo.EncoderHeadProblem(
            auc.encoder,
            auc.upper,
            auc.lower,
            auc.x,
            auc.y,
            concatenate=_joined,
            losses_see=lambda batch: batch.positive,
        )
        inverse = adambo.Neumann(terms=3, step=1 / (2 * p * (1 - p)))  # the curvature is known
        return _adambo(encoder, adambo.AdamBO(problem, lr=lr, lower_lr=lower_lr, inverse=inverse), cycle(pairs))

    return Workload(encoder, {"plain Adam": adam, "AdamBO": bilevel}, lambda: bilevel(pairs[:1], 0.0, 0.0))


def _joined(batches: list[Examples]) -> tuple[Examples, list[int]]:
    inputs = Padded(*(torch.cat(column) for column in zip(*(batch.inputs for batch in batches), strict=True)))
    return Examples(inputs, torch.cat([batch.positive for batch in batches])), [len(batch) for batch in batches]


def _adam(
    encoder: Encoder, loss: Callable[[Any], Tensor], parameters: list[Tensor], batches: Iterator[Any]
) -> Contender:
    """The yardstick: one forward pass, one backward pass, one fused Adam step, and nobody waits."""
    optimizer = torch.optim.Adam(parameters, lr=LR, fused=True)
    last: list[Tensor] = []

    def step() -> None:
        encoder.begin_step()
        optimizer.zero_grad(set_to_none=True)
        value = loss(next(batches))
        value.backward()
        optimizer.step()
        last[:] = [value.detach()]

    def check() -> None:
        if not all(value.isfinite() for value in last):
            raise adambo.NonFiniteError("The loss of plain Adam is not finite.")

    return Contender(step, check)


def _adambo(encoder: Encoder, solver: adambo.AdamBO, batches: Iterator[tuple[Any, Any]]) -> Contender:
    def step() -> None:
        encoder.begin_step()
        solver.step(*next(batches))

    return Contender(step, solver.check, solver)
