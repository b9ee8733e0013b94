"""Finding and opening data files: each way in which a file can be wrong gets its sentence."""

import gzip
import hashlib
import json
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from adambo.data.files import data_folder, find, json_lines, sha256, text_lines
from adambo.data.labelled import Labelled
from adambo.errors import DataError


def packed(path, content):
    path.write_bytes(gzip.compress(content))
    return path


def test_the_given_folder_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("ADAMBO_DATA", "/from/environment")
    assert data_folder("/given") == Path("/given")
    assert data_folder(None) == Path("/from/environment")
    monkeypatch.setenv("HOME", "/home/someone")
    assert data_folder("~/texts") == Path("/home/someone/texts")


@pytest.mark.parametrize("value", [None, ""])
def test_without_any_folder_the_error_names_both_ways(monkeypatch, value):
    monkeypatch.delenv("ADAMBO_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("ADAMBO_DATA", value)
    with pytest.raises(DataError, match=r"data_dir.*ADAMBO_DATA"):
        data_folder(value)


def test_the_first_name_that_is_a_file_is_found(tmp_path):
    (tmp_path / "a.txt").mkdir()
    (tmp_path / "b.txt").touch()
    (tmp_path / "c.txt").touch()
    assert find(tmp_path, ("a.txt", "b.txt", "c.txt"), "letters", "text") == tmp_path / "b.txt"


def test_a_missing_file_is_named_with_its_folder_other_names_form_and_remedy(tmp_path):
    with pytest.raises(DataError) as caught:
        find(tmp_path, ("a.txt", "b.txt"), "TREC train questions", "lines of text")
    for part in (str(tmp_path), "a.txt", "b.txt", "TREC train questions", "lines of text", "adambo data fetch"):
        assert part in str(caught.value)


def test_a_missing_folder_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        find(tmp_path / "nowhere", ("a.txt",), "letters", "text")


def test_a_file_in_the_place_of_the_folder_is_said_to_be_one(tmp_path):
    (tmp_path / "data").touch()
    with pytest.raises(DataError, match="data is not a folder"):
        find(tmp_path / "data", ("a.txt",), "letters", "text")


def test_a_folder_in_the_place_of_a_file_is_said_to_be_one(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(DataError, match=r"a\.txt is a folder, not a file"):
        find(tmp_path, ("a.txt",), "letters", "text")
    with pytest.raises(DataError, match=r"a\.txt is a folder, not a file"):
        list(text_lines(tmp_path / "a.txt"))


def test_a_folder_that_may_not_be_searched_is_said_to_be_so(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match=r"cannot be searched for a\.txt: permission denied"):
        find(tmp_path, ("a.txt",), "letters", "text")


@pytest.mark.parametrize("read", [sha256, lambda path: list(text_lines(path)), lambda path: list(json_lines(path))])
def test_a_file_that_may_not_be_read_is_said_to_be_so(tmp_path, monkeypatch, read):
    def refuse(self, *args):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("{}")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"a\.txt cannot be read: permission denied"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
@pytest.mark.parametrize("zipped", [False, True])
def test_the_content_says_whether_a_file_is_compressed_not_its_name(tmp_path, name, zipped):
    content = '{"a": "é"}\n\n{"a": 2}\n'.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if zipped else content)
    assert list(json_lines(path)) == [(1, {"a": "é"}), (3, {"a": 2})]


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes("a\u2028b\r\n\x85\nc\rd\ne".encode())
    assert list(text_lines(path)) == [(1, "a\u2028b"), (2, "\x85"), (3, "c\rd"), (4, "e")]


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert list(json_lines(path)) == [(1, {"a": 1})]


def test_a_cut_off_gzip_file_is_named_with_how_much_of_it_could_be_read(tmp_path):
    rows = [{"text": hashlib.sha256(str(k).encode()).hexdigest()} for k in range(40_000)]
    path = packed(tmp_path / "rows.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows).encode())
    path.write_bytes(path.read_bytes()[:-200])
    read = []
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz is cut off.*Expected: my form") as caught:
        deque(map(read.append, json_lines(path, "my form")), maxlen=0)
    assert 20_000 < len(read) < 40_000
    assert f"{len(read):,} lines of it could be read" in str(caught.value)
    assert read == list(enumerate(rows, 1))[: len(read)]


def test_a_damaged_gzip_file_is_named(tmp_path):
    path = packed(tmp_path / "rows.jsonl.gz", b'{"a": 1}\n' * 50)
    content = bytearray(path.read_bytes())
    content[-6] ^= 255  # of the check sum
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz is damaged.*CRC"):
        list(json_lines(path))
    content[12] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz is damaged"):
        list(json_lines(path))


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_said_to_be_empty(tmp_path, content):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz is empty. Expected: my form"):
        list(json_lines(path, "my form"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"a": "\xe9"}', "byte 8 of the line is not utf-8"),
        (b'{"a": 1', "is not JSON"),
        (b"version https://git-lfs.github.com/spec/v1", "version https://git-lfs.* is not JSON"),
        (b"\x00\x01", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", r"\[1, 2\] is not a JSON object"),
        (b"null", "null is not a JSON object"),
        (b'{"a": "\\ud83d"}', "surrogate"),
    ],
)
def test_a_wrong_line_is_named_with_its_number_and_the_expected_form(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 0}\n' + line + b'\n{"a": 2}\n')
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2: .*{complaint}.*Expected: my form") as caught:
        list(json_lines(path, "my form"))
    assert len(str(caught.value)) < 500


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": "\\ud83d\\ude00"}\n')
    assert list(json_lines(path)) == [(1, {"a": "\N{GRINNING FACE}"})]


def test_the_hash_is_that_of_the_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    # The first example of FIPS 180-2.
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_selection_keeps_texts_labels_and_pairs_together():
    data = Labelled(["p", "q", "r"], [0, 1, 0], ("no", "yes"), (), ["P", "Q", "R"])
    chosen = data.select([2, 1])
    assert (chosen.texts, chosen.labels, chosen.second) == (["r", "q"], [0, 1], ["R", "Q"])
    assert len(chosen) == 2
    assert (len(data), data.counts()) == (3, {"no": 2, "yes": 1})


def test_reading_data_needs_no_extra_package_until_it_is_used():
    code = (
        "import sys, adambo.data.catalogue, adambo.data.hub;"
        "print(*{'datasets', 'huggingface_hub', 'safetensors', 'tokenizers', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
