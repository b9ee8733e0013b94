"""The numbers of docs/reproduction.md are those that the records give."""

from __future__ import annotations

from pathlib import Path

import pytest

from adambo.reproduction.archive import Archive
from adambo.reproduction.block import Page
from adambo.reproduction.parts import blocks

ROOT = Path(__file__).resolve().parents[1]


def test_every_block_of_the_page_is_what_the_records_give() -> None:
    page, results = Page(ROOT / "docs" / "reproduction.md"), ROOT / "results"
    if not page.path.exists() or not results.is_dir():
        pytest.skip("There is no docs/reproduction.md with records in results/ to compare it with.")
    assert page.names
    assert page.stale(blocks(Archive(results), "all")) == []
