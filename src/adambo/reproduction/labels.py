"""Labels: what the folder of a run is called, and how tables write it."""

from __future__ import annotations

import re
from pathlib import Path

from adambo.errors import RunError
from adambo.report.palette import ALGORITHMS, written_name

READINGS = ("slip-gauss-seidel", "accbo-updated")  # where the order of updates could not be confirmed, and matters
RUN = re.compile(r"(?P<label>.+)-seed(?P<seed>\d+)")


def label_of(path: Path) -> str:
    """What the seeds of a run have in common.

    Example:
        >>> label_of(Path("results/tuned/auc-rnn/adambo-cg-seed1"))
        'adambo-cg'
    """
    return _named(path)["label"]


def seed_of(path: Path) -> str:
    return _named(path)["seed"]


def _named(path: Path) -> re.Match[str]:
    match = RUN.fullmatch(path.name)
    if match is None:
        raise RunError(f"{path} does not say which run it is: name it <label>-seed<number>, such as slip-seed0.")
    return match


def written_label(label: str, algorithm: str) -> str:
    """As tables have it.

    Example:
        >>> written_label("masoba", "masoba"), written_label("adambo-50", "adambo"), written_label("ours", "adambo")
        ('MA-SOBA', 'AdamBO-50', 'ours')
    """
    own = label == algorithm or label.startswith(f"{algorithm}-")
    return written_name(algorithm) + label[len(algorithm) :] if own else label


def written_baseline(label: str) -> str:
    """That of an algorithm, or of one in another order.

    Example:
        >>> written_baseline("masoba"), written_baseline("slip-gauss-seidel")
        ('MA-SOBA', 'SLIP-gauss-seidel')
    """
    return written_label(label, label.partition("-")[0])


def is_method(label: str) -> bool:
    """Whether it is an algorithm as its paper has it, in any order that the paper may mean; others are variants."""
    return label in ALGORITHMS or label in READINGS


def palette_place(algorithm: str) -> int:
    """Where the palette has it; what it does not know comes last."""
    order = list(ALGORITHMS)
    return order.index(algorithm) if algorithm in order else len(order)
