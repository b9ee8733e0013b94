"""Processes that make runs side by side, as long as somebody has jobs for them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

import torch
from rich.console import Console

from adambo.errors import AdamboError, NoMemoryError
from adambo.experiments import runner
from adambo.experiments.configure import Configured
from adambo.experiments.lines import show_warnings_on
from adambo.training.loop import Outcome
from adambo.training.run_folder import RunFolder
from adambo.training.stop_signals import StopSignals

PATIENCE = 60.0  # seconds for the last step and a checkpoint of a run that is stopped


@dataclass(frozen=True)
class Job:
    """One run of many.

    Attributes:
        label: What all seeds of it have in common, a row of the table.
        configured: What is run.
        folder: Where.
        command: As it was typed, for the record.
    """

    label: str
    configured: Configured
    folder: Path
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.label} seed {self.configured.config.seed}"


@dataclass(frozen=True)
class Result:
    """How a job ended: "finished", "diverged", "interrupted" or "failed".

    Attributes:
        job: Which one.
        state: In one word.
        reason: In a sentence.
        signal: That has interrupted it, if one did.
        refused: The error with which it was refused: a user can mend it.
        out_of_memory: Of its device, which others may use too.
    """

    job: Job
    state: str
    reason: str
    signal: int | None = None
    refused: type[AdamboError] | None = None
    out_of_memory: bool = False


@dataclass
class Results:
    """All jobs that have ended, and the signal that ended them all, if one did."""

    each: list[Result] = field(default_factory=list)
    signal: int | None = None


class Source(Protocol):
    """Whoever has jobs."""

    def next(self) -> Job | None:
        """A job that can be begun now; None if there is none, though one may come of those that are being made."""

    def ended(self, result: Result) -> None:
        """A job has ended, in whatever way."""


def one_by_one(source: Source, console: Console) -> Results:
    """All jobs in this process."""
    results = Results()
    while results.signal is None and (job := source.next()) is not None:
        results.each.append(worked(job, console, quiet=False))
        results.signal = results.each[-1].signal
        source.ended(results.each[-1])
    return results


def worked(job: Job, console: Console, quiet: bool) -> Result:
    """Make the run or go on with it; whatever happens becomes a result."""
    try:
        if (job.folder / "config.yaml").exists():
            status = RunFolder.open(job.folder).status
            if status["state"] == "diverged":  # it would do so again
                return Result(job, "diverged", status["reason"])
            data_dir = job.configured.config.data_dir
            outcome: Outcome = runner.resume(job.folder, console, quiet=quiet, data_dir=data_dir)
        else:
            outcome = runner.run(job.configured, job.folder, console, quiet=quiet, command=job.command)
    except AdamboError as error:
        return Result(job, "failed", str(error), refused=type(error), out_of_memory=_lacks_memory(error))
    except KeyboardInterrupt:
        return Result(job, "interrupted", "It was stopped at once.", signal.SIGINT)
    except Exception as error:  # a fault of ours, or no memory: the other runs go on
        return Result(job, "failed", f"{type(error).__name__}: {error}", out_of_memory=_lacks_memory(error))
    return Result(job, outcome.state, outcome.reason, outcome.signal)


def _lacks_memory(error: Exception) -> bool:
    """Of a device that others use too: later there may be more. CUDA's libraries have no error of their own for it."""
    said = ("STATUS_ALLOC_FAILED", "STATUS_NOT_INITIALIZED", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | NoMemoryError) or any(each in str(error) for each in said)


class _Worker:
    """A process that makes one run after the other; it may die without harm to the rest."""

    def __init__(self) -> None:
        context = get_context("spawn")  # forked processes cannot use CUDA
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def take(self, job: Job) -> None:
        self.job = job
        self.pipe.send(job)

    def result(self, stopped: bool) -> Result:
        """Of its job, which has ended in one way or another."""
        job = self.job
        assert job is not None
        try:
            result: Result = self.pipe.recv()
            self.job = None
            return result
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            state = "interrupted" if stopped else "failed"
            return Result(job, state, f"Its process has ended with exit code {code}{_likely(code)}.")

    def stop(self) -> None:
        """Let the step end and a checkpoint be written."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGTERM)

    def wait(self) -> None:
        """Until what it was doing when it was stopped has ended."""
        if self.job is not None:
            wait([self.pipe, self.process.sentinel], timeout=PATIENCE)


def _likely(code: int | None) -> str:
    return ", as when memory runs out" if code == -signal.SIGKILL else ""


def side_by_side(source: Source, count: int, seconds: float | None = None) -> Results:
    """All jobs, `count` at a time; a signal stops all cleanly, and so does the end of `seconds`."""
    results, stopped = Results(), False
    end = None if seconds is None else time.monotonic() + seconds
    workers: list[_Worker] = []
    with StopSignals() as signals:
        try:
            while True:
                if not stopped and (signals.received is not None or (end is not None and time.monotonic() >= end)):
                    stopped, results.signal = True, signals.received
                    for worker in workers:
                        worker.stop()
                while not stopped and sum(worker.job is not None for worker in workers) < count:
                    job = source.next()
                    if job is None:
                        break
                    idle = next((worker for worker in workers if worker.job is None), None)
                    if idle is None:
                        workers.append(idle := _Worker())
                    idle.take(job)
                busy = {worker.pipe: worker for worker in workers if worker.job is not None}
                if not busy:
                    return results
                for pipe in wait(list(busy), timeout=0.2):
                    worker = busy[pipe]  # type: ignore[index]
                    result = worker.result(stopped)
                    died = worker.job is not None
                    if died or (result.state == "failed" and result.refused is None):
                        workers.remove(worker)  # after a fault of CUDA, say, every further run in it would fail
                        worker.stop()
                    results.each.append(replace(result, signal=None))
                    source.ended(result)
        finally:
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.wait()


def _serve(pipe: Connection) -> None:
    # Ctrl-C on the terminal is for the process that hands out the jobs, which passes it on, once.
    os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    silent = Console(file=sys.stderr)
    while True:
        torch.set_num_threads(1)  # each worker has one core, unless the config says otherwise
        try:
            job = pipe.recv()
            show_warnings_on(silent, f"{job.name}: ")
            result = worked(job, silent, quiet=True)
            gc.collect()
            torch.cuda.empty_cache()  # others share the device; without one, this does nothing
            pipe.send(result)
        except (EOFError, OSError):  # nobody asks any more; what a run raises is in its result
            return


def _end_with_parent() -> None:
    """Nobody waits for a run whose parent was killed: it stops as on SIGTERM, and can be resumed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
