"""`adambo reproduce PART`: the figures and tables of the page on the paper's reproduction, from run records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from rich.console import Console

from adambo.commands.parser import Parser
from adambo.errors import ConfigError, RunError
from adambo.experiments.lines import line
from adambo.experiments.values import nearest
from adambo.training import atomic


def reproduce(words: Sequence[str], out: Console, err: Console) -> int:
    from adambo.reproduction.archive import CASES, PLACES, Archive
    from adambo.reproduction.block import Page
    from adambo.reproduction.parts import BY_CASE, PARTS, blocks

    described = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser = Parser(
        "adambo reproduce PART [CASE] [options]",
        "Figures and tables from run records. The tables are printed; --write puts them and the figures into the page. "
        f"Parts are {described}; all: every part of which "
        "there are records. With a case, such as auc-rnn, only its block.",
    )
    parser.option("results", str, "results", "Folder of the records.")
    parser.option("page", str, "docs/reproduction.md", "The page; figures go into the folder of its name beside it.")
    parser.option(
        "write", bool, False, "Replace the page's blocks and figures; what is outside of them stays as it is."
    )
    parser.option(
        "check",
        bool,
        False,
        "Only compare the blocks of the page with the records; exit code 1 if one differs or the page lacks one.",
    )
    named = list(takewhile(lambda word: not word.startswith("-"), words))[:2]
    part, case = (*named, "", "")[:2]
    own, _ = parser.read(words[len(named) :])
    if not part:
        raise ConfigError(f"Name a part, as in `adambo reproduce paper`: {', '.join(PARTS)}, or all.")
    if part not in (*PARTS, "all"):
        raise ConfigError(f"There is no part {part!r}. {nearest(part, [*PARTS, 'all'])}")
    if part == "all" and case:
        raise ConfigError("`all` takes no case. One case of one part is `adambo reproduce paper auc-rnn`, say.")
    cases = PLACES.get(part, CASES) if part in BY_CASE else ()
    if case and case not in cases:
        known = nearest(case, list(cases)) if cases else f"These have cases: {', '.join(BY_CASE)}."
        raise ConfigError(f"There is no case {case!r} of the part {part}. {known}")
    if own["write"] and own["check"]:
        raise ConfigError("--check only looks at the page, --write changes it: give one of them.")
    if not Path(own["results"]).is_dir():
        raise RunError(f"There is no folder {own['results']}: name the one with the records, --results FOLDER.")
    page = Page(Path(own["page"]))
    found = [block for block in blocks(Archive(Path(own["results"])), part) if case in ("", block.case)]
    if own["check"]:
        stale = page.stale(found, None if part == "all" else f"{part} {case}".strip())
        for sentence in stale:
            line(err, f"{page.path}: {sentence}")
        if stale:
            line(
                err,
                "If the records are as they should be (`git status` shows what has changed in them), "
                f"`adambo reproduce {part} --write` renews every block that has marks and records.",
            )
        else:
            line(out, f"{page.path}: {len(found)} block{'s say' if len(found) > 1 else ' says'} what the records say.")
        return 1 if stale else 0
    if not found:
        there = Archive(Path(own["results"])).cases(part) if case else []
        raise RunError(
            f"{own['results']} has no records for the part {f'{part} {case}'.strip()}."
            + (f" It has them for {', '.join(there)}." if there else "")
        )
    lacking = page.write(found) if own["write"] else []  # refuses a damaged page before anything is printed
    for block in found:
        line(out, f"<!-- adambo reproduce {block.name} -->\n{block.markdown(page.folder.name)}\n<!-- end -->\n")
    if not own["write"]:
        return 0
    page.folder.mkdir(exist_ok=True)
    for block in found:
        if block.draw is not None and block.name not in lacking:
            atomic.write_bytes(page.folder / block.picture, block.png())
            line(err, str(page.folder / block.picture))
    for name in lacking:
        line(
            err,
            f"{page.path} has no block {name!r}: put `<!-- adambo reproduce {name} -->` and `<!-- end -->` into it.",
        )
    return 0
