"""What a study found, as files: a page with its tables, a figure, and the numbers of every seed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from adambo.errors import SettingError
from adambo.training import atomic


@dataclass(frozen=True)
class Effort:
    """How much a study does.

    Attributes:
        seeds: How many; None is what the study has by default.
        share: Of the steps that it makes by default; its numbers in the docs are those of 1.
        processes: That work side by side.
    """

    seeds: int | None = None
    share: float = 1.0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 2:
            raise SettingError(f"seeds={self.seeds}: an interval needs 2 or more.")
        if not 0 < self.share <= 1:
            raise SettingError(f"share={self.share} is a part of the steps: give a number above 0, 1 at most.")
        if self.processes < 1:
            raise SettingError(f"processes={self.processes}: give 1 or more.")

    def steps(self, count: int, smallest: int = 1) -> int:
        """The share of `count` steps."""
        return max(smallest, round(count * self.share))


@dataclass(frozen=True)
class Sheet:
    """A table: a line above it says what its numbers are (how many seeds, which interval).

    A folded one is long, and shows its caption until somebody opens it.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False

    @property
    def markdown(self) -> str:
        for row in self.rows:
            assert len(row) == len(self.columns), (row, self.columns)
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        if self.folded:
            caption = re.sub("`(.*?)`", r"<code>\1</code>", self.caption)  # there is no Markdown in HTML
            return f"<details>\n<summary>{caption}</summary>\n\n{table}\n\n</details>"
        return f"{self.caption}\n\n{table}"


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        title: Of the page.
        setting: What was simulated, in a paragraph or two.
        sheets: The tables.
        conclusions: What follows, a sentence or a few each, with numbers; also what speaks against the theory.
        draw: Draws the figure.
        size: Of the figure, in inches.
        numbers: Of every seed, as plain data.
    """

    title: str
    setting: str
    sheets: Sequence[Sheet]
    conclusions: Sequence[str]
    draw: Callable[[Figure], None]
    size: tuple[float, float]
    numbers: Any

    def write(self, folder: Path, name: str, command: str) -> list[Path]:
        """The page, the figure and the numbers, as `name` with .md, .png and .json; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        page, figure, numbers = (folder / f"{name}.{ending}" for ending in ("md", "png", "json"))
        with rc_context({"font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False}):
            drawing = Figure(figsize=self.size, layout="constrained")
            self.draw(drawing)
            drawing.savefig(figure, format="png", dpi=140)
        atomic.write_text(numbers, json.dumps(_rounded(self.numbers), indent=None, allow_nan=False) + "\n")
        parts = [
            f"# {self.title}",
            self.setting,
            f"![{self.title}]({figure.name})",
            *(sheet.markdown for sheet in self.sheets),
            "\n".join(f"- {sentence}" for sentence in self.conclusions),
            f"Made by `{command}`; every number is in [{numbers.name}]({numbers.name}).",
        ]
        atomic.write_text(page, "\n\n".join(parts) + "\n")
        return [page, figure, numbers]


def _rounded(value: Any) -> Any:
    """Six digits, and words for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else str(value)
    return value
