"""What a step costs on one GPU in fp32, tf32 and bf16, against a plain Adam step of the same network on the same data.

    python benchmarks/gpu.py                                         # everything; some five minutes on an H200
    python benchmarks/gpu.py --rows bert,bert-compiled --precisions bf16 --profile
    python benchmarks/gpu.py --markdown table.md --json rows.json
    python benchmarks/gpu.py --device cpu --small                    # tries the program where there is no GPU

The workloads are those of `gpu_workloads.py`; "-compiled" rows have the encoder under CUDA graphs, for all contenders.

- ms: contenders take turns in blocks of steps; nobody waits for the device before a block ends, as in training.
- waited ms: contenders take turns step by step, and the device is waited for after each.
- kernel ms: the sum of what the kernels (and copies) of a step took on the device; how many they were, and by how many
  calls of the host they were launched. The profiler runs after all timing.
- MiB: the most memory that was allocated during some steps above the built problem (optimiser state, gradients and
  activations), the contender being alone; total MiB has the network, the heads and the data too.
- waits: how often a step makes the host wait for the device, as torch.cuda.set_sync_debug_mode("warn") sees it.

Ratios are medians of paired ratios. AdamBO measures the curvature of the lower level now and then, and waits for the
result; kernels and waits are counted in other steps.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpu_workloads import WORKLOADS, Contender, Setting, Workload
from measuring import Step, interleaved_times, machine, nothing, paired_ratio

Row = dict[str, Any]

ROWS = ("bert", "heads", "rnn", "transformer", "bert-compiled", "transformer-compiled")
PRECISIONS = ("fp32", "tf32", "bf16")
BLOCK = 20  # steps
COUNTED = 5  # steps under the profiler, and in which waits are counted
RELEASED = 2807.0  # ms: what the released research code takes on an H200 for a step with 20 such tasks

COLUMNS = (  # title, key, form
    ("workload", "workload", "{}"),
    ("precision", "precision", "{}"),
    ("contender", "contender", "{}"),
    ("ms", "ms", "{:.2f}"),
    ("×", "ratio", "**{:.3f}**"),
    ("waited ms", "waited_ms", "{:.2f}"),
    ("×", "waited_ratio", "{:.3f}"),
    ("kernel ms", "kernel_ms", "{:.2f}"),
    ("×", "kernel_ratio", "{:.3f}"),
    ("kernels", "kernels", "{:.0f}"),
    ("launches", "launches", "{:.0f}"),
    ("MiB", "mib", "{:.0f}"),
    ("×", "memory_ratio", "{:.3f}"),
    ("total MiB", "total_mib", "{:.0f}"),
    ("waits", "waits", "{:.1f}"),
    ("released code ×", "released", "{:.0f}"),
)


class Section:
    """One workload in one precision: its contenders, and a row of results for each.

    Args:
        name: One of `ROWS`.
        setting: How it is computed.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        self.name, self.setting = name, setting
        self.wait: Callable[[], None] = torch.cuda.synchronize if setting.device.type == "cuda" else nothing
        self.rows: dict[str, Row] = {}
        self.contenders: dict[str, Contender] = {}

    @property
    def measured(self) -> list[str]:
        """The names of those that could make a step."""
        return [name for name, row in self.rows.items() if "failed" not in row]

    def __str__(self) -> str:
        return f"{self.name}, {self.setting.precision}"

    def make(self) -> Workload:
        self.setting.prepare()
        return WORKLOADS[self.name.removesuffix("-compiled")](self.setting)

    def build(self) -> None:
        """Each contender makes a step; one that cannot is shown as failed, and the others go on."""
        workload = self.make()
        for name, make in workload.contenders.items():
            self.rows[name] = {"workload": self.name, "precision": self.setting.precision, "contender": name}
            with self.failing(name):
                contender = make()
                contender.step()
                contender.check()
                self.contenders[name] = contender
        reference = next(iter(workload.contenders))
        if reference not in self.contenders:
            raise RuntimeError(f"{reference}, to which the others are compared, cannot make a step.")
        if self.setting.compiled:
            difference = workload.compiled_difference()
            print(f"    x.grad of AdamBO, compiled against eager: relative difference {difference:.1e}")
            for row in self.rows.values():
                row["compiled_difference"] = difference

    @contextmanager
    def failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.rows[name]["failed"] = f"{type(error).__name__}: {error}"

    def time(self, steps: int, warm_up: int, blocks: int) -> None:
        """Wall time, first waiting for every step and then for blocks of them."""
        makers = [contender.step for contender in self.contenders.values()]
        self._note_times("waited_ms", "waited_ratio", interleaved_times(makers, steps, warm_up, self.wait))
        self._note_times("ms", "ratio", block_times(makers, blocks, self.wait))
        for name, contender in self.contenders.items():
            contender.check()
            if self.name.startswith("bert") and contender.solver is not None and not self.setting.small:
                self.rows[name]["released"] = RELEASED / self.rows[name]["ms"]

    def _note_times(self, key: str, ratio: str, times: list[list[float]]) -> None:
        for name, mine in zip(self.contenders, times, strict=True):
            self.rows[name] |= {key: 1e3 * statistics.median(mine), ratio: paired_ratio(mine, times[0])}

    def count(self) -> None:
        """Waits and kernels of a step."""
        self.setting.prepare()
        for name, contender in self.contenders.items():
            row = self.rows[name]
            row["waits"] = contender.undisturbed(waits) / COUNTED
            events = contender.undisturbed(traced)
            row |= kernel_numbers(events, COUNTED)
            row["top_kernels"] = top_kernels(events, COUNTED)
        self._note_ratio("kernel_ms", "kernel_ratio")

    def measure_memory(self) -> None:
        """Each contender by itself, with a network that is new and nobody else's."""
        before = allocated()
        workload = self.make()
        for name in self.measured:
            contender = workload.contenders[name]()
            built = allocated()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(COUNTED + 1):
                contender.step()
            contender.check()
            peak = torch.cuda.max_memory_allocated()
            self.rows[name] |= {"mib": (peak - built) / 2**20, "total_mib": (peak - before) / 2**20}
            del contender
            workload.encoder.network.zero_grad(set_to_none=True)
        self._note_ratio("mib", "memory_ratio")

    def _note_ratio(self, key: str, ratio: str) -> None:
        reference = self.rows[self.measured[0]][key]
        for name in self.measured:
            self.rows[name][ratio] = self.rows[name][key] / reference

    def profile(self) -> None:
        """Where the host spends the steps of each AdamBO, and which kernels take the most."""
        self.setting.prepare()
        for name, contender in self.contenders.items():
            print(f"\n{self}: {name}")
            if contender.solver is not None:
                recorder = cProfile.Profile()
                recorder.enable()
                for _ in range(BLOCK):
                    contender.step()
                recorder.disable()
                self.wait()
                pstats.Stats(recorder, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(40)
            for line in self.rows[name].get("top_kernels", ()):
                print(f"    {line}")


def block_times(makers: Sequence[Step], blocks: int, wait: Callable[[], None]) -> list[list[float]]:
    """Seconds per step of contenders that take turns in blocks of steps, each going first equally often."""

    def block(make: Step) -> Step:
        return lambda: [make() for _ in range(BLOCK)]

    times = interleaved_times([block(make) for make in makers], blocks, warm_up=0, wait=wait)
    return [[taken / BLOCK for taken in mine] for mine in times]


def waits(step: Step) -> int:
    """How often some steps make the host wait."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(COUNTED):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def traced(step: Step) -> list[Row]:
    """What the device did during some steps: kernels, copies and fills of memory."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(COUNTED):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def kernel_numbers(events: list[Row], steps: int) -> Row:
    """Per step: time on the device, things done there, and calls of the host that launched them (a graph is one)."""
    if not events:
        raise RuntimeError("The profiler saw no kernels, so kernel time is unknown.")
    return {
        "kernel_ms": sum(event["dur"] for event in events) / 1e3 / steps,
        "kernels": len(events) / steps,
        "launches": len({event["args"]["correlation"] for event in events}) / steps,
    }


def top_kernels(events: list[Row], steps: int) -> list[str]:
    taken: dict[str, list[float]] = defaultdict(list)
    for event in events:
        taken[event["name"]].append(event["dur"] / 1e3)
    order = sorted(taken, key=lambda name: -sum(taken[name]))[:15]
    return [f"{sum(taken[n]) / steps:8.3f} ms {len(taken[n]) / steps:7.1f} × {n[:100]}" for n in order]


def allocated() -> int:
    """Bytes on the device that somebody still uses."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def table(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(title for title, _, _ in COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        cells = [form.format(row[key]) if key in row else "–" for _, key, form in COLUMNS]
        if "failed" in row:
            cells[3] = f"failed: {row['failed'].splitlines()[0]}"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sections_of(options: argparse.Namespace) -> list[Section]:
    device = torch.device(options.device)
    chosen = []
    for name in options.rows.split(","):
        compiled = name.endswith("-compiled")
        precisions = options.precisions.split(",")
        if compiled:
            precisions = [each for each in precisions if each in options.compiled_precisions.split(",")]
        elif name == "heads":
            precisions = precisions[-1:]  # the fastest encoder hides the least
        if options.compile or not compiled:
            chosen += [Section(name, Setting(device, each, compiled, options.small)) for each in precisions]
    return chosen


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="toy sizes and few steps, to try the program")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="the -compiled rows")
    parser.add_argument("--compiled-precisions", default="bf16", help="those of --precisions that they are run in")
    parser.add_argument("--steps", type=int, help="waited steps of each contender (24)")
    parser.add_argument("--blocks", type=int, help=f"blocks of {BLOCK} steps of each contender (5)")
    parser.add_argument("--warm-up", type=int, help="steps of each contender before timing (60)")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--profile", action="store_true", help="print what the host and the device spend a step on")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers, after each part of the work")
    options = parser.parse_args()
    for name, known in (("rows", ROWS), ("precisions", PRECISIONS), ("compiled_precisions", PRECISIONS)):
        unknown = set(getattr(options, name).split(",")) - set(known)
        if unknown:
            parser.error(
                f"--{name.replace('_', '-')}: {', '.join(sorted(unknown))} not known; choose from {', '.join(known)}"
            )
    for name, full, small in (("steps", 24, 2), ("blocks", 5, 1), ("warm_up", 60, 1)):
        if getattr(options, name) is None:
            setattr(options, name, small if options.small else full)
    if options.device == "cpu" and not options.small:
        parser.error("--device cpu only serves to try the program, with --small")
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.exit(1, "There is no CUDA device here. (--device cpu --small tries the program without one.)\n")
    return options


def main() -> None:
    options = parsed()
    head = f"{machine()}; {options.steps} steps and {options.blocks} blocks of {BLOCK} steps a row"
    print(head, flush=True)
    sections, failures, start = sections_of(options), 0, time.perf_counter()

    def rows() -> list[Row]:
        return [row for section in sections for row in section.rows.values()]

    def each(what: str, work: Callable[[Section], None], among: Sequence[Section] = sections) -> list[Section]:
        """Does a part of the work for these sections; returns those for which it went well."""
        nonlocal failures
        well = []
        for section in among:
            print(f"{time.perf_counter() - start:5.0f} s: {what}: {section}", flush=True)
            try:
                work(section)
                well.append(section)
            except Exception:
                traceback.print_exc()
                failures += 1
            if options.json:
                options.json.write_text(json.dumps({"machine": head, "rows": rows()}, indent=1))
        return well

    def timed(section: Section) -> None:
        section.build()
        section.time(options.steps, options.warm_up, options.blocks)
        for row in section.rows.values():
            if "ms" in row:
                print(f"    {row['contender']:24} {row['ms']:8.2f} ms, {row['ratio']:.3f} of the first", flush=True)

    well = each("time", timed)
    if options.device != "cpu":
        each("kernels", Section.count, well)
    if options.profile:
        each("profile", Section.profile, well)
    if options.device != "cpu" and options.memory:
        for section in sections:
            section.contenders.clear()
        torch.compiler.reset()
        each("memory", Section.measure_memory, [section for section in well if not section.setting.compiled])
    print(f"\n{table(rows())}\n\n{time.perf_counter() - start:.0f} s")
    if options.markdown:
        options.markdown.write_text(f"{table(rows())}\n\n{head}\n")
    failures += sum("failed" in row for row in rows())
    if failures:
        sys.exit(f"{failures} measurements failed; see above.")


if __name__ == "__main__":
    main()
