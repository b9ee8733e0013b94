"""Checkpoints: damage is seen and named, nothing in them is executed, a full disk costs no earlier one."""

import errno
import hashlib
import os
import pickle
import resource
from collections import defaultdict
from contextlib import contextmanager

import numpy
import pytest
import torch
from states import assert_same

from adambo.errors import RunError
from adambo.training import checkpoint


def state_of(step):
    values = torch.randn(50, 40, generator=torch.Generator().manual_seed(step))
    return {
        "step": step,
        "values": [values, values.double()],
        "plain": {"a": (1, 2.5, None, True), 3: "text", "b": b"x"},
    }


def saved(folder, *steps):
    return [checkpoint.save(folder, step, state_of(step)) for step in steps]


def newest(folder):
    said = []
    return checkpoint.newest(folder, said.append), said


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def replace_by_text(path):
    path.write_text("This is not a checkpoint.\n")


def empty(path):
    path.write_bytes(b"")


DAMAGES = [truncate, flip_a_bit, replace_by_text, empty]


def test_a_state_comes_back_bit_for_bit(tmp_path):
    (path,) = saved(tmp_path / "checkpoints", 40)
    (step, state), said = newest(tmp_path / "checkpoints")
    assert (step, said) == (40, [])
    assert_same(state, state_of(40))
    assert path.name == f"step-00000040-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.pt"


def test_the_newest_two_are_kept_and_no_left_overs(tmp_path):
    *_, before, last = saved(tmp_path, 0, 5, 10, 15)
    assert sorted(tmp_path.iterdir()) == sorted([before, last])


def test_one_of_the_same_step_replaces_the_earlier_one(tmp_path):
    first, _ = saved(tmp_path, 5, 10)
    other = checkpoint.save(tmp_path, 10, state_of(11))
    assert sorted(tmp_path.iterdir()) == sorted([first, other])
    assert newest(tmp_path)[0][1]["step"] == 11


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path, damage):
    _, last = saved(tmp_path, 5, 10)
    damage(last)
    (step, state), said = newest(tmp_path)
    assert step == 5
    assert_same(state, state_of(5))
    (sentence,) = said
    assert last.name in sentence
    assert "damaged" in sentence


def test_saving_after_damage_removes_what_was_damaged(tmp_path):
    first, last = saved(tmp_path, 5, 10)
    truncate(last)
    (new,) = saved(tmp_path, 7)
    assert sorted(tmp_path.iterdir()) == sorted([first, new])
    assert newest(tmp_path)[0][0] == 7


@pytest.mark.parametrize("damage", DAMAGES)
def test_if_all_are_damaged_all_are_named(tmp_path, damage):
    paths = saved(tmp_path, 5, 10)
    for path in paths:
        damage(path)
    with pytest.raises(RunError, match=rf"{paths[1].name}, {paths[0].name} are damaged"):
        newest(tmp_path)


def test_no_checkpoint_is_none(tmp_path):
    (tmp_path / "step-5.pt").write_text("somebody else's")
    (tmp_path / ".step-00000005.pt.partial").write_text("left over")
    assert newest(tmp_path) == (None, [])
    assert newest(tmp_path / "nowhere") == (None, [])


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path, write):
    folder, harm = tmp_path / "checkpoints", tmp_path / "harm"
    saved(folder, 5)
    write({"step": 10, "values": Malicious(harm)}, tmp_path / "made")
    digest = hashlib.sha256((tmp_path / "made").read_bytes()).hexdigest()[:16]
    (tmp_path / "made").rename(folder / f"step-00000010-{digest}.pt")  # a name in order
    (step, _), (sentence,) = newest(folder)
    assert step == 5
    assert "refused" in sentence
    assert not harm.exists()


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps([1, 2])])
def test_damage_from_before_the_name_was_made_is_seen_too(tmp_path, content):
    (tmp_path / f"step-00000010-{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)
    with pytest.raises(RunError, match="No checkpoint in"):
        newest(tmp_path)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [numpy.float64(1.0)]}, r"state\['a'\]\[0\] is a numpy.float64"),
        ({"a": {"b": defaultdict(list)}}, r"state\['a'\]\['b'\] is a collections.defaultdict"),
        ({"a": lambda: 0}, r"state\['a'\] is a builtins.function"),
        ({("a", frozenset()): 0}, r"a key of state\[1\] is a builtins.frozenset"),
    ],
)
def test_what_could_not_be_read_again_is_refused_when_it_is_saved(tmp_path, value, named):
    with pytest.raises(RunError, match=named):
        checkpoint.save(tmp_path, 0, value)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def small_files_only(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [1, 4096, 20_000])
def test_a_write_that_the_system_cuts_short_keeps_the_previous_checkpoints(tmp_path, size):
    paths = saved(tmp_path, 5, 10)
    with small_files_only(size), pytest.raises(RunError, match="cannot be written: file too large"):
        checkpoint.save(tmp_path, 15, state_of(15))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert newest(tmp_path)[0][0] == 10


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_keeps_the_previous_checkpoints(tmp_path, monkeypatch, call):
    paths = saved(tmp_path, 5, 10)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"cannot be written: no space left on device\."):
        checkpoint.save(tmp_path, 15, state_of(15))
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_file_in_place_of_the_folder_is_one_sentence(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(RunError, match="cannot be made: file exists"):
        checkpoint.save(tmp_path / "checkpoints", 0, state_of(0))


def test_what_is_no_file_is_no_checkpoint_whatever_its_name(tmp_path):
    (good,) = saved(tmp_path, 5)
    (tmp_path / f"step-00000010-{16 * 'a'}.pt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / f"step-00000011-{16 * 'b'}.pt")
    (tmp_path / f"step-00000012-{16 * 'c'}.pt").mkdir()
    (tmp_path / f"step-{200 * '9'}-{16 * 'd'}.pt").write_text("no step has so many digits")
    (step, state), said = newest(tmp_path)
    assert (step, said) == (5, [])
    assert_same(state, state_of(5))
    good.unlink()
    assert newest(tmp_path) == (None, [])
