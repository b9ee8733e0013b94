"""`adambo theory`, through `main`."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Inexact, localcontext
from pathlib import Path

import pytest
import yaml
from test_theory_constants import TABLE, WORKED

from adambo.cli import main
from adambo.commands.theory import OF_PROBLEM, OF_PROOF, OF_RUN

EXAMPLE = Path(__file__).parent.parent / "examples" / "theory_constants.yaml"
SYMBOLS = {"L0": "L_0", "L1": "L_1", "C_phi0": "C_φ0", "C_phi1": "C_φ1", "sigma_phi": "σ_φ", "psi": "ψ"}


@pytest.fixture
def file(tmp_path):
    """A file of constants, with changes; None takes a line away."""

    def written(**changes):
        values = yaml.safe_load(EXAMPLE.read_text()) | changes
        path = tmp_path / "constants.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in values.items() if value is not None}))
        return str(path)

    return written


def shown(capsys, *words):
    assert main(["theory", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys, *words):
    assert main(["theory", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def rows(text):
    return {line.split()[0]: line.split()[1] for line in text.splitlines() if not line.startswith(("ln", "calls"))}


def test_the_example_is_the_worked_one_and_its_table_is_printed(capsys):
    text = shown(capsys, "--constants", str(EXAMPLE), "--epsilon", "0.1", "--delta", "0.1")
    table = rows(text)
    for name, digits in TABLE.items():
        assert table[SYMBOLS.get(name, name)] == digits
    assert {symbol: table[symbol] for symbol in ("ι", "β", "γ", "η", "Q", "T_0", "T")} == {
        "ι": "3.688879454",
        "β": "5.848906547e-11",
        "γ": "2.339562619e-10",
        "η": "4.204179485e-18",
        "Q": "41",
        "T_0": "434,179,663,404",
        "T": "2.704034149e+22",
    }
    assert re.search(r"ln C_β +137\.8297007 ", text)
    assert re.findall(r"^calls +(\S+)", text, re.MULTILINE) == ["1.189775026e+24", "2.228124139e+25"]
    assert "(1/T) Σ ‖∇Φ(x_t)‖² ≤ ε²." in text
    assert "for the proof needs 16/C2 + 7168 c1 + 67 c3 < 1 (it is 725)." in text


def test_it_says_what_it_is_good_for_and_what_not(capsys):
    last = shown(capsys, "--constants", str(EXAMPLE)).splitlines()[-1]
    assert last.startswith("This is good for orders in ε")
    assert last.endswith("not for choosing settings: T is 2.7e+22 here.")


def test_numbers_beyond_float64_are_shown(capsys):
    table = rows(shown(capsys, "--constants", str(EXAMPLE), "--epsilon=1e-160"))
    assert (table["β"], table["η"]) == ("1.779130891e-330", "3.889982834e-339")
    assert table["T"] == "2.922440890e+661"


def test_what_is_shown_does_not_depend_on_how_the_caller_sets_decimals(capsys):
    words = ("--constants", str(EXAMPLE), "--epsilon=1e-160")
    usual = shown(capsys, *words)
    for changed in (Context(prec=5), Context(rounding=ROUND_UP), Context(traps=[Inexact])):
        with localcontext(changed):
            assert shown(capsys, *words) == usual


def test_the_printed_statement_can_be_had(capsys):
    text = shown(capsys, "--constants", str(EXAMPLE), "--statement", "printed")
    assert "(1/T) Σ ‖∇Φ(x_t)‖ ≤ ε²." in text
    assert float(rows(text)["σ_φ"]) == pytest.approx(float(TABLE["sigma_phi"]) + 13.2 * 0.9, rel=1e-9)


def test_constants_of_the_proof_have_defaults(capsys, file):
    text = shown(capsys, "--constants", file(**dict.fromkeys(OF_PROOF)))
    assert rows(text)["Q"] == "59"
    assert "which needs" not in text


def test_numbers_may_be_written_as_yaml_reads_text(capsys, file):
    assert rows(shown(capsys, "--constants", file(lam="1e-1")))["Q"] == "41"


def test_help_names_every_constant(capsys):
    text = " ".join(shown(capsys, "--help").split())
    for name, meaning in (OF_PROBLEM | OF_RUN).items():
        assert f"{name}: {meaning}" in text
    for name, value in OF_PROOF.items():
        assert f"{name} ({value:g})" in text
    assert set(OF_PROBLEM) == set(WORKED)


def test_unknown_names_are_refused_with_the_nearest(capsys, file):
    assert "no constant 'sigma_g'. Did you mean 'sigma_g" in refused(capsys, "--constants", file(sigma_g=1.0))
    assert "no constant 'Lx0'. Did you mean 'L_x0'?" in refused(capsys, "--constants", file(Lx0=1.0))
    assert "no constant 'zzz'. Choose one of mu, l_g1," in refused(capsys, "--constants", file(zzz=1.0))


def test_missing_names_are_explained(capsys, file):
    said = refused(capsys, "--constants", file(l_f0=None, y_error=None))
    assert "lacks l_f0 (bound of ‖∇y f‖ at (x, y*(x))); y_error (‖y_0 − y*(x_1)‖ before the warm start)." in said
    assert "such as `l_f0: 0.5`" in said


@pytest.mark.parametrize(
    ("changes", "words", "sentence"),
    [
        ({"mu": 3}, [], "mu=3.0 exceeds l_g1=2.0"),
        ({"sigma_g1": 0}, [], "sigma_g1=0.0 is not a positive, finite number"),
        ({"mu": "much"}, [], "mu='much' does not fit: give a number"),
        ({"mu": [1]}, [], "mu=[1] does not fit: give a number"),
        ({}, ["--epsilon", "0"], "epsilon=0.0 is not a positive, finite number"),
        ({}, ["--delta", "2"], "delta=2.0 is no probability of failure"),
        ({}, ["--epsilon", "small"], "epsilon='small' does not fit: give a number"),
        ({}, ["--statement", "true"], "give corrected or printed"),
        ({}, ["--epsilom", "1"], "Did you mean '--epsilon'?"),
    ],
)
def test_what_cannot_be_ends_with_a_sentence(capsys, file, changes, words, sentence):
    assert sentence in refused(capsys, "--constants", file(**changes), *words)


def test_a_file_is_needed(capsys, tmp_path):
    assert "Name a file of constants" in refused(capsys)
    assert "cannot be read: no such file" in refused(capsys, "--constants", str(tmp_path / "none.yaml"))
