"""Searches: what is varied, what is maximised, and what is shared."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.trial import TrialState
from toy_experiment import toy, toy_score  # noqa: F401  (a fixture)

from adambo.cli import main
from adambo.experiments.configure import configure
from adambo.experiments.sweep import parsed_range
from adambo.training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep(*words: str, study: str = "toy-adambo-default") -> optuna.Study:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["sweep", "toy", *words]) == 0
    storage = (
        words[words.index("--storage") + 1] if "--storage" in words else f"sqlite:///runs/toy/sweep-{study}/study.db"
    )
    return optuna.load_study(study_name=study, storage=storage)


def test_every_trial_is_a_run_scored_by_validation_alone(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    study = sweep("--trials", "6", "--range", "settings.lr=1e-4:0.9")
    runs = RunFolder.find(["runs"])
    assert len(runs) == len(study.trials) == 6
    for run, trial in zip(runs, study.trials, strict=True):
        assert run.config["settings"]["lr"] == trial.params["settings.lr"]
        assert run.config["validation"] == 0.1
        # 4 steps were made; the test split of this experiment says the opposite
        assert trial.value == pytest.approx(toy_score(trial.params["settings.lr"]) * 4 / 5 / 2)
    best = min(study.trials, key=lambda trial: -toy_score(trial.params["settings.lr"]))
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["settings"]["lr"] == best.params["settings.lr"]
    assert configure("toy", file=found).config.settings["lr"] == best.params["settings.lr"]


def test_a_search_keeps_a_line_per_trial_without_the_test_split(toy: str, here: Path) -> None:  # noqa: F811
    study = sweep("--trials", "3", "--range", "settings.lr=1e-4:0.9")
    first, *lines = map(json.loads, (here / "runs/toy/sweep-toy-adambo-default/trials.jsonl").read_text().splitlines())
    assert first["about"]["ranges"]["settings.lr"] == [1e-4, 0.9]
    assert first["manifest"]["command"][:3] == ["adambo", "sweep", "toy"]
    assert [(each["trial"], each["values"], each["score"]) for each in lines] == [
        (trial.number, trial.params, trial.value) for trial in study.trials
    ]
    assert all(each["state"] == "finished" and each["step"] == 4 and "test" not in each for each in lines)


def test_the_first_trial_can_be_the_preset_itself(toy: str, here: Path) -> None:  # noqa: F811
    of_preset = configure("toy", "adambo").config.settings["lr"]
    study = sweep("--trials", "2", "--range", "settings.lr=1e-4:0.9", "--from-preset", "true")
    assert study.trials[0].params["settings.lr"] == of_preset
    assert study.trials[1].params["settings.lr"] != of_preset
    continued = sweep("--trials", "1", "--range", "settings.lr=1e-4:0.9", "--from-preset", "true")
    assert continued.trials[2].params["settings.lr"] != of_preset


def test_first_trials_are_spread_evenly_and_the_same_for_all(toy: str, here: Path) -> None:  # noqa: F811
    ranges = ["--range", "settings.lr=1e-4:1", "settings.lower_lr=1e-2:1"]

    def tried(algorithm: str) -> list[tuple[float, float]]:
        study = sweep(
            "--algorithm", algorithm, "--trials", "4", "--evenly", "4", *ranges, study=f"toy-{algorithm}-default"
        )
        return [(trial.params["settings.lr"], trial.params["settings.lower_lr"]) for trial in study.trials]

    points = tried("adambo")
    assert tried("slip") == points
    for place, (low, width) in enumerate(((-4, 4), (-2, 2))):  # one point in each quarter of each range
        quarters = [math.floor(4 * (math.log10(point[place]) - low) / width) for point in points]
        assert sorted(quarters) == [0, 1, 2, 3]


def test_a_search_begins_evenly_once_however_often_it_is_called(toy: str, here: Path) -> None:  # noqa: F811
    words = ["--trials", "1", "--evenly", "2", "--from-preset", "true", "--range", "settings.lr=1e-4:1"]
    for _ in range(4):
        study = sweep(*words)
    assert len(study.trials) == 4
    assert study.trials[0].params["settings.lr"] == configure("toy", "adambo").config.settings["lr"]
    assert not any(trial.state == TrialState.WAITING for trial in study.trials)


def test_the_best_are_made_again_at_full_length_and_these_decide(
    toy: str,  # noqa: F811
    here: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--range", "settings.lr=1e-4:0.9", "--epochs", "0.5", "--again", "2", "--again-epochs", "1.5"]
    sweep("--trials", "5", *words)
    found = yaml.safe_load(capsys.readouterr().out)
    _, *lines = map(json.loads, (here / "runs/toy/sweep-toy-adambo-default/trials.jsonl").read_text().splitlines())
    first, again = ([each for each in lines if bool(each.get("again")) == wanted] for wanted in (False, True))
    best = sorted(first, key=lambda each: -each["score"])[:2]
    assert [each["trial"] for each in again] == [each["trial"] for each in best]
    assert {each["epoch"] for each in first} == {0.5}
    assert {each["epoch"] for each in again} == {1.5}
    assert found["settings"]["lr"] == max(again, key=lambda each: each["score"])["values"]["settings.lr"]
    assert found["epochs"] == 1.5
    sweep("--trials", "0", *words)  # once is enough
    assert len((here / "runs/toy/sweep-toy-adambo-default/trials.jsonl").read_text().splitlines()) == 8


def test_a_preset_out_of_range_is_no_trial(toy: str, here: Path) -> None:  # noqa: F811
    study = sweep("--trials", "1", "--range", "settings.lr=1e-9:1e-8", "--from-preset", "true")
    assert 1e-9 <= study.trials[0].params["settings.lr"] <= 1e-8


def test_a_preset_that_names_no_number_is_no_trial(toy: str, here: Path) -> None:  # noqa: F811
    ranges = ("--range", "settings.lr=1e-4:0.9", "--range", "settings.inverse.step=1e-4:1e-3")
    study = sweep("--trials", "1", *ranges, "--settings.inverse.step", "auto", "--from-preset", "true")
    assert 1e-4 <= study.trials[0].params["settings.inverse.step"] <= 1e-3


def test_the_snippet_is_a_config_file(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    assert main(["sweep", toy, "--algorithm", "slip", "--trials", "2", "--width", "7", "--epochs", "0.5"]) == 0
    (here / "best.yaml").write_text(capsys.readouterr().out)
    assert main(["run", toy, "--config", "best.yaml", "--quiet"]) == 0
    run = RunFolder.open("runs/toy/slip-seed0")
    assert (run.config["algorithm"], run.config["width"], run.config["epochs"]) == ("slip", 7, 0.5)
    assert run.config["validation"] == 0.0  # all data is for training now


def test_a_search_is_repeatable_and_its_continuation_is_not_a_repetition(toy: str, here: Path) -> None:  # noqa: F811
    def tried(*words: str) -> list[float]:
        study = sweep("--trials", "2", *words)
        return [trial.params["settings.lr"] for trial in study.trials]

    first = tried("--out", "a", "--storage", f"sqlite:///{here}/a.db")
    assert tried("--out", "b", "--storage", f"sqlite:///{here}/b.db") == first
    assert tried("--out", "c", "--storage", f"sqlite:///{here}/c.db", "--sampler-seed", "1") != first
    longer = tried("--out", "a", "--storage", f"sqlite:///{here}/a.db")
    assert longer[:2] == first
    assert len(set(longer)) == 4


def test_two_machines_share_a_study(toy: str, here: Path) -> None:  # noqa: F811
    words = ["--trials", "2", "--storage", f"sqlite:///{here}/shared.db"]
    sweep(*words, "--out", "one")
    study = sweep(*words, "--out", "two", "--sampler-seed", "1")
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3]
    assert [run.path.name for run in RunFolder.find(["one", "two"])] == [f"trial-{k:05d}" for k in range(4)]


def test_a_study_about_something_else_is_not_joined(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    sweep("--trials", "1")
    for other in (["--width", "9"], ["--range", "settings.lr=1e-3:0.5"], ["--objective", "train"]):
        assert main(["sweep", toy, "--trials", "1", *other]) == 2
        assert "is about other settings or ranges" in capsys.readouterr().err
    assert len(RunFolder.find(["runs"])) == 1


def test_trials_that_diverge_are_pruned_and_the_search_goes_on(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    study = sweep("--trials", "8", "--range", "settings.lr=1e-4:1e4")
    states = {trial.params["settings.lr"] > 1: trial.state for trial in study.trials}
    assert states == {True: TrialState.PRUNED, False: TrialState.COMPLETE}
    assert "diverged. The loss is NaN" in capsys.readouterr().err
    assert all(
        (trial.state == TrialState.PRUNED) == (trial.params["settings.lr"] > 1) == (trial.value is None)
        for trial in study.trials
    )


def test_when_all_trials_diverge_it_says_so_and_ends_with_1(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    assert main(["sweep", toy, "--trials", "2", "--range", "settings.lr=2:10"]) == 1
    assert "No trial has finished." in capsys.readouterr().out


def test_ranges_may_be_choices_and_whole_numbers_stay_whole(toy: str, here: Path) -> None:  # noqa: F811
    study = sweep("--trials", "5", "--range", "width=2:40", "settings.beta=0.1,0.3", "--objective", "train")
    for trial in study.trials:
        assert type(trial.params["width"]) is int
        assert 2 <= trial.params["width"] <= 40
        assert trial.params["settings.beta"] in (0.1, 0.3)
        assert 1e-4 <= trial.params["settings.lower_lr"] <= 0.1  # without presets, the usual ranges
    assert RunFolder.find(["runs"])[0].config["validation"] == 0.0  # nothing is held out for this objective


def test_a_given_share_of_validation_stays(toy: str, here: Path) -> None:  # noqa: F811
    sweep("--trials", "1", "--validation", "0.25")
    assert RunFolder.find(["runs"])[0].config["validation"] == 0.25


def test_an_error_that_all_trials_would_have_ends_the_search(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    assert main(["sweep", toy, "--trials", "5", "--mood", "no data"]) == 2
    assert capsys.readouterr().err == "adambo: The file toy.txt is missing.\n"
    study = optuna.load_study(
        study_name="toy-adambo-default", storage="sqlite:///runs/toy/sweep-toy-adambo-default/study.db"
    )
    assert [trial.state for trial in study.trials] == [TrialState.FAIL]


@pytest.mark.parametrize(
    ("text", "range_"),
    [("settings.lr=1e-5:1", (1e-5, 1.0)), ("decay=none,cube_root", ["none", "cube_root"]), ("a=1,2.5", [1, 2.5])],
)
def test_ranges_are_written_as_low_and_high_or_as_choices(text: str, range_: Any) -> None:
    assert parsed_range(text) == (text.partition("=")[0], range_)


def test_digits_can_be_searched(here: Path) -> None:
    words = ["--tasks", "10", "--tasks-per-step", "5", "--test-tasks", "5", "--steps", "1", "--trials", "1"]
    assert main(["sweep", "digits", "--algorithm", "slip", *words]) == 0
    (run,) = RunFolder.find(["runs"])
    assert set(run.evaluations[-1]) >= {"train", "validation", "test"}
