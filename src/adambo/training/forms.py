"""The forms of the files of a run: whoever reads them finds what is promised, or says which file is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from adambo.errors import RunError
from adambo.training import atomic

STATES = ("running", "finished", "interrupted", "diverged", "failed")
_LARGEST_STEP = 2**63 - 1
_MOST_THREADS = 10_000


def header(path: Path) -> dict[str, Any]:
    """The content of a config.yaml."""
    try:
        content = yaml.load(_text(path), Loader=_Loader)
        json.dumps(content, sort_keys=True)  # a run is told from others by this form
    except RunError:
        raise
    except yaml.YAMLError as error:
        raise RunError(f"{path} is damaged, it is no YAML: {' '.join(str(error).split())}.") from error
    except RecursionError as error:
        raise RunError(f"{path} is damaged: it nests deeper than any configuration.") from error
    except Exception as error:  # what numbers, dates and tags may hide has no end
        raise RunError(f"{path} is damaged, it holds what is no configuration: {error}.") from error
    form = {"experiment": str, "preset": str, "config": dict, "sources": dict}
    if not isinstance(content, dict) or any(not isinstance(content.get(key), kind) for key, kind in form.items()):
        raise RunError(
            f"{path} is not that of a run: it needs experiment and preset (names), config and sources (mappings)."
        )
    return content


def status(path: Path) -> dict[str, Any]:
    """The content of a status.json."""
    content = _json_object(path)
    if content.get("state") not in STATES or not is_step(content.get("step")):
        raise RunError(f"{path} is damaged: it needs a step and a state, one of {', '.join(STATES)}.")
    if not isinstance(content.get("reason"), str):
        raise RunError(f"{path} is damaged: it needs a reason, a sentence on why the run stands as it does.")
    return content


def manifest(path: Path) -> dict[str, Any]:
    """The content of a manifest.json: `data` and `hardware`, on which resuming depends, may be absent or null."""
    content = _json_object(path)
    data, hardware = content.get("data") or {}, content.get("hardware") or {}
    if not isinstance(data, dict) or not all(isinstance(digest, str) for digest in data.values()):
        raise RunError(f"{path} is damaged: its data must be hashes by the names of files.")
    if not isinstance(hardware, dict):
        raise RunError(f"{path} is damaged: its hardware must be a JSON object.")
    threads = hardware.get("threads", 1)
    if type(threads) is not int or not 1 <= threads <= _MOST_THREADS:
        raise RunError(f"{path} is damaged: its hardware.threads must be a whole number from 1 to {_MOST_THREADS}.")
    return content


def evaluations(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; none if there is no such file."""
    if not path.exists():
        return []
    return [_evaluation(line, f"{path}, line {number}") for number, line in enumerate(_text(path).splitlines(), 1)]


def measurements(path: Path) -> list[dict[str, Any]]:
    """The lines of a monitor.jsonl; none if there is no such file. A last line without an end was cut off."""
    if not path.exists():
        return []
    whole = _text(path).rpartition("\n")[0].splitlines()
    return [_measurement(line, f"{path}, line {number}") for number, line in enumerate(whole, 1)]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    found = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        value = _parsed(line, f"{path}, line {number}")
        if not isinstance(value, dict):
            raise RunError(f"{path}, line {number} is damaged: every line must be a JSON object.")
        found.append(value)
    return found


def is_step(value: Any) -> bool:
    """Whether it can be a number of steps."""
    return type(value) is int and 0 <= value <= _LARGEST_STEP


def is_finite(value: Any) -> bool:
    """Whether it is a number, and finite as a float."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _evaluation(line: str, where: str) -> dict[str, Any]:
    evaluation = _parsed(line, where)
    if not isinstance(evaluation, dict) or not is_step(evaluation.get("step")):
        raise RunError(f"{where} is damaged: an evaluation is a JSON object with a whole number as its step.")
    for key in ("epoch", "seconds", "oracle_calls", "loss"):
        if not _is_score(evaluation.get(key)):
            raise RunError(f"{where} is damaged: its {key} is neither a number nor null.")
    for split in ("train", "validation", "test"):
        scores = evaluation.get(split, {})
        if not isinstance(scores, dict) or not all(map(_is_score, scores.values())):
            raise RunError(f"{where} is damaged: its {split} must be an object of scores, each a number or null.")
    return evaluation


def _measurement(line: str, where: str) -> dict[str, Any]:
    measurement = _parsed(line, where)
    if not isinstance(measurement, dict) or not is_step(measurement.get("step")):
        raise RunError(f"{where} is damaged: a measurement is a JSON object with a whole number as its step.")
    given = measurement.get("warnings", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RunError(f"{where} is damaged: its warnings must be a list of objects.")
    return measurement


def _is_score(value: Any) -> bool:
    return value is None or is_finite(value)


def _json_object(path: Path) -> dict[str, Any]:
    value = _parsed(_text(path), str(path))
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: it holds a {type(value).__name__}, no JSON object.")
    return value


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except ValueError as error:
        raise RunError(f"{where} is damaged, it is no JSON: {error}.") from error
    except RecursionError as error:
        raise RunError(f"{where} is damaged: it nests deeper than any record.") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _text(path: Path) -> str:
    try:
        if path.is_fifo():  # it would be waited for
            raise RunError(f"{path} cannot be read: it is a pipe, no file.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is damaged: it is no UTF-8 text.") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {atomic.reason(error)}.") from error


class _Loader(yaml.SafeLoader):
    """Without aliases: no run writes them, and with them a few lines can hold themselves, or billions of others."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, a reference to another part of itself")
        return super().compose_node(parent, index)
