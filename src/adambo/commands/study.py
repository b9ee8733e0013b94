"""`adambo study NAME`: simulate what the theory speaks about, and write a figure, tables and all numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.errors import ConfigError
from adambo.experiments.lines import line
from adambo.studies.catalogue import STUDIES, conducted
from adambo.studies.findings import Effort

OUT = "studies"


def study(words: Sequence[str], out: Console, err: Console) -> int:
    described = "; ".join(f"{name}: {looks_at}" for name, (_, looks_at) in STUDIES.items())
    parser = Parser("adambo study NAME [options]", f"A simulation, minutes on a CPU. {described}.")
    parser.option("seeds", int | None, None, "How many; None is what the study has by default.")
    parser.option("share", float, 1.0, "Of the steps; less than 1 for a quick look.")
    parser.option("processes", int, 2, "That work side by side; the numbers do not depend on it.")
    parser.option("out", str, OUT, "Folder of the page, the figure and the numbers.")
    name, rest = ("", words) if not words or words[0].startswith("-") else (words[0], words[1:])
    own, _ = parser.read(rest)
    if not name:
        raise ConfigError(f"Name a study, as in `adambo study rate`. There are {', '.join(STUDIES)}.")
    found = conducted(name, Effort(own["seeds"], own["share"], own["processes"]))
    usual = {"seeds": None, "share": 1.0, "out": OUT}
    kept = [word for option, value in usual.items() if own[option] != value for word in _typed(option, own)]
    for path in found.write(Path(own["out"]), name, shlex.join(["adambo", "study", name, *kept])):
        line(out, str(path))
    for sentence in found.conclusions:
        line(out, sentence)
    return 0


def _typed(option: str, own: dict[str, object]) -> list[str]:
    return [f"--{option}", str(own[option])]
