"""The training loop: what is recorded when, how a run ends, and that resumed runs equal uninterrupted ones."""

import errno
import io
import itertools
import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from states import assert_same
from toy_workload import ToyWorkload, toy_plan, toy_run, train_toy

from adambo.errors import ConfigError, NonFiniteError, RunError, StateError
from adambo.training import checkpoint, loop
from adambo.training.budget import Budget, oracle_calls
from adambo.training.loop import Outcome, Plan
from adambo.training.progress import Progress
from adambo.training.run_folder import RunFolder


def final_state(path):
    """All that the last checkpoint holds, but the clock."""
    _, state = checkpoint.newest(path / "checkpoints", pytest.fail)
    assert state.pop("seconds") >= 0
    return state


def metrics(path):
    """The evaluations, but the clock."""
    evaluations = RunFolder.open(path).evaluations
    assert all(evaluation.pop("seconds") >= 0 for evaluation in evaluations)
    return evaluations


def assert_same_run(path, other):
    assert metrics(path) == metrics(other)
    assert_same(final_state(path), final_state(other))
    assert not list(path.rglob("*.partial"))
    assert RunFolder.open(path).status == RunFolder.open(other).status


@pytest.fixture(autouse=True)
def heard():
    """Hang-ups are ignored where the tests themselves run under nohup, and the loop leaves it so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 20 steps that nothing has interrupted."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert train_toy(path) == Outcome("finished", "The budget is spent: steps=20.", 20)
    return path


def stop_at(step, number=signal.SIGTERM, times=1):
    """For `on_step`: the process gets a signal in this step."""

    def on_step(here):
        for _ in range(times if here == step else 0):
            os.kill(os.getpid(), number)

    return on_step


def spoken(path, **options):
    """What is said while the run in `path` is worked on."""
    file = io.StringIO()
    train_toy(path, progress=Progress(Console(file=file, width=300), quiet=True), **options)
    return file.getvalue()


def test_a_run_can_be_evaluated_at_its_end_alone(tmp_path):
    train_toy(tmp_path / "run", plan=toy_plan(steps=10, evaluate_every=None))
    train_toy(tmp_path / "other", plan=toy_plan(steps=10, evaluate_every=5))
    (evaluation,) = metrics(tmp_path / "run")
    assert evaluation["step"] == 10
    assert evaluation["train"] == metrics(tmp_path / "other")[-1]["train"]


def test_evaluations_are_made_at_the_start_every_n_steps_and_at_the_end(tmp_path):
    train_toy(tmp_path / "run", plan=toy_plan(steps=10, evaluate_every=4))
    evaluations = metrics(tmp_path / "run")
    assert [evaluation["step"] for evaluation in evaluations] == [0, 4, 8, 10]
    assert [evaluation["epoch"] for evaluation in evaluations] == [0.0, 0.8, 1.6, 2.0]
    assert [evaluation["oracles"]["grad_x_f"] for evaluation in evaluations] == [0, 4, 8, 10]
    # Two warm steps; a step of AdamBO is ∇x f, ∇y f, ∇y g, two Hessian products and a cross product.
    assert [evaluation["oracle_calls"] for evaluation in evaluations] == [2 + 6 * step for step in (0, 4, 8, 10)]


def test_the_loss_is_the_mean_since_the_last_evaluation(tmp_path):
    workload, losses = ToyWorkload(), []
    step = workload.step
    workload.step = lambda number: losses.append(step(number)) or losses[-1]
    train_toy(tmp_path / "run", workload, toy_plan(steps=10, evaluate_every=4))
    means = [torch.stack(part).double().mean().item() for part in (losses[:4], losses[4:8], losses[8:])]
    first, *others = [evaluation["loss"] for evaluation in metrics(tmp_path / "run")]
    assert first is None
    assert others == pytest.approx(means, rel=1e-12)


def test_epochs_end_after_their_last_step_and_before_its_evaluation(tmp_path):
    workload = ToyWorkload()
    workload.on_step = workload.calls.append
    train_toy(tmp_path / "run", workload, toy_plan(steps=11, evaluate_every=5))
    first, second = [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]
    ends = [[("end_epoch", epoch), "evaluate"] for epoch in (0, 1)]
    assert workload.calls == ["begin", "evaluate", *first, *ends[0], *second, *ends[1], 10, "evaluate"]


def test_an_evaluation_that_draws_random_numbers_changes_no_step(tmp_path, whole):
    train_toy(tmp_path / "run", plan=toy_plan(evaluate_every=1))
    assert_same(final_state(tmp_path / "run")["workload"], final_state(whole)["workload"])
    assert_same(final_state(tmp_path / "run")["random"], final_state(whole)["random"])


def test_checkpoints_hold_the_state_of_their_step(tmp_path, whole):
    names = sorted(path.name.split("-")[1] for path in (whole / "checkpoints").iterdir())
    assert names == ["00000018", "00000020"]
    assert final_state(whole)["workload"]["solver"]["steps"] == 20


def test_without_checkpoints_there_is_one_only_of_a_run_that_was_interrupted(tmp_path, whole):
    never = toy_plan(checkpoint_every=None)
    outcome = train_toy(tmp_path / "run", plan=never)
    assert outcome.state == "finished"
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert metrics(tmp_path / "run") == metrics(whole)
    assert train_toy(tmp_path / "bad", ToyWorkload(bad_from=9), never).state == "diverged"
    assert not (tmp_path / "bad" / "checkpoints").exists()
    assert train_toy(tmp_path / "part", ToyWorkload(on_step=stop_at(7)), never).state == "interrupted"
    assert final_state(tmp_path / "part")["step"] == 8
    assert "Resumed from the checkpoint of step 8." in spoken(tmp_path / "part", plan=never)
    assert metrics(tmp_path / "part") == metrics(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("step", [0, 7, 11, 19])  # 11: the evaluation and the checkpoint that follow are due
def test_a_signal_ends_the_step_and_writes_a_checkpoint_from_which_the_run_goes_on(tmp_path, whole, number, step):
    path = tmp_path / "run"
    outcome = train_toy(path, ToyWorkload(on_step=stop_at(step, number)))
    assert (outcome.state, outcome.step, outcome.signal) == ("interrupted", step + 1, number)
    status = RunFolder.open(path).status
    assert (status["state"], status["step"]) == ("interrupted", step + 1)
    assert number.name in status["reason"]
    assert final_state(path)["step"] == step + 1
    assert f"Resumed from the checkpoint of step {step + 1}." in spoken(path)
    assert_same_run(path, whole)


def test_a_run_that_is_stopped_at_every_single_step_is_the_same_run(tmp_path, whole):
    path = tmp_path / "run"
    outcomes = [train_toy(path, ToyWorkload(on_step=stop_at(step))) for step in range(20)]
    assert [outcome.step for outcome in outcomes] == list(range(1, 21))
    assert train_toy(path).state == "finished"
    assert_same_run(path, whole)


@pytest.mark.parametrize("method", ["begin", "evaluate", "state_dict"])
def test_a_signal_outside_of_a_step_waits_for_the_end_of_what_is_being_done(tmp_path, whole, method):
    path, workload = tmp_path / "run", ToyWorkload()
    work = getattr(workload, method)
    setattr(workload, method, lambda: os.kill(os.getpid(), signal.SIGTERM) or work())
    outcome = train_toy(path, workload)
    assert (outcome.state, outcome.step) == ("interrupted", 0)
    train_toy(path)
    assert_same_run(path, whole)


def test_the_signals_are_as_before_when_the_loop_has_ended(tmp_path):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    train_toy(tmp_path / "run", ToyWorkload(on_step=stop_at(2)))
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_second_interrupt_is_obeyed_at_once_and_costs_the_steps_since_the_checkpoint(tmp_path, whole):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_toy(path, ToyWorkload(on_step=stop_at(9, signal.SIGINT, times=2)))
    assert final_state(path)["step"] == 6
    assert RunFolder.open(path).status["state"] == "interrupted"
    train_toy(path)
    assert_same_run(path, whole)


def test_a_second_signal_to_terminate_does_what_it_does_without_us(tmp_path, monkeypatch):
    class Ended(BaseException):
        pass

    def end(number):
        raise Ended(number, signal.getsignal(number))

    monkeypatch.setattr(signal, "raise_signal", end)
    with pytest.raises(Ended) as ended:
        train_toy(tmp_path / "run", ToyWorkload(on_step=stop_at(9, signal.SIGTERM, times=2)))
    assert ended.value.args == (signal.SIGTERM, signal.SIG_DFL)
    assert final_state(tmp_path / "run")["step"] == 6


def test_a_run_works_in_a_thread_where_there_are_no_signals(tmp_path, whole):
    thread = threading.Thread(target=train_toy, args=(tmp_path / "run",))
    thread.start()
    thread.join()
    assert_same_run(tmp_path / "run", whole)


def test_a_finished_run_is_left_alone_and_that_is_said(tmp_path, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != "lock"}
    workload = ToyWorkload()
    assert "is finished, there is nothing to do" in spoken(whole, workload=workload)
    assert workload.calls == []
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != "lock"} == before


@pytest.mark.parametrize("damage", [b"", b"text", None])
def test_after_damage_to_the_newest_checkpoint_the_run_is_still_the_same(tmp_path, whole, damage):
    path = tmp_path / "run"
    train_toy(path, ToyWorkload(on_step=stop_at(14)))
    newest = max((path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] if damage is None else damage)
    (path / "checkpoints" / ".step-00000013.pt.partial").write_text("left over")
    (path / ".metrics.jsonl.partial").write_text("left over")
    said = spoken(path)
    assert newest.name in said
    assert "Resumed from the checkpoint of step 12." in said
    assert_same_run(path, whole)


def test_without_any_checkpoint_the_run_begins_again(tmp_path, whole):
    path = tmp_path / "run"
    train_toy(path, ToyWorkload(on_step=stop_at(14)))
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    assert "the run begins again" in spoken(path)
    assert_same_run(path, whole)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    run = toy_run(tmp_path / "run")
    checkpoint.save(run.checkpoints, 3, {"step": 3, "weights": torch.ones(2)})
    with pytest.raises(RunError, match="lacks 'seconds'"):
        train_toy(run.path)


def test_a_loss_that_is_not_finite_ends_the_run_with_the_reason_and_the_last_good_state(tmp_path):
    path = tmp_path / "run"
    outcome = train_toy(path, ToyWorkload(bad_from=9))
    assert (outcome.state, outcome.step) == ("diverged", 9)
    assert "Not a finite number" in outcome.reason
    status = RunFolder.open(path).status
    assert (status["state"], status["reason"], status["step"]) == ("diverged", outcome.reason, 9)
    train_toy(tmp_path / "good", plan=toy_plan(steps=9))
    solver, good = (final_state(p)["workload"]["solver"] for p in (path, tmp_path / "good"))
    assert solver.pop("ledger")["grad_y_f"] == good.pop("ledger")["grad_y_f"] + 1  # the failed step has cost something
    assert_same(solver, good)
    assert metrics(path) == metrics(tmp_path / "good")[:-1]  # which has one more, at its end


def test_a_run_that_has_diverged_is_not_resumed(tmp_path):
    train_toy(tmp_path / "run", ToyWorkload(bad_from=9))
    with pytest.raises(RunError, match="has diverged at step 9 and would do so again: Not a finite number"):
        train_toy(tmp_path / "run")


def test_scores_that_are_not_finite_end_the_run_and_the_checkpoint_before_is_kept(tmp_path):
    path = tmp_path / "run"
    outcome = train_toy(path, ToyWorkload(bad_scores_from=8))
    assert (outcome.state, outcome.step) == ("diverged", 8)
    assert "at step 8 is not finite: train fit = inf, test fit = inf" in outcome.reason
    assert metrics(path)[-1]["test"]["fit"] is None
    assert final_state(path)["step"] == 6


def test_a_bad_value_that_comes_to_light_late_is_found_before_a_checkpoint_is_written(tmp_path):
    """As on CUDA, where a step does not wait to be judged."""

    class Late(ToyWorkload):
        def check(self):
            if self.solver.steps > 10:
                raise NonFiniteError("In an earlier step the upper loss was NaN.")

    outcome = train_toy(tmp_path / "run", Late(), toy_plan(evaluate_every=20, checkpoint_every=6))
    assert outcome == Outcome("diverged", "In an earlier step the upper loss was NaN.", 12)
    assert [evaluation["step"] for evaluation in metrics(tmp_path / "run")] == [0]


def test_an_error_of_the_workload_passes_and_the_run_can_go_on(tmp_path, whole):
    path = tmp_path / "run"

    def fail(number):
        if number == 13:
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        train_toy(path, ToyWorkload(on_step=fail))
    status = RunFolder.open(path).status
    assert (status["state"], status["reason"]) == ("failed", "ZeroDivisionError: a bug")
    train_toy(path)
    assert_same_run(path, whole)


def test_a_disk_that_is_full_for_a_while_costs_the_steps_since_the_checkpoint(tmp_path, whole, monkeypatch):
    path, calls = tmp_path / "run", itertools.count()
    fsync = os.fsync

    def full(handle):
        if next(calls) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"cannot be written: no space left on device\."):
            train_toy(path)
    assert 0 <= final_state(path)["step"] < 20
    assert not list(path.rglob("*.partial"))
    train_toy(path)
    assert_same_run(path, whole)


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ({"epochs": 2.0}, 10),
        ({"epochs": 1.1}, 6),
        ({"steps": 7}, 7),
        ({"oracle_calls": 32}, 5),  # 2 + 6 per step
        ({"oracle_calls": 33}, 6),
        ({"epochs": 2.0, "steps": 7, "oracle_calls": 26, "seconds": 1e6}, 4),
    ],
)
def test_a_run_ends_when_its_budget_is_spent(tmp_path, budget, steps):
    outcome = train_toy(tmp_path / "run", plan=Plan(Budget(**budget), 3, 100, events=False))
    assert (outcome.state, outcome.step) == ("finished", steps)
    assert metrics(tmp_path / "run")[-1]["step"] == steps


def test_seconds_are_those_of_warm_start_and_steps_and_go_on_after_a_stop(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1e6)

    class Timed(ToyWorkload):
        """A step takes a second, a warm start ten, and what does not count hundreds."""

        def step(self, number):
            clock.now += 1
            return super().step(number)

        def begin(self):
            clock.now += 10
            super().begin()

        def evaluate(self):
            clock.now += 200
            return super().evaluate()

        def state_dict(self):
            clock.now += 300
            return super().state_dict()

    class Told(Progress):
        def advanced(self, step, limit, seconds, share, loss):
            told.append((step, seconds))

    told = []
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    path, plan = tmp_path / "run", Plan(Budget(seconds=22.5), 6, 5, events=False)
    progress = Told(Console(quiet=True), quiet=True)
    assert train_toy(path, Timed(on_step=stop_at(7)), plan, progress).step == 8
    assert set(told) >= {(0, 10.0), (6, 16.0)}
    assert all(seconds == 10 + step for step, seconds in told)
    clock.now += 1e5
    assert train_toy(path, Timed(), plan) == Outcome("finished", "The budget is spent: seconds=22.5.", 13)
    evaluations = RunFolder.open(path).evaluations
    assert [(e["step"], e["seconds"]) for e in evaluations] == [(0, 10.0), (6, 16.0), (12, 22.0), (13, 23.0)]


def test_a_budget_without_an_end_or_below_zero_is_refused():
    with pytest.raises(ConfigError, match="needs an end"):
        Budget()
    for bad in ({"steps": 0}, {"epochs": -1.0}, {"seconds": float("nan")}, {"epochs": float("inf")}):
        with pytest.raises(ConfigError, match="no end of a run"):
            Budget(**bad)
    with pytest.raises(ConfigError, match="checkpoint_every=0"):
        Plan(Budget(steps=1), 1, 0)


@pytest.mark.parametrize(("epochs", "per_epoch", "steps"), [(0.1, 30, 3), (20, 20, 400), (0.01, 5, 1), (1 / 3, 3, 1)])
def test_epochs_are_whole_numbers_of_steps(epochs, per_epoch, steps):
    assert Budget(epochs=epochs).steps_limit(per_epoch) == steps
    assert Budget(epochs=epochs).reached(steps, per_epoch, 0.0, 0) == f"The budget is spent: epochs={epochs}."
    assert Budget(epochs=epochs).reached(steps - 1, per_epoch, 0.0, 0) is None


def test_samples_and_the_cost_of_knowing_the_curvature_are_no_oracle_calls():
    assert oracle_calls({"grad_x_f": 1, "grad_y_g": 2, "cross_vector": 4, "curvature_vector": 8, "samples": 16}) == 7


def test_the_status_names_the_best_evaluation(whole):
    best = max(metrics(whole), key=lambda evaluation: evaluation["test"]["fit"])
    expected = {"split": "test", "metric": "fit", "value": best["test"]["fit"], "step": best["step"]}
    assert RunFolder.open(whole).status["best"] == expected


def shown(path, workload=None, **options):
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=options.pop("terminal"))
    train_toy(path, workload, progress=Progress(console, **options))
    return file.getvalue()


def test_a_terminal_shows_one_live_line(tmp_path):
    text = shown(tmp_path / "run", terminal=True, every=0.0, label="toy")
    assert "\x1b[" in text
    assert "━" in text
    last = metrics(tmp_path / "run")[-1]
    for part in (f"loss {last['loss']:.4g}", f"fit train {last['train']['fit']:.4g} test", "steps/s", "left", "20/20"):
        assert part in text


def test_a_file_gets_one_plain_line_per_evaluation(tmp_path):
    text = shown(tmp_path / "run", terminal=False, label="toy")
    assert "\x1b" not in text
    lines = text.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"toy: step {step}/20" for step in (0, 4, 8, 12, 16, 20)]
    assert all(part in lines[3] for part in ("loss ", "fit train ", " test ", "steps/s", "left"))


def test_a_long_way_to_the_next_evaluation_is_shown_too(tmp_path):
    text = shown(tmp_path / "run", terminal=False, every=0.0)
    assert [f"step {step}/20," in text for step in range(1, 21)] == [True] * 20


def test_the_time_that_is_left_follows_from_the_share_of_the_budget():
    file = io.StringIO()
    progress = Progress(Console(file=file, width=120))
    progress.advanced(10, 100, 5.0, 0.1, None)
    progress.advanced(40, 100, 65.0, 0.4, 0.25)
    assert file.getvalue() == "step 10/100\nstep 40/100, loss 0.25, 0.5 steps/s, 0:02:00 left\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_shows_nothing(tmp_path, terminal):
    assert shown(tmp_path / "run", terminal=terminal, every=0.0, quiet=True) == ""


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "the terminal is gone")])
@pytest.mark.parametrize("writes", [0, 1, 5])
def test_a_terminal_that_goes_away_does_not_end_the_run(tmp_path, terminal, error, writes, monkeypatch):
    left = iter(range(writes))

    class Gone(io.StringIO):
        def write(self, text):
            if next(left, None) is None:
                raise error

    monkeypatch.setattr(Console, "on_broken_pipe", lambda console: sys.exit(1))  # as it does, but for the stdout here
    console = Console(file=Gone(), force_terminal=terminal)
    outcome = train_toy(tmp_path / "run", progress=Progress(console, every=0.0))
    assert outcome.state == "finished"


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_events_are_those_of_the_metrics_also_after_a_resume(tmp_path):
    path, plan = tmp_path / "run", toy_plan(events=True)
    with pytest.raises(KeyboardInterrupt):  # at step 10, so that the evaluation at 8 is made twice
        train_toy(path, ToyWorkload(on_step=stop_at(10, signal.SIGINT, times=2)), plan)
    assert [step for step, _ in scalars(path / "events")["test/fit"]] == [0, 4, 8]
    train_toy(path, plan=plan)
    read = scalars(path / "events")
    assert [step for step, _ in read["test/fit"]] == [0, 4, 8, 12, 16, 20]
    for tag, find in {
        "test/fit": lambda evaluation: evaluation["test"]["fit"],
        "train/loss": lambda evaluation: evaluation["train"]["loss"],
        "oracle_calls": lambda evaluation: evaluation["oracle_calls"],
    }.items():
        truth = [(evaluation["step"], find(evaluation)) for evaluation in metrics(path)]
        assert [step for step, _ in read[tag]] == [step for step, _ in truth]
        assert [value for _, value in read[tag]] == pytest.approx([value for _, value in truth], rel=1e-6)


def test_without_tensorboard_there_are_no_events_and_that_is_said_once(tmp_path, monkeypatch, whole):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = spoken(tmp_path / "run", plan=toy_plan(events=True))
    assert said.count("not installed") == 1
    assert_same_run(tmp_path / "run", whole)


def test_a_writer_that_fails_ends_the_events_and_not_the_run(tmp_path, monkeypatch, whole):
    from torch.utils.tensorboard import SummaryWriter

    def fail(writer):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(SummaryWriter, "flush", fail)
    said = spoken(tmp_path / "run", plan=toy_plan(events=True))
    assert said.count("There are no more events for TensorBoard: OSError") == 1
    assert_same_run(tmp_path / "run", whole)


def interrupted(path, step=9):
    train_toy(path, ToyWorkload(on_step=stop_at(step)))
    return RunFolder.open(path)


def changed_checkpoint(run, **changes):
    """The newest checkpoint with other content, in order otherwise."""
    step, state = checkpoint.newest(run.checkpoints, pytest.fail)
    checkpoint.save(run.checkpoints, step, state | changes)


@pytest.mark.parametrize(("old", "new"), [("seed: 7", "seed: 8"), ("experiment: toy", "experiment: other")])
def test_a_configuration_that_was_edited_is_not_mixed_into_the_run(tmp_path, whole, old, new):
    run = interrupted(tmp_path / "run")
    config = run.path / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace(old, new))
    with pytest.raises(RunError, match=r"config\.yaml or the checkpoint is not what the run was made with"):
        train_toy(run.path)
    config.write_text(before)
    train_toy(run.path)
    assert_same_run(run.path, whole)


def test_a_run_may_be_prolonged(tmp_path):
    run = interrupted(tmp_path / "run")
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("seed: 7", "seed: 7\n  steps: 22\n  threads: 3"))
    assert train_toy(run.path, plan=toy_plan(steps=22)).step == 22


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    other = RunFolder.create(tmp_path / "other", "toy", "default", {"seed": 8}, {}, {})
    interrupted(other.path)
    run = interrupted(tmp_path / "run")
    for file in run.checkpoints.iterdir():
        file.unlink()
    for file in other.checkpoints.iterdir():
        file.rename(run.checkpoints / file.name)
    with pytest.raises(RunError, match=r"config\.yaml or the checkpoint is not what the run was made with"):
        train_toy(run.path)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "10"},
        {"step": -10},
        {"step": 9},
        {"step": None},
        {"step": torch.ones(2)},
        {"seconds": "long"},
        {"seconds": float("nan")},
        {"seconds": -1.0},
        {"evaluated": None},
        {"evaluated": 11},
        {"loss": None},
        {"loss": {"count": 2, "total": None}},
        {"loss": {"count": 0, "total": torch.tensor(1.0).double()}},
        {"loss": {"count": 2, "total": torch.ones(3).double()}},
        {"loss": {"count": 2, "total": 1.0}},
        {"random": {}},
        {"random": {"cpu": None, "cuda": []}},
        {"random": {"cpu": torch.ones(3), "cuda": []}},
        {"random": {"cpu": torch.ones(3, dtype=torch.uint8), "cuda": []}},
        {"random": {"cpu": torch.Generator().manual_seed(0).get_state(), "cuda": None}},
        {"workload": {}},
        {"workload": None},
        {"workload": {"other": 3}},
        {"fingerprint": torch.ones(2)},
        {"fingerprint": "abc"},
    ],
    ids=str,
)
def test_a_checkpoint_with_content_of_another_form_is_one_sentence(tmp_path, changes):
    run = interrupted(tmp_path / "run")
    changed_checkpoint(run, **changes)
    with pytest.raises(RunError, match=r"^The checkpoint in .*run.checkpoints (is damaged|does not belong)"):
        train_toy(run.path)
    assert run.status["state"] == "failed"  # and can be read


def test_a_state_that_the_workload_refuses_keeps_its_sentence(tmp_path):
    class Proud(ToyWorkload):
        def load_state_dict(self, state):
            raise StateError("Not mine.")

    run = interrupted(tmp_path / "run")
    with pytest.raises(StateError, match=r"^Not mine\.$"):
        train_toy(run.path, Proud())


@pytest.mark.parametrize("left", [None, 0, 1, 2])
def test_evaluations_that_the_checkpoint_knows_must_be_there(tmp_path, left):
    run = interrupted(tmp_path / "run")  # after step 10: evaluations at 0, 4 and 8
    file = run.path / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    file.unlink()
    if left is not None:
        file.write_text("".join(lines[:left]))
    with pytest.raises(RunError, match=r"metrics\.jsonl lacks the evaluation at step 8"):
        train_toy(run.path)
