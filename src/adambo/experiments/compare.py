"""Many runs, several at a time: algorithms and seeds of an experiment, or all runs of a study."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from adambo.errors import AdamboError, RunError
from adambo.experiments import runner
from adambo.experiments.catalogue import Study
from adambo.experiments.configure import Configured, configure, of_run
from adambo.experiments.lines import line, show_warnings_on
from adambo.experiments.presets import laid_over
from adambo.training.loop import Outcome
from adambo.training.run_folder import RunFolder
from adambo.training.stop_signals import StopSignals


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
    """How a job ended: "finished", "diverged", "interrupted" or "failed"; `refused` if a user can mend it."""

    job: Job
    state: str
    reason: str
    signal: int | None = None
    refused: bool = False


@dataclass
class Results:
    """All jobs that have ended, and the signal that ended them all, if one did."""

    each: list[Result] = field(default_factory=list)
    signal: int | None = None


def jobs_of_algorithms(first: Sequence[Configured], seeds: int, out: Path, command: Sequence[str] = ()) -> list[Job]:
    """Every configuration with `seeds` seeds, counted from its own."""
    jobs = []
    for configured in first:
        for seed in range(configured.config.seed, configured.config.seed + seeds):
            seeded = configured.changed(seed=seed)
            jobs.append(Job(seeded.config.algorithm, seeded, runner.folder_of(out, seeded), tuple(command)))
    return jobs


def jobs_of_study(
    study: Study, seeds: int, out: Path, preset: str | None, overrides: Mapping[str, Any], command: Sequence[str] = ()
) -> list[Job]:
    """Every run of a study with `seeds` seeds."""
    jobs = []
    for experiment, algorithm, values in study.runs:
        first = configure(experiment, algorithm, preset, laid_over(overrides, values))
        what = " ".join(f"{key.rpartition('.')[2]}={value:g}" for key, value in values.items())
        for seed in range(first.config.seed, first.config.seed + seeds):
            configured = first.changed(seed=seed)
            folder = out / study.name / experiment / f"{algorithm}-{what.replace('=', '').replace(' ', '-')}-seed{seed}"
            jobs.append(Job(f"{experiment} {algorithm} {what}", configured, folder, tuple(command)))
    return jobs


def refuse_other_runs(jobs: Sequence[Job]) -> None:
    """Jobs whose folders hold runs go on with them, so they must be the same runs.

    Raises:
        RunError: If one differs, or a folder holds something else.
    """
    for job in jobs:
        if not (job.folder / "config.yaml").exists():
            runner.refuse_if_used(job.folder)
            continue
        there = laid_over({}, of_run(RunFolder.open(job.folder)).values)  # of an earlier version too
        here = laid_over({}, job.configured.values)
        for key in ("data_dir", "device", "threads"):  # where it is made is no part of what a run is
            there.pop(key, None), here.pop(key, None)
        other = [key for key in here | there if here.get(key) != there.get(key)]
        if other:
            key = other[0]
            raise RunError(
                f"{job.folder} holds a run with other settings ({key}: {there.get(key)} there, {here.get(key)} now). "
                "Choose another --out, or give the settings it was made with."
            )


def run_all(jobs: Sequence[Job], console: Console, workers: int) -> Results:
    """All jobs, `workers` at a time; what fails stops nothing else, a signal stops all cleanly.

    Runs that are in their folders already are gone on with, finished ones left as they are.

    Raises:
        RunError: Before anything is begun, if a folder holds another run.
    """
    refuse_other_runs(jobs)
    for configured in {job.configured.experiment: job.configured for job in jobs}.values():
        runner.refuse_missing_data(configured)

    done = [result for result in map(_found, jobs) if result is not None]
    open_ = [job for job in jobs if not any(result.job is job for result in done)]
    ended = itertools.count(len(done) + 1)

    def said(result: Result) -> None:
        line(console, f"{next(ended)} of {len(jobs)}, {result.job.name}: {result.state}. {result.reason}")

    workers = min(workers, len(open_))
    results = _one_by_one(open_, console, said) if workers <= 1 else _side_by_side(open_, workers, said)
    results.each = sorted([*done, *results.each], key=lambda result: jobs.index(result.job))
    return results


def _found(job: Job) -> Result | None:
    """How a job has ended before; one that has diverged would do so again."""
    if not (job.folder / "config.yaml").exists():
        return None
    status = RunFolder.open(job.folder).status
    return Result(job, status["state"], status["reason"]) if status["state"] in ("finished", "diverged") else None


def _one_by_one(jobs: Sequence[Job], console: Console, said: Callable[[Result], None]) -> Results:
    results = Results()
    for job in jobs:
        results.each.append(_worked(job, console, quiet=False))
        said(results.each[-1])
        results.signal = results.each[-1].signal
        if results.signal is not None:
            break
    return results


def _worked(job: Job, console: Console, quiet: bool) -> Result:
    """Make the run or go on with it; whatever happens becomes a result."""
    try:
        if (job.folder / "config.yaml").exists():
            data_dir = job.configured.config.data_dir
            outcome: Outcome = runner.resume(job.folder, console, quiet=quiet, data_dir=data_dir)
        else:
            outcome = runner.run(job.configured, job.folder, console, quiet=quiet, command=job.command)
    except AdamboError as error:
        return Result(job, "failed", str(error), refused=True)
    except KeyboardInterrupt:
        return Result(job, "interrupted", "It was stopped at once.", signal.SIGINT)
    except Exception as error:  # a fault of ours, or memory: the other runs go on
        return Result(job, "failed", f"{type(error).__name__}: {error}")
    return Result(job, outcome.state, outcome.reason, outcome.signal)


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


def _likely(code: int | None) -> str:
    return ", as when memory runs out" if code == -signal.SIGKILL else ""


def _side_by_side(jobs: Sequence[Job], count: int, said: Callable[[Result], None]) -> Results:
    results, waiting = Results(), list(jobs)
    workers: list[_Worker] = []
    with StopSignals() as signals:
        try:
            while True:
                if signals.received is not None and results.signal is None:
                    results.signal = signals.received
                    for worker in workers:
                        worker.stop()
                while waiting and results.signal is None and sum(w.job is not None for w in workers) < count:
                    idle = next((w for w in workers if w.job is None), None)
                    if idle is None:
                        workers.append(idle := _Worker())
                    idle.take(waiting.pop(0))
                busy = {w.pipe: w for w in workers if w.job is not None}
                if not busy:
                    return results
                for pipe in wait(list(busy), timeout=0.2):
                    worker = busy[pipe]  # type: ignore[index]
                    result = worker.result(stopped=results.signal is not None)
                    if worker.job is not None:  # it has died
                        workers.remove(worker)
                    results.each.append(replace(result, signal=None))
                    said(result)
        finally:
            for worker in workers:
                worker.stop()


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
            pipe.send(_worked(job, silent, quiet=True))
        except (EOFError, OSError):  # nobody asks any more; what a run raises is in its result
            return


def _end_with_parent() -> None:
    """Nobody waits for a run whose parent was killed: it stops as on SIGTERM, and can be resumed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
