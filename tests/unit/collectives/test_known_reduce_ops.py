"""Reduce ops of calls that autograd issues are read once for each kind of call."""

from __future__ import annotations

import pytest

from distdoctor.probes.collectives import reduce_ops
from distdoctor.probes.collectives.interception import Collectives


def test_operations_on_the_same_tensors_have_reduce_ops_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduce_ops, "read", int)
    kernels = Collectives.__new__(Collectives)  # registers nothing
    kernels._reduced = {}
    tensors = (("float32", (4,)), None)
    assert kernels._reduce_op("1", (7, "world", tensors)) == 1
    assert kernels._reduce_op("2", (8, "world", tensors)) == 2
    assert kernels._reduce_op("3", (7, "other", tensors)) == 3
    assert kernels._reduce_op("4", (7, "world", tensors)) == 1  # not read again
    assert kernels._reduce_op("5", None) == 5
