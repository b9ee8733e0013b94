"""Word vectors: a table in safetensors with a word list beside it, or the text files of GloVe."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adambo.data.files import find, reason, shown, text_lines, wrong_line
from adambo.errors import DataError

TABLES = {
    "vectors300": ("vectors.safetensors", "vocab.txt"),
    "glove100": ("glove100.safetensors", "glove100-vocab.txt"),
}
GLOVE = tuple(
    f"{name}{end}" for name in ("glove.6B.300d.txt", "glove.840B.300d.txt", "glove.6B.100d.txt") for end in ("", ".gz")
)
TABLE_FORM = (
    "a safetensors file with the float tensor `vectors`, (rows, dimensions), one row per word of the list beside it; "
    "with an integer tensor `index`, (words,), word i has row index[i]"
)
WORDS_FORM = "a word list in UTF-8, one word per line, each once"
GLOVE_FORM = "GloVe text in UTF-8, lines `word 0.1 -0.2 ...`, a word and its numbers, equally many in every line"


@dataclass(frozen=True)
class WordVectors:
    """Word vectors.

    Attributes:
        words: The row of each word, from 0; every row has one word.
        table: The vectors, float32, (rows, dimensions), as they are in the file (not normalised).
        files: The files that were read.
    """

    words: dict[str, int]
    table: Tensor
    files: tuple[Path, ...]


def read_vectors(folder: str | Path, kind: str) -> WordVectors:
    """The word vectors "vectors300" or "glove100" (tables with a word list), or "glove" (a public GloVe text file)."""
    paths = vector_files(folder, kind)
    vectors = read_glove(paths[0]) if kind == "glove" else read_table(*paths)
    finite = vectors.table.isfinite().all(1)
    if not bool(finite.all()):
        row = int(finite.logical_not().nonzero()[0])
        word = next(word for word, place in vectors.words.items() if place == row)
        raise DataError(
            f"{paths[0]}: the vector of {word!r}, word {row + 1} of {len(finite):,}, is not finite, nor are "
            f"{int(finite.logical_not().sum()) - 1:,} others. Expected: finite numbers. Copy or download it again."
        )
    return vectors


def vector_files(folder: str | Path, kind: str) -> tuple[Path, ...]:
    """The files that `read_vectors` reads, the table first."""
    if kind == "glove":
        return (find(folder, GLOVE, "GloVe vectors", GLOVE_FORM),)
    if kind not in TABLES:
        raise DataError(f"There are no word vectors {kind!r}; there are {', '.join([*TABLES, 'glove'])}.")
    table, words = TABLES[kind]
    return (
        find(folder, (table,), f"table of the word vectors {kind}", TABLE_FORM),
        find(folder, (words,), f"word list of the word vectors {kind}", WORDS_FORM),
    )


def read_words(path: Path) -> dict[str, int]:
    """A word list as a dictionary from word to line, counted from 0."""
    words: dict[str, int] = {}
    for number, word in text_lines(path, "utf-8", WORDS_FORM):
        if not word.strip(" \t"):  # other white space, such as U+2028, is a word of some lists
            raise wrong_line(path, number, "there is no word", WORDS_FORM)
        if words.setdefault(word, number - 1) != number - 1:
            raise wrong_line(path, number, f"{shown(word)!r} is already the word of line {words[word] + 1}", WORDS_FORM)
    return words


def read_table(table_path: Path, words_path: Path) -> WordVectors:
    words = read_words(words_path)
    tensors = read_tensors(table_path)
    table, index = tensors.get("vectors"), tensors.get("index")
    if table is None or table.ndim != 2 or not table.is_floating_point() or table.shape[1] == 0:
        raise DataError(f"{table_path}: {described('vectors', table)}. Expected: {TABLE_FORM}.")
    if index is not None:
        if index.ndim != 1 or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise DataError(f"{table_path}: {described('index', index)}. Expected: {TABLE_FORM}.")
        outside = ((index < 0) | (index >= len(table))).nonzero()
        if len(outside):
            word = int(outside[0])
            raise DataError(
                f"{table_path}: index[{word}] is {int(index[word])}, but `vectors` has rows 0 to {len(table) - 1}. "
                f"Expected: {TABLE_FORM}."
            )
    rows = len(table if index is None else index)
    if rows != len(words):
        raise DataError(
            f"{table_path} has vectors for {rows:,} words, but {words_path} lists {len(words):,}: the two files do not "
            f"belong together. Expected: {TABLE_FORM}."
        )
    table = table.float() if index is None else table[index.long()].float()
    return WordVectors(words, table, (table_path, words_path))


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise DataError(
            f"{path} needs the package safetensors, which is not installed: pip install 'adambo[experiments]'."
        ) from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError(f"{path} is damaged or no safetensors file ({error}). Expected: {TABLE_FORM}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}. Expected: {TABLE_FORM}.") from error


def described(name: str, tensor: Tensor | None) -> str:
    if tensor is None:
        return f"there is no tensor `{name}`"
    return f"the tensor `{name}` is {str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def read_glove(path: Path) -> WordVectors:
    words: dict[str, int] = {}
    numbers = array("f")
    width = 0
    for line_number, line in text_lines(path, "utf-8", GLOVE_FORM):
        # From the right: some words of the 840B vectors hold spaces.
        word, *values = line.rstrip(" ").rsplit(" ", width or -1)
        width = width or len(values)
        spare = is_number(word.rpartition(" ")[2]) if " " in word else False
        if len(values) != width or not word or spare:
            came = f"{'more than ' if spare else ''}{len(values)} numbers after {shown(word)!r}, {width} in line 1"
            raise wrong_line(path, line_number, came, GLOVE_FORM)
        if width < 2:
            raise wrong_line(path, line_number, f"{shown(line)!r} is not a word and its numbers", GLOVE_FORM)
        try:
            row = array("f", map(float, values))
        except ValueError as error:
            raise wrong_line(path, line_number, shown(str(error)), GLOVE_FORM) from error
        if word not in words:  # should a word come twice, the first one counts
            words[word] = len(words)
            numbers.extend(row)
    # frombuffer shares the memory of the array and keeps it alive, so that a large table is not copied.
    table = torch.frombuffer(numbers, dtype=torch.float32).view(-1, width)
    return WordVectors(words, table, (path,))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
