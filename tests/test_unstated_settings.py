"""What the paper leaves open and what published code does otherwise: each can be set, and is what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from run_records import straight, write_run

from adambo import AdamBO, CurvatureError, Draw, Neumann, SettingError
from adambo.data.sequences import Padded, Sequences
from adambo.diagnostics.true_hypergradient import solver_z
from adambo.errors import ConfigError
from adambo.experiments import runner
from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.compare import jobs_of_algorithms, refuse_other_runs
from adambo.experiments.configure import Configured, configure, of_run
from adambo.experiments.deep_auc import with_known_curvature
from adambo.experiments.released_code import ReleasedNeumann
from adambo.models.recurrent import FrozenVectors, PairEncoder, SentenceRNN
from adambo.models.transformer import SentenceTransformer
from adambo.report.curves import grouped
from adambo.report.records import Record
from adambo.testing import Quadratic, StochasticQuadratic, TaskQuadratics, divided, flat, normal
from adambo.training.loop import train
from adambo.training.manifest import manifest
from adambo.training.progress import Progress
from adambo.training.run_folder import RunFolder

DATA = Path(os.environ.get("ADAMBO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data files of the experiments on text are not here")
SILENT = Console(quiet=True)
TABLE = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [1.0, -2.0, 2.0], [0.0, 6.0, -8.0]])
UNIT = torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0], [1 / 3, -2 / 3, 2 / 3], [0.0, 0.6, -0.8]])
NEW = ("upper_weight_decay", "vector_scale", "pair_features")


def built(name: str, algorithm: str = "adambo", **values: Any) -> Any:
    overrides = {key.replace("__", "."): value for key, value in values.items()}
    return EXPERIMENTS[name].build(configure(name, algorithm, "tiny", overrides).config)


# Networks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "expected"), [("unit", UNIT), ("raw", TABLE)])
def test_word_vectors_have_length_one_or_are_as_they_come(scale, expected):
    found = FrozenVectors(TABLE, scale)(torch.arange(6))
    torch.testing.assert_close(found[1:-1], expected, rtol=0, atol=1e-6)
    assert not found[[0, -1]].any()  # padding and unknown


def test_word_vectors_are_standardised_unless_something_else_is_said():
    assert torch.equal(FrozenVectors(TABLE).vectors, FrozenVectors(TABLE, "standardised").vectors)
    torch.testing.assert_close(FrozenVectors(TABLE).vectors[1:-1].mean(0), torch.zeros(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", ["standardised", "unit", "raw"])
def test_both_networks_read_vectors_in_the_scale_they_are_told(scale):
    expected = FrozenVectors(TABLE, scale).vectors
    assert torch.equal(SentenceRNN(TABLE, 1, 4, 0.0, "max", scale).words.vectors, expected)
    assert torch.equal(SentenceTransformer(TABLE, 1, 3, 8, 0.0, "mean", scale).words.vectors, expected)


def test_a_pair_of_both_vectors_is_nothing_but_these():
    torch.manual_seed(0)
    sentence = SentenceRNN(TABLE, 1, 4, 0.0, "max")
    pairs = PairEncoder(sentence, 5, "both")
    assert pairs.project.weight.shape == (5, 8)
    rows, others = [[1, 3], [4]], [[3], [2, 4, 1]]
    first, second = (Padded(*Sequences(each).take(torch.arange(2))) for each in (rows, others))
    features = pairs(first, second)
    for k in range(2):
        u, v = (sentence(*Sequences([each[k]]).take(torch.arange(1)))[0] for each in (rows, others))
        expected = torch.tanh(pairs.project.weight @ torch.cat([u, v]) + pairs.project.bias)
        torch.testing.assert_close(features[k], expected, rtol=0, atol=1e-6)


def test_scales_and_pairs_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match=r"vector_scale='long' is not known here: give standardised, unit or raw\."):
        FrozenVectors(TABLE, "long")
    with pytest.raises(ConfigError, match=r"pair_features='three' is not known here: give all or both\."):
        PairEncoder(SentenceRNN(TABLE, 1, 4, 0.0, "max"), 5, "three")
    with pytest.raises(ConfigError, match="vector_scale='long' does not fit: give standardised or unit or raw"):
        configure("auc-rnn", overrides={"vector_scale": "long"})


@needs_data
@pytest.mark.parametrize("name", ["rnn-snli", "auc-rnn", "auc-transformer"])
def test_experiments_hand_the_settings_to_their_networks(name):
    lengths = {}
    for scale in ("standardised", "unit", "raw"):
        network = built(name, data_dir=str(DATA), vector_scale=scale).encoder.network
        lengths[scale] = network.sentence.words.vectors[1:-1].norm(dim=1)
    assert lengths["unit"].max() == pytest.approx(1.0, abs=1e-5)
    assert lengths["raw"].median() > 2
    assert lengths["standardised"].square().mean() == pytest.approx(300, rel=1e-2)  # variance 1 in each dimension


@needs_data
def test_snli_without_comparisons_projects_two_vectors_and_makes_a_step():
    workload = built("rnn-snli", data_dir=str(DATA), pair_features="both")
    assert workload.encoder.network.project.in_features == 2 * 64
    workload.begin()
    assert workload.step(0).isfinite()
    assert built("rnn-snli", data_dir=str(DATA)).encoder.network.project.in_features == 4 * 64


# The Neumann sum of the released code ---------------------------------------------------------------------------------


def released(H: torch.Tensor, v: torch.Tensor, products: int, s: float) -> torch.Tensor:
    """s [Σ_{q=1..Q} A^q + A^Q] v on eigenvalues: each is a geometric sum."""
    eigenvalues, vectors = torch.linalg.eigh(H)
    a = 1 - s * eigenvalues
    return vectors @ ((a * (1 - a**products) / (s * eigenvalues) + a**products) * s * (vectors.T @ v))


@pytest.mark.parametrize("products", [1, 2, 3, 7])
@pytest.mark.parametrize("step", [1e-4, 0.1, 0.25])
def test_the_released_sum_is_its_closed_form(products, step):
    known = Quadratic(dx=2, dy=4, seed=3)
    v = normal(4, generator=torch.Generator().manual_seed(1))
    problem = known.problem()
    point = problem.at(Draw(upper=(0,), cross=(0,), hessian=(0,)))
    z = flat(ReleasedNeumann(products, step).solve(point, divided(v, [p.shape for p in problem.y])))
    torch.testing.assert_close(z, released(known.A, v, products, step), rtol=1e-10, atol=1e-14)
    assert point.ledger.hessian_vector == products
    paper = step * sum(torch.linalg.matrix_power(torch.eye(4) - step * known.A, q) @ v for q in range(products + 1))
    assert (z - paper).norm() > 1e-6 * paper.norm()  # the first term is missing, the last one doubled


def test_the_released_sum_is_the_same_with_a_step_that_is_a_tensor_as_on_a_gpu():
    known = Quadratic(dx=2, dy=4, seed=3)
    point = known.problem().at(Draw(upper=(0,), cross=(0,), hessian=(0,)))
    step = torch.tensor(0.1, dtype=torch.float64)
    z = flat(ReleasedNeumann(3, 0.1)._judged_series(point, point.f_y, step))
    torch.testing.assert_close(z, released(known.A, flat(point.f_y), 3, 0.1), rtol=1e-10, atol=1e-14)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.filterwarnings("ignore:The lower step size")
@pytest.mark.parametrize("adapter", ["per_task", "shared"])
def test_on_cuda_the_released_sum_is_that_of_the_host(adapter):
    inverse = {"settings__inverse__method": "released_neumann", "settings__inverse__step": 0.1}
    host, device = (built("digits", device=name, adapter=adapter, **inverse) for name in ("cpu", "cuda"))
    for workload in (host, device):
        workload.begin()
    for number in range(12):  # the later ones by a captured graph
        steps = [workload.solver.step(workload.draw(number)) for workload in (host, device)]
        torch.testing.assert_close(flat(steps[1].z).cpu(), flat(steps[0].z), rtol=1e-2, atol=1e-4)
    assert host.oracles()["hessian_vector"] == device.oracles()["hessian_vector"] == 36


def test_all_factors_of_the_released_sum_are_of_one_batch():
    known = StochasticQuadratic(dx=2, dy=3, samples=3)
    v, inverse = torch.ones(3, dtype=torch.float64), ReleasedNeumann(products=3, step=0.2)
    assert inverse.needs.hessian == 1
    for sample in range(3):
        problem = known.problem()
        point = problem.at(Draw(upper=([0],), cross=([0],), hessian=([sample],)))
        z = flat(inverse.solve(point, divided(v, [p.shape for p in problem.y])))
        torch.testing.assert_close(z, released(known.A_i[sample], v, 3, 0.2), rtol=1e-10, atol=1e-14)


def test_with_tasks_each_has_the_released_sum_of_its_own():
    known = TaskQuadratics(count=5, dx=3, dy=3, seed=0)
    problem = known.problem()
    tasks = [3, 1, 4]
    point = problem.at(Draw(upper=(tasks,), cross=(tasks,), hessian=(tasks,)))
    z = ReleasedNeumann(products=3, step=0.05).solve(point, point.f_y)
    assert sum(part.shape[0] for part in z) == len(tasks) * len(z)
    together = torch.cat([part.reshape(3, -1) for part in z], dim=1)
    given = torch.cat([part.reshape(3, -1) for part in point.f_y], dim=1)
    for row, task in enumerate(tasks):
        expected = released(known.A[task], given[row], 3, 0.05)
        torch.testing.assert_close(together[row], expected, rtol=1e-10, atol=1e-14)


def test_the_step_of_the_released_sum_is_forced_small_or_measured_and_never_too_large():
    assert ReleasedNeumann().step == 1e-4
    known = Quadratic(dx=2, dy=3, seed=0)
    solver = AdamBO(known.problem(), inverse=ReleasedNeumann(step="auto"))
    solver.step(0, 0)
    largest = float(torch.linalg.eigvalsh(known.A).max())
    assert solver.inverse.step == pytest.approx(1 / (1.25 * largest), rel=0.05)
    with pytest.raises(CurvatureError, match="exceeds 2/λ_max"):
        AdamBO(known.problem(), inverse=ReleasedNeumann(step=3 / largest)).step(0, 0)
    with pytest.raises(SettingError, match=r"products=0: .*give 1 or more"):
        ReleasedNeumann(products=0)


def test_a_step_counts_the_products_of_the_released_sum_and_goes_on_from_a_state():
    known = Quadratic(dx=2, dy=3, seed=0)
    first, second = (AdamBO(known.problem(), inverse=ReleasedNeumann(products=5, step=0.05)) for _ in range(2))
    first.step(0, 0)
    assert first.ledger.hessian_vector == 5
    assert first.ledger.cross_vector == 1
    second.load_state_dict(first.state_dict())
    assert torch.equal(flat(first.step(0, 0).z), flat(second.step(0, 0).z))


def test_monitors_measure_the_z_of_the_released_sum():
    known = Quadratic(dx=2, dy=3, seed=0)
    problem = known.problem()
    point = problem.at(Draw(upper=(0,), cross=(0,), hessian=(0,)))
    solver = AdamBO(problem, inverse=ReleasedNeumann(products=2, step=0.1))
    expected = released(known.A, flat(point.f_y), 2, 0.1)
    torch.testing.assert_close(flat(solver_z(solver, point)), expected, rtol=1e-10, atol=1e-14)
    plain = AdamBO(problem, inverse=Neumann(products=2, step=0.1))
    assert (flat(solver_z(plain, point)) - expected).norm() > 1e-3 * expected.norm()


def test_adambo_with_the_released_sum_runs_digits(tmp_path):
    method = {"settings.inverse.method": "released_neumann"}
    made = configure("digits", "adambo", "tiny", method)
    assert made.config.settings["inverse"] == {"method": "released_neumann", "products": 3, "step": 1e-4}
    assert made.sources["settings.inverse.step"] == "library default"  # and not what the preset says about its "auto"
    assert runner.run(made, tmp_path / "run", SILENT, quiet=True).state == "finished"
    oracles = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["oracles"]
    assert oracles["hessian_vector"] == 3 * oracles["cross_vector"] > 0
    with pytest.raises(ConfigError, match="The inverse released_neumann has no setting 'samples'"):
        configure("digits", overrides={**method, "settings.inverse.samples": "shared"})


@pytest.mark.parametrize(("step", "expected"), [("auto", 1 / 0.32), (1e-4, 1e-4), (None, None)])
def test_the_known_curvature_of_auc_serves_the_released_sum_where_its_step_is_automatic(step, expected):
    given = {"method": "released_neumann"} if step is None else {"method": "released_neumann", "step": step}
    used = with_known_curvature({"inverse": given}, 0.8)["inverse"]
    assert used.get("step") == (expected if expected is None else pytest.approx(expected))


# Weight decay ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["adambo", "adam"])
def test_weight_decay_is_added_to_the_gradient_of_adam(algorithm):
    workload, reference = (built("digits", algorithm, upper_weight_decay=decay) for decay in (0.01, 0.0))
    moved = workload.solver.upper_optimizer.param_groups[0]["params"]
    before = [p.detach().clone() for p in moved]
    for each in (workload, reference):
        each.begin()
        each.step(0)
    others = reference.solver.upper_optimizer.param_groups[0]["params"]
    for p, other, start in zip(moved, others, before, strict=True):
        # After one step, Adam's first moment is a tenth of its gradient.
        decayed = 10 * (
            workload.solver.upper_optimizer.state[p]["exp_avg"]
            - reference.solver.upper_optimizer.state[other]["exp_avg"]
        )
        torch.testing.assert_close(decayed, 0.01 * start, rtol=1e-4, atol=1e-6)
    assert max(float(start.abs().max()) for start in before) > 0.1


def test_weight_decay_is_that_of_torch_and_survives_a_resume():
    whole = built("cancer-auc", upper_weight_decay=0.01)
    assert [group["weight_decay"] for group in whole.solver.upper_optimizer.param_groups] == [0.01]
    assert [group["decoupled_weight_decay"] for group in whole.solver.upper_optimizer.param_groups] == [False]
    resumed = built("cancer-auc", upper_weight_decay=0.01)
    resumed.load_state_dict(whole.state_dict())
    assert resumed.step(0).item() == whole.step(0).item()
    assert resumed.step(1).item() == whole.step(1).item()


@pytest.mark.parametrize("algorithm", ["slip", "vradambo", "stocbio", "maml"])
def test_weight_decay_is_refused_where_there_is_no_adam_above(algorithm):
    with pytest.raises(ConfigError, match=rf"upper_weight_decay=0\.01: {algorithm} has no Adam above\. Leave it at 0"):
        configure("digits", algorithm, overrides={"upper_weight_decay": 0.01})
    assert configure("digits", algorithm, overrides={"upper_weight_decay": 0}).config.upper_weight_decay == 0.0


def test_a_negative_weight_decay_is_refused():
    with pytest.raises(ConfigError, match=r"upper_weight_decay=-0\.1: give 0 or more"):
        configure("digits", overrides={"upper_weight_decay": -0.1})


# Presets and runs from before -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", ["bert-trec", "rnn-snli", "auc-rnn", "auc-transformer"])
def test_presets_say_why_each_is_as_it_is(experiment):
    made = configure(experiment)
    found = {key: (made.values[key], made.sources[key]) for key in NEW if key in made.values}
    assert found["upper_weight_decay"][0] == 0.0
    assert len(found) == {"bert-trec": 1, "rnn-snli": 3}.get(experiment, 2)
    assert found.get("vector_scale", ("standardised", "ours: "))[0] == "standardised"
    assert found.get("pair_features", ("all", "authors' code")) == ("all", "authors' code")
    assert all(source.startswith("ours: ") for key, (_, source) in found.items() if key != "pair_features")


def old_run(made: Configured, folder: Path) -> RunFolder:
    """One as it was before there were these settings: neither its config nor its checkpoints know of them."""
    values, sources = ({k: v for k, v in part.items() if k not in NEW} for part in (made.values, made.sources))
    run = RunFolder.create(folder, made.experiment, made.preset, values, sources, manifest([], ()))
    workload = EXPERIMENTS[made.experiment].build(made.config)
    train(workload, run, runner.plan_of(made.config, workload), Progress(SILENT, quiet=True))
    return run


def test_a_run_from_before_is_gone_on_with_as_it_was(tmp_path):
    whole = configure("digits", "adambo", "tiny", {"steps": 2})
    (job,) = jobs_of_algorithms([whole], 1, tmp_path)
    old = old_run(job.configured.changed(steps=1), job.folder)
    text = (job.folder / "config.yaml").read_text()
    (job.folder / "config.yaml").write_text(text.replace("\n  steps: 1\n", "\n  steps: 2\n"))
    old.set_status("interrupted", "", 1)
    assert "upper_weight_decay" not in text
    assert of_run(RunFolder.open(job.folder)).config == job.configured.config
    refuse_other_runs([job])  # there is nothing to refuse
    assert runner.resume(job.folder, SILENT, quiet=True).state == "finished"
    runner.run(whole, tmp_path / "whole", SILENT, quiet=True)
    ends = [RunFolder.open(folder).evaluations[-1] for folder in (job.folder, tmp_path / "whole")]
    assert [ends[0][key] for key in ("step", "train", "test")] == [ends[1][key] for key in ("step", "train", "test")]


def test_a_report_shows_runs_from_before_and_after_as_one_curve(tmp_path):
    settings = [{}, {"upper_weight_decay": 0.0}, {"upper_weight_decay": 0.01}]
    runs = [
        write_run(tmp_path / str(seed), seed=seed, config=config, evaluations=straight([0.2, 0.5]))
        for seed, config in enumerate(settings)
    ]
    (group,) = grouped(map(Record.read, runs))
    found = {curve.differences["upper_weight_decay"]: [r.seed for r in curve.records] for curve in group.curves}
    assert found == {0.0: [0, 1], 0.01: [2]}
    assert group.curves[0].records[0].source("upper_weight_decay") == "library default"
