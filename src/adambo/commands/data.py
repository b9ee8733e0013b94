"""`adambo data fetch` and `adambo data check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.data.catalogue import DATASETS, dataset_named
from adambo.data.files import data_folder
from adambo.errors import ConfigError, DataError
from adambo.experiments.lines import line
from adambo.experiments.values import known

ACTIONS = ("check", "fetch")


def data(words: Sequence[str], out: Console, err: Console) -> int:
    parser = Parser(
        "adambo data check|fetch [NAMES...] [options]",
        "check: read all files and count what they hold. fetch: get missing files from the hub. Data sets: "
        f"{', '.join(DATASETS)}; without names, all of them.",
    )
    parser.option("data_dir", str | None, None, "Folder of the data files; else the variable ADAMBO_DATA.")
    parser.option("overwrite", bool, False, "fetch: replace files that are there.")
    first = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
    own, _ = parser.read(words[first:])
    if first == 0:
        raise ConfigError("Say what to do: `adambo data check` or `adambo data fetch`.")
    action = known(words[0], ACTIONS, "command of `adambo data`")
    named = [dataset_named(name).name for name in words[1:first]]
    folder = data_folder(own["data_dir"])
    if action == "check":
        return check(named, folder, out)
    return fetch(named, folder, own["overwrite"], out)


def check(named: Sequence[str], folder: Path, out: Console) -> int:
    """A line per file. What is missing is an error only if it was asked for by name; damage always is."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} to check. Give another --data-dir, or set ADAMBO_DATA to it.")
    for name in named or DATASETS:
        dataset = DATASETS[name]
        missing = dataset.missing(folder)
        if missing and not named:
            line(out, f"{name}: not there. {missing[0].partition(' Expected:')[0]}")
            continue
        for said in dataset.check(folder):
            line(out, f"{name}: {said}")
    return 0


def fetch(named: Sequence[str], folder: Path, overwrite: bool, out: Console) -> int:
    from adambo.data.hub import SOURCES
    from adambo.data.hub import fetch as from_hub

    for name in named or SOURCES:
        written = from_hub(name, folder, overwrite=overwrite)
        for path in written:
            line(out, f"{name}: {path}")
        if not written:
            line(out, f"{name}: everything is there already.")
    return 0
