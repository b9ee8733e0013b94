"""The scripts in examples/ run and show what they claim to show."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("rich")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parent.parent / "examples"
FEW_SHOT = EXAMPLES / "few_shot_digits.py"
PNG = b"\x89PNG\r\n\x1a\n"


def run(script: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(script), *map(str, options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=120)


def test_an_experiment_of_ones_own_runs_and_goes_on(tmp_path):
    script = EXAMPLES / "own_workload.py"
    finished = run(script, "--steps", 40, "--out", tmp_path / "run")
    assert finished.returncode == 0, finished.stderr
    assert "Outcome(state='finished'" in finished.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert (first["step"], last["step"]) == (0, 40)
    assert last["test"]["accuracy"] > 0.9
    again = run(script, "--steps", 40, "--out", tmp_path / "run")
    assert again.returncode == 0
    assert "there is nothing to do" in " ".join(again.stderr.split())


def test_the_example_ends_by_naming_its_figure(tmp_path):
    out = tmp_path / "new folder" / "figure.png"
    finished = run(FEW_SHOT, "--steps", 2, "--out", out)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert finished.stdout.splitlines()[-1] == f"figure: {out}"
    assert out.read_bytes().startswith(PNG)


@pytest.fixture(scope="module")
def few_shot(tmp_path_factory):
    """The example's main, with a figure of its own, leaving the random numbers of the other tests alone."""
    main = runpy.run_path(str(FEW_SHOT))["main"]
    main.__globals__["MEASUREMENTS"] = 1  # at the start and at the end: measuring is what takes time here

    def called(*options):
        with torch.random.fork_rng():
            return main([*map(str, options), "--out", str(tmp_path_factory.mktemp("few_shot") / "figure.png")])

    return called


def test_the_encoder_learns_to_serve_unseen_images(few_shot):
    history = few_shot("--steps", 50, "--tasks", 50)
    assert [history[0].step, history[-1].step] == [0, 50]
    assert history[0].test < 0.35  # chance is 0.20
    assert history[-1].test > history[0].test + 0.25
    assert history[-1].train > history[0].train + 0.25


def test_a_seed_fixes_all_accuracies(few_shot):
    first, again, other = (
        [(m.step, m.train, m.test) for m in few_shot("--steps", 1, "--tasks", 10, "--seed", seed)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "0"),
        ("--steps", "many"),
        ("--tasks", "9"),
        ("--seed", "-1"),
        ("--out", "figure.jpg"),
        ("--out", f"{__file__}/figure.png"),
    ],
)
def test_a_bad_option_is_explained_before_any_work(options, capsys):
    main = runpy.run_path(str(FEW_SHOT))["main"]
    with pytest.raises(SystemExit) as end:
        main(options)
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.out == ""
    assert options[0] in said.err.splitlines()[-1]
