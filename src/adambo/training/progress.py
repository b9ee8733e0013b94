"""How a run is going, for whoever watches: one live line on a terminal, plain lines in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Self

from rich import progress as rich_progress
from rich.console import Console


class Progress:
    """Shows loss, metric, speed and the time that is left. A terminal that goes away does not end the run.

    Args:
        console: Where to.
        quiet: Say what matters, such as a damaged checkpoint, but show no progress.
        label: Begins every line, to tell runs apart.
        live: A line that is updated in place; by default, on terminals.
        every: Seconds between two updates; by default 0.25 live and 60 in plain lines, where evaluations show too.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        quiet: bool = False,
        label: str = "",
        live: bool | None = None,
        every: float | None = None,
    ) -> None:
        self._console = Console() if console is None else console
        self._quiet, self._label = quiet, label
        self._live = self._console.is_terminal if live is None else live
        self._every = every if every is not None else 0.25 if self._live else 60.0
        self._bar: rich_progress.Progress | None = None
        self._start: tuple[int, float, float] | None = None
        self._next = time.monotonic() + self._every
        self._scores = ""

    def __enter__(self) -> Self:
        if self._live and not self._quiet:
            self._bar = rich_progress.Progress(
                rich_progress.BarColumn(bar_width=20),
                rich_progress.TextColumn("{task.description}", markup=False),
                console=self._console,
                auto_refresh=False,
            )
            self._bar.add_task("starting", total=1.0)
            if not self._without_harm(self._bar.start):
                self._bar = None
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar, None
            self._without_harm(bar.stop)

    def say(self, sentence: str) -> None:
        """A sentence that whoever watches should read, quiet or not."""
        text = f"{self._label}: {sentence}" if self._label else sentence
        self._without_harm(lambda: self._console.print(text, markup=False, highlight=False, soft_wrap=True))

    def due(self) -> bool:
        """Whether it is time to call `advanced`; asked in every step, so it costs nothing."""
        return not self._quiet and time.monotonic() >= self._next

    def advanced(self, step: int, limit: int | None, seconds: float, share: float, loss: float | None) -> None:
        """The run stands at `step`.

        Args:
            step: The steps made.
            limit: At which it ends, if that is known.
            seconds: Of training up to now.
            share: Of the budget that is used.
            loss: The mean since the last evaluation.
        """
        if self._quiet:
            return
        self._start = self._start or (step, seconds, share)
        self._next = time.monotonic() + self._every
        parts = [f"step {step}" if limit is None else f"step {step}/{limit}"]
        parts += [] if loss is None else [f"loss {loss:.4g}"]
        parts += [self._scores] if self._scores else []
        self._show(", ".join([*parts, *self._speed(step, seconds, share)]), share)

    def evaluated(self, evaluation: Mapping[str, Any], metric: str) -> None:
        """An evaluation was made, one line of metrics.jsonl: its scores are shown from now on."""
        splits = [split for split in ("train", "validation", "test") if split in evaluation]
        self._scores = " ".join([metric, *(f"{split} {_number(evaluation[split].get(metric))}" for split in splits)])

    def _speed(self, step: int, seconds: float, share: float) -> list[str]:
        assert self._start is not None
        steps, spent, used = (now - then for now, then in zip((step, seconds, share), self._start, strict=True))
        if steps <= 0 or spent <= 0 or used <= 0:
            return []
        left = timedelta(seconds=round(spent / used * (1.0 - share)))
        return [f"{steps / spent:.3g} steps/s", *([f"{left} left"] if share < 1 else [])]

    def _show(self, text: str, share: float) -> None:
        text = f"{self._label}: {text}" if self._label else text
        if self._bar is not None:
            bar = self._bar
            self._without_harm(lambda: bar.update(bar.task_ids[0], description=text, completed=share, refresh=True))
        else:
            self._without_harm(lambda: self._console.print(text, markup=False, highlight=False, soft_wrap=True))

    def _without_harm(self, show: Callable[[], None]) -> bool:
        try:
            show()
        except (OSError, SystemExit):  # nobody reads any more; rich wants to exit at a closed pipe
            self._console.quiet = True
            return False
        return True


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
