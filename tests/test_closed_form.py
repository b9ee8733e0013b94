"""Closed forms give the derivatives of autograd: for losses written in many ways, at moved points, in every method.

The reference is `adambo.plain_autograd()`, or autograd called by hand. A loss that is not recognised costs time; a loss
that is recognised wrongly costs the answer, so most of what follows is about losses that look like something else.
"""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import adambo
from adambo.closed_form import descended, read
from adambo.lower_graph import LowerGraph
from adambo.lower_variable import LowerVariable
from adambo.problems.hyper_representation import Episodes, Heads, hyper_representation

ALL = adambo.algorithms.ALL


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def parameter(*shape, seed=0):
    return nn.Parameter(randn(*shape, seed=seed))


LABELS = torch.tensor([0, 2, 1, 1, 0, 2])
TARGETS = randn(6, 3, seed=20)
SHARES = randn(6, 3, seed=21).softmax(1)
EXAMPLES = torch.linspace(0.1, 1, 6, dtype=torch.double)
CLASSES = torch.tensor([1.0, 2.0, 3.0], dtype=torch.double)


def lower_variables(**more):
    """Heads of every kind on four features and three classes; a loss takes what it likes."""
    shapes = {"W": (3, 4), "b": (3,), "V": (3, 4), "M": (4, 3), "w": (4,), "T": (2, 3, 4), "c": (2, 3), "s": ()}
    return SimpleNamespace(
        **{name: parameter(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}, **more
    )


def logits(y, p):
    return functional.linear(p, y.W, y.b)


def entropy(y, p, **how):
    return functional.cross_entropy(logits(y, p), LABELS, **how)


def squared(y, *names):
    return sum(getattr(y, name).square().sum() for name in names)


def tasks(p):
    return p.view(2, 3, 4)


def task_entropy(scores, **how):
    """Of (task, example, class)."""
    return functional.cross_entropy(scores.flatten(0, 1), LABELS, **how)


class Derivatives:
    """Of g at the current values, in y and x, along fixed directions."""

    def __init__(self, g, names):
        self.y, self.g = lower_variables(), g
        self.leaves = [getattr(self.y, name) for name in names]
        self.variable = LowerVariable(self.leaves, None)
        torch.manual_seed(3)
        self.encoder = nn.Linear(7, 4).double()
        self.directions = [randn(*leaf.shape, seed=90 + k) for k, leaf in enumerate(self.leaves)]
        self.features = self.encoder(randn(6, 7, seed=30))

    def graph(self, plain):
        with adambo.plain_autograd() if plain else nullcontext():
            return LowerGraph.of(self.g(self.y, self.features), self.variable)

    def of(self, graph):
        x = list(self.encoder.parameters())
        found = [*graph.gradient(keep_graph=True), *graph.hessian(self.directions)]
        roots, weights = graph.cross(self.directions)
        none = [None] * len(x)
        crosses = torch.autograd.grad(roots, x, weights, retain_graph=True, allow_unused=True) if roots else none
        return [*found, *(torch.zeros_like(p) if c is None else c for p, c in zip(x, crosses, strict=True))]

    def by_hand(self):
        """The same by torch.autograd.grad alone."""
        x, g = list(self.encoder.parameters()), self.g(self.y, self.features)
        gradient = torch.autograd.grad(g, self.leaves, create_graph=True)
        along = sum((d * v).sum() for d, v in zip(gradient, self.directions, strict=True))
        second = torch.autograd.grad(along, [*self.leaves, *x], retain_graph=True, allow_unused=True)
        pairs = zip([*self.leaves, *x], second, strict=True)
        return [*(d.detach() for d in gradient), *(torch.zeros_like(p) if d is None else d for p, d in pairs)]

    @torch.no_grad()
    def move(self):
        for k, leaf in enumerate(self.leaves):
            leaf.add_(randn(*leaf.shape, seed=60 + k))


def kind_of(graph):
    return "closed" if graph.is_closed else "plain" if graph._closed is None else "mixed"


def assert_close(found, expected, tolerance=1e-12):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=tolerance, atol=tolerance)


def checked(g, names, tolerance=1e-12):
    """Compare at a point, and after y has moved; returns what the loss was taken for."""
    derivatives = Derivatives(g, names)
    graph = derivatives.graph(plain=False)
    expected = derivatives.by_hand()
    assert max(float(e.abs().max()) for e in expected) > 1e-3, "a loss without derivatives shows nothing"
    assert_close(derivatives.of(graph), expected, tolerance)
    assert_close(derivatives.of(derivatives.graph(plain=True)), expected, tolerance)
    if graph.is_closed:
        kept = derivatives.graph(plain=False).keeping_y()
        derivatives.move()
        assert_close(derivatives.of(kept.moved()), derivatives.by_hand(), tolerance)
    return kind_of(graph)


# Losses with closed forms, in the ways people write them: what they are taken for, y, and the loss.

SQUARES = {
    "square().sum()": lambda y, p: y.W.square().sum(),
    "** 2": lambda y, p: (y.W**2).sum(),
    "** 2.0": lambda y, p: (y.W**2.0).sum(),
    "a * a": lambda y, p: (y.W * y.W).sum(),
    "mean": lambda y, p: y.W.square().mean(),
    "mean along an axis": lambda y, p: y.W.square().mean(0).sum(),
    "of the transpose": lambda y, p: y.W.T.square().sum(),
    "of a view": lambda y, p: y.W.view(-1).square().sum(),
    "of the negative": lambda y, p: (-y.W).square().sum(),
    "around 1": lambda y, p: ((y.W - 1) ** 2).sum(),
    "around b": lambda y, p: ((2 * y.W - y.b[:, None]) ** 2).sum(),
    "elementwise": lambda y, p: (TARGETS[:3].new_ones(3, 4) * 3 * y.W.square()).sum(),
    "per feature": lambda y, p: (torch.arange(4.0) * y.W.square()).sum(),
    "parts of it": lambda y, p: y.W.square()[1].sum() + y.W.square()[:, 1:3].sum(),
    "chosen": lambda y, p: y.W.square().gather(1, torch.tensor([[0], [1], [1]])).sum(),
    "sum in Python": lambda y, p: sum(t.square().sum() for t in (y.W, y.b)),
    "stack": lambda y, p: torch.stack([t.square().sum() for t in (y.W, y.b)]).sum(),
    "stack, mean": lambda y, p: torch.stack([t.square().sum() for t in (y.W, y.b)]).mean(),
    "twice": lambda y, p: y.W.square().sum() + 2 * y.W.square().sum(),
    "minus": lambda y, p: -3 * -y.W.square().sum() / 7,
    "subtracted": lambda y, p: 2 * y.W.square().sum() - y.W.square().sum(),
    "torch.sub alpha": lambda y, p: torch.sub(3 * y.b.square().sum(), y.b.square().sum(), alpha=0.5),
    "divided by a tensor": lambda y, p: y.W.square().sum() / torch.tensor(3),
    "a weight of x": lambda y, p: (p.mean().exp() * y.W.square()).sum(),
    "a weight of x per feature": lambda y, p: 0.5 * (y.W.square() * p.mean(0).exp()).sum(),
    "a weight of x for each tensor": lambda y, p: ((s := p.mean().exp()) * y.W**2).sum() + (s * (y.b * y.b)).sum(),
}
HEADS = {
    "nn.functional.linear": ("Wb", lambda y, p: entropy(y, p)),
    "linear of three axes": ("Wb", lambda y, p: task_entropy(logits(y, tasks(p)))),
    "matmul": ("M", lambda y, p: functional.cross_entropy(p @ y.M, LABELS)),
    "matmul and + bias": ("Mb", lambda y, p: functional.cross_entropy(p @ y.M + y.b, LABELS)),
    "bias + matmul": ("Mb", lambda y, p: functional.cross_entropy(y.b + p @ y.M, LABELS)),
    "addmm": ("Wb", lambda y, p: functional.cross_entropy(torch.addmm(y.b, p, y.W.T, beta=0.5, alpha=2), LABELS)),
    "weights first": ("Wb", lambda y, p: functional.cross_entropy((y.W @ p.T + y.b[:, None]).T, LABELS)),
    "einsum": ("Wb", lambda y, p: functional.cross_entropy(torch.einsum("ef,cf->ec", p, y.W) + y.b, LABELS)),
    "einsum of tasks": ("Tc", lambda y, p: task_entropy(torch.einsum("tef,tcf->tec", tasks(p), y.T) + y.c[:, None])),
    "bmm": ("T", lambda y, p: task_entropy(torch.bmm(tasks(p), y.T.mT), reduction="sum")),
    "matmul of tasks": ("T", lambda y, p: task_entropy((y.T @ tasks(p).mT).mT)),
    "baddbmm": ("Tc", lambda y, p: task_entropy(torch.baddbmm(y.c[:, :, None], y.T, tasks(p).mT).mT)),
    "baddbmm, features first": ("Tc", lambda y, p: task_entropy(torch.baddbmm(y.c[:, None], tasks(p), y.T.mT))),
    "one head for all tasks": ("Wb", lambda y, p: task_entropy(tasks(p) @ y.W.T.expand(2, 4, 3) + y.b)),
    "classes on axis 1": (
        "Tc",
        lambda y, p: (
            functional.cross_entropy(
                torch.baddbmm(y.c[:, :, None], y.T, tasks(p).mT), LABELS.view(2, 3), reduction="none"
            )
            .mean(1)
            .sum()
        ),
    ),
    "scaled logits": ("Wb", lambda y, p: functional.cross_entropy(2 * logits(y, p.relu()) / 3 - 1, LABELS)),
    "temperatures": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p) / EXAMPLES[:, None], LABELS)),
    "added logits": ("WbV", lambda y, p: functional.cross_entropy(logits(y, p) - p.tanh() @ y.V.T, LABELS)),
    "two heads": ("WbV", lambda y, p: entropy(y, p) + functional.cross_entropy(p @ y.V.T, LABELS.flip(0))),
    "a known offset": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p) + TARGETS, LABELS)),
    "forbidden classes": (
        "Wb",
        lambda y, p: functional.cross_entropy(
            logits(y, p) + torch.where(torch.eye(6, 3).roll(1, 1) > 0, -torch.inf, 0.0),
            torch.tensor([0, 1, 0, 0, 1, 1]),
        ),
    ),
    "label smoothing": ("Wb", lambda y, p: entropy(y, p, label_smoothing=0.1)),
    "class weights": ("Wb", lambda y, p: entropy(y, p, weight=CLASSES)),
    "all of it": ("Wb", lambda y, p: entropy(y, p, weight=CLASSES, label_smoothing=0.2, ignore_index=1)),
    "sum": ("Wb", lambda y, p: entropy(y, p, reduction="sum")),
    "weighted examples": ("Wb", lambda y, p: (EXAMPLES * entropy(y, p, reduction="none")).mean()),
    "masked examples": ("Wb", lambda y, p: (entropy(y, p, reduction="none") * (LABELS > 0)).sum() / (LABELS > 0).sum()),
    "soft targets": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p), SHARES)),
    "soft targets by hand": ("Wb", lambda y, p: -(logits(y, p).log_softmax(-1) * SHARES).sum(1).mean()),
    "log_softmax and gather": ("Wb", lambda y, p: -logits(y, p).log_softmax(1).gather(1, LABELS[:, None]).mean()),
    "nll_loss": ("Wb", lambda y, p: functional.nll_loss(functional.log_softmax(logits(y, p), 1), LABELS)),
    "log_softmax along the examples": ("Wb", lambda y, p: -(logits(y, p).log_softmax(0) * SHARES).sum()),
    "mse": ("Wb", lambda y, p: functional.mse_loss(logits(y, p), TARGETS)),
    "mse, sum": ("Wb", lambda y, p: functional.mse_loss(logits(y, p), TARGETS, reduction="sum")),
    "mse, none": ("Wb", lambda y, p: (functional.mse_loss(logits(y, p), TARGETS, reduction="none") * CLASSES).mean()),
    "mse of three axes": ("Wb", lambda y, p: functional.mse_loss(logits(y, tasks(p)), TARGETS.view(2, 3, 3))),
    "(a - b) ** 2": ("w", lambda y, p: ((p @ y.w - EXAMPLES) ** 2).mean()),
    "a * a": ("w", lambda y, p: ((d := p @ y.w - EXAMPLES) * d).mean()),
    "matrix and vector": ("w", lambda y, p: (torch.mv(p, y.w) - EXAMPLES).square().sum()),
    "linear with one output": ("w", lambda y, p: (functional.linear(p, y.w[None]).squeeze(-1) + 1).square().mean()),
    "permuted": ("M", lambda y, p: functional.mse_loss((tasks(p) @ y.M).permute(2, -3, 1), torch.ones(3, 2, 3))),
    "bce": ("Wb", lambda y, p: functional.binary_cross_entropy_with_logits(logits(y, p), SHARES)),
    "bce with weights": (
        "w",
        lambda y, p: functional.binary_cross_entropy_with_logits(
            p @ y.w, (LABELS > 0).double(), pos_weight=torch.tensor(2.0), weight=EXAMPLES
        ),
    ),
    "bce, weights per class": (
        "Wb",
        lambda y, p: functional.binary_cross_entropy_with_logits(
            logits(y, p), SHARES, pos_weight=CLASSES, reduction="none"
        ).mean(),
    ),
    "written in place": ("Wb", lambda y, p: (entropy(y, p) * 1.0).add_(y.W.square().sum()).mul_(2)),
    "a regulariser for each example": ("Wb", lambda y, p: (entropy(y, p, reduction="none") + squared(y, "W")).mean()),
    "saved elsewhere": ("Wb", lambda y, p: saved_elsewhere(y, p)),
    "checkpointed": ("Wb", lambda y, p: checkpoint(lambda q: entropy(y, q), p, use_reentrant=False)),
}


def saved_elsewhere(y, p):
    with torch.autograd.graph.save_on_cpu():
        return entropy(y, p) + squared(y, "W")


@pytest.mark.parametrize("name", HEADS)
def test_a_linear_head_has_closed_forms_however_it_is_written(name):
    names, g = HEADS[name]
    assert checked(lambda y, p: g(y, p) + 0.05 * squared(y, *names), names) == "closed"


@pytest.mark.parametrize("name", SQUARES)
def test_a_regulariser_has_closed_forms_however_it_is_written(name):
    g = SQUARES[name]
    assert checked(lambda y, p: entropy(y, p) + 0.3 * g(y, p), "Wb") == "closed"


@pytest.mark.parametrize("name", ["nn.functional.linear", "mse", "bce", "bmm", "matrix and vector"])
def test_a_head_alone_has_closed_forms(name):
    names, g = HEADS[name]
    assert checked(g, names) == "closed"


def test_casts_are_followed():
    def g(y, p):
        return functional.cross_entropy(logits(y, p).float(), LABELS).double() + (y.W.float().square().sum()).double()

    assert checked(g, "Wb", tolerance=1e-5) == "closed"


def test_a_weight_of_x_in_another_precision_is_right():
    checked(lambda y, p: entropy(y, p) + (p.float().mean().exp() * y.W.square()).sum(), "Wb", tolerance=1e-6)


# Losses that autograd has to help with, wholly or in part.


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return 2 * a

    @staticmethod
    def backward(ctx, c):
        return 2 * c


def attention(y, p):
    scores = functional.softmax(p @ y.W.T @ y.W @ p.T, -1) @ p
    return functional.cross_entropy(logits(y, scores), LABELS)


def used_twice(y, p):
    loss = entropy(y, p)
    return loss + p.mean() * loss


def rest_behind_rest(y, p):
    u = (torch.logsumexp(logits(y, p), 1).mean() / 9).exp()
    return entropy(y, p) + u + u.tanh()


def weighed_behind_rest(y, p):
    weighed = p.mean(0).exp() * y.W.square()
    return entropy(y, p) + (EXAMPLES[:4] * (weighed + weighed.tanh())).sum()


def split_losses(y, p):
    first, second = entropy(y, p, reduction="none").split(3)
    return first.mean() + 2 * second.mean()


OTHERS = {
    # Something between the head and the loss, or in place of the head.
    "mlp": ("WM", lambda y, p: functional.cross_entropy((p @ y.M).tanh() @ y.W, LABELS)),
    "tanh": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p).tanh(), LABELS)),
    "W Wᵀ": ("W", lambda y, p: functional.mse_loss(p @ y.W.T @ y.W, p.detach())),
    "attention": ("Wb", attention),
    "a function of one's own": ("Wb", lambda y, p: functional.cross_entropy(Doubled.apply(logits(y, p)), LABELS)),
    "a loss of one's own": ("Wb", lambda y, p: Doubled.apply(entropy(y, p))),
    "normalised weights": ("W", lambda y, p: functional.cross_entropy(p @ functional.normalize(y.W).T, LABELS)),
    "logits times logits": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p) * (p @ y.W.T), LABELS)),
    "a learnt temperature": ("Wbs", lambda y, p: functional.cross_entropy(logits(y, p) * y.s.exp(), LABELS)),
    "a temperature of x": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p) * p.mean().exp(), LABELS)),
    "an offset of x": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p) + p[:, :3].tanh(), LABELS)),
    "shifted weights": ("W", lambda y, p: functional.cross_entropy(p @ (y.W + 1).T, LABELS)),
    "weights shifted by x": ("W", lambda y, p: functional.cross_entropy(p @ (y.W + p.mean(0)).T, LABELS)),
    "elementwise products": ("w", lambda y, p: ((p * y.w).sum(1) - EXAMPLES).square().mean()),
    "joined features": (
        "WV",
        lambda y, p: functional.cross_entropy(torch.cat([p, p.tanh()], 1) @ torch.cat([y.W, y.V], 1).T, LABELS),
    ),
    # Another loss.
    "indexed": ("Wb", lambda y, p: -logits(y, p).log_softmax(1)[torch.arange(6), LABELS].mean()),
    "by logsumexp": ("Wb", lambda y, p: (torch.logsumexp(a := logits(y, p), 1) - a[:, 0]).mean()),
    "hinge": ("Wb", lambda y, p: (1 - logits(y, p)[:, 0]).relu().mean()),
    "huber": ("Wb", lambda y, p: functional.huber_loss(logits(y, p), TARGETS)),
    "targets of x": ("Wb", lambda y, p: functional.mse_loss(logits(y, p), p[:, :3].tanh())),
    "soft targets of x": ("Wb", lambda y, p: functional.cross_entropy(logits(y, p), p[:, :3].softmax(1))),
    "prediction and target exchanged": ("Wb", lambda y, p: functional.mse_loss(TARGETS, logits(y, p))),
    "exchanged by hand": ("Wb", lambda y, p: (TARGETS - logits(y, p)).square().mean()),
    "the targets learnt": ("Wb", lambda y, p: functional.binary_cross_entropy_with_logits(TARGETS, logits(y, p))),
    "against itself": ("Wb", lambda y, p: functional.mse_loss(a := logits(y, p), a) + squared(y, "W", "b")),
    "binary against itself": (
        "Wb",
        lambda y, p: functional.binary_cross_entropy_with_logits(a := logits(y, p), a) + squared(y, "W", "b"),
    ),
    "weights of x": ("Wb", lambda y, p: (p.mean(1).sigmoid() * entropy(y, p, reduction="none")).mean()),
    "the largest": ("Wb", lambda y, p: entropy(y, p, reduction="none").max(0)[0] + entropy(y, p)),
    # Parts that meet.
    "a loss used twice": ("Wb", used_twice),
    "rest behind rest": ("Wb", rest_behind_rest),
    "weighed square behind rest": ("Wb", weighed_behind_rest),
    "a square used twice": ("Wb", lambda y, p: entropy(y, p) + (p.mean().exp() * (s := y.W**2)).sum() + s.sum()),
    "loss times loss": ("Wb", lambda y, p: entropy(y, p) * squared(y, "W")),
    "a constant over the loss": ("Wb", lambda y, p: 1 / entropy(y, p)),
    "root": ("Wb", lambda y, p: functional.mse_loss(logits(y, p), TARGETS).sqrt()),
    # Nodes with several outputs.
    "sum over the losses": ("Wb", lambda y, p: sum(entropy(y, p, reduction="none")) / 6),
    "unbound": ("Wb", lambda y, p: (u := entropy(y, p, reduction="none").unbind())[1] + 3 * u[4]),
    "split": ("Wb", split_losses),
    "variance and mean": ("Wb", lambda y, p: sum(torch.var_mean(logits(y, p).tanh()))),
    "the second of two": ("Wb", lambda y, p: torch.var_mean(logits(y, p).tanh())[1]),
    "rows of W": ("Wb", lambda y, p: sum(row.square().sum() for row in y.W.unbind()) + entropy(y, p)),
    # Products of products.
    "a fixed layer after the head": ("M", lambda y, p: functional.cross_entropy((p @ y.M) @ TARGETS[:3], LABELS)),
    "a layer of x after the head": ("M", lambda y, p: functional.cross_entropy((p @ y.M) @ p[:3, :3], LABELS)),
    "a product as offset": ("MW", lambda y, p: functional.cross_entropy(torch.addmm(p @ y.M, p.tanh(), y.W.T), LABELS)),
    "vectors of vectors": ("w", lambda y, p: ((p @ (p.T.tanh() @ (p @ y.w)) - 1) ** 2).mean()),
    "products of tasks": ("T", lambda y, p: task_entropy(tasks(p).tanh() @ p[:4, :4] @ y.T.mT @ TARGETS[:3])),
    # Broadcasting.
    "a number and a vector": ("Wb", lambda y, p: (y.b.square() + logits(y, p).tanh().mean()).sum() + squared(y, "W")),
    "a vector and a matrix": ("Wb", lambda y, p: (y.W.square() + y.b.square()[:, None]).sum() + entropy(y, p)),
    "a weight larger than the square": (
        "Wb",
        lambda y, p: (p.mean(1).exp()[:, None, None] * y.W.square()).sum() + entropy(y, p),
    ),
    "subtracted from a vector": ("Wb", lambda y, p: (entropy(y, p, reduction="none") - squared(y, "W")).sum()),
    # Other regularisers.
    "cubic": ("Wb", lambda y, p: entropy(y, p) + y.W.pow(3).sum()),
    "norm ** 2": ("Wb", lambda y, p: entropy(y, p) + y.W.norm() ** 2),
    "dot": ("Wb", lambda y, p: entropy(y, p) + y.b @ y.b),
    "1 / norm": ("Wb", lambda y, p: entropy(y, p) + 1 / squared(y, "W")),
    "1 - norm": ("Wb", lambda y, p: entropy(y, p) - (1 - squared(y, "W"))),
    "linear": ("Wb", lambda y, p: entropy(y, p) + squared(y, "W") + y.b.sum()),
    "abs": ("Wb", lambda y, p: entropy(y, p) + y.W.abs().sum()),
    "W times V": ("WbV", lambda y, p: entropy(y, p) + (y.W * y.V).sum() + squared(y, "V")),
    "a tensor as exponent": ("Wb", lambda y, p: entropy(y, p) + (y.W.exp() ** torch.tensor(2.0)).sum()),
    "the mean of x and a norm": ("Wb", lambda y, p: entropy(y, p) + p.mean().exp() * squared(y, "W", "b")),
    "x alone": ("Wb", lambda y, p: entropy(y, p) + p.square().mean()),
    "times zero": ("Wb", lambda y, p: 0 * entropy(y, p) + squared(y, "W", "b")),
}
NEVER_CLOSED = ["mlp", "tanh", "W Wᵀ", "attention", "a function of one's own", "a loss of one's own", "shifted weights"]
NEVER_CLOSED += ["a loss used twice", "logits times logits", "a learnt temperature", "a temperature of x", "hinge"]
NEVER_CLOSED += ["a constant over the loss", "loss times loss", "cubic", "1 / norm", "weights shifted by x", "root"]
NEVER_CLOSED += ["targets of x", "the largest", "variance and mean", "W times V", "linear", "weights of x", "abs"]


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_loss_is_right_too(name):
    names, g = OTHERS[name]
    kind = checked(lambda y, p: g(y, p) + 0.05 * squared(y, *names), names)
    assert kind != "closed" or name not in NEVER_CLOSED


@pytest.mark.parametrize("name", ["norm ** 2", "dot", "x alone", "the mean of x and a norm", "abs"])
def test_beside_a_term_that_is_left_to_autograd_a_head_keeps_its_closed_form(name):
    names, g = OTHERS[name]
    assert checked(g, names) == "mixed"


def test_a_term_in_lower_precision_is_left_to_autograd():
    def g(y, p):
        return entropy(y, p).float() + y.W.float().tanh().sum() + y.b.square().sum()

    assert checked(g, "Wb", tolerance=1e-5) == "mixed"


def test_a_compiled_head_is_left_to_autograd():
    def scores(p, W, b):
        return functional.linear(p, W, b)

    compiled = torch.compile(scores, backend="aot_eager", fullgraph=True)

    def g(y, p):
        return functional.cross_entropy(compiled(p.detach(), y.W, y.b), LABELS) + squared(y, "W", "b")

    derivatives = Derivatives(g, "Wb")
    graph = derivatives.graph(plain=False)
    assert kind_of(graph) in ("mixed", "plain")
    assert_close(graph.gradient(), torch.autograd.grad(g(derivatives.y, derivatives.features), derivatives.leaves))


@pytest.mark.parametrize("terms", [200, 1200])
def test_a_sum_of_very_many_terms_is_no_trouble(terms):
    """A loop over examples in Python leaves a graph as deep as the batch is long."""

    def g(y, p):
        return entropy(y, p) + sum(0.01 * y.W.square().sum() for _ in range(terms))

    checked(g, "Wb", tolerance=1e-10)


def test_a_loss_added_to_itself_many_times_is_read_in_no_time():
    """There are 2²² ways from the loss down to a term."""

    def g(y, p):
        loss = entropy(y, p) + squared(y, "W")
        for _ in range(22):
            loss = (loss + loss) / 2
        return loss

    derivatives = Derivatives(g, "Wb")
    start = time.perf_counter()
    graph = derivatives.graph(plain=False)
    assert time.perf_counter() - start < 1
    assert_close(derivatives.of(graph), derivatives.by_hand())


def test_a_loss_that_is_a_leaf_has_a_gradient():
    y = nn.Parameter(torch.tensor(0.5))
    graph = LowerGraph.of(y, LowerVariable([y], None))
    assert_close(graph.gradient(), [torch.tensor(1.0)])


def test_what_a_caller_does_to_a_gradient_does_not_come_back():
    W = parameter(3)
    graph = LowerGraph.of(((W - 1) ** 2).sum(), LowerVariable([W], None))
    graph.gradient()[0].zero_()
    assert_close(graph.gradient(), [2 * (W - 1)])


def test_hooks_on_y_are_not_passed_by():
    def g(y, p):
        y.W.register_hook(lambda c: c * torch.tensor([1.0, 0.0, 1.0, 0.0]))
        return entropy(y, p) + squared(y, "W", "b")

    derivatives = Derivatives(g, "Wb")
    expected = torch.autograd.grad(g(derivatives.y, derivatives.features), derivatives.leaves)
    assert_close(derivatives.graph(plain=False).gradient(), expected)


# Compositions by chance: equal parts of an expression are one tensor, used again.

NUMBERS = st.sampled_from([-2.0, -0.5, 0.3, 1.0, 3.0])
ENDS = ["entropy", "smooth", "mse", "exchanged", "bce", "tanh", "x", "W2", "b2", "Wx", "around", "norm", "vector", "V"]


def grown(parts):
    pairs = st.tuples(parts, parts)
    return st.one_of(
        st.tuples(st.sampled_from(["negative", "mean", "sum", "weighed", "summed", "by x", "tanh", "shifted"]), parts),
        st.tuples(st.sampled_from(["times", "over"]), NUMBERS, parts),
        st.tuples(st.sampled_from(["add", "stack", "cat", "product"]), pairs),
        st.tuples(st.just("subtract"), NUMBERS, pairs),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ENDS), grown, max_leaves=7)
ENDINGS = {
    "entropy": lambda y, p: entropy(y, p, reduction="none"),
    "smooth": lambda y, p: entropy(y, p, reduction="none", label_smoothing=0.1, weight=CLASSES),
    "mse": lambda y, p: functional.mse_loss(logits(y, p), TARGETS, reduction="none").mean(1),
    "exchanged": lambda y, p: functional.mse_loss(TARGETS, logits(y, p)),
    "bce": lambda y, p: functional.binary_cross_entropy_with_logits(logits(y, p), SHARES, pos_weight=CLASSES),
    "tanh": lambda y, p: logits(y, p).tanh().mean(1),
    "x": lambda y, p: p.square().mean(1),
    "W2": lambda y, p: y.W.square().mean(),
    "b2": lambda y, p: (y.b * y.b).sum(),
    "Wx": lambda y, p: (p.mean(0).exp() * y.W.square()).mean(),
    "around": lambda y, p: (y.W - 1).square().mean(),
    "norm": lambda y, p: y.W.norm() / 3,
    "vector": lambda y, p: (p @ y.w - EXAMPLES) ** 2,
    "V": lambda y, p: functional.cross_entropy(p @ y.V.T @ TARGETS[:3] / 3, LABELS, reduction="none"),
}


def evaluated(expression, y, p, known):
    if expression not in known:
        known[expression] = _evaluated(expression, y, p, known)
    return known[expression]


def _evaluated(expression, y, p, known):
    if isinstance(expression, str):
        return ENDINGS[expression](y, p)
    kind, *numbers, parts = expression
    if kind in ("add", "stack", "cat", "product", "subtract"):
        a, b = (evaluated(part, y, p, known) for part in parts)
        both = torch.broadcast_tensors(a, b)
        return {
            "add": lambda: a + b,
            "stack": lambda: torch.stack(both).mean(0),
            "cat": lambda: torch.cat([t.reshape(-1) for t in both]).mean(),
            "product": lambda: a * b / 3,
            "subtract": lambda: torch.sub(a, b, alpha=numbers[0]),
        }[kind]()
    a = evaluated(parts, y, p, known)
    return {
        "negative": lambda: -a,
        "mean": lambda: a.mean(),
        "sum": lambda: a.sum() / 3,
        "weighed": lambda: EXAMPLES * a,
        "summed": lambda: sum(a.expand(6)) / 6,
        "by x": lambda: a * p.mean().exp(),
        "tanh": lambda: (a / 3).tanh(),
        "shifted": lambda: 1 - a,
        "times": lambda: numbers[0] * a,
        "over": lambda: a / numbers[0],
    }[kind]()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(expression=EXPRESSIONS)
def test_compositions_agree_with_autograd(expression):
    """The regulariser makes sure that each tensor of y is used, and that something is in closed form."""

    def g(y, p):
        return evaluated(expression, y, p, {}).sum() + 0.1 * squared(y, "W", "b", "w", "V")

    checked(g, "WbwV", tolerance=1e-9)


# Methods.


def batch(seed, size=6):
    return randn(size, 5, seed=seed), torch.randint(3, (size,), generator=torch.Generator().manual_seed(seed))


def encoder_of():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh()).double()


def fit(head, features, labels):
    return functional.cross_entropy(head(features), labels)


def problem_of(head=None, lower=None, encoder=None, **more):
    """A classifier; `lower(head, features, batch)` in place of cross-entropy with L2."""
    encoder = encoder_of() if encoder is None else encoder
    torch.manual_seed(8)
    head = nn.Linear(4, 3).double() if head is None else head

    def usual(head, features, b):
        return fit(head, features, b[1]) + 0.1 * sum(p.square().sum() for p in head.parameters())

    lower = usual if lower is None else lower
    return adambo.EncoderHeadProblem(
        lambda b: encoder(b[0]),
        lambda features, b: fit(head, features, b[1]),
        lambda features, b: lower(head, features, b),
        encoder,
        head,
        **more,
    )


def task_problem():
    encoder = encoder_of()
    return hyper_representation(encoder, encoder, Heads(parameter(9, 3, 4, seed=1), parameter(9, 3, seed=2)), mu=0.2)


def episodes(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (4, 6), generator=generator)
    return Episodes(torch.randperm(9, generator=generator)[:4], randn(24, 5, seed=seed), labels, 3)


def state(solver):
    return [p.detach().clone() for p in (*solver.problem.x, *solver.problem.y)]


def run(solver, plain=False, steps=6, batches=batch, together=False):
    """What the steps lead to."""
    torch.manual_seed(11)
    with adambo.plain_autograd() if plain else nullcontext():
        for k in range(steps):
            upper = batches(k)
            solver.step(upper, upper if together else batches(k + 50))
    return state(solver)


@pytest.fixture
def readings(monkeypatch):
    """What the reader has found."""
    found = []

    def noted(loss, y):
        found.append(read(loss, y))
        return found[-1]

    monkeypatch.setattr("adambo.lower_graph.read", noted)
    return found


@pytest.fixture
def descents(monkeypatch):
    """For each attempt to make lower steps at once: whether it did."""
    found = []

    def noted(*arguments):
        y = descended(*arguments)
        found.append(y is not None)
        return y

    monkeypatch.setattr("adambo.lower_graph.descended", noted)
    return found


METHODS = [(name, {}) for name in ("SOBA", "SLIP", "SUSTAIN", "MASOBA", "TTSA", "FSLA", "VRBO")]
METHODS += [(name, {"lower_steps": n}) for name in ("AdamBO", "StocBiO", "AccBO", "VRAdamBO", "BOREP") for n in (1, 5)]
METHODS += [("F2SA", {"lower_steps": n, "smoothness": 5.0}) for n in (1, 5)]
METHODS += [("AdamBO", {"lower_steps": 5, "hypergradient_at": "updated"}), ("SOBA", {"fresh": True})]
METHODS += [("AdamBO", {"inverse": inverse}) for inverse in ("exact", "cg", "independent", "random", "system")]
INVERSES = {
    "exact": lambda: adambo.Exact(),
    "cg": lambda: adambo.ConjugateGradient(4),
    "independent": lambda: adambo.Neumann(terms=4, samples="independent"),
    "random": lambda: adambo.Neumann(terms=4, samples="random"),
    "system": lambda: adambo.LinearSystem(lr=0.5, steps=2),
}


def solver_of(name, problem, how):
    how = {key: INVERSES[value]() if key == "inverse" else value for key, value in how.items()}
    return ALL[name](problem, lr=0.02, lower_lr=0.1, **how)


@pytest.mark.parametrize("kind", ["shared", "tasks"])
@pytest.mark.parametrize(("name", "how"), METHODS, ids=str)
def test_every_method_makes_the_same_steps_with_closed_forms(name, how, kind, readings):
    make, batches = (problem_of, batch) if kind == "shared" else (task_problem, episodes)
    mine, reference = (solver_of(name, make(), how) for _ in range(2))
    before = state(mine)
    found = run(mine, batches=batches, together=kind == "tasks")
    if name != "F2SA":  # which needs no second derivatives
        assert readings
    assert all(reading is not None and not reading.rest for reading in readings)
    readings.clear()
    expected = run(reference, plain=True, batches=batches, together=kind == "tasks")
    assert not readings
    assert_close(found, expected, 1e-10)
    assert mine.ledger == reference.ledger
    assert max(float((a - b).abs().max()) for a, b in zip(found, before, strict=True)) > 1e-3


def test_tables_of_all_tasks_are_left_to_autograd():
    def extra(problem):
        lower = problem.lower
        problem.lower = lambda features, b: lower(features, b) + 0.01 * problem.y[0].square().sum()
        return problem

    runs = [run(solver_of("AdamBO", extra(task_problem()), {}), plain, 3, episodes, True) for plain in (False, True)]
    assert_close(*runs)


# Lower steps at once.


def with_penalties(weight, bias):
    def lower(head, features, b):
        penalty = weight * head.weight.square().sum()
        return fit(head, features, b[1]) + (penalty if head.bias is None else penalty + bias * head.bias.square().sum())

    return lower


def weights_first(head, features, b):
    scores = torch.addmm(head.bias[:, None], head.weight, features.T)
    return functional.cross_entropy(scores.T, b[1]) + 0.1 * head.weight.square().sum()


AT_ONCE = {
    "one penalty": lambda: problem_of(),
    "two penalties": lambda: problem_of(lower=with_penalties(0.3, 0.01)),
    "a penalty on the weights": lambda: problem_of(lower=with_penalties(0.3, 0.0)),
    "none": lambda: problem_of(lower=lambda head, features, b: fit(head, features, b[1])),
    "no bias": lambda: problem_of(nn.Linear(4, 3, bias=False).double(), with_penalties(0.3, 0.0)),
    "weights first": lambda: problem_of(lower=weights_first),
    "class weights": lambda: problem_of(
        lower=lambda head, features, b: functional.cross_entropy(head(features), b[1], CLASSES, label_smoothing=0.1)
    ),
    "squares": lambda: problem_of(lower=lambda head, features, b: functional.mse_loss(head(features), TARGETS)),
    "binary": lambda: problem_of(
        lower=lambda head, features, b: functional.binary_cross_entropy_with_logits(
            head(features), SHARES, pos_weight=CLASSES
        )
    ),
    "seven features": lambda: problem_of(
        nn.Linear(7, 3).double(), encoder=nn.Sequential(nn.Linear(5, 7), nn.Tanh()).double()
    ),
    "tasks": task_problem,
}
SINGLY = {
    "a known offset": lambda: problem_of(
        lower=lambda head, features, b: functional.cross_entropy(head(features) + 2 * TARGETS, b[1])
    ),
    "features first": lambda: problem_of(
        lower=lambda head, features, b: functional.cross_entropy(features @ head.weight.view(4, 3) + head.bias, b[1])
    ),
    "penalties of features": lambda: problem_of(
        lower=lambda head, features, b: fit(head, features, b[1]) + (torch.arange(4.0) * head.weight.square()).sum()
    ),
    "penalties of x": lambda: problem_of(
        lower=lambda head, features, b: (
            fit(head, features, b[1]) + (features.mean(0).exp() * head.weight.square()).sum()
        )
    ),
    "two losses": lambda: problem_of(
        lower=lambda head, features, b: fit(head, features, b[1]) + fit(head, features.tanh(), b[1])
    ),
    "scaled logits": lambda: problem_of(
        lower=lambda head, features, b: functional.cross_entropy(2 * head(features), b[1])
    ),
    "a norm": lambda: problem_of(lower=lambda head, features, b: fit(head, features, b[1]) + head.weight.norm()),
    "mlp": lambda: problem_of(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()),
}


def descend_by_hand(problem, lower_batch, steps, rate):
    """Gradient steps on the lower loss."""
    y = [p.detach().clone() for p in problem.y]
    for _ in range(steps):
        with problem.moved_to(y=[t.clone() for t in y]):
            features = problem.encoder(lower_batch).detach()
            gradient = torch.autograd.grad(problem.lower(features, lower_batch), problem.y)
        y = [t - rate * g for t, g in zip(y, gradient, strict=True)]
    return y


@pytest.mark.parametrize("at", ["current", "updated"])
@pytest.mark.parametrize("name", [*AT_ONCE, *SINGLY])
def test_lower_steps_at_once_are_those_one_by_one(name, at, descents):
    make = (AT_ONCE | SINGLY)[name]
    batches, together = (episodes, True) if name == "tasks" else (batch, False)
    settings = {"lower_steps": 7, "hypergradient_at": at}
    torch.manual_seed(5)
    mine = solver_of("AdamBO", make(), settings)
    torch.manual_seed(5)
    reference = solver_of("AdamBO", make(), settings)
    upper = batches(0)
    lower = upper if together else batches(50)
    expected = descend_by_hand(mine.problem, lower, 7, 0.1)
    torch.manual_seed(11)
    mine.step(upper, lower)
    assert_close([p.detach() for p in mine.problem.y], expected)
    assert bool(descents) and all(descents) if name in AT_ONCE else not any(descents)
    descents.clear()
    run(mine, steps=3, batches=batches, together=together)
    with adambo.plain_autograd():
        torch.manual_seed(11)
        reference.step(upper, lower)
    run(reference, plain=True, steps=3, batches=batches, together=together)
    assert_close(state(mine), state(reference), 1e-11)
    assert mine.ledger == reference.ledger


OPTIMIZERS = {
    "momentum": lambda y: torch.optim.SGD(y, lr=0.1, momentum=0.9),
    "weight decay": lambda y: torch.optim.SGD(y, lr=0.1, weight_decay=0.3),
    "maximize": lambda y: torch.optim.SGD(y, lr=0.01, maximize=True),
    "two rates": lambda y: torch.optim.SGD([{"params": y[:1]}, {"params": y[1:], "lr": 0.2}], lr=0.1),
    "a tensor as rate": lambda y: torch.optim.SGD(y, lr=torch.tensor(0.1)),
    "Adam": lambda y: torch.optim.Adam(y, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_optimisers_make_their_own_steps(name, descents):
    runs = []
    for plain in (False, True):
        problem = problem_of()
        solver = adambo.AdamBO(problem, lr=0.02, lower_steps=4, lower_optimizer=OPTIMIZERS[name](problem.y))
        runs.append(run(solver, plain))
        assert not any(descents)
    assert_close(*runs)
    if name == "a tensor as rate":
        return
    plain_sgd = run(adambo.AdamBO(problem_of(), lr=0.02, lower_steps=4, lower_lr=0.1))
    assert max(float((a - b).abs().max()) for a, b in zip(runs[0], plain_sgd, strict=True)) > 1e-3


def test_a_schedule_on_the_lower_optimiser_is_followed_by_steps_at_once(descents):
    runs = []
    for plain in (False, True):
        solver = adambo.AdamBO(problem_of(), lr=0.02, lower_steps=4, lower_lr=0.1)
        schedule = LambdaLR(solver.lower_optimizer, lambda k: 1 / (1 + k))
        with adambo.plain_autograd() if plain else nullcontext():
            for k in range(4):
                solver.step(batch(k), batch(k + 50))
                schedule.step()
        runs.append(state(solver))
    assert descents == [True] * 4
    assert_close(*runs)


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_of_the_lower_optimiser_see_every_step(everywhere, descents):
    runs = []
    for plain in (False, True):
        solver = adambo.AdamBO(problem_of(), lr=0.02, lower_steps=4, lower_lr=0.1)
        norms = []

        def clip(optimizer, arguments, keywords, solver=solver, norms=norms):
            if optimizer is solver.lower_optimizer:
                norms.append(float(nn.utils.clip_grad_norm_(solver.problem.y, 0.1)))

        handle = (
            register_optimizer_step_pre_hook(clip)
            if everywhere
            else solver.lower_optimizer.register_step_pre_hook(clip)
        )
        try:
            runs.append(run(solver, plain, steps=3))
        finally:
            handle.remove()
        assert len(norms) == 3 * 4
        assert max(norms) > 0.1
    assert not any(descents)
    assert_close(*runs)


# Losses that come out differently each time.


class Noise(nn.Module):
    """Adds noise of a generator of its own."""

    def __init__(self):
        super().__init__()
        self.head, self.generator = nn.Linear(4, 3).double(), torch.Generator().manual_seed(1)

    def forward(self, features):
        return self.head(features + torch.randn(features.shape, generator=self.generator, dtype=torch.double))


CHANGING = {
    "dropout": lambda: problem_of(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).double()),
    "batch norm": lambda: problem_of(nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double()),
    "a generator of one's own": lambda: problem_of(Noise()),
    "targets that follow y": lambda: problem_of(lower=following_targets),
}


def following_targets(head, features, b):
    scores = head(features)
    targets = (functional.one_hot(b[1], 3) + scores.detach().softmax(1)) / 2
    return functional.cross_entropy(scores, targets) + 0.1 * head.weight.square().sum()


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize(
    ("method", "how"),
    [("AdamBO", {"lower_steps": 3}), ("AdamBO", {"lower_steps": 3, "hypergradient_at": "updated"}), ("StocBiO", {})],
    ids=str,
)
def test_a_loss_that_changes_is_evaluated_for_every_lower_step(name, method, how):
    runs = []
    for plain in (False, True):
        torch.manual_seed(5)
        solver = solver_of(method, CHANGING[name](), how)
        runs.append([*run(solver, plain), *(b.clone() for b in solver.problem.buffers)])
    assert_close(*runs)


@pytest.mark.parametrize("method", ["AdamBO", "StocBiO", "TTSA"])
def test_dropout_in_the_head_is_resumed_bit_for_bit(method):
    def make():
        return solver_of(method, CHANGING["dropout"](), {} if method == "TTSA" else {"lower_steps": 3})

    solver = make()
    run(solver, steps=2)
    saved, random_state = copy.deepcopy(solver.state_dict()), torch.get_rng_state()
    solver.step(batch(70), batch(71))
    resumed = make()
    resumed.load_state_dict(saved)
    torch.set_rng_state(random_state)
    resumed.step(batch(70), batch(71))
    assert all(torch.equal(a, b) for a, b in zip(state(solver), state(resumed), strict=True))


# Dependence on x past the encoder.


def past_the_encoder(kind, plain_problem=False):
    """Problems whose losses depend on x otherwise than through features, as encoder and head or as a whole."""
    encoder = encoder_of()
    torch.manual_seed(8)
    head, second = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    extra = nn.Parameter(randn(2, 4, seed=4) if kind == "operand" else torch.tensor(0.3, dtype=torch.double))
    y = [*head.parameters(), *(second.parameters() if kind in ("two heads", "features twice") else ())]

    def encode(b):
        features = encoder(b[0])
        return (features, features) if kind == "features twice" else features

    def upper(features, b):
        features, again = features if kind == "features twice" else (features, features)
        scores = head(features) + (second(again) if len(y) > 2 else 0)
        return functional.cross_entropy(scores, b[1]) + (0.1 * extra**2 if kind == "upper" else 0)

    def lower(features, b):
        features, again = features if kind == "features twice" else (features, features)
        loss = functional.cross_entropy(head(features), b[1]) + 0.05 * sum(p.square().sum() for p in y)
        shared = extra.exp()
        return (
            loss
            + {
                "leaf": lambda: (extra * head.weight.square()).sum(),
                "leaf twice": lambda: (extra * head.weight.square()).sum() + (extra * head.bias.square()).sum(),
                "exp": lambda: (shared * head.weight.square()).sum(),
                "exp twice": lambda: (shared * head.weight.square()).sum() + (shared * head.bias.square()).sum(),
                "exp of a norm": lambda: shared * head.weight.square().sum(),
                "operand": lambda: 0.1 * (extra @ head.weight.T).square().sum(),
                "weight of the loss": lambda: extra * loss,
                "upper": lambda: 0.0,
                "features and x": lambda: (shared * features.mean(0).exp() * head.weight.square()).sum(),
                "encoder weights": lambda: (encoder[0].weight.mean(1).exp() * head.weight.square()).sum(),
                "two heads": lambda: functional.cross_entropy(second(again), b[1]),
                "features twice": lambda: functional.cross_entropy(second(again), b[1]),
            }[kind]()
        )

    x = [*encoder.parameters(), extra]
    if plain_problem:
        return adambo.Problem(lambda b: upper(encode(b), b), lambda b: lower(encode(b), b), x, y)
    return adambo.EncoderHeadProblem(encode, upper, lower, x, y)


PAST = ["leaf", "leaf twice", "exp", "exp twice", "exp of a norm", "operand", "weight of the loss", "upper"]
PAST += ["features and x", "encoder weights", "two heads", "features twice"]


@pytest.mark.parametrize("statement", ["encoder and head", "plain problem"])
@pytest.mark.parametrize("kind", PAST)
def test_x_may_enter_past_the_encoder(kind, statement):
    problem = past_the_encoder(kind, statement == "plain problem")
    check = adambo.check_hypergradient(problem, adambo.Draw((batch(1),), (batch(2),), (batch(2),)))
    assert check.passed, check
    for how in ({}, {"lower_steps": 3, "hypergradient_at": "updated"}):
        mine = run(solver_of("AdamBO", past_the_encoder(kind, statement == "plain problem"), how), steps=3)
        assert_close(mine, run(solver_of("AdamBO", past_the_encoder(kind, True), how), plain=True, steps=3), 1e-11)


def test_a_plain_problem_whose_features_are_x_itself():
    """Two heads on one leaf: each has a derivative in it, and they add up."""

    def make():
        x, y, second = parameter(6, 4, seed=1), parameter(3, 4, seed=2), parameter(3, 4, seed=3)

        def lower(b):
            losses = functional.cross_entropy(x @ y.T, b[1]) + functional.cross_entropy(x @ second.T, b[1])
            return losses + 0.1 * (y.square().sum() + second.square().sum())

        return adambo.Problem(lambda b: functional.cross_entropy(x @ (y + second).T, b[1]), lower, x, [y, second])

    assert adambo.check_hypergradient(make(), adambo.Draw((batch(1),), (batch(2),), (batch(2),))).passed
    assert_close(*(run(solver_of("AdamBO", make(), {}), plain) for plain in (False, True)))


# Surrogates.


@pytest.mark.parametrize("plain", [False, True])
def test_the_surrogate_has_the_value_and_the_gradient_it_promises(plain):
    s, upper, lower = 0.2, batch(1), batch(2)
    problem = problem_of()
    f = problem.upper(problem.encoder(upper), upper)
    g = problem.lower(problem.encoder(lower), lower)
    f_y = torch.autograd.grad(f, problem.y, retain_graph=True)
    g_y = torch.autograd.grad(g, problem.y, create_graph=True)
    bent = torch.autograd.grad(g_y, problem.y, f_y, retain_graph=True)
    z = [s * (2 * v - s * h) for v, h in zip(f_y, bent, strict=True)]
    expected = f - sum((a * b).sum() for a, b in zip(g_y, z, strict=True))
    with adambo.plain_autograd() if plain else nullcontext():
        S = adambo.AdamBO(problem, inverse=adambo.Neumann(terms=2, step=s)).surrogate(upper, lower)
    S.backward()
    assert_close([S.detach()], [expected])
    assert_close([p.grad for p in problem.x], torch.autograd.grad(expected, problem.x))


@pytest.mark.parametrize("plain", [False, True])
def test_steps_in_two_halves_are_steps(plain):
    whole = run(solver_of("AdamBO", problem_of(), {"lower_steps": 3}), steps=3)
    solver = solver_of("AdamBO", problem_of(), {"lower_steps": 3})
    with adambo.plain_autograd() if plain else nullcontext():
        for k in range(3):
            solver.surrogate(batch(k), batch(k + 50)).backward()
            solver.upper_optimizer.step()
            solver.update()
    assert_close(state(solver), whole)


# Surroundings.


class Passing(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lower_steps", [1, 4])
@pytest.mark.parametrize("mode", ["flops", "dispatch"])
def test_a_step_under_a_dispatch_mode_is_the_same(mode, lower_steps):
    expected = run(solver_of("AdamBO", problem_of(), {"lower_steps": lower_steps}), steps=3)
    with FlopCounterMode(display=False) if mode == "flops" else Passing() as counting:
        found = run(solver_of("AdamBO", problem_of(), {"lower_steps": lower_steps}), steps=3)
    assert (counting.get_total_flops() if mode == "flops" else counting.calls) > 0
    assert_close(found, expected)


def float_problem(head=None):
    torch.manual_seed(8)
    problem = problem_of(nn.Linear(4, 3) if head is None else head, encoder=encoder_of().float())
    encode = problem.encoder
    problem.encoder = lambda b: encode((b[0].float(), b[1]))
    return problem


@pytest.mark.parametrize("lower_steps", [1, 4])
def test_under_autocast_z_is_in_full_precision_and_near_that_of_float32(lower_steps):
    solver, reference = (adambo.AdamBO(float_problem(), lower_steps=lower_steps, lower_lr=0.1) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        z = solver.step(batch(0), batch(1)).z
    expected = reference.step(batch(0), batch(1)).z
    assert {t.dtype for t in z} == {torch.float32}
    for mine, theirs in zip(z, expected, strict=True):
        assert (mine - theirs).norm() < 1e-2 * theirs.norm()
        assert not torch.equal(mine, mine.bfloat16().float()), "z has the digits of a bfloat16"
    for mine, theirs in zip(solver.problem.y, reference.problem.y, strict=True):
        assert (mine - theirs).norm() < 1e-2 * theirs.norm()


def test_under_autocast_hessian_products_have_more_digits_than_bfloat16():
    features = randn(6, 4, seed=1).bfloat16().float().requires_grad_()
    W, v = nn.Parameter(0.1 * randn(3, 4, seed=2).float()), randn(3, 4, seed=3).float()
    errors = []
    for plain in (False, True):
        graphs = []
        for half in (True, False):
            mode = adambo.plain_autograd() if plain else nullcontext()
            with mode, torch.autocast("cpu", torch.bfloat16, enabled=half):
                g = functional.cross_entropy(features @ W.T, LABELS) + 0.05 * W.square().sum()
                graph = LowerGraph.of(g, LowerVariable([W], None))
                assert graph.is_closed != plain
                (product,) = graph.hessian([v])
                graphs.append(product)
        errors.append(float((graphs[0] - graphs[1]).norm() / graphs[1].norm()))
    assert errors[0] < 1e-3
    assert errors[0] < errors[1]


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("AdamBO", {"lower_steps": 5}),
        ("AdamBO", {"hypergradient_at": "updated"}),
        ("StocBiO", {}),
        ("SUSTAIN", {}),
    ],
    ids=str,
)
def test_autocast_keeps_no_copy_of_weights_that_have_moved(name, how, head):
    """Autocast remembers a parameter in low precision until its context ends, but y and x move inside a step."""
    runs = []
    for remembers in (True, False):
        torch.manual_seed(8)
        problem = float_problem(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)) if head == "mlp" else None)
        solver = ALL[name](problem, lr=0.1, lower_lr=0.5, **how)
        for k in range(3):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=remembers):
                solver.step(adambo.Draw.of(batch(k), batch(k + 50), solver.needs))
        runs.append(state(solver))
    assert_close(*runs, 5e-3)  # a gradient is added up in one or the other precision


@pytest.mark.parametrize("name", ["AdamBO", "StocBiO", "BOREP"])
@pytest.mark.parametrize("where", ["upper", "lower"])
def test_nan_in_features_stops_a_step_that_leaves_everything_as_it_was(name, where):
    solver = solver_of(name, problem_of(), {"lower_steps": 5})
    run(solver, steps=2)
    before = copy.deepcopy((state(solver), solver.state_dict()))
    bad = (torch.full((6, 5), torch.nan, dtype=torch.double), LABELS)
    with pytest.raises(adambo.NonFiniteError):
        solver.step(*((bad, batch(1)) if where == "upper" else (batch(1), bad)))
    assert all(torch.equal(a, b) for a, b in zip(state(solver), before[0], strict=True))
    assert solver.steps == 2
    solver.step(batch(3), batch(4))
    again = solver_of(name, problem_of(), {"lower_steps": 5})
    again.load_state_dict(before[1])
    again.step(batch(3), batch(4))
    assert all(torch.equal(a, b) for a, b in zip(state(solver), state(again), strict=True))


def test_the_programme_of_a_hypergradient_is_what_the_graph_gives_piece_by_piece():
    torch.manual_seed(0)
    step = 0.2
    features = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(3, (6,))
    W, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (3,)))
    v = [torch.randn_like(t) for t in (W, b)]
    y = LowerVariable([W, b], adambo.processes.Processes(None))

    def loss():
        return nn.functional.cross_entropy(features @ W.T + b, labels) + 0.1 * (W.square().sum() + b.square().sum())

    at_once, piece_by_piece = LowerGraph.of(loss(), y), LowerGraph.of(loss(), y)
    z = at_once.solved(v, step, 3, adambo.closed_form.Programmes())
    w = v
    for _ in range(2):
        w = [a + c - step * h for a, c, h in zip(w, v, piece_by_piece.hessian(w), strict=True)]
    expected = [step * t for t in w]
    torch.testing.assert_close(z, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(at_once.gradient(), piece_by_piece.gradient(), rtol=1e-12, atol=1e-14)
    mine, theirs = (torch.autograd.grad(r, features, c) for r, c in (at_once.cross(z), piece_by_piece.cross(expected)))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("extra", "expected"), [("nothing", "all"), ("norm", "part"), ("linear", "nothing")])
def test_a_point_says_how_much_of_the_lower_loss_is_recognised(extra, expected):
    x, W = torch.randn(3, requires_grad=True), torch.randn(2, 3, requires_grad=True)

    def lower(batch):
        loss = (x[None] @ W.T).square().sum() + W.square().sum()
        return loss + {"nothing": 0.0, "norm": W.norm(), "linear": W.sum()}[extra]

    problem = adambo.Problem(upper=lambda batch: W.sum(), lower=lower, x=x, y=W)
    assert problem.at(adambo.Draw(upper=(0,), lower=(0,), cross=(0,), hessian=(0,))).recognised == expected


@pytest.mark.parametrize("reduce", [lambda t: t.mean(1).sum(), lambda t: t.sum(1).sum(), lambda t: t.sum()])
def test_a_term_of_no_examples_is_no_term(reduce):
    y = parameter(4, 3, seed=1)
    no_examples = torch.zeros(0, 4, dtype=y.dtype)
    reading = read(reduce((no_examples @ y).square()) + y.square().sum(), [y])
    assert reading is not None
    torch.testing.assert_close(reading.closed.gradient()[0], 2 * y.detach())
