"""A run with a monitor is the same run, and keeps what the monitor measured; reports show it."""

import io
import json
import re

import pytest
from rich.console import Console
from run_records import straight, write_run

from adambo.errors import ConfigError, RunError
from adambo.experiments.configure import configure
from adambo.experiments.runner import resume, run
from adambo.report.build import build
from adambo.report.curves import grouped
from adambo.report.records import Record
from adambo.training import checkpoint
from adambo.training.run_folder import RunFolder

STEPS = 9


def made(folder, monitor_every=2, algorithm="adambo", **overrides):
    said = io.StringIO()
    values = {"steps": STEPS, "epochs": None, "evaluate_every": 0.2, "monitor_every": monitor_every} | overrides
    values |= {"levels": "halves"}  # with which no gradient surges, so that nothing is measured between times
    outcome = run(configure("cancer-auc", algorithm, "tiny", values), folder, Console(file=said, width=500), quiet=True)
    return RunFolder.open(folder), outcome, said.getvalue()


def without_seconds(evaluations):
    return [{key: value for key, value in one.items() if key != "seconds"} for one in evaluations]


def test_the_same_run_with_and_without_a_monitor(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watched, outcome, _ = made(tmp_path / "watched")
    alone, _, _ = made(tmp_path / "alone", None)
    assert outcome.state == "finished"
    assert without_seconds(watched.evaluations) == without_seconds(alone.evaluations)  # oracle calls among it
    assert watched.fingerprint == alone.fingerprint
    assert alone.measurements == []
    assert not (alone.path / "monitor.jsonl").exists()
    assert [one["step"] for one in watched.measurements] == [0, 1, 2, 4, 6, 8]
    assert all(one["lower_error"] is not None and one["warnings"] == [] for one in watched.measurements)
    assert all(one["x_update"] > 0 for one in watched.measurements[1:])
    events = EventAccumulator(str(watched.path / "events"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("monitor/lower_error")]
    assert shown == [(one["step"], pytest.approx(one["lower_error"])) for one in watched.measurements]


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_a_resumed_run_has_the_measurements_of_an_uninterrupted_one(tmp_path, stop, monkeypatch):
    from adambo.experiments.solver_workload import SolverWorkload

    whole, _, _ = made(tmp_path / "whole", checkpoint_every=0.3)
    step = SolverWorkload.step

    def killed(self, number):
        if number == stop:
            raise KeyboardInterrupt
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(SolverWorkload, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "part", checkpoint_every=0.3)
    with open(tmp_path / "part" / "monitor.jsonl", "a") as file:  # what a process leaves that is killed as it writes
        file.write('{"step": 6, "lower_error": 1e9, "warnings": []}\n{"step": 8, "lower_er')
    resume(tmp_path / "part", Console(file=io.StringIO()), quiet=True)
    part = RunFolder.open(tmp_path / "part")
    assert part.measurements == whole.measurements
    assert (part.path / "monitor.jsonl").read_text().count("\n") == 6
    states = [checkpoint.newest(one.checkpoints, print)[1]["workload"]["monitor"] for one in (whole, part)]
    assert states[0]["records"] == states[1]["records"]
    assert states[0]["ledger"] == states[1]["ledger"]


def test_methods_without_a_lower_level_have_no_measurements(tmp_path):
    folder, outcome, _ = made(tmp_path / "adam", algorithm="adam")
    assert outcome.state == "finished"
    assert folder.measurements == []


def test_a_warning_is_said_and_kept(tmp_path):
    folder, _, said = made(tmp_path / "wild", 1, algorithm="soba", **{"settings.z_lr": 50.0, "settings.lr": 1e-3})
    given = [warning for one in folder.measurements for warning in one["warnings"]]
    assert [warning["name"] for warning in given] == ["NeumannStepTooLarge"]
    assert given[0]["message"] in said
    record = Record.read(folder)
    assert record.warnings[0].startswith(f"Step {given[0]['step']}, NeumannStepTooLarge: The step of z is too large")


def test_a_damaged_line_is_named_and_a_wrong_setting_refused(tmp_path):
    folder = write_run(tmp_path / "run", evaluations=straight([0.5]))
    for text in ("{}\n", "not JSON\n", '{"step": 1, "warnings": 3}\n'):
        (folder.path / "monitor.jsonl").write_text(text)
        with pytest.raises(RunError, match=r"monitor\.jsonl, line 1"):
            _ = folder.measurements
    with pytest.raises(ConfigError, match="monitor_every=0"):
        configure("cancer-auc", "adambo", "tiny", {"monitor_every": 0})


def test_a_report_shows_the_curves_and_the_warnings(tmp_path):
    runs = [write_run(tmp_path / f"run{seed}", seed=seed, evaluations=straight([0.5, 0.6])) for seed in (0, 1)]
    for seed, folder in enumerate(runs):
        warned = [{"name": "LowerLevelDoesNotTrack", "step": 10, "message": "It <b>lags</b>."}] if seed else []
        for step in (0, 10):
            line = {"step": step, "lower_error": 1.0 + seed + step, "cosine": None, "warnings": warned if step else []}
            folder.record_measurement(line)
    (group,) = grouped([Record.read(folder) for folder in runs])
    assert list(group.monitored) == ["lower_error"]
    band = group.curves[0].measured("lower_error")
    assert (band.x, band.mean, band.seeds) == ([0.0, 10.0], [1.5, 11.5], [2, 2])
    sentence = "Seed 1. Step 10, LowerLevelDoesNotTrack: It <b>lags</b>."
    assert group.curves[0].warnings == [sentence]
    assert any(sentence in note for note in group.notes())

    (page, *_) = build(runs, tmp_path / "report.html", Console(file=io.StringIO()))
    text = page.read_text(encoding="utf-8")
    assert "<b>lags" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])["groups"][0]
    assert list(data["monitored"]) == ["lower_error"]
    assert data["curves"][0]["measured"]["lower_error"]["mean"] == [1.5, 11.5]
    assert data["curves"][0]["warnings"] == [sentence]
