"""`adambo make`: what a plan has and the records lack is made and filed; nothing is made twice."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from toy_experiment import toy, toy_score  # noqa: F401  (a fixture)

from adambo.cli import main
from adambo.errors import AdamboError, ConfigError, NoMemoryError, RunError, SettingError
from adambo.experiments import runner
from adambo.experiments.workers import Job, Result, one_by_one, worked
from adambo.reproduction.archive import Archive
from adambo.reproduction.making import Making
from adambo.reproduction.plan import Plan
from adambo.training.run_folder import RunFolder

RUNS = {"runs": "paper/auc-rnn", "experiment": "toy", "labels": ["slip", "adambo"], "seeds": [0, 1]}
SEARCH = {
    "search": "auc-rnn", "experiment": "toy", "labels": ["slip", "adambo"], "trials": 6, "evenly": 3, "epochs": 0.5,
    "again": 2, "ranges": ["settings.lr=1e-6:1"],
}  # fmt: skip
TUNED = {**RUNS, "runs": "tuned/auc-rnn", "chosen": "auc-rnn"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "results" / "plan.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(list(entries), sort_keys=False))
    return path


def making(path: Path, **options: Any) -> Making:
    return Making(Plan.read(path), path.parent, path.parent.parent / "work", Console(quiet=True), **options)


def made(path: Path, **options: Any) -> list[str]:
    """Make all that is lacking; the names of what was made."""
    source = making(path, **options)
    return [result.job.name for result in one_by_one(source, Console(file=io.StringIO())).each]


def trials(folder: Path, label: str) -> list[dict[str, Any]]:
    lines = (folder / "results" / "search" / "auc-rnn" / f"{label}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_what_is_lacking_is_made_seed_by_seed_and_becomes_a_record(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**RUNS, "values": {"width": 5}, "labels": {"slip": {}, "slip-slow": {"settings.lr": 1e-5}}})
    names = ["slip seed 0", "slip-slow seed 0", "slip seed 1", "slip-slow seed 1"]
    assert made(path) == [f"paper/auc-rnn {name}" for name in names]
    record = here / "results" / "paper" / "auc-rnn" / "slip-slow-seed1"
    assert sorted(each.name for each in record.iterdir()) == [
        "config.yaml", "manifest.json", "metrics.jsonl", "status.json",
    ]  # fmt: skip
    run = RunFolder.open(record)
    assert (run.config["algorithm"], run.config["width"], run.config["settings"]["lr"]) == ("slip", 5, 1e-5)
    assert run.manifest["command"][:5] == ["adambo", "run", "toy", "--algorithm", "slip"]
    case = Archive(here / "results").case("paper", "auc-rnn")
    assert case is not None
    assert case.labels == ("slip", "slip-slow")
    assert not list((here / "work").glob("**/config.yaml"))
    assert made(path) == []


def test_a_command_of_a_record_makes_the_same_run(toy: str, here: Path) -> None:  # noqa: F811
    made(
        planned(here, {**RUNS, "values": {"width": 5, "mood": "fine"}, "labels": {"slip-slow": {"settings.lr": 1e-5}}})
    )
    record = RunFolder.open(here / "results" / "paper" / "auc-rnn" / "slip-slow-seed1")
    assert main([*record.manifest["command"][1:], "--quiet", "--checkpoint-every", "null"]) == 0
    assert RunFolder.open("runs/toy/slip-seed1").config == record.config


def test_records_of_other_runs_are_refused(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, RUNS)
    made(path)
    planned(here, {**RUNS, "values": {"width": 4}})
    with pytest.raises(RunError, match=r"holds a run with other settings \(width: 3 there, 4 now\)"):
        making(path)
    assert main(["make", str(path), "--show"]) == 2


def test_a_search_has_as_many_trials_for_all_and_its_choice_is_run(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, SEARCH, TUNED)
    names = made(path)
    assert sum("trial" in name for name in names) == 2 * (6 + 2)  # two of them made again, the preset being one
    assert names[-4:] == [
        f"tuned/auc-rnn {label} seed {seed}" for seed in (0, 1) for label in ("slip", "adambo")
    ]  # fmt: skip
    for label in ("slip", "adambo"):
        first, again = trials(here, label)[:6], trials(here, label)[6:]
        assert {each["epoch"] for each in first} == {0.5}
        assert {each["epoch"] for each in again} == {1.0}
        best = max(first[1:], key=lambda each: each["score"])
        assert {each["trial"] for each in again} == {0, best["trial"]}
        won = max(again, key=lambda each: each["score"])["values"]
        for seed in (0, 1):
            run = RunFolder.open(here / "results" / "tuned" / "auc-rnn" / f"{label}-seed{seed}")
            assert run.config["settings"]["lr"] == won["settings.lr"]
            assert run.config["settings"]["lower_lr"] == won["settings.lower_lr"]
            assert (run.config["epochs"], run.config["validation"]) == (1.0, 0.0)
    even = [[each["values"]["settings.lr"] for each in trials(here, label)[1:4]] for label in ("slip", "adambo")]
    assert even[0] == even[1]
    assert made(path) == []


def test_a_search_that_is_stopped_anywhere_comes_to_the_same_end(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, SEARCH, TUNED)
    made(path)
    whole = {label: trials(here, label) for label in ("slip", "adambo")}
    shutil.rmtree(here / "results" / "search")
    shutil.rmtree(here / "results" / "tuned")
    for _ in range(40):
        source = making(path)
        job = source.next()
        if job is None:
            break
        source.ended(worked(job, Console(quiet=True), quiet=True))
    assert {label: trials(here, label) for label in whole} == whole
    assert made(path) == []


def test_suggestions_wait_for_what_they_are_to_learn_from(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**SEARCH, "labels": ["slip"]})
    source = making(path)
    first = []
    while (job := source.next()) is not None:
        first.append(job)
    assert len(first) == 4  # the preset and three even points
    for job in first:
        assert source.next() is None
        source.ended(worked(job, Console(quiet=True), quiet=True))
    assert source.next() is not None
    assert source.next() is None


def test_trials_that_diverge_are_told_and_those_refused_for_other_reasons_are_not_counted(
    toy: str,  # noqa: F811
    here: Path,
) -> None:
    wide = ["settings.lr=1e-2:1e2"]
    made(planned(here, {**SEARCH, "labels": ["slip"], "ranges": wide}))
    states = {each["values"]["settings.lr"] > 1: each["state"] for each in trials(here, "slip")}
    assert states == {True: "diverged", False: "finished"}
    path = planned(here, {**SEARCH, "labels": {"adambo": {"mood": "no data"}}})
    source = making(path)
    results = one_by_one(source, Console(file=io.StringIO())).each
    assert {result.state for result in results} == {"failed"}
    assert not (here / "results" / "search" / "auc-rnn" / "adambo.jsonl").exists()
    assert source.lacking() == ["search/auc-rnn: 8 trials, of adambo"]


def test_a_run_that_fails_is_not_filed_and_not_begun_twice(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**RUNS, "labels": {"slip": {"mood": "a fault"}, "adambo": {}}, "seeds": [0]})
    source = making(path)
    results = one_by_one(source, Console(file=io.StringIO())).each
    assert [(result.job.label, result.state) for result in results] == [
        ("paper/auc-rnn slip", "failed"), ("paper/auc-rnn adambo", "finished"),
    ]  # fmt: skip
    assert source.lacking() == ["paper/auc-rnn: 1 run: slip (0)"]


@pytest.mark.parametrize("entry", [{**RUNS, "labels": ["slip"], "seeds": [0]}, {**SEARCH, "labels": ["slip"]}])
@pytest.mark.parametrize("lacks", [2, 100])
def test_what_lacks_memory_is_tried_again_but_not_for_ever(
    toy: str,  # noqa: F811
    here: Path,
    entry: dict[str, Any],
    lacks: int,
) -> None:
    source = making(planned(here, entry))
    job = source.next()
    tried = 0
    while job is not None and tried < lacks:
        tried += 1
        source.ended(Result(job, "failed", "CUDA out of memory.", out_of_memory=True))
        following = source.next()
        while following is not None and following.folder != job.folder:  # of a search, others are begun meanwhile
            following = source.next()
        job = following
    assert tried == min(lacks, 4)
    assert (job is None) == (lacks == 100)
    if job is not None:
        source.ended(worked(job, Console(quiet=True), quiet=True))
        record = "paper/auc-rnn/slip-seed0/config.yaml" if "runs" in entry else "search/auc-rnn/slip.jsonl"
        assert (here / "results" / record).exists()


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (NoMemoryError("The tables of SABA need 24 GiB, but cuda:0 memory has 3 GiB free."), True),
        (SettingError("lr=-1: give a number above 0."), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_a_lack_of_memory_is_told_from_other_faults_and_is_no_trial_that_failed(
    toy: str,  # noqa: F811
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    lacks: bool,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(runner, "run", refuse)
    source = making(planned(here, {**SEARCH, "labels": ["slip"]}))
    each = one_by_one(source, Console(quiet=True)).each
    assert {(result.state, result.out_of_memory) for result in each} == {("failed", lacks)}
    is_filed = (here / "results" / "search" / "auc-rnn" / "slip.jsonl").exists()
    assert is_filed == (isinstance(error, SettingError) and not lacks)


def test_a_run_that_diverges_is_a_record(toy: str, here: Path) -> None:  # noqa: F811
    made(planned(here, {**RUNS, "values": {"settings.lr": 3.0}, "labels": ["slip"], "seeds": [0]}))
    assert RunFolder.open(here / "results" / "paper" / "auc-rnn" / "slip-seed0").status["state"] == "diverged"


def test_no_more_runs_of_an_entry_side_by_side_than_it_allows(toy: str, here: Path) -> None:  # noqa: F811
    source = making(planned(here, {**RUNS, "at_once": 1}, {**RUNS, "runs": "tuned/auc-rnn"}))
    jobs = [source.next() for _ in range(3)]
    assert [job.label for job in jobs if job] == ["paper/auc-rnn slip", "tuned/auc-rnn slip", "tuned/auc-rnn adambo"]
    assert jobs[0] is not None
    source.ended(Result(jobs[0], "failed", "It is a test."))
    following = source.next()
    assert isinstance(following, Job)
    assert following.label == "paper/auc-rnn adambo"


def test_only_some_entries_and_nothing_after_a_time(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, RUNS, {**RUNS, "runs": "tuned/auc-rnn"})
    assert made(path, begin_for=0.0) == []
    assert {name.split()[0] for name in made(path, only=["tuned/"])} == {"tuned/auc-rnn"}


def test_where_one_finds_no_memory_nothing_is_begun_before_another_ends(toy: str, here: Path) -> None:  # noqa: F811
    source = making(planned(here, RUNS))
    first, second = source.next(), source.next()
    assert first is not None
    assert second is not None
    source.ended(Result(first, "failed", "CUDA out of memory.", out_of_memory=True))
    assert source.next() is None
    source.ended(Result(second, "failed", "It is a test."))
    again = source.next()
    assert again is not None
    source.ended(Result(again, "failed", "CUDA out of memory.", out_of_memory=True))
    assert source.next() is not None  # nothing is running that could make room


def test_a_beginning_that_nothing_has_is_refused(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, RUNS, SEARCH)
    with pytest.raises(ConfigError, match=r"begins with 'papr/': paper/auc-rnn, search/auc-rnn\."):
        making(path, only=["search/", "papr/"])


def test_what_is_lacking_can_be_shown(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    path = planned(here, RUNS, SEARCH, TUNED)
    assert main(["make", str(path), "--show"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Lacking:",
        "paper/auc-rnn: 4 runs: slip (0, 1), adambo (0, 1)",
        "search/auc-rnn: 16 trials, of slip, adambo",
        "tuned/auc-rnn: 4 runs: slip (0, 1), adambo (0, 1); 4 of them wait for a search",
    ]
    for words in (["--only", "paper/", "--only", "tuned/"], ["--only", "paper/", "tuned/"]):
        assert main(["make", str(path), "--show", *words]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [each.partition(":")[0] for each in shown] == ["Lacking", "paper/auc-rnn", "tuned/auc-rnn"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({**RUNS, "runs": "papers/auc-rnn"}, "is no place for records. Did you mean 'paper/auc-rnn'?"),
        ({**SEARCH, "search": "auc-rrn"}, "is no place for records. Did you mean 'auc-rnn'?"),
        ({**RUNS, "search": "auc-rnn"}, "needs runs: or search:, and not both."),
        ({**RUNS, "sed": 3}, "has 'sed', which is nothing of runs. Did you mean 'seeds'?"),
        ({k: v for k, v in RUNS.items() if k != "seeds"}, "lacks seeds."),
        ({**RUNS, "seeds": "all"}, "seeds='all' does not fit: give a list, each item a whole number."),
        ({**RUNS, "labels": ["slipp"]}, "There is no algorithm 'slipp'. Did you mean 'slip'?"),
        ({**RUNS, "values": {"widht": 3}}, "toy has no setting 'widht'. Did you mean 'width'?"),
        ({**RUNS, "experiment": "toi"}, "There is no experiment 'toi'. Did you mean 'toy'?"),
        ({**TUNED}, "is to have values that are chosen, but no search: auc-rnn has it."),
        ({**SEARCH, "ranges": ["settings.lr=1:0.1"]}, "low is above 0 and below high"),
        ({**SEARCH, "trials": 0}, "trials=0: give 1 or more."),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_with_a_sentence(
    toy: str,  # noqa: F811
    here: Path,
    entry: dict[str, Any],
    said: str,
) -> None:
    path = planned(here, entry)
    with pytest.raises(AdamboError) as error:
        making(path)
    assert said in str(error.value)


def test_an_entry_that_stands_there_twice_is_refused(toy: str, here: Path) -> None:  # noqa: F811
    with pytest.raises(AdamboError, match="stands there twice"):
        making(planned(here, RUNS, RUNS))


def test_processes_make_a_plan_and_a_second_call_goes_on(here: Path) -> None:
    small = {"tasks": 10, "tasks_per_step": 5, "test_tasks": 5, "epochs": 400}
    entry = {**RUNS, "experiment": "digits", "values": small, "labels": ["slip", "adambo"], "seeds": [0]}
    path = planned(here, entry)
    command = [sys.executable, "-m", "adambo.cli", "make", str(path), "--jobs", "2", "--work", "work"]
    stopped = subprocess.run([*command, "--minutes", "0.12"], capture_output=True, text=True, timeout=100, check=False)
    assert stopped.returncode == 1, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert stopped.stdout == "Lacking:\npaper/auc-rnn: 2 runs: slip (0), adambo (0)\n"
    begun = [RunFolder.open(each.parent).status for each in (here / "work").glob("**/config.yaml")]
    assert {status["state"] for status in begun} <= {"interrupted"}
    for each in (here / "work").glob("**/config.yaml"):  # let the second call be short
        each.write_text(each.read_text().replace("epochs: 400.0", "epochs: 1.0"))
    planned(here, {**entry, "values": {**small, "epochs": 1}})
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (again.returncode, again.stdout) == (0, "Nothing is lacking.\n"), again.stderr
    assert {run.path.name for run in RunFolder.find(["results"])} == {"slip-seed0", "adambo-seed0"}


def record(label: str, *trials: dict[str, Any]) -> None:
    path = Path("results/search/auc-rnn") / f"{label}.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text("".join(f"{line}\n" for line in [first, *map(json.dumps, trials)]))


def test_what_diverges_at_full_length_is_not_chosen_and_the_next_best_is_tried(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**SEARCH, "labels": ["slip"]}, {**TUNED, "labels": ["slip"]})
    made(path)
    first = [each for each in trials(here, "slip") if not each.get("again")]
    ranked = sorted(first[1:], key=lambda each: -each["score"])
    fallen = [{**each, "again": True, "state": "diverged", "score": None} for each in (first[0], ranked[0])]
    record("slip", *first, *fallen)
    shutil.rmtree(here / "results" / "tuned")
    made(path)
    again = [each["trial"] for each in trials(here, "slip") if each.get("again")]
    assert again == [0, ranked[0]["trial"], ranked[1]["trial"], ranked[2]["trial"]]
    run = RunFolder.open(here / "results" / "tuned" / "auc-rnn" / "slip-seed0")
    assert run.config["settings"]["lr"] == max(ranked[1:3], key=lambda each: each["score"])["values"]["settings.lr"]
    everything = [{**each, "again": True, "state": "diverged", "score": None} for each in first]
    record("slip", *first, *everything)
    shutil.rmtree(here / "results" / "tuned")
    assert made(path) == []
    assert making(path).lacking() == ["tuned/auc-rnn: 2 runs: slip (0, 1); 2 of them wait for a search"]


def test_a_trial_that_is_recorded_twice_counts_once(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**SEARCH, "labels": ["slip"]})
    made(path)
    first = trials(here, "slip")[:3]
    record("slip", *first, *first)
    assert making(path).lacking() == ["search/auc-rnn: 5 trials, of slip"]
    made(path)
    assert [each["trial"] for each in trials(here, "slip")[6:9]] == [3, 4, 5]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 1.5}, "another epochs"),
        ({"values": {"width": 4}}, "another width"),
        ({"ranges": ["settings.lr=1e-5:1"]}, "another ranges"),
    ],
)
def test_a_record_of_another_search_is_refused(toy: str, here: Path, change: dict[str, Any], said: str) -> None:  # noqa: F811
    made(planned(here, SEARCH))
    with pytest.raises(RunError, match=said):
        making(planned(here, {**SEARCH, **change})).lacking()


def test_a_search_that_is_older_than_a_setting_had_its_default(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, SEARCH)
    made(path)
    file = here / "results/search/auc-rnn/slip.jsonl"
    first, *rest = file.read_text().splitlines()
    about = json.loads(first)
    del about["about"]["config"]["width"]
    file.write_text("\n".join([json.dumps(about), *rest, ""]))
    assert making(path).lacking() == []
    with pytest.raises(RunError, match="another width"):
        making(planned(here, {**SEARCH, "values": {"width": 4}})).lacking()


@pytest.mark.parametrize("content", ["", "{", "[1]\n", '{"about": {}}\n'])
def test_a_damaged_record_of_a_search_is_named(toy: str, here: Path, content: str) -> None:  # noqa: F811
    path = planned(here, SEARCH)
    made(path)
    (here / "results/search/auc-rnn/slip.jsonl").write_text(content)
    with pytest.raises(RunError, match=r"slip\.jsonl(, line 1)? is"):
        making(path).lacking()


def test_a_run_that_diverged_and_was_not_filed_is_filed_by_the_next_call(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**RUNS, "values": {"settings.lr": 3.0}, "labels": ["slip"], "seeds": [0]})
    job = making(path).next()
    assert job is not None
    assert worked(job, Console(quiet=True), quiet=True).state == "diverged"  # and then the process was killed
    assert len(made(path)) == 1
    assert RunFolder.open(here / "results" / "paper" / "auc-rnn" / "slip-seed0").status["state"] == "diverged"


def test_a_folder_of_another_run_stops_only_its_own_job(toy: str, here: Path) -> None:  # noqa: F811
    path = planned(here, {**RUNS, "values": {"width": 4}})
    job = making(path).next()
    assert job is not None
    worked(job, Console(quiet=True), quiet=True)
    assert len(made(planned(here, RUNS))) == 3
    assert making(path).lacking() == ["paper/auc-rnn: 1 run: slip (0)"]
