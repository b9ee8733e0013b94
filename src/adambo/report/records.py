"""What a report needs of a run folder, read once and tolerant of what a stopped run leaves out."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from adambo.training.run_folder import RunFolder

Points = list[tuple[float, float]]
LARGEST = 1e100
RELATIVE = ("bias", "cosine")  # to ∇Φ, of what the monitor measures


@dataclass(frozen=True)
class Record:
    """One run. `config` and `manifest` are flat: {"settings.lr": 0.1, ...}."""

    folder: str
    experiment: str
    preset: str
    config: dict[str, Any]
    sources: dict[str, str]
    manifest: dict[str, Any]
    state: str
    reason: str
    evaluations: list[dict[str, Any]]
    measurements: list[dict[str, Any]]

    @classmethod
    def read(cls, run: RunFolder) -> Record:
        """Raises RunError for a record that is damaged, as RunFolder does."""
        status, manifest = run.status, run.manifest
        if isinstance(manifest.get("command"), list):
            manifest["command"] = shlex.join(map(str, manifest["command"]))
        state = status["state"]
        if state == "running" and not run.is_locked():
            state = "unfinished"  # a process that was killed could not write that it was
        return cls(
            folder=str(run.path),
            experiment=printable(run.experiment),
            preset=printable(run.preset),
            config=flat(run.config),
            sources={str(key): str(source) for key, source in run.sources.items()},
            manifest=flat(manifest),
            state=state,
            reason=printable(status.get("reason") or ""),
            evaluations=run.evaluations,
            measurements=run.measurements,
        )

    @property
    def algorithm(self) -> str:
        return printable(self.config.get("algorithm", "unknown"))

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def stopped(self) -> bool:
        """Whether it ended before its end: failed, diverged, interrupted or killed."""
        return self.state not in ("finished", "running")

    @property
    def machine(self) -> str:
        """The GPUs it had, else the processor; empty where the manifest says nothing."""
        gpus, cpu = (self.manifest.get(f"hardware.{part}") for part in ("gpus", "cpu"))
        if isinstance(gpus, list) and gpus and self.config.get("device") != "cpu":
            return ", ".join(
                f"{count} × {name}" if count > 1 else name for name, count in Counter(map(shown, gpus)).items()
            )
        cores = number(self.manifest.get("hardware.cores"))
        return (shown(cpu) + (f", {cores:g} cores" if cores else "")) if cpu else ""

    def source(self, key: str) -> str:
        """Where the value of a dotted key comes from; what is said of a whole holds for its parts."""
        while key and key not in self.sources:
            key = key.rpartition(".")[0]
        return self.sources.get(key, "")

    def points(self, axis: str, split: str, metric: str) -> Points:
        """(axis, score) of every evaluation that has both, by axis; of two at one place, the later."""
        pairs = ((number(e.get(axis)), number(inside(e, split).get(metric))) for e in self.evaluations)
        return sorted({x: y for x, y in pairs if x is not None and y is not None}.items())

    def measured(self, name: str) -> Points:
        """(step, value) of every measurement of the monitor that has the value; nothing is relative to a ∇Φ of zero."""
        known = (m for m in self.measurements if name not in RELATIVE or m.get("hypergradient_norm") != 0)
        pairs = ((number(m["step"]), number(m.get(name))) for m in known)
        return [(step, value) for step, value in pairs if step is not None and value is not None]

    @property
    def warnings(self) -> list[str]:
        """What the monitor warned of, in the order of the steps."""
        given = ((m["step"], warning) for m in self.measurements for warning in m.get("warnings", ()))
        return [
            printable(f"Step {step}, {warning.get('name', 'a warning')}: {warning.get('message', '')}")
            for step, warning in given
        ]

    def last(self, split: str, metric: str) -> float | None:
        scores = self._scores(split, metric)
        return scores[-1] if scores else None

    def best(self, split: str, metric: str) -> float | None:
        return max(self._scores(split, metric), default=None)

    def until(self, epoch: float) -> Record:
        """The same run as it was at that epoch."""
        kept = [e for e in self.evaluations if (at := number(e.get("epoch"))) is not None and at <= epoch]
        return replace(self, evaluations=kept)

    @property
    def epochs(self) -> set[float]:
        """At which it was judged."""
        return {at for each in self.evaluations if (at := number(each.get("epoch"))) is not None}

    def at(self, epochs: Container[float]) -> Record:
        """The same run, judged at these epochs only."""
        return replace(self, evaluations=[each for each in self.evaluations if number(each.get("epoch")) in epochs])

    def cost(self, axis: str) -> float | None:
        """How far it came: epochs, seconds or oracle calls at its last evaluation."""
        return number(self.evaluations[-1].get(axis)) if self.evaluations else None

    def _scores(self, split: str, metric: str) -> list[float]:
        scores = (number(inside(e, split).get(metric)) for e in self.evaluations)
        return [score for score in scores if score is not None]


def inside(evaluation: Mapping[str, Any], split: str) -> Mapping[str, Any]:
    scores = evaluation.get(split)
    return scores if isinstance(scores, Mapping) else {}


def number(value: Any) -> float | None:
    """A finite number, or None for anything else (null stands for a score that is not a number).

    One so large that a deviation, which has squares in it, would not be finite counts as something else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        return None
    return float(value)


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Dotted keys: {"settings": {"lr": 1}} becomes {"settings.lr": 1}. An empty mapping stays, as a value.

    Example:
        >>> flat({"seed": 0, "settings": {"inverse": {"terms": 3}}})
        {'seed': 0, 'settings.inverse.terms': 3}
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{above}{key}"
        leaves.update(flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value})
    return leaves


def shown(value: Any) -> str:
    """A value as people write it.

    Example:
        >>> [shown(value) for value in (1e-8, 0.5, 500, None, True, "auto", [1, 2])]
        ['1e-8', '0.5', '500', 'none', 'yes', 'auto', '[1, 2]']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.10g}").replace("e+", "e")
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return printable(value if isinstance(value, (str, int)) else json.dumps(value, default=str))


def printable(value: Any) -> str:
    """As one line of text in which no character can disturb a figure or a page: what cannot be shown becomes a sign."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in str(value))
