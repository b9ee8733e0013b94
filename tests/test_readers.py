"""The readers of data sets: their own form and the public originals, what is refused, and the real files."""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adambo.data.catalogue import DATASETS, dataset_named
from adambo.data.sentiment140 import cut, read_sentiment140
from adambo.data.snli import read_snli
from adambo.data.trec import read_trec
from adambo.data.word_vectors import read_vectors
from adambo.errors import DataError

REAL = Path(os.environ.get("ADAMBO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
TRAIN_CSV = "training.1600000.processed.noemoticon.csv"
MANUAL_CSV = "testdata.manual.2009.06.14.csv"


def write_rows(path, rows):
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_bytes(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def real(*names):
    """The folder of the real files, if it has these."""
    for name in names:
        if not (REAL / name).is_file():
            pytest.skip(f"{name} is not in {REAL}: the real data files are not here.")
    return REAL


# TREC

TREC_ROWS = [
    {"label": "NUM", "fine": "dist", "text": "How far ?"},
    {"label": "ABBR", "fine": "exp", "text": "What is UN ?"},
    {"label": "NUM", "fine": "date", "text": "When ?"},
]


@pytest.mark.parametrize("name", ["trec_train.jsonl.gz", "trec_train.jsonl"])
def test_trec_is_read_from_json_lines(tmp_path, name):
    write_rows(tmp_path / name, TREC_ROWS)
    data = read_trec(tmp_path, "train")
    assert data.texts == ["How far ?", "What is UN ?", "When ?"]
    assert data.classes == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    assert data.labels == [5, 0, 5]
    assert data.files == (tmp_path / name,)
    assert data.second is None


@pytest.mark.parametrize("name", ["TREC_10.label", "TREC_10.label.gz"])
def test_trec_is_read_from_the_original_latin_1_files(tmp_path, name):
    write_bytes(tmp_path / name, b"NUM:dist How far is it ?\r\nENTY:other What is a caf\xe9 \x85 ?\n")
    data = read_trec(tmp_path, "test")
    assert data.texts == ["How far is it ?", "What is a café \x85 ?"]
    assert data.labels == [5, 2]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"label": "NUMBER", "text": "When ?"}, "unknown label 'NUMBER'"),
        ({"label": 5, "text": "When ?"}, "the field 'label' is 5"),
        ({"text": "When ?"}, "there is no field 'label', only 'text'"),
        ({"label": "NUM", "fine": "date"}, "there is no field 'text'"),
        ({"label": "NUM", "text": None}, "the field 'text' is null"),
    ],
)
def test_a_wrong_row_of_trec_is_named(tmp_path, row, complaint):
    write_rows(tmp_path / "trec_train.jsonl.gz", [*TREC_ROWS, row])
    with pytest.raises(DataError, match=rf"trec_train\.jsonl\.gz, line 4: {complaint}.*Expected: .*ABBR, DESC"):
        read_trec(tmp_path, "train")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"NUMBER:dist How far ?", "unknown label 'NUMBER'"),
        (b"NUM How far ?", "is not a label, a space and a question"),
        (b"NUM:dist", "is not a label, a space and a question"),
    ],
)
def test_a_wrong_line_of_the_original_trec_is_named(tmp_path, line, complaint):
    write_bytes(tmp_path / "train_5500.label", b"NUM:dist How far ?\nHUM:ind Who ?\n" + line + b"\n")
    with pytest.raises(DataError, match=rf"train_5500\.label, line 3: .*{complaint}.*Expected: .*Latin-1"):
        read_trec(tmp_path, "train")


def test_data_of_one_class_are_refused(tmp_path):
    write_rows(tmp_path / "trec_train.jsonl.gz", TREC_ROWS[::2])
    with pytest.raises(DataError, match="holds only one class, 2 NUM; at least two of ABBR"):
        read_trec(tmp_path, "train")


def test_a_file_of_blank_lines_holds_no_examples(tmp_path):
    write_bytes(tmp_path / "trec_train.jsonl.gz", b"\n \n\n")
    with pytest.raises(DataError, match="holds no labelled examples"):
        read_trec(tmp_path, "train")


@pytest.mark.parametrize("read", [read_trec, read_snli, read_sentiment140])
def test_an_unknown_split_is_refused_with_those_there_are(tmp_path, read):
    with pytest.raises(DataError, match="no split 'valid'; there are train"):
        read(tmp_path, "valid")


# SNLI


@pytest.mark.parametrize("name", ["snli_dev.jsonl.gz", "snli_dev.jsonl"])
def test_snli_is_read_from_json_lines(tmp_path, name):
    write_rows(tmp_path / name, [{"label": 2, "s1": "A man.", "s2": "No man."}, {"label": 0, "s1": "x", "s2": ""}])
    data = read_snli(tmp_path, "dev")
    assert (data.texts, data.second, data.labels) == (["A man.", "x"], ["No man.", ""], [2, 0])
    assert data.classes == ("entailment", "neutral", "contradiction")


@pytest.mark.parametrize("name", ["snli_1.0_train.jsonl", "snli_1.0_train.jsonl.gz"])
def test_snli_is_read_from_the_original_files_without_pairs_that_have_no_gold_label(tmp_path, name):
    rows = [
        {"gold_label": "neutral", "sentence1": "A man. ", "sentence2": "A  tall\tman.", "pairID": "1"},
        {"gold_label": "-", "sentence1": "A dog.", "sentence2": "A cat.", "pairID": "2"},
        {"gold_label": "entailment", "sentence1": "A boy runs.", "sentence2": "A boy moves.", "pairID": "3"},
    ]
    write_rows(tmp_path / name, rows)
    data = read_snli(tmp_path, "train")
    assert (data.texts, data.second) == (["A man.", "A boy runs."], ["A tall man.", "A boy moves."])
    assert data.labels == [1, 0]


@pytest.mark.parametrize(
    ("name", "row", "complaint"),
    [
        ("snli_test.jsonl", {"label": 3, "s1": "a", "s2": "b"}, "unknown label 3"),
        ("snli_test.jsonl", {"label": -1, "s1": "a", "s2": "b"}, "unknown label -1"),
        ("snli_test.jsonl", {"label": True, "s1": "a", "s2": "b"}, "the field 'label' is true"),
        ("snli_test.jsonl", {"label": "1", "s1": "a", "s2": "b"}, "the field 'label' is \"1\""),
        ("snli_test.jsonl", {"label": float("nan"), "s1": "a", "s2": "b"}, "the field 'label' is NaN"),
        ("snli_test.jsonl", {"label": 1, "s1": "a"}, "there is no field 's2'"),
        ("snli_test.jsonl", {}, "there is no field 'label', only none"),
        ("snli_1.0_test.jsonl", {"label": 1, "s1": "a", "s2": "b"}, "there is no field 'gold_label'"),
        ("snli_1.0_test.jsonl", {"gold_label": "maybe", "sentence1": "a", "sentence2": "b"}, "unknown label 'maybe'"),
        ("snli_1.0_test.jsonl", {"gold_label": "neutral", "sentence1": "a"}, "there is no field 'sentence2'"),
    ],
)
def test_a_wrong_row_of_snli_is_named(tmp_path, name, row, complaint):
    write_rows(tmp_path / name, [row])
    with pytest.raises(DataError, match=rf"{name}, line 1: {complaint}.*Expected: lines .*entailment, neutral"):
        read_snli(tmp_path, "test")


# Sentiment140

TWEETS = [
    {"label": 1, "text": "a &amp; b", "u": 1, "id": 5},
    {"label": 0, "text": "c", "u": 0},
    {"label": 0, "text": "d", "u": 1},
]


def csv_line(polarity, text):
    return f'"{polarity}","1467","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","someone","{text}"\n'


def test_sentiment140_is_read_from_json_lines_entities_and_all(tmp_path):
    write_rows(tmp_path / "sentiment140_train.jsonl.gz", TWEETS)
    data = read_sentiment140(tmp_path, "train")
    assert (data.texts, data.labels) == (["a &amp; b", "d"], [1, 0])
    assert data.classes == ("negative", "positive")
    everything = read_sentiment140(tmp_path, "train", uniform_only=False)
    assert (everything.texts, everything.labels) == (["a &amp; b", "c", "d"], [1, 0, 0])


def test_tweets_labelled_by_hand_need_no_field_u(tmp_path):
    rows = [{"label": 1, "text": "a", "id": 3}, {"label": 0, "text": "b", "id": 4}]
    write_rows(tmp_path / "sentiment140_test_manual.jsonl", rows)
    assert read_sentiment140(tmp_path, "manual").labels == [1, 0]


@pytest.mark.parametrize("name", [MANUAL_CSV, f"{MANUAL_CSV}.gz"])
def test_the_original_test_tweets_are_read_without_neutral_ones(tmp_path, name):
    text = csv_line(4, 'caf\xe9, ""now""  !') + csv_line(2, "so so") + csv_line(0, "bad\r\nday")
    write_bytes(tmp_path / name, text.encode("latin-1"))
    data = read_sentiment140(tmp_path, "manual")
    assert (data.texts, data.labels) == (['café, "now" !', "bad day"], [1, 0])


@pytest.mark.parametrize("name", [TRAIN_CSV, f"{TRAIN_CSV}.gz"])
def test_a_tenth_of_a_small_original_is_held_out_and_not_trained_on(tmp_path, name):
    texts = [f"tweet {k}" for k in range(200)]
    write_bytes(tmp_path / name, "".join(csv_line(4 * (k % 2), text) for k, text in enumerate(texts)).encode())
    train, heldout = (read_sentiment140(tmp_path, split) for split in ("train", "heldout"))
    assert (len(train), len(heldout)) == (180, 20)
    assert sorted(train.texts + heldout.texts) == sorted(texts)
    assert [int(text.split()[1]) % 2 for text in heldout.texts] == heldout.labels
    assert heldout.texts == read_sentiment140(tmp_path, "heldout").texts
    # Spread over the file, which is sorted by label and date, not a block of it.
    numbers = [int(text.split()[1]) for text in heldout.texts]
    assert min(numbers) < 50
    assert max(numbers) > 150


def test_no_more_than_19000_tweets_are_held_out_and_none_of_their_texts_is_kept():
    texts = [f"Tweet {k % 150_000}" if k % 2 else f"tweet {k % 150_000}" for k in range(300_000)]
    train, heldout = cut(texts)
    assert len(set(heldout)) == 19_000
    assert not {texts[k].lower() for k in train} & {texts[k].lower() for k in heldout}
    # Each text is there twice, so that a held-out tweet takes its twin out too.
    assert len(train) == 300_000 - 2 * len({texts[k].lower() for k in heldout})


def test_held_out_tweets_come_from_the_same_source_as_the_training_tweets(tmp_path):
    write_bytes(tmp_path / TRAIN_CSV, "".join(csv_line(4 * (k % 2), f"csv {k}") for k in range(200)).encode())
    write_rows(tmp_path / "sentiment140_heldout.jsonl.gz", TWEETS)
    assert len(read_sentiment140(tmp_path, "heldout")) == 20
    write_rows(tmp_path / "sentiment140_train.jsonl.gz", TWEETS)
    assert read_sentiment140(tmp_path, "heldout").texts == ["a &amp; b", "d"]
    (tmp_path / "sentiment140_heldout.jsonl.gz").unlink()
    with pytest.raises(DataError, match=r"no file named sentiment140_heldout\.jsonl\.gz"):
        read_sentiment140(tmp_path, "heldout")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"label": 4, "text": "a", "u": 1}, "unknown label 4"),
        ({"label": 1, "text": "a"}, "there is no field 'u'"),
        ({"label": 1, "text": "a", "u": 2}, "the field 'u' is 2"),
        ({"label": 1, "u": 1}, "there is no field 'text'"),
    ],
)
def test_a_wrong_tweet_is_named(tmp_path, row, complaint):
    write_rows(tmp_path / "sentiment140_train.jsonl.gz", [*TWEETS, row])
    with pytest.raises(DataError, match=rf"sentiment140_train\.jsonl\.gz, line 4: {complaint}.*Expected: lines"):
        read_sentiment140(tmp_path, "train")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('"4","1467","text"\n', "3 columns"),
        (csv_line(4, "a").rstrip() + ',"more"\n', "7 columns"),
        ('"target","ids","date","flag","user","text"\n', "unknown polarity 'target'"),
        (csv_line(3, "a"), "unknown polarity '3'"),
        (csv_line(4, "x" * 200_000), "not CSV"),
    ],
)
def test_a_wrong_line_of_the_original_tweets_is_named(tmp_path, line, complaint):
    (tmp_path / MANUAL_CSV).write_text(csv_line(0, "a") + csv_line(4, "b") + line)
    with pytest.raises(DataError, match=rf"csv, line 3: {complaint}.*Expected: 6 columns"):
        read_sentiment140(tmp_path, "manual")


def test_tweets_without_a_uniform_one_are_refused_with_the_reason(tmp_path):
    write_rows(tmp_path / "sentiment140_train.jsonl.gz", [row | {"u": 0} for row in TWEETS])
    with pytest.raises(DataError, match=r"no labelled examples.*those with u = 1 are read"):
        read_sentiment140(tmp_path, "train")


# Word vectors


def write_table(folder, vectors, words, index=None, kind="vectors300"):
    table, names = {"vectors300": ("vectors.safetensors", "vocab.txt")}.get(
        kind, ("glove100.safetensors", "glove100-vocab.txt")
    )
    tensors = {"vectors": vectors} if index is None else {"vectors": vectors, "index": index}
    save_file(tensors, folder / table)
    (folder / names).write_bytes("".join(f"{word}\n" for word in words).encode())


def test_a_table_with_an_index_gives_every_word_its_row(tmp_path):
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16)
    write_table(tmp_path, rows, ["the", "\u2028", "é"], torch.tensor([1, 0, 1], dtype=torch.int32))
    vectors = read_vectors(tmp_path, "vectors300")
    assert vectors.words == {"the": 0, "\u2028": 1, "é": 2}
    assert vectors.table.dtype == torch.float32
    assert vectors.table.tolist() == [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    assert [path.name for path in vectors.files] == ["vectors.safetensors", "vocab.txt"]


def test_a_table_without_an_index_has_a_row_per_word(tmp_path):
    write_table(tmp_path, torch.tensor([[1.0], [2.0]]), ["a", "b"], kind="glove100")
    assert read_vectors(tmp_path, "glove100").table.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("vectors", "index", "complaint"),
    [
        (torch.ones(3, 2), None, r"vectors for 3 words, but .*vocab\.txt lists 2"),
        (torch.ones(2, 2), torch.tensor([0, 1, 0]), r"vectors for 3 words, but .*vocab\.txt lists 2"),
        (torch.ones(2, 2), torch.tensor([0, 2]), r"index\[1\] is 2, but `vectors` has rows 0 to 1"),
        (torch.ones(2, 2), torch.tensor([-1, 0]), r"index\[0\] is -1"),
        (torch.ones(2, 2), torch.tensor([0.0, 1.0]), r"`index` is float32 of shape \(2,\)"),
        (torch.ones(2, 2), torch.tensor([[0, 1]]), r"`index` is int64 of shape \(1, 2\)"),
        (torch.ones(2), None, r"`vectors` is float32 of shape \(2,\)"),
        (torch.ones(2, 0), None, r"`vectors` is float32 of shape \(2, 0\)"),
        (torch.ones(2, 2, dtype=torch.int8), None, "`vectors` is int8"),
        (torch.tensor([[1.0, 2.0], [1.0, torch.nan]]), None, "the vector of 'b', word 2 of 2, is not finite"),
        (torch.tensor([[1.0, torch.inf], [1.0, 2.0]]), None, "the vector of 'a', word 1 of 2, is not finite"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, vectors, index, complaint):
    write_table(tmp_path, vectors, ["a", "b"], index)
    with pytest.raises(DataError, match=rf"vectors\.safetensors.*{complaint}.*Expected:"):
        read_vectors(tmp_path, "vectors300")


def test_a_table_without_vectors_is_refused(tmp_path):
    write_table(tmp_path, torch.ones(1, 1), ["a"])
    save_file({"weights": torch.ones(1, 1)}, tmp_path / "vectors.safetensors")
    with pytest.raises(DataError, match="there is no tensor `vectors`"):
        read_vectors(tmp_path, "vectors300")


@pytest.mark.parametrize("content", [b"", b"no table", None])
def test_a_damaged_table_is_refused(tmp_path, content):
    write_table(tmp_path, torch.ones(100, 2), [str(k) for k in range(100)])
    path = tmp_path / "vectors.safetensors"
    path.write_bytes(path.read_bytes()[:-7] if content is None else content)
    with pytest.raises(DataError, match=r"vectors\.safetensors is damaged or no safetensors file .*Expected:"):
        read_vectors(tmp_path, "vectors300")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (b"a\n\nb\n", "line 2: there is no word"),
        (b"a\nb\na\n", "line 3: 'a' is already the word of line 1"),
        (b"a\n\xff\n", "line 2: byte 1 of the line is not utf-8"),
        (b"", "is empty"),
    ],
)
def test_a_wrong_word_list_is_refused(tmp_path, words, complaint):
    write_table(tmp_path, torch.ones(2, 2), ["a", "b"])
    (tmp_path / "vocab.txt").write_bytes(words)
    with pytest.raises(DataError, match=rf"vocab\.txt,? {complaint}"):
        read_vectors(tmp_path, "vectors300")


@pytest.mark.parametrize("name", ["glove.6B.300d.txt", "glove.840B.300d.txt.gz", "glove.6B.100d.txt"])
def test_glove_text_is_read_even_with_spaces_in_words_and_repeats(tmp_path, name):
    write_bytes(tmp_path / name, "the 0.5 -1 2e-1\n. . . 1 2 3\nthe 9 9 9\né 4 5 6\n".encode())
    vectors = read_vectors(tmp_path, "glove")
    assert vectors.words == {"the": 0, ". . .": 1, "é": 2}
    assert vectors.table.dtype == torch.float32
    torch.testing.assert_close(vectors.table, torch.tensor([[0.5, -1.0, 0.2], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("b 1 2", "line 2: 2 numbers after 'b', 3 in line 1"),
        ("b 1 2 3 4", "line 2: more than 3 numbers after 'b 1', 3 in line 1"),
        ("b 1 two 3", "line 2: could not convert string to float: 'two'"),
        ("", "line 2: 0 numbers"),
        (" 1 2 3", "line 2: 3 numbers after ''"),
    ],
)
def test_a_wrong_line_of_glove_is_named(tmp_path, line, complaint):
    (tmp_path / "glove.6B.300d.txt").write_text(f"a 1 2 3\n{line}\nc 1 2 3\n")
    with pytest.raises(DataError, match=rf"glove\.6B\.300d\.txt, {complaint}.*Expected: GloVe"):
        read_vectors(tmp_path, "glove")


def test_the_header_of_another_format_is_not_taken_for_a_word(tmp_path):
    (tmp_path / "glove.6B.300d.txt").write_text("400000 300\na 1 2 3\n")
    with pytest.raises(DataError, match="line 1: '400000 300' is not a word and its numbers"):
        read_vectors(tmp_path, "glove")


def test_numbers_of_glove_must_be_finite(tmp_path):
    (tmp_path / "glove.6B.300d.txt").write_text("a 1 2\nb nan 2\nc 1 1e99\n")
    with pytest.raises(DataError, match="vector of 'b', word 2 of 3, is not finite, nor are 1 others"):
        read_vectors(tmp_path, "glove")


def test_unknown_vectors_are_refused_with_those_there_are(tmp_path):
    with pytest.raises(DataError, match="no word vectors 'word2vec'; there are vectors300, glove100, glove"):
        read_vectors(tmp_path, "word2vec")


# The catalogue


def test_the_catalogue_says_what_is_missing_and_what_is_there(tmp_path):
    write_rows(tmp_path / "trec_test.jsonl", TREC_ROWS)
    trec = DATASETS["trec"]
    sentences = trec.missing(tmp_path)
    assert len(sentences) == 1
    assert "trec_train.jsonl.gz or trec_train.jsonl or train_5500.label" in sentences[0]
    assert trec.files(tmp_path) == [tmp_path / "trec_test.jsonl"]
    with pytest.raises(DataError, match="No TREC train questions"):
        trec.check(tmp_path)
    write_bytes(tmp_path / "train_5500.label", b"NUM:dist How far ?\nHUM:ind Who ?\n")
    assert trec.missing(tmp_path) == []
    assert trec.check(tmp_path)[0] == "train_5500.label: 2 questions: ABBR 0, DESC 0, ENTY 0, HUM 1, LOC 0, NUM 1"


def test_a_file_that_serves_two_splits_is_listed_once(tmp_path):
    write_bytes(tmp_path / TRAIN_CSV, "".join(csv_line(4 * (k % 2), f"csv {k}") for k in range(200)).encode())
    assert DATASETS["sentiment140"].files(tmp_path) == [tmp_path / TRAIN_CSV]
    assert len(DATASETS["sentiment140"].missing(tmp_path)) == 1


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_says_what_is_missing_from_an_empty_folder(tmp_path, name):
    dataset = dataset_named(name)
    assert len(dataset.missing(tmp_path)) == len(dataset.parts)
    assert dataset.files(tmp_path) == []
    assert all(part.names[0] in dataset.expected() for part in dataset.parts)
    with pytest.raises(DataError):
        dataset.check(tmp_path)


def test_an_unknown_data_set_is_answered_with_the_nearest():
    with pytest.raises(DataError, match="no data set 'TREC'; did you mean trec"):
        dataset_named("TREC")


# The real files. The numbers are those published with them.


@pytest.mark.parametrize(
    ("split", "counts"),
    [
        ("train", {"ABBR": 86, "DESC": 1162, "ENTY": 1250, "HUM": 1223, "LOC": 835, "NUM": 896}),
        ("test", {"ABBR": 9, "DESC": 138, "ENTY": 94, "HUM": 65, "LOC": 81, "NUM": 113}),
    ],
)
def test_the_real_trec_has_its_published_counts(split, counts):
    assert read_trec(real("trec_train.jsonl.gz", "trec_test.jsonl.gz"), split).counts() == counts


@pytest.mark.parametrize(
    ("split", "counts"), [("train", (31148, 31041, 25644)), ("dev", (3329, 3235, 3278)), ("test", (3368, 3219, 3237))]
)
def test_the_real_snli_has_its_published_counts(split, counts):
    data = read_snli(real(f"snli_{split}.jsonl.gz"), split)
    assert tuple(data.counts().values()) == counts
    assert data.second is not None
    assert len(data.second) == len(data) == sum(counts)


@pytest.mark.parametrize(
    ("split", "uniform_only", "counts"),
    [
        ("train", False, (44187, 52050)),
        ("train", True, (31743, 30074)),
        ("heldout", True, (9500, 9500)),
        ("manual", True, (177, 182)),
    ],
)
def test_the_real_tweets_have_their_published_counts(split, uniform_only, counts):
    folder = real("sentiment140_train.jsonl.gz", "sentiment140_heldout.jsonl.gz", "sentiment140_test_manual.jsonl.gz")
    assert tuple(read_sentiment140(folder, split, uniform_only).counts().values()) == counts


@pytest.mark.parametrize(("kind", "shape"), [("vectors300", (50217, 300)), ("glove100", (45923, 100))])
def test_the_real_vectors_fit_their_word_lists(kind, shape):
    vectors = read_vectors(real(*[part.names[0] for part in DATASETS[kind].parts]), kind)
    assert tuple(vectors.table.shape) == shape
    assert sorted(vectors.words.values()) == list(range(shape[0]))
    # Near in meaning is near in the table, which a shifted row would not be.
    unit = torch.nn.functional.normalize(vectors.table)
    man, woman, banana = (unit[vectors.words[word]] for word in ("man", "woman", "banana"))
    assert man @ woman > 0.5 > man @ banana
    if kind == "vectors300":  # published: these two share one vector
        assert torch.equal(vectors.table[vectors.words["haha"]], vectors.table[vectors.words["lol"]])


def test_the_real_word_pieces_are_those_of_bert():
    folder = real("bert-base-uncased-vocab.txt")
    assert DATASETS["wordpiece"].check(folder) == ["bert-base-uncased-vocab.txt: 30,522 word pieces"]
