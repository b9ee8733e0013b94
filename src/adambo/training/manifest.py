"""Where a run comes from: versions, commit, hardware, data and command."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from adambo import version
from adambo.errors import RunError
from adambo.training.atomic import reason

_PACKAGES = ("numpy", "scikit-learn", "tokenizers", "torchmetrics", "transformers")


def manifest(data_files: Sequence[Path], command: Sequence[str]) -> dict[str, Any]:
    """All that is needed to make a run again elsewhere, as plain values.

    Args:
        data_files: What the run reads; their hashes are noted under their names.
        command: As it was typed.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "versions": _versions(),
        "commit": commit(),
        "hardware": _hardware(),
        "data": _hashes(data_files),
    }


def commit() -> str | None:
    """That of this library; what ADAMBO_COMMIT says goes first, for copies that have come without their history."""
    return os.environ.get("ADAMBO_COMMIT") or _commit(Path(version.__file__).resolve())


def _versions() -> dict[str, str]:
    versions = {"adambo": version.__version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # an experiment on embedded data needs few of them
    return versions


def _commit(file: Path) -> str | None:
    """The commit that `file` is part of, with "+ changes" if its folder differs; None if it is not in a checkout.

    A package that is installed below somebody else's checkout is not part of it: git must know the file itself.
    """
    tracked = _git(file.parent, "ls-files", "--error-unmatch", file.name)
    commit = _git(file.parent, "rev-parse", "HEAD")
    if tracked is None or commit is None:
        return None
    return f"{commit} + changes" if _git(file.parent, "status", "--porcelain", "--", ".") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _hardware() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory(),
        "gpus": gpus,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        return None


def _hashes(files: Sequence[Path]) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for path in files:
        name = path.name if path.name not in hashes else str(path)  # the same name in two folders
        try:
            with open(path, "rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise RunError(f"The data file {path} cannot be read: {reason(error)}.") from error
    return hashes
