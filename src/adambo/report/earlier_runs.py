"""Runs that were made before a setting was there, beside runs that have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from adambo.experiments.catalogue import EXPERIMENTS, Experiment
from adambo.report.records import Record


def completed(experiment: str, records: Sequence[Record]) -> list[Record]:
    """The records; one that lacks a setting which another has gets its default, for that is what it was made with.

    Otherwise the two would be taken for different methods, and their seeds shown as two curves. Settings of algorithms
    are left alone: an inverse may lack what another has. So are experiments that the catalogue does not have.
    """
    defaults = _defaults(experiment)
    known = {key for record in records for key in record.config if key in defaults}
    result = []
    for record in records:
        missing = {key: defaults[key] for key in sorted(known - set(record.config))}
        sources = dict.fromkeys(missing, "library default")
        result.append(replace(record, config=record.config | missing, sources=record.sources | sources))
    return result


def _defaults(experiment: str) -> dict[str, Any]:
    found = EXPERIMENTS.get(experiment)
    if not isinstance(found, Experiment):
        return {}
    return {field.name: field.default for field in fields(found.config) if field.default is not MISSING}
