"""Making one run, and going on with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from adambo.errors import DataError, RunError
from adambo.experiments.config import RunConfig
from adambo.experiments.configure import Configured, experiment_named, of_run
from adambo.training.budget import Budget
from adambo.training.loop import Outcome, Plan, train
from adambo.training.manifest import manifest
from adambo.training.progress import Progress
from adambo.training.run_folder import RunFolder
from adambo.training.workload import Workload


def run(
    configured: Configured, folder: str | Path, console: Console, *, quiet: bool = False, command: Sequence[str] = ()
) -> Outcome:
    """Make the run in a new folder.

    Args:
        configured: What `configure` gave.
        folder: Where to; empty or not there yet.
        console: For the progress.
        quiet: No progress, only what matters.
        command: As it was typed, for the record.

    Raises:
        AdamboError: Before anything is written, if data, settings or folder cannot be used.
    """
    folder = Path(folder)
    refuse_if_used(folder)
    refuse_missing_data(configured)
    workload = experiment_named(configured.experiment).build(configured.config)
    configured = _with_whole_path(configured)
    made = RunFolder.create(
        folder,
        configured.experiment,
        configured.preset,
        configured.values,
        configured.sources,
        {**manifest(data_files(configured), command), "experiment": _about(configured)},
    )
    return train(workload, made, plan_of(configured.config, workload), Progress(console, quiet=quiet))


def resume(folder: str | Path, console: Console, *, quiet: bool = False, data_dir: str | None = None) -> Outcome:
    """Go on with a run from its newest good checkpoint; one that is finished stays as it is.

    Args:
        folder: Of the run.
        console: For the progress.
        quiet: No progress, only what matters.
        data_dir: Where the data are now, if they have moved.

    Raises:
        RunError: If there is no such run, its data have changed, or it cannot go on.
    """
    made = RunFolder.open(folder)
    progress = Progress(console, quiet=quiet)
    status = made.status
    if status["state"] == "finished":
        progress.say(f"The run {made.path} is finished, there is nothing to do. {status['reason']}")
        return Outcome("finished", status["reason"], status["step"])
    configured = of_run(made)
    if data_dir is not None:
        configured = configured.changed(data_dir=data_dir)
    before = made.manifest
    refuse_missing_data(configured)
    _refuse_other_data(made, before, configured)
    with _threads(before):
        workload = experiment_named(configured.experiment).build(configured.config)
        return train(workload, made, plan_of(configured.config, workload), progress)


def _about(configured: Configured) -> dict[str, Any]:
    """What a report has to know about the experiment."""
    experiment = experiment_named(configured.experiment)
    return {"metric": experiment.metric, "chance": experiment.chance(configured.config)}


def refuse_if_used(folder: Path) -> None:
    """Refuse a folder that holds something, before time is spent on data and networks."""
    if (folder / "config.yaml").exists():
        raise RunError(f"{folder} holds a run already. Resume it, or choose another folder.")
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent) or parent == Path())
    if not there.is_dir():
        raise RunError(f"{there} is a file, so no run can be in {folder}. Choose another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{there} may not be written to by this user. Choose another folder for runs.")


def plan_of(config: RunConfig, workload: Workload) -> Plan:
    """When the run ends, is evaluated and saved, in steps."""

    def in_steps(epochs: float | None) -> int | None:
        return None if epochs is None else max(1, round(epochs * workload.steps_per_epoch))

    return Plan(
        Budget(config.epochs, config.steps, config.seconds, config.oracle_calls),
        in_steps(config.evaluate_every),
        in_steps(config.checkpoint_every),
        monitor_every=config.monitor_every,
    )


def data_files(configured: Configured) -> list[Path]:
    """The files that a run reads."""
    needed = experiment_named(configured.experiment).data(configured.config)
    if not needed:
        return []
    from adambo.data.catalogue import DATASETS
    from adambo.data.files import data_folder

    folder = data_folder(configured.config.data_dir)
    return [file for name in needed for file in DATASETS[name].files(folder)]


def refuse_missing_data(configured: Configured) -> None:
    """Say that a data set is missing before time is spent; of one that is there in part, its reader will say it.

    Raises:
        DataError: For the first data set of which nothing is there.
    """
    needed = experiment_named(configured.experiment).data(configured.config)
    if not needed:
        return
    from adambo.data.catalogue import DATASETS
    from adambo.data.files import data_folder

    folder = data_folder(configured.config.data_dir)
    for dataset in map(DATASETS.__getitem__, needed):
        if not dataset.files(folder):
            raise DataError(dataset.missing(folder)[0])


def free_folder(out: Path, configured: Configured) -> Path:
    """<out>/<experiment>/<algorithm>-seed<k>, with -2, -3, ... if there is one already."""
    folder = folder_of(out, configured)
    number = 1
    while os.path.lexists(folder):
        number += 1
        folder = folder_of(out, configured).with_name(f"{folder_of(out, configured).name}-{number}")
    return folder


def folder_of(out: Path, configured: Configured) -> Path:
    config = configured.config
    return out / configured.experiment / f"{config.algorithm}-seed{config.seed}"


def _with_whole_path(configured: Configured) -> Configured:
    """The run may be gone on with from another folder."""
    given = configured.config.data_dir
    if given is None:
        return configured
    return replace(configured, config=replace(configured.config, data_dir=str(Path(given).expanduser().absolute())))


def _refuse_other_data(made: RunFolder, before: dict[str, Any], configured: Configured) -> None:
    """A run that goes on with other data would be neither the one nor the other."""
    hashes = before.get("data") or {}
    if not hashes:
        return
    now = manifest(data_files(configured), ())["data"]
    changed = sorted(name for name in hashes if now.get(name) != hashes[name])
    if changed:
        raise RunError(
            f"The run {made.path} was begun with other data: {', '.join(changed)} has changed or is gone. Put it back, "
            "or start a new run."
        )


@contextmanager
def _threads(before: dict[str, Any]) -> Iterator[None]:
    """As many as the run began with: sums over another number of threads are rounded differently."""
    now = torch.get_num_threads()
    then = (before.get("hardware") or {}).get("threads")
    torch.set_num_threads(then if isinstance(then, int) and then > 0 else now)
    try:
        yield
    finally:
        torch.set_num_threads(now)
