"""The folder of one run: its configuration, where it comes from, its evaluations and how it stands.

config.yaml      {"experiment": name, "preset": name, "config": {...}, "sources": {dotted key: where it comes from}}
manifest.json    versions, commit, hardware, hashes of the data, command, date
metrics.jsonl    one JSON object per evaluation
status.json      {"state": "running", "reason": "...", "step": 40, "best": ...}
events/          for TensorBoard
checkpoints/     the newest two
lock             held while a process works on the run
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from adambo.errors import RunError
from adambo.training import atomic, lock

STATES = ("running", "finished", "interrupted", "diverged", "failed")
_CREATED = {"lock", "manifest.json", "status.json"}  # what an interrupted creation may leave


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
        text = _read(path / "config.yaml")
        try:
            header = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RunError(
                f"{path / 'config.yaml'} is damaged, it is no YAML: {' '.join(str(error).split())}."
            ) from error
        form = {"experiment": str, "preset": str, "config": dict, "sources": dict}
        if not isinstance(header, dict) or any(not isinstance(header.get(key), kind) for key, kind in form.items()):
            raise RunError(
                f"{path / 'config.yaml'} is not that of a run: it needs experiment and preset (names), config and "
                "sources (mappings)."
            )
        return cls(path, header)

    @classmethod
    def find(cls, paths: Iterable[str | Path]) -> list[RunFolder]:
        """All runs in `paths`, each a run or a folder with runs in it, however deep; in the order of their names.

        Raises:
            RunError: If one of the paths holds no run.
        """
        found: dict[Path, RunFolder] = {}
        for path in map(Path, paths):
            folders = list(_runs_below(path)) if path.is_dir() else []
            if not folders:
                raise RunError(
                    f"{path} holds no run: {'no config.yaml below it' if path.is_dir() else 'no such folder'}."
                )
            for folder in folders:
                found.setdefault(folder.resolve(), cls.open(folder))
        return list(found.values())

    @property
    def manifest(self) -> dict[str, Any]:
        return _json_object(self.path / "manifest.json")

    @property
    def status(self) -> dict[str, Any]:
        """How the run stands. One whose process was killed says "running"; `is_locked` tells whether that is so."""
        status = _json_object(self.path / "status.json")
        if status.get("state") not in STATES or not isinstance(status.get("step"), int):
            raise RunError(
                f"{self.path / 'status.json'} is damaged: it needs a step and a state, one of {', '.join(STATES)}."
            )
        return status

    def set_status(self, state: str, reason: str, step: int, best: Mapping[str, Any] | None = None) -> None:
        """Say how the run stands.

        Args:
            state: One of `STATES`.
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
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        return [_evaluation(line, f"{path}, line {number}") for number, line in enumerate(_read(path).splitlines(), 1)]

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


def _evaluation(line: str, where: str) -> dict[str, Any]:
    try:
        evaluation = json.loads(line)
    except ValueError as error:
        raise RunError(f"{where} is damaged, it is no JSON: {error}.") from error
    if not isinstance(evaluation, dict) or type(evaluation.get("step")) is not int:
        raise RunError(f"{where} is damaged: an evaluation is a JSON object with a whole number as its step.")
    return evaluation


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise RunError(f"{path} is damaged, it is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: it holds a {type(value).__name__}, no JSON object.")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is damaged: it is no UTF-8 text.") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {atomic.reason(error)}.") from error


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
