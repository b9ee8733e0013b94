"""Finding and reading data files: whatever is wrong becomes a sentence with file, line and expected form."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from adambo.errors import DataError

T = TypeVar("T")

TEXT = "text, one item per line"
JSON_LINES = "JSON lines in UTF-8, plain or gzip: one object, {...}, per line"


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of the data files: the one given, else what the environment variable ADAMBO_DATA names."""
    folder = str(given or os.environ.get("ADAMBO_DATA") or "")
    if not folder:
        raise DataError(
            "No folder of data files is known: give --data-dir (data_dir in a config), or set the environment variable "
            "ADAMBO_DATA to it."
        )
    return Path(folder).expanduser()


def find(folder: str | Path, names: Sequence[str], what: str, form: str) -> Path:
    """The first of `names` that is a file in the folder.

    Args:
        folder: Where to look.
        names: All names under which the file may come, the preferred one first.
        what: What the file holds, for the error: "TREC training questions".
        form: The expected form, for the error.
    """
    if found := first_file(folder, names):
        return found
    folder = Path(folder)
    if folder.is_dir():
        came = f"{folder} has no file named {' or '.join(names)}"
    else:
        state = "is not a folder" if folder.exists() else "does not exist"
        came = f"the folder {folder} {state}; {' or '.join(names)} was looked for in it"
    for path in (folder / name for name in names):
        if path.exists():
            came = f"{path} is {kind_of(path)}, not a file"
    raise DataError(f"No {what}: {came}. Expected: {form}. Put the file there, or try `adambo data fetch`.")


def first_file(folder: str | Path, names: Sequence[str]) -> Path | None:
    """The first of `names` that is a file in the folder, or None."""
    try:
        return next((path for name in names if (path := Path(folder) / name).is_file()), None)
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be searched for {names[0]}: {reason(error)}.") from error


def text_lines(path: Path, encoding: str = "utf-8", form: str = TEXT) -> Iterator[tuple[int, str]]:
    """The lines of a text file, plain or gzip, with their numbers from 1 and without their ends.

    Only a line feed ends a line: word lists and tweets hold other characters that Python takes for line ends.
    """
    number = 0
    for number, line in byte_lines(path, form):
        try:
            # A byte order mark, which some editors write, is not part of the first line.
            text = line.decode("utf-8-sig" if number == 1 and encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            raise wrong_line(
                path, number, f"byte {error.start + 1} of the line is not {encoding} text", form
            ) from error
        yield number, text.rstrip("\r\n")
    if number == 0:
        raise DataError(f"{path} is empty. Expected: {form}.")


def json_lines(path: Path, form: str = JSON_LINES) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, plain or gzip, with their line numbers; blank lines are passed over."""
    for number, line in text_lines(path, "utf-8", form):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise wrong_line(path, number, f"{shown(line)} is not JSON ({error})", form) from error
        if type(row) is not dict:
            raise wrong_line(path, number, f"{shown(line)} is not a JSON object", form)
        # Half a surrogate pair is legal JSON but no text: it could not be written or tokenised later.
        if "\\u" in line and any("\ud800" <= letter <= "\udfff" for value in row.values() for letter in str(value)):
            raise wrong_line(path, number, f"{shown(line)} holds half of a surrogate pair, which is no character", form)
        yield number, row


def field(row: dict[str, Any], name: str, kind: type[T], path: Path, line: int, form: str) -> T:
    """The value of a field, which must be there and of exactly this type (so that `true` is not the number 1)."""
    value = row.get(name)
    if type(value) is kind:
        return value
    if name not in row:
        raise wrong_line(path, line, f"there is no field {name!r}, only {', '.join(map(repr, row)) or 'none'}", form)
    raise wrong_line(path, line, f"the field {name!r} is {shown(json.dumps(value))}", form)


def byte_lines(path: Path, form: str = TEXT) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with path.open("rb") as file:
            # The content decides, not the name: browsers and copies add and remove the compression.
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            opened = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20) if zipped else nullcontext(file)
            with opened as lines:
                for number, line in enumerate(lines, 1):
                    yield number, line
    except EOFError as error:
        raise DataError(
            f"{path} is cut off: its gzip data has no end; {number:,} lines of it could be read. Copy or download it "
            f"again. Expected: {form}."
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} is damaged: its gzip data cannot be unpacked ({error}); {number:,} lines of it could be read. "
            f"Copy or download it again. Expected: {form}."
        ) from error
    except OSError as error:
        raise unreadable(path, error, form) from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error, "a file") from error


def wrong_line(path: Path, line: int, came: str, form: str) -> DataError:
    """The error that a line of a file is not in its form."""
    return DataError(f"{path}, line {line}: {came}. Expected: {form}.")


def unreadable(path: Path, error: OSError, form: str) -> DataError:
    """The error that a file cannot be opened or read."""
    came = f"is {kind_of(path)}, not a file" if isinstance(error, IsADirectoryError) else "cannot be read"
    return DataError(f"{path} {came}: {reason(error)}. Expected: {form}.")


def reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def kind_of(path: Path) -> str:
    return "a folder" if path.is_dir() else "neither file nor folder"


def shown(text: str, most: int = 80) -> str:
    """The beginning of what came, short enough for an error."""
    return text if len(text) <= most else f"{text[:most]}..."
