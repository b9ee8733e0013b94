"""`adambo repeat RUN`: make a recorded run again, and see whether it ends where the record says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.commands.run import told
from adambo.errors import ConfigError
from adambo.experiments import runner
from adambo.experiments.lines import line
from adambo.training.run_folder import RunFolder

PLACE = ("device", "data_dir", "threads")


def repeat(words: Sequence[str], out: Console, err: Console) -> int:
    parser = Parser(
        "adambo repeat RUN [options]",
        "Make a run again with the values and the seed of its config.yaml, and compare its final and best test score "
        "with the record, by the spread of the other seeds of the same label beside it. Exit code 1 if it is further "
        "from the record than 2 standard deviations of those, and not between the smallest and the largest of them.",
    )
    parser.option("out", str, "again", "Folder of repetitions; this one becomes <out>/<folder of the run>/<run>.")
    parser.option("quiet", bool, False, "Show no progress.")
    parser.option("device", str | None, None, "Where to compute, if not as recorded.")
    parser.option("data_dir", str | None, None, "Where the data files are here.")
    parser.option("threads", int | None, None, "Threads on the CPU, if not as recorded.")
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        raise ConfigError("Name the folder of a run first, as in `adambo repeat results/paper/auc-rnn/slip-seed0`.")
    own, _ = parser.read(words if words[0].startswith("-") else words[1:])
    from adambo.report.records import Record
    from adambo.reproduction.repetition import Recorded, compared

    recorded = Recorded.open(Path(words[0]))
    configured = recorded.configured({name: own[name] for name in PLACE if own[name] is not None})
    runner.refuse_missing_data(configured)
    for sentence in recorded.changes(configured):
        line(err, sentence)
    folder = recorded.folder(Path(own["out"]))
    outcome = runner.run(configured, folder, err, quiet=own["quiet"], command=["adambo", "repeat", *words])
    code = told(folder, outcome, out)
    if outcome.state not in ("finished", "diverged"):
        line(out, f"It was not compared: `adambo repeat` begins anew, `adambo resume {folder}` only ends this one.")
        return code
    found = compared(recorded, Record.read(RunFolder.open(folder)))
    for comparison in found:
        line(out, str(comparison))
    same_end = outcome.state == recorded.record.state
    if not same_end:
        line(out, f"The recorded run {recorded.record.state}, this one {outcome.state}.")
    return 1 if not same_end or any(comparison.within is False for comparison in found) else 0
