"""Many runs, several at a time: algorithms and seeds of an experiment, or all runs of a study."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adambo.errors import RunError
from adambo.experiments import runner
from adambo.experiments.catalogue import Study
from adambo.experiments.configure import Configured, configure, of_run
from adambo.experiments.lines import line
from adambo.experiments.presets import laid_over
from adambo.experiments.workers import Job, Result, Results, one_by_one, side_by_side
from adambo.training.run_folder import RunFolder


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
        if said := other_settings(job):
            raise RunError(f"{said} Choose another folder, or give the settings it was made with.")


def other_settings(job: Job) -> str:
    """A sentence on how the run in the folder of a job differs from it; empty if it does not."""
    there = laid_over({}, of_run(RunFolder.open(job.folder)).values)  # of an earlier version too
    here = laid_over({}, job.configured.values)
    for key in ("data_dir", "device", "threads"):  # where it is made is no part of what a run is
        there.pop(key, None), here.pop(key, None)
    for key in here | there:
        if here.get(key) != there.get(key):
            differs = f"{key}: {there.get(key)} there, {here.get(key)} now"
            return f"{job.folder} holds a run with other settings ({differs})."
    return ""


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
    listed = _Listed(open_, len(done), console)
    workers = min(workers, len(open_))
    results = one_by_one(listed, console) if workers <= 1 else side_by_side(listed, workers)
    results.each = sorted([*done, *results.each], key=lambda result: jobs.index(result.job))
    return results


class _Listed:
    """Jobs from a list; says of each how it ended."""

    def __init__(self, jobs: Sequence[Job], done: int, console: Console) -> None:
        self._waiting, self._console = list(jobs), console
        self._ended, self._count = itertools.count(done + 1), done + len(jobs)

    def next(self) -> Job | None:
        return self._waiting.pop(0) if self._waiting else None

    def ended(self, result: Result) -> None:
        said = f"{next(self._ended)} of {self._count}, {result.job.name}: {result.state}. {result.reason}"
        line(self._console, said)


def _found(job: Job) -> Result | None:
    """How a job has ended before; one that has diverged would do so again."""
    if not (job.folder / "config.yaml").exists():
        return None
    status = RunFolder.open(job.folder).status
    return Result(job, status["state"], status["reason"]) if status["state"] in ("finished", "diverged") else None
