"""Whatever a user can get wrong: one clear sentence, exit code 2, no traceback, nothing overwritten, nothing left."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from rich.console import Console
from toy_experiment import toy  # noqa: F401  (a fixture)

from adambo.cli import main
from adambo.experiments import runner
from adambo.experiments.configure import configure

SMALL = "--tasks 10 --tasks-per-step 5 --test-tasks 5 --steps 1"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "how", "far", "who", "where", "what", "?"]


class Bad(NamedTuple):
    """What is typed, what is said, how the folder is prepared, and how many notes come before what is said."""

    words: str
    said: str
    prepare: Callable[[Path], None] = lambda folder: None
    notes: int = 0


def files(**content: str | bytes) -> Callable[[Path], None]:
    """Files by name; _ stands for a dot before the ending."""

    def prepare(folder: Path) -> None:
        for name, text in content.items():
            data = text.encode() if isinstance(text, str) else text
            (folder / ".".join(name.rsplit("_", 1))).write_bytes(data)

    return prepare


def trec(train: str | bytes, name: str = "train_5500.label", test: str | None = None) -> Callable[[Path], None]:
    """A data folder with these training questions."""

    def prepare(folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "data" / name).write_bytes(train.encode() if isinstance(train, str) else train)
        (folder / "data" / "TREC_10.label").write_text(QUESTIONS.replace("what", "how") if test is None else test)
        (folder / "data" / "bert-base-uncased-vocab.txt").write_text("\n".join(PIECES) + "\n")

    return prepare


def tweets(labels: list[int]) -> Callable[[Path], None]:
    """A data folder with tweets, all the same, and two word vectors of 100 dimensions."""

    def prepare(folder: Path) -> None:
        (folder / "data").mkdir()
        lines = "".join(f'{{"label": {label}, "text": "a day", "u": 1}}\n' for label in labels)
        for split in ("train", "heldout", "test_manual"):
            (folder / "data" / f"sentiment140_{split}.jsonl").write_text(lines)
        vectors = "".join(f"{word} {' '.join(['0.5'] * 100)}\n" for word in ("a", "day"))
        (folder / "data" / "glove.6B.100d.txt").write_text(vectors)

    return prepare


QUESTIONS = "".join(f"{label}:x what {label} {k} ?\n" for label in ("NUM", "HUM", "LOC") for k in range(12))
TWEETS = "--preset tiny --vectors glove --data-dir data"


def a_run(folder: Path, **overrides: Any) -> Path:
    runner.run(configure("toy", overrides=overrides), folder / "run", Console(quiet=True), quiet=True)
    return folder / "run"


def finished_run(folder: Path) -> None:
    a_run(folder)


def interrupted(folder: Path) -> Path:
    """A run that says it was stopped before its end."""
    run = a_run(folder)
    (run / "status.json").write_text('{"state": "interrupted", "reason": "SIGTERM came.", "step": 4, "best": null}')
    return run


def with_damaged_checkpoints(folder: Path) -> None:
    for file in (interrupted(folder) / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:-7])


def with_damaged_config(folder: Path) -> None:
    (a_run(folder) / "config.yaml").write_text("experiment: [toy\n")


def with_damaged_status(folder: Path) -> None:
    (a_run(folder) / "status.json").write_text('{"state": "asleep"}')


def with_an_unknown_experiment(folder: Path) -> None:
    path = interrupted(folder) / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"experiment": "toys"}))


def with_changed_data(folder: Path) -> None:
    import json

    path = interrupted(folder) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"data": {"toy.txt": "0" * 64}}))


def diverged(folder: Path) -> None:
    a_run(folder, **{"settings.lr": 3.0})


def compared_before(folder: Path) -> None:
    configured = configure("toy", overrides={"width": 3})
    runner.run(configured, folder / "runs" / "toy" / "adambo-seed0", Console(quiet=True), quiet=True)


def config_of_toy(folder: Path) -> None:
    (folder / "c.yaml").write_text("experiment: toy\nepochs: 1\n")


TABLE = {
    # numbers and trees beyond all bounds
    "epochs without end": Bad("run digits --epochs 1e308", "epochs=1e+308: give a number above 0, or null; not above"),
    "checkpoints never": Bad("run digits --checkpoint-every 1e308", "checkpoint_every=1e+308: give a number of epochs"),
    "a seed of 400 digits": Bad(f"run digits --seed {'9' * 400}", "seed="),
    "100,000 threads": Bad("run digits --threads 100000", "threads=100000: give 1 to 1024, or null."),
    "a million million tasks": Bad("run digits --tasks 1000000000000", "tasks=1000000000000: give 1 or more"),
    "more seeds than days": Bad("compare digits --seeds 100000000", "seeds=100000000: that is too many"),
    "a config that holds itself": Bad(
        "run digits --config c.yaml", "The config file c.yaml holds what no config can", files(c_yaml="a: &a {b: *a}\n")
    ),
    "a config without end": Bad(
        "run digits --config c.yaml",
        "The config file c.yaml holds what no config can",
        files(c_yaml="a: " + "[" * 3000),
    ),
    "a number of 5000 digits": Bad(
        "run digits --config c.yaml",
        "The config file c.yaml holds what no config can",
        files(c_yaml="a: " + "9" * 5000),
    ),
    "an empty name": Bad("run digits --algorithm=", "There is no algorithm ''."),
    "no whole number between": Bad(
        "sweep digits --preset tiny --range channels=1.2:1.4",
        "The range of channels does not fit. There is no whole number from 1.2 to 1.4.",
    ),
    "a folder that is not there": Bad("data check --data-dir nowhere", "There is no folder nowhere to check."),
    # names
    "unknown command": Bad("rnu digits", "There is no command 'rnu'. Did you mean 'run'?"),
    "unknown experiment": Bad("run digit", "There is no experiment 'digit'. Did you mean 'digits'?"),
    "no experiment": Bad("run", "Name an experiment first"),
    "an option instead of an experiment": Bad("compare --seeds 2", "Name an experiment first"),
    "unknown algorithm": Bad(
        "run digits --algorithm adambow", "There is no algorithm 'adambow'. Did you mean 'adambo'?"
    ),
    "a label as an algorithm": Bad(
        "run digits --algorithm adambo-50-20",
        "There is no algorithm 'adambo-50-20'. For a variant give --algorithm adambo and the settings",
    ),
    "unknown algorithm of many": Bad("compare digits --algorithms slip,sl", "There is no algorithm 'sl'."),
    "algorithm that cannot run it": Bad("run auc-rnn --algorithm maml", "maml cannot run auc-rnn, which takes"),
    "unknown preset": Bad(
        "run bert-trec --preset tinny", "There is no preset of bert-trec 'tinny'. Did you mean 'tiny'?"
    ),
    "a study has no sweep": Bad("sweep lambda-sensitivity", "lambda-sensitivity is not one experiment but a study"),
    "unknown option": Bad("run digits --epoch 3", "There is no option --epoch. Did you mean '--epochs'?"),
    "unknown option of list": Bad("list --datadir x", "There is no option --datadir. Did you mean '--data-dir'?"),
    "option of another command": Bad("run digits --seeds 3", "There is no option --seeds. Did you mean '--seed'?"),
    "setting without its prefix": Bad("run digits --lr 1", "There is no option --lr. It is one of the algorithm's"),
    "unknown setting": Bad("run digits --settings.bta 1", "There is no option --settings.bta. Did you mean"),
    "setting of another algorithm": Bad(
        "run digits --algorithm slip --settings.inverse.terms 3", "There is no option --settings.inverse.terms."
    ),
    "setting that not all have": Bad(
        "compare digits --algorithms slip soba --settings.beta 1", "soba has no setting 'beta'."
    ),
    "setting of another inverse": Bad(
        "run digits --settings.inverse.iterations 3", "The inverse neumann has no setting 'iterations'."
    ),
    "a stray word": Bad("run digits fast", "'fast' is not expected here"),
    # values
    "option without a value": Bad("run digits --epochs", "--epochs: expected one argument."),
    "text for a number": Bad("run digits --epochs many", "epochs='many' does not fit: give a number, or null."),
    "negative epochs": Bad("run digits --epochs -1", "epochs=-1.0: give a number above 0, or null"),
    "no epochs": Bad("run digits --epochs 0", "epochs=0.0: give a number above 0, or null"),
    "no end": Bad("run digits --epochs null", "A run needs an end"),
    "endless": Bad("run digits --epochs inf", "epochs='inf' does not fit: give a number, or null."),
    "nan rate": Bad("run digits --settings.lr nan", "settings.lr='nan' does not fit: give a number."),
    "negative rate": Bad("run digits --settings.lr -1", "lr=-1.0 is not a step size"),
    "half a task": Bad("run digits --tasks 2.5", "tasks='2.5' does not fit: give a whole number."),
    "tasks that do not divide": Bad(
        "run digits --tasks 7 --tasks-per-step 2", "tasks_per_step=2 does not divide tasks=7"
    ),
    "unknown precision": Bad("run digits --precision fp8", "precision='fp8' does not fit: give fp32 or tf32 or bf16."),
    "neither true nor false": Bad("run digits --compile maybe", "compile='maybe' does not fit: give true or false."),
    "both lengths of a series": Bad(
        "run digits --settings.inverse.terms 3 --settings.inverse.products 3", "Give terms=3 or products=3, not both"
    ),
    "a weight above one": Bad("run digits --settings.beta 1.5", "beta=1.5 is the weight of the new hypergradient"),
    "negative seed": Bad("run digits --seed -3", "seed=-3: give a number from 0"),
    "unknown device": Bad(f"run digits {SMALL} --device gpu", "device='gpu' is not a device"),
    "a device that is not here": Bad(f"run digits {SMALL} --device cuda:99", "device='cuda:99':"),
    "more classes than digits": Bad(f"run digits {SMALL} --ways 11", "ways=11: there are 10 digits."),
    "no seeds": Bad("compare digits --seeds 0", "seeds=0: give 1 or more."),
    "no jobs": Bad("compare digits --jobs 0", "jobs=0: give 1 or more."),
    "compiled and differentiated twice": Bad(
        "run bert-trec --preset tiny --algorithm maml --data-dir data --compile",
        "compile=true cannot serve maml",
        trec(QUESTIONS),
    ),
    # config files
    "no config file": Bad("run digits --config c.yaml", "The config file c.yaml cannot be read: no such file"),
    "a folder as config file": Bad("run digits --config .", "The config file . cannot be read: is a directory."),
    "a list": Bad("run digits --config c.yaml", "The config file c.yaml holds no names", files(c_yaml="- 1\n- 2\n")),
    "tabs": Bad(
        "run digits --config c.yaml", "The config file c.yaml, line 2 is no YAML", files(c_yaml="a:\n\tb: 1\n")
    ),
    "no text": Bad("run digits --config c.yaml", "The config file c.yaml is no UTF-8", files(c_yaml=b"a: \xff\xfe\n")),
    "an empty file": Bad("run digits --config c.yaml", "The config file c.yaml holds no names", files(c_yaml="")),
    "a wrong key": Bad("run digits --config c.yaml", "digits has no setting 'task'.", files(c_yaml="task: 3\n")),
    "a wrong setting": Bad(
        "run digits --config c.yaml",
        "adambo has no setting 'lrr'. Did you mean 'lr'?",
        files(c_yaml="settings: {lrr: 3}\n"),
    ),
    "a wrong type": Bad("run digits --config c.yaml", "tasks='a' does not fit", files(c_yaml="tasks: a\n")),
    "parts of a number": Bad("run digits --config c.yaml", "epochs.a does not fit", files(c_yaml="epochs: {a: 1}\n")),
    "settings that are a number": Bad(
        "run digits --config c.yaml", "settings=3 does not fit", files(c_yaml="settings: 3\n")
    ),
    "another experiment": Bad(
        "run digits --config c.yaml", "The config file is for the experiment 'toy'", config_of_toy
    ),
    "an unknown preset in a file": Bad(
        "run digits --config c.yaml", "There is no preset of digits 'huge'.", files(c_yaml="preset: huge\n")
    ),
    "settings of another algorithm in a file": Bad(
        "run digits --algorithm slip --config c.yaml",
        "The config file has settings of adambo, but the run is of slip.",
        files(c_yaml="algorithm: adambo\nsettings: {eps: 1.0e-4}\n"),
    ),
    # data
    "no data folder": Bad("run bert-trec --preset tiny", "No folder of data files is known"),
    "missing folder": Bad(
        "run bert-trec --preset tiny --data-dir no", "No TREC train questions: the folder no does not exist"
    ),
    "missing data": Bad("run rnn-snli --preset tiny --data-dir .", "No "),
    "missing data of many": Bad("compare auc-rnn --preset tiny --data-dir .", "No Sentiment140 train tweets"),
    "missing data of a search": Bad("sweep auc-rnn --preset tiny --data-dir .", "No Sentiment140 train tweets"),
    "empty data": Bad("run bert-trec --preset tiny --data-dir data", "data/train_5500.label is empty.", trec("")),
    "a wrong label": Bad(
        "run bert-trec --preset tiny --data-dir data",
        "data/train_5500.label, line 2: unknown label 'WHAT'.",
        trec("NUM:a how far ?\nWHAT:a what ?\n"),
    ),
    "one class": Bad(
        "run bert-trec --preset tiny --data-dir data", "data/train_5500.label", trec("NUM:a how far ?\n" * 30)
    ),
    "too few examples": Bad(
        "run bert-trec --preset tiny --data-dir data --shots 50",
        "A task has 2 classes with 55 examples each",
        trec(QUESTIONS),
    ),
    "cut off": Bad(
        "run bert-trec --preset tiny --data-dir data",
        "data/trec_train.jsonl.gz is cut off",
        trec(gzip.compress(b'{"label": "NUM", "text": "how far ?"}\n' * 9999)[:-20], "trec_train.jsonl.gz"),
    ),
    "wrongly encoded": Bad(
        "run bert-trec --preset tiny --data-dir data",
        "data/trec_train.jsonl, line 1: byte",
        trec(b'{"label": "NUM", "text": "\xff"}\n', "trec_train.jsonl"),
    ),
    "not JSON": Bad(
        "run bert-trec --preset tiny --data-dir data",
        "data/trec_train.jsonl, line 1:",
        trec("NUM how far ?\n", "trec_train.jsonl"),
    ),
    "one class of tweets": Bad(f"run auc-rnn {TWEETS}", "data/sentiment140_train.jsonl", tweets([1] * 40)),
    "too few tweets": Bad(
        f"run auc-rnn {TWEETS}", "With positive_share=0.8 and minority_kept=100, 100 examples", tweets([0, 1] * 40)
    ),
    "unknown data set": Bad("data check treck --data-dir .", "There is no data set 'treck'; did you mean trec?"),
    "data set that is asked for and missing": Bad("data check trec --data-dir .", "No TREC train questions"),
    "nothing to do with data": Bad("data", "Say what to do"),
    "unknown deed with data": Bad("data chek", "There is no command of `adambo data` 'chek'. Did you mean 'check'?"),
    # runs
    "resume nothing": Bad("resume", "Name the folder of a run first"),
    "resume what is not there": Bad("resume run", "run is no run: there is no such folder."),
    "resume what is no run": Bad("resume .", ". is no run: it lacks config.yaml", files(a_txt="hello")),
    "resume a damaged config": Bad("resume run", "run/config.yaml is damaged, it is no YAML", with_damaged_config),
    "resume a damaged status": Bad("resume run", "run/status.json is damaged", with_damaged_status),
    "resume damaged checkpoints": Bad(
        "resume run --quiet", "No checkpoint in run/checkpoints can be read", with_damaged_checkpoints, 2
    ),
    "resume what has diverged": Bad("resume run", "The run run has diverged at step 0", diverged),
    "resume an unknown experiment": Bad(
        "resume run",
        "The run run is of 'toys', which is not in the catalogue of experiments",
        with_an_unknown_experiment,
    ),
    "resume with other data": Bad("resume run", "The run run was begun with other data: toy.txt", with_changed_data),
    "out is a file": Bad(
        f"run digits {SMALL} --out a.txt", "a.txt is a file, so no run can be in", files(a_txt="hello")
    ),
    "compare where other runs are": Bad(
        "compare toy --algorithms adambo --width 4",
        "runs/toy/adambo-seed0 holds a run with other settings",
        compared_before,
    ),
    # reports
    "report of nothing": Bad("report", "Name runs, or folders of runs"),
    "report of an empty folder": Bad("report .", ". holds no run: no config.yaml below it."),
    "report of what is not there": Bad("report runs", "runs holds no run: no such folder."),
    "report that is no page": Bad("report run --out page.txt", "page.txt does not end in .html.", finished_run),
    "report onto a folder": Bad("report run --out run", "run is a folder.", finished_run),
    # searches
    "no trials": Bad("sweep digits --trials 0", "trials=0: give 1 or more."),
    "no storage": Bad("sweep toy --storage foo", "The storage 'foo' cannot be used: Could not parse"),
    "unknown storage": Bad("sweep toy --storage nodb://x", "The storage 'nodb://x' cannot be used"),
    "storage in no folder": Bad(
        "sweep toy --storage sqlite:///no/x.db", "The storage 'sqlite:///no/x.db' cannot be used"
    ),
    "storage that is no database": Bad(
        "sweep toy --storage sqlite:///a.txt", "The storage 'sqlite:///a.txt' cannot be used", files(a_txt="hello" * 99)
    ),
    "no range": Bad("sweep toy --range settings.lr", "--range settings.lr: write name=low:high"),
    "range upside down": Bad("sweep toy --range settings.lr=1:0.1", "--range settings.lr=1:0.1: low is above 0"),
    "range of nothing": Bad("sweep toy --range settings.speed=1:2", "The range of settings.speed does not fit."),
    "range outside": Bad("sweep toy --range settings.beta=0.5:7", "The range of settings.beta does not fit."),
    "objective test": Bad("sweep toy --objective test", "objective='test' does not fit: give validation or train."),
    "sweep into a file": Bad("sweep toy --out a.txt", "The folder a.txt/toy", files(a_txt="hello")),
}


def contents(folder: Path) -> dict[str, bytes]:
    """All files, except what says how a run stands and who works on it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "status.json")
    }


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMBO_DATA", raising=False)
    return tmp_path


def assert_refused(captured: Any, said: str, notes: int = 0) -> None:
    *before, line = captured.err.splitlines()
    assert len(before) == notes
    assert not [note for note in before if "Traceback" in note]
    assert line.startswith(f"adambo: {said}")
    assert "Traceback" not in line
    assert line[-1] in ".?"
    assert len(line.split()) >= 5
    assert captured.out == ""


@pytest.mark.parametrize("name", TABLE)
def test_one_sentence_exit_code_2_and_nothing_touched(name: str, toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    bad = TABLE[name]
    bad.prepare(here)
    before = contents(here)
    capsys.readouterr()
    assert main(bad.words.split()) == 2
    assert_refused(capsys.readouterr(), bad.said, bad.notes)
    assert contents(here) == before


def test_there_are_more_than_forty_of_them() -> None:
    assert len(TABLE) > 60


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Every write to the disk from number `after` on fails."""
    made = iter(range(10**9))
    sync = os.fsync

    def fsync(number: int) -> None:
        if next(made) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("after", [0, 2, 12, 20])
def test_a_full_disk_is_said_and_leaves_no_half_file(
    after: int,
    toy: str,  # noqa: F811
    here: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full_disk(monkeypatch, after)
    assert main(["run", toy, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("adambo: runs/toy/adambo-seed0/")
    assert "cannot be written: no space left on device." in line
    assert not list(here.rglob("*.partial"))


def test_a_folder_that_may_not_be_written_is_said(
    toy: str,  # noqa: F811
    here: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Path.mkdir

    def mkdir(path: Path, *args: Any, **more: Any) -> None:
        if "locked" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        real(path, *args, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)  # permissions do not hold for the superuser, who may run the tests
    assert main(["run", toy, "--out", "locked", "--quiet"]) == 2
    assert_refused(capsys.readouterr(), "The run folder locked/toy/adambo-seed0 cannot be made: permission denied.")
    assert contents(here) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_write_permission_is_said(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    (here / "locked").mkdir(mode=0o500)
    assert main(["run", toy, "--out", "locked", "--quiet"]) == 2
    assert_refused(capsys.readouterr(), "locked may not be written to by this user.")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_run_that_another_process_works_on_is_left_alone(toy: str, here: Path, capsys: Any) -> None:  # noqa: F811
    run = interrupted(here)
    before = contents(here)
    with locked(run / "lock"):
        assert main(["resume", "run"]) == 2
    assert_refused(capsys.readouterr(), "Another process (pid ")
    assert contents(here) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_said(here: Path, capsys: Any) -> None:
    assert main(f"run digits {SMALL} --device cuda".split()) == 2
    assert_refused(capsys.readouterr(), "device='cuda': no CUDA devices here. Give cpu.")
    assert contents(here) == {}


def test_a_package_that_is_not_installed_is_named(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for module in ("adambo.experiments.sweep", "adambo.commands.sweep"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main(["sweep", "digits"]) == 2
    assert_refused(capsys.readouterr(), "The package optuna is not installed: pip install 'adambo[experiments]'.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run digit", "There is no experiment 'digit'. Did you mean 'digits'?"),
        ("run bert-trec --preset tiny", "No folder of data files is known"),
        ("run digits --epochs 0", "epochs=0.0: give a number above 0, or null"),
    ],
)
def test_as_a_process_too(words: str, said: str, here: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "adambo.cli", *words.split()], capture_output=True, text=True, env=environment,
        timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"adambo: {said}")
    assert ended.stdout == ""
    assert contents(here) == {}
