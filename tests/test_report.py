"""Reports: what a mean is a mean of, how failures are told, and the files that come out."""

import io
import json
import re
from fcntl import LOCK_EX, flock
from xml.etree import ElementTree

import pytest
from rich.console import Console
from run_records import evaluation, straight, write_comparison, write_run

from adambo.algorithms import ALL
from adambo.cli import main
from adambo.errors import AdamboError, ConfigError, RunError
from adambo.report.build import build
from adambo.report.curves import average, grouped
from adambo.report.figures import figure
from adambo.report.page import inline_json
from adambo.report.palette import ALGORITHMS, MARKERS, ramp, styles
from adambo.report.records import Record, number
from adambo.report.table import columns, reasons, sign, state_text
from adambo.training.run_folder import RunFolder

HOSTILE = "</script><script>alert(1)</script>"


def quiet():
    return Console(file=io.StringIO(), width=200)


def only_group(runs):
    (group,) = grouped(Record.read(run) for run in runs)
    return group


def labels(runs):
    return [curve.label for curve in only_group(runs).curves]


def cells(group, label):
    (curve,) = (curve for curve in group.curves if curve.label == label)
    return {column.title: column.cell(curve) for column in columns(group)}


# ---- means over seeds ----


def test_the_mean_and_deviation_are_those_of_the_seeds_at_each_epoch(tmp_path):
    runs = [
        write_run(tmp_path / str(s), seed=s, evaluations=straight(t)) for s, t in enumerate([[0.4, 0.8], [0.6, 0.7]])
    ]
    (curve,) = only_group(runs).curves
    band = curve.band("epoch", "test", "accuracy")
    assert band.x == [0.0, 1.0]
    assert band.mean == pytest.approx([0.5, 0.75])
    assert band.spread == pytest.approx([0.2 / 2**0.5, 0.1 / 2**0.5])  # of two: their distance over the root of 2
    assert band.seeds == [2, 2]
    assert curve.band("epoch", "train", "accuracy").mean == pytest.approx([0.55, 0.8])


def test_seeds_evaluated_at_different_places_are_interpolated_on_the_union_of_them():
    band = average([([(0.0, 0.0), (4.0, 4.0)], True), ([(0.0, 2.0), (1.0, 2.0), (4.0, 2.0)], True)], costs=False)
    assert band.x == [0.0, 1.0, 4.0]
    assert band.mean == pytest.approx([1.0, 1.5, 3.0])


def test_one_seed_has_a_line_and_no_band(tmp_path):
    (curve,) = only_group([write_run(tmp_path / "run", evaluations=straight([0.4, 0.8]))]).curves
    assert curve.band("epoch", "test", "accuracy").spread == [None, None]


@pytest.mark.parametrize("axis", ["epoch", "seconds", "oracle_calls"])
@pytest.mark.parametrize("state", ["diverged", "failed", "interrupted", "running"])
def test_a_run_that_stopped_takes_part_up_to_where_it_stopped(tmp_path, axis, state):
    write_run(tmp_path / "a", seed=0, evaluations=straight([0.2, 0.4, 0.6]))
    write_run(tmp_path / "b", seed=1, evaluations=straight([0.4, 0.8]), state=state)
    (curve,) = only_group(RunFolder.find([tmp_path])).curves
    band = curve.band(axis, "test", "accuracy")
    assert band.mean == pytest.approx([0.3, 0.6, 0.6])
    assert band.seeds == [2, 2, 1]
    (end,) = curve.ends(axis, "test", "accuracy")
    assert (end.x, end.y) == ({"epoch": 1.0, "seconds": 0.5, "oracle_calls": 120.0}[axis], 0.8)
    assert curve.failures == f"1 {'unfinished' if state == 'running' else state}"


def test_along_seconds_a_curve_ends_at_the_mean_of_the_final_scores(tmp_path):
    fast = [evaluation(e, 0.5, test, seconds=1.0 * e) for e, test in enumerate([0.2, 0.4, 0.6])]
    slow = [evaluation(e, 0.5, test, seconds=1.5 * e) for e, test in enumerate([0.2, 0.5, 0.8])]
    runs = [write_run(tmp_path / str(s), seed=s, evaluations=e) for s, e in enumerate([fast, slow])]
    (curve,) = only_group(runs).curves
    band = curve.band("seconds", "test", "accuracy")
    assert band.x[-1] == 3.0
    assert band.mean[-1] == pytest.approx(0.7)
    assert curve.final("test", "accuracy")[0] == pytest.approx(0.7)


def test_an_evaluation_without_a_number_is_left_out_of_the_line(tmp_path):
    run = write_run(tmp_path / "run", evaluations=[*straight([0.2, None, 0.6]), {"step": 40}])
    (curve,) = only_group([run]).curves
    assert curve.band("epoch", "test", "accuracy").x == [0.0, 2.0]


def test_long_records_are_thinned_and_keep_their_ends():
    points = [(float(i), float(i % 7)) for i in range(5000)]
    band = average([(points, True)], costs=False)
    assert len(band.x) == 200
    assert (band.x[0], band.x[-1]) == (0.0, 4999.0)


# ---- what is one curve, and its name ----


def test_seeds_and_the_rhythm_of_evaluations_make_no_new_curve(tmp_path):
    write_run(tmp_path / "a", seed=0, evaluations=straight([0.5]), config={"evaluate_every": 1.0, "data_dir": "/a"})
    write_run(tmp_path / "b", seed=7, evaluations=straight([0.5]), config={"evaluate_every": 2.0, "data_dir": "/b"})
    group = only_group(RunFolder.find([tmp_path]))
    assert [curve.label for curve in group.curves] == ["AdamBO"]
    assert group.seeds == ["0", "7"]


def test_one_algorithm_with_several_settings_is_named_by_what_differs(tmp_path):
    for name, lr in (("a", 0.1), ("b", 0.001), ("c", 1)):
        settings = {"settings": {"lr": lr, "inverse": {"terms": 3}}}
        write_run(tmp_path / name, evaluations=straight([0.5]), config=settings)
    write_run(tmp_path / "d", "masoba", evaluations=straight([0.5]))
    assert labels(RunFolder.find([tmp_path])) == ["AdamBO, lr=0.001", "AdamBO, lr=0.1", "AdamBO, lr=1", "MA-SOBA"]


def test_a_whole_number_and_the_same_number_with_a_point_are_one_setting(tmp_path):
    write_run(tmp_path / "a", seed=0, evaluations=straight([0.5]), config={"epochs": 3})
    write_run(tmp_path / "b", seed=1, evaluations=straight([0.5]), config={"epochs": 3.0})
    assert labels(RunFolder.find([tmp_path])) == ["AdamBO"]


def test_presets_that_differ_in_many_settings_name_their_curves(tmp_path):
    write_run(tmp_path / "a", preset="paper", evaluations=straight([0.5]), config={"hidden": 768, "layers": 8})
    write_run(tmp_path / "b", preset="tiny", evaluations=straight([0.5]), config={"hidden": 32, "layers": 2})
    assert labels(RunFolder.find([tmp_path])) == ["AdamBO, tiny", "AdamBO, paper"]


def test_the_same_short_name_in_two_places_is_written_in_full(tmp_path):
    for name, a, b in (("a", 1, 2), ("b", 2, 1)):
        config = {"settings": {"step": a, "inverse": {"step": b}}}
        write_run(tmp_path / name, evaluations=straight([0.5]), config=config)
    assert labels(RunFolder.find([tmp_path]))[0] == "AdamBO, settings.step=1, settings.inverse.step=2"


def test_experiments_are_kept_apart(tmp_path):
    for name in ("rnn-snli", "bert-trec"):
        write_run(tmp_path / name, experiment=name, evaluations=straight([0.5]))
    groups = grouped(Record.read(run) for run in RunFolder.find([tmp_path]))
    assert [group.experiment for group in groups] == ["bert-trec", "rnn-snli"]


def test_metric_and_chance_come_from_the_record_else_the_metric_is_the_first_of_the_test_split(tmp_path):
    scores = {"train": {"loss": 1.0, "auc": 0.8}, "test": {"loss": 1.0, "auc": 0.7}}
    told = write_run(
        tmp_path / "told",
        evaluations=[evaluation(0, 0, 0) | scores],
        manifest={"experiment": {"metric": "auc", "chance": 0.5}},
    )
    untold = write_run(tmp_path / "untold", evaluations=[evaluation(0, 0, 0) | scores])
    assert (only_group([told]).metric, only_group([told]).chance) == ("auc", 0.5)
    assert (only_group([untold]).metric, only_group([untold]).chance) == ("loss", None)


def test_what_makes_a_comparison_doubtful_is_said(tmp_path):
    other = {"hardware": {"cpu": "Other CPU", "cores": 4, "gpus": ["H200", "H200"]}}
    write_run(tmp_path / "a", evaluations=straight([0.5]))
    write_run(tmp_path / "b", evaluations=straight([0.5]), manifest=other)
    write_run(tmp_path / "c", "maml", evaluations=straight([0.5]), config={"epochs": 9.0})
    group = only_group(RunFolder.find([tmp_path]))
    machines, twice, unlike = group.notes()
    assert group.machines == ["2 × H200", "Test CPU, 2 cores"]
    assert "2 × H200; Test CPU, 2 cores" in machines
    assert "AdamBO has more than one run with seed 0" in twice
    assert "agree in epochs" in unlike


def test_a_process_that_holds_the_lock_is_running_and_one_that_was_killed_is_unfinished(tmp_path):
    run = write_run(tmp_path / "run", evaluations=straight([0.5]), state="running")
    assert Record.read(run).state == "unfinished"
    with open(tmp_path / "run" / "lock", "w") as lock:
        flock(lock, LOCK_EX)
        assert Record.read(run).state == "running"
        (curve,) = only_group([run]).curves
    assert (curve.failures, sign(curve), reasons(curve)) == ("1 running", "…", [])
    assert curve.ends("epoch", "test", "accuracy") == []  # no cross: it may yet go on


def test_what_is_said_of_the_source_of_a_whole_holds_for_its_parts(tmp_path):
    config = {"settings": {"lr": 1, "inverse": {"terms": 3}}}
    record = Record.read(write_run(tmp_path / "a", config=config, sources={"settings.inverse": "authors' code"}))
    assert record.source("settings.inverse.terms") == "authors' code"
    assert record.source("settings.lr") == "paper"
    assert record.source("epochs") == ""


# ---- how curves look ----


def test_every_algorithm_of_the_library_has_a_look_of_its_own():
    assert set(ALGORITHMS) == {name.lower() for name in ALL} | {"adam"}
    looks = [style for _, style in ALGORITHMS.values()]
    assert len(set(looks)) == 17
    for one in looks:
        twins = [other for other in looks if other.light == one.light and other is not one]
        assert all(one.dash != twin.dash and one.marker != twin.marker for twin in twins)


def test_the_colour_of_an_algorithm_does_not_depend_on_its_company():
    assert styles(["adambo", "maml", "own", "other"])[0] == styles(["soba", "adambo"])[1] == ALGORITHMS["adambo"][1]
    own, other = styles(["adambo", "maml", "own", "other"])[2:]
    assert own.light != other.light


def test_a_stranger_gets_a_hue_that_no_curve_beside_it_has():
    known = ["adambo", "maml", "stocbio"]
    chosen = styles([*known, "own", "other"])
    assert not {style.light for style in chosen[:3]} & {style.light for style in chosen[3:]}


def test_variants_share_the_hue_of_their_algorithm_and_differ_in_dash_and_marker():
    first, second, _ = styles(["adambo", "adambo", "maml"])
    assert first.light == second.light
    assert first.dash != second.dash
    assert first.marker != second.marker


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_colours_can_be_seen_on_their_paper():
    dark_paper = luminance("#14171c")
    for style in [*(style for _, style in ALGORITHMS.values()), *ramp(8)]:
        assert 1.05 / (luminance(style.light) + 0.05) > 2.9, style  # WCAG asks 3 of graphics
        assert (luminance(style.dark) + 0.05) / (dark_paper + 0.05) > 3, style
        assert style.marker in MARKERS


# ---- the table ----


def test_the_table_averages_the_runs_that_finished_and_names_the_others(tmp_path):
    write_run(tmp_path / "a", seed=0, evaluations=straight([0.5, 0.9, 0.7]))
    write_run(tmp_path / "b", seed=1, evaluations=straight([0.5, 0.6, 0.8]))
    write_run(tmp_path / "c", seed=2, evaluations=straight([0.5, 0.1]), state="diverged", reason="The loss is nan.")
    group = only_group(RunFolder.find([tmp_path]))
    row = cells(group, "AdamBO")
    assert row["final test accuracy"] == ("0.7500 ± 0.0707", pytest.approx(0.75), True)
    assert row["best test accuracy"].text == "0.8500 ± 0.0707"
    assert row["final train accuracy"].text == "0.8000 ± 0.0707"
    assert (row["epochs"].text, row["seconds"].text, row["oracle calls"].text) == ("2", "1.00", "240")
    assert (sign(group.curves[0]), state_text(group.curves[0])) == ("✕", "2 finished, 1 diverged")
    assert reasons(group.curves[0]) == ["diverged: The loss is nan. (seed 2 after epoch 1)"]


def test_a_row_of_which_nothing_finished_says_so(tmp_path):
    write_run(tmp_path / "a", seed=0, evaluations=straight([0.5, 0.6]), state="interrupted")
    write_run(tmp_path / "b", seed=1, state="failed", reason="No memory.")
    group = only_group(RunFolder.find([tmp_path]))
    assert cells(group, "AdamBO")["final test accuracy"] == ("0.6000", 0.6, False)
    assert reasons(group.curves[0]) == [
        "interrupted (seed 0 after epoch 1)",
        "failed: No memory. (seed 1 before its first evaluation)",
    ]
    assert group.curves[0].final("test", "accuracy") is None


def test_other_splits_and_scores_are_columns_too(tmp_path):
    more = {"weights": {"precision": 0.9, "recall": 0.8}, "validation": {"accuracy": 0.75}}
    write_run(tmp_path / "a", evaluations=[evaluation(0, 0.5, 0.5, **more)])
    write_run(tmp_path / "b", "maml", evaluations=straight([0.5]))
    group = only_group(RunFolder.find([tmp_path]))
    row = cells(group, "AdamBO")
    assert row["final weights precision"].value == 0.9
    assert row["final weights recall"].value == 0.8
    assert row["final validation accuracy"].value == 0.75
    assert cells(group, "MAML")["final weights recall"].text == "–"
    assert not any("oracles" in title or "grad_y_g" in title for title in row)


# ---- studies ----


def test_runs_that_differ_in_one_number_are_a_study_of_it(tmp_path):
    for eps, final in ((1e-2, 0.6), (1e-8, 0.9), (1e-4, 0.8)):
        for seed in (0, 1):
            tests = straight([0.5, final + 0.02 * seed])
            config = {"settings": {"lr": 0.1, "eps": eps}}
            write_run(tmp_path / f"{eps}-{seed}", seed=seed, evaluations=tests, config=config)
    (study,) = only_group(RunFolder.find([tmp_path])).studies()
    assert (study.key, study.name, study.values) == ("settings.eps", "λ (eps)", [1e-8, 1e-4, 1e-2])
    assert study.logarithmic
    assert [curve.final("test", "accuracy")[0] for curve in study.curves] == pytest.approx([0.91, 0.81, 0.61])


@pytest.mark.parametrize(
    "configs",
    [
        [{"settings": {"lr": 0.1, "eps": 1}}, {"settings": {"lr": 0.2, "eps": 2}}],
        [{"decay": "none"}, {"decay": "cube_root"}],
        [{"epochs": 3.0}, {"epochs": None}],
        [{}],
    ],
    ids=["two numbers", "words", "a number and nothing", "one curve"],
)
def test_other_differences_are_no_study(tmp_path, configs):
    for index, config in enumerate(configs):
        write_run(tmp_path / str(index), evaluations=straight([0.5]), config=config)
    assert only_group(RunFolder.find([tmp_path])).studies() == []


def test_costs_far_apart_are_drawn_on_logarithmic_axes(tmp_path):
    write_run(tmp_path / "a", evaluations=[evaluation(e, 0.5, 0.5, oracle_calls=100 * e + 1) for e in (0, 1)])
    write_run(tmp_path / "b", "vrbo", evaluations=[evaluation(e, 0.5, 0.5, oracle_calls=9000 * e + 1) for e in (0, 1)])
    group = only_group(RunFolder.find([tmp_path]))
    assert [group.logarithmic(axis) for axis in ("epoch", "seconds", "oracle_calls")] == [False, False, True]


# ---- files ----


def test_a_report_is_one_page_and_two_figures_for_each_experiment(tmp_path):
    runs = write_comparison(tmp_path / "runs", ["adambo", "maml"], [0, 1], lambda i, s: [0.5, 0.6 + 0.1 * i])
    runs.append(write_run(tmp_path / "runs" / "x", experiment="auc rnn/π", evaluations=straight([0.4, 0.5])))
    out = tmp_path / "new" / "report.html"
    paths = build(runs, out, quiet())
    assert [path.name for path in paths] == [
        "report.html", "report-auc-rnn.png", "report-auc-rnn.svg", "report-digits.png", "report-digits.svg",
    ]  # fmt: skip
    assert sorted(path.name for path in out.parent.iterdir()) == sorted(path.name for path in paths)
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert content.endswith(b"IEND\xaeB`\x82")
        elif path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    assert out.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_the_page_holds_all_it_needs(tmp_path):
    (out, *_) = build([write_run(tmp_path / "run", evaluations=straight([0.5]))], tmp_path / "a.html", quiet())
    text = out.read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[\w./-]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(link|script|img|iframe)\b[^>]*(src|href)\s*=\s*[\"'](?!data:)", text)
    assert "default-src 'none'" in text


def test_the_same_record_gives_the_same_figure(tmp_path):
    group = only_group(write_comparison(tmp_path, ["adambo", "soba"], [0, 1], lambda i, s: [0.5, 0.6, 0.7 + 0.1 * s]))
    assert figure(group) == figure(group)


def test_names_that_mean_something_to_a_plotting_library_or_a_browser_are_only_names(tmp_path):
    names = ["$\\frac{", "_hidden", HOSTILE, "a\x00b\ud800"]
    for index, name in enumerate(names[:3]):
        run = {"algorithm": name, "note": HOSTILE}
        write_run(tmp_path / str(index), evaluations=straight([0.5, 0.6]), config=run, experiment=HOSTILE)
    group = only_group(RunFolder.find([tmp_path]))
    drawn = figure(group)["svg"]
    assert ElementTree.fromstring(drawn).findall(".//{http://www.w3.org/2000/svg}script") == []
    (page, *figures) = build(RunFolder.find([tmp_path]), tmp_path / "out.html", quiet())
    assert HOSTILE not in page.read_text(encoding="utf-8")
    assert {path.parent for path in figures} == {tmp_path}
    assert json.loads(inline_json(names)) == names
    assert not set("<>&") & set(inline_json(names))


def test_figures_are_drawn_of_what_there_is(tmp_path):
    write_run(tmp_path / "a", "adambo", state="failed", reason="No memory.")
    write_run(tmp_path / "b", "maml", experiment="other", evaluations=straight([0.5]))
    write_run(tmp_path / "c", "soba", experiment="zero", evaluations=straight([0.5]), config={"mu": 0.0})
    write_run(tmp_path / "d", "soba", experiment="zero", evaluations=straight([0.6]), config={"mu": 1.0})
    write_run(tmp_path / "e", "soba", experiment="zero", state="failed", config={"mu": 2.0})
    paths = build(RunFolder.find([tmp_path]), tmp_path / "report.html", quiet())
    assert len(paths) == 7


def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path):
    write_run(tmp_path / "good", evaluations=straight([0.5]))
    write_run(tmp_path / "bad", seed=1, evaluations=straight([0.5]))
    (tmp_path / "bad" / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1')
    console = quiet()
    (page, *_) = build(RunFolder.find([tmp_path]), tmp_path / "report.html", console)
    for text in (console.file.getvalue(), page.read_text(encoding="utf-8")):
        assert "metrics.jsonl, line 2" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    assert data["groups"][0]["summary"] == "1 run, seed 0 · Test CPU, 2 cores"


def test_what_cannot_be_reported_is_refused_with_a_sentence(tmp_path):
    empty = write_run(tmp_path / "empty")
    good = write_run(tmp_path / "good", evaluations=straight([0.5]))
    bad = write_run(tmp_path / "bad")
    (tmp_path / "bad" / "status.json").write_text("{}")
    (tmp_path / "file").write_text("")
    page = tmp_path / "report.html"
    with pytest.raises(RunError, match="no runs to report"):
        build([], page, quiet())
    with pytest.raises(RunError, match="None of the 1 run has an evaluation yet"):
        build([empty], page, quiet())
    with pytest.raises(RunError, match=r"None of the 1 run can be read.*status.json"):
        build([bad], page, quiet())
    with pytest.raises(ConfigError, match=r"is a folder\. Name the page itself"):
        build([good], tmp_path, quiet())
    with pytest.raises(ConfigError, match=r"does not end in \.html"):
        build([good], tmp_path / "report.pdf", quiet())
    with pytest.raises(RunError, match=r"cannot be made|cannot be written"):
        build([good], tmp_path / "file" / "report.html", quiet())
    assert not page.exists()


def test_a_place_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    run = write_run(tmp_path / "runs" / "a", evaluations=straight([0.5]))
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.setattr("os.replace", no_space)
    with pytest.raises(AdamboError, match="no space left on device"):
        build([run], folder / "report.html", quiet())
    assert list(folder.iterdir()) == []


def test_a_run_whose_configuration_is_damaged_is_named_and_the_others_are_shown(tmp_path, capsys):
    write_run(tmp_path / "runs" / "good", evaluations=straight([0.5]))
    write_run(tmp_path / "runs" / "bad", seed=1, evaluations=straight([0.5]))
    (tmp_path / "runs" / "bad" / "config.yaml").write_text("a: &a {b: *a}")
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    (note,) = data["notes"]
    assert "runs/bad is left out" in note
    assert "is left out" in said
    assert data["groups"][0]["summary"] == "1 run, seed 0 · Test CPU, 2 cores"
    assert main(["report", str(tmp_path / "runs" / "bad"), "--out", str(page)]) != 0
    assert "None of the 1 run can be read" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("huge", [1e308, 1.7e308, 1e101])
def test_scores_whose_deviation_is_no_number_are_left_out(tmp_path, huge):
    for seed, scores in enumerate([[0.5, huge, 0.7], [0.5, -huge, 0.9], [0.5, huge, 0.8]]):
        evaluations = straight(scores)
        evaluations[1]["seconds"] = huge
        write_run(tmp_path / str(seed), seed=seed, evaluations=evaluations)
    page, *_ = build(RunFolder.find([tmp_path]), tmp_path / "report.html", quiet())
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    (curve,) = data["groups"][0]["curves"]
    assert curve["panels"]["test epoch"]["x"] == [0.0, 2.0]
    assert curve["panels"]["test epoch"]["mean"] == pytest.approx([0.5, 0.8])


def test_scores_that_are_large_are_drawn(tmp_path):
    for seed, scores in enumerate([[0.5, 1e99, 0.7], [0.5, -1e99, 0.9]]):
        write_run(tmp_path / str(seed), seed=seed, evaluations=straight(scores))
    page, *figures = build(RunFolder.find([tmp_path]), tmp_path / "report.html", quiet())
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    assert data["groups"][0]["curves"][0]["panels"]["test epoch"]["spread"][1] == pytest.approx(2**0.5 * 1e99)
    assert len(figures) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, None) for value in (10**400, -(10**400), 1e308, float("inf"), float("nan"), True, "1")),
        *((value, float(value)) for value in (3, -0.5, 1e100)),
    ],
)
def test_what_is_no_number_that_can_be_averaged_is_none(value, expected):
    assert number(value) == expected


def test_a_whole_number_of_400_digits_in_a_configuration_is_only_shown(tmp_path):
    write_run(tmp_path / "a", seed=10**400, evaluations=straight([0.5]))
    write_run(tmp_path / "b", seed=1, evaluations=straight([0.5]))
    assert only_group(RunFolder.find([tmp_path])).seeds == ["1", str(10**400)]
