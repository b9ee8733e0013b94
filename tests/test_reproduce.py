"""The page on the reproduction: tables against numbers worked out by hand, verdicts, blocks written and checked."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image, ImageChops
from run_records import evaluation, write_run

from adambo.cli import main
from adambo.errors import RunError
from adambo.report.figures import PAPER
from adambo.report.palette import ALGORITHMS, styles
from adambo.reproduction.archive import Archive, Case
from adambo.reproduction.arrival import Arrivals, arrivals, threshold
from adambo.reproduction.block import DPI, Block, Page
from adambo.reproduction.claims_part import baselines, verdict
from adambo.reproduction.panels import four_panels
from adambo.reproduction.parts import PARTS, blocks
from adambo.reproduction.search_part import trials_text
from adambo.reproduction.searches import Search
from adambo.reproduction.spread import Difference, Spread, difference
from adambo.reproduction.standing import State

CASE = "bert-trec-shared"
OTHER_LABELS = 2  # the place of their table among those of the claims
OTHERS = baselines(CASE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(
    label: str,
    seed: int,
    tests: Sequence[float | None],
    *,
    kind: str = "paper",
    case: str = CASE,
    state: str = "finished",
    settings: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    chance: float = 0.5,
    train: float = 0.9,
) -> Path:
    """A run with one evaluation per epoch of 10 steps, in `results/`, whose recorded seconds are far from the truth."""
    folder = Path("results") / kind / case / f"{label}-seed{seed}"
    write_run(
        folder,
        label.partition("-")[0],
        seed,
        experiment=case.removesuffix("-shared"),
        evaluations=[evaluation(epoch, train, test, seconds=1000.0 * epoch) for epoch, test in enumerate(tests)],
        state=state,
        reason="The loss is NaN." if state == "diverged" else "",
        config={"precision": "tf32", "settings": {"lr": 0.01, "eps": 1e-8, **(settings or {})}, **(more or {})},
        sources=dict.fromkeys((f"settings.{key}" for key in settings or {}), "given"),
        manifest={"experiment": {"metric": "accuracy", "chance": chance}},
    )
    return folder


def speed(label: str, ms: float, case: str = CASE, precision: str = "tf32") -> None:
    path = Path("results/speed") / f"{case}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {
        "label": label,
        "algorithm": label,
        "ms_per_step": ms,
        "precision": precision,
        "commit": "c",
        "hardware": "h",
    }
    path.write_text((path.read_text() if path.exists() else "") + json.dumps(line) + "\n")


def table(part: str, number: int = 0) -> list[dict[str, str]]:
    """The rows of a part's table by the titles of the columns."""
    (block,) = blocks(Archive(Path("results")), part)
    sheet = block.sheets[number]
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]


def case_of(kind: str, name: str = CASE) -> Case:
    case = Archive(Path("results")).case(kind, name)
    assert case is not None
    return case


def notes(part: str) -> str:
    (block,) = blocks(Archive(Path("results")), part)
    return "\n".join(block.notes)


# ---- the tables of runs ----


def test_scores_are_means_with_deviations_over_seeds_and_the_highest_comes_first() -> None:
    for seed, tests in enumerate([[0.5, 0.9, 0.6], [0.5, 0.7, 0.8]]):
        write("slip", seed, tests)
    write("adambo", 0, [0.5, 0.6, 0.75])
    speed("slip", 50.0)
    speed("adambo", 200.0)
    first, second = table("paper")
    assert (first["algorithm"], second["algorithm"]) == ("AdamBO", "SLIP")
    assert first["final test accuracy"] == "0.7500"  # one seed has no deviation
    assert second["of each seed"] == "0.600 0.800"
    assert second["final test accuracy"] == "0.7000 ± 0.1414"  # of two: their distance over the root of 2
    assert second["best test accuracy"] == "0.8500 ± 0.0707"
    assert second["epoch of the best"] == "1.5"
    assert second["final train accuracy"] == "0.9000 ± 0.0000"
    assert second["oracle calls"] == "240"


def test_seconds_are_steps_times_the_speed_alone_and_never_those_of_the_record() -> None:
    write("slip", 0, [0.5, 0.6, 0.7])
    speed("slip", 50.0)
    (row,) = table("paper")
    assert (row["ms per step, alone"], row["seconds, alone"]) == ("50.0", "1.00")  # 20 steps
    (curve,) = case_of("paper").group.curves
    assert curve.band("seconds", "test", "accuracy").x == [0.0, 0.5, 1.0]


def test_a_label_without_a_speed_has_dashes_and_no_curve_against_seconds() -> None:
    write("slip", 0, [0.5, 0.7])
    write("adambo", 0, [0.5, 0.6])
    speed("adambo", 10.0)
    slip, adambo = table("paper")
    assert (slip["ms per step, alone"], slip["seconds, alone"]) == ("–", "–")
    assert adambo["seconds, alone"] == "0.10"
    assert "have not been measured for SLIP," in notes("paper")
    curve = case_of("paper").curve("slip")
    assert curve is not None
    assert curve.band("seconds", "test", "accuracy").x == []


def test_a_speed_in_another_precision_is_none_and_of_two_the_later_counts() -> None:
    write("slip", 0, [0.5, 0.7])
    speed("slip", 10.0, precision="bf16")
    assert table("paper")[0]["ms per step, alone"] == "–"
    speed("slip", 20.0)
    speed("slip", 30.0)
    assert table("paper")[0]["ms per step, alone"] == "30.0"


def test_a_diverged_run_counts_with_its_last_evaluation_and_says_so() -> None:
    write("slip", 0, [0.5, 0.8, 0.9])
    write("slip", 1, [0.5, 0.7], state="diverged")
    (row,) = table("paper")
    assert row["final test accuracy"] == "0.8000 ± 0.1414"
    assert row["of each seed"] == "0.900 0.700*"
    assert "SLIP diverged: The loss is NaN. (seed 1 after epoch 1)" in notes("paper")


def test_runs_that_did_not_come_to_an_end_are_left_out_by_name() -> None:
    write("slip", 0, [0.5, 0.8])
    write("slip", 1, [0.5, 0.1], state="interrupted")
    (row,) = table("paper")
    assert (row["of each seed"], row["final test accuracy"]) == ("0.800", "0.8000")
    assert "slip-seed1 (interrupted)" in notes("paper")


def test_seeds_with_other_settings_are_pointed_out() -> None:
    write("slip", 0, [0.5, 0.8])
    write("slip", 1, [0.5, 0.8], settings={"lr": 0.1})
    assert "SLIP (settings.lr)" in notes("paper")


@pytest.mark.parametrize("name", ["slip", "slip-seedx", "slip-seed3"])
def test_a_folder_that_is_not_named_after_its_run_is_refused(name: str) -> None:
    write("slip", 0, [0.5, 0.8]).rename(Path("results/paper") / CASE / name)
    with pytest.raises(RunError, match=name):
        blocks(Archive(Path("results")), "paper")


def test_labels_with_other_seeds_are_pointed_out_also_under_the_claims() -> None:
    write("slip", 0, [0.5, 0.6])
    write("adambo", 1, [0.5, 0.7])
    said = "Not every label has the same seeds: 1: AdamBO; 0: SLIP."
    assert said in notes("paper")
    assert said in notes("claims")
    write("slip", 1, [0.5, 0.6])
    write("adambo", 0, [0.5, 0.7])
    assert "the same seeds" not in notes("paper") + notes("claims")


def test_a_folder_named_after_one_algorithm_with_a_run_of_another_is_refused() -> None:
    config = write("slip", 0, [0.5, 0.6]) / "config.yaml"
    config.write_text(config.read_text().replace("algorithm: slip", "algorithm: adambo"))
    with pytest.raises(RunError, match="named after slip but holds a run of adambo"):
        case_of("paper")


def test_a_case_that_nobody_knows_is_refused() -> None:
    write("slip", 0, [0.5, 0.8], case="bert-trek")
    with pytest.raises(RunError, match="bert-trek is no case"):
        blocks(Archive(Path("results")), "paper")


# ---- 90 % of the best ----


def test_90_percent_is_counted_from_chance() -> None:
    write("slip", 0, [0.4, 0.9, 0.6], kind="tuned", chance=0.2)
    write("slip", 1, [0.4, 0.7, 0.5], kind="tuned", chance=0.2)
    write("adambo", 0, [0.4, 0.5, 0.75], kind="tuned", chance=0.2)
    assert threshold(case_of("tuned")) == pytest.approx(0.2 + 0.9 * (0.8 - 0.2))  # the mean best of SLIP is 0.8


def test_times_are_means_of_first_arrivals_and_seeds_that_miss_are_counted() -> None:
    tests = {
        "slip": [[0.5, 0.6, 0.9, 0.5], [0.5, 0.6, 0.6, 0.9], [0.5, 0.9, 0.6, 0.6]],
        "adambo": [[0.5, 0.9, 0.9, 0.9], [0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7, 0.8]],
    }
    for label, runs in tests.items():
        for seed, scores in enumerate(runs):
            write(label, seed, scores, kind="tuned")
        speed(label, 100.0)
    rows = {row["algorithm"]: row for row in table("tuned")}
    # The threshold is 0.86: epochs 2, 3 and 1.
    assert rows["SLIP"]["epochs to 90 %"] == "2.0 ± 1.0 (1 of 3 stay)"
    assert rows["SLIP"]["seconds to 90 %"] == "2.00 ± 1.00 (1 of 3 stay)"
    assert rows["AdamBO"]["epochs to 90 %"] == "not reached (2 of 3; 1 stay)"


def test_a_run_that_falls_back_or_diverges_has_arrived_but_is_not_still_there() -> None:
    write("slip", 0, [0.5, 0.9, 0.8])  # at the threshold is there
    write("slip", 1, [0.5, 0.9, 0.79])
    write("slip", 2, [0.5, 0.9, 0.9], state="diverged")
    found = arrivals(case_of("paper").group.curves[0], "epoch", "accuracy", 0.8)
    assert found == Arrivals((1.0, 1.0, 1.0), (), staying=1)


def test_claims_say_how_many_seeds_are_still_there_at_the_end() -> None:
    for seed in range(3):
        write("adambo", seed, [0.5, 0.9, 0.9, 0.9 if seed else 0.5])
        write("slip", seed, [0.5, 0.6, 0.9, 0.9])
    row = claim(FASTER)
    assert row[OWN] == "1.0 ± 0.0 (2 of 3 stay) to 0.860"
    assert row["best baseline"] == "2.0 ± 0.0 (SLIP; 3 of 3 stay)"
    assert row[SETTINGS].startswith("before 1 of 1; no records of ")


def test_without_a_speed_epochs_to_90_percent_are_known_and_seconds_are_not() -> None:
    write("slip", 0, [0.5, 0.9], kind="tuned")
    (row,) = table("tuned")
    assert (row["epochs to 90 %"], row["seconds to 90 %"]) == ("1.0 (1 of 1 stay)", "–")
    (curve,) = case_of("tuned").group.curves
    assert arrivals(curve, "seconds", "accuracy", 0.8) is None


def test_seeds_that_end_at_chance_are_named() -> None:
    for seed, end in enumerate((0.5, 0.9, 0.52)):
        write("slip", seed, [0.7, end])
        write("saba", seed, [0.5, 0.53])
    (block,) = (each for each in blocks(Archive(Path("results")), "paper") if each.case == CASE)
    assert "At chance at their end (no more than 0.02 above it): SLIP (seeds 0, 2)." in block.notes


def test_beside_tuned_runs_stands_what_the_papers_settings_gave_as_early() -> None:
    for seed, score in enumerate((0.6, 0.7)):
        write("slip", seed, [0.5, 0.55, score, 0.9])
    write("slip", 0, [0.5, 0.6, 0.8], kind="tuned")
    write("adambo", 0, [0.5, 0.6, 0.7], kind="tuned")
    rows = {row["algorithm"]: row["untuned, as early"] for row in table("tuned")}
    assert rows == {"SLIP": "0.6500 ± 0.0707", "AdamBO": "–"}


def test_where_nothing_is_better_than_chance_nothing_arrives() -> None:
    write("slip", 0, [0.5, 0.4], kind="tuned")
    assert threshold(case_of("tuned")) is None
    assert table("tuned")[0]["epochs to 90 %"] == "–"


def test_what_a_network_has_before_its_first_step_is_no_arrival() -> None:
    write("slip", 0, [0.74, 0.6, 0.5], kind="tuned")
    write("saba", 0, [0.70, 0.6, 0.73], kind="tuned")
    assert threshold(case_of("tuned")) is None
    write("saba", 1, [0.70, 0.6, 0.79], kind="tuned")  # 0.76 is the mean of the best
    assert threshold(case_of("tuned")) == pytest.approx(0.5 + 0.9 * 0.26)


def test_a_slow_method_is_not_sooner_than_a_cheap_one_that_had_less_time() -> None:
    for kind in ("paper", "tuned"):
        for seed in range(3):
            write("adambo", seed, [0.5, 0.6, 0.7, 0.8, 0.89, 0.9], kind=kind)
            for label in OTHERS:
                write(label, seed, [0.5, 0.6, 0.62, 0.64, 0.66, 0.68], kind=kind)
    for label in OTHERS:
        speed(label, 1.0)  # at their end after 0.05 s; AdamBO is there after 4 s
    speed("adambo", 100.0)
    assert claim(FASTER)[OWN].startswith("4.0 ± 0.0")
    assert claim(FASTER)[SETTINGS] == "before 8 of 8"
    assert claim(SECONDS)[SETTINGS] == "undecided 8 of 8"
    assert (
        claim(SECONDS)["verdict"] == "not confirmed"
    )  # and not within the spread: nobody knows when the others would arrive


def test_a_run_that_diverged_at_once_had_the_time_of_the_other_seeds() -> None:
    for seed in range(2):
        write("slip", seed, [0.5, 0.6, 0.6], more={"epochs": 2.0})
    write("slip", 2, [0.5], state="diverged", more={"epochs": 2.0})
    speed("slip", 100.0)
    (curve,) = case_of("paper").group.curves
    assert arrivals(curve, "epoch", "accuracy", 0.8) == Arrivals((), (2.0, 2.0, 2.0), staying=0)
    found = arrivals(curve, "seconds", "accuracy", 0.8)
    assert found is not None
    assert len(set(found.ends)) == 1
    write("saba", 0, [0.5], state="diverged", more={"epochs": 2.0})
    write("saba", 1, [], state="diverged", more={"epochs": 2.0})  # not even judged once
    speed("saba", 100.0)
    curves = {curve.algorithm: curve for curve in case_of("paper").group.curves}
    soon = Arrivals((1.0, 1.0), (), staying=2)
    for axis in ("epoch", "seconds"):
        never = arrivals(curves["saba"], axis, "accuracy", 0.8)
        assert never is not None
        assert (soon.sooner_than(never), never.sooner_than(soon)) == ("higher", "lower")


def test_a_run_that_diverged_would_not_have_arrived_either() -> None:
    folder = write("slip", 0, [0.5, 0.6], state="diverged")
    config = folder / "config.yaml"
    planned = yaml.safe_load(config.read_text())
    planned["config"]["epochs"] = 20.0
    config.write_text(yaml.safe_dump(planned))
    found = arrivals(case_of("paper").group.curves[0], "epoch", "accuracy", 0.9)
    assert found == Arrivals((), (20.0,), staying=0)


@pytest.mark.parametrize(
    ("mine", "theirs", "order"),
    [
        (((1.0, 1.0), ()), ((3.0, 3.0), ()), "higher"),
        (((3.0, 3.0), ()), ((1.0, 1.0), ()), "lower"),
        (((1.0, 3.0), ()), ((2.0, 3.0), ()), "within"),
        (((1.0, 3.0), ()), ((2.0,), (3.0,)), "undecided"),  # as near, but one of the times is not known
        (((5.0, 9.0), ()), ((), (9.0, 9.0)), "higher"),  # one arrives, the other never does
        (((), (9.0, 9.0)), ((5.0, 9.0), ()), "lower"),
        (((), (9.0, 9.0)), ((), (9.0, 9.0)), "undecided"),
        (((1.0, 1.0), ()), ((8.0,), (9.0,)), "higher"),
        (((7.0, 7.1), ()), ((1.0,), (2.0,)), "undecided"),  # the other stopped early: when it would arrive is unknown
        (((1.0,), ()), ((), (9.0, 9.0)), "undecided"),  # a single seed
        (((5.0, 9.0), ()), ((), (2.0, 2.0)), "undecided"),  # the other had less time than the first took
        (((), (2.0, 2.0)), ((5.0, 9.0), ()), "undecided"),
    ],
)
def test_sooner_is_decided_by_times_that_are_known(mine: Any, theirs: Any, order: str) -> None:
    assert Arrivals(*mine, staying=0).sooner_than(Arrivals(*theirs, staying=0)) == order


# ---- differences and verdicts ----


def test_the_standard_error_of_a_difference_is_welchs() -> None:
    found = difference(Spread((0.8, 0.9, 1.0)), Spread((0.5, 0.7)))
    assert found.mean == pytest.approx(0.3)
    assert found.error == pytest.approx((0.01 / 3 + 0.02 / 2) ** 0.5)
    assert difference(Spread((0.8, 0.9)), Spread((0.5,))).error is None


@pytest.mark.parametrize(
    ("mean", "error", "order"),
    [
        *((0.021, 0.01, "higher"), (0.02, 0.01, "within"), (-0.021, 0.01, "lower"), (0.3, None, "undecided")),
        *((0.0, 0.0, "within"), (0.1, 0.0, "higher")),
    ],
)
def test_higher_takes_more_than_two_standard_errors(mean: float, error: float | None, order: str) -> None:
    assert Difference(mean, error).over() == order


def test_verdicts_follow_from_both_settings() -> None:
    assert verdict("higher", "higher") == "confirmed"
    assert verdict("higher", "lower") == verdict("higher", "undecided") == "confirmed only at the paper's settings"
    assert verdict("higher", "within").endswith("settings (within the spread under the fair search)")
    assert verdict("within", "partial") == "not confirmed (within the spread, incomplete records in the fair search)"
    assert verdict("lower", "lower") == verdict("lower", "within") == verdict("undecided", "absent") == "not confirmed"
    assert verdict("within", "within") == verdict("within", "absent") == "not confirmed (within the spread)"
    assert verdict("within", "lower") == "not confirmed"
    assert verdict("undecided", "higher") == "not confirmed (but confirmed under the fair search)"
    assert verdict("within", "higher") == "not confirmed (within the spread, but confirmed under the fair search)"
    assert verdict("absent", "absent") == "no records"
    assert "no records" in verdict("higher", "absent")
    assert "incomplete records" in verdict("partial", "higher")


def test_every_verdict_is_one_of_the_three_or_a_lack_of_records() -> None:
    known = ("confirmed", "confirmed only at the paper's settings", "not confirmed", "no records", "incomplete records")
    for paper in get_args(State):
        for fair in get_args(State):
            said = verdict(paper, fair)
            assert said.startswith(known)
            assert "decided" not in said


def ending(label: str, score: float, kind: str) -> None:
    """Three seeds around `score`, reached by steps that all labels share."""
    for seed, noise in enumerate((-0.01, 0.0, 0.01)):
        write(label, seed, [0.5, 0.5 + (score - 0.5) / 2, score + noise], kind=kind)


def claim(start: str) -> dict[str, str]:
    (row,) = [row for row in table("claims") if row["claim"].startswith(start)]
    return row


OWN, SETTINGS = "paper's settings: AdamBO", "against all of them"
HIGHER = "bert-trec, one head for all tasks: ends higher (test)"
FASTER = "bert-trec, one head for all tasks: converges faster (epochs)"
SECONDS = "bert-trec, one head for all tasks: converges faster (seconds)"


@pytest.mark.parametrize(
    ("paper", "tuned", "said"),
    [
        (0.6, 0.6, "confirmed"),
        (0.6, 0.9, "confirmed only at the paper's settings"),
        (0.9, 0.6, "not confirmed (but confirmed under the fair search)"),
        (0.9, 0.9, "not confirmed"),
        (0.795, 0.795, "not confirmed (within the spread)"),  # against 0.8, with a standard error of 0.008
        (0.795, 0.9, "not confirmed"),
    ],
)
def test_ends_higher_is_judged_against_every_baseline(paper: float, tuned: float, said: str) -> None:
    for kind, strongest in (("paper", paper), ("tuned", tuned)):
        ending("adambo", 0.8, kind)
        for label in OTHERS:
            ending(label, strongest if label == "slip" else 0.55, kind)
    row = claim(HIGHER)
    assert row["verdict"] == said
    for own, other, score in ((OWN, "best baseline", paper), ("fair search: AdamBO", "its best baseline", tuned)):
        assert row[own] == "0.8000 ± 0.0100"
        assert row[other] == f"{score:.4f} ± 0.0100 (SLIP)"


def test_a_missing_baseline_leaves_the_claim_open_unless_another_refutes_it() -> None:
    ending("adambo", 0.8, "paper")
    for label in OTHERS[1:]:
        ending(label, 0.6, "paper")
    assert claim(HIGHER)["verdict"] == "incomplete records at the paper's settings"
    assert "no records of MAML" in claim(HIGHER)[SETTINGS]
    assert claim("rnn-snli, one head per task: ends higher (test)")["verdict"] == "no records"


def one_seed_less(label: str) -> None:
    for kind in ("paper", "tuned"):
        shutil.rmtree(Path("results") / kind / CASE / f"{label}-seed2")


@pytest.mark.parametrize("score", [0.6, 0.795, 0.95])
def test_two_seeds_of_a_baseline_decide_nothing_either_way(score: float) -> None:
    for kind in ("paper", "tuned"):
        for label in ("adambo", *OTHERS):
            ending(label, {"adambo": 0.8, "slip": score}.get(label, 0.6), kind)
    one_seed_less("slip")
    row = claim(HIGHER)
    assert row["verdict"] == "incomplete records at the paper's settings"
    assert "; above 7, undecided 1 of 8; fewer than 3 seeds of SLIP (2)" in row[SETTINGS]
    assert f"; number {1 + (score > 0.8)} of 9;" in row[SETTINGS]


def test_two_seeds_of_the_method_decide_nothing_either_way() -> None:
    for kind in ("paper", "tuned"):
        for label in ("adambo", *OTHERS):
            ending(label, 0.8 if label == "adambo" else 0.6, kind)
    for label in ("adambo", *OTHERS):
        speed(label, 10.0)
    one_seed_less("adambo")
    for start in (HIGHER, FASTER):
        assert claim(start)["verdict"] == "incomplete records at the paper's settings"
        assert "undecided 8 of 8; fewer than 3 seeds of AdamBO (2)" in claim(start)[SETTINGS]
    assert {row["better than all in"] for row in table("claims", OTHER_LABELS)} == {"nothing"}


def test_three_seeds_of_one_better_baseline_refute_whatever_others_lack() -> None:
    for kind in ("paper", "tuned"):
        for label in ("adambo", *OTHERS[1:]):
            ending(label, {"adambo": 0.8, "slip": 0.9}.get(label, 0.6), kind)
    one_seed_less("saba")
    assert claim(HIGHER)["verdict"] == "not confirmed"
    assert "below 1, undecided 1 of 7; fewer than 3 seeds of SABA (2); no records" in claim(HIGHER)[SETTINGS]
    for label in ("anil", "stocbio", "ttsa"):
        one_seed_less(label)
    assert "; fewer than 3 seeds of 4 labels; no records of MAML" in claim(HIGHER)[SETTINGS]


def test_where_nobody_learns_nobody_is_shown_to_be_faster() -> None:
    for label in ("adambo", *OTHERS):
        for seed in range(3):
            write(label, seed, [0.7, 0.6, 0.5])
    assert claim(FASTER)["verdict"] == "not confirmed"
    shutil.rmtree(Path("results/paper") / CASE / "slip-seed2")
    assert claim(FASTER)["verdict"] == "incomplete records at the paper's settings"
    assert "before its first step; fewer than 3 seeds of SLIP (2)" in claim(FASTER)[SETTINGS]


def test_plain_adam_and_own_variants_are_no_baselines_but_have_their_rows() -> None:
    for kind in ("paper", "tuned"):
        ending("adambo", 0.8, kind)
        ending("adam", 0.95, kind)
        ending("adambo-50", 0.97, kind)
        for label in OTHERS:
            ending(label, 0.6, kind)
    assert claim(HIGHER)["verdict"] == "confirmed"
    own = {row["label"]: row for row in table("claims", OTHER_LABELS)}
    assert set(own) == {"AdamBO", "AdamBO-50", "Adam"}
    assert "test metric" in own["AdamBO-50"]["better than all in"]
    assert own["AdamBO-50"]["over plain Adam"].startswith("+0.0200")
    assert own["AdamBO-50"]["over the best control"] == "–"
    ending("slip-50", 0.9, "tuned")
    own = {row["label"]: row for row in table("claims", OTHER_LABELS)}
    assert own["AdamBO-50"]["over the best control"] == "+0.0700 ± 0.0082 (SLIP-50)"
    assert own["SLIP-50"]["over the best control"] == own["Adam"]["over the best control"] == "–"
    assert own["AdamBO-50"]["final test: over the best baseline"].startswith("+0.3700")


def test_a_baseline_in_another_order_is_a_baseline_too() -> None:
    for kind in ("paper", "tuned"):
        for label in ("adambo", *OTHERS):
            ending(label, 0.8 if label == "adambo" else 0.6, kind)
        ending("slip-0.01", 0.9, kind)  # another rate is none
    assert claim(HIGHER)["verdict"] == "confirmed"
    ending("slip-gauss-seidel", 0.9, "paper")
    assert claim(HIGHER)["verdict"] == "not confirmed (but confirmed under the fair search)"
    assert "that was not run, and so does not count: SLIP-gauss-seidel in tuned/bert-trec-shared." in notes("claims")
    assert claim(HIGHER)["best baseline"] == "0.9000 ± 0.0100 (SLIP-gauss-seidel)"
    assert claim(HIGHER)[SETTINGS].endswith("number 2 of 10; above 8, below 1 of 9")
    ending("accbo-updated", 0.95, "tuned")  # AccBO is none of those that are compared here
    assert claim(HIGHER)["its best baseline"] != "0.9500 ± 0.0100 (AccBO-updated)"


def test_faster_in_epochs_and_faster_in_seconds_are_two_claims() -> None:
    for kind in ("paper", "tuned"):
        for label in ("adambo", *OTHERS):
            for seed in range(3):
                soon = label == "adambo"
                write(label, seed, [0.5, 0.9 if soon else 0.6, 0.9, 0.9], kind=kind)
    assert (claim(FASTER)["verdict"], claim(SECONDS)["verdict"]) == ("confirmed", "not measured")  # no speeds
    assert claim(SECONDS)[OWN] == "not measured"
    for label in ("adambo", *OTHERS):
        speed(label, 10.0)
    assert claim(SECONDS)["verdict"] == "confirmed"
    speed("adambo", 25.0)  # sooner in epochs, later in seconds
    assert (claim(FASTER)["verdict"], claim(SECONDS)["verdict"]) == ("confirmed", "not confirmed")
    assert claim(SECONDS)[OWN] == "0.25 ± 0.00 (3 of 3 stay) to 0.860"
    assert claim(SECONDS)["best baseline"].startswith("0.20 ± 0.00 (")


def test_times_within_the_spread_do_not_confirm_that_it_is_faster() -> None:
    for label in ("adambo", *OTHERS):
        for seed in range(3):
            first = seed + (label == "saba") * (seed == 2)  # 0, 1, 2 epochs late, and SABA's last seed 3
            write(label, seed, [0.5, *[0.6] * first, *[0.9] * (5 - first)])
        speed(label, 10.0)
    assert claim(FASTER)["verdict"] == "not confirmed (within the spread)"
    assert claim(FASTER)[SETTINGS] == "level with 8 of 8"


INCOMPLETE = "incomplete records at the paper's settings"


@pytest.mark.parametrize(
    ("other", "seeds", "said"),
    [(0.7, 3, "confirmed"), (0.78, 3, "not confirmed"), (0.7, 2, INCOMPLETE), (0.78, 2, INCOMPLETE)],
)
def test_the_headline_is_read_as_favours_the_paper(other: float, seeds: int, said: str) -> None:
    for kind in ("paper", "tuned"):
        for label in ("adambo", *baselines("auc-rnn")):
            for seed in range(seeds):
                score = 0.81 if label == "adambo" else other
                write(label, seed, [0.5, score], kind=kind, case="auc-transformer", train=score)
    row = claim("auc-transformer: ends at least 14 %")  # 0.11 higher, which is 15.7 % of 0.7
    assert row["verdict"] == said
    assert claim("auc-transformer: ends at least 7 %")["verdict"] == said


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({1e-8: 0.8, 1e-4: 0.79, 1e-3: 0.5}, "confirmed"),  # a tenth of the gain is 0.03; 1e-3 is beyond the claim
        ({1e-8: 0.8, 1e-6: 0.7, 1e-4: 0.8}, "not confirmed"),
        ({1e-8: 0.8, 1e-4: 0.77}, "not confirmed (too near the margin)"),
        ({1e-8: 0.8, 1e-4: 0.768}, "not confirmed (beyond the margin, but within the spread)"),
        ({1e-8: 0.5, 1e-4: 0.5}, "not confirmed (nothing is learned at 1e-8)"),
        ({1e-8: 0.8, 1e-5: 0.8}, "incomplete records"),
    ],
)
def test_lambda_hardly_matters_if_a_tenth_of_the_gain_covers_it(scores: dict[float, float], said: str) -> None:
    for eps, score in scores.items():
        for seed, noise in enumerate((-0.005, 0.0, 0.005)):
            tests = [0.5, score + noise]
            write(f"adambo-eps{eps:g}", seed, tests, kind="lambda-sensitivity", case="auc-rnn", settings={"eps": eps})
    assert table("claims", 1)[0]["claim"] == "auc-rnn: λ hardly matters up to 1e-4"
    assert table("claims", 1)[0]["verdict"] == said


def test_lambda_too_is_judged_by_three_seeds_of_each_value() -> None:
    for eps, seeds in ((1e-8, 3), (1e-4, 2)):
        for seed in range(seeds):
            name = f"adambo-eps{eps:g}"
            write(name, seed, [0.5, 0.8], kind="lambda-sensitivity", case="auc-rnn", settings={"eps": eps})
    assert table("claims", 1)[0]["verdict"] == "incomplete records (fewer than 3 seeds of λ = 1e-4 (2))"


# ---- the other parts ----


def test_the_summary_has_the_highest_of_every_kind_and_the_soonest() -> None:
    scores = {
        "adambo": 0.7,
        "slip": 0.65,
        "saba": 0.8,
        "adam": 0.75,
        "adambo-50": 0.9,
        "adambo-20": 0.6,
        "slip-50": 0.85,
    }
    for label, score in scores.items():
        for kind in ("paper", "tuned"):
            if kind == "tuned" or "-" not in label:
                ending(label, score, kind)
        speed(label, 10.0)
    (paper,), (tuned,), (times, lower) = (table("summary", number) for number in range(3))
    assert lower["bar"] == "0.7700"  # 0.5 + 0.9 · 0.3, SABA being the best of AdamBO and the baselines
    assert lower["soonest baseline"] == "0.20 (SABA)"
    assert (paper["AdamBO"], paper["best baseline"]) == ("0.7000 ± 0.0100", "0.8000 ± 0.0100 (SABA)")
    assert paper["plain Adam"] == tuned["plain Adam"] == "0.7500 ± 0.0100"
    assert tuned["best variant of AdamBO"] == "0.9000 ± 0.0100 (AdamBO-50)"
    assert tuned["best control"] == "0.8500 ± 0.0100 (SLIP-50)"
    assert times["bar"] == "0.8600"  # 0.5 + 0.9 · 0.4
    assert (times["by the best of"], lower["by the best of"]) == ("all labels", "AdamBO and baselines")
    assert times["soonest variant of AdamBO"] == "0.20 (AdamBO-50)"  # two epochs of ten steps
    # Of SLIP-50 one seed gets there.
    assert times["AdamBO"] == times["soonest baseline"] == times["soonest control"] == "–"


def test_lambda_has_a_row_per_value_and_a_column_per_experiment() -> None:
    for case in ("auc-rnn", "bert-trec"):
        for eps in (1e-8, 1e-2):
            write(f"adambo-eps{eps:g}", 0, [0.5, 0.9, 0.7], kind="lambda-sensitivity", case=case, settings={"eps": eps})
    (block,) = blocks(Archive(Path("results")), "lambda")
    assert list(block.sheets[0].rows[1]) == ["1e-2", "0.7000", "0.9000", "0.7000", "0.9000"]
    assert "No records of auc-transformer." in block.notes
    assert block.png().startswith(b"\x89PNG")


def test_variants_beside_each_other_never_look_alike() -> None:
    looks = styles([*ALGORITHMS, *(f"variant-{number}" for number in range(24))])
    assert len(set(looks)) == len(ALGORITHMS) + 24
    assert len({style.light for style in looks[len(ALGORITHMS) :][:6]}) == 6


def search_file(label: str, trials: Sequence[tuple[float, str, float | None]]) -> None:
    path = Path("results/search") / CASE / f"{label}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"about": {"experiment": "bert-trec", "algorithm": label, "trials": len(trials)}}
    lines = [
        {"trial": k, "values": {"settings.lr": lr}, "state": state, "reason": "", "score": score, "epochs": 1.0}
        for k, (lr, state, score) in enumerate(trials)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [about, *lines]))


def test_marks_of_few_pixels_keep_their_colours_in_the_file() -> None:
    methods = ("adambo", "maml", "anil", "stocbio", "ttsa", "saba", "masoba", "slip", "borep", "adam")
    for height, method in enumerate(methods):
        search_file(method, [(10.0**-turn, "finished", 0.5 + 0.01 * (height + turn)) for turn in range(8)])
    (block,) = blocks(Archive(Path("results")), "search")
    assert block.draw is not None
    drawn = io.BytesIO()
    with rc_context(PAPER):
        block.draw().savefig(drawn, format="png", dpi=DPI)
    with Image.open(drawn) as wanted, Image.open(io.BytesIO(block.png())) as file:
        off = ImageChops.difference(wanted.convert("RGB"), file.convert("RGB")).getextrema()
    assert max(highest for _, highest in off) <= 20


def test_the_best_finished_trial_is_chosen() -> None:
    search_file(
        "slip", [(0.1, "finished", 0.6), (0.02, "finished", 0.7), (0.3, "diverged", 0.9), (1.0, "failed", None)]
    )
    search_file("adambo", [(0.1, "diverged", None)])
    slip, adambo = table("search")
    assert slip["trials"] == "2 of 4 finished, 1 diverged, 1 failed"
    assert (slip["chosen values"], slip["validation score of the chosen"]) == ("lr 0.02", "0.7000")
    assert (adambo["chosen values"], adambo["validation score of the chosen"]) == ("–", "–")
    assert "Not every label has 4 trials: AdamBO 1." in notes("search")
    (block,) = blocks(Archive(Path("results")), "search")
    assert block.png().startswith(b"\x89PNG")


def test_where_a_second_round_decides_a_search_without_one_has_chosen_nothing() -> None:
    for label in ("slip", "adambo"):
        search_file(label, [(0.1, "finished", 0.6), (0.02, "finished", 0.7)])
    with (Path("results/search") / CASE / "slip.jsonl").open("a") as record:
        again = {"trial": 0, "values": {"settings.lr": 0.1}, "state": "finished", "score": 0.65, "again": True}
        record.write(json.dumps(again) + "\n")
    search_file("anil", [(0.1, "finished", 0.6)])
    with (Path("results/search") / CASE / "anil.jsonl").open("a") as record:  # all that it had has diverged
        record.write(json.dumps(again | {"state": "diverged", "score": None}) + "\n")
    rows = {row["label"]: row["chosen values"] for row in table("search")}
    assert rows == {"SLIP": "lr 0.1", "AdamBO": "the search is not at its end (0 made again)", "ANIL": "–"}
    (block,) = blocks(Archive(Path("results")), "search")
    assert block.png().startswith(b"\x89PNG")


def test_one_more_is_made_again_where_one_diverged_and_that_is_said() -> None:
    for label, rounds in (("slip", 1), ("saba", 1), ("adambo", 2)):
        search_file(label, [(0.1, "finished", 0.6), (0.02, "finished", 0.7)])
        with (Path("results/search") / CASE / f"{label}.jsonl").open("a") as record:
            for turn in range(rounds):
                again = {"trial": turn, "values": {"settings.lr": 0.1}, "epoch": 8.0, "again": True}
                ended = (
                    {"state": "diverged", "score": None} if turn + 1 < rounds else {"state": "finished", "score": 0.65}
                )
                record.write(json.dumps(again | ended) + "\n")
    assert "the best, 1 in all, were made again with 8, and these decide. (Of AdamBO" in notes("search")


@pytest.mark.parametrize("content", ["", '{"trial": 0}\n', '{"about": {}}\n{"trial": 0}\n', "[1]\n", "{"])
def test_a_damaged_search_is_named(content: str) -> None:
    search_file("slip", [])
    (Path("results/search") / CASE / "slip.jsonl").write_text(content)
    with pytest.raises(RunError, match=r"slip\.jsonl(, line 1)? is damaged"):
        table("search")


def test_an_effect_is_a_difference_to_the_reference_of_its_algorithm() -> None:
    for seed, (plain, summed) in enumerate([(0.8, 0.6), (0.9, 0.6)]):
        write("adambo", seed, [0.5, plain], kind="effects")
        write("adambo-released-sum", seed, [0.5, summed], kind="effects", settings={"beta": 0.5})
    write("slip-other", 0, [0.5, 0.7], kind="effects")
    reference, released, slip = table("effects")
    assert reference["difference"] == "reference"
    assert released["difference"] == "−0.2500 ± 0.0500"
    assert released["what differs"] == "settings.beta=0.5"
    assert (slip["difference"], slip["what differs"]) == ("–", "no reference")
    write("slip", 0, [0.5, 0.6])  # at the paper's settings
    assert table("effects")[2]["difference"] == "+0.1000"
    assert "The reference of slip is its run at the paper's settings" in notes("effects")


def test_an_effect_is_told_by_the_seeds_that_its_reference_has_too() -> None:
    for seed, score in enumerate((0.8, 0.8, 0.5)):
        write("adambo", seed, [0.5, score])
    for seed, score in ((0, 0.7), (1, 0.7), (3, 0.9)):
        write("adambo-other", seed, [0.5, score], kind="effects")
    (other,) = table("effects")
    assert other["final test accuracy"] == "0.7667 ± 0.1155"
    assert other["difference"] == "−0.1000 ± 0.0000"


def test_an_effect_of_fewer_epochs_is_held_against_the_reference_as_early() -> None:
    write("slip", 0, [0.5, 0.55, 0.6, 0.9], more={"epochs": 3})
    write("slip-other-2-epochs", 0, [0.5, 0.6, 0.7], kind="effects", more={"epochs": 2})
    write("slip-other", 0, [0.5, 0.6, 0.7, 0.8], kind="effects", more={"epochs": 3})
    other, short = table("effects")
    assert (short["final test accuracy"], short["difference"]) == ("0.7000", "+0.1000")
    assert other["difference"] == "−0.1000"
    assert "held against it as early: SLIP-other-2-epochs (2 epochs)." in notes("effects")


def test_best_scores_are_compared_over_the_epochs_at_which_both_were_judged() -> None:
    write("slip", 0, [0.5, 0.9, 0.6])
    folder = write("slip-other", 0, [0.5, 0.8, 0.7], kind="effects")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0] + lines[2])  # not judged after its first epoch
    (other,) = table("effects")
    differences = list(blocks(Archive(Path("results")), "effects")[0].sheets[0].rows[0])
    assert other["best test accuracy"] == "0.7000"
    assert differences[-1] == "+0.1000"  # to the 0.6 after the second, not to the 0.9 after the first


def test_a_run_on_another_machine_is_named() -> None:
    for seed in range(2):
        write("slip", seed, [0.5, 0.6])
    assert "machine" not in notes("paper")
    path = write("slip-other", 0, [0.5, 0.6]) / "manifest.json"
    made = json.loads(path.read_text())
    path.write_text(json.dumps(made | {"hardware": {"gpus": [], "cpu": "AMD EPYC", "cores": 2}}))
    assert "Made on another machine than the others: SLIP-other on AMD EPYC, 2 cores." in notes("paper")


def test_a_record_that_has_lost_its_configuration_is_named() -> None:
    (write("slip", 0, [0.5, 0.7]) / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"slip-seed0 is no run: it lacks config\.yaml"):
        table("paper")


def test_a_label_with_one_head_per_task_is_held_against_the_same_untuned() -> None:
    write("slip", 0, [0.5, 0.9, 0.9])
    write("slip", 0, [0.5, 0.6, 0.7], case="bert-trec-per-task")
    write("slip-gauss-seidel", 0, [0.5, 0.7, 0.7], case="bert-trec-per-task")
    for label in ("slip", "slip-per-task", "slip-per-task-gauss-seidel", "slip-per-task-50"):
        write(label, 0, [0.5, 0.8], kind="tuned")
    found = {row["algorithm"].removeprefix("SLIP"): row["untuned, as early"] for row in table("tuned")}
    assert found == {"": "0.9000", "-per-task": "0.6000", "-per-task-gauss-seidel": "0.7000", "-per-task-50": "–"}


def test_a_run_that_is_older_than_a_setting_has_its_default() -> None:
    write("slip", 0, [0.5, 0.6], more={"fine_tune_steps": 5})  # the default is 3
    write("slip-older", 0, [0.5, 0.7], kind="effects")
    (older,) = table("effects")
    assert older["what differs"] == "fine_tune_steps=3"


def test_the_monitor_has_final_values_and_first_warnings() -> None:
    for seed, first in enumerate((30, 20)):
        folder = write("slip", seed, [0.5, 0.7], kind="monitored")
        lines = [
            {
                "step": step,
                "lower_error": step / 10 + 1 + seed,
                "cosine": 0.5,
                "residual": None,
                "curvature": 2.0 + step,
                "solved": step > 0,
                **({"bias": 0.1 * step} if step < 30 else {}),  # it could not be measured afterwards
            }
            | (
                {"warnings": [{"name": "LowerLevelDoesNotTrack", "step": step, "message": "m"}]}
                if step >= first
                else {}
            )
            for step in (0, 10, 20, 30, 40)
        ]
        (folder / "monitor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write("adambo", 0, [0.5, 0.7], kind="monitored")
    adambo, slip = table("monitored")
    assert (slip["lower error"], slip["cosine of h"], slip["residual of z"]) == ("5.5", "0.5", "–")
    assert slip["warnings, first at"] == "LowerLevelDoesNotTrack: step 20 (2 of 2 seeds)"
    assert (slip["curvature"], adambo["curvature"]) == ("2 → 42", "–")
    assert (slip["solved"], adambo["solved"]) == ("8 of 10", "–")
    assert (slip["bias of h"], adambo["bias of h"]) == ("2 (step 20)", "–")
    assert (adambo["warnings, first at"], adambo["lower error"]) == ("none", "–")
    assert "No measurements of AdamBO." in notes("monitored")
    (block,) = blocks(Archive(Path("results")), "monitored")
    assert block.png().startswith(b"\x89PNG")


def test_nothing_is_relative_to_a_hypergradient_of_zero() -> None:
    folder = write("slip", 0, [0.5, 0.7], kind="monitored")
    lines = [{"step": step, "hypergradient_norm": 1.0 - step, "bias": 0.4, "cosine": 0.3} for step in (0, 1)]
    (folder / "monitor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = table("monitored")
    assert (row["bias of h"], row["cosine of h"]) == ("0.4 (step 0)", "0.3 (step 0)")


# ---- the command and the page ----

PAGE = f"""# By hand

<!-- adambo reproduce paper {CASE} -->
old
<!-- end -->

Between.

<!-- adambo reproduce claims -->
<!-- end -->
<!-- adambo reproduce summary -->
<!-- end -->
After.
"""


def test_blocks_are_replaced_and_the_rest_of_the_page_is_not() -> None:
    write("slip", 0, [0.5, 0.7])
    Path("docs").mkdir()
    Path("docs/reproduction.md").write_text(PAGE)
    assert main(["reproduce", "all", "--write"]) == 0
    text = Path("docs/reproduction.md").read_text()
    assert "| SLIP | 0.9000 | 0.7000 | 0.700 |" in text
    assert f"](reproduction/paper-{CASE}.png)" in text
    assert "old" not in text
    outside = [part.partition("<!-- end -->")[2] for part in text.split("<!-- adambo reproduce ")[1:]]
    assert text.startswith("# By hand\n\n<!-- adambo")
    assert outside == ["\n\nBetween.\n\n", "\n", "\nAfter.\n"]
    picture = Path(f"docs/reproduction/paper-{CASE}.png")
    assert 5_000 < picture.stat().st_size < 150_000


def test_a_check_names_the_block_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    write("slip", 0, [0.5, 0.7])
    Path("docs").mkdir()
    page = Path("docs/reproduction.md")
    page.write_text(PAGE)
    assert main(["reproduce", "all", "--check"]) == 1
    assert f"'paper {CASE}' differs" in capsys.readouterr().err
    assert page.read_text() == PAGE
    assert main(["reproduce", "all", "--write"]) == 0
    assert main(["reproduce", "all", "--check"]) == 0
    page.write_text(page.read_text().replace("0.7000", "0.7100", 1))
    capsys.readouterr()
    assert main(["reproduce", "paper", "--check"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "0.7100 | 0.700 |" in said.partition(" … instead of ")[0]
    assert main(["reproduce", "claims", "--check"]) == 0
    assert main(["reproduce", "paper", "--write"]) == 0
    Path(f"docs/reproduction/paper-{CASE}.png").unlink()
    capsys.readouterr()
    assert main(["reproduce", "paper", "--check"]) == 1
    assert "is missing" in capsys.readouterr().err


def test_a_figure_of_other_numbers_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    write("slip", 0, [0.5, 0.7])
    Path("docs").mkdir()
    Path("docs/reproduction.md").write_text(PAGE)
    assert main(["reproduce", "all", "--write"]) == 0
    assert main(["reproduce", "all", "--check"]) == 0
    assert "blocks say what the records say" in capsys.readouterr().out
    picture = Path(f"docs/reproduction/paper-{CASE}.png")
    right = picture.read_bytes()
    other = Block("paper", CASE, [], draw=Figure, title="of nothing")
    for wrong in (other.png(), b"no picture"):
        picture.write_bytes(wrong)
        assert main(["reproduce", "paper", "--check"]) == 1
        assert "shows other numbers than the records have" in capsys.readouterr().err
    picture.write_bytes(right)
    assert main(["reproduce", "paper", "--check"]) == 0


def test_variants_have_panels_of_their_own_on_the_same_scale() -> None:
    runs = {
        "slip": [0.5, 0.6, 0.7],
        "slip-gauss-seidel": [0.5, 0.65],
        "saba": [0.5, 0.6],
        "adambo": [0.4, 0.5, 0.6],
        "adambo-20": [0.5, 0.9],
        "slip-50": [0.5, 0.6],
    }
    for label, tests in runs.items():
        write(label, 0, tests)
        speed(label, 100.0)
    drawing = four_panels(case_of("paper"), "some title")
    legends = [[text.get_text() for text in part.legends[0].get_texts()] for part in drawing.subfigs]
    # Beside the variant stand AdamBO and the best of the others.
    assert legends == [
        ["AdamBO", "SABA", "SLIP", "SLIP-gauss-seidel"],
        ["AdamBO-20", "AdamBO", "SLIP"],
        ["SLIP-50", "AdamBO", "SLIP"],
    ]
    slip, other_order = drawing.subfigs[0].legends[0].get_lines()[2:]
    assert slip.get_color() == other_order.get_color()  # another order of updates is the same method
    assert [part.get_suptitle() for part in drawing.subfigs][1:] == ["variants of AdamBO", "variants of other methods"]
    methods, variants, others = (part.axes for part in drawing.subfigs)
    for places in zip(methods, variants, others, strict=True):
        assert len({place.get_ylim() for place in places}) == 1
        assert len({place.get_xlim() for place in places}) == 1
    assert len({id(place) for place in (*methods, *variants, *others)}) == 12
    drawn = [[round(float(y), 6) for y in line.get_ydata()] for line in variants[2].lines]
    assert [0.5, 0.9] in drawn
    assert [0.86, 0.86] in drawn  # 90 % of the best


def test_a_part_can_be_asked_for_one_case(capsys: pytest.CaptureFixture[str]) -> None:
    write("slip", 0, [0.5, 0.7])
    write("slip", 0, [0.5, 0.7], case="auc-rnn")
    assert main(["reproduce", "paper", CASE]) == 0
    assert "auc-rnn" not in capsys.readouterr().out
    for words, said in (
        (["paper", "auc_rnn"], "There is no case 'auc_rnn' of the part paper. Did you mean 'auc-rnn'?"),
        (
            ["paper", "xyz"],
            "There is no case 'xyz' of the part paper. Choose one of bert-trec-shared, bert-trec-per-task,",
        ),
        (["all", "auc-rnn"], "`all` takes no case. One case of one part is `adambo reproduce paper auc-rnn`"),
        (["paper", "--write", "--page", "other.md"], "The page other.md cannot be read"),
        (["claims", CASE], "These have cases: paper, search"),
        (["paper", "auc-transformer"], "no records for the part paper auc-transformer"),
    ):
        assert main(["reproduce", *words]) != 0
        assert said in " ".join(capsys.readouterr().err.split())


def test_without_write_nothing_is_changed() -> None:
    write("slip", 0, [0.5, 0.7])
    Path("page.md").write_text(PAGE)
    assert main(["reproduce", "paper", "--page", "page.md"]) == 0
    assert Path("page.md").read_text() == PAGE
    assert not Path("page").exists()


def test_a_manifest_that_does_not_say_what_made_the_run_is_damaged() -> None:
    path = write("slip", 0, [0.5, 0.7]) / "manifest.json"
    path.write_text("{}")
    with pytest.raises(RunError, match="does not say which version"):
        case_of("paper")


def test_a_finished_run_without_its_last_evaluations_is_damaged() -> None:
    folder = write("slip", 0, [0.5, 0.6, 0.7])
    status = json.loads((folder / "status.json").read_text())
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])["step"]
    (folder / "status.json").write_text(json.dumps(status | {"step": last}))
    assert case_of("paper")
    (folder / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(RunError, match=f"finished at step {last}, but its metrics.jsonl ends at step"):
        case_of("paper")


def test_a_label_that_beats_all_with_records_is_said_to() -> None:
    ending("adambo-50", 0.9, "tuned")
    for label in OTHERS[1:]:
        ending(label, 0.6, "tuned")
    (row,) = table("claims", OTHER_LABELS)
    assert row["better than all in"].startswith("test metric, of those with records")
    ending(OTHERS[0], 0.95, "tuned")
    (row,) = table("claims", OTHER_LABELS)
    assert "test metric" not in row["better than all in"]


def test_a_block_without_records_fails_the_check() -> None:
    write("slip", 0, [0.5, 0.7])
    Path("page.md").write_text("<!-- adambo reproduce tuned auc-rnn -->\n<!-- end -->\n")
    assert Page(Path("page.md")).stale(blocks(Archive(Path("results")), "all"), "tuned") == [
        "The block 'tuned auc-rnn' has no records."
    ]


def test_records_without_a_block_fail_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    write("slip", 0, [0.5, 0.7])
    Path("docs").mkdir()
    page = Path("docs/reproduction.md")
    page.write_text(PAGE)
    assert main(["reproduce", "all", "--write"]) == 0
    write("slip", 0, [0.5, 0.7], kind="effects")
    capsys.readouterr()
    assert main(["reproduce", "all", "--check"]) == 1
    said = capsys.readouterr().err
    assert f"There are records for the block 'effects {CASE}', which the page lacks" in said
    assert said.count("There are records") == 1
    assert main(["reproduce", "effects", "--check"]) == 1
    assert main(["reproduce", "paper", "--check"]) == 0  # a part is not blamed for another
    page.write_text(f"{page.read_text()}<!-- adambo reproduce effects {CASE} -->\n<!-- end -->\n")
    assert main(["reproduce", "effects", "--write"]) == 0
    assert main(["reproduce", "all", "--check"]) == 0


def test_a_block_that_the_page_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write("slip", 0, [0.5, 0.7])
    Path("page.md").write_text("Nothing.\n")
    assert main(["reproduce", "paper", "--page", "page.md", "--write"]) == 0
    said = capsys.readouterr()
    assert f"page.md has no block 'paper {CASE}'" in said.err
    assert "| SLIP | 0.9000 | 0.7000 | 0.700 |" in said.out
    assert Path("page.md").read_text() == "Nothing.\n"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- adambo reproduce claims -->\nno end\n",
        "<!-- adambo reproduce claims -->\n<!-- adambo reproduce lambda -->\n<!-- end -->\n",
        2 * "<!-- adambo reproduce claims -->\n<!-- end -->\n",
    ],
)
def test_marks_that_do_not_fit_are_refused(text: str) -> None:
    Path("page.md").write_text(text)
    with pytest.raises(RunError, match=r"page\.md"):
        Page(Path("page.md")).write([])
    assert Path("page.md").read_text() == text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Name a part"),
        (["papre"], "There is no part 'papre'"),
        (["paper", "--results", "nowhere"], "There is no folder nowhere"),
        (["tuned"], "results has no records for the part tuned"),
        (["paper", "--write", "--check"], "give one of them"),
        (["paper", "--write"], "reproduction.md cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("slip", 0, [0.5, 0.7])
    assert main(["reproduce", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_every_part_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}: {what}" in text for name, what in PARTS.items())


def test_trials_that_were_made_again_decide_which_is_chosen():
    def trial(number: int, score: float | None, **more: Any) -> dict[str, Any]:
        return {"trial": number, "values": {}, "state": "finished", "score": score, "epoch": 5.0} | more

    first = [trial(0, 0.9), trial(1, 0.8), trial(2, None, state="diverged")]
    again = [trial(0, 0.6, again=True, epoch=20.0), trial(1, 0.7, again=True, epoch=20.0)]
    assert Search("slip", {}, first).chosen == first[0]
    search = Search("slip", {}, first + again)
    assert search.chosen == again[1]
    assert trials_text(search) == "2 of 3 finished, 1 diverged"
