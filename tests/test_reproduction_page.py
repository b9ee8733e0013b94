"""The numbers of docs/reproduction.md are those that the records give, and the records those that the plan has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from adambo.reproduction.archive import Archive
from adambo.reproduction.block import BLOCK, Page
from adambo.reproduction.labels import label_of
from adambo.reproduction.making import Making
from adambo.reproduction.parts import blocks
from adambo.reproduction.plan import Plan, Runs

ROOT = Path(__file__).resolve().parents[1]


def test_every_block_of_the_page_is_what_the_records_give() -> None:
    page, results = Page(ROOT / "docs" / "reproduction.md"), ROOT / "results"
    if not page.path.exists() or not results.is_dir():
        pytest.skip("There is no docs/reproduction.md with records in results/ to compare it with.")
    assert page.names
    assert page.stale(blocks(Archive(results), "all")) == []


def test_every_score_in_a_sentence_is_in_a_table_that_its_section_has_or_links_to() -> None:
    text = Page(ROOT / "docs" / "reproduction.md").text
    sections = {anchor(part): part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    tables = {name: "".join(block[0] for block in BLOCK.finditer(part)) for name, part in sections.items()}
    for name, part in sections.items():
        tables |= dict.fromkeys(map(anchor, re.split(r"^### ", part, flags=re.MULTILINE)[1:]), tables[name])
    everywhere = tables["findings"] + tables["what-became-of-the-claims"]
    missing, found = [], 0
    for name, part in sections.items():
        if name == "make-it-again":  # has runs that are no records
            continue
        seen = everywhere + tables[name] + "".join(tables[link] for link in set(re.findall(r"\]\(#([^)]+)\)", part)))
        known = [float(number) for number in re.findall(r"\d+\.\d+", seen)]
        sentences = "".join(line for line in BLOCK.sub("", part).splitlines(True) if not line.startswith(("|", "    ")))
        for score in re.findall(r"(?<![\w.])0\.\d{3,4}(?!\d)", sentences):
            step = 10.0 ** -(len(score) - 2)
            found += 1
            if not any(abs(float(score) - number) <= 0.5 * step + 1e-9 for number in known):
                missing.append(f"{name}: {score}")
    assert missing == []
    assert found > 50


def anchor(section: str) -> str:
    """As Markdown makes one of a title."""
    return re.sub(r"[^\w -]", "", section.partition("\n")[0].lower()).strip().replace(" ", "-")


def test_every_record_is_the_run_that_the_plan_has_there() -> None:
    path = ROOT / "results" / "plan.yaml"
    if not path.exists():
        pytest.skip("There is no results/plan.yaml.")
    plan = Plan.read(path)
    Making(plan, path.parent, ROOT / "runs", Console(quiet=True)).lacking()  # refuses what is not of the plan
    planned = {f"{entry.place}/{label}" for entry in plan.entries if isinstance(entry, Runs) for label in entry.labels}
    recorded = {config.parent for config in (ROOT / "results").glob("*/*/*/config.yaml")}
    assert {f"{run.parent.relative_to(ROOT / 'results')}/{label_of(run)}" for run in recorded} <= planned
