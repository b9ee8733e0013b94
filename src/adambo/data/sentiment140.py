"""Sentiment140 (Go et al., 2009): tweets, labelled by their emoticons, which were then removed."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from pathlib import Path

from adambo.data.files import field, find, first_file, json_lines, shown, text_lines, wrong_line
from adambo.data.labelled import Labelled, usable
from adambo.errors import DataError

CLASSES = ("negative", "positive")
POLARITY = {"0": 0, "2": None, "4": 1}  # 2 is neutral, found only in the tweets labelled by hand
TRAIN_CSV = ("training.1600000.processed.noemoticon.csv", "training.1600000.processed.noemoticon.csv.gz")
MANUAL_CSV = ("testdata.manual.2009.06.14.csv", "testdata.manual.2009.06.14.csv.gz")
SHORT = {
    "train": ("sentiment140_train.jsonl.gz", "sentiment140_train.jsonl"),
    "heldout": ("sentiment140_heldout.jsonl.gz", "sentiment140_heldout.jsonl"),
    "manual": ("sentiment140_test_manual.jsonl.gz", "sentiment140_test_manual.jsonl"),
}
FILES = {
    "train": (*SHORT["train"], *TRAIN_CSV),
    "heldout": (*SHORT["heldout"], *TRAIN_CSV),
    "manual": (*SHORT["manual"], *MANUAL_CSV),
}
SHORT_FORM = (
    'lines {"label": 1, "text": "what a day", "u": 1}, the label 0 for negative, 1 for positive, and u (not needed in '
    "the tweets labelled by hand) 1 for a tweet sampled from the whole original file, else 0"
)
CSV_FORM = (
    "6 columns of CSV in Latin-1, polarity, id, date, query, user, text, the polarity 0, 2 or 4, without a header"
)
FORM = f"JSON {SHORT_FORM}; or the original .csv, {CSV_FORM}"
HELD_OUT = 19_000


def sentiment140_file(folder: str | Path, split: str) -> Path:
    """The file of the split "train", "heldout" or "manual"."""
    if split not in FILES:
        raise DataError(f"Sentiment140 has no split {split!r}; there are {', '.join(FILES)}.")
    names: tuple[str, ...] = FILES[split]
    if split == "heldout":
        # Held-out tweets of another origin could be among those of the training file: both come from one source.
        if first_file(folder, SHORT["train"]):
            names = SHORT["heldout"]
        elif first_file(folder, TRAIN_CSV):
            names = TRAIN_CSV
    return find(folder, names, f"Sentiment140 {split} tweets", FORM)


def read_sentiment140(folder: str | Path, split: str, uniform_only: bool = True) -> Labelled:
    """The tweets of a split: "train", "heldout" (labelled by emoticons too) or "manual" (by hand; no neutral ones).

    Of the original csv file, "heldout" is a fixed pseudo-random choice of 19,000 tweets (or a tenth, if that is less),
    and "train" the others, without those whose text was held out.

    Args:
        folder: Folder of the data files.
        split: Which one.
        uniform_only: Of JSON lines, only tweets with u = 1. The others come from blocks of the original in which the
            label goes with the date, so that a model could learn the topics of the day. An original file is whole.
    """
    path = sentiment140_file(folder, split)
    original = path.name in (*TRAIN_CSV, *MANUAL_CSV)
    rows = list(csv_rows(path) if original else json_rows(path, uniform_only and split != "manual"))
    if original and split != "manual":
        train, heldout = cut([text for _, text in rows])
        rows = [rows[index] for index in (train if split == "train" else heldout)]
    data = Labelled([text for _, text in rows], [label for label, _ in rows], CLASSES, (path,))
    return usable(data, CSV_FORM if original else SHORT_FORM + (" (those with u = 1 are read)" if uniform_only else ""))


def cut(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Indices of the tweets to train on and of those held out, always the same; no text is in both."""
    # `random()` of a seeded generator is the part of `random` that never changes between versions of Python.
    draw = random.Random(0).random
    order = [draw() for _ in texts]
    heldout = sorted(nsmallest(min(HELD_OUT, len(texts) // 10), range(len(texts)), key=order.__getitem__))
    taken = {texts[index].lower() for index in heldout}
    return [index for index, text in enumerate(texts) if text.lower() not in taken], heldout


def json_rows(path: Path, uniform_only: bool) -> Iterator[tuple[int, str]]:
    form = SHORT_FORM
    for number, row in json_lines(path, form):
        label = field(row, "label", int, path, number, form)
        if label not in (0, 1):
            raise wrong_line(path, number, f"unknown label {label}", form)
        text = field(row, "text", str, path, number, form)
        if uniform_only:
            uniform = field(row, "u", int, path, number, form)
            if uniform not in (0, 1):
                raise wrong_line(path, number, f"the field 'u' is {uniform}", form)
            if not uniform:
                continue
        yield label, text


def csv_rows(path: Path) -> Iterator[tuple[int, str]]:
    form = CSV_FORM
    lines = csv.reader(line + "\n" for _, line in text_lines(path, "latin-1", form))
    try:
        for row in lines:
            if not row:
                continue
            if len(row) != 6:
                raise wrong_line(path, lines.line_num, f"{len(row)} columns", form)
            if row[0] not in POLARITY:
                raise wrong_line(path, lines.line_num, f"unknown polarity {shown(row[0])!r}", form)
            label = POLARITY[row[0]]
            if label is not None:
                yield label, " ".join(row[5].split())
    except csv.Error as error:
        raise wrong_line(path, lines.line_num, f"not CSV ({error})", form) from error
