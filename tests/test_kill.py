"""Real processes, really killed: a run loses at most the steps since its last checkpoint, and ends the same."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_training_loop import assert_same_run, final_state
from toy_workload import LONG_PLAN, SHORT_PLAN, toy_plan, train_toy

from adambo.errors import RunError
from adambo.training.run_folder import RunFolder

PROGRAM = Path(__file__).with_name("toy_workload.py")


def start(mode, folder, *arguments):
    command = [sys.executable, PROGRAM, mode, folder, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def started(folder, pause):
    """A process that works on the run, and has made an evaluation after step 0."""
    process = start("run", folder, pause)
    deadline = time.monotonic() + 60
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 1):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def go_on(folder):
    return train_toy(folder, plan=toy_plan(**LONG_PLAN))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A long run that nothing has interrupted."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert go_on(path).step == LONG_PLAN["steps"]
    return path


def test_a_run_that_is_killed_at_random_moments_is_the_same_run(tmp_path, whole):
    process = start("kill", tmp_path / "run", 9, 0)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    assert_same_run(tmp_path / "run", whole)


def test_a_process_may_die_at_any_call_to_the_file_system(tmp_path):
    process = start("crash", tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, "", "")
    *died, lived = sorted(path for path in tmp_path.iterdir())
    assert len(died) > 30  # the last one was not killed
    train_toy(tmp_path / "whole", plan=toy_plan(**SHORT_PLAN))
    for path in (*died, lived):
        assert_same_run(path, tmp_path / "whole")
        assert len(list((path / "checkpoints").iterdir())) <= 3  # 3: it died between the last one and tidying up


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_process_works_on_a_run_and_a_signal_from_outside_makes_it_write_a_checkpoint(
    tmp_path, whole, number, code
):
    path = tmp_path / "run"
    process = started(path, pause=0.03)
    with pytest.raises(RunError, match=rf"Another process \(pid {process.pid}\) works on the run"):
        go_on(path)
    assert RunFolder.open(path).is_locked()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, "")
    assert not RunFolder.open(path).is_locked()
    status = RunFolder.open(path).status
    assert status["state"] == "interrupted"
    assert 7 <= status["step"] < LONG_PLAN["steps"]
    assert final_state(path)["step"] == status["step"]
    go_on(path)
    assert_same_run(path, whole)
