"""The folder of one run: its configuration, where it comes from, its evaluations and how it stands.

config.yaml      {"experiment": name, "preset": name, "config": {...}, "sources": {dotted key: where it comes from}}
manifest.json    versions, commit, hardware, hashes of the data, command, date
metrics.jsonl    one JSON object per evaluation
monitor.jsonl    one JSON object per measurement of the monitor, if there is one
status.json      {"state": "running", "reason": "...", "step": 40, "best": ...}
events/          for TensorBoard
checkpoints/     the newest two
lock             held while a process works on the run
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from adambo.errors import RunError
from adambo.training import atomic, forms, lock
from adambo.training.forms import STATES

_CREATED = {"lock", "manifest.json", "status.json"}  # what an interrupted creation may leave
_WITHOUT_EFFECT = (
    *("epochs", "steps", "seconds", "oracle_calls", "evaluate_every", "evaluate_on", "checkpoint_every"),
    "monitor_every",
    *("data_dir", "device", "threads"),
)


class RunFolder:
    """A run on disk; made by `create`, `open` or `find`.

    Attributes:
        path: The folder.
        experiment, preset: Their names.
        config: All fields of the configuration.
        sources: Where each of them comes from, by dotted key.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.experiment: str = header["experiment"]
        self.preset: str = header["preset"]
        self.config: dict[str, Any] = header["config"]
        self.sources: dict[str, str] = header["sources"]
        self._holds_lock = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        experiment: str,
        preset: str,
        config: Mapping[str, Any],
        sources: Mapping[str, str],
        manifest: Mapping[str, Any],
    ) -> RunFolder:
        """A new run in a folder that is empty or not there yet.

        Raises:
            RunError: If something is in the folder, or it cannot be written.
        """
        path = Path(path)
        header = {"experiment": experiment, "preset": preset, "config": config, "sources": sources}
        run = cls(path, _plain(header))
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_if_used(path)
        except OSError as error:
            raise RunError(f"The run folder {path} cannot be made: {atomic.reason(error)}.") from error
        with run.lock():
            _refuse_if_used(path)  # again: another process may have been faster
            atomic.remove_partials(path)
            atomic.write_text(path / "manifest.json", json.dumps(_finite(_plain(manifest)), indent=2) + "\n")
            run.set_status("running", "It was created and has made no step yet.", 0)
            # The last one: a folder becomes a run when everything else is there.
            text = yaml.safe_dump(_plain(header), sort_keys=False, allow_unicode=True, width=120)
            atomic.write_text(path / "config.yaml", text)
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The run in `path`.

        Raises:
            RunError: If there is none, or its configuration is damaged.
        """
        path = Path(path)
        if not path.is_dir():
            raise RunError(f"{path} is no run: there is no such folder.")
        if not _is_run(path):
            raise RunError(f"{path} is no run: it lacks config.yaml or manifest.json, which every run has.")
        return cls(path, forms.header(path / "config.yaml"))

    @classmethod
    def find(cls, paths: Iterable[str | Path], report: Callable[[str], None] | None = None) -> list[RunFolder]:
        """All runs in `paths`, each a run or a folder with runs in it, however deep; in the order of their names.

        Args:
            paths: Where to look.
            report: Told, in a sentence each, of runs that are left out because their configuration is damaged.

        Raises:
            RunError: If one of the paths holds no run; or one that is damaged, if there is no `report`.
        """
        found: dict[Path, RunFolder | None] = {}
        for path in map(Path, paths):
            folders = list(_runs_below(path)) if path.is_dir() else []
            if not folders:
                raise RunError(
                    f"{path} holds no run: {'no config.yaml below it' if path.is_dir() else 'no such folder'}."
                )
            for folder in folders:
                if folder.resolve() in found:
                    continue
                try:
                    found[folder.resolve()] = cls.open(folder)
                except RunError as error:
                    if report is None:
                        raise
                    found[folder.resolve()] = None
                    report(f"The run {folder} is left out. {error}")
        return [run for run in found.values() if run is not None]

    @property
    def fingerprint(self) -> str:
        """A hash of what decides each step of the run; not of how far it goes, how often it is looked at, or where."""
        decisive = {key: value for key, value in self.config.items() if key not in _WITHOUT_EFFECT}
        return hashlib.sha256(json.dumps([self.experiment, decisive], sort_keys=True).encode()).hexdigest()

    @property
    def manifest(self) -> dict[str, Any]:
        return forms.manifest(self.path / "manifest.json")

    @property
    def status(self) -> dict[str, Any]:
        """How the run stands. One whose process was killed says "running"; `is_locked` tells whether that is so."""
        return forms.status(self.path / "status.json")

    def set_status(self, state: str, reason: str, step: int, best: Mapping[str, Any] | None = None) -> None:
        """Say how the run stands.

        Args:
            state: One of `forms.STATES`.
            reason: A sentence.
            step: The steps made.
            best: The best evaluation up to now, if there is one.
        """
        assert state in STATES, state
        status = {"state": state, "reason": reason, "step": step, "best": None if best is None else dict(best)}
        atomic.write_text(self.path / "status.json", json.dumps(_finite(_plain(status)), indent=2) + "\n")

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations, in the order of their steps.

        Raises:
            RunError: At a damaged line.
        """
        return forms.evaluations(self.path / "metrics.jsonl")

    def record(self, evaluation: Mapping[str, Any]) -> None:
        """Add an evaluation. Numbers come back exactly as they are; NaN and infinities, which JSON lacks, as null."""
        self._write_evaluations([*self.evaluations, _finite(_plain(evaluation))])

    def truncate_after(self, step: int) -> None:
        """Drop the evaluations after `step`: the run goes on from there."""
        evaluations = self.evaluations
        kept = [evaluation for evaluation in evaluations if evaluation["step"] <= step]
        if len(kept) < len(evaluations):
            self._write_evaluations(kept)

    def _write_evaluations(self, evaluations: list[dict[str, Any]]) -> None:
        lines = [json.dumps(evaluation, allow_nan=False) + "\n" for evaluation in evaluations]
        atomic.write_text(self.path / "metrics.jsonl", "".join(lines))

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """What the monitor measured, in the order of the steps; of two at one step, the later.

        Raises:
            RunError: At a damaged line.
        """
        found = {one["step"]: one for one in forms.measurements(self.path / "monitor.jsonl")}
        return [found[step] for step in sorted(found)]

    def record_measurement(self, measurement: Mapping[str, Any]) -> None:
        """Add a line to monitor.jsonl. There may be many of them, so the file is not written anew."""
        line = json.dumps(_finite(_plain(measurement)), allow_nan=False) + "\n"
        try:
            with open(self.path / "monitor.jsonl", "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise RunError(f"{self.path / 'monitor.jsonl'} cannot be written: {atomic.reason(error)}.") from error

    def truncate_measurements_after(self, step: int) -> None:
        """Drop what was measured after `step`, and a line that was cut off: the run goes on from there."""
        path = self.path / "monitor.jsonl"
        if path.exists():
            kept = [json.dumps(one, allow_nan=False) + "\n" for one in self.measurements if one["step"] <= step]
            atomic.write_text(path, "".join(kept))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run, so that no other process works on it; whoever holds it may ask again.

        The system lets it go when the process ends, however it ends.

        Raises:
            RunError: If another process holds it.
        """
        if self._holds_lock:
            yield
            return
        with lock.held(self.path / "lock", f"the run {self.path}"):
            self._holds_lock = True
            try:
                yield
            finally:
                self._holds_lock = False

    def is_locked(self) -> bool:
        """Whether a process works on the run now."""
        return self._holds_lock or lock.is_held(self.path / "lock")


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "manifest.json").is_file()


def _runs_below(folder: Path) -> Iterator[Path]:
    for name, children, _ in os.walk(folder):
        children.sort()
        if _is_run(Path(name)):
            children.clear()  # nothing inside a run is a run
            yield Path(name)


def _refuse_if_used(folder: Path) -> None:
    there = {child.name for child in folder.iterdir() if not child.name.endswith(".partial")}
    if "config.yaml" in there:
        raise RunError(f"{folder} holds a run already. Resume it, or choose another folder.")
    if there and not ("lock" in there and there <= _CREATED):
        raise RunError(f"{folder} is not empty: {', '.join(sorted(there)[:3])}. Choose another folder for the run.")


def _plain(value: Any) -> Any:
    """What YAML and JSON have: tuples become lists, paths strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _finite(value: Any) -> Any:
    """`value` with null for numbers that are not finite, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
