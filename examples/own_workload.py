"""An experiment of your own in a run folder: which features does a diagnosis need?

Logistic regression on scikit-learn's breast cancer table. The lower level fits weights y with an own L2 penalty for
every feature; the upper level moves the penalties x so that the fit does well on patients it has not seen:

    min over x  validation_loss(y*(x))        y*(x) = argmin over y  train_loss(y) + mean_k exp(x_k) y_k²

Whatever has steps, evaluations and a state can be driven by the training loop; the run can then be stopped, resumed and
put into a report like any other.

    python examples/own_workload.py --steps 200 --out runs/penalties       # again: goes on where it was stopped
    adambo report runs --out report.html
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import adambo
from adambo.training.budget import Budget
from adambo.training.loop import Outcome, Plan, train
from adambo.training.manifest import manifest
from adambo.training.progress import Progress
from adambo.training.run_folder import RunFolder

BATCH = 32


class Penalties:
    """A `Workload`: see adambo.training.workload for what each part has to promise."""

    metric = "accuracy"  # of the splits "train" and "test" that `evaluate` gives
    steps_per_epoch = 10

    def __init__(self, seed: int) -> None:
        table, generator = load_breast_cancer(), torch.Generator().manual_seed(seed)
        order = torch.randperm(len(table.target), generator=generator)
        rows, labels = torch.tensor(table.data, dtype=torch.float32)[order], torch.tensor(table.target)[order].float()
        rows = (rows - rows[:200].mean(0)) / rows[:200].std(0)
        cuts = [200, 150, len(rows) - 350]
        self.fitted, self.unseen, self.test = (
            torch.utils.data.TensorDataset(*part)
            for part in zip(torch.split(rows, cuts), torch.split(labels, cuts), strict=True)
        )
        self.penalties = nn.Parameter(torch.full((rows.shape[1],), -4.0))
        self.weights = nn.Parameter(torch.zeros(rows.shape[1]))
        problem = adambo.Problem(self.loss, self.penalised, x=[self.penalties], y=[self.weights])
        self.solver = adambo.AdamBO(problem, lr=0.03, lower_lr=0.1, inverse=adambo.Neumann(terms=10))
        self.stream = adambo.draws(self.unseen, self.fitted, self.solver.needs, seed, batch_size=BATCH)

    def loss(self, batch: Sequence[Tensor]) -> Tensor:
        rows, labels = batch
        return nn.functional.binary_cross_entropy_with_logits(rows @ self.weights, labels)

    def penalised(self, batch: Sequence[Tensor]) -> Tensor:
        return self.loss(batch) + (self.penalties.exp() * self.weights.square()).mean()

    def begin(self) -> None:
        self.solver.warm_start(self.stream.warm_start_batches(20))

    def step(self, number: int) -> Tensor:
        self.stream.seek(number)  # a draw depends on the seed and the number alone
        return self.solver.step(next(self.stream)).upper_loss

    def end_epoch(self, epoch: int) -> None:
        """No step size decays."""

    def check(self) -> None:
        self.solver.check()

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, Mapping[str, float]]:
        scores = {}
        for name, split in (("train", self.fitted), ("test", self.test)):
            rows, labels = split.tensors
            right = (rows @ self.weights > 0) == labels.bool()
            scores[name] = {"accuracy": int(right.sum()) / len(labels)}
        return scores | {"penalties": {"largest": self.penalties.max().item(), "smallest": self.penalties.min().item()}}

    def oracles(self) -> Mapping[str, int]:
        return self.solver.ledger.as_dict()

    def state_dict(self) -> dict[str, Any]:
        return self.solver.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.solver.load_state_dict(state)


def main(arguments: Sequence[str] | None = None) -> Outcome:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="upper steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/penalties"), help="run folder (default: %(default)s)")
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    workload = Penalties(given.seed)
    if (given.out / "config.yaml").exists():
        run = RunFolder.open(given.out)
    else:  # a report names curves by `algorithm` and takes the mean over `seed`
        config = {"algorithm": "adambo", "seed": given.seed, "steps": given.steps}
        run = RunFolder.create(given.out, "penalties", "example", config, {}, manifest([], ["own_workload.py"]))
    plan = Plan(Budget(steps=given.steps), evaluate_every=20, checkpoint_every=20)  # in steps
    return train(workload, run, plan, Progress(Console(stderr=True)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main())
