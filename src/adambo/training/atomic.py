"""Files that are there as a whole or not at all, whenever the process is killed and however full the disk is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from adambo.errors import RunError


def write_text(path: Path, text: str) -> None:
    """Make `text` the content of `path`, in one go.

    Raises:
        RunError: With what `path` held before still there.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Make `content` that of `path`, in one go; see `write_text`."""

    def fill(file: BinaryIO) -> Path:
        file.write(content)
        return path

    write_through(path, fill)


def write_through(path: Path, fill: Callable[[BinaryIO], Path]) -> Path:
    """Let `fill` write a file that appears, complete, under the name that `fill` returns.

    Args:
        path: Where to; its folder is where the file grows, as `.name.partial`.
        fill: Writes the content; returns the final path, in the same folder (a name may depend on the content).
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        try:
            with open(partial, "wb") as file:
                final = fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, final)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {reason(error)}. Nothing half-written is left, and what was complete before "
            "still is."
        ) from error
    return final


def remove_partials(folder: Path) -> None:
    """Remove what writers that were killed have left in `folder` and below. Call it while no other process writes."""
    try:
        for partial in folder.rglob(".*.partial"):
            partial.unlink()
    except OSError as error:
        raise RunError(f"Left-over files in {folder} cannot be removed: {reason(error)}.") from error


def reason(error: OSError) -> str:
    """What the system says, as the end of a sentence: "no space left on device"."""
    said = error.strerror or str(error) or type(error).__name__
    return said[:1].lower() + said[1:]


def _sync_folder(folder: Path) -> None:
    """The new name survives a power cut too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot do it, and need not
            raise
    finally:
        os.close(handle)
