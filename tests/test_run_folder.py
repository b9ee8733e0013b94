"""Run folders: all or nothing on disk, numbers that come back exactly, one process at a time."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from adambo.errors import RunError
from adambo.training import atomic
from adambo.training.manifest import manifest
from adambo.training.run_folder import RunFolder

CONFIG = {"epochs": 20.0, "settings": {"lr": 1e-4, "eps": 1e-8, "terms": (1, 2)}, "data_dir": None, "name": "é: #1"}
SOURCES = {"epochs": "paper", "settings.lr": "command line"}


def new_run(path, **changes):
    given = {
        "experiment": "toy",
        "preset": "paper",
        "config": CONFIG,
        "sources": SOURCES,
        "manifest": {"commit": "abc"},
    }
    return RunFolder.create(path, **(given | changes))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_comes_back_as_it_was_made(tmp_path):
    new_run(tmp_path / "deep" / "run")
    run = RunFolder.open(tmp_path / "deep" / "run")
    assert (run.experiment, run.preset, run.sources) == ("toy", "paper", SOURCES)
    assert run.config == CONFIG | {"settings": CONFIG["settings"] | {"terms": [1, 2]}}
    assert run.manifest == {"commit": "abc"}
    assert run.evaluations == []
    assert (run.status["state"], run.status["step"]) == ("running", 0)
    assert not run.is_locked()


def test_the_configuration_is_plain_yaml_for_other_programs(tmp_path):
    run = new_run(tmp_path / "run")
    read = yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8"))
    assert list(read) == ["experiment", "preset", "config", "sources"]
    assert read["config"]["settings"]["eps"] == 1e-8


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    run = new_run(tmp_path / "run")
    before = contents(run.path)
    with pytest.raises(RunError, match="holds a run already"):
        new_run(tmp_path / "run", config={})
    assert contents(run.path) == before


def test_a_folder_with_other_files_is_refused_and_an_empty_one_taken(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"not empty: thesis\.tex"):
        new_run(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}
    (tmp_path / "empty").mkdir()
    assert new_run(tmp_path / "empty").status["step"] == 0


def test_a_manifest_of_something_else_is_not_taken_for_an_interrupted_creation(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(RunError, match="not empty"):
        new_run(tmp_path)
    assert contents(tmp_path) == {"manifest.json": b"{}"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("a file")
    for path in (tmp_path / "run", tmp_path / "run" / "inner"):
        with pytest.raises(RunError, match="cannot be made"):
            new_run(path)
    assert contents(tmp_path) == {"run": b"a file"}


def test_no_permission_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match=r"cannot be made: permission denied\.$"):
        new_run(tmp_path / "run")


def test_a_full_disk_at_creation_is_one_sentence_and_the_folder_can_be_used_later(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", full_disk)
        with pytest.raises(RunError, match="no space left on device"):
            new_run(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
    with pytest.raises(RunError, match="is no run"):
        RunFolder.open(tmp_path / "run")
    assert new_run(tmp_path / "run").experiment == "toy"


def test_a_full_disk_keeps_the_evaluations_that_were_there(tmp_path, monkeypatch):
    run = new_run(tmp_path / "run")
    run.record({"step": 0, "loss": None})
    before = contents(run.path)
    monkeypatch.setattr(os, "fsync", full_disk)
    for write in (lambda: run.record({"step": 1}), lambda: run.set_status("finished", "done", 1)):
        with pytest.raises(RunError, match="no space left on device"):
            write()
    assert contents(run.path) == before


def test_numbers_come_back_exactly(tmp_path):
    run = new_run(tmp_path / "run")
    numbers = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2.0**53 + 2, float(torch.tensor(0.1)), 1e22]
    run.record({"step": 2**53 + 1, "values": numbers})
    (evaluation,) = RunFolder.open(run.path).evaluations
    assert evaluation["step"] == 2**53 + 1
    assert [number.hex() for number in evaluation["values"]] == [number.hex() for number in numbers]


def test_numbers_that_json_lacks_become_null(tmp_path):
    run = new_run(tmp_path / "run")
    run.record({"step": 1, "test": {"loss": float("nan")}, "more": (float("inf"), 1.0)})
    text = (run.path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"step": 1, "test": {"loss": None}, "more": [None, 1.0]}


def test_evaluations_after_a_step_are_dropped(tmp_path):
    run = new_run(tmp_path / "run")
    for step in (0, 4, 8, 12):
        run.record({"step": step})
    run.truncate_after(8)
    assert [evaluation["step"] for evaluation in run.evaluations] == [0, 4, 8]
    run.truncate_after(-1)
    assert run.evaluations == []


@pytest.mark.parametrize("line", ['{"step": 1', "", "[1]", '{"step": 1.5}', '{"loss": 1}', "NaN and more"])
def test_a_damaged_line_is_named(tmp_path, line):
    run = new_run(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(f'{{"step": 0}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged"):
        _ = run.evaluations


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "status.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1, 2]", b"{", b"!!python/object/apply:os.getpid []"])
def test_damaged_files_are_named(tmp_path, name, content):
    path = new_run(tmp_path / "run").path
    (path / name).write_bytes(content)
    with pytest.raises(RunError, match=name.replace(".", r"\.")):
        _ = [RunFolder.open(path).manifest, RunFolder.open(path).status]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"lacks config\.yaml"):
        RunFolder.open(tmp_path)


def test_runs_are_found_however_deep_and_once(tmp_path):
    for name in ("b/y/run", "a/run2", "a/run1"):
        new_run(tmp_path / name)
    (tmp_path / "a" / "other").mkdir()
    (tmp_path / "a" / "other" / "config.yaml").write_text("not: ours")
    found = RunFolder.find([tmp_path / "b" / "y" / "run", tmp_path, str(tmp_path / "a")])
    assert [str(run.path.relative_to(tmp_path)) for run in found] == ["b/y/run", "a/run1", "a/run2"]
    for path in (tmp_path / "a" / "other", tmp_path / "nowhere"):
        with pytest.raises(RunError, match="holds no run"):
            RunFolder.find([path])


def test_another_process_that_holds_the_lock_is_named(tmp_path):
    run = new_run(tmp_path / "run")
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, run.path / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        (run.path / "lock").write_text(f"{other.pid}\n")
        assert run.is_locked()
        with pytest.raises(RunError, match=rf"pid {other.pid}\) works on the run"), run.lock():
            pass
        other.kill()
    with run.lock():
        assert (run.path / "lock").read_text() == f"{os.getpid()}\n"
        with run.lock():  # whoever holds it may ask again
            assert run.is_locked()
        with pytest.raises(RunError, match=rf"pid {os.getpid()}\)"), RunFolder.open(run.path).lock():
            pass
    assert not run.is_locked()


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    atomic.write_text(path, "old")

    def fill(file):
        file.write(b"half of the n")
        file.flush()
        assert path.read_text() == "old"  # nobody sees the new one before it is whole
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic.write_through(path, fill)
    assert contents(tmp_path) == {"file": b"old"}
    atomic.write_bytes(path, b"new")
    assert contents(tmp_path) == {"file": b"new"}


def test_only_left_overs_are_removed(tmp_path):
    for name in (".a.partial", "b.partial", ".c", "deep/.d.pt.partial", "deep/e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    atomic.remove_partials(tmp_path)
    assert set(contents(tmp_path)) == {"b.partial", ".c", "e"}


def test_the_manifest_says_where_a_run_comes_from(tmp_path):
    (tmp_path / "other").mkdir()
    files = [tmp_path / "data.jsonl", tmp_path / "other" / "data.jsonl"]
    for number, file in enumerate(files):
        file.write_text(f"content {number}")
    made = manifest(files, ["adambo", "run", "toy"])
    assert made["command"] == ["adambo", "run", "toy"]
    assert made["versions"]["torch"] == torch.__version__
    assert made["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert made["hardware"]["cores"] == os.cpu_count()
    assert made["data"] == {
        "data.jsonl": hashlib.sha256(b"content 0").hexdigest(),
        str(files[1]): hashlib.sha256(b"content 1").hexdigest(),
    }
    assert json.loads(json.dumps(made)) == made
    assert made["created"].endswith("+00:00")
    with pytest.raises(RunError, match="cannot be read: no such file"):
        manifest([tmp_path / "absent"], [])


def test_the_commit_is_that_of_the_checkout(tmp_path, monkeypatch):
    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        done = subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "version.py").write_text("here")
    monkeypatch.setattr("adambo.version.__file__", str(tmp_path / "version.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert manifest([], [])["commit"] is None
    monkeypatch.setenv("ADAMBO_COMMIT", "3a75ba7")
    assert manifest([], [])["commit"] == "3a75ba7"  # a copy without its history
    monkeypatch.delenv("ADAMBO_COMMIT")
    git("init", "-q")
    (tmp_path / "other").write_text("somebody else's")
    git("add", "other")
    git("commit", "-q", "-m", "one")
    assert manifest([], [])["commit"] is None  # the package lies in a checkout that does not know it
    git("add", "version.py")
    git("commit", "-q", "-m", "two")
    assert manifest([], [])["commit"] == git("rev-parse", "HEAD")
    (tmp_path / "version.py").write_text("changed")
    assert manifest([], [])["commit"] == git("rev-parse", "HEAD") + " + changes"


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "test": 3}',
        '{"step": 1, "test": null}',
        '{"step": 1, "train": {"accuracy": "0.5"}}',
        '{"step": 1, "validation": {"accuracy": true}}',
        '{"step": 1, "test": {"accuracy": NaN}}',
        '{"step": 1, "weights": {"a": 1e999}}',
        '{"step": 1, "test": {"accuracy": 1' + 400 * "0" + "}}",
        '{"step": 1, "seconds": "long"}',
        '{"step": 1, "oracle_calls": [1]}',
        '{"step": -1}',
        '{"step": true}',
        5000 * "[" + 5000 * "]",
    ],
)
def test_an_evaluation_of_another_form_is_named(tmp_path, line):
    run = new_run(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(f'{{"step": 0, "test": {{"accuracy": null}}}}\n{line}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged"):
        _ = run.evaluations


@pytest.mark.parametrize(
    "change",
    [
        *({"reason": reason} for reason in (None, 3)),
        *({"step": step} for step in (None, "4", True, -1, 10**30)),
        *({"state": state} for state in (None, ["running"], "asleep")),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_a_status_of_another_form_is_named(tmp_path, change, gone):
    run = new_run(tmp_path / "run")
    status = run.status | change
    (run.path / "status.json").write_text(json.dumps({k: v for k, v in status.items() if not gone or k not in change}))
    with pytest.raises(RunError, match=r"status\.json is damaged: it needs a (step|reason)"):
        _ = run.status


@pytest.mark.parametrize(
    "content",
    [{"data": ["x"]}, {"data": "x"}, {"data": {"a.txt": 1}}, {"hardware": [1]}, {"hardware": "fast"}]
    + [{"hardware": {"threads": value}} for value in (0, -1, True, "4", 2.0, 10**12, 10_001)],
)
def test_a_manifest_of_another_form_is_named(tmp_path, content):
    run = new_run(tmp_path / "run")
    (run.path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"manifest\.json is damaged: its (data|hardware)"):
        _ = run.manifest


def test_a_manifest_may_say_little(tmp_path):
    run = new_run(tmp_path / "run", manifest={"data": None, "hardware": {"threads": 10_000}})
    assert run.manifest == {"data": None, "hardware": {"threads": 10_000}}


@pytest.mark.parametrize(
    "config",
    [
        "&a {b: *a}",
        3000 * "[" + 3000 * "]",
        "{seed: " + 5000 * "1" + "}",
        "{seed: 0x" + 5000 * "f" + "}",
        "{when: 2024-13-45}",
        "{when: 2024-01-01}",
        "{1: 2, a: 3}",
        "{a: &a [1, 1], b: &b [*a, *a], c: [*b, *b]}",
    ],
)
def test_a_configuration_that_yaml_chokes_on_is_named(tmp_path, config):
    path = new_run(tmp_path / "run").path / "config.yaml"
    path.write_text(f"experiment: toy\npreset: paper\nsources: {{}}\nconfig: {config}\n")
    with pytest.raises(RunError, match=r"config\.yaml is damaged") as error:
        RunFolder.open(path.parent)
    assert len(str(error.value)) < 600


def test_a_pipe_in_place_of_a_record_is_not_waited_for(tmp_path):
    run = new_run(tmp_path / "run")
    os.mkfifo(run.path / "metrics.jsonl")
    with pytest.raises(RunError, match="it is a pipe"):
        _ = run.evaluations


def test_a_damaged_run_among_others_is_reported_once_or_refused(tmp_path):
    for name in ("a", "b", "c"):
        new_run(tmp_path / name)
    (tmp_path / "b" / "config.yaml").write_text("[")
    said = []
    found = RunFolder.find([tmp_path, tmp_path / "b"], said.append)
    assert [run.path.name for run in found] == ["a", "c"]
    (sentence,) = said
    assert sentence.startswith(f"The run {tmp_path / 'b'} is left out. ")
    with pytest.raises(RunError, match=r"b/config\.yaml is damaged"):
        RunFolder.find([tmp_path])


def test_the_fingerprint_is_that_of_what_decides_the_steps(tmp_path):
    def fingerprint(name, **changes):
        made = new_run(tmp_path / name, **changes)
        assert RunFolder.open(made.path).fingerprint == made.fingerprint
        return made.fingerprint

    first = fingerprint("first")
    assert len(bytes.fromhex(first)) == 32
    further = {"epochs": 90.0, "steps": 3, "seconds": 1.5, "oracle_calls": 9, "evaluate_every": 2.0}
    elsewhere = {"checkpoint_every": 3.0, "data_dir": "/data", "device": "cuda", "threads": 8}
    assert fingerprint("same", preset="other", config=CONFIG | further | elsewhere) == first
    others = [
        fingerprint("a", experiment="other"),
        fingerprint("b", config=CONFIG | {"seed": 1}),
        fingerprint("c", config=CONFIG | {"settings": CONFIG["settings"] | {"lr": 2e-4}}),
    ]
    assert len({first, *others}) == 4
