"""Fetching data sets from the Hugging Face hub into the form that the readers prefer."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adambo.data import sentiment140, snli, trec, word_vectors
from adambo.data.catalogue import WORD_PIECES, Dataset, dataset_named
from adambo.data.files import reason
from adambo.errors import DataError

# The conversion that the hub makes of repositories which hold a loading script only; `datasets` runs no scripts.
PARQUET = "refs/convert/parquet"
SECONDS_TO_ANSWER = 5.0


def fetch(name: str, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
    """Write the missing files of a data set into the folder (made if need be), and return them.

    Every file is complete, has been read once by its own reader, and appears under its name in one move. A file that
    is there already, in whichever form, stays as it is.

    Args:
        name: Of the data set, see `adambo.data.catalogue.DATASETS`.
        folder: Where its files go.
        overwrite: Fetch all its files, and replace those that are there.

    Raises:
        DataError: Without network, without the package that is needed, or where the hub has no such data; it says
            which files to put where, and in what form.
    """
    dataset, folder = dataset_named(name), Path(folder).expanduser()
    parts = [part for part in dataset.parts if overwrite or not part.present(folder)]
    if not parts:
        return []
    try:
        if name not in SOURCES:
            raise DataError(
                f"the hub has no copy of {name} in the form that is read here; `adambo data fetch glove` gets other "
                "word vectors, for the setting vectors=glove"
            )
        refuse_half(dataset, [part.names[0] for part in parts], folder)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
            scratch = Path(place)
            SOURCES[name](scratch)
            for part in parts:
                part.describe(scratch)
            files = [part.locate(scratch) for part in parts]
            for file in files:
                os.replace(file, folder / file.name)
            return [folder / file.name for file in files]
    except DataError as error:
        raise by_hand(dataset, folder, str(error)) from error
    except OSError as error:
        raise by_hand(dataset, folder, f"{folder} cannot be written: {reason(error)}") from error


def by_hand(dataset: Dataset, folder: Path, why: str) -> DataError:
    return DataError(
        f"{dataset.name} was not fetched: {why.rstrip('.')}. The files that are looked for in {folder}: "
        f"{dataset.expected()}."
    )


def refuse_half(dataset: Dataset, wanted: list[str], folder: Path) -> None:
    """The training and the held-out tweets are cut from one file: half of another cut could hold tweets of both."""
    cut = [sentiment140.SHORT[split][0] for split in ("train", "heldout")]
    if dataset.name == "sentiment140" and len(set(cut) & set(wanted)) == 1:
        raise DataError(
            f"{folder} has only one of {' and '.join(cut)}, which belong together; move it away, or ask to overwrite"
        )


def fetch_trec(scratch: Path) -> None:
    for split in ("train", "test"):
        data = hub_data("CogComp/trec", split)
        coarse, fine = class_names(data, "coarse_label"), class_names(data, "fine_label")
        rows = columns(data, "coarse_label", "fine_label", "text")
        write_json_lines(
            scratch / trec.FILES[split][0],
            ({"label": coarse[a], "fine": fine[b].rpartition(":")[2], "text": text} for a, b, text in rows),
        )


def fetch_snli(scratch: Path) -> None:
    for split, hub_split in (("train", "train"), ("dev", "validation"), ("test", "test")):
        data = hub_data("stanfordnlp/snli", hub_split)
        names = class_names(data, "label")
        if set(names) != set(snli.CLASSES):
            raise changed(data, f"the classes {', '.join(snli.CLASSES)}")
        label_of = {number: snli.CLASSES.index(name) for number, name in enumerate(names)}
        write_json_lines(
            scratch / snli.FILES[split][0],
            (
                {"label": label_of[label], "s1": one_spaced(premise), "s2": one_spaced(hypothesis)}
                for label, premise, hypothesis in columns(data, "label", "premise", "hypothesis")
                if label in label_of  # -1: its annotators did not agree
            ),
        )


def fetch_sentiment140(scratch: Path) -> None:
    names = {split: scratch / files[0] for split, files in sentiment140.SHORT.items()}
    tweets = hub_tweets("train")
    train, heldout = sentiment140.cut([text for _, text in tweets])
    for split, indices in (("train", train), ("heldout", heldout)):
        # The original file is whole, so every tweet of it counts as sampled from all of it.
        rows = ({"label": tweets[index][0], "text": tweets[index][1], "u": 1} for index in indices)
        write_json_lines(names[split], rows)
    write_json_lines(names["manual"], ({"label": label, "text": text} for label, text in hub_tweets("test")))


def hub_tweets(split: str) -> list[tuple[int, str]]:
    tweets = []
    for sentiment, text in columns(hub_data("stanfordnlp/sentiment140", split), "sentiment", "text"):
        if str(sentiment) not in sentiment140.POLARITY:
            raise DataError(f"the repository has changed: a tweet has the sentiment {sentiment}, not 0, 2 or 4")
        label = sentiment140.POLARITY[str(sentiment)]
        if label is not None:
            tweets.append((label, one_spaced(text)))
    return tweets


def fetch_glove(scratch: Path) -> None:
    archive, name = hub_file("stanfordnlp/glove", "glove.6B.zip"), word_vectors.GLOVE[0]
    try:
        with zipfile.ZipFile(archive) as files, files.open(name) as source, (scratch / name).open("wb") as target:
            shutil.copyfileobj(source, target)
            settle(target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{archive} is damaged or does not hold {name} ({error})") from error


def fetch_word_pieces(scratch: Path) -> None:
    source = hub_file("google-bert/bert-base-uncased", "vocab.txt")
    with source.open("rb") as words, (scratch / WORD_PIECES).open("wb") as target:
        shutil.copyfileobj(words, target)
        settle(target)


SOURCES: dict[str, Callable[[Path], None]] = {
    "trec": fetch_trec,
    "snli": fetch_snli,
    "sentiment140": fetch_sentiment140,
    "glove": fetch_glove,
    "wordpiece": fetch_word_pieces,
}


def hub_data(repository: str, split: str) -> Any:
    """A split of a data set on the hub, from its main revision or else from the hub's conversion of it."""
    try:
        import datasets
    except ImportError as error:
        raise DataError("the package datasets is not installed: pip install 'adambo[hub]'") from error
    require_hub()
    reasons = []
    for revision in (None, PARQUET):
        try:
            return datasets.load_dataset(repository, split=split, revision=revision)
        # The library raises errors of a dozen families; whichever it is, its sentence is what can be said.
        except Exception as error:
            reasons.append(sentence_of(error))
            if isinstance(error, ConnectionError):
                break
    raise DataError(f"{repository} could not be loaded from the hub ({'; '.join(reasons)})")


def hub_file(repository: str, name: str) -> Path:
    """A file of a repository on the hub, in the hub's own cache."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise DataError("the package huggingface_hub is not installed: pip install 'adambo[hub]'") from error
    require_hub()
    try:
        return Path(hf_hub_download(repository, name))
    except Exception as error:
        raise DataError(f"{name} of {repository} could not be downloaded ({sentence_of(error)})") from error


def require_hub() -> None:
    """One question to the hub, asked once: its libraries would try again for half a minute before they give up."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:  # then what is in the cache is all there is, and the libraries say so at once
        return
    try:
        status = get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER).status_code
    except Exception as error:
        raise DataError(f"{constants.ENDPOINT} does not answer ({sentence_of(error)})") from error
    if status in (502, 503, 504):  # so answers a proxy that cannot reach it
        raise DataError(f"{constants.ENDPOINT} cannot be reached (HTTP status {status})")


def sentence_of(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def class_names(data: Any, column: str) -> list[str]:
    """The names of the classes of a column of numbers."""
    names = getattr(data.features.get(column), "names", None)
    if not names:
        raise changed(data, f"a column {column!r} of classes")
    return list(names)


def columns(data: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns, read a few thousand at a time."""
    for name in names:
        if name not in data.features:
            raise changed(data, f"a column {name!r}")
    for batch in data.iter(batch_size=10_000):
        yield from zip(*(batch[name] for name in names), strict=True)


def changed(data: Any, lacks: str) -> DataError:
    return DataError(
        f"the repository has changed: its data lacks {lacks}, having the columns {', '.join(data.features)}"
    )


def one_spaced(text: str) -> str:
    return " ".join(text.split())


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    # Without a time or a name inside, equal rows make equal files, and equal hashes in the records of runs.
    with path.open("wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            for row in rows:
                packed.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        settle(file)


def settle(file: Any) -> None:
    """Wait until a file is on the disk, before it gets its name."""
    file.flush()
    os.fsync(file.fileno())
