"""Milliseconds per step of an experiment at its full size, on whatever device there is.

    python benchmarks/experiment_speed.py bert-trec --algorithms adambo slip --precision bf16 --data-dir DATA
    python benchmarks/experiment_speed.py --plan results/plan.yaml --data-dir DATA       # results/speed/

The first steps are not timed. Steps are then timed as a run makes them, one after the other without waiting for the
device, which is waited for at the end; five such stretches give the median. `--out FILE` adds a line of JSON for each.
With `--lock FILE`, several of these may prepare side by side, and time one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from adambo.errors import AdamboError
from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.configure import Configured, configure, experiment_named
from adambo.reproduction.plan import Plan, Runs
from adambo.training.manifest import commit
from adambo.training.workload import Workload

STRETCHES = 5
SLOW = 3.0  # seconds: what takes longer than this to warm up is timed over fewer steps


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def alone(file: str) -> Iterator[None]:
    """Whoever holds the lock of this file is the only one."""
    with open(file, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def milliseconds(workload: Workload, warm_up: int, steps: int) -> list[float]:
    """Per step, of five stretches; each of an even number of steps, since some methods do more in every other one."""
    workload.begin()
    number, start = 0, time.perf_counter()
    while number < warm_up and not (number >= 3 and time.perf_counter() - start > SLOW):
        workload.step(number)
        number += 1
        if number <= 3:  # whether it is slow is not known before it is done
            wait()
    known = stretch(workload, number, 2)
    pairs = max(1, min(steps // 2, round(1e3 * SLOW / STRETCHES / known / 2)))
    starts = range(number + 2, number + 2 + STRETCHES * 2 * pairs, 2 * pairs)
    return [stretch(workload, start, 2 * pairs) for start in starts]


def stretch(workload: Workload, number: int, steps: int) -> float:
    """Milliseconds per step of so many, from step `number` on."""
    wait()
    start = time.perf_counter()
    for k in range(number, number + steps):
        workload.step(k)
    wait()
    return 1e3 * (time.perf_counter() - start) / steps


def noted(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(record) + "\n")


class Timed(NamedTuple):
    """What is to be timed.

    Attributes:
        label: Its name in the file.
        configured: Builds it.
        out: The file; None: it is only printed.
    """

    label: str
    configured: Configured
    out: Path | None


def given_ones(given: argparse.Namespace) -> list[Timed]:
    """One per precision and algorithm."""
    found = []
    for precision in given.precision:
        for algorithm in given.algorithms:
            values = {"precision": precision, "compile": given.compile}
            values |= {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in given.set)}
            configured = configure(given.experiment, algorithm, given.preset, values)
            found.append(Timed(given.label or algorithm, configured, Path(given.out) if given.out else None))
    return found


def planned_ones(given: argparse.Namespace) -> list[Timed]:
    """Every label of the paper's settings and of the searches that no file beside the plan has in its precision.

    What a search will choose has no bearing on how long a step takes, so it need not be known.
    """
    plan, found = Path(given.plan), {}
    for entry in Plan.read(plan).entries:
        part, _, case = entry.place.partition("/")
        if not isinstance(entry, Runs) or part not in ("paper", "tuned"):
            continue
        if not entry.place.startswith(tuple(given.only)):
            continue
        for label in entry.labels:
            configured = entry.configured(label, {})
            one = Timed(label, configured, plan.parent / "speed" / f"{case}.jsonl")
            if not is_known(one):
                found.setdefault((case, label, configured.config.precision), one)
    number, count = map(int, given.share.split("/"))
    return list(found.values())[number - 1 :: count]


def is_known(one: Timed) -> bool:
    lines = one.out.read_text().splitlines() if one.out and one.out.exists() else []
    known = {(line["label"], line["precision"]) for line in map(json.loads, lines)}
    return (one.label, one.configured.config.precision) in known


def measure(one: Timed, given: argparse.Namespace, device: str) -> None:
    """Print a line, and add one to the file."""
    config = one.configured.config
    try:
        workload = experiment_named(one.configured.experiment).build(config)
        with alone(given.lock) if given.lock else nullcontext():
            stretches = milliseconds(workload, given.warm_up, given.steps)
    except (AdamboError, torch.OutOfMemoryError) as error:
        print(f"{one.configured.experiment} {one.label} {config.precision}: {error}", file=sys.stderr)
        return
    taken, judged = statistics.median(stretches), None
    if not given.lock:  # it would disturb those that are timed
        start = time.perf_counter()
        workload.evaluate()
        judged = time.perf_counter() - start
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    print(
        f"{one.configured.experiment:15} {one.label:10} {config.precision} {taken:8.1f} ms/step, "
        f"{'' if judged is None else f'evaluation {judged:5.1f} s, '}{memory or 0:5.1f} GiB",
        flush=True,
    )
    if one.out is not None:
        record = {"label": one.label, "algorithm": config.algorithm, "ms_per_step": taken}
        record |= {"steps_per_epoch": workload.steps_per_epoch, "memory_gib": memory, "precision": config.precision}
        record |= {"commit": commit(), "device": device, "torch": torch.__version__}
        record |= {"warm_up": given.warm_up, "steps": given.steps, "ms_of_stretches": stretches}
        noted(one.out, record | {"config": one.configured.values})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "experiment", nargs="?", choices=[n for n, each in EXPERIMENTS.items() if hasattr(each, "build")]
    )
    parser.add_argument("--algorithms", nargs="+", default=["adambo"])
    parser.add_argument("--preset")
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--data-dir")
    parser.add_argument("--warm-up", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--label", help="in the file, instead of the name of the algorithm")
    parser.add_argument("--out")
    parser.add_argument(
        "--plan", help="measure what this plan has and speed/ beside it lacks, instead of one experiment"
    )
    parser.add_argument(
        "--share", default="1/1", metavar="K/N", help="with --plan: every N-th of them, from the K-th on"
    )
    parser.add_argument("--only", nargs="+", default=[""], help="with --plan: entries whose places begin so")
    parser.add_argument("--lock")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="such as settings.lower_steps=50")
    given = parser.parse_args()
    if (given.experiment is None) == (given.plan is None):
        parser.error("name an experiment, or give --plan")
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    if given.data_dir:
        os.environ["ADAMBO_DATA"] = str(Path(given.data_dir).absolute())
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, torch {torch.__version__}")
    for one in planned_ones(given) if given.plan else given_ones(given):
        measure(one, given, device)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
