"""A small workload for tests of the training loop: AdamBO on least squares, with dropout, so that chance matters.

As a program it works on a run and is killed on the way, again and again; see `main`.
"""

import io
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import adambo
from adambo.errors import RunError
from adambo.training.budget import Budget
from adambo.training.loop import Plan, train
from adambo.training.progress import Progress
from adambo.training.run_folder import RunFolder


class ToyWorkload:
    """Regression on 4 features with dropout; the head is the lower variable.

    Args:
        pause: Seconds of sleep in every step.
        bad_from: The step from which on losses are NaN.
        bad_scores_from: The number of steps from which on scores are infinite.
        on_step: Called with the number of every step, before it is made.
    """

    steps_per_epoch = 5
    metric = "fit"

    def __init__(self, pause=0.0, bad_from=None, bad_scores_from=None, on_step=lambda number: None):
        torch.manual_seed(7)
        self.pause, self.bad_from, self.bad_scores_from, self.on_step = pause, bad_from, bad_scores_from, on_step
        self.inputs = torch.randn(60, 3)
        self.targets = self.inputs.prod(dim=1)
        self.encoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4))
        self.head = nn.Linear(4, 1)
        problem = adambo.Problem(
            upper=self._loss,
            lower=lambda batch: self._loss(batch) + 0.1 * sum(p.square().sum() for p in self.head.parameters()),
            x=self.encoder,
            y=self.head,
        )
        self.solver = adambo.AdamBO(problem, lr=0.01, lower_lr=0.05)
        halves = torch.arange(0, 30), torch.arange(30, 60)
        sources = [lambda g, half=half: half[torch.randint(30, (8,), generator=g)] for half in halves]
        self.stream = adambo.draws(*sources, self.solver.needs, seed=3)
        self.calls = []

    def begin(self):
        self.calls.append("begin")
        self.solver.warm_start(self.stream.warm_start_batches(2))

    def step(self, number):
        self.on_step(number)
        time.sleep(self.pause)
        if self.bad_from is not None and number >= self.bad_from:
            self.targets = self.targets * float("nan")
        self.stream.seek(number)
        return self.solver.step(next(self.stream)).upper_loss

    def end_epoch(self, epoch):
        self.calls.append(("end_epoch", epoch))
        for group in self.solver.upper_optimizer.param_groups:
            group["lr"] = 0.01 * (epoch + 2) ** (-1 / 3)

    def check(self):
        self.solver.check()

    def evaluate(self):
        self.calls.append("evaluate")
        torch.rand(17)  # rude: it must not change the training
        self.encoder.eval()
        with torch.no_grad():
            losses = [float(self._loss(half)) for half in (torch.arange(0, 30), torch.arange(30, 60))]
        self.encoder.train()
        bad = self.bad_scores_from is not None and self.solver.steps >= self.bad_scores_from
        scores = [{"fit": float("inf") if bad else 1 - loss, "loss": loss} for loss in losses]
        return dict(zip(("train", "test"), scores, strict=True))

    def oracles(self):
        return self.solver.ledger.as_dict()

    def state_dict(self):
        return {"solver": self.solver.state_dict()}

    def load_state_dict(self, state):
        self.solver.load_state_dict(state["solver"])

    def _loss(self, indices):
        return (self.head(self.encoder(self.inputs[indices])).squeeze(-1) - self.targets[indices]).square().mean()


def toy_run(path):
    """A new run folder, or the run that is there."""
    try:
        return RunFolder.open(path)
    except RunError:
        return RunFolder.create(path, "toy", "default", {"seed": 7}, {"seed": "test"}, {"command": ["toy"]})


def toy_plan(steps=20, evaluate_every=4, checkpoint_every=6, events=False, **budget):
    return Plan(Budget(steps=steps, **budget), evaluate_every, checkpoint_every, events)


def train_toy(path, workload=None, plan=None, progress=None):
    """Work on the toy run in `path`, from wherever it stands."""
    progress = Progress(Console(file=io.StringIO()), quiet=True) if progress is None else progress
    return train(workload or ToyWorkload(), toy_run(path), plan or toy_plan(), progress)


LONG_PLAN = {"steps": 120, "evaluate_every": 7, "checkpoint_every": 5}  # writes more than it computes
SHORT_PLAN = {"steps": 4, "evaluate_every": 2, "checkpoint_every": 3}


def main(mode, folder, *arguments):
    """What the tests start as a program, so that a process can be killed.

    run: Work on one run until it ends; `pause` as an argument.
    kill: A process works on the run and is killed at a random moment, `kills` times; the last one may end it.
    crash: For n = 1, 2, ...: in a run of its own, a process that dies at the n-th call to the file system, and one
        that goes on, until the n-th call is not reached any more.
    """
    folder = Path(folder)
    ToyWorkload()  # what torch loads late is loaded once, before the forks
    if mode == "run":
        workload = ToyWorkload(pause=float(arguments[0]))
        progress = Progress(Console(file=sys.stdout))
        outcome = train_toy(folder, workload, toy_plan(**LONG_PLAN), progress)
        sys.exit(0 if outcome.signal is None else 128 + outcome.signal)
    elif mode == "kill":
        kills, seed = map(int, arguments)
        chance = random.Random(seed)
        for _ in range(kills):
            child = in_child(lambda: train_toy(folder, plan=toy_plan(**LONG_PLAN)))
            time.sleep(chance.uniform(0.0, 0.35))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        finish(in_child(lambda: train_toy(folder, plan=toy_plan(**LONG_PLAN))))
    elif mode == "crash":
        os.fsync = lambda handle: None  # a killed process loses nothing that it has written; only a power cut would
        number = 1
        while died_at(number, lambda path: train_toy(path, plan=toy_plan(**SHORT_PLAN)), folder / f"{number:03d}"):
            finish(in_child(lambda number=number: train_toy(folder / f"{number:03d}", plan=toy_plan(**SHORT_PLAN))))
            number += 1


def in_child(work):
    """The id of a new process that does `work`. Forked, because a new interpreter takes a second to load torch."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    return child


def finish(child):
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"A process that was not killed ended with status {status}.")


def died_at(number, work, path):
    """Whether a process that does `work` reaches call `number` to the file system, where it is killed."""

    def work_until_killed():
        calls = 0

        def deadly(function):
            def call(*arguments, **options):
                nonlocal calls
                calls += 1
                if calls == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return call

        # A file that is to be complete is renamed and then, through "open", its folder is synced: before and after.
        for name in ("open", "replace", "unlink", "mkdir", "ftruncate", "write"):
            setattr(os, name, deadly(getattr(os, name)))
        work(path)

    _, status = os.waitpid(in_child(work_until_killed), 0)
    return os.WIFSIGNALED(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
