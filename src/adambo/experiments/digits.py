"""`digits`: few-shot handwritten digits, with data that comes with scikit-learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adambo.data.tasks import split_indices
from adambo.experiments.config import DigitsConfig
from adambo.experiments.hyper_representation import HyperRepresentation, Images, TaskSet, tasks_of
from adambo.experiments.solver_workload import Encoder, prepare_device
from adambo.sources import key_of

CLASSES, SIDE, TEST_SHARE = 10, 8, 1 / 3


def build(config: DigitsConfig) -> HyperRepresentation:
    from sklearn.datasets import load_digits

    device = prepare_device(config)
    digits = load_digits()
    images = thrown(torch.tensor(digits.images, dtype=torch.float32) / 16, config.field_side, config.seed).to(device)
    labels, inputs = digits.target.tolist(), Images(images)
    train, test = split_indices(len(labels), TEST_SHARE, key_of(config.seed, "test"))
    kept, held_out = split_indices(len(train), config.validation, key_of(config.seed, "validation"))
    among = {"train": [train[k] for k in kept], "validation": [train[k] for k in held_out], "test": test}
    splits = {
        name: TaskSet(inputs, tasks_of(config, labels, CLASSES, name, chosen))
        for name, chosen in among.items()
        if chosen
    }
    torch.manual_seed(config.seed)
    network = make_encoder(config).to(device)
    encoder = Encoder(config, network, lambda called, images: called(images))
    return HyperRepresentation(config, encoder, config.features, CLASSES, splits, device)


def thrown(images: Tensor, side: int, seed: int) -> Tensor:
    """Each image on a random place of an empty field, so that single pixels say little: (example, 1, side, side)."""
    generator = torch.Generator().manual_seed(key_of(seed, "places"))
    field = torch.zeros(len(images), 1, side, side)
    row, column = torch.randint(side - SIDE + 1, (2, len(images), 1), generator=generator) + torch.arange(SIDE)
    field[torch.arange(len(images))[:, None, None], 0, row[:, :, None], column[:, None, :]] = images
    return field


def make_encoder(config: DigitsConfig) -> nn.Sequential:
    """Two convolutions; the features of an image have mean 0 and norm √features."""
    channels = config.channels
    return nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * channels * (config.field_side // 4) ** 2, config.features),
        # The norm bounds the curvature of the support loss by (features + 1) / 2 + mu.
        nn.LayerNorm(config.features, elementwise_affine=False),
    )  # fmt: skip
