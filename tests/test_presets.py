"""The presets against the paper's settings, value by value and in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from adambo.errors import ConfigError
from adambo.experiments.catalogue import EXPERIMENTS, Experiment
from adambo.experiments.configure import configure
from adambo.experiments.deep_auc import with_known_curvature
from adambo.experiments.presets import laid_over, names, preset, search_space

GOLDEN = yaml.safe_load((Path(__file__).parent / "golden" / "paper_settings.yaml").read_text())
ORIGINAL = Path(__file__).resolve().parents[2] / "shared" / "spec" / "paper_settings.yaml"
PART = {
    "bert-trec": "hyper_representation_bert",
    "rnn-snli": "hyper_representation_rnn",
    "auc-transformer": "auc_transformer",
    "auc-rnn": "auc_rnn",
}
SIZES = {"bert-trec": 9, "rnn-snli": 9, "auc-transformer": 10, "auc-rnn": 10}
CONFIG = {  # the paper's name of a setting, and ours
    "num_meta_tasks_K": ["tasks"],
    "categories_per_task": ["ways"],
    "examples_per_category": ["shots", "queries"],
    "task_batch_size": ["tasks_per_step"],
    "epochs": ["epochs"],
    "batch_size": ["batch_size"],
    "imbalance_ratio_p": ["positive_share"],
}
MODEL = {"layers": "layers", "heads": "heads", "hidden_size": "hidden", "hidden_dim": "hidden"}
PAIRS = [
    (experiment, algorithm) for experiment in PART for algorithm in GOLDEN[PART[experiment]]["paper"]["learning_rates"]
]


def ours(name: str) -> str:
    return name.replace("_", "")


def stated(experiment: str) -> dict[str, Any]:
    """All that the paper says about an experiment."""
    own = GOLDEN[PART[experiment]]["paper"]
    return {**GOLDEN["auc_common"]["paper"], **own} if experiment.startswith("auc") else own


def paper_values(experiment: str, algorithm: str) -> dict[str, Any]:
    """What the paper states for one algorithm of an experiment, in our names."""
    paper, values = stated(experiment), {}
    for theirs, names_ in CONFIG.items():
        if paper.get(theirs) is not None:
            values |= dict.fromkeys(names_, paper[theirs])
    values |= {MODEL[key]: value for key, value in paper["model"].items() if key in MODEL}
    if "vrbo_snapshot_batch" in paper:
        values["snapshot_batch"] = paper["vrbo_snapshot_batch"]["value"]
    if "t = epoch; all others constant" in paper.get("sustain_decay", ""):
        values["decay"] = "cube_root" if algorithm == "sustain" else "none"
    values["settings.lr"], values["settings.lower_lr"] = paper["learning_rates"][algorithm]
    single = {
        "momentum_beta": "settings.beta",
        "warm_start_steps": "warm_start",
        "inner_loops": "settings.lower_steps",
    }
    for theirs, name in single.items():
        if algorithm in paper[theirs]:
            values[name] = paper[theirs][algorithm]
    if algorithm == "bo_rep":
        values |= {"settings.lower_steps": paper["bo_rep"]["N"], "settings.period": paper["bo_rep"]["I"]}
    if algorithm == "adambo":
        moments = {"settings.beta": "beta", "settings.beta_sq": "beta_sq", "settings.eps": "lambda"}
        values |= {name: paper["adambo"][theirs] for name, theirs in moments.items()}
    if algorithm == "accbo":
        values["settings.nesterov"] = paper["accbo"]["nesterov_alpha"]
        values["settings.averaging"] = paper["accbo"]["averaging_nu"]
    length = paper["neumann_steps"].get(algorithm)
    if length == "uniform {1,2,3}":  # k + 1 is drawn from them
        values |= {"settings.inverse.terms": 3, "settings.inverse.samples": "random"}
    elif algorithm == "adambo":  # its Q counts terms, and Algorithm 1 draws every factor anew
        values |= {"settings.inverse.terms": length, "settings.inverse.samples": "independent"}
    elif length is not None:  # StocBiO and VRBO count products
        values["settings.inverse.products"] = length
    if length is not None:
        values["settings.inverse.method"] = "neumann"
    return values


@pytest.mark.skipif(not ORIGINAL.exists(), reason="the specification is not beside this checkout")
def test_the_golden_copy_is_the_specification() -> None:
    assert yaml.safe_load(ORIGINAL.read_text()) == GOLDEN


@pytest.mark.parametrize("experiment", PART)
def test_every_algorithm_of_the_paper_has_a_preset_and_no_other_claims_to(experiment: str) -> None:
    algorithms = {ours(name) for name in stated(experiment)["learning_rates"]}
    assert len(algorithms) == SIZES[experiment]
    chosen = EXPERIMENTS[experiment]
    assert isinstance(chosen, Experiment)
    assert set(chosen.compared) - {"adam"} == algorithms
    for algorithm in chosen.allowed:
        _, sources = preset(experiment, algorithm)
        assert ("paper" in {sources.get(f"settings.{name}") for name in ("lr", "lower_lr")}) == (
            algorithm in algorithms
        )


@pytest.mark.parametrize(("experiment", "algorithm"), PAIRS)
def test_presets_equal_the_paper_in_both_directions(experiment: str, algorithm: str) -> None:
    values, sources = preset(experiment, ours(algorithm))
    claimed = {key: values[key] for key, source in sources.items() if source == "paper"}
    assert claimed == paper_values(experiment, algorithm)
    assert names(experiment)[0] == "paper"


@pytest.mark.parametrize(("experiment", "algorithm"), PAIRS)
def test_what_a_run_gets_is_what_the_preset_says_and_every_value_has_a_source(experiment: str, algorithm: str) -> None:
    values, sources = preset(experiment, ours(algorithm))
    made = configure(experiment, algorithm)
    run = laid_over({}, made.values)
    assert {key: run[key] for key in values} == values
    assert {key: made.sources[key] for key in sources} == sources
    assert set(made.sources) == set(run)
    for key, source in made.sources.items():
        known = source in ("paper", "authors' code", "library default", "given") or source.startswith("ours: ")
        assert known or source.startswith("authors' code: "), (key, source)
    silent = {key for key, source in made.sources.items() if source == "library default" and "." not in key}
    assert silent <= {
        "seed", "steps", "seconds", "oracle_calls", "evaluate_every", "evaluate_on", "checkpoint_every", "validation",
        "device",
        "precision", "compile", "threads", "data_dir", "monitor_every",
    }  # fmt: skip


def test_values_of_the_authors_code_are_those_of_the_authors_code() -> None:
    found = {}
    for experiment, algorithm in PAIRS:
        values, sources = preset(experiment, ours(algorithm))
        for key, source in sources.items():
            if source.startswith("authors' code"):
                found[experiment, ours(algorithm) if key.startswith("settings.") else "all", key] = values[key]
    bert, snli, rnn = (GOLDEN[PART[name]]["authors_code"] for name in ("bert-trec", "rnn-snli", "auc-rnn"))
    expected = {
        ("bert-trec", "all", "test_tasks"): bert["num_test_tasks"],
        ("bert-trec", "all", "mu"): 2e-4,  # "1e-4 * ||y||^2  (mu = 2e-4)"
        ("bert-trec", "all", "feed_forward"): bert["bert_intermediate_size"],
        ("bert-trec", "all", "dropout"): bert["dropout"],
        ("bert-trec", "all", "max_length"): bert["max_length"],
        ("rnn-snli", "all", "shots"): snli["k_support"] // 2,
        ("rnn-snli", "all", "queries"): snli["k_query"] // 2,
        ("rnn-snli", "all", "test_tasks"): snli["num_test_tasks"],
        ("rnn-snli", "all", "features"): 4096,  # "projected to the encoder width"
        ("rnn-snli", "all", "pair_features"): "all",  # "[u, v, |u-v|, u*v]"
        ("rnn-snli", "all", "pooling"): snli["pooling"],
        ("rnn-snli", "all", "epochs"): snli["epochs"],
        ("auc-rnn", "all", "minority_kept"): rnn["negatives_kept"],
        ("auc-rnn", "all", "score"): "sigmoid",
        ("auc-rnn", "all", "pooling"): rnn["pooling"],
        ("auc-rnn", "sustain", "settings.rho_f"): rnn["sustain_momentum"],
        ("auc-rnn", "sustain", "settings.rho_g"): rnn["sustain_momentum"],
        ("auc-rnn", "vrbo", "settings.inner_steps"): rnn["vrbo"]["spider_loops"] - 1,  # m + 1 lower steps
    }
    for name in ("maml", "anil"):
        expected["bert-trec", name, "settings.inner_steps"] = bert["inner_steps"][name]
        expected["rnn-snli", name, "settings.inner_steps"] = snli["command_lines_inner_steps"][name]
    for name in ("saba", "ma_soba", "bo_rep", "slip"):
        expected["bert-trec", ours(name), "settings.z_lr"] = bert["z_step_size_nu"][name]
        expected["rnn-snli", ours(name), "settings.z_lr"] = snli["command_lines_nu"][name]
    for name in ("saba", "ma_soba", "bo_rep"):
        expected["auc-rnn", ours(name), "settings.z_lr"] = rnn["z_step_size_nu"][name]
    assert found == expected


@pytest.mark.parametrize(("experiment", "p"), [("auc-transformer", 0.9), ("auc-rnn", 0.8)])
def test_the_neumann_step_of_auc_is_one_over_its_exact_curvature(experiment: str, p: float) -> None:
    for algorithm in ("stocbio", "ttsa", "sustain", "vrbo", "accbo", "adambo"):
        values, sources = preset(experiment, algorithm)
        assert values["positive_share"] == p
        used = with_known_curvature({"inverse": {"method": "neumann", "step": values["settings.inverse.step"]}}, p)
        assert used["inverse"]["step"] == pytest.approx(1 / (2 * p * (1 - p)), rel=1e-14)
        assert sources["settings.inverse.step"].startswith("ours: one over the exact curvature")


def test_the_authors_rates_of_adambo_are_the_other_way_round() -> None:
    code = GOLDEN["hyper_representation_bert"]["authors_code"]["learning_rates_adambo"]
    values, sources = preset("bert-trec", "adambo", "authors_lr")
    assert (values["settings.lr"], values["settings.lower_lr"]) == (code["eta"], code["gamma"])
    assert sources["settings.lr"] == "authors' code"
    others, of_others = preset("bert-trec", "slip", "authors_lr")
    assert (others, of_others) == preset("bert-trec", "slip")


@pytest.mark.parametrize("experiment", PART)
def test_searches_go_as_far_as_the_papers_did(experiment: str) -> None:
    paper = stated(experiment)
    for algorithm in paper["learning_rates"]:
        space = search_space(experiment, algorithm)
        low, high = paper["lr_tuning_range"]
        assert space.pop("settings.lr") == space.pop("settings.lower_lr") == (low, high)
        assert space == ({"snapshot_batch": paper["vrbo_snapshot_batch"]["tuned_in"]} if algorithm == "vrbo" else {})
    assert set(search_space(experiment, "adam")) == {"settings.lr"}  # it has no lower level


@pytest.mark.parametrize("experiment", PART)
def test_tiny_is_the_paper_with_a_smaller_network_and_less_data(experiment: str) -> None:
    for algorithm in stated(experiment)["learning_rates"]:
        full, (values, sources) = preset(experiment, algorithm)[0], preset(experiment, algorithm, "tiny")
        changed = {key for key in values if values[key] != full[key]}
        assert changed == {key for key, source in sources.items() if source == "tiny preset"}
        assert not [key for key in changed if key.startswith("settings.")]
        assert values["epochs"] == 1
        assert values["hidden"] <= 64


@pytest.mark.parametrize("experiment", [name for name, each in EXPERIMENTS.items() if isinstance(each, Experiment)])
def test_every_preset_of_every_experiment_makes_a_run_of_every_algorithm(experiment: str) -> None:
    chosen = EXPERIMENTS[experiment]
    assert isinstance(chosen, Experiment)
    for name in names(experiment):
        for algorithm in chosen.allowed:
            made = configure(experiment, algorithm, name)
            assert made.config.algorithm == algorithm
            assert made.preset == name


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no preset of bert-trec 'tinny'. Did you mean 'tiny'"):
        preset("bert-trec", "adambo", "tinny")
