"""What files each data set needs, whether they are there, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from adambo.data import sentiment140, snli, trec, word_vectors
from adambo.data.files import find
from adambo.data.word_pieces import read_vocabulary
from adambo.errors import DataError

WORD_PIECES = "bert-base-uncased-vocab.txt"
WORD_PIECES_FORM = "vocab.txt of bert-base-uncased: one word piece per line, in UTF-8, [PAD] first"


@dataclass(frozen=True)
class Part:
    """One file of a data set.

    Attributes:
        names: The names under which it may come, the preferred one first.
        form: Its expected form.
        locate: The file in a folder; a DataError says that it is missing.
        describe: Reads all of the file and says in a line what it holds; a DataError says what is wrong with it.
    """

    names: tuple[str, ...]
    form: str
    locate: Callable[[Path], Path]
    describe: Callable[[Path], str]

    def present(self, folder: Path) -> bool:
        try:
            self.locate(folder)
        except DataError:
            return False
        return True


@dataclass(frozen=True)
class Dataset:
    """A data set and its files."""

    name: str
    summary: str
    parts: tuple[Part, ...]

    def missing(self, folder: Path) -> list[str]:
        """A sentence for each file that is missing."""
        sentences = []
        for part in self.parts:
            try:
                part.locate(folder)
            except DataError as error:
                sentences.append(str(error))
        return sentences

    def files(self, folder: Path) -> list[Path]:
        """The files that are there and would be read, each once."""
        return list(dict.fromkeys(part.locate(folder) for part in self.parts if part.present(folder)))

    def check(self, folder: Path) -> list[str]:
        """Reads everything; a line for each file: how many rows, how many of each class.

        Raises:
            DataError: For the first file that is missing or wrong.
        """
        return [part.describe(folder) for part in self.parts]

    def expected(self) -> str:
        """Which files are looked for, and in what form."""
        names_of: dict[str, list[str]] = {}
        for part in self.parts:
            names_of.setdefault(part.form, []).append(" or ".join(part.names))
        return "; ".join(f"{', and '.join(names)}: {form}" for form, names in names_of.items())


def dataset_named(name: str) -> Dataset:
    """The data set of that name; a DataError names those there are."""
    if name not in DATASETS:
        near = get_close_matches(name.lower(), DATASETS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(DATASETS)}."
        raise DataError(f"There is no data set {name!r}; {hint}")
    return DATASETS[name]


def counted(file: str, counts: Mapping[str, int], unit: str = "rows") -> str:
    return f"{file}: {sum(counts.values()):,} {unit}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())


def describe_trec(split: str, folder: Path) -> str:
    data = trec.read_trec(folder, split)
    return counted(data.files[0].name, data.counts(), "questions")


def describe_snli(split: str, folder: Path) -> str:
    data = snli.read_snli(folder, split)
    return counted(data.files[0].name, data.counts(), "pairs")


def describe_sentiment140(split: str, folder: Path) -> str:
    data = sentiment140.read_sentiment140(folder, split, uniform_only=False)
    line = counted(f"{data.files[0].name} ({split})", data.counts(), "tweets")
    if split == "manual" or data.files[0].name not in sentiment140.SHORT[split]:
        return line
    uniform = sentiment140.read_sentiment140(folder, split).counts()
    return f"{line}; of these from all over the original: {', '.join(f'{name} {n:,}' for name, n in uniform.items())}"


def describe_vectors(kind: str, folder: Path) -> str:
    vectors = word_vectors.read_vectors(folder, kind)
    rows, width = vectors.table.shape
    return f"{vectors.files[0].name}: {rows:,} words, {width} dimensions"


def describe_words(kind: str, folder: Path) -> str:
    path = word_vectors.vector_files(folder, kind)[1]
    return f"{path.name}: {len(word_vectors.read_words(path)):,} words"


def locate_word_pieces(folder: Path) -> Path:
    return find(folder, (WORD_PIECES,), "WordPiece vocabulary", WORD_PIECES_FORM)


def describe_word_pieces(folder: Path) -> str:
    path = locate_word_pieces(folder)
    return f"{path.name}: {len(read_vocabulary(path)):,} word pieces"


def table_parts(kind: str) -> tuple[Part, Part]:
    """The table of word vectors and its word list, each found and missed on its own."""
    table, words = word_vectors.TABLES[kind]

    def locate(name: str, form: str, folder: Path) -> Path:
        return find(folder, (name,), f"part of the word vectors {kind}", form)

    forms = word_vectors.TABLE_FORM, word_vectors.WORDS_FORM
    return (
        Part((table,), forms[0], partial(locate, table, forms[0]), partial(describe_vectors, kind)),
        Part((words,), forms[1], partial(locate, words, forms[1]), partial(describe_words, kind)),
    )


def text_parts(
    files: Mapping[str, tuple[str, ...]],
    form: str,
    locate: Callable[[Path, str], Path],
    describe: Callable[[str, Path], str],
) -> tuple[Part, ...]:
    def located(split: str, folder: Path) -> Path:
        return locate(folder, split)

    return tuple(Part(files[split], form, partial(located, split), partial(describe, split)) for split in files)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "trec",
            "TREC questions, 6 classes (Li and Roth, 2002)",
            text_parts(trec.FILES, trec.FORM, trec.trec_file, describe_trec),
        ),
        Dataset(
            "snli",
            "SNLI pairs of sentences, 3 classes (Bowman et al., 2015)",
            text_parts(snli.FILES, snli.FORM, snli.snli_file, describe_snli),
        ),
        Dataset(
            "sentiment140",
            "Sentiment140 tweets, 2 classes (Go et al., 2009)",
            text_parts(sentiment140.FILES, sentiment140.FORM, sentiment140.sentiment140_file, describe_sentiment140),
        ),
        Dataset("vectors300", "word vectors of 300 dimensions, a table with a word list", table_parts("vectors300")),
        Dataset("glove100", "GloVe word vectors of 100 dimensions, a table with a word list", table_parts("glove100")),
        Dataset(
            "glove",
            "GloVe word vectors, a public text file",
            (
                Part(
                    word_vectors.GLOVE,
                    word_vectors.GLOVE_FORM,
                    lambda folder: word_vectors.vector_files(folder, "glove")[0],
                    partial(describe_vectors, "glove"),
                ),
            ),
        ),
        Dataset(
            "wordpiece",
            "WordPiece vocabulary of BERT (uncased)",
            (Part((WORD_PIECES,), WORD_PIECES_FORM, locate_word_pieces, describe_word_pieces),),
        ),
    )
}
