"""`adambo suggest`: a table with reasons, and a command that runs with what it found."""

from __future__ import annotations

import shlex

import pytest

from adambo.cli import main
from adambo.commands.suggest import suggested
from adambo.experiments.configure import configure

TINY = ["--preset", "tiny", "--epochs", "10"]


def output(capsys, *words):
    assert main(["suggest", *words]) == 0
    return capsys.readouterr().out


def test_the_last_line_is_a_run_with_the_settings_found(capsys, tmp_path):
    text = output(capsys, "cancer-auc", *TINY, "--seed", "3")
    assert all(name in text for name in ("lr", "lower_lr", "step", "terms", "lower_steps", "l_g1"))
    words = shlex.split(text.strip().splitlines()[-1])
    assert words[:3] == ["adambo", "run", "cancer-auc"]
    assert "--seed=3" in words
    assert "--preset=tiny" in words
    assert main([*words[1:], "--out", str(tmp_path), "--quiet"]) == 0
    config = (tmp_path / "cancer-auc" / "adambo-seed3" / "config.yaml").read_text()
    asked = dict(word.removeprefix("--settings.").split("=") for word in words if word.startswith("--settings."))
    assert f"lr: {float(asked['lr'])}" in config
    assert f"terms: {asked['inverse.terms']}" in config


def test_it_can_judge_by_the_upper_loss(capsys):
    assert "the upper loss" in output(capsys, "cancer-auc", *TINY, "--judge", "loss")
    assert "the judge's number" in output(capsys, "cancer-auc", *TINY)


@pytest.mark.parametrize("experiment", ["digits", "digits-cleaning"])
def test_it_measures_the_embedded_experiments(experiment):
    configured = configure(experiment, preset="tiny")
    found = suggested(configured)
    assert found.lr > 0
    assert found.losses[found.lr] < found.losses[0.0]
    assert found == suggested(configured)


def test_what_it_cannot_do_is_one_sentence(capsys):
    assert main(["suggest", "cancer-auc", "--algorithm", "slip"]) == 2
    assert "not for slip" in capsys.readouterr().err
    assert main(["suggest", "cancer-auc", *TINY, "--most", "0"]) == 2
    assert "most=0" in capsys.readouterr().err
