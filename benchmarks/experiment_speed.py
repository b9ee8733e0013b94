"""Milliseconds per step of an experiment at its full size, on whatever device there is.

    python benchmarks/experiment_speed.py bert-trec --algorithms adambo slip --precision bf16 --data-dir DATA

The first steps are not timed. Steps are then timed as a run makes them, one after the other without waiting for the
device, which is waited for at the end; five such stretches give the median. `--out FILE` adds a line of JSON for each.
With `--lock FILE`, several of these may prepare side by side, and time one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from adambo.errors import AdamboError
from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.configure import configure, experiment_named
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


def milliseconds(workload: Workload, warm_up: int, steps: int) -> float:
    """Per step, the median of five stretches."""
    workload.begin()
    number, start = 0, time.perf_counter()
    while number < warm_up and not (number >= 3 and time.perf_counter() - start > SLOW):
        workload.step(number)
        number += 1
        if number <= 3:  # whether it is slow is not known before it is done
            wait()
    measured = [stretch(workload, number, 3)]
    steps = max(1, min(steps, round(1e3 * SLOW / STRETCHES / measured.pop())))
    for place in range(STRETCHES):
        measured.append(stretch(workload, number + 3 + place * steps, steps))
    return statistics.median(measured)


def stretch(workload: Workload, number: int, steps: int) -> float:
    """Milliseconds per step of so many, from step `number` on."""
    wait()
    start = time.perf_counter()
    for k in range(number, number + steps):
        workload.step(k)
    wait()
    return 1e3 * (time.perf_counter() - start) / steps


def noted(file: str, record: dict[str, Any]) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as out:
        out.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiment", choices=[name for name, each in EXPERIMENTS.items() if hasattr(each, "build")])
    parser.add_argument("--algorithms", nargs="+", default=["adambo"])
    parser.add_argument("--preset")
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--data-dir")
    parser.add_argument("--warm-up", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--label", help="in the file, instead of the name of the algorithm")
    parser.add_argument("--out")
    parser.add_argument("--lock")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="such as settings.lower_steps=50")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{given.experiment}, preset {given.preset or 'paper'}, {device}, torch {torch.__version__}")
    for precision in given.precision:
        for algorithm in given.algorithms:
            values = {"precision": precision, "compile": given.compile, "data_dir": given.data_dir}
            values |= dict(item.split("=", 1) for item in given.set)
            try:
                made = configure(given.experiment, algorithm, given.preset, values)
                workload = experiment_named(given.experiment).build(made.config)
                with alone(given.lock) if given.lock else nullcontext():
                    taken = milliseconds(workload, given.warm_up, given.steps)
            except (AdamboError, torch.OutOfMemoryError) as error:
                print(f"{algorithm:9} {precision}: {error}", file=sys.stderr)
                continue
            start = time.perf_counter()
            workload.evaluate()
            judged = time.perf_counter() - start
            memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
            print(
                f"{algorithm:9} {precision} {taken:8.1f} ms/step, evaluation {judged:5.1f} s, {memory or 0:5.1f} GiB",
                flush=True,
            )
            if given.out:
                record = {"label": given.label or algorithm, "algorithm": algorithm, "ms_per_step": taken}
                record |= {"steps_per_epoch": workload.steps_per_epoch, "memory_gib": memory, "precision": precision}
                record |= {"commit": commit(), "device": device, "torch": torch.__version__}
                noted(given.out, record | {"config": made.values})
            del workload
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
