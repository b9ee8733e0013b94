"""Time, memory and the name of the machine: what every benchmark of this folder measures, measured in one way.

Contenders take turns, step by step, so that a slow moment of the machine hits all of them; a ratio is the median of
the paired ratios. Memory is the maximum resident set above the built problem, in a process of its own.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

M_MMAP_THRESHOLD = -3  # of glibc
Step = Callable[[], object]


def nothing() -> None:
    """What there is to wait for on a CPU."""


def interleaved_times(
    contenders: Sequence[Step], steps: int, warm_up: int = 3, wait: Callable[[], None] = nothing
) -> list[list[float]]:
    """Seconds per step of contenders that take turns, each going first equally often.

    Args:
        contenders: Their steps.
        steps: How many steps of each are timed.
        warm_up: How many come before, untimed.
        wait: Called before and after each step, for devices that work on while the host goes on
            (`torch.cuda.synchronize`).
    """
    times: list[list[float]] = [[] for _ in contenders]
    for turn in range(warm_up + steps):
        for place in range(len(contenders)):
            k = (turn + place) % len(contenders)
            wait()
            start = time.perf_counter()
            contenders[k]()
            wait()
            if turn >= warm_up:
                times[k].append(time.perf_counter() - start)
    return times


def paired_ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of steps that were taken in the same turn."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def peak_memory(build: Callable[[], Step], steps: int = 5) -> float:
    """MiB of resident memory that `steps` steps need above the built problem (Linux).

    A step on a throw-away copy comes first, so that the code of the kernels is loaded and only data is counted. By
    default, malloc puts blocks of up to 32 MiB on its heap once some have been freed; its holes, up to two thirds of
    the data, differ from run to run and would be counted too. Here larger tensors go back to the system when freed.
    """
    if not ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16):
        raise OSError("mallopt refused the threshold, so holes of the heap would be taken for data.")
    build()()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    step = build()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _resident("VmRSS")
    for _ in range(steps):
        step()
    return (_resident("VmHWM") - before) / 1024


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def in_a_process(script: str | Path, *arguments: str) -> str:
    """What `python script arguments` prints: memory is measured in a process per number. Its errors go to stderr."""
    return subprocess.run(
        [sys.executable, str(script), *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def machine() -> str:
    """One line for the head of a table: software, hardware, commit and day."""
    python = platform.python_version()
    parts = [f"torch {torch.__version__}, Python {python}", f"{torch.get_num_threads()} threads of {_processor()}"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return "; ".join([*parts, f"commit {_commit()}", datetime.date.today().isoformat()])


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """The commit of this folder, with a + where files differ from it."""

    def git(*command: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *command], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown (no git checkout)"
