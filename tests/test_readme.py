"""The code of the pages runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def run(page):
    names = {"__name__": "__readme__"}
    torch.manual_seed(0)
    for number, code in enumerate(blocks(page), start=1):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    return names


def test_the_code_of_the_readme_runs_from_top_to_bottom():
    assert len(blocks("README.md")) >= 5
    assert run("README.md")["check"].passed


CONTRACT = [name for name in dir(__import__("adambo.testing").testing.AlgorithmContract) if name.startswith("test_")]


@pytest.mark.parametrize("name", CONTRACT)
def test_the_algorithm_of_the_contributing_page_passes_the_contract(name):
    contract = run("CONTRIBUTING.md")["TestTextbook"]()
    assert getattr(contract, name)() is None


def test_the_readme_names_both_commands_and_ci_runs_one_of_them():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_has_a_table_of_costs_with_its_command_and_machine():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "COST_TABLE" not in readme
    assert "python benchmarks/step_cost.py" in readme
    assert "threads" in readme


def test_the_code_of_the_page_on_experiments_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("docs/experiments.md")["outcome"].state == "finished"
    assert (tmp_path / "runs" / "mine" / "metrics.jsonl").exists()


def test_the_code_of_the_page_on_theory_runs():
    found = run("docs/theory/README.md")
    assert found["asked"].T > 10**20
    assert found["monitor"].records()


PAGES = ["README.md", "docs/experiments.md", "docs/speed.md", "docs/theory/README.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_link_to_files_that_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []
