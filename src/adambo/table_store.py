"""Where large tables live: with the parameters, in host memory, or in a file."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from adambo.errors import NoMemoryError, SettingError

logger = logging.getLogger("adambo")


class TableStore:
    """Memory for rows of numbers; announced, and refused where there is not enough of it, before it is taken.

    Args:
        kind: "device" (where the parameters are), "cpu" (host memory, pinned if the parameters are on CUDA: transfers
            then take their turn on the device, and nobody waits for them), "disk" (memory-mapped files in a temporary
            directory), or an existing directory (the same there). The files go with the store. On CUDA they make
            every step wait for the device.
        device: Where the parameters are.
    """

    def __init__(self, kind: str | os.PathLike[str], device: torch.device) -> None:
        named = isinstance(kind, str) and kind in ("device", "cpu", "disk")
        if not named and not (isinstance(kind, str | os.PathLike) and Path(kind).is_dir()):
            raise SettingError(f"store={kind!r} is neither 'device', 'cpu', 'disk' nor a directory that exists.")
        self.on_disk = not named or kind == "disk"
        self._home = device
        self._device = device if kind == "device" else torch.device("cpu")
        self._pinned = kind == "cpu" and device.type == "cuda"
        self._parent = Path(kind if self.on_disk and not named else tempfile.gettempdir())
        self._directory: Path | None = None

    def announce(self, parts: Sequence[tuple[int, int]], what: str) -> None:
        """Log the size of the tables that are about to be made, or refuse them.

        Args:
            parts: (rows, bytes of a row) of each.
            what: What they are, in words.

        Raises:
            NoMemoryError: If they need more than is free.
        """
        needed, free = sum(self._taken(count * size) for count, size in parts), self.free_bytes()
        if free is not None and needed > free:
            raise NoMemoryError(
                f"The tables of SABA ({what}) need {readable(needed)}, but {self.place} has {readable(free)} free. "
                "Take fewer and larger slots, another store ('device', 'cpu', 'disk' or a directory), or saga_x=False, "
                "which does without the tables in the space of x."
            )
        logger.warning("The tables of SABA take %s in %s (%s).", readable(needed), self.place, what)

    def rows(self, count: int, like: Tensor, name: str) -> Tensor:
        """Memory for `count` rows like the flat tensor `like`, filled with zeros."""
        shape = (count, like.numel())
        if not self.on_disk:
            return torch.zeros(shape, dtype=like.dtype, device=self._device, pin_memory=self._pinned)
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="adambo-", dir=self._parent))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        path = self._directory / name
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # a hole that a full disk cannot fill later would kill the process
                os.posix_fallocate(file.fileno(), 0, count * like.nbytes)
            else:
                file.truncate(count * like.nbytes)
        return torch.from_file(str(path), shared=True, size=count * like.numel(), dtype=like.dtype).view(shape)

    def fetched(self, row: Tensor) -> Tensor:
        """A row, where the parameters are; if it lives there, the row itself."""
        return row.to(self._home, non_blocking=self._pinned)

    def put(self, row: Tensor, values: Tensor) -> None:
        row.copy_(values, non_blocking=self._pinned)

    def wait(self) -> None:
        """Let transfers end, before the host looks at rows or changes them."""
        if self._pinned:
            torch.cuda.synchronize(self._home)

    def free_bytes(self) -> int | None:
        """What is free here; None where nobody can tell."""
        if self.on_disk:
            return shutil.disk_usage(self._parent).free
        if self._device.type == "cuda":
            cached = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
            return torch.cuda.mem_get_info(self._device)[0] + cached
        return free_host_bytes()

    @property
    def holds_parameters(self) -> bool:
        return self._device == self._home and not self.on_disk

    @property
    def place(self) -> str:
        if self.on_disk:
            return f"files under {self._parent}"
        return f"{'pinned host' if self._pinned else 'host' if self._device.type == 'cpu' else self._device} memory"

    def _taken(self, size: int) -> int:
        return 1 << (size - 1).bit_length() if self._pinned else size  # torch pins memory in powers of two


def free_host_bytes() -> int | None:
    """The memory that programs can still take, as far as the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    names = getattr(os, "sysconf_names", {})
    pages = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names), None)
    return None if pages is None else os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def readable(size: int) -> str:
    """A number of bytes, in a unit for people and exactly.

    Example:
        >>> readable(3 * 2**30)
        '3 GiB (3,221,225,472 bytes)'
    """
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number >= 1024:
            number, unit = number / 1024, larger
    return f"{number:.4g} {unit} ({size:,} bytes)"
