"""`adambo list`: experiments and algorithms, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.data.catalogue import DATASETS
from adambo.data.files import data_folder
from adambo.errors import DataError
from adambo.experiments.catalogue import EXPERIMENTS, Experiment, Study
from adambo.experiments.configure import configure
from adambo.experiments.lines import line
from adambo.experiments.settings import ALGORITHMS


def list_all(words: Sequence[str], out: Console, err: Console) -> int:
    parser = Parser("adambo list [options]", "Experiments and algorithms, and whether the data is there.")
    parser.option("data_dir", str | None, None, "Folder of the data files; else the variable ADAMBO_DATA.")
    own, _ = parser.read(words)
    try:
        folder = data_folder(own["data_dir"])
    except DataError:
        folder = None
    line(out, "Experiments")
    for name, each in EXPERIMENTS.items():
        line(out, f"  {name:<20}{each.summary} [{availability(each, folder)}]")
    line(out, "\nAlgorithms")
    for name, algorithm in ALGORITHMS.items():
        line(out, f"  {name:<20}{algorithm.summary}")
    return 0


def availability(experiment: Experiment | Study, folder: Path | None) -> str:
    """What data it needs, and whether it is there."""
    needed = list(dict.fromkeys(data_of(experiment)))
    if not needed:
        return "no download"
    if folder is None:
        return f"needs {', '.join(needed)}: set ADAMBO_DATA or give --data-dir"
    lacking = [
        f"{name} {'incomplete' if DATASETS[name].files(folder) else 'missing'}"
        for name in needed
        if DATASETS[name].missing(folder)
    ]
    found = f"{', '.join(lacking)} in {folder}" if lacking else "here"
    return f"needs {', '.join(needed)}: {found}"


def data_of(experiment: Experiment | Study) -> list[str]:
    if isinstance(experiment, Study):
        return [name for part, _, _ in experiment.runs for name in data_of(EXPERIMENTS[part])]
    return list(experiment.data(configure(experiment.name).config))
