"""What a search has tried, as a file that can be kept without the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adambo.experiments.configure import Configured
from adambo.experiments.presets import Range
from adambo.experiments.runner import data_files
from adambo.training.manifest import manifest
from adambo.training.run_folder import RunFolder


class TrialRecord:
    """A file of JSON lines: one about the search, then one per trial; no score of the test split."""

    def __init__(
        self, file: Path, base: Configured, ranges: Mapping[str, Range], objective: str, command: Sequence[str]
    ) -> None:
        self._file = file
        if not self._file.exists():
            about = {
                "experiment": base.experiment,
                "algorithm": base.config.algorithm,
                "preset": base.preset,
                "config": {key: value for key, value in base.values.items() if key != "data_dir"},
                "ranges": dict(ranges),
                "objective": objective,
            }
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
        _, *lines = self._file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:  # a line at a time, so that processes may share it
            file.write(json.dumps(record) + "\n")
