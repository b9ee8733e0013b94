"""Run folders to files: the page, and beside it one PNG and one SVG per experiment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from adambo.errors import ConfigError, RunError
from adambo.report.curves import Group, grouped
from adambo.report.figures import counted, figure
from adambo.report.page import page
from adambo.report.records import Record
from adambo.training import atomic
from adambo.training.run_folder import RunFolder


def build(runs: Sequence[RunFolder], out: Path, console: Console, notes: Sequence[str] = ()) -> list[Path]:
    """Write the report of `runs`.

    Args:
        runs: Which to show. One whose record is damaged is named, on the console and on the page, and left out.
        out: The page, a file that ends in .html; figures go beside it, `<stem>-<experiment>.png` and `.svg`.
        console: Says what was left out.
        notes: Sentences about runs that were left out before.

    Returns:
        The files written, the page first. Each appears as a whole or not at all.

    Raises:
        ConfigError: If `out` cannot be a page.
        RunError: If there is nothing to show, or the files cannot be written.
    """
    check_out(out)
    records, more = read(runs)
    notes = [*notes, *more]
    for note in notes:
        console.print(note, markup=False, highlight=False)
    if not records:
        raise RunError(
            "There are no runs to report. Name run folders, or a folder that holds some."
            if not notes
            else f"None of the {counted(len(notes), 'run')} can be read. {notes[0]}"
        )
    if not any(record.evaluations for record in records):
        raise RunError(
            f"None of the {counted(len(records), 'run')} has an evaluation yet, so there is nothing to draw. "
            "The first one comes before the first step: wait for it, or look at status.json for why they stopped."
        )
    groups = grouped(records)
    contents = {out: page(groups, notes, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC").encode()}
    for group, name in zip(groups, file_names(groups), strict=True):
        contents |= {out.with_name(f"{out.stem}-{name}.{kind}"): data for kind, data in figure(group).items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder {out.parent} cannot be made: {atomic.reason(error)}.") from error
    for path, content in contents.items():
        atomic.write_bytes(path, content)
    return list(contents)


def check_out(out: Path) -> None:
    if out.is_dir():
        raise ConfigError(f"{out} is a folder. Name the page itself, such as {out / 'report.html'}.")
    if out.suffix.lower() != ".html":
        raise ConfigError(f"{out} does not end in .html. The report is one page: name it, such as report.html.")


def read(runs: Sequence[RunFolder]) -> tuple[list[Record], list[str]]:
    """The records, each folder once; and a sentence for each that is damaged."""
    records, notes = [], []
    for run in {run.path.resolve(): run for run in runs}.values():
        try:
            records.append(Record.read(run))
        except RunError as error:
            notes.append(f"The run {run.path} is left out. {error}")
    return records, notes


def file_names(groups: Sequence[Group]) -> list[str]:
    """The experiments as parts of file names: other signs than letters, digits, dots and hyphens become hyphens."""
    names: list[str] = []
    for group in groups:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", group.experiment)[:80].strip("-.") or "experiment"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names
