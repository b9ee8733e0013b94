"""Fetching from the hub: what is written where, what stays, and what is said where it cannot be done.

The hub itself is played by stand-ins: the real `datasets` library holds the rows, but nothing leaves the machine.
"""

import gzip
import json
import os
import sys
import time
import zipfile
from types import SimpleNamespace

import pytest

datasets = pytest.importorskip("datasets", reason="The package datasets is not installed.")
huggingface_hub = pytest.importorskip("huggingface_hub", reason="The package huggingface_hub is not installed.")

from adambo.data import hub
from adambo.data.hub import fetch
from adambo.data.sentiment140 import read_sentiment140
from adambo.data.snli import read_snli
from adambo.data.trec import read_trec
from adambo.data.word_vectors import read_vectors
from adambo.errors import DataError

TEXT = datasets.Value("string")
SENTIMENT140 = ("sentiment140_train.jsonl.gz", "sentiment140_heldout.jsonl.gz", "sentiment140_test_manual.jsonl.gz")


def table(features, **columns):
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def trec_table(texts):
    classes = datasets.ClassLabel(names=["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"])
    fine = datasets.ClassLabel(names=["ABBR:exp", "NUM:dist"])
    labels = [0, 5] * (len(texts) // 2)
    features = {"text": TEXT, "coarse_label": classes, "fine_label": fine}
    return table(features, text=texts, coarse_label=labels, fine_label=[label // 5 for label in labels])


def snli_table(word, names=("entailment", "neutral", "contradiction")):
    features = {"premise": TEXT, "hypothesis": TEXT, "label": datasets.ClassLabel(names=list(names))}
    return table(features, premise=[f"{word}  a ", "b", "c"], hypothesis=["A", "B", "C"], label=[2, -1, 0])


def tweet_table(texts, sentiments):
    features = {"text": TEXT, "date": TEXT, "user": TEXT, "sentiment": datasets.Value("int32"), "query": TEXT}
    other = [""] * len(texts)
    return table(features, text=texts, date=other, user=other, sentiment=sentiments, query=other)


@pytest.fixture
def on_hub(monkeypatch):
    """Tables by (repository, split); a repository in `scripts` can be loaded only from its conversion."""
    tables, asked = {}, []

    def load_dataset(repository, split, revision):
        asked.append((repository, split, revision))
        if tables.get("scripts") == repository and revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found it.py\nmore about it")
        if (repository, split) not in tables:
            raise ValueError(f"Unknown split {split}.")
        return tables[repository, split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "require_hub", lambda: None)
    tables["asked"] = asked
    return tables


@pytest.fixture
def trec_on_hub(on_hub):
    on_hub["CogComp/trec", "train"] = trec_table(["What is UN ?", "How far ?", "What is EU ?", "How tall ?"])
    on_hub["CogComp/trec", "test"] = trec_table(["What is é ?", "How big ?"])
    return on_hub


def test_trec_is_written_in_the_form_that_is_read(tmp_path, trec_on_hub):
    folder = tmp_path / "new" / "data"
    files = fetch("trec", folder)
    assert files == [folder / "trec_train.jsonl.gz", folder / "trec_test.jsonl.gz"]
    with gzip.open(files[1], "rt", encoding="utf-8") as lines:
        assert [json.loads(line) for line in lines] == [
            {"label": "ABBR", "fine": "exp", "text": "What is é ?"},
            {"label": "NUM", "fine": "dist", "text": "How big ?"},
        ]
    assert read_trec(folder, "train").labels == [0, 5, 0, 5]
    assert sorted(os.listdir(folder)) == ["trec_test.jsonl.gz", "trec_train.jsonl.gz"]


def test_equal_data_make_equal_files(tmp_path, trec_on_hub):
    first, second = fetch("trec", tmp_path / "a"), fetch("trec", tmp_path / "b")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_a_repository_with_a_script_only_is_read_from_its_conversion(tmp_path, trec_on_hub):
    trec_on_hub["scripts"] = "CogComp/trec"
    assert len(fetch("trec", tmp_path)) == 2
    assert trec_on_hub["asked"][:2] == [
        ("CogComp/trec", "train", None),
        ("CogComp/trec", "train", "refs/convert/parquet"),
    ]


def test_snli_is_written_without_pairs_that_have_no_gold_label(tmp_path, on_hub):
    for split, word in (("train", "T"), ("validation", "V"), ("test", "E")):
        on_hub["stanfordnlp/snli", split] = snli_table(word)
    assert [file.name for file in fetch("snli", tmp_path)] == [
        "snli_train.jsonl.gz",
        "snli_dev.jsonl.gz",
        "snli_test.jsonl.gz",
    ]
    data = read_snli(tmp_path, "dev")
    assert (data.texts, data.second, data.labels) == (["V a", "c"], ["A", "C"], [2, 0])


def test_the_classes_of_snli_are_taken_by_name_not_by_number(tmp_path, on_hub):
    for split in ("train", "validation", "test"):
        on_hub["stanfordnlp/snli", split] = snli_table("x", ("neutral", "contradiction", "entailment"))
    fetch("snli", tmp_path)
    assert read_snli(tmp_path, "train").labels == [0, 1]


@pytest.fixture
def tweets_on_hub(on_hub):
    texts = [f"tweet  {k} &amp; more" for k in range(200)]
    on_hub["stanfordnlp/sentiment140", "train"] = tweet_table(texts, [4 * (k % 2) for k in range(200)])
    on_hub["stanfordnlp/sentiment140", "test"] = tweet_table(["good", "so so", "bad"], [4, 2, 0])
    return on_hub


def test_tweets_are_cut_as_those_of_the_original_file(tmp_path, tweets_on_hub):
    assert [file.name for file in fetch("sentiment140", tmp_path)] == list(SENTIMENT140)
    original = tmp_path / "original"
    original.mkdir()
    (original / "training.1600000.processed.noemoticon.csv").write_text(
        "".join(f'"{4 * (k % 2)}","{k}","","NO_QUERY","a","tweet {k} &amp; more"\n' for k in range(200))
    )
    for split in ("train", "heldout"):
        fetched, read = read_sentiment140(tmp_path, split), read_sentiment140(original, split)
        assert (fetched.texts, fetched.labels) == (read.texts, read.labels)
    manual = read_sentiment140(tmp_path, "manual")
    assert (manual.texts, manual.labels) == (["good", "bad"], [1, 0])


@pytest.mark.parametrize("kept", SENTIMENT140[:2])
def test_half_of_another_cut_of_the_tweets_is_refused(tmp_path, tweets_on_hub, kept):
    fetch("sentiment140", tmp_path)
    for name in SENTIMENT140[:2]:
        if name != kept:
            (tmp_path / name).unlink()
    with pytest.raises(DataError, match="which belong together"):
        fetch("sentiment140", tmp_path)
    assert len(fetch("sentiment140", tmp_path, overwrite=True)) == 3


def test_files_that_are_there_stay_as_they_are_unless_asked(tmp_path, trec_on_hub):
    own = b"NUM:dist How deep ?\nHUM:ind Who ?\n"
    (tmp_path / "train_5500.label").write_bytes(own)
    assert fetch("trec", tmp_path) == [tmp_path / "trec_test.jsonl.gz"]
    assert read_trec(tmp_path, "train").texts == ["How deep ?", "Who ?"]
    trec_on_hub["asked"].clear()
    assert fetch("trec", tmp_path) == []
    assert trec_on_hub["asked"] == []
    (tmp_path / "trec_test.jsonl.gz").write_bytes(b"damaged")
    assert fetch("trec", tmp_path) == []
    assert len(fetch("trec", tmp_path, overwrite=True)) == 2
    assert read_trec(tmp_path, "test").texts == ["What is é ?", "How big ?"]
    assert (tmp_path / "train_5500.label").read_bytes() == own


def test_a_fetch_that_fails_half_way_leaves_nothing(tmp_path, trec_on_hub):
    del trec_on_hub["CogComp/trec", "test"]
    with pytest.raises(DataError, match=r"trec was not fetched: CogComp/trec could not be loaded.*Unknown split test"):
        fetch("trec", tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_broken_off_fetch_leaves_nothing(tmp_path, trec_on_hub, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch("trec", tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_sentence(tmp_path, trec_on_hub, monkeypatch):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DataError, match="cannot be written: no space left on device"):
        fetch("trec", tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, trec_on_hub):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file cannot be written: file exists"):
        fetch("trec", tmp_path / "file")


@pytest.mark.parametrize(
    ("replaced", "complaint"),
    [
        (table({"text": TEXT}, text=["a"]), "lacks a column 'coarse_label' of classes, having the columns text"),
        (
            trec_table(["What ?", "How ?"]).remove_columns("text"),
            "lacks a column 'text', having the columns coarse_label, fine_label",
        ),
        (
            trec_table(["What ?", "How ?"]).cast_column(
                "coarse_label", datasets.ClassLabel(names=["A", "B", "C", "D", "E", "F"])
            ),
            "line 1: unknown label 'A'",
        ),
        (trec_table(["What ?", "How ?"]).select([0]), "holds only one class, 1 ABBR"),
    ],
)
def test_a_changed_repository_is_noticed_before_a_file_appears(tmp_path, trec_on_hub, replaced, complaint):
    trec_on_hub["CogComp/trec", "test"] = replaced
    with pytest.raises(DataError, match=complaint):
        fetch("trec", tmp_path)
    assert os.listdir(tmp_path) == []


def test_unknown_sentiments_are_not_passed_over(tmp_path, tweets_on_hub):
    tweets_on_hub["stanfordnlp/sentiment140", "test"] = tweet_table(["good", "bad", "odd"], [4, 0, 3])
    with pytest.raises(DataError, match="a tweet has the sentiment 3, not 0, 2 or 4"):
        fetch("sentiment140", tmp_path)


def test_other_classes_of_snli_are_refused(tmp_path, on_hub):
    on_hub["stanfordnlp/snli", "train"] = snli_table("x", ("yes", "maybe", "no"))
    with pytest.raises(DataError, match="lacks the classes entailment, neutral, contradiction"):
        fetch("snli", tmp_path)


def test_glove_is_taken_out_of_its_archive(tmp_path, monkeypatch):
    archive = tmp_path / "cache.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("glove.6B.100d.txt", "a 1 2\n")
        files.writestr("glove.6B.300d.txt", "a 1 2 3\nb 4 5 6\n")
    monkeypatch.setattr(hub, "require_hub", lambda: None)
    asked = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *args: asked.append(args) or str(archive))
    folder = tmp_path / "data"
    assert fetch("glove", folder) == [folder / "glove.6B.300d.txt"]
    assert read_vectors(folder, "glove").table.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert asked == [("stanfordnlp/glove", "glove.6B.zip")]
    archive.write_bytes(b"cut off")
    with pytest.raises(DataError, match=r"cache\.zip is damaged or does not hold glove\.6B\.300d\.txt"):
        fetch("glove", folder, overwrite=True)
    assert read_vectors(folder, "glove").table.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_word_pieces_are_written_under_the_name_that_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    monkeypatch.setattr(hub, "require_hub", lambda: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *args: str(tmp_path / "vocab.txt"))
    folder = tmp_path / "data"
    assert fetch("wordpiece", folder) == [folder / "bert-base-uncased-vocab.txt"]
    assert (folder / "bert-base-uncased-vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()


@pytest.mark.parametrize("name", ["trec", "snli", "sentiment140", "glove", "wordpiece"])
def test_without_a_network_it_is_said_at_once_which_files_go_where(tmp_path, monkeypatch, name):
    # Nothing listens at this address, so that the real libraries meet a real refusal.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    start = time.perf_counter()
    with pytest.raises(DataError) as caught:
        fetch(name, tmp_path)
    assert time.perf_counter() - start < 10
    expected = [part.names[0] for part in hub.dataset_named(name).parts]
    for words in ("http://127.0.0.1:9 does not answer", str(tmp_path), *expected):
        assert words in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_proxy_that_cannot_reach_the_hub_is_no_answer(tmp_path, monkeypatch):
    class Session:
        def head(self, address, timeout):
            return SimpleNamespace(status_code=503)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    with pytest.raises(DataError, match=r"cannot be reached \(HTTP status 503\)"):
        fetch("wordpiece", tmp_path)


def test_a_lost_connection_is_not_tried_again_with_another_revision(tmp_path, on_hub, monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append(kwargs)
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"could not be loaded from the hub \(Couldn't reach it\)"):
        fetch("trec", tmp_path)
    assert len(asked) == 1


@pytest.mark.parametrize(("name", "package"), [("trec", "datasets"), ("wordpiece", "huggingface_hub")])
def test_without_the_package_it_is_said_how_to_get_it(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=rf"{package} is not installed: pip install 'adambo\[hub\]'"):
        fetch(name, tmp_path)


@pytest.mark.parametrize("name", ["vectors300", "glove100"])
def test_data_that_the_hub_lacks_are_described(tmp_path, name):
    with pytest.raises(DataError, match=r"the hub has no copy.*adambo data fetch glove.*vocab\.txt"):
        fetch(name, tmp_path)


def test_an_unknown_data_set_is_not_fetched(tmp_path):
    with pytest.raises(DataError, match="no data set 'imdb'; there are trec"):
        fetch("imdb", tmp_path)
