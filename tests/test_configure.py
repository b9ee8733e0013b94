"""Configurations: layers, sources, types, and sentences for what does not fit."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from toy_experiment import toy  # noqa: F401  (a fixture)

from adambo.algorithms import SABA, AdamBO
from adambo.errors import ConfigError, RunError, SettingError
from adambo.experiments import runner
from adambo.experiments.configure import configure, of_run, read_file
from adambo.experiments.presets import laid_over
from adambo.experiments.settings import ALGORITHMS, build_solver, canonical, fields, inverse_fields
from adambo.experiments.values import fitted, nested
from adambo.inverse import ConjugateGradient, Exact, LinearSystem
from adambo.testing import Quadratic
from adambo.training.run_folder import RunFolder

SILENT = Console(quiet=True)


def test_single_values_win_over_a_file_which_wins_over_the_preset_which_wins_over_defaults() -> None:
    file = {"epochs": 7, "tasks": 100, "settings": {"beta": 0.3, "lower_lr": 0.2}}
    made = configure("bert-trec", "slip", overrides={"epochs": 2, "settings.lower_lr": 0.4}, file=file)
    config, source = made.config, made.sources
    assert (config.epochs, source["epochs"]) == (2.0, "given")
    assert (config.tasks, source["tasks"]) == (100, "config file")
    assert (config.shots, source["shots"]) == (5, "paper")
    assert (config.seed, source["seed"]) == (0, "library default")
    assert config.settings["lr"] == 0.1
    assert source["settings.lr"] == "paper"
    assert (config.settings["beta"], source["settings.beta"]) == (0.3, "config file")
    assert (config.settings["lower_lr"], source["settings.lower_lr"]) == (0.4, "given")
    assert (config.settings["order"], source["settings.order"]) == ("jacobi", "library default")


@pytest.mark.parametrize("name", ["MA-SOBA", "ma_soba", "MASOBA", "masoba"])
def test_names_of_algorithms_come_in_any_spelling(name: str) -> None:
    assert canonical(name) == "masoba"
    assert configure("digits", name).config.algorithm == "masoba"


def test_settings_are_those_of_the_class_with_types_defaults_and_a_sentence_each() -> None:
    for name, cls in ALGORITHMS.items():
        for setting in fields(name).values():
            assert setting.doc, (name, setting.name)
        assert "problem" not in fields(name)
        assert cls.summary
    assert fields("adambo")["lr"].type is float
    assert fields("adambo")["eps"].default == 1e-8
    assert "upper_optimizer" not in fields("adambo")
    assert all(setting.doc for method in ("neumann", "exact") for setting in inverse_fields(method).values())


@pytest.mark.parametrize(
    ("overrides", "inverse"),
    [
        ({}, {"method": "neumann", "terms": 3, "samples": "independent", "step": "auto"}),
        (
            {"settings.inverse.samples": "chained"},
            {"method": "neumann", "terms": 3, "samples": "chained", "step": "auto"},
        ),
        (
            {"settings.inverse.products": 5},
            {"method": "neumann", "products": 5, "samples": "independent", "step": "auto"},
        ),
        ({"settings.inverse": "exact"}, {"method": "exact", "limit": 2048}),
        (
            {"settings.inverse.method": "conjugate_gradient", "settings.inverse.iterations": 4},
            {"method": "conjugate_gradient", "iterations": 4, "tolerance": 1e-10, "damping": 0.0},
        ),
        (
            {"settings": {"inverse": {"method": "linear_system", "lr": 0.1}}},
            {"method": "linear_system", "lr": 0.1, "steps": 1},
        ),
        ({"settings.inverse": None}, None),
    ],
)
def test_another_inverse_brings_its_own_settings_and_lengths_do_not_meet(overrides: Any, inverse: Any) -> None:
    made = configure("bert-trec", "adambo", overrides=overrides)
    assert made.config.settings["inverse"] == inverse
    assert set(made.sources) == set(laid_over({}, made.values))


def test_a_solver_is_built_with_its_inverse_and_what_the_experiment_adds() -> None:
    problem = Quadratic(seed=0).problem()
    solver = build_solver("adambo", problem, {"lr": 0.5, "inverse": {"method": "linear_system", "lr": 0.1, "steps": 2}})
    assert isinstance(solver, AdamBO)
    assert isinstance(solver.inverse, LinearSystem)
    assert solver.inverse.steps == 2
    assert solver.upper_optimizer.param_groups[0]["lr"] == 0.5
    kinds = {"exact": Exact, "conjugate_gradient": ConjugateGradient}
    for method, kind in kinds.items():
        assert isinstance(build_solver("stocbio", problem, {"inverse": {"method": method}}).inverse, kind)
    saba = build_solver("saba", problem, {"lr": 0.1}, lower_slots=4, upper_slots=6)
    assert isinstance(saba, SABA)
    assert saba.needs.slots == (4, 6)
    with pytest.raises(ConfigError, match=r"settings\.lower_slots follows from the data"):
        build_solver("saba", problem, {"lower_slots": 9}, lower_slots=4, upper_slots=6)


def test_the_slots_of_a_table_and_an_endless_radius_are_left_to_experiment_and_class() -> None:
    assert not {"lower_slots", "upper_slots"} & set(configure("digits", "saba").config.settings)
    assert configure("digits", "saba", overrides={"settings.lower_slots": 3}).config.settings["lower_slots"] == 3
    assert "radius" not in configure("digits", "borep").config.settings
    assert "radius" not in configure("digits", "borep", overrides={"settings.radius": math.inf}).config.settings
    assert configure("digits", "borep", overrides={"settings.radius": 2}).config.settings["radius"] == 2.0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"epoch": 3}, "bert-trec has no setting 'epoch'. Did you mean 'epochs'?"),
        ({"lower_lr": 3}, "bert-trec has no setting 'lower_lr'. It is one of the algorithm's: settings.lower_lr."),
        ({"settings.bta": 3}, "adambo has no setting 'bta'. Did you mean 'beta'?"),
        ({"settings.z_lr": 3}, "adambo has no setting 'z_lr'. Did you mean 'lr'?"),
        ({"settings.inverse.iterations": 3}, "The inverse neumann has no setting 'iterations'."),
        ({"settings.inverse.method": "newman"}, "There is no inverse 'newman'. Did you mean 'neumann'?"),
        ({"settings.inverse": 3}, "settings.inverse=3 does not fit"),
        ({"settings.inverse.method": "linear_system"}, "The inverse linear_system needs settings.inverse.lr"),
        ({"epochs": "many"}, "epochs='many' does not fit: give a number, or null."),
        ({"epochs": math.inf}, "epochs=inf does not fit: give a finite number."),
        ({"tasks": 2.5}, "tasks=2.5 does not fit: give a whole number."),
        ({"tasks": True}, "tasks=true does not fit: give a whole number."),
        ({"compile": "maybe"}, "compile='maybe' does not fit: give true or false."),
        ({"precision": "fp8"}, "precision='fp8' does not fit: give fp32 or tf32 or bf16."),
        ({"settings.lr": "nan"}, "settings.lr='nan' does not fit: give a number."),
        ({"settings": 3}, "settings=3 does not fit"),
        ({"epochs": {"first": 3}}, "epochs.first does not fit: epochs is one value, it has no parts."),
        ({"algorithm": "adambow"}, "There is no algorithm 'adambow'. Did you mean 'adambo'?"),
        ({"seed": -1}, "seed=-1"),
        ({"epochs": None}, "A run needs an end"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure("bert-trec", overrides=overrides)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("adambo", {"settings.lr": -1}),
        ("adambo", {"settings.beta": 2}),
        ("adambo", {"settings.inverse.terms": 0}),
        ("slip", {"settings.beta": 0}),
        ("vrbo", {"settings.period": 0}),
        ("vrbo", {"settings.inverse.samples": "random"}),
        ("borep", {"settings.radius": -1}),
    ],
)
def test_an_algorithm_refuses_its_settings_before_any_data_is_read(algorithm: str, overrides: Any) -> None:
    with pytest.raises(SettingError):
        configure("auc-rnn", algorithm, overrides={**overrides, "data_dir": "/nowhere"})


def test_an_algorithm_that_an_experiment_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="maml cannot run auc-rnn, which takes"):
        configure("auc-rnn", "maml")


def test_a_study_is_not_configured_as_one_run() -> None:
    with pytest.raises(ConfigError, match="lambda-sensitivity is not one experiment but a study"):
        configure("lambda-sensitivity")


def test_numbers_written_without_a_point_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 3\nsteps: 1e3\nsettings:\n  lr: 1e-4\n  inverse: {step: 5e-1}\n")
    made = configure("digits", "adambo", file=read_file(file))
    assert (made.config.epochs, made.config.steps) == (3.0, 1000)
    assert made.config.settings["lr"] == 1e-4
    assert made.config.settings["inverse"]["step"] == 0.5


def test_the_config_of_a_run_is_a_config_file(toy: str, tmp_path: Path) -> None:  # noqa: F811
    made = configure(toy, "slip", overrides={"width": 5, "seed": 3, "settings.beta": 0.25})
    runner.run(made, tmp_path / "run", SILENT, quiet=True)
    again = configure(toy, file=read_file(tmp_path / "run" / "config.yaml"))
    assert again.config == made.config
    assert of_run(RunFolder.open(tmp_path / "run")) == made
    with pytest.raises(ConfigError, match="for the experiment 'toy', not for 'digits'"):
        configure("digits", file=read_file(tmp_path / "run" / "config.yaml"))
    with pytest.raises(ConfigError, match="The config file has settings of slip, but the run is of adambo"):
        configure(toy, "adambo", file=read_file(tmp_path / "run" / "config.yaml"))


def test_a_run_that_this_version_does_not_know_is_refused(toy: str, tmp_path: Path) -> None:  # noqa: F811
    runner.run(configure(toy), tmp_path / "run", SILENT, quiet=True)
    header = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    header["config"]["depth"] = 4
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(header))
    with pytest.raises(RunError, match="cannot be made by this version: toy has no setting 'depth'"):
        of_run(RunFolder.open(tmp_path / "run"))


NAMES = st.text("abcdefgh_", min_size=1, max_size=5)
TREES = st.recursive(
    st.dictionaries(NAMES, st.integers(), min_size=1, max_size=3),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(TREES)
def test_dotted_names_lead_back_to_the_same_tree(tree: dict[str, Any]) -> None:
    assert nested(laid_over({}, tree)) == tree


@given(st.floats(allow_nan=False))
def test_a_number_survives_being_written_as_text(number: float) -> None:
    assert fitted(repr(number), float, "number") == number


@given(st.one_of(st.booleans(), st.text(), st.lists(st.integers()), st.none(), st.floats()))
def test_whatever_comes_for_a_whole_number_is_one_or_is_refused(value: Any) -> None:
    try:
        number = fitted(value, int, "number")
    except ConfigError:
        number = None
    assert number is None or (type(number) is int and number == float(value))


def test_runs_need_neither_jsonargparse_nor_optuna(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["jsonargparse"] = sys.modules["optuna"] = None
from rich.console import Console
from adambo.experiments import runner
from adambo.experiments.configure import configure
made = configure("digits", overrides={{"tasks": 10, "tasks_per_step": 5, "test_tasks": 5, "steps": 1}})
print(runner.run(made, {str(tmp_path / "run")!r}, Console(quiet=True)).state)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.stderr) == ("finished\n", "")
