"""The numbers of docs/reproduction.md are those that the records give, and the records those that the plan has."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from adambo.reproduction.archive import Archive
from adambo.reproduction.block import Page
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


def test_every_record_is_the_run_that_the_plan_has_there() -> None:
    path = ROOT / "results" / "plan.yaml"
    if not path.exists():
        pytest.skip("There is no results/plan.yaml.")
    plan = Plan.read(path)
    Making(plan, path.parent, ROOT / "runs", Console(quiet=True)).lacking()  # refuses what is not of the plan
    planned = {f"{entry.place}/{label}" for entry in plan.entries if isinstance(entry, Runs) for label in entry.labels}
    recorded = {config.parent for config in (ROOT / "results").glob("*/*/*/config.yaml")}
    assert {f"{run.parent.relative_to(ROOT / 'results')}/{label_of(run)}" for run in recorded} <= planned
