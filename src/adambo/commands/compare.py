"""`adambo compare EXPERIMENT`: algorithms and seeds, several at a time, and a table in the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from adambo.commands.parser import Parser, dotted, experiment_first, peek
from adambo.errors import ConfigError
from adambo.experiments.catalogue import EXPERIMENTS, Study
from adambo.experiments.compare import jobs_of_algorithms, jobs_of_study, run_all
from adambo.experiments.config import RunConfig
from adambo.experiments.configure import configure, experiment_named, read_file
from adambo.experiments.lines import line
from adambo.experiments.presets import names
from adambo.experiments.settings import canonical
from adambo.experiments.summary import failures, settled, table
from adambo.experiments.workers import Job, Results


def compare(words: Sequence[str], out: Console, err: Console) -> int:
    """Every algorithm with every seed."""
    experiment, rest = experiment_first(words, "compare")
    if isinstance(EXPERIMENTS.get(experiment), Study):
        return run_study(experiment, rest, out, err)
    chosen, first = experiment_named(experiment), peek(rest)
    algorithms = list(chosen.compared)
    if first.algorithms and "all" not in first.algorithms:
        algorithms = list(dict.fromkeys(canonical(name) for name in first.algorithms))
    file = read_file(first.config) if first.config else None
    presets = [configure(experiment, algorithm, first.preset, file=file) for algorithm in algorithms]
    parser = Parser(
        f"adambo compare {experiment} [options]",
        f"Run algorithms with several seeds, each run a folder of its own. {experiment}: {chosen.summary}. "
        "Run again, it leaves finished runs as they are and goes on with the others. Where presets differ, the default "
        f"shown is that of {algorithms[0]}. In files names have _ instead of -.",
    )
    parser.config(chosen.config, dotted(presets[0].values), without=("algorithm",))
    parser.settings(algorithms, dotted(presets[0].values))
    parser.option("algorithms", str, ["all"], f"Which; all means {', '.join(chosen.compared)}.", several=True)
    parser.option("preset", str | None, None, f"Where defaults come from: {', '.join(names(experiment))}.")
    parser.option("config", str | None, None, "YAML file of values for all of them; options override it.")
    _common_options(parser)
    own, given = parser.read(rest)
    configured = [configure(experiment, algorithm, first.preset, given, file) for algorithm in algorithms]
    command = ("adambo", "compare", *words)
    return _made(jobs_of_algorithms(configured, _seeds(own), Path(own["out"]), command), own, out, err)


def run_study(name: str, words: Sequence[str], out: Console, err: Console) -> int:
    """All runs of a study."""
    study = EXPERIMENTS[name]
    assert isinstance(study, Study)
    parser = Parser(
        f"adambo run {name} [options]",
        f"All {len(study.runs)} runs of the study: {study.summary}. Values given here are for all of them; others come "
        "from the presets. Run again, it leaves finished runs as they are and goes on with the others.",
    )
    parser.config(RunConfig, {}, without=("algorithm",))
    parser.settings(list(dict.fromkeys(algorithm for _, algorithm, _ in study.runs)), {})
    parser.option("preset", str | None, None, "Preset of all runs, such as tiny.")
    _common_options(parser)
    own, given = parser.read(words)
    jobs = jobs_of_study(study, _seeds(own), Path(own["out"]), own["preset"], given, ("adambo", "run", name, *words))
    return _made(jobs, own, out, err)


def _common_options(parser: Parser) -> None:
    parser.option("seeds", int, 1, "How many seeds, counted from --seed.")
    parser.option("jobs", int, os.cpu_count() or 1, "Runs at a time; on a GPU they share it.")
    parser.option("out", str, "runs", "Folder of runs.")


def _seeds(own: dict[str, Any]) -> int:
    for name in ("seeds", "jobs"):
        if own[name] < 1:
            raise ConfigError(f"{name}={own[name]}: give 1 or more.")
        if own[name] > 10_000:
            raise ConfigError(f"{name}={own[name]}: that is too many; give 10,000 or fewer.")
    seeds: int = own["seeds"]
    return seeds


def _made(jobs: Sequence[Job], own: dict[str, Any], out: Console, err: Console) -> int:
    results = run_all(jobs, err, own["jobs"])
    ended = results.each = settled(results.each)
    reasons = {result.reason for result in ended}
    if len(ended) == len(jobs) and all(result.refused for result in ended) and len(reasons) == 1:
        raise ConfigError(reasons.pop())  # nothing could be run, and always for the same reason
    print_whole(out, table(ended))
    for sentence in failures(ended):
        line(out, sentence)
    return exit_code(results, len(jobs))


def print_whole(console: Console, shown: Table) -> None:
    """As wide as it is, wherever it goes: a label that is cut off tells nothing."""
    widest = Measurement.get(console, console.options.update(max_width=10_000), shown).maximum
    Console(file=console.file, width=max(widest, console.width)).print(shown)


def exit_code(results: Results, count: int) -> int:
    if results.signal is not None:
        return 128 + results.signal
    return 0 if sum(result.state == "finished" for result in results.each) == count else 1
