"""A block of the page: what one part says about one case, and where it stands between two marks."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from adambo.errors import RunError
from adambo.report.figures import PAPER
from adambo.reproduction.fingerprint import fingerprint
from adambo.studies.findings import Sheet
from adambo.training import atomic

DPI = 110
SHOWS = "shows"  # the field of a picture with its fingerprint
SHOWN = 100  # characters of a line that differs
COLOURS = 256  # of a palette, which takes a third of the space
BLOCK = re.compile(
    r"(?P<begin><!-- adambo reproduce (?P<name>[a-z]+(?: [a-z0-9-]+)?) -->\n)(?P<content>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One part of one case.

    Attributes:
        part: Such as "paper".
        case: Such as "auc-rnn"; empty for a part that is one whole.
        sheets: Its tables.
        notes: Sentences below them.
        draw: Makes the figure, if there is one.
        title: What the figure shows, for those who cannot see it.
    """

    part: str
    case: str
    sheets: Sequence[Sheet]
    notes: Sequence[str] = ()
    draw: Callable[[], Figure] | None = None
    title: str = ""

    @property
    def name(self) -> str:
        return f"{self.part} {self.case}".strip()

    @property
    def picture(self) -> str:
        """The name of the figure's file."""
        return f"{self.name.replace(' ', '-')}.png"

    def markdown(self, folder: str) -> str:
        """All of it; `folder` is where figures are, as seen from the page."""
        parts = [sheet.markdown for sheet in self.sheets]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        parts += [f"![{self.title}]({folder}/{self.picture})"] if self.draw else []
        return "\n\n".join([*parts, f"Made by `adambo reproduce {self.part} --write`."])

    def png(self) -> bytes:
        """The figure as a small file."""
        assert self.draw is not None, f"{self.name} has no figure"
        content, small, note = io.BytesIO(), io.BytesIO(), PngInfo()
        with matplotlib.rc_context(PAPER):
            drawing = self.draw()
            note.add_text(SHOWS, fingerprint(drawing))
            drawing.savefig(content, format="png", dpi=DPI)
        with Image.open(content) as image:
            # Among many pixels of white and grey, maximum coverage keeps the hue of a curve that has few.
            method, rounds = Image.Quantize.MAXCOVERAGE, 5
            few = image.convert("RGB").quantize(COLOURS, method, kmeans=rounds, dither=Image.Dither.NONE)
            few.save(small, format="png", optimize=True, pnginfo=note)
        return small.getvalue()

    def is_shown_by(self, picture: Path) -> bool:
        """Whether the file was drawn from the same numbers."""
        assert self.draw is not None, f"{self.name} has no figure"
        try:
            with Image.open(picture) as image, matplotlib.rc_context(PAPER):
                return bool(image.info.get(SHOWS) == fingerprint(self.draw()))
        except UnidentifiedImageError:
            return False


def _where(content: str, wanted: str) -> str:
    """The first line that differs, if it can be told."""
    pairs = zip(content.splitlines(), wanted.splitlines(), strict=False)
    first = next((f"{has[:SHOWN]} … instead of {should[:SHOWN]}" for has, should in pairs if has != should), "")
    return f", first in: {first}" if first else ""


@dataclass(frozen=True)
class Page:
    """A page in Markdown, of which only the blocks are made by a program.

    <!-- adambo reproduce paper auc-rnn -->
    what `Block.markdown` gives
    <!-- end -->
    """

    path: Path

    @property
    def folder(self) -> Path:
        """Where its figures are: docs/reproduction for docs/reproduction.md."""
        return self.path.with_suffix("")

    @property
    def text(self) -> str:
        """Raises RunError if there is no page, or marks in it that do not fit."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"The page {self.path} cannot be read: {atomic.reason(error)}. Write one with a line "
                "`<!-- adambo reproduce paper auc-rnn -->` and, below it, a line `<!-- end -->` for each block."
            ) from error
        begun, ended = text.count("<!-- adambo reproduce "), text.count("<!-- end -->")
        names = [match["name"] for match in BLOCK.finditer(text)]
        if not begun == ended == len(names):
            raise RunError(
                f"The blocks of {self.path} cannot be told apart: {begun} begin with `<!-- adambo reproduce PART CASE "
                f"-->` and {ended} end with `<!-- end -->`. Give each block both, on lines of their own."
            )
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise RunError(f"{self.path} has more than one block {twice[0]!r}: keep one of them.")
        return text

    @property
    def names(self) -> list[str]:
        """Of its blocks."""
        return [match["name"] for match in BLOCK.finditer(self.text)]

    def write(self, blocks: Sequence[Block]) -> list[str]:
        """Put blocks where their marks are, and return the names of those that have none; the rest stays as it is."""
        fresh = {block.name: block.markdown(self.folder.name) for block in blocks}

        def replaced(match: re.Match[str]) -> str:
            name = match["name"]
            return match["begin"] + (f"{fresh[name]}\n" if name in fresh else match["content"]) + match["end"]

        before = self.text
        after = BLOCK.sub(replaced, before)
        if after != before:
            atomic.write_text(self.path, after)
        names = self.names
        return [name for name in fresh if name not in names]

    def stale(self, blocks: Sequence[Block], part: str | None = None) -> list[str]:
        """A sentence for each block that differs from what the records give, and for what is missing of either.

        Args:
            blocks: What the records give.
            part: Look only at the blocks of this part, or at the one of this name.
        """
        fresh, names = {block.name: block for block in blocks}, self.names
        found = []
        for match in BLOCK.finditer(self.text):
            name = match["name"]
            if part not in (None, name, name.split()[0]):
                continue
            block = fresh.get(name)
            if block is None:
                found.append(f"The block {name!r} has no records.")
            elif (wanted := f"{block.markdown(self.folder.name)}\n") != match["content"]:
                found.append(
                    f"The block {name!r} differs from what the records give{_where(match['content'], wanted)}."
                )
            elif block.draw and not (self.folder / block.picture).exists():
                found.append(f"The figure {self.folder / block.picture} of the block {name!r} is missing.")
            elif block.draw and not block.is_shown_by(self.folder / block.picture):
                found.append(f"The figure {self.folder / block.picture} shows other numbers than the records have.")
        return found + [
            f"There are records for the block {name!r}, which the page lacks: put `<!-- adambo reproduce {name} -->` "
            "and `<!-- end -->` into it."
            for name in fresh
            if name not in names and part in (None, name, name.split()[0])
        ]
