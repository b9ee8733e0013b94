"""Checkpoints: named by their step and content, so that damage is seen, and read without executing anything."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor

from adambo.errors import RunError
from adambo.training import atomic

_NAME = re.compile(r"step-(\d{8,18})-([0-9a-f]{16})\.pt")
_PLAIN = (str, bytes, int, float, bool, type(None), torch.Size, torch.dtype, torch.device)  # what weights_only reads


def save(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write `state` after `step` steps; then remove all but the `keep` newest up to this one.

    Args:
        folder: Of the checkpoints; made if it is not there.
        step: The steps made.
        state: Containers, tensors and plain values.
        keep: How many to keep. Two, so that one is left if the other is damaged.

    Returns:
        The file.

    Raises:
        RunError: If it cannot be written, or could not be read again; earlier checkpoints are untouched then.
    """
    _check_plain(state, "state")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder {folder} cannot be made: {atomic.reason(error)}.") from error

    def fill(file: BinaryIO) -> Path:
        hashed = _Hashed(file)
        torch.save(state, cast(IO[bytes], hashed))
        if hashed.error is not None:
            raise hashed.error
        return folder / f"step-{step:08d}-{hashed.hash.hexdigest()[:16]}.pt"

    written = atomic.write_through(folder / f"step-{step:08d}.pt", fill)
    # Later ones are of a past that was given up, for a run goes on from its newest good checkpoint.
    earlier = [other for other in _listed(folder) if other.step < step]
    kept = {written, *(other.path for other in earlier[: keep - 1])}
    for other in _listed(folder):
        if other.path not in kept:
            with suppress(OSError):  # one file too many does no harm
                other.path.unlink()
    return written


def newest(folder: Path, report: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
    """Step and state of the newest checkpoint that is whole; None if there is no checkpoint at all.

    Args:
        folder: Of the checkpoints.
        report: Told, in a sentence each, of damaged ones that are passed over.

    Raises:
        RunError: If all are damaged.
    """
    found = _listed(folder)
    for number, one in enumerate(found):
        try:
            return one.step, _read(one)
        except _Damage as damage:
            last = number == len(found) - 1
            report(f"The checkpoint {one.path} {damage}. {'' if last else 'The one before it is used.'}".strip())
    if found:
        raise RunError(
            f"No checkpoint in {folder} can be read: {', '.join(one.path.name for one in found)} are damaged. The run "
            "cannot go on; delete them to begin again from step 0, or start a new run."
        )
    return None


class _Checkpoint(NamedTuple):
    path: Path
    step: int
    digest: str


class _Damage(Exception):
    """The end of a sentence that begins with the name of a checkpoint."""


class _Hashed:
    """A file to write to, which knows the hash of what was written.

    `torch.save` hides an error of the file behind one of its own, so this keeps it and writes nothing more.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        if self.error is None:
            try:
                self._file.write(content)
                self.hash.update(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """The caller flushes and syncs the whole file in the end."""


def _listed(folder: Path) -> list[_Checkpoint]:
    """Newest first."""
    try:
        # A link that leads nowhere or a pipe, from which nothing comes, is no checkpoint, whatever its name.
        paths = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
        matches = [(path, match) for path in paths if (match := _NAME.fullmatch(path.name))]
        matches.sort(key=lambda pair: (int(pair[1][1]), pair[0].stat().st_mtime_ns), reverse=True)
    except OSError as error:
        raise RunError(f"The checkpoints in {folder} cannot be listed: {atomic.reason(error)}.") from error
    return [_Checkpoint(path, int(match[1]), match[2]) for path, match in matches]


def _read(one: _Checkpoint) -> dict[str, Any]:
    try:
        with open(one.path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            if digest != one.digest:
                raise _Damage("is damaged: its content does not match the hash in its name")
            file.seek(0)
            # Tensors go back to the device they were on, if there is one at all.
            place = None if torch.cuda.is_available() else "cpu"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about files that it refuses then
                state = torch.load(file, weights_only=True, map_location=place)
    except OSError as error:
        raise _Damage(f"cannot be read: {atomic.reason(error)}") from error
    except UnpicklingError as error:
        raise _Damage("is refused: it holds more than tensors and plain values, and was not executed") from error
    except (_Damage, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # there is no end to what unpicklers make of foreign bytes
        raise _Damage(f"is damaged: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(state, dict):
        raise _Damage(f"is refused: it holds a {type(state).__name__}, no state of a run")
    return state


def _check_plain(value: Any, where: str) -> None:
    """Refuse at once what `weights_only` would refuse on the day the run must be resumed."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    elif not isinstance(value, Tensor) and type(value) not in _PLAIN:
        raise RunError(
            f"The run cannot be saved: {where} is a {type(value).__module__}.{type(value).__qualname__}, and a "
            "checkpoint holds tensors, numbers, strings, lists, tuples and dictionaries only."
        )
