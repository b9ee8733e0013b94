"""`adambo make PLAN`: the runs and searches of a plan that its folder of records lacks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.errors import ConfigError
from adambo.experiments.lines import line


def make(words: Sequence[str], out: Console, err: Console) -> int:
    parser = Parser(
        "adambo make PLAN [options]",
        "Make the runs and searches of a plan (results/plan.yaml, say) of which there is no record yet, several at a "
        "time. Records go into the folder of the plan. It can be stopped at any time; called again, it goes on.",
    )
    parser.option("only", str, [], "Entries whose places begin so, such as paper/ or search/auc-rnn.", several=True)
    parser.option("jobs", int, os.cpu_count() or 1, "Runs at a time; on a GPU they share it.")
    parser.option("minutes", float | None, None, "Stop all runs then, so that they can be gone on with.")
    parser.option("begin_until", float | None, None, "Begin no run after so many minutes, but let the others end.")
    parser.option("work", str, "runs", "Folder in which runs are made, before they become records.")
    parser.option("data_dir", str | None, None, "Where the data files are; else ADAMBO_DATA says it.")
    parser.option("show", bool, False, "Only say what is lacking.")
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        raise ConfigError("Name the plan first, as in `adambo make results/plan.yaml`.")
    own, _ = parser.read(words if words[0].startswith("-") else words[1:])
    for name in ("jobs", "minutes", "begin_until"):
        if own[name] is not None and own[name] <= 0:
            raise ConfigError(f"{name}={own[name]}: give a number above 0.")
    from adambo.experiments.workers import side_by_side
    from adambo.reproduction.making import Making
    from adambo.reproduction.plan import Plan
    from adambo.training import lock

    if own["data_dir"] is not None:  # where data are is no part of a record
        os.environ["ADAMBO_DATA"] = str(Path(own["data_dir"]).absolute())
    path, work = Path(words[0]), Path(own["work"])
    end, begin_for = (None if own[name] is None else 60 * own[name] for name in ("minutes", "begin_until"))
    command = ("adambo", "make", *words)
    making = Making(Plan.read(path), path.parent, work, err, own["only"], begin_for, command)
    if not own["show"]:
        making.refuse_missing_data()
        with lock.held(path.parent / "lock", f"the plan {path}"):
            results = side_by_side(making, own["jobs"], end)
        if results.signal is not None:
            return 128 + results.signal
    lacking = making.lacking()
    line(out, "Lacking:" if lacking else "Nothing is lacking.")
    for sentence in lacking:
        line(out, sentence)
    return 0 if own["show"] or not lacking else 1
