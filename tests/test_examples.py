"""Every script in examples/ runs, says where its figure is, and shows what it claims to show."""

from __future__ import annotations

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


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda script: script.stem)
def test_every_example_ends_by_naming_its_figure(script, tmp_path):
    out = tmp_path / "new folder" / "figure.png"
    finished = run(script, "--steps", 2, "--out", out)
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
