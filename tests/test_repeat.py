"""A recorded run made again: the same numbers, what is told of other versions and data, and how it is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_experiment import toy  # noqa: F401  (a fixture)

from adambo.cli import main
from adambo.reproduction.repetition import Comparison
from adambo.reproduction.spread import Spread
from adambo.training.run_folder import RunFolder

SMALL = ["--preset", "tiny", "--tasks", "10", "--tasks-per-step", "5", "--test-tasks", "5", "--epochs", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMBO_DATA", raising=False)
    return tmp_path


def recorded(experiment: str, *options: str, seeds: int = 3) -> Path:
    """Runs of SLIP as `results/` holds them, without checkpoints and events; the first of them."""
    for seed in range(seeds):
        words = ["run", experiment, "--algorithm", "slip", "--seed", str(seed), "--out", "made", "--quiet", *options]
        assert main(words) == 0
        folder = Path("results/paper/case") / f"slip-seed{seed}"
        folder.mkdir(parents=True)
        for file in ("config.yaml", "manifest.json", "metrics.jsonl", "status.json"):
            (folder / file).write_bytes((Path("made") / experiment / f"slip-seed{seed}" / file).read_bytes())
    return Path("results/paper/case/slip-seed0")


def change(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {key: {**content.get(key, {}), **value} for key, value in values.items()}))


def set_scores(folder: Path, score: float) -> None:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["test"]["accuracy"] = score
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_made_again_has_the_same_scores(capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded("digits", *SMALL)
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out.count(": within.") == 2
    assert "final test accuracy: then" in said.out
    assert "best test accuracy: then" in said.out
    assert "3 seeds have" in said.out
    assert said.err == ""  # the same versions, the same data
    again = RunFolder.open("again/case/slip-seed0")
    assert [e["test"] for e in again.evaluations] == [e["test"] for e in RunFolder.open(run).evaluations]
    assert again.config == RunFolder.open(run).config
    assert again.preset == "tiny"


def test_a_second_repetition_gets_a_folder_of_its_own(toy: str) -> None:  # noqa: F811
    run = recorded(toy, seeds=1)
    assert main(["repeat", str(run), "--quiet", "--threads", "1"]) == 0
    assert main(["repeat", str(run), "--quiet", "--out", "again"]) == 0
    assert RunFolder.open("again/case/slip-seed0").config["threads"] == 1
    assert RunFolder.open("again/case/slip-seed0-2").config["threads"] is None


def test_a_score_outside_of_the_seeds_is_told_and_fails(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = recorded(toy)
    for seed, score in enumerate((0.90, 0.91, 0.92)):
        set_scores(run.with_name(f"slip-seed{seed}"), score)
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 1
    assert "3 seeds have 0.9100 ± 0.0100, from 0.8900 to 0.9300: OUTSIDE." in capsys.readouterr().out


def test_other_labels_beside_it_have_no_say(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = recorded(toy)
    run.with_name("slip-seed1").rename(run.with_name("slip-fast-seed1"))
    set_scores(run.with_name("slip-fast-seed1"), 0.0)
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 0
    assert "2 seeds have" in capsys.readouterr().out


def test_one_seed_alone_gives_no_spread(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = recorded(toy, seeds=1)
    set_scores(run, 0.99)
    assert main(["repeat", str(run), "--quiet"]) == 0
    assert "there is no spread to judge by" in capsys.readouterr().out


def test_other_versions_and_data_are_told_in_a_sentence_each(
    toy: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = recorded(toy, seeds=1)
    change(run / "manifest.json", versions={"torch": "1.0.0", "abacus": "3"}, data={"toy.txt": "ab" * 32})
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("The run was made with torch 1.0.0; here it is ")]
    assert "The run was made with abacus 3; here it is not installed." in lines
    assert "The run was made with the data file toy.txt, which is not read here." in lines
    assert len(lines) == 3


def test_a_run_that_diverged_must_diverge_again(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    words = ["run", toy, "--algorithm", "slip", "--settings.lr", "3", "--out", "made", "--quiet"]
    assert main(words) == 1
    run = Path("made") / toy / "slip-seed0"
    assert main(["repeat", str(run), "--quiet"]) == 0
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"state": "finished"}))
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 1
    assert "The recorded run finished, this one diverged." in capsys.readouterr().out


def test_a_run_without_an_end_is_refused(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = recorded(toy, seeds=1)
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"state": "interrupted"}))
    capsys.readouterr()
    assert main(["repeat", str(run)]) == 2
    assert "is interrupted, so there is no end to compare with" in capsys.readouterr().err
    assert not Path("again").exists()


@pytest.mark.parametrize("words", [[], ["--quiet"], ["nowhere"]])
def test_what_is_no_run_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repeat", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("seeds", "now", "within"),
    [
        ((0.8, 0.8, 0.9), 0.72, True),  # mean ± 2 deviations, 0.718 to 0.949, is the wider one
        ((0.8, 0.8, 0.9), 0.95, False),
        ((0.0, *[1.0] * 19), 0.01, True),  # smallest to largest is the wider one: 0 to 1 against 0.503 to 1.397
        ((0.8,), 0.81, None),
        ((0.8,), 0.8, True),
    ],
)
def test_the_wider_range_decides(seeds: tuple[float, ...], now: float, within: bool | None) -> None:
    assert Comparison("final", seeds[0], now, Spread(seeds)).within is within
