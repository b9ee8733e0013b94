"""`adambo report RUNS...`: a page with figures and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.errors import ConfigError
from adambo.experiments.lines import line
from adambo.training.run_folder import RunFolder


def report(words: Sequence[str], out: Console, err: Console) -> int:
    parser = Parser(
        "adambo report RUNS... [--out report.html]",
        "One self-contained page about runs (folders of runs, however deep), and the same figures as PNG and SVG.",
    )
    parser.option("out", str, "report.html", "The page; figures go beside it.")
    paths = []
    for word in words:
        if word.startswith("-"):
            break
        paths.append(word)
    own, _ = parser.read(words[len(paths) :])
    if not paths:
        raise ConfigError("Name runs, or folders of runs, as in `adambo report runs --out report.html`.")
    notes: list[str] = []
    runs = RunFolder.find(paths, notes.append)
    from adambo.report.build import build

    for file in build(runs, Path(own["out"]), err, notes):
        line(out, str(file))
    return 0
