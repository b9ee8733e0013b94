"""Every experiment, with every algorithm it can run: steps, evaluations that touch nothing, states that carry on."""

import copy
import os
from pathlib import Path

import pytest
import torch

from adambo.errors import ConfigError
from adambo.experiments.catalogue import EXPERIMENTS, Experiment
from adambo.experiments.configure import configure
from adambo.problems.hyper_representation import Heads

DATA = Path(os.environ.get("ADAMBO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
EMBEDDED = ("digits", "digits-cleaning", "cancer-auc")
ON_FILES = ("bert-trec", "rnn-snli", "auc-transformer", "auc-rnn")
CASES = [(name, algorithm) for name in EMBEDDED for algorithm in EXPERIMENTS[name].allowed]
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data files of the experiments on text are not here")


def built(name, algorithm="adambo", **values):
    overrides = {key.replace("__", "."): value for key, value in values.items()}
    if name in ON_FILES:
        overrides["data_dir"] = str(DATA)
    return EXPERIMENTS[name].build(configure(name, algorithm, "tiny", overrides).config)


def state_of(workload):
    return copy.deepcopy(workload.state_dict()), torch.get_rng_state()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


@pytest.mark.filterwarnings("ignore:The lower step size")
@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_a_state_carries_on_bit_for_bit_and_an_evaluation_touches_nothing(name, algorithm):
    whole = built(name, algorithm)
    whole.begin()
    for number in range(2):
        whole.step(number)
    whole.end_epoch(0)
    before = state_of(whole)
    scores = whole.evaluate()
    assert same(before, state_of(whole))
    assert 0 <= scores["test"][whole.metric] <= 1

    resumed = built(name, algorithm)
    resumed.load_state_dict(before[0])
    torch.set_rng_state(before[1])
    assert resumed.evaluate() == scores
    torch.set_rng_state(before[1])
    losses = [whole.step(number).item() for number in range(2, 4)]
    torch.set_rng_state(before[1])
    assert [resumed.step(number).item() for number in range(2, 4)] == losses
    assert same(whole.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_same_seed_makes_the_same_run_and_another_seed_another(name):
    losses = []
    for seed in (0, 0, 1):
        workload = built(name, seed=seed)
        workload.begin()
        losses.append([workload.step(number).item() for number in range(2)])
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_algorithm_of_a_comparison_is_judged_on_the_same_data_and_starts_from_the_same_network(name):
    experiment = EXPERIMENTS[name]
    assert isinstance(experiment, Experiment)
    first = {algorithm: built(name, algorithm).evaluate() for algorithm in ("adambo", "slip", "saba", "adam")}
    reference = first["adambo"]["test"][experiment.metric]
    assert all(scores["test"][experiment.metric] == reference for scores in first.values())


def test_each_epoch_visits_every_task_once():
    workload = built("digits")
    visited = torch.cat([workload.draw(number).upper[0].ids for number in range(workload.steps_per_epoch)])
    assert visited.sort().values.tolist() == list(range(20))
    later = torch.cat([workload.draw(number + workload.steps_per_epoch).upper[0].ids for number in range(2)])
    assert visited.tolist() != later.tolist()


def test_tasks_of_the_splits_share_no_example():
    workload = built("digits", validation=0.3)
    used = {name: set(split.tasks.examples.flatten().tolist()) for name, split in workload.splits.items()}
    assert used.keys() == {"train", "validation", "test"}
    assert not used["train"] & used["test"]
    assert not used["train"] & used["validation"]
    assert not used["validation"] & used["test"]


def test_a_table_of_slots_names_the_same_tasks_in_every_epoch():
    workload = built("digits", "saba")
    seen = {}
    for number in range(3 * workload.steps_per_epoch):
        draw = workload.draw(number)
        assert seen.setdefault(draw.slot, draw.upper[0].ids.tolist()) == draw.upper[0].ids.tolist()
    assert len(seen) == workload.steps_per_epoch


@pytest.mark.parametrize("adapter", ["per_task", "shared"])
def test_accuracy_is_what_a_hand_count_gives(adapter):
    workload = built("digits", adapter=adapter, fine_tune_steps=2, fine_tune_lr=0.3)
    workload.begin()
    for number in range(2):
        workload.step(number)
    scores, encoder = workload.evaluate(), workload.encoder.network.eval()
    for name in ("train", "test"):
        inputs, tasks = workload.splits[name]
        right = total = 0
        for task, (examples, labels) in enumerate(zip(tasks.examples, tasks.labels, strict=True)):
            with torch.no_grad():
                features = encoder(inputs.take(examples))
            n, row = tasks.support, task if adapter == "per_task" else 0
            weights, biases = (part[row].detach().clone() for part in workload.heads)
            if name == "test" and adapter == "per_task":  # there is no head for a task that was never visited
                weights, biases = torch.zeros_like(weights), torch.zeros_like(biases)
            for _ in range(2):
                weights.requires_grad_(), biases.requires_grad_()
                loss = torch.nn.functional.cross_entropy(features[:n] @ weights.T + biases, labels[:n])
                loss = loss + workload.config.mu / 2 * (weights.square().sum() + biases.square().sum())
                gradients = torch.autograd.grad(loss, (weights, biases))
                weights, biases = (
                    (part - 0.3 * gradient).detach()
                    for part, gradient in zip((weights, biases), gradients, strict=True)
                )
            answers = (features[n:] @ weights.T + biases).argmax(1)
            right += int((answers == labels[n:]).sum())
            total += len(answers)
        assert scores[name]["accuracy"] == pytest.approx(right / total)


def test_heads_have_one_row_per_task_or_one_for_all():
    assert len(built("digits").heads.biases) == 20
    assert len(built("digits", adapter="shared").heads.biases) == 1
    assert len(built("digits", "maml").heads.biases) == 1
    assert isinstance(built("digits").heads, Heads)


def test_auc_is_that_of_the_whole_split_by_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    workload = built("cancer-auc")
    for number in range(3):
        workload.step(number)
    scores = workload.evaluate()
    with torch.no_grad():
        test = workload._judged["test"]
        values = workload.encoder.network.eval()(test.take(test.groups[0])).sigmoid()
    expected = metrics.roc_auc_score(test.positive[test.groups[0]], values)
    assert scores["test"]["auc"] == pytest.approx(expected, abs=1e-6)


def test_the_share_of_positives_in_the_loss_is_that_of_the_training_data():
    workload = built("cancer-auc", positive_share=0.8)
    chosen = torch.cat([group for part in workload._training for group in part.groups])
    assert workload.p == pytest.approx(float(workload._levels[0].positive[chosen].mean()))
    assert workload.p == pytest.approx(0.8, abs=0.01)


def test_cleaning_flips_just_the_share_of_labels_it_says():
    workload = built("digits-cleaning", wrong_share=0.25)
    assert int(workload._wrong.sum()) == 50
    assert built("digits-cleaning", wrong_share=0.0).evaluate()["weights"]["recall"] == 0.0


def test_cleaning_finds_wrong_labels():
    workload = EXPERIMENTS["digits-cleaning"].build(configure("digits-cleaning", "slip").config)
    workload.begin()
    for number in range(240):
        workload.step(number)
    found = workload.evaluate()["weights"]
    assert found["precision"] > 0.85
    assert found["recall"] > 0.85


def test_cube_root_decay_follows_the_epochs():
    workload = built("digits", "sustain", decay="cube_root", settings__lr=0.8)
    rates = []
    for epoch in range(3):
        rates.append(workload.solver.upper_optimizer.param_groups[0]["lr"])
        for number in range(2):
            workload.step(2 * epoch + number)
        workload.end_epoch(epoch)
    assert rates == pytest.approx([0.8 * (epoch + 2) ** (-1 / 3) for epoch in range(3)])


def test_compiling_what_maml_differentiates_twice_is_refused():
    with pytest.raises(ConfigError, match="differentiates the network twice"):
        built("digits", "maml", compile=True)


@needs_data
@pytest.mark.filterwarnings("ignore:The lower step size")
@pytest.mark.parametrize("name", ON_FILES)
def test_experiments_on_text_step_evaluate_and_carry_on(name):
    whole = built(name)
    whole.begin()
    for number in range(2):
        whole.step(number)
    before = state_of(whole)
    scores = whole.evaluate()
    assert same(before, state_of(whole))
    resumed = built(name)
    resumed.load_state_dict(before[0])
    assert resumed.evaluate() == scores
    torch.set_rng_state(before[1])
    expected = whole.step(2).item()
    torch.set_rng_state(before[1])
    assert resumed.step(2).item() == expected


@needs_data
@pytest.mark.parametrize("algorithm", ["maml", "anil", "saba", "borep"])
def test_other_kinds_of_steps_work_on_bert(algorithm):
    workload = built("bert-trec", algorithm)
    workload.begin()
    assert torch.isfinite(workload.step(0))


@needs_data
def test_dropout_is_off_in_evaluations_and_on_in_training():
    with_dropout, without = built("bert-trec", dropout=0.5), built("bert-trec", dropout=0.0)
    assert with_dropout.evaluate() == with_dropout.evaluate() == without.evaluate()
    for workload in (with_dropout, without):
        workload.begin()  # heads are zero before, and then features are of no consequence
    assert with_dropout.step(0).item() != without.step(0).item()


def warm_started(workload):
    """The batches of every call of the warm start."""
    seen = []
    original = workload.solver.warm_start
    workload.solver.warm_start = lambda batches: seen.append(list(batches)) or original(seen[-1])
    workload.begin()
    return seen


def test_a_warm_start_makes_so_many_steps_on_the_head_of_every_task():
    workload = built("digits", warm_start=3)
    visits = torch.cat([batch.ids for batches in warm_started(workload) for batch in batches])
    assert torch.bincount(visits, minlength=20).tolist() == [3] * 20


@pytest.mark.parametrize("values", [{"adapter": "shared"}, {"algorithm": "anil"}])
def test_a_warm_start_of_a_single_head_makes_so_many_steps_in_all(values):
    workload = built("digits", **{"warm_start": 3, **values})
    assert sum(len(batches) for batches in warm_started(workload)) == 3


@pytest.mark.parametrize("name", EMBEDDED)
def test_plain_adam_has_nothing_to_warm_up(name):
    workload = built(name, "adam", warm_start=3)
    before = copy.deepcopy(workload.state_dict())
    workload.begin()
    assert same(before, workload.state_dict())
    assert torch.isfinite(workload.step(0))


def test_plain_adam_learns_from_both_halves():
    workload = built("cancer-auc", "adam", levels="halves")
    lower, upper = (set(torch.cat(half.groups).tolist()) for half in workload._levels)
    seen = set()
    for number in range(30):
        seen |= set(workload.draw(number).upper[0].inputs.tolist())
    assert seen & lower
    assert seen & upper
    assert seen <= lower | upper


@pytest.mark.parametrize("algorithm", ["adambo", "saba", "vrbo", "adam"])
def test_both_levels_draw_from_the_same_data_and_never_the_same_batch(algorithm):
    workload, in_halves = (built("cancer-auc", algorithm, levels=levels) for levels in ("same", "halves"))
    lower, upper = (set(torch.cat(level.groups).tolist()) for level in workload._levels)
    assert lower == upper == set().union(*(torch.cat(half.groups).tolist() for half in in_halves._levels))
    assert workload.steps_per_epoch == in_halves.steps_per_epoch
    assert workload.p == in_halves.p
    workload.begin()
    draw = workload.draw(3)
    batches = [batch for role in ("upper", "lower", "cross") for batch in getattr(draw, role) if batch is not None]
    assert all(set(batch.inputs.tolist()) <= lower for batch in batches)
    if algorithm in ("adambo", "vrbo"):
        assert len({tuple(batch.inputs.tolist()) for batch in batches}) == len(batches)
    assert workload.evaluate()["train"] == pytest.approx(in_halves_of(workload)["train"], abs=1e-6)


def in_halves_of(workload):
    """The scores if training data were judged in two parts."""
    (split,) = workload._training
    (numbers,) = split.groups
    workload._training = [split._replace(groups=[part]) for part in numbers.tensor_split(2)]
    return workload.evaluate()


def test_upper_batches_come_from_one_half_and_lower_ones_from_the_other():
    workload = built("cancer-auc", levels="halves")
    lower, upper = (set(torch.cat(half.groups).tolist()) for half in workload._levels)
    draw = workload.draw(0)
    for role, half in (("upper", upper), ("lower", lower), ("cross", lower), ("hessian", lower)):
        for batch in getattr(draw, role):
            assert set(batch.inputs.tolist()) <= half


@pytest.mark.parametrize("algorithm", ["adambo", "stocbio", "ttsa", "slip", "sustain", "vrbo", "accbo"])
def test_hessian_factors_of_auc_need_no_batches_of_their_own(algorithm, monkeypatch):
    thrifty, lavish = (built("cancer-auc", algorithm) for _ in range(2))
    monkeypatch.setattr(lavish, "draw", super(type(lavish), lavish).draw)  # independent ones, as from the stream
    for workload in (thrifty, lavish):
        workload.begin()
        for number in range(4):
            workload.step(number)
    drawn = thrifty.draw(4)
    assert drawn.hessian
    assert all(any(batch is cross for cross in drawn.cross) for batch in drawn.hessian)
    for one, other in zip(thrifty.solver.problem.x, lavish.solver.problem.x, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    calls = [{k: v for k, v in workload.oracles().items() if k != "samples"} for workload in (thrifty, lavish)]
    assert calls[0] == calls[1]
    assert thrifty.oracles()["samples"] <= lavish.oracles()["samples"]


# Those whose steps are element by element: with one rate for all it does not matter how parameters are grouped.
BY_ELEMENT = ("adambo", "vradambo", "stocbio", "ttsa", "masoba", "sustain", "vrbo", "adam")


def moved(workload, steps=3):
    """a, b and the network after some steps, from where all runs begin."""
    workload.begin()
    for number in range(steps):
        workload.step(number)
    return [workload.variables.a, workload.variables.b, *workload.encoder.network.parameters()]


@pytest.mark.parametrize("algorithm", BY_ELEMENT)
def test_a_rate_of_their_own_moves_a_and_b_and_nothing_else_at_first(algorithm):
    values = configure("cancer-auc", algorithm, "tiny").config.settings
    plain, same = (built("cancer-auc", algorithm, **more) for more in ({}, {"offset_lr": values["lr"]}))
    for one, other in zip(moved(plain), moved(same), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    still, twice = (built("cancer-auc", algorithm, offset_lr=rate) for rate in (0.0, 2 * values["lr"]))
    a, b, *network = moved(still, steps=1)
    doubled = moved(twice, steps=1)
    once = moved(built("cancer-auc", algorithm), steps=1)
    assert (a.item(), b.item()) == (0.0, 0.0)
    for one, other in zip(network, once[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(doubled[1], 2 * once[1], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("algorithm", ["slip", "borep", "accbo"])
def test_where_steps_are_normalised_the_network_moves_while_a_and_b_rest(algorithm):
    workload = built("cancer-auc", algorithm, offset_lr=0.0)
    before = [p.detach().clone() for p in workload.encoder.network.parameters()]
    a, b, *network = moved(workload, steps=1)
    assert (a.item(), b.item()) == (0.0, 0.0)
    assert any(not torch.equal(p, start) for p, start in zip(network, before, strict=True))


def test_a_run_with_groups_of_parameters_resumes():
    whole, resumed = (built("cancer-auc", offset_lr=0.3, one_batch=True) for _ in range(2))
    moved(whole)
    resumed.load_state_dict(whole.state_dict())
    assert [whole.step(k).item() for k in (3, 4)] == [resumed.step(k).item() for k in (3, 4)]


@pytest.mark.parametrize("algorithm", ["adambo", "stocbio", "slip", "vrbo", "accbo"])
def test_one_batch_serves_all_roles_and_is_as_large_as_two(algorithm):
    workload = built("cancer-auc", algorithm, one_batch=True, batch_size=10)
    draw, needs = workload.draw(5), workload.solver.needs
    roles = ("upper", "lower", "cross", "hessian")
    assert [len(getattr(draw, role)) for role in roles] == [getattr(needs, role) for role in roles]
    for role in roles:
        assert {id(batch) for batch in getattr(draw, role)} == {id(batch) for batch in draw.upper}
    assert {len(batch) for batch in draw.upper} == {20}
    assert workload.steps_per_epoch == built("cancer-auc", algorithm, batch_size=10).steps_per_epoch
    start = workload.oracles()["samples"]
    workload.step(5)
    # Of AdamBO, the one batch in four roles.
    assert algorithm != "adambo" or workload.oracles()["samples"] - start == 4


def test_where_one_batch_serves_all_roles_of_auc_the_network_does_not_see_how_alpha_is_found():
    # There g = −f in α with a constant ∇²yy g, so z = α* − α, and ∇x f − ∇²xy g z is ∇x f at α*, wherever α stands.
    p = built("cancer-auc").p
    once = built("cancer-auc", one_batch=True, settings__inverse__step=1 / (2 * p * (1 - p)))
    often = built(
        "cancer-auc",
        one_batch=True,
        settings__lower_lr=0.3,
        settings__lower_steps=50,
        settings__hypergradient_at="updated",
        settings__inverse__method="conjugate_gradient",
        settings__inverse__iterations=10,
    )
    hypergradients = [torch.cat([p.grad.flatten() for p in moved(each, steps=1)]) for each in (once, often)]
    torch.testing.assert_close(*hypergradients, rtol=1e-4, atol=1e-6)
    assert hypergradients[0].norm() > 0.1
    assert abs(once.variables.alpha.item() - often.variables.alpha.item()) > 0.01


@pytest.mark.parametrize(
    ("algorithm", "values", "said"),
    [
        ("saba", {"one_batch": True}, r"one_batch=true.*not saba"),
        ("slip", {"one_batch": True, "levels": "halves"}, r"one_batch=true.*levels=same"),
        ("slip", {"one_batch": True, "batch_size": 250}, r"2 \* batch_size=500: each level has"),
        ("slip", {"offset_lr": -0.1}, r"offset_lr=-0\.1: give 0 or more"),
    ],
)
def test_batches_and_rates_that_cannot_be_are_refused(algorithm, values, said):
    with pytest.raises(ConfigError, match=said):
        built("cancer-auc", algorithm, **values)


@pytest.mark.parametrize("name", EMBEDDED)
def test_who_chooses_by_validation_need_not_see_the_test_split(name):
    every, one = (built(name, validation=0.3, evaluate_on=which).evaluate() for which in ("all", "validation"))
    assert {"train", "validation", "test"} <= set(every)
    assert {"train", "test"}.isdisjoint(one)
    assert one["validation"] == every["validation"]
    with pytest.raises(ConfigError, match=r"evaluate_on=validation: with validation=0.*above 0"):
        built(name, evaluate_on="validation")


def test_halves_are_judged_apart_too():
    scores = built("cancer-auc", levels="halves").evaluate()
    assert set(scores) == {"train", "test", "lower half", "upper half"}
    assert set(built("cancer-auc").evaluate()) == {"train", "test"}
    assert scores["lower half"] != scores["upper half"]


def test_a_batch_of_examples_is_what_its_numbers_stand_for():
    workload = built("cancer-auc")
    batch = workload.draw(0).upper[0]
    half = workload._levels[1]
    assert torch.equal(batch.positive, half.positive[batch.inputs])
    expected = workload.encoder(half.take(batch.inputs)).sigmoid()
    torch.testing.assert_close(workload.solver.problem.encoder(batch)[:, 0], expected)


def test_vrbo_gets_its_large_batch():
    workload = built("cancer-auc", "vrbo", snapshot_batch=50)
    draw = workload.draw(0)
    assert len(draw.upper[0]) == 32
    assert len(draw.snapshot.upper[0]) == len(draw.snapshot.lower[0]) == 50


def test_a_large_batch_that_no_half_can_give_is_refused():
    with pytest.raises(ConfigError, match="snapshot_batch=500: each level has"):
        built("cancer-auc", "vrbo", snapshot_batch=500)
    assert built("cancer-auc", "adambo", snapshot_batch=500).draw(0) is not None


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_level_of_a_random_series_depends_on_the_step_and_the_seed(name):
    levels = [[built(name, "ttsa", seed=seed).draw(number).level for number in range(30)] for seed in (0, 1)]
    assert set(levels[0]) == set(levels[1]) == set(range(built(name, "ttsa").solver.needs.levels))
    assert levels[0] != levels[1]


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_test_split_is_the_same_whatever_is_held_out(name):
    assert built(name).evaluate()["test"].keys() == built(name, validation=0.2).evaluate()["test"].keys()
    if name == "digits":
        pairs = [built(name, validation=share).splits["test"].tasks.examples for share in (0.0, 0.2)]
    elif name == "cancer-auc":
        pairs = [built(name, validation=share)._judged["test"].groups[0] for share in (0.0, 0.2)]
    else:
        pairs = [built(name, validation=share)._splits["test"].inputs for share in (0.0, 0.2)]
    assert torch.equal(*pairs)


def test_what_cleaning_holds_out_is_neither_trained_on_nor_tested_on():
    workload = built("digits-cleaning", validation=0.2)
    held_out, test = (workload._splits[name].inputs for name in ("validation", "test"))
    assert len(held_out) == 40
    assert len(workload._wrong) == 160
    trained = torch.cat([workload.draw(number).lower[0].inputs for number in range(12)])
    for image in held_out:
        assert not (test == image).all(1).any()
        assert not (trained == image).all(1).any()


def test_tables_of_saba_are_filled_before_the_first_step():
    workload = built("digits", "saba")
    workload.begin()
    tables = workload.state_dict()["solver"]["own"]["tables"]
    assert any(bool(torch.count_nonzero(tensor)) for tensor in tensors_in(tables))


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for child in children for tensor in tensors_in(child)]


def test_slots_follow_from_the_data_and_are_not_to_be_set():
    with pytest.raises(ConfigError, match=r"settings\.lower_slots follows from the data"):
        built("digits", "saba", settings__lower_slots=5)


@pytest.mark.parametrize("p", [0.8, 0.9])
def test_an_automatic_neumann_step_is_the_exact_one_for_auc(p):
    inverse = {"settings__inverse__method": "neumann", "settings__inverse__step": "auto"}
    workload = built("cancer-auc", positive_share=p, **inverse)
    assert workload.solver.inverse.step == pytest.approx(1 / (2 * workload.p * (1 - workload.p)))


@needs_data
def test_trec_tasks_share_no_text_between_splits_nor_within_a_task():
    from adambo.data.trec import read_trec

    workload = built("bert-trec", validation=0.2, tasks=200, test_tasks=200, tasks_per_step=20)
    texts = {"train": read_trec(DATA, "train").texts, "test": read_trec(DATA, "test").texts}
    texts["validation"] = texts["train"]
    used = {}
    for name, split in workload.splits.items():
        asked = [[texts[name][k].lower() for k in task] for task in split.tasks.examples.tolist()]
        assert all(len(set(task)) == len(task) for task in asked)
        used[name] = {text for task in asked for text in task}
    assert not used["train"] & used["test"]
    assert not used["train"] & used["validation"]
    assert not used["validation"] & used["test"]


@needs_data
def test_snli_validation_shares_no_premise_with_training(monkeypatch):
    from adambo.experiments import rnn_snli

    taken = []
    original = rnn_snli.word_ids
    monkeypatch.setattr(rnn_snli, "word_ids", lambda texts, *rest: taken.append(set(texts)) or original(texts, *rest))
    built("rnn-snli", validation=0.5, tasks=200, test_tasks=200, tasks_per_step=20)
    train, _, validation, *_ = taken  # premises and hypotheses of each split, in turn
    assert len(train) > 100
    assert not {text.lower() for text in train} & {text.lower() for text in validation}


@needs_data
def test_the_validation_split_of_tweets_takes_nothing_from_training(monkeypatch):
    from adambo.experiments import tweet_auc

    texts = []
    original = tweet_auc.word_ids
    monkeypatch.setattr(tweet_auc, "word_ids", lambda given, *rest: texts.append(given) or original(given, *rest))
    with_it, without = (built("auc-transformer", validation=share) for share in (0.05, 0.0))
    train, validation, _, train_again, _ = texts
    assert train == train_again
    assert len(validation) == 0.05 * 61_817 // 1 + 1
    assert not set(train) & set(validation)
    assert with_it.p == without.p
    for one, other in zip(with_it._levels, without._levels, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.groups, other.groups, strict=True))
    share = with_it._judged["validation"].positive.mean().item()
    assert 0.45 < share < 0.55  # as in the data, not as in training
