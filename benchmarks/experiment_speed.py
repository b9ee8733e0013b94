"""Milliseconds per step of an experiment at its full size, on whatever device there is.

    python benchmarks/experiment_speed.py bert-trec --algorithms adambo slip --precision bf16 --data-dir DATA

The first steps are not timed. Steps are then timed as a run makes them, one after the other without waiting for the
device, which is waited for at the end; five such stretches give the median.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings

import torch

from adambo.errors import AdamboError
from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.configure import configure, experiment_named
from adambo.training.workload import Workload

WARM_UP, STRETCHES = 60, 5


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def milliseconds(workload: Workload, steps: int) -> float:
    """Per step, the median of five stretches."""
    number, measured = 0, []
    for stretch in range(STRETCHES + 1):
        wait()
        start = time.perf_counter()
        for _ in range(WARM_UP if stretch == 0 else steps):
            workload.step(number)
            number += 1
        wait()
        if stretch > 0:
            measured.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiment", choices=[name for name, each in EXPERIMENTS.items() if hasattr(each, "build")])
    parser.add_argument("--algorithms", nargs="+", default=["adambo"])
    parser.add_argument("--preset")
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--data-dir")
    parser.add_argument("--steps", type=int, default=40)
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
                workload.begin()
                taken = milliseconds(workload, given.steps)
            except (AdamboError, torch.OutOfMemoryError) as error:
                print(f"{algorithm:9} {precision}: {error}", file=sys.stderr)
                continue
            start = time.perf_counter()
            workload.evaluate()
            judged = time.perf_counter() - start
            memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
            print(
                f"{algorithm:9} {precision} {taken:8.1f} ms/step, evaluation {judged:5.1f} s, {memory:5.1f} GiB",
                flush=True,
            )
            del workload
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
