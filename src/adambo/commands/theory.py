"""`adambo theory --constants FILE`: what AdamBO's convergence theorem asks for, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from adambo.commands.compare import print_whole
from adambo.commands.parser import Parser
from adambo.errors import ConfigError
from adambo.experiments.configure import read_file
from adambo.experiments.lines import line
from adambo.experiments.values import fitted, nearest
from adambo.theory import ProblemConstants, ProofConstants, Statement, TheoremParameters, theorem_parameters
from adambo.theory.parameters import DIGITS

OF_PROBLEM = {
    "mu": "strong convexity of g in y",
    "l_g1": "Lipschitz constant of ∇g",
    "l_g2": "Lipschitz constant of ∇²xy g and ∇²yy g",
    "l_f0": "bound of ‖∇y f‖ at (x, y*(x))",
    "L_x0": "relaxed smoothness of ∇x f, the constant",
    "L_x1": "relaxed smoothness of ∇x f, times ‖∇x f‖",
    "L_y0": "relaxed smoothness of ∇y f, the constant",
    "L_y1": "relaxed smoothness of ∇y f, times ‖∇y f‖",
    "sigma_f": "bound of the noise in ∇x F and ∇y F",
    "sigma_g1": "size of the noise in ∇y G",
    "sigma_g2": "bound of the noise in ∇²xy G and ∇²yy G",
}
OF_RUN = {
    "lam": "λ, what Adam adds to its denominator",
    "Delta1": "Φ(x_1) − inf Φ",
    "y_error": "‖y_0 − y*(x_1)‖ before the warm start",
}
OF_PROOF = asdict(ProofConstants())  # optional, with these defaults


class Asked(NamedTuple):
    """The content of a file of constants."""

    problem: ProblemConstants
    run: dict[str, float]
    proof: ProofConstants


def theory(words: Sequence[str], out: Console, err: Console) -> int:
    described = "; ".join(f"{name}: {meaning}" for name, meaning in (OF_PROBLEM | OF_RUN).items())
    optional = ", ".join(f"{name} ({value:g})" for name, value in OF_PROOF.items())
    parser = Parser(
        "adambo theory --constants FILE [--epsilon 0.1] [--delta 0.1] [options]",
        "The constants, learning rates and steps for which AdamBO's theorem promises an ε-stationary point. "
        f"The file is YAML with these names. {described}. If wanted, the unnamed constants of the proof: {optional}.",
    )
    parser.option("constants", str | None, None, "YAML file with the constants of the problem.")
    parser.option("epsilon", float, 0.1, "Stationarity asked for.")
    parser.option("delta", float, 0.1, "Probability of failure.")
    parser.option("statement", Statement, "corrected", "The theorem as it is proved, or as the paper prints it.")
    own, _ = parser.read(words)
    if own["constants"] is None:
        raise ConfigError("Name a file of constants, as in `adambo theory --constants constants.yaml`; see --help.")
    asked = constants_of(own["constants"])
    found = theorem_parameters(
        asked.problem, own["epsilon"], own["delta"], **asked.run, proof=asked.proof, statement=own["statement"]
    )
    print_whole(out, table(found))
    unmet = asked.proof.unmet(asked.problem.mu, asked.problem.l_g1)
    line(out, f"With constants of the proof this would be proved: {found.conclusion}" if unmet else found.conclusion)
    for condition in unmet:
        line(out, f"The constants {', '.join(OF_PROOF)} here are not such, for the proof needs {condition}.")
    line(
        out,
        "This is good for orders in ε (up to logarithms β, γ, η ~ ε², Q ~ ln 1/ε, T_0 ~ ε⁻², T ~ ε⁻⁴), not for "
        f"choosing settings: T is {rounded(found.T, 2)} here.",
    )
    return 0


def constants_of(path: str | Path) -> Asked:
    """The constants in a file.

    Raises:
        ConfigError: If a name is missing or unknown, or a value is no number.
    """
    content: dict[str, Any] = read_file(path)
    required = OF_PROBLEM | OF_RUN
    names = [*required, *OF_PROOF]
    for name in content:
        if name not in names:
            raise ConfigError(f"{path}: there is no constant {name!r}. {nearest(name, names)}")
    missing = [name for name in required if name not in content]
    if missing:
        described = "; ".join(f"{name} ({required[name]})" for name in missing)
        raise ConfigError(f"{path} lacks {described}. Add a line for each, such as `{missing[0]}: 0.5`.")
    values = {name: fitted(value, float, f"{path}: {name}") for name, value in content.items()}
    return Asked(
        ProblemConstants(**{name: values[name] for name in OF_PROBLEM}),
        {name: values[name] for name in OF_RUN},
        ProofConstants(**{name: value for name, value in values.items() if name in OF_PROOF}),
    )


def table(found: TheoremParameters) -> Table:
    """One row per constant, with ten digits."""
    derived, run = found.derived, found.run
    rows: list[tuple[str, float, str]] = [
        ("r", derived.r, "how far apart points may be for the smoothness to hold"),
        ("L_0", derived.L0, "smoothness of Φ, the constant"),
        ("L_1", derived.L1, "smoothness of Φ, times ‖∇Φ‖"),
        ("C_L", derived.C_L, "r L_1"),
        ("C_φ0", derived.C_phi0, "error of a hypergradient, the constant"),
        ("C_φ1", derived.C_phi1, "error of a hypergradient, times ‖y − y*‖"),
        ("σ_φ", derived.sigma_phi, "noise of a hypergradient"),
        ("ι", found.iota, "ln(4/δ)"),
        ("G", run.G, "bound of ‖∇Φ‖ along the run"),
        ("L", run.L, "L_0 + L_1 G"),
        ("ψ", run.psi, "bound of Φ − inf Φ along the run"),
        ("C_u0", run.C_u0, "bound of the momentum at y*"),
        ("C_u1", run.C_u1, "what its error adds, times ‖y − y*‖"),
        ("ln C_β", found.ln_C_beta, "logarithm that slows β and η down"),
    ]
    shown = Table(box=None, pad_edge=False)
    shown.add_column("symbol")
    shown.add_column("value", justify="right")
    shown.add_column("what it is")
    for symbol, value, meaning in rows:
        shown.add_row(symbol, f"{value:.10g}", meaning)
    for symbol, ln, meaning in (
        ("β", found.ln_beta, "weight of the new sample in Adam's momentum"),
        ("γ", found.ln_gamma, "learning rate of y"),
        ("η", found.ln_eta, "learning rate of x"),
    ):
        shown.add_row(symbol, power(ln), meaning)
    for symbol, count, meaning in (
        ("Q", found.Q, "terms of the Neumann series"),
        ("T_0", found.T0, "steps of the warm start"),
        ("T", found.T, "steps"),
        ("calls", found.oracle_calls("chained"), "oracle calls, samples='chained': T_0 + (Q + 3) T"),
        ("calls", found.oracle_calls("independent"), "samples='independent', as printed: T_0 + (4 + Q(Q − 1)/2) T"),
    ):
        shown.add_row(symbol, rounded(count), meaning)
    return shown


def power(ln: float) -> str:
    """eˡⁿ with ten digits, also where float64 has no such number."""
    with localcontext(DIGITS):
        return f"{math.exp(ln):.10g}" if ln > -700.0 else f"{Decimal(ln).exp():.9e}"


def rounded(count: int, digits: int = 10) -> str:
    """A whole number of any size; beyond 15 digits, the first few and the exponent."""
    with localcontext(DIGITS):
        return f"{count:,}" if count < 10**15 else f"{Decimal(count):.{digits - 1}e}"
