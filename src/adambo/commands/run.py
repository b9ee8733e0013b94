"""`adambo run EXPERIMENT` and `adambo resume RUN`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from adambo.commands.compare import run_study
from adambo.commands.parser import Parser, dotted, experiment_first, peek
from adambo.errors import ConfigError
from adambo.experiments import runner
from adambo.experiments.catalogue import EXPERIMENTS, Study
from adambo.experiments.configure import Configured, configure, experiment_named, read_file
from adambo.experiments.lines import line
from adambo.training.loop import Outcome


def run(words: Sequence[str], out: Console, err: Console) -> int:
    """One run, or all runs of a study."""
    experiment, rest = experiment_first(words, "run")
    if isinstance(EXPERIMENTS.get(experiment), Study):
        return run_study(experiment, rest, out, err)
    parser = config_parser(
        experiment, rest, "run", "Make one run. It is a folder: config, manifest, metrics, events, checkpoints."
    )
    parser.option("out", str, "runs", "Folder of runs; this one becomes <out>/<experiment>/<algorithm>-seed<seed>.")
    parser.option("quiet", bool, False, "Show no progress.")
    parser.option("show_config", bool, False, "Print the config, with the source of every value, and stop.")
    own, given = parser.read(rest)
    configured = configured_from(experiment, own, given)
    if own["show_config"]:
        line(out, annotated(configured))
        return 0
    folder = runner.free_folder(Path(own["out"]), configured)
    taken = runner.folder_of(Path(own["out"]), configured)
    if folder != taken:
        line(err, f"{taken} is there already; this run becomes {folder}.")
    outcome = runner.run(configured, folder, err, quiet=own["quiet"], command=["adambo", "run", *words])
    return told(folder, outcome, out)


def resume(words: Sequence[str], out: Console, err: Console) -> int:
    """Go on with a run."""
    parser = Parser("adambo resume RUN [options]", "Go on with a run from its newest good checkpoint.")
    parser.option("quiet", bool, False, "Show no progress.")
    parser.option("data_dir", str | None, None, "Where the data files are now, if they have moved.")
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        raise ConfigError("Name the folder of a run first, as in `adambo resume runs/digits/adambo-seed0`.")
    own, _ = parser.read(words if words[0].startswith("-") else words[1:])
    _refuse_folder_of_runs(Path(words[0]))
    outcome = runner.resume(Path(words[0]), err, quiet=own["quiet"], data_dir=own["data_dir"])
    return told(Path(words[0]), outcome, out)


def _refuse_folder_of_runs(folder: Path) -> None:
    inside = sorted(path.parent for path in folder.glob("*/**/config.yaml"))[:3]
    if inside and not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} is no run but holds runs: name one, such as {', '.join(map(str, inside))}.")


def told(folder: Path, outcome: Outcome, out: Console) -> int:
    """Say how a run ended; the exit code that belongs to it."""
    line(out, f"{folder}: {outcome.state} at step {outcome.step}. {outcome.reason}")
    if outcome.signal is not None:
        return 128 + outcome.signal
    return {"finished": 0, "diverged": 1}.get(outcome.state, 130)


def config_parser(experiment: str, words: Sequence[str], command: str, description: str) -> Parser:
    """The options of an experiment and of the algorithm that `words` name, with the defaults of their preset."""
    chosen = experiment_named(experiment)
    first = peek(words)
    file = read_file(first.config) if first.config else None
    algorithm = first.algorithms[0] if first.algorithms else None
    preset = configure(experiment, algorithm, first.preset, file=file)
    defaults = dotted(preset.values)
    parser = Parser(
        f"adambo {command} {experiment} [options]",
        f"{description} {experiment}: {chosen.summary}. Defaults are those of the preset {preset.preset}, with their "
        "source in brackets where they are not simply the library's. In files names have _ instead of -.",
    )
    parser.config(chosen.config, defaults)
    parser.settings([preset.config.algorithm], defaults)
    parser.mark(preset.sources)
    preset_option(parser, experiment)
    return parser


def preset_option(parser: Parser, experiment: str) -> None:
    from adambo.experiments.presets import names

    available = names(experiment)
    parser.option("preset", str | None, None, f"Where defaults come from: {', '.join(available)}; the first if none.")
    parser.option("config", str | None, None, "YAML file of values, or the config.yaml of a run; options override it.")


def configured_from(experiment: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> Configured:
    file = read_file(own["config"]) if own["config"] else None
    return configure(experiment, preset=own["preset"], overrides=given, file=file)


def annotated(configured: Configured) -> str:
    """The config as YAML, with the source of every value in a comment."""
    lines = [f"experiment: {configured.experiment}", f"preset: {configured.preset}"]
    lines += _commented(configured.values, configured.sources)
    return "\n".join(lines)


def _commented(values: Mapping[str, Any], sources: Mapping[str, str], prefix: str = "") -> list[str]:
    lines, margin = [], "  " * prefix.count(".")
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{margin}{key}:", *_commented(value, sources, f"{prefix}{key}.")]
        else:
            plain = yaml.safe_dump([value], default_flow_style=True, width=10**6).strip()[1:-1]  # in one line
            lines.append(f"{f'{margin}{key}: {plain}':<36}  # {sources.get(prefix + key, 'library default')}")
    return lines
