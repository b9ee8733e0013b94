"""Run folders for the tests of reports, written by hand in the documented layout, with curves of any shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from adambo.training.run_folder import RunFolder

HARDWARE = {"system": "Linux", "cpu": "Test CPU", "cores": 2, "gpus": []}


def evaluation(epoch: float, train: float | None, test: float | None, **more: Any) -> dict[str, Any]:
    """One evaluation: 10 steps, half a second and 120 oracle calls per epoch unless `more` says otherwise."""
    step = round(10 * epoch)
    return {
        "step": step,
        "epoch": float(epoch),
        "seconds": 0.5 * epoch,
        "oracle_calls": 12 * step,
        "oracles": {"grad_y_g": 6 * step, "hessian_vector": 6 * step},
        "loss": None if step == 0 else 0.5,
        "train": {"accuracy": train},
        "test": {"accuracy": test},
    } | more


def straight(tests: Sequence[float | None], lead: float = 0.05) -> list[dict[str, Any]]:
    """One evaluation per epoch with these test scores, and train scores that are better by `lead`."""
    return [evaluation(e, None if test is None else test + lead, test) for e, test in enumerate(tests)]


def write_run(
    folder: Path,
    algorithm: str = "adambo",
    seed: int = 0,
    *,
    experiment: str = "digits",
    preset: str = "default",
    evaluations: Sequence[Mapping[str, Any]] = (),
    state: str = "finished",
    reason: str = "",
    config: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> RunFolder:
    folder.mkdir(parents=True)
    settings = {"algorithm": algorithm, "seed": seed, "epochs": 3.0, "settings": {"lr": 0.01, "eps": 1e-8}}
    header = {
        "experiment": experiment,
        "preset": preset,
        "config": settings | dict(config or {}),
        "sources": {"algorithm": "given", "seed": "given", "settings.lr": "paper"} | dict(sources or {}),
    }
    made = {
        "versions": {"adambo": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "commit": "3a75ba7",
        "hardware": HARDWARE,
        "data": {"digits.csv": "ab" * 32},
        "created": "2026-01-02T03:04:05+00:00",
    } | dict(manifest or {})
    step = int(evaluations[-1]["step"]) if evaluations else 0
    (folder / "config.yaml").write_text(yaml.safe_dump(header, sort_keys=False), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(made), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evaluations), encoding="utf-8")
    status = {"state": state, "reason": reason, "step": step, "best": None}
    (folder / "status.json").write_text(json.dumps(status), encoding="utf-8")
    return RunFolder.open(folder)


def write_comparison(
    folder: Path, algorithms: Sequence[str], seeds: Sequence[int], curve: Callable[[int, int], Sequence[float]]
) -> list[RunFolder]:
    """One finished run per algorithm and seed; `curve(algorithm's index, seed)` gives its test scores."""
    return [
        write_run(folder / f"{name}-seed{seed}", name, seed, evaluations=straight(curve(index, seed)))
        for index, name in enumerate(algorithms)
        for seed in seeds
    ]
