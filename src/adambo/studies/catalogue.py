"""The studies by name."""

from __future__ import annotations

from importlib import import_module

from adambo.errors import ConfigError
from adambo.experiments.values import nearest
from adambo.studies.findings import Effort, Findings

STUDIES = {  # name: (module, what it looks at)
    "rate": ("rate", "how fast the gradient falls with the number of steps, against the proved T^(−1/4)"),
    "step-sizes": ("step_sizes", "the step sizes with which methods converge where smoothness is unbounded"),
    "neumann": ("neumann", "bias and variance of the Neumann series for the five ways to sample it"),
    "lower-error": ("lower_error", "the bound on the lower level's error against simulated errors"),
    "stale-heads": ("stale_heads", "heads of tasks that are visited rarely, against lower steps per visit"),
}


def conducted(name: str, effort: Effort) -> Findings:
    """Make a study.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name not in STUDIES:
        raise ConfigError(f"There is no study {name!r}. {nearest(name, list(STUDIES))}")
    found: Findings = import_module(f"adambo.studies.{STUDIES[name][0]}").study(effort)
    return found
