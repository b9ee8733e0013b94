"""Many runs: failures stop nothing else, what is done stays done, signals stop all cleanly."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from rich.console import Console
from toy_experiment import toy, toy_score  # noqa: F401  (a fixture)

from adambo.cli import main
from adambo.errors import DataError, RunError
from adambo.experiments.catalogue import EXPERIMENTS, Study
from adambo.experiments.compare import jobs_of_algorithms, jobs_of_study, run_all
from adambo.experiments.configure import configure
from adambo.experiments.summary import failures, settled, table
from adambo.experiments.workers import Job
from adambo.training.run_folder import RunFolder

SMALL = ["--tasks", "10", "--tasks-per-step", "5", "--test-tasks", "5"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMBO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def job(experiment: str, algorithm: str, out: Path, **overrides: Any) -> Job:
    configured = configure(experiment, algorithm, overrides={k.replace("__", "."): v for k, v in overrides.items()})
    return jobs_of_algorithms([configured], 1, out)[0]


def without_seconds(evaluation: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in evaluation.items() if key != "seconds"}


def shown(content: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(content)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_what_fails_stops_nothing_else_and_is_named(toy: str, here: Path) -> None:  # noqa: F811
    jobs = [
        job(toy, "slip", here, mood="a fault"),
        job(toy, "saba", here, settings__lr=3.0),
        job(toy, "adam", here, mood="no data"),
        job(toy, "adambo", here),
    ]
    console = Console(file=io.StringIO(), width=120)
    results = run_all(jobs, console, workers=1)
    assert [result.state for result in results.each] == ["failed", "diverged", "failed", "finished"]
    assert results.signal is None
    assert failures(results.each) == [
        "slip seed 0: failed. ZeroDivisionError: a fault of ours",
        "saba seed 0: diverged. The loss is NaN: lower the learning rates.",
        "adam seed 0: failed. The file toy.txt is missing.",
    ]
    rows = shown(table(results.each)).splitlines()
    assert rows[1].split() == ["slip", "0", "of", "1", "–", "–", "–", "–"]
    assert rows[4].split()[:2] == ["adambo", "1"]


def test_the_table_has_mean_and_deviation_over_seeds(toy: str, here: Path) -> None:  # noqa: F811
    jobs = [
        Job("adambo", configure(toy, "adambo", overrides={"seed": k, "settings.lr": lr}), here / str(k))
        for k, lr in enumerate((0.01, 0.1, 0.001))
    ]
    row = shown(table(run_all(jobs, Console(quiet=True), 1).each)).splitlines()[1]
    scores = [toy_score(lr) * 4 / 5 for lr in (0.01, 0.1, 0.001)]  # after 4 steps
    assert f"{mean(scores):.4f} ± {stdev(scores):.4f}" in row
    assert f"{1 - mean(scores):.4f} ± {stdev(scores):.4f}" in row
    assert "8 ± 0" in row  # oracle calls


def test_a_second_time_only_what_is_missing_is_run(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    words = ["compare", toy, "--algorithms", "adambo,slip", "--jobs", "1"]
    assert main([*words, "--seeds", "2"]) == 0
    first = {run.path.name: run.path.stat().st_mtime_ns for run in RunFolder.find(["runs"])}
    assert set(first) == {"adambo-seed0", "adambo-seed1", "slip-seed0", "slip-seed1"}
    assert main([*words, "--seeds", "3"]) == 0
    second = {run.path.name: run.path.stat().st_mtime_ns for run in RunFolder.find(["runs"])}
    assert set(second) - set(first) == {"adambo-seed2", "slip-seed2"}
    assert {name: second[name] for name in first} == first
    text = capsys.readouterr()
    assert text.out.count("adambo") == text.out.count("slip") == 2
    assert text.err.count("seed 0") == 2  # in the first comparison alone


def test_algorithms_that_are_named_one_by_one_are_all_run(toy: str, here: Path) -> None:  # noqa: F811
    assert main(["compare", toy, "--algorithms", "adambo", "--algorithms=slip", "--jobs", "1"]) == 0
    assert {run.path.name for run in RunFolder.find(["runs"])} == {"adambo-seed0", "slip-seed0"}


def test_runs_with_other_settings_are_not_mixed_in(toy: str, here: Path) -> None:  # noqa: F811
    run_all([job(toy, "slip", here, width=3)], Console(quiet=True), 1)
    with pytest.raises(RunError, match=r"holds a run with other settings \(width: 3 there, 4 now\)"):
        run_all([job(toy, "adambo", here, width=4), job(toy, "slip", here, width=4)], Console(quiet=True), 1)
    assert not (here / "toy" / "adambo-seed0").exists()
    assert (
        run_all([job(toy, "slip", here, device="cpu", threads=1)], Console(quiet=True), 1).each[0].state == "finished"
    )


def test_a_run_that_was_killed_is_gone_on_with(toy: str, here: Path) -> None:  # noqa: F811
    chosen = job(toy, "slip", here)
    run_all([chosen], Console(quiet=True), 1)
    made = RunFolder.open(chosen.folder)
    whole = [without_seconds(each) for each in made.evaluations]
    (newest,) = made.checkpoints.glob("step-00000004-*")  # as if it had been killed before its end
    newest.unlink()
    made.set_status("running", "A process works on it.", 0)
    run_all([chosen], Console(quiet=True), 1)
    assert [without_seconds(each) for each in made.evaluations] == whole
    assert [each["step"] for each in whole] == [0, 4]
    assert made.status["state"] == "finished"


def test_missing_data_is_said_once_and_before_anything_is_begun(here: Path) -> None:
    jobs = [job("auc-rnn", name, here / "runs", data_dir=str(here)) for name in ("slip", "adambo")]
    with pytest.raises(DataError, match="No "):
        run_all(jobs, Console(quiet=True), 2)
    assert not (here / "runs").exists()


def test_all_means_the_algorithms_of_the_experiment(toy: str, here: Path) -> None:  # noqa: F811
    assert main(["compare", toy, "--jobs", "1", "--steps", "1"]) == 0
    assert {run.config["algorithm"] for run in RunFolder.find(["runs"])} == {"adambo", "slip", "saba"}


def test_the_study_of_lambda_has_three_experiments_and_the_papers_momenta(here: Path) -> None:
    study = EXPERIMENTS["lambda-sensitivity"]
    assert isinstance(study, Study)
    jobs = jobs_of_study(study, 2, here, "tiny", {"epochs": 2})
    assert len({each.folder for each in jobs}) == len(jobs) == 48
    assert {each.configured.config.settings["beta"] for each in jobs} == {0.1}
    by_experiment: dict[str, set[float]] = {}
    for each in jobs:
        assert each.configured.config.epochs == 2
        by_experiment.setdefault(each.configured.experiment, set()).add(each.configured.config.settings["eps"])
    assert set(by_experiment) == {"auc-rnn", "auc-transformer", "bert-trec"}
    for values in by_experiment.values():
        assert sorted(values) == pytest.approx([1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])


def wait_for(holds: Any, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def test_processes_side_by_side_survive_a_kill_and_a_signal_and_are_gone_on_with(here: Path, capsys: Any) -> None:
    words = ["compare", "digits", "--algorithms", "slip", "adambo", *SMALL, "--epochs", "null", "--seconds", "2"]
    words += ["--evaluate-every", "5"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "adambo.cli", *words, "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    slip, adambo = (here / "runs" / "digits" / f"{name}-seed0" for name in ("slip", "adambo"))
    wait_for(
        lambda: all((run / "checkpoints").exists() and any((run / "checkpoints").iterdir()) for run in (slip, adambo))
    )
    os.kill(int((slip / "lock").read_text()), signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert RunFolder.open(adambo).status["state"] == "interrupted"
    assert RunFolder.open(slip).status["state"] == "running"  # it could not say anything any more
    assert "adambo seed 0: interrupted. SIGTERM came; the run can be resumed." in out
    assert main([*words, "--jobs", "1"]) == 0
    assert {run.status["state"] for run in RunFolder.find(["runs"])} == {"finished"}
    assert {run.manifest["hardware"]["threads"] for run in RunFolder.find(["runs"])} == {1}
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["slip", "1"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is empty or gone"),
        ("", "is empty or gone"),
        ('{"step": 0, "test": 3}\n', "line 1 is damaged"),
        ('{"step": 0, "seconds": "x"}\n', "line 1 is damaged"),
    ],
)
def test_a_finished_run_without_a_record_has_failed_and_the_rest_is_shown(
    toy: str,  # noqa: F811
    here: Path,
    content: str | None,
    reason: str,
) -> None:
    jobs = [job(toy, "slip", here), job(toy, "adambo", here)]
    run_all(jobs, Console(quiet=True), 1)
    file = jobs[0].folder / "metrics.jsonl"
    file.unlink()
    if content is not None:
        file.write_text(content)
    results = run_all(jobs, Console(quiet=True), 1).each
    assert [result.state for result in settled(results)] == ["failed", "finished"]
    (sentence,) = failures(results)
    assert sentence.startswith("slip seed 0: failed. ")
    assert "metrics.jsonl" in sentence
    assert reason in sentence
    rows = shown(table(results)).splitlines()
    assert rows[1].split() == ["slip", "0", "of", "1", "–", "–", "–", "–"]
    assert rows[2].split()[:2] == ["adambo", "1"]


def test_a_finished_run_may_lack_costs(toy: str, here: Path) -> None:  # noqa: F811
    jobs = [job(toy, "slip", here)]
    run_all(jobs, Console(quiet=True), 1)
    (jobs[0].folder / "metrics.jsonl").write_text('{"step": 0, "test": {"accuracy": 0.25}}\n')
    rows = shown(table(run_all(jobs, Console(quiet=True), 1).each)).splitlines()
    assert rows[1].split() == ["slip", "1", "–", "0.2500", "–", "–"]
