"""Comparing saved states, with the place of the first difference in the message."""

import torch


def assert_same(a, b, path="state"):
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for k, (mine, other) in enumerate(zip(a, b, strict=True)):
            assert_same(mine, other, f"{path}[{k}]")
    else:
        assert a == b, path
