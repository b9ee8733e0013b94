"""SNLI 1.0 (Bowman et al., 2015): does the premise entail the hypothesis, contradict it, or neither?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adambo.data.files import field, find, json_lines, shown, wrong_line
from adambo.data.labelled import Labelled, usable
from adambo.errors import DataError

CLASSES = ("entailment", "neutral", "contradiction")
ORIGINAL = "snli_1.0"
FILES = {
    split: (
        f"snli_{split}.jsonl.gz",
        f"snli_{split}.jsonl",
        f"{ORIGINAL}_{split}.jsonl",
        f"{ORIGINAL}_{split}.jsonl.gz",
    )
    for split in ("train", "dev", "test")
}
SHORT_FORM = 'lines {"label": 0, "s1": "premise", "s2": "hypothesis"}, the label 0, 1 or 2 for ' + ", ".join(CLASSES)
ORIGINAL_FORM = (
    'lines {"gold_label": "neutral", "sentence1": "premise", "sentence2": "hypothesis"}, the label one of '
    f"{', '.join(CLASSES)}, or - for none"
)
FORM = f"JSON {SHORT_FORM}; or the original {ORIGINAL}_*.jsonl, {ORIGINAL_FORM}"


def snli_file(folder: str | Path, split: str) -> Path:
    """The file of the split "train", "dev" or "test"."""
    if split not in FILES:
        raise DataError(f"SNLI has no split {split!r}; there are {', '.join(FILES)}.")
    return find(folder, FILES[split], f"SNLI {split} pairs", FORM)


def read_snli(folder: str | Path, split: str) -> Labelled:
    """The pairs of the split "train", "dev" or "test"; pairs without a gold label are left out."""
    path = snli_file(folder, split)
    original = path.name.startswith(ORIGINAL)
    premises, hypotheses, labels = [], [], []
    for label, premise, hypothesis in original_rows(path) if original else short_rows(path):
        labels.append(label)
        premises.append(premise)
        hypotheses.append(hypothesis)
    data = Labelled(premises, labels, CLASSES, (path,), hypotheses)
    return usable(data, ORIGINAL_FORM if original else SHORT_FORM)


def short_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    form = SHORT_FORM
    for number, row in json_lines(path, form):
        label = field(row, "label", int, path, number, form)
        if not 0 <= label < len(CLASSES):
            raise wrong_line(path, number, f"unknown label {label}", form)
        yield label, field(row, "s1", str, path, number, form), field(row, "s2", str, path, number, form)


def original_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    form = ORIGINAL_FORM
    for number, row in json_lines(path, form):
        name = field(row, "gold_label", str, path, number, form)
        if name == "-":  # its annotators did not agree
            continue
        if name not in CLASSES:
            raise wrong_line(path, number, f"unknown label {shown(name)!r}", form)
        first, second = (field(row, key, str, path, number, form) for key in ("sentence1", "sentence2"))
        yield CLASSES.index(name), " ".join(first.split()), " ".join(second.split())
