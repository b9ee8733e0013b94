"""A lock between processes, which the system lets go when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adambo.errors import RunError
from adambo.training.atomic import reason


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock `path` on `what`; the file says which process does.

    Raises:
        RunError: If another one holds it.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(f"{path} cannot be opened, to lock {what}: {reason(error)}.") from error
    try:
        _take(handle, what)
        yield
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    try:
        with open(path) as file:
            return not _flock(file.fileno(), patience=0.0)
    except OSError:
        return False


def _take(handle: int, what: str) -> None:
    try:
        if not _flock(handle):
            holder = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            raise RunError(f"Another process (pid {holder}) works on {what}. Wait for it, or stop it first.")
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    except OSError as error:
        raise RunError(f"{what[:1].upper()}{what[1:]} cannot be locked: {reason(error)}.") from error


def _flock(handle: int, patience: float = 1.0) -> bool:
    """Whether the lock could be taken. A moment's patience: a process that was killed may still be going down."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)
