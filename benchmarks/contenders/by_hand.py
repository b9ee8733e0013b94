"""Steps without a library: straight autograd, the style of research scripts, and plain Adam as a yardstick."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from measuring import Step
from torch import Tensor, nn
from torch.autograd import grad
from workloads import Batch, Encoder, Workload, sequences

from contenders.contender import Contender, Settings

PADDED = 128


def plain_adam(lr: float = 1e-4) -> Step:
    """One Adam step on all 200 sequences: the yardstick."""
    encoder, head, (upper, lower) = Encoder(), nn.Linear(256, 6), sequences()
    tokens, labels = torch.cat([upper[0], lower[0]]), torch.cat([upper[1], lower[1]])
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=lr)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(tokens)), labels).backward()
        optimizer.step()

    return step


def series(g_y: Sequence[Tensor], y: Sequence[Tensor], v: Sequence[Tensor], settings: Settings) -> list[Tensor]:
    """−z: minus the Neumann series for [∇²yy g]⁻¹ v, its products by autograd."""
    s = v
    for _ in range(settings.products()):
        product = grad(g_y, y, s, retain_graph=True)
        s = [a + b - settings.neumann_step * p for a, b, p in zip(v, s, product, strict=True)]
    return [-settings.neumann_step * t for t in s]


def on_parameters(workload: Workload, settings: Settings) -> Step:
    """AdamBO's step for an upper loss that sees only y."""
    x, y = list(workload.x.parameters()), list(workload.y.parameters())
    upper_optimizer = settings.optimizer_of(x)
    lower_optimizer = torch.optim.SGD(y, lr=settings.lower_lr)
    upper_batch, lower_batch = workload.upper_batch, workload.lower_batch
    (seen,) = x

    def step() -> None:
        v = grad(workload.upper(seen, y, upper_batch), y)
        g_y = grad(workload.lower(seen, y, lower_batch), y, create_graph=True)
        h = grad(g_y, x, series(g_y, y, v, settings))
        for p, d in zip(x, h, strict=True):
            p.grad = d
        for p, d in zip(y, g_y, strict=True):
            p.grad = d.detach()
        lower_optimizer.step()
        for _ in range(settings.lower_steps - 1):
            for p, d in zip(y, grad(workload.lower(seen, y, lower_batch), y), strict=True):
                p.grad = d
            lower_optimizer.step()
        upper_optimizer.step()

    return step


def on_features(workload: Workload, settings: Settings) -> Step:
    """AdamBO's step for a head on an encoder: one forward and one backward of the encoder, the rest on features."""
    x, y = list(workload.x.parameters()), list(workload.y.parameters())
    upper_optimizer = settings.optimizer_of(x)
    lower_optimizer = torch.optim.SGD(y, lr=settings.lower_lr)
    upper_batch, lower_batch = workload.upper_batch, workload.lower_batch

    def step() -> None:
        upper_optimizer.zero_grad()
        encoded = workload.seen_of_both()
        upper, lower = (features.detach().requires_grad_() for features in encoded)
        *v, f_upper = grad(workload.upper(upper, y, upper_batch), [*y, upper])
        g_y = grad(workload.lower(lower, y, lower_batch), y, create_graph=True)
        (h_lower,) = grad(g_y, [lower], series(g_y, y, v, settings))
        torch.autograd.backward(encoded, [f_upper, h_lower])
        for p, d in zip(y, g_y, strict=True):
            p.grad = d.detach()
        lower_optimizer.step()
        lower.requires_grad_(False)
        for _ in range(settings.lower_steps - 1):
            for p, d in zip(y, grad(workload.lower(lower, y, lower_batch), y), strict=True):
                p.grad = d
            lower_optimizer.step()
        upper_optimizer.step()

    return step


class StraightAutograd(Contender):
    name = "straight autograd"
    at = "current"

    def estimator(self, settings: Settings) -> str:
        return f"Neumann, {settings.terms} terms"

    def build(self, workload: Workload, settings: Settings) -> Step:
        return (on_features if workload.has_encoder else on_parameters)(workload, settings)


def padded_features(encoder: Encoder, tokens: Tensor) -> Callable[[], Tensor]:
    """The features of sequences that were padded to 128 tokens when the data were read."""
    real = tokens.shape[1]
    missing = PADDED - real
    tokens = F.pad(tokens, (0, missing))
    is_padding = (torch.arange(PADDED) >= real).expand(len(tokens), -1)
    weights = (~is_padding).to(encoder.places.dtype).unsqueeze(2) / real

    def encode() -> Tensor:
        embedded = encoder.words(tokens) + F.pad(encoder.places, (0, 0, 0, missing))
        return (encoder.layers(embedded, src_key_padding_mask=is_padding) * weights).sum(dim=1)

    return encode


class Naive(Contender):
    """Task by task in a Python loop, sequences padded to 128 tokens, and the encoder called whenever a loss is."""

    name = "naive script"

    def not_offered(self, workload: Workload) -> str | None:
        return None if workload.has_encoder else "no tasks to loop over, nothing to pad"

    def estimator(self, settings: Settings) -> str:
        return f"Neumann, {settings.terms} terms"

    def build(self, workload: Workload, settings: Settings) -> Step:
        x, y = list(workload.x.parameters()), list(workload.y.parameters())
        optimizer = settings.optimizer_of(x)
        encoder, tasks = workload.x, workload.tasks or 1
        assert isinstance(encoder, Encoder)
        batches = [_by_task(batch, tasks) for batch in (workload.upper_batch, workload.lower_batch)]
        encoders = [[padded_features(encoder, batch[0]) for batch in level] for level in batches]

        def step() -> None:
            optimizer.zero_grad()
            for task, (query, support) in enumerate(zip(*batches, strict=True)):
                encode_query, encode_support = (level[task] for level in encoders)
                rows = y if workload.tasks is None else [table[task : task + 1] for table in y]
                head = [row.detach().clone().requires_grad_() for row in rows]
                for _ in range(settings.lower_steps):
                    g_y = grad(workload.lower(encode_support(), head, support), head)
                    head = [
                        (p - settings.lower_lr * d).detach().requires_grad_() for p, d in zip(head, g_y, strict=True)
                    ]
                f_yx = grad(workload.upper(encode_query(), head, query) / tasks, [*head, *x])
                v, f_x = f_yx[: len(head)], f_yx[len(head) :]
                g_y = grad(workload.lower(encode_support(), head, support), head, create_graph=True)
                cross = grad(g_y, x, series(g_y, head, v, settings))
                for p, direct, indirect in zip(x, f_x, cross, strict=True):
                    p.grad = direct + indirect if p.grad is None else p.grad + direct + indirect
                with torch.no_grad():
                    for row, p in zip(rows, head, strict=True):
                        row.copy_(p)
            optimizer.step()

        return step


def _by_task(batch: Batch, tasks: int) -> list[list[Tensor]]:
    return [list(parts) for parts in zip(*(part.chunk(tasks) for part in batch), strict=True)]


class PlainAdam(Contender):
    """Ordinary training on the data of both levels; no bilevel method, and no hypergradient to check."""

    name = "plain Adam"
    is_bilevel = False

    def not_offered(self, workload: Workload) -> str | None:
        return None if workload.has_encoder else "there is no ordinary training problem beside this one"

    def estimator(self, settings: Settings) -> str:
        return "none: there is one level"

    def build(self, workload: Workload, settings: Settings) -> Step:
        return plain_adam(settings.lr)
