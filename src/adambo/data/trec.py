"""TREC question classification (Li and Roth, 2002): questions with 6 coarse classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adambo.data.files import field, find, json_lines, shown, text_lines, wrong_line
from adambo.data.labelled import Labelled, usable
from adambo.errors import DataError

CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
FILES = {
    "train": ("trec_train.jsonl.gz", "trec_train.jsonl", "train_5500.label", "train_5500.label.gz"),
    "test": ("trec_test.jsonl.gz", "trec_test.jsonl", "TREC_10.label", "TREC_10.label.gz"),
}
JSON_FORM = f'lines {{"label": "NUM", "text": "How far is it ?"}}, the label one of {", ".join(CLASSES)}'
LABEL_FORM = f"lines `NUM:dist How far is it ?` in Latin-1, the first part one of {', '.join(CLASSES)}"
FORM = f"JSON {JSON_FORM}; or the original .label file, {LABEL_FORM}"


def trec_file(folder: str | Path, split: str) -> Path:
    """The file of the split "train" or "test"."""
    if split not in FILES:
        raise DataError(f"TREC has no split {split!r}; there are {' and '.join(FILES)}.")
    return find(folder, FILES[split], f"TREC {split} questions", FORM)


def read_trec(folder: str | Path, split: str) -> Labelled:
    """The questions of the split "train" or "test", from JSON lines or from the original `.label` files."""
    path = trec_file(folder, split)
    original = ".label" in path.name
    texts, labels = [], []
    for name, text in label_rows(path) if original else json_rows(path):
        texts.append(text)
        labels.append(CLASSES.index(name))
    return usable(Labelled(texts, labels, CLASSES, (path,)), LABEL_FORM if original else JSON_FORM)


def json_rows(path: Path) -> Iterator[tuple[str, str]]:
    for number, row in json_lines(path, JSON_FORM):
        name = field(row, "label", str, path, number, JSON_FORM)
        if name not in CLASSES:
            raise wrong_line(path, number, f"unknown label {shown(name)!r}", JSON_FORM)
        yield name, field(row, "text", str, path, number, JSON_FORM)


def label_rows(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in text_lines(path, "latin-1", LABEL_FORM):
        if not line.strip():
            continue
        label, _, text = line.strip().partition(" ")
        name, colon, _ = label.partition(":")
        if not colon or not text:
            raise wrong_line(path, number, f"{shown(line)!r} is not a label, a space and a question", LABEL_FORM)
        if name not in CLASSES:
            raise wrong_line(path, number, f"unknown label {shown(name)!r}", LABEL_FORM)
        yield name, text.strip()
