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
    assert said.out.count("(now − then: +0.0000); 2 other seeds have") == 2
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
    assert (
        "then 0.9000, now 1.0000 (now − then: +0.1000); 2 other seeds have 0.9150 ± 0.0071, from 0.9100 to 0.9200; "
        "0.0141 from then is allowed: OUTSIDE."
    ) in capsys.readouterr().out


def test_a_record_that_is_odd_does_not_widen_what_it_is_judged_by(
    toy: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = recorded(toy)
    for seed, score in enumerate((0.1, 0.15, 0.16)):  # the run ends at 0.2, within mean ± 2 deviations of all three
        set_scores(run.with_name(f"slip-seed{seed}"), score)
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 1
    (final,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("final test accuracy")]
    assert "then 0.1000, now 0.2000 (now − then: +0.1000)" in final
    assert final.endswith("OUTSIDE.")


def test_other_labels_beside_it_have_no_say(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = recorded(toy)
    run.with_name("slip-seed1").rename(run.with_name("slip-fast-seed1"))
    set_scores(run.with_name("slip-fast-seed1"), 0.0)
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet"]) == 0
    assert "1 other seed has" in capsys.readouterr().out


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


def test_a_run_that_was_judged_by_validation_alone_is_refused(
    toy: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = recorded(toy, seeds=1)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["validation"] = line.pop("test")
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    assert main(["repeat", str(run)]) == 2
    assert "was not judged by the test split" in capsys.readouterr().err
    assert not Path("again").exists()


def test_a_gpu_that_is_not_there_is_told(toy: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = recorded(toy, seeds=1)
    change(run / "manifest.json", hardware={"gpus": ["NVIDIA H200"]})
    capsys.readouterr()
    assert main(["repeat", str(run), "--quiet", "--device", "cpu"]) == 0
    assert "The run was made on NVIDIA H200; here it is made on a CPU." in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 1])
def test_a_record_that_has_lost_evaluations_is_refused_before_the_run(
    kept: int,
    toy: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = recorded(toy, seeds=1)
    lines = (run / "metrics.jsonl").read_text().splitlines(True)
    (run / "metrics.jsonl").write_text("".join(lines[:kept]))
    assert main(["repeat", str(run)]) == 2
    assert f"{run} is damaged: it was finished at step" in capsys.readouterr().err
    assert not Path("again").exists()


def test_a_folder_of_runs_leads_to_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 0):
        Path(f"paper/slip-seed{seed}").mkdir(parents=True)
        Path(f"paper/slip-seed{seed}/config.yaml").touch()
    assert main(["repeat", "paper"]) == 2
    assert "paper is a folder of runs: name one of them, such as paper/slip-seed0." in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--quiet"], ["nowhere"]])
def test_what_is_no_run_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repeat", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("then", "now", "others", "within"),
    [
        (0.80, 0.82, (0.79, 0.81), True),  # 2 deviations of the others are 0.0283
        (0.80, 0.83, (0.79, 0.81), False),
        (0.80, 0.77, (0.79, 0.81), False),
        (0.50, 0.65, (0.80, 0.81), False),  # with the record among them, mean ± 2 deviations would be 0.35 to 1.05
        (0.50, 0.80, (0.79, 0.81), True),  # far from the record, but among the other seeds
        (0.50, 0.52, (0.80, 0.80), False),
        (0.50, 0.50, (0.80, 0.80), True),
        (0.80, 0.85, (0.83,), True),  # one other seed: twice the distance of the two
        (0.80, 0.75, (0.83,), True),
        (0.80, 0.87, (0.83,), False),
        (0.80, 0.81, (), None),
        (0.80, 0.80, (), True),
    ],
)
def test_the_other_seeds_decide_how_far_from_the_record_is_within(
    then: float, now: float, others: tuple[float, ...], within: bool | None
) -> None:
    assert Comparison("final", then, now, Spread(others) if others else None).within is within


def test_a_change_too_small_for_four_digits_is_still_seen() -> None:
    assert "(now − then: −2e-06)" in str(Comparison("final", 0.8, 0.799998, Spread((0.8, 0.8))))
