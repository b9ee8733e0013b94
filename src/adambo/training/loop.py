"""The training loop: steps, evaluations and checkpoints of one run, which survives whatever ends its process.

A run that is resumed gives the same states and the same metrics.jsonl (except the seconds) as one that was never
interrupted: a checkpoint holds all that the next steps and evaluations depend on, and evaluations made after it are
dropped and made again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from adambo.errors import AdamboError, ConfigError, NonFiniteError, RunError
from adambo.training import atomic, checkpoint, saved_state
from adambo.training.budget import Budget, oracle_calls
from adambo.training.events import Events
from adambo.training.mean_loss import MeanLoss
from adambo.training.progress import Progress
from adambo.training.random_state import random_state, random_state_kept, set_random_state
from adambo.training.run_folder import RunFolder
from adambo.training.stop_signals import StopSignals
from adambo.training.workload import Workload


@dataclass(frozen=True)
class Plan:
    """What happens when.

    Attributes:
        budget: When the run ends.
        evaluate_every: Steps from one evaluation to the next; the first is before step 0, the last at the end. None:
            only the last.
        checkpoint_every: Steps from one checkpoint to the next, the first before step 0; one more is written whenever
            the run stops. None: only if it is interrupted.
        events: Write event files for TensorBoard.
        monitor_every: Steps from one call of the workload's monitor to the next, the first before step 0; None: none.
    """

    budget: Budget
    evaluate_every: int | None
    checkpoint_every: int | None
    events: bool = True
    monitor_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "checkpoint_every", "monitor_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: give a number of steps, 1 or more.")


@dataclass(frozen=True)
class Outcome:
    """How the work on a run ended.

    Attributes:
        state: "finished", "interrupted" or "diverged".
        reason: A sentence.
        step: The steps made; of a run that diverged on CUDA, where it was noticed.
        signal: Which signal has interrupted it.
    """

    state: str
    reason: str
    step: int
    signal: int | None = None


def train(workload: Workload, run: RunFolder, plan: Plan, progress: Progress) -> Outcome:
    """Work on `run` until its budget is spent, a signal comes, or it diverges.

    It begins anew, or goes on from the newest good checkpoint if there is one. SIGINT, SIGTERM and SIGHUP let the
    current step end and write a checkpoint; a second one is obeyed at once. The caller seeds torch before it builds
    the workload, the same at every attempt.

    Raises:
        RunError: If another process works on the run, it has diverged before, or something cannot be read or written.
        AdamboError: From the workload.
    """
    with run.lock():
        status = run.status
        if status["state"] == "finished":
            progress.say(f"The run {run.path} is finished, there is nothing to do. {status['reason']}")
            return Outcome("finished", status["reason"], status["step"])
        if status["state"] == "diverged":
            raise RunError(
                f"The run {run.path} has diverged at step {status['step']} and would do so again: {status['reason']} "
                "Start a new one with other settings."
            )
        atomic.remove_partials(run.path)
        with StopSignals() as signals, progress:
            return _Training(workload, run, plan, progress, signals).go()


class _Diverged(Exception):
    """An evaluation is not finite."""


class _Training:
    def __init__(
        self, workload: Workload, run: RunFolder, plan: Plan, progress: Progress, signals: StopSignals
    ) -> None:
        self.workload, self.run, self.plan, self.progress, self.signals = workload, run, plan, progress, signals
        self.step = 0
        self.loss = MeanLoss()
        self.evaluated = self.saved = -1  # the last step at which it was done
        self.seconds = 0.0
        self._since: float | None = time.perf_counter()  # None while the clock is stopped
        self._events: Events | None = None

    def go(self) -> Outcome:
        try:
            return self._go()
        except NonFiniteError as error:
            outcome = self._ended("diverged", str(error))
            if self.plan.checkpoint_every is not None:
                self._save()  # the state is the one before the step that failed
            return outcome
        except _Diverged as error:
            return self._ended("diverged", str(error))  # the state is in doubt, the last checkpoint is not
        except KeyboardInterrupt:
            with suppress(RunError):
                self._ended("interrupted", "It was stopped at once; the last checkpoint counts.")
            raise
        except BaseException as error:
            with suppress(RunError):  # a full disk takes no status either
                self._ended("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            if self._events is not None:
                self._events.close()

    def _go(self) -> Outcome:
        self._begin_or_resume()
        while True:
            if self.signals.received is not None:
                with self._clock_stopped():
                    self._save()
                name = self.signals.received.name
                return self._ended("interrupted", f"{name} came; the run can be resumed.", self.signals.received)
            self._observe()
            end = self.plan.budget.reached(*self._spent())
            if end is not None or _is_due(self.plan.evaluate_every, self.step):
                with self._clock_stopped():
                    self._evaluate()
            every = self.plan.checkpoint_every
            if every is not None and (end is not None or _is_due(every, self.step)):
                with self._clock_stopped():
                    self._save()
            if end is not None:
                return self._ended("finished", end)
            if self.signals.received is None:  # it may have come meanwhile
                self._step()

    def _begin_or_resume(self) -> None:
        found = checkpoint.newest(self.run.checkpoints, self.progress.say)
        begun_before = self.run.path.joinpath("events").exists()
        if found is not None:
            self._load(*found)
            self.progress.say(f"Resumed from the checkpoint of step {self.step}.")
        elif self.run.evaluations:
            self.progress.say("There is no checkpoint, so the run begins again.")
        self.run.truncate_after(self.evaluated)
        self.run.truncate_measurements_after(self.step if found is not None else -1)
        self._set_status("running", "A process works on it.")
        if self.plan.events:
            purge_from = self.evaluated + 1 if begun_before else None
            self._events = Events(self.run.path / "events", purge_from, self.progress.say)
        self._since = time.perf_counter()
        if found is None:
            self.workload.begin()

    def _step(self) -> None:
        self.loss.add(self.workload.step(self.step))
        self.step += 1
        if self.step % self.workload.steps_per_epoch == 0:
            self.workload.end_epoch(self.step // self.workload.steps_per_epoch - 1)
        if self.progress.due():
            self._show(self.loss.peek())

    def _observe(self) -> None:
        every = self.plan.monitor_every
        if every is None:
            return
        # Measurements are no part of training; to wait for a device where none is due would slow it down.
        aside = self._clock_stopped() if self.step % every == 0 or self.step < every else nullcontext()
        with aside, random_state_kept():
            measurement = self.workload.observe()
        if measurement is None:
            return
        self.run.record_measurement(measurement)
        if self._events is not None:
            self._events.measured(measurement)
        for warning in measurement.get("warnings", ()):
            self.progress.say(f"Warning at step {self.step}, {warning['name']}. {warning['message']}")

    def _evaluate(self) -> None:
        if self.evaluated == self.step:
            return
        with random_state_kept():
            scores = {split: dict(values) for split, values in self.workload.evaluate().items()}
        oracles = dict(self.workload.oracles())
        evaluation: dict[str, Any] = {
            "step": self.step,
            "epoch": self.step / self.workload.steps_per_epoch,
            "seconds": self.seconds,
            "oracle_calls": oracle_calls(oracles),
            "oracles": oracles,
            "loss": self.loss.value(),
            **scores,
        }
        self.run.record(evaluation)
        self.evaluated, self.saved = self.step, -1  # a checkpoint from before the evaluation is out of date
        self.loss.clear()
        if self._events is not None:
            self._events.evaluated(evaluation)
        self.progress.evaluated(evaluation, self.workload.metric)
        self._show(evaluation["loss"])
        _refuse_if_not_finite(evaluation, scores)
        self._set_status("running", "A process works on it.")

    def _save(self) -> None:
        if self.saved == self.step:
            return
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "evaluated": self.evaluated,
            "loss": self.loss.state_dict(),
            "random": random_state(),
            "workload": self.workload.state_dict(),
            "fingerprint": self.run.fingerprint,
        }
        checkpoint.save(self.run.checkpoints, self.step, state)
        self.saved = self.step

    def _load(self, step: int, state: dict[str, Any]) -> None:
        where = f"The checkpoint in {self.run.checkpoints}"
        saved_state.check(state, step, self.run.fingerprint, where)
        evaluated = state["evaluated"]
        if evaluated >= 0 and all(evaluation["step"] != evaluated for evaluation in self.run.evaluations):
            raise RunError(
                f"{self.run.path / 'metrics.jsonl'} lacks the evaluation at step {evaluated}, which the checkpoint of "
                f"step {step} knows. Put the file back as it was, or start a new run."
            )
        try:
            self.workload.load_state_dict(state["workload"])
            self.loss.load_state_dict(state["loss"])
            set_random_state(state["random"])
        except (AdamboError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # there is no end to what a workload makes of a foreign state
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise RunError(f"{where} is damaged or of another run, its state cannot be loaded: {what}.") from error
        self.step = self.saved = step
        self.seconds, self.evaluated = float(state["seconds"]), evaluated

    def _ended(self, state: str, reason: str, signal: int | None = None) -> Outcome:
        self._set_status(state, reason)
        return Outcome(state, reason, self.step, signal)

    def _set_status(self, state: str, reason: str) -> None:
        self.run.set_status(state, reason, self.step, _best(self.run.evaluations, self.workload.metric))

    def _spent(self) -> tuple[int, int, float, int]:
        """What a budget wants to know."""
        calls = oracle_calls(self.workload.oracles()) if self.plan.budget.oracle_calls is not None else 0
        return self.step, self.workload.steps_per_epoch, self._seconds_now(), calls

    def _seconds_now(self) -> float:
        return self.seconds if self._since is None else self.seconds + time.perf_counter() - self._since

    def _show(self, loss: float | None) -> None:
        spent = self._spent()
        limit = self.plan.budget.steps_limit(self.workload.steps_per_epoch)
        self.progress.advanced(self.step, limit, spent[2], self.plan.budget.share(*spent), loss)

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        """For what is not training. Waits for the device first: its work counts, and a bad value comes to light."""
        self.workload.check()
        self.seconds, self._since = self._seconds_now(), None
        try:
            yield
        finally:
            self._since = time.perf_counter()


def _is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


def _refuse_if_not_finite(evaluation: dict[str, Any], scores: dict[str, dict[str, float]]) -> None:
    values = {"mean upper loss": evaluation["loss"]}
    values |= {f"{split} {name}": value for split, of_split in scores.items() for name, value in of_split.items()}
    bad = [f"{name} = {value}" for name, value in values.items() if value is not None and not math.isfinite(value)]
    if bad:
        raise _Diverged(
            f"The evaluation at step {evaluation['step']} is not finite: {', '.join(bad)}. The run diverges: lower the "
            "learning rates."
        )


def _best(evaluations: list[dict[str, Any]], metric: str) -> dict[str, Any] | None:
    """The best evaluation by `metric`: on the validation split if there is one, else on the test split."""
    for split in ("validation", "test", "train"):
        scored = [(e[split][metric], -e["step"]) for e in evaluations if e.get(split, {}).get(metric) is not None]
        if scored:
            value, step = max(scored)
            return {"split": split, "metric": metric, "value": value, "step": -step}
    return None
