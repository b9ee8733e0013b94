"""A plan: which runs and searches a folder of records should hold, in the order in which they are made.

- runs: paper/bert-trec-shared             # their folder: paper/bert-trec-shared/<label>-seed<k>
  experiment: bert-trec
  values: {adapter: shared}                # of all of them, by dotted name
  labels: [slip, adambo]                   # algorithms; or label: {values of its own}
  seeds: [0, 1, 2]
- search: bert-trec-shared                 # search/bert-trec-shared/<label>.jsonl
  experiment: bert-trec
  values: {adapter: shared}
  labels: {slip: {}, adambo-50: {settings.lower_steps: 50}}
  ranges: [settings.lr=1e-5:1]             # as for `adambo sweep`, for algorithms that have it; else the preset file's
  trials: 16                               # the preset, `evenly` spread ones, and then as Optuna suggests
  evenly: 8
  epochs: 8                                # of a trial
  again: 2                                 # so many, preset and best, are made again with all epochs, and decide
- runs: tuned/bert-trec-shared
  chosen: bert-trec-shared                 # with the values that this search has chosen for the label
  ...

The algorithm of a label is its own `algorithm`, else that of the entry, else the label up to its first dash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_type_hints

import yaml

from adambo.errors import ConfigError
from adambo.experiments.configure import Configured, configure
from adambo.experiments.presets import Range, laid_over, search_space
from adambo.experiments.settings import fields as settings_of
from adambo.experiments.sweep import parsed_range
from adambo.experiments.values import fitted, nearest
from adambo.reproduction.archive import PLACES
from adambo.training import atomic

UNRECORDED = {"checkpoint_every": None}  # records hold no checkpoints, so none are written but by an interrupted run


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What runs and searches have in common."""

    place: str
    experiment: str
    labels: dict[str, dict[str, Any]]
    values: dict[str, Any] = field(default_factory=dict)
    at_once: int | None = None
    """At most so many runs of it side by side."""

    def values_of(self, label: str) -> dict[str, Any]:
        """All that was given for a label, by dotted name, with its algorithm."""
        named = {"algorithm": label.partition("-")[0]}
        return laid_over(laid_over(named, self.values), self.labels[label])

    def configured(self, label: str, more: Mapping[str, Any]) -> Configured:
        """A run of the label."""
        return configure(self.experiment, overrides=laid_over(self.values_of(label), {**UNRECORDED, **more}))


@dataclass(frozen=True, kw_only=True)
class Runs(Entry):
    """Every label with every seed."""

    seeds: list[int]
    chosen: str | None = None


@dataclass(frozen=True, kw_only=True)
class Searches(Entry):
    """A search for every label, all with as many trials of as many epochs."""

    trials: int
    evenly: int
    epochs: float
    again: int = 0
    ranges: list[str] = field(default_factory=list)

    def ranges_of(self, label: str) -> dict[str, Range]:
        """What is varied: what the preset file has for its algorithm, and here what that algorithm can be given."""
        algorithm = self.values_of(label)["algorithm"]
        has = settings_of(algorithm)
        given = dict(map(parsed_range, self.ranges))
        mine = {key: range_ for key, range_ in given.items() if key.removeprefix("settings.").partition(".")[0] in has}
        return {**search_space(self.experiment, algorithm), **mine}


@dataclass(frozen=True)
class Plan:
    """What a folder of records should hold."""

    entries: list[Runs | Searches]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The plan of a file.

        Raises:
            AdamboError: If it cannot be read, or something in it could not be run.
        """
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"The plan {path} cannot be read: {atomic.reason(error)}.") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(
                f"{path} is no plan, such as results/plan.yaml: it is no YAML. {' '.join(str(error).split())}."
            ) from error
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
            raise ConfigError(f"The plan {path} is no list of entries, each of which begins with runs: or search:.")
        plan = cls([_entry(each, f"The plan {path}, entry {number}") for number, each in enumerate(content, 1)])
        plan.check(str(path))
        return plan

    def check(self, name: str) -> None:
        """Refuse a plan of which something could not be run."""
        known = {(each.place, label) for each in self.entries if isinstance(each, Searches) for label in each.labels}
        seen: set[tuple[str, str]] = set()
        for entry in self.entries:
            kind = "search" if isinstance(entry, Searches) else "runs"
            for label in entry.labels:
                where = f"{name}, {kind}: {entry.place}, {label}"
                if (f"{kind} {entry.place}", label) in seen:
                    raise ConfigError(f"{where} stands there twice.")
                seen.add((f"{kind} {entry.place}", label))
                if isinstance(entry, Runs) and entry.chosen is not None and (entry.chosen, label) not in known:
                    raise ConfigError(
                        f"{where} is to have values that are chosen, but no search: {entry.chosen} has it."
                    )
                try:
                    entry.configured(label, {})
                except ConfigError as error:
                    raise ConfigError(f"{where}: {error}") from error


def _entry(content: dict[str, Any], where: str) -> Runs | Searches:
    kinds: dict[str, type[Runs | Searches]] = {"runs": Runs, "search": Searches}
    named = [key for key in kinds if key in content]
    if len(named) != 1:
        raise ConfigError(f"{where} needs runs: or search:, and not both.")
    kind, form = named[0], kinds[named[0]]
    place, rest = content[kind], {key: value for key, value in content.items() if key != kind}
    _check_place(place, kind, where)
    known = {each.name: each for each in fields(form) if each.name != "place"}
    for key in rest:
        if key not in known:
            raise ConfigError(f"{where} has {key!r}, which is nothing of {kind}. {nearest(str(key), list(known))}")
    lacking = [name for name, each in known.items() if name not in rest and _is_needed(each)]
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(lacking)}.")
    if isinstance(rest["labels"], list):
        rest["labels"] = {str(label): {} for label in rest["labels"]}
    for name in ("labels", "values"):
        if not isinstance(rest.get(name, {}), dict):
            raise ConfigError(f"{where}: {name} are names with values.")
    rest["labels"] = {label: dict(own or {}) for label, own in rest["labels"].items()}
    for label in rest["labels"]:
        if not re.fullmatch(r"[\w.-]+", str(label)):
            raise ConfigError(
                f"{where}: the label {label!r} names a folder: give it letters, digits, '.', '_' and '-'."
            )
    forms = get_type_hints(form)
    for name in set(rest) - {"labels", "values"}:
        rest[name] = fitted(rest[name], forms[name], f"{where}: {name}")
    for name, least in {"trials": 1, "evenly": 0, "again": 0, "at_once": 1}.items():
        if rest.get(name) is not None and rest[name] < least:
            raise ConfigError(f"{where}: {name}={rest[name]}: give {least} or more.")
    return form(place=place, **rest)


def _is_needed(each: Any) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _check_place(place: Any, kind: str, where: str) -> None:
    """Runs that lie where no part of a page looks for them would appear nowhere."""
    part, _, case = str(place).partition("/") if kind == "runs" else ("search", "", str(place))
    known = PLACES if kind == "runs" else {"search": PLACES["tuned"]}
    if part not in known or case not in known[part]:
        fitting = [f"{name}/{each}" if kind == "runs" else each for name, cases in known.items() for each in cases]
        raise ConfigError(f"{where}: {kind}: {place} is no place for records. {nearest(str(place), fitting)}")
