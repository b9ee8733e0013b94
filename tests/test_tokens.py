"""Words and word pieces of texts, and their numbers."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adambo.data.word_pieces import read_vocabulary, word_piece_ids
from adambo.data.words import tokenize, word_ids
from adambo.errors import DataError

few = settings(max_examples=60, deadline=None, database=None, derandomize=True)
DATA = Path(os.environ.get("ADAMBO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog", "##s", "un", "##happi", "##ness", "!", "e"]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return path


def shared(name):
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here; set ADAMBO_DATA to the folder that holds it.")
    return DATA / name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't, won't; N'T", ["do", "n't", ",", "wo", "n't", ";", "n't"]),
        (
            "We're she'll I'd I'm they've it's",
            ["we", "'re", "she", "'ll", "i", "'d", "i", "'m", "they", "'ve", "it", "'s"],
        ),
        ("o'clock rock 'n' roll's", ["o'clock", "rock", "'", "n", "'", "roll", "'s"]),
        ("a&amp;b &lt;3 &quot;", ["a", "&", "b", "<", "3", '"']),
        ("see http://a.b/c?d=e and HTTPS://X.Y or www.z.com.", ["see", "and", "or"]),
        ("MP3 is 24-bit", ["mp", "3", "is", "24", "-", "bit"]),
        ("...", [".", ".", "."]),
        ("naïve café", ["na", "ï", "ve", "caf", "é"]),
        ("  \t\n ", []),
    ],
)
def test_a_text_is_cut_into_lower_case_words_and_signs(text, words):
    assert tokenize(text) == words


@few
@given(st.text(st.characters(codec="utf-8", exclude_characters="&"), max_size=60).filter(lambda t: "http" not in t))
def test_words_are_the_whole_text_in_lower_case_without_its_white_space(text):
    text = text.replace("www", "w")
    words = tokenize(text)
    assert "".join(words) == "".join(text.lower().split())
    assert all(word and not any(sign.isspace() for sign in word) for word in words)


def test_known_words_are_numbered_from_one_and_unknown_ones_left_out():
    words = {"cat": 0, "dog": 1, "'s": 2}
    assert word_ids(["the cat's dog", "DOG dog dog", "a fish", ""], words, max_length=2) == [[1, 3], [2, 2], [4], [4]]


@few
@given(st.lists(st.text("ab '!", max_size=12), max_size=6), st.integers(1, 5))
def test_every_row_has_one_to_max_length_numbers_and_never_that_of_padding(texts, max_length):
    words = {"a": 0, "b": 1, "aa": 2, "!": 3}
    rows = word_ids(texts, words, max_length)
    assert len(rows) == len(texts)
    for text, row in zip(texts, rows, strict=True):
        known = [words[word] + 1 for word in tokenize(text) if word in words]
        assert row == (known[:max_length] if known else [5])


@pytest.mark.parametrize(
    ("name", "coverage"), [("trec_train", 0.996), ("sentiment140_train", 0.957)], ids=["questions", "tweets"]
)
def test_the_word_list_of_the_vectors_covers_the_real_text_as_its_readme_says(name, coverage):
    listed = set(shared("vocab.txt").read_text(encoding="utf-8").split("\n"))
    with gzip.open(shared(f"{name}.jsonl.gz"), "rt", encoding="utf-8") as file:
        words = [word for line in file for word in tokenize(json.loads(line)["text"])]
    assert sum(word in listed for word in words) / len(words) == pytest.approx(coverage, abs=5e-4)


def test_word_pieces_are_greedy_and_stand_between_two_special_tokens(vocabulary):
    texts = ["Cats UNHAPPINESS!", "É", "fish", ""]
    expected = [["cat", "##s", "un", "##happi", "##ness", "!"], ["e"], ["[UNK]"], []]
    rows = word_piece_ids(texts, vocabulary, max_length=20)
    assert [[PIECES[number] for number in row] for row in rows] == [["[CLS]", *row, "[SEP]"] for row in expected]


def test_long_texts_are_cut_and_keep_both_special_tokens(vocabulary):
    rows = word_piece_ids(["cat dog " * 20, "cat"], vocabulary, max_length=5)
    assert rows == [[2, 4, 5, 4, 3], [2, 4, 3]]


def test_special_tokens_that_a_text_spells_out_are_not_special(vocabulary):
    assert word_piece_ids(["[PAD]"], vocabulary, max_length=9) == [[2, 1, 1, 1, 3]]


def test_the_bert_vocabulary_is_read_whole():
    numbers = read_vocabulary(shared("bert-base-uncased-vocab.txt"))
    assert len(numbers) == 30_522
    # The numbers which BERT's own documentation gives for this sentence.
    [row] = word_piece_ids(["Hello, my dog is cute"], DATA / "bert-base-uncased-vocab.txt", max_length=128)
    assert row == [101, 7592, 1010, 2026, 3899, 2003, 10140, 102]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("cat\ndog\n", r"none of them is \[PAD\] or \[UNK\] or \[CLS\] or \[SEP\]"),
        ("[PAD]\n[UNK]\n[CLS]\n", r"none of them is \[SEP\]"),
        ("", "0 lines"),
        ("cat\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"\[PAD\] in line 2"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\ncat\ncat\n", "'cat' twice"),
        (b"[PAD]\n\xff\xfe\n", "cannot be read.*UTF-8"),
    ],
)
def test_a_vocabulary_of_another_kind_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=words) as error:
        word_piece_ids(["cat"], path, max_length=8)
    assert str(path) in str(error.value)


def test_a_missing_vocabulary_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.txt.*one word piece per line"):
        read_vocabulary(tmp_path / "nowhere.txt")


def test_a_line_end_of_another_system_changes_nothing(tmp_path, vocabulary):
    other = tmp_path / "other.txt"
    other.write_bytes(vocabulary.read_bytes().replace(b"\n", b"\r\n"))
    assert read_vocabulary(other) == read_vocabulary(vocabulary)


def test_only_the_module_of_bert_needs_the_large_library():
    modules = [f"adambo.data.{name}" for name in ("words", "word_pieces", "sequences", "tasks", "imbalance")]
    modules += ["adambo.training.metrics", "adambo.models.recurrent", "adambo.models.transformer"]
    code = f"import sys, {', '.join(modules)}; print({{'transformers', 'torchmetrics'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "set()"
