"""The best trials of a search, made again at full length: short runs favour what starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from adambo.experiments import runner
from adambo.experiments.lines import line
from adambo.experiments.sweep import BAD_SETTINGS, Ended, Search, record_of, score, written


def make_again(search: Search, count: int, epochs: float, console: Console) -> Ended:
    """Make the `count` best trials again with so many epochs; those that have been are left as they are.

    Raises:
        AdamboError: If something is wrong with all runs, such as missing data.
    """
    record = record_of(search)
    trials = record.read()
    done = {trial["trial"] for trial in trials if trial.get("again")}
    for trial in finalists(trials, count):
        number, values = trial["trial"], trial["values"]
        if number in done:
            continue
        configured = search.configured({**values, "epochs": epochs})
        folder = search.folder / f"again-{number:05d}"
        try:
            outcome = runner.run(configured, folder, console, quiet=True, command=search.command)
        except BAD_SETTINGS as error:
            record.add(number, values, "failed", str(error), again=True)
            line(console, f"Trial {number} again: failed. {error}")
            continue
        if outcome.state == "interrupted":
            return Ended(outcome.signal)
        value = score(folder, search.objective, configured) if outcome.state == "finished" else None
        record.add(number, values, outcome.state, outcome.reason, folder, value, again=True)
        said = outcome.reason if value is None else f"{search.objective} {value:.4f} after {epochs:g} epochs"
        line(console, f"Trial {number} again: {outcome.state}. {said}")
    return Ended()


def finalists(trials: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The `count` best of the first round; of two that are equal, the earlier.

    Example:
        >>> trials = [{"trial": k, "score": s} for k, s in enumerate((0.2, None, 0.9, 0.5))]
        >>> [trial["trial"] for trial in finalists(trials, 2)]
        [2, 3]
    """
    first = [trial for trial in trials if not trial.get("again") and trial["score"] is not None]
    return sorted(first, key=lambda trial: (-trial["score"], trial["trial"]))[:count]


def best_again(search: Search, given: Mapping[str, Any], epochs: float) -> str | None:
    """The best of those made again, as YAML for `--config`; None if every one has failed."""
    made = [trial for trial in record_of(search).read() if trial.get("again") and trial["score"] is not None]
    if not made:
        return None
    found = max(made, key=lambda trial: trial["score"])
    head = f"# trial {found['trial']}, again with {epochs:g} epochs: {search.objective} {found['score']:.4f}"
    return written(search, {**given, **found["values"], "epochs": epochs}, head)
