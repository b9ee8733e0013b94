"""The records of searches: a file of JSON lines each, what it was about and then its trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adambo.errors import RunError
from adambo.report.records import number
from adambo.reproduction.labels import palette_place, written_label
from adambo.training.forms import is_step, lines_of


@dataclass(frozen=True)
class Search:
    """One search: what it was about, and its trials."""

    label: str
    about: dict[str, Any]
    trials: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return written_label(self.label, str(self.about.get("algorithm", self.label)))

    @property
    def first_round(self) -> list[dict[str, Any]]:
        """All trials, without those that were made again at full length."""
        return [trial for trial in self.trials if not trial.get("again")]

    @property
    def finished(self) -> list[dict[str, Any]]:
        """Those of the first round that came to their end with a score."""
        return [trial for trial in self.first_round if _has_score(trial)]

    @property
    def second_round(self) -> list[dict[str, Any]]:
        """Those that were made again at full length."""
        return [trial for trial in self.trials if trial.get("again")]

    @property
    def again(self) -> list[dict[str, Any]]:
        """Those of the second round that came to their end with a score."""
        return [trial for trial in self.second_round if _has_score(trial)]

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The trial with the highest validation score, of those made again if some were; of two, the first.

        None if there is none: what diverged when it was made again is not chosen for its short run.
        """
        among = self.again if self.second_round else self.finished
        return max(among, key=lambda trial: float(trial["score"]), default=None)


def searches(folder: Path) -> list[Search]:
    """Every search of a case, in the palette's order of algorithms.

    Raises:
        RunError: For a file that is damaged.
    """
    found = [_search(path) for path in sorted(folder.glob("*.jsonl"))]
    return sorted(found, key=lambda s: (palette_place(str(s.about.get("algorithm"))), len(s.label), s.label))


def _has_score(trial: dict[str, Any]) -> bool:
    return trial["state"] == "finished" and trial["score"] is not None


def _search(path: Path) -> Search:
    first, *trials = lines_of(path) or [{}]
    if not isinstance(first.get("about"), dict):
        raise RunError(f'{path} is damaged: its first line must be {{"about": {{...}}}}, which says what was searched.')
    for trial in trials:
        fits = isinstance(trial.get("values"), dict) and isinstance(trial.get("state"), str)
        if not fits or not is_step(trial.get("trial")) or "score" not in trial:
            raise RunError(f"{path} is damaged: a trial has trial (a number), values, state and score.")
        trial["score"] = number(trial["score"])
    return Search(path.stem, first["about"], trials)
