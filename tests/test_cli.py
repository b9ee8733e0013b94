"""The commands, through `main` and as processes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields as config_fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from rich.table import Table
from toy_experiment import toy  # noqa: F401  (a fixture)

from adambo.cli import COMMANDS, main
from adambo.commands.compare import print_whole
from adambo.experiments.catalogue import EXPERIMENTS, Experiment
from adambo.experiments.settings import ALGORITHMS, fields
from adambo.experiments.sweep import masked
from adambo.training.run_folder import RunFolder
from adambo.version import __version__

SMALL = ["--tasks", "10", "--tasks-per-step", "5", "--test-tasks", "5"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands write below the current folder, and no data folder is known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMBO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_without_a_command_all_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    text = said(capsys)
    assert all(f"adambo {name}" in text for name in COMMANDS)
    assert main(["--version"]) == 0
    assert said(capsys).strip() == __version__


def test_list_has_a_line_for_every_experiment_and_algorithm(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert main(["list"]) == 0
    lines = said(capsys).splitlines()
    for name in EXPERIMENTS:
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        embedded = name in ("digits", "digits-cleaning", "cancer-auc")
        assert ("[no download]" in line) == embedded
        assert ("ADAMBO_DATA" in line) == (not embedded)
    for name in ALGORITHMS:
        assert len([line for line in lines if line.startswith(f"  {name} ")]) == 1
    (here / "bert-base-uncased-vocab.txt").write_text("[PAD]\n")
    assert main(["list", "--data-dir", str(here)]) == 0
    (line,) = [line for line in said(capsys).splitlines() if line.startswith("  bert-trec ")]
    assert line.endswith(f"[needs trec, wordpiece: trec missing in {here}]")


@pytest.mark.parametrize("experiment", [name for name, each in EXPERIMENTS.items() if isinstance(each, Experiment)])
def test_help_explains_every_field_of_the_experiment(experiment: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", experiment, "--help"]) == 0
    text = said(capsys)
    chosen = EXPERIMENTS[experiment]
    assert isinstance(chosen, Experiment)
    options = re.split(r"\n  (?=--|-h)", text)
    described = {part.split()[0][2:]: " ".join(part.split()) for part in options if part.startswith("--")}
    for field in config_fields(chosen.config):
        if field.name != "settings":
            sentence = described[field.name.replace("_", "-")].partition("(type: ")[0]
            assert len(sentence.split()) > 3, field.name
    assert "%%" not in text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_help_explains_every_setting_of_the_chosen_algorithm(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "digits", "--algorithm", algorithm, "--help"]) == 0
    text = said(capsys)
    for name in fields(algorithm):
        option = "inverse.method" if name == "inverse" else name.replace("_", "-")
        assert f"--settings.{option} " in text
    assert f"{ALGORITHMS[algorithm].__name__}: " in text  # its formulas


@pytest.mark.parametrize("words", [[name, "--help"] for name in COMMANDS] + [["run", "lambda-sensitivity", "--help"]])
def test_every_command_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert said(capsys).startswith("usage: adambo")


def test_help_shows_the_value_of_the_preset_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "bert-trec", "--algorithm", "slip", "--help"]) == 0
    text = " ".join(said(capsys).split())
    assert re.search(r"--feed-forward FEED_FORWARD [^-]*\[authors' code\] \(type: int, default: 2048\)", text)
    assert re.search(r"--epochs EPOCHS [^-]*\[paper\] \(type: float \| null, default: 20", text)


def test_a_run_is_a_folder_and_a_second_one_gets_its_own(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    words = ["run", "digits", "--algorithm", "slip", *SMALL, "--steps", "2", "--seed", "4", "--quiet"]
    assert main(words) == 0
    assert main(words) == 0
    first, second = RunFolder.find([here / "runs" / "digits"])
    assert [run.path.name for run in (first, second)] == ["slip-seed4", "slip-seed4-2"]
    assert first.status["state"] == "finished"
    assert first.config["tasks"] == 10
    assert first.sources["tasks"] == "given"
    assert first.manifest["command"] == ["adambo", *words]
    assert [line["test"] for line in first.evaluations] == [line["test"] for line in second.evaluations]
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].startswith("runs/digits/slip-seed4: finished at step 2.")
    assert captured.err == "runs/digits/slip-seed4 is there already; this run becomes runs/digits/slip-seed4-2.\n"


def test_progress_goes_to_stderr_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", *SMALL, "--steps", "2"]) == 0
    captured = capsys.readouterr()
    assert "step 2/2" in captured.err
    assert "accuracy train" in captured.err
    assert len(captured.out.splitlines()) == 1


def test_what_is_shown_of_a_config_makes_the_same_run(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    words = ["run", "digits", *SMALL, "--settings.inverse.samples", "chained", "--settings.lr=1e-2", "--epochs", "null"]
    assert main([*words, "--steps", "3", "--show-config"]) == 0
    text = said(capsys)
    assert "lr: 0.01" in text
    assert "# given" in text
    (here / "mine.yaml").write_text(text)
    assert main(["run", "digits", "--config", "mine.yaml", "--steps", "1", "--quiet"]) == 0
    run = RunFolder.open(here / "runs" / "digits" / "adambo-seed0")
    assert run.config["settings"]["inverse"]["samples"] == "chained"
    assert (run.config["epochs"], run.config["steps"]) == (None, 1)
    assert (run.sources["epochs"], run.sources["steps"]) == ("config file", "given")


def test_flags_need_no_value_and_take_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in ((["--compile"], "true"), (["--compile", "false"], "false"), (["--compile=true"], "true")):
        assert main(["run", "digits", *words, "--show-config"]) == 0
        assert re.search(rf"^compile: {expected} ", said(capsys), re.MULTILINE)


def test_a_run_that_diverges_ends_with_1_and_its_reason(
    toy: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    here: Path,
) -> None:
    assert main(["run", toy, "--settings.lr", "3", "--quiet"]) == 1
    assert "diverged at step 0. The loss is NaN" in said(capsys)
    assert RunFolder.open(here / "runs" / "toy" / "adambo-seed0").status["state"] == "diverged"


def test_resuming_a_finished_run_changes_nothing(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(["run", toy, "--quiet"]) == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert main(["resume", "runs/toy/adambo-seed0"]) == 0
    assert "there is nothing to do" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before


def test_a_study_makes_all_its_runs(
    toy: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from adambo.experiments.catalogue import Study

    runs = tuple((toy, "adambo", {"settings.eps": value}) for value in (1e-8, 1e-4))
    monkeypatch.setitem(EXPERIMENTS, "eps-study", Study("eps-study", "two of them", runs))
    assert main(["run", "eps-study", "--epochs", "0.5", "--jobs", "1"]) == 0
    made = RunFolder.find([here / "runs"])
    assert sorted(run.config["settings"]["eps"] for run in made) == [1e-8, 1e-4]
    assert {run.path.name for run in made} == {"adambo-eps1e-08-seed0", "adambo-eps0.0001-seed0"}
    assert all(run.config["epochs"] == 0.5 for run in made)
    assert "toy adambo eps=1e-08" in said(capsys)


def test_a_report_is_made_of_runs(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert main(["run", "digits", *SMALL, "--steps", "2", "--quiet"]) == 0
    assert main(["report", "runs", "--out", "page.html"]) == 0
    assert "page.html" in said(capsys)
    assert (here / "page.html").stat().st_size > 1000


def test_data_is_checked_and_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "train_5500.label").write_text("DESC:manner How ?\nHUM:ind Who ?\nLOC:city Where ?\n")
    (here / "TREC_10.label").write_text("NUM:dist How far ?\nENTY:animal What ?\n")
    assert main(["data", "check", "trec", "--data-dir", "."]) == 0
    assert "train_5500.label: 3 questions" in said(capsys)
    assert main(["data", "check", "--data-dir", "."]) == 0
    text = said(capsys)
    assert "trec: TREC_10.label: 2 questions" in text
    assert "snli: not there." in text


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "adambo.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(holds: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def test_a_signal_leaves_a_run_that_can_be_resumed(here: Path) -> None:
    words = ["run", "digits", *SMALL, "--epochs", "2000", "--seconds", "600", "--quiet"]
    process = start(*words)
    folder = here / "runs" / "digits" / "adambo-seed0"
    wait_for(lambda: len(evaluations(folder)) > 1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err == ""
    assert f"interrupted at step {RunFolder.open(folder).status['step']}. SIGTERM came" in out
    header = yaml.safe_load((folder / "config.yaml").read_text())
    made = RunFolder.open(folder).status["step"]
    header["config"] |= {"epochs": None, "steps": made + 2}  # an end that is near
    (folder / "config.yaml").write_text(yaml.safe_dump(header))
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert RunFolder.open(folder).status["step"] == made + 2


def test_a_table_is_printed_whole_where_there_is_no_terminal() -> None:
    label, file = "auc-transformer adambo eps=1e-08, " * 5 + "end", io.StringIO()
    shown = Table("run", "test")
    shown.add_row(label, "0.8000 ± 0.1000")
    print_whole(Console(file=file, width=40), shown)
    assert f"{label} │ 0.8000 ± 0.1000" in file.getvalue()


def test_a_terminal_that_knows_no_greek_gets_escapes() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "adambo.cli", "list"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert ended.returncode == 0
    assert "\\u03bb" in ended.stdout
    assert ended.stderr == ""


def test_passwords_of_a_storage_are_not_recorded() -> None:
    assert masked("--storage=postgresql://me:secret@host/db") == "--storage=postgresql://***@host/db"
    assert masked("sqlite:///sweep.db") == "sqlite:///sweep.db"
    assert masked("--settings.lr=0.1") == "--settings.lr=0.1"
