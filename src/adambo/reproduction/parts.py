"""The parts of the page by name, and the blocks that the records have for them."""

from __future__ import annotations

from collections.abc import Callable

from adambo.reproduction.archive import Archive
from adambo.reproduction.block import Block
from adambo.reproduction.claims_part import claims
from adambo.reproduction.effects_part import effects
from adambo.reproduction.lambda_part import sensitivity
from adambo.reproduction.monitored_part import monitored
from adambo.reproduction.runs_part import paper, tuned
from adambo.reproduction.search_part import search
from adambo.reproduction.summary_part import summary

BY_CASE: dict[str, Callable[[Archive, str], Block | None]] = {
    "paper": paper,
    "search": search,
    "tuned": tuned,
    "effects": effects,
    "monitored": monitored,
}
WHOLE: dict[str, Callable[[Archive], Block | None]] = {
    "summary": summary,
    "lambda": sensitivity,
    "claims": claims,
}
PARTS = {
    "summary": "who ended highest, and who was there first",
    "paper": "every algorithm at the paper's settings",
    "lambda": "AdamBO by λ",
    "search": "what was searched and chosen",
    "tuned": "every label at its chosen settings",
    "effects": "what published code and unstated settings change",
    "monitored": "what the monitor measured",
    "claims": "the paper's claims and our verdicts",
}


def blocks(archive: Archive, part: str) -> list[Block]:
    """The blocks of a part, or of "all", of which there are records."""
    found: list[Block | None] = []
    for name in PARTS if part == "all" else (part,):
        if name in WHOLE:
            found.append(WHOLE[name](archive))
        else:
            found += [BY_CASE[name](archive, case) for case in archive.cases(name)]
    return [block for block in found if block is not None]
