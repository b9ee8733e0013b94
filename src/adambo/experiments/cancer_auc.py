"""`cancer-auc`: AUC on an imbalanced medical table, with data that comes with scikit-learn."""

from __future__ import annotations

import torch
from torch import nn

from adambo.data.imbalance import imbalanced, stratified
from adambo.data.tasks import split_indices
from adambo.experiments.auc_config import CancerAucConfig
from adambo.experiments.deep_auc import DeepAuc, Split, drawn_from
from adambo.experiments.solver_workload import Encoder, prepare_device
from adambo.sources import key_of

TEST_SHARE = 1 / 3


def build(config: CancerAucConfig) -> DeepAuc:
    """Benign findings are the positives; malignant ones are removed until p is the share of the benign."""
    from sklearn.datasets import load_breast_cancer

    device = prepare_device(config)
    table = load_breast_cancer()
    labels = table.target.tolist()
    rest, test = split_indices(len(labels), TEST_SHARE, key_of(config.seed, "test"))
    benign = sum(labels[k] for k in rest)
    malignant = min(len(rest) - benign, int(benign * (1 - config.positive_share) / config.positive_share))
    chosen = imbalanced([labels[k] for k in rest], config.positive_share, malignant, key_of(config.seed, "imbalance"))
    train = [rest[k] for k in chosen]
    kept, held_out = stratified([labels[k] for k in train], config.validation, key_of(config.seed, "validation"))
    training = [train[k] for k in kept]

    measured = torch.tensor(table.data, dtype=torch.float32)
    inputs = ((measured - measured[training].mean(0)) / measured[training].std(0)).to(device)
    positive = torch.tensor(labels, dtype=torch.float32, device=device)

    def split(indices: list[int]) -> Split:
        return Split(lambda numbers: inputs[numbers.to(device, non_blocking=True)], positive, [torch.tensor(indices)])

    lower, upper = (split(part) for part in drawn_from(config, training, labels))
    judged = {"validation": split([train[k] for k in held_out])} if held_out else {}
    judged["test"] = split(test)

    torch.manual_seed(config.seed)
    network = nn.Sequential(
        nn.Linear(inputs.shape[1], config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.hidden), nn.ReLU(),
        nn.Linear(config.hidden, 1), nn.Flatten(0),
    ).to(device)  # fmt: skip
    p = sum(labels[k] for k in training) / len(training)
    return DeepAuc(config, Encoder(config, network, lambda called, rows: called(rows)), lower, upper, judged, p, device)
