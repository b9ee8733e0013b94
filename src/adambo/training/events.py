"""Evaluations for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Events:
    """Writes the scores of every evaluation, and flushes, so that they can be watched; never ends a run.

    Args:
        folder: Of the event files; each process that works on the run adds one.
        purge_from: TensorBoard forgets what earlier files say about this step and later ones: the run was resumed.
        say: Told, once, why there are no events.
    """

    def __init__(self, folder: Path, purge_from: int | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            say("There are no events for TensorBoard, since it is not installed.")
            return
        with self._unharmed():
            self._writer = SummaryWriter(str(folder), purge_step=purge_from)

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """Add one line of metrics.jsonl."""
        if self._writer is None:
            return
        with self._unharmed():
            for tag, value in _scalars(evaluation):
                self._writer.add_scalar(tag, value, evaluation["step"])
            self._writer.flush()

    def measured(self, measurement: Mapping[str, Any]) -> None:
        """Add one line of monitor.jsonl; its tags begin with "monitor/"."""
        numbers = {name: value for name, value in measurement.items() if name != "step" and _is_number(value)}
        self.evaluated({"step": measurement["step"], "monitor": numbers})

    def close(self) -> None:
        if self._writer is not None:
            with self._unharmed():
                self._writer.close()

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        """Whatever goes wrong in the block ends the events, not the run."""
        try:
            yield
        except Exception as error:
            self._writer = None
            self._say(f"There are no more events for TensorBoard: {type(error).__name__}: {error}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scalars(evaluation: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(tag, value): a score of a split is "test/accuracy", anything else keeps its name."""
    scalars: list[tuple[str, float]] = []
    for name, value in evaluation.items():
        inner = [(f"{name}/{key}", item) for key, item in value.items()] if isinstance(value, Mapping) else []
        scalars += inner or [(name, value)]
    return [(tag, value) for tag, value in scalars if tag != "step" and isinstance(value, int | float)]
