"""What a search has tried, as a file that can be kept without the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adambo.errors import RunError
from adambo.experiments.config import defaults
from adambo.experiments.configure import Configured
from adambo.experiments.presets import Range, laid_over
from adambo.experiments.runner import data_files
from adambo.training.forms import lines_of
from adambo.training.manifest import manifest
from adambo.training.run_folder import RunFolder


class TrialRecord:
    """A file of JSON lines: one about the search, then one per trial; no score of the test split."""

    def __init__(
        self, file: Path, base: Configured, ranges: Mapping[str, Range], objective: str, command: Sequence[str]
    ) -> None:
        self._file = file
        about = {
            "experiment": base.experiment,
            "algorithm": base.config.algorithm,
            "preset": base.preset,
            "config": {key: value for key, value in base.values.items() if key != "data_dir"},
            "ranges": dict(ranges),
            "objective": objective,
        }
        if self._file.exists():
            self._refuse_another(about, base)
        else:
            self._write({"about": about, "manifest": manifest(data_files(base), command)})

    def add(
        self,
        number: int,
        values: Mapping[str, Any],
        state: str,
        reason: str,
        folder: Path | None = None,
        value: float | None = None,
        again: bool = False,
    ) -> None:
        """A trial has ended; `again` says that it was made once more, at full length."""
        evaluations = [] if folder is None else RunFolder.open(folder).evaluations
        last = {key: evaluations[-1].get(key) if evaluations else None for key in ("step", "epoch", "oracle_calls")}
        told = {"trial": number, "values": dict(values), "state": state, "reason": reason, "score": value}
        self._write(told | last | ({"again": True} if again else {}))

    def read(self) -> list[dict[str, Any]]:
        """All trials, in the order in which they ended."""
        return lines_of(self._file)[1:]

    def _refuse_another(self, about: dict[str, Any], base: Configured) -> None:
        """Refuse a record of a search for something else: its trials cannot be compared with ours."""
        first, here = (lines_of(self._file) or [{}])[0].get("about"), json.loads(json.dumps(about))
        there = first if isinstance(first, dict) else {}
        other = [key for key in here if key != "config" and there.get(key) != here[key]]
        then, now = (
            defaults(type(base.config)) | laid_over({}, there.get("config") or {}),
            laid_over({}, here["config"]),
        )
        # Where runs are made is no part of what they are; of the algorithm, an older record may lack a setting.
        other += [key for key in now if key not in ("device", "threads") and key in then and then[key] != now[key]]
        if other:
            raise RunError(
                f"{self._file} is the record of a search with another {other[0]}. Move it away, or search as it did."
            )

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:  # a line at a time, so that processes may share it
            file.write(json.dumps(record) + "\n")
