"""Reduce ops are read once for each kind of call, as to read one is slow."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdoctor.probes.collectives import reduce_ops
from distdoctor.probes.collectives.interception import Collectives


def test_operations_on_the_same_tensors_have_reduce_ops_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduce_ops, "read", int)
    kernels = Collectives.__new__(Collectives)  # registers nothing
    kernels._reduced = {}
    tensors = (("float32", (4,)), None)
    assert kernels._reduce_op("1", (7, "world", tensors), None) == 1
    assert kernels._reduce_op("2", (8, "world", tensors), None) == 2
    assert kernels._reduce_op("3", (7, "other", tensors), None) == 3
    assert kernels._reduce_op("4", (7, "world", tensors), None) == 1  # not read again


class _Asker:
    """Functions like torch's, and how often the script object was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[object] = []
        codes = [self.all_reduce.__code__, self.reduce.__code__]
        monkeypatch.setattr(reduce_ops, "_ASKING", {id(one): one for one in codes})
        monkeypatch.setattr(reduce_ops, "_asked_for", {})
        monkeypatch.setattr(reduce_ops, "_hidden", False)
        monkeypatch.setattr(reduce_ops, "read", self._read)

    def _read(self, boxed: int) -> int:
        self.read.append(boxed)
        return boxed

    def all_reduce(self, op: Any, boxed: int) -> int:  # noqa: ARG002
        return reduce_ops.asked(boxed, sys._getframe())

    def reduce(self, op: Any, boxed: int) -> int:  # noqa: ARG002
        return reduce_ops.asked(boxed, sys._getframe())

    def other(self, op: Any, boxed: int) -> int:  # noqa: ARG002
        return reduce_ops.asked(boxed, sys._getframe())


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> _Asker:
    return _Asker(monkeypatch)


def test_a_named_op_is_read_once_for_each_function(asker: _Asker) -> None:
    for _ in range(3):
        assert asker.all_reduce(dist.ReduceOp.SUM, 10) == 10
        assert asker.all_reduce(dist.ReduceOp.MAX, 13) == 13
        assert asker.reduce(dist.ReduceOp.SUM, 20) == 20
    assert asker.read == [10, 13, 20]


def test_what_is_no_named_op_or_of_no_known_function_is_read_each_time(
    asker: _Asker,
) -> None:
    summed = dist.ReduceOp(dist.ReduceOp.SUM)
    for n in range(2):
        assert asker.all_reduce(summed, n) == n
        assert asker.other(dist.ReduceOp.SUM, n) == n
        assert reduce_ops.asked(n, None) == n
    assert asker.read == [0, 0, 0, 1, 1, 1]


@pytest.mark.usefixtures("asker")
def test_nothing_of_the_asking_function_is_kept() -> None:
    def all_reduce() -> bool:
        op, tensor = dist.ReduceOp.SUM, torch.ones(2)
        held = weakref.ref(tensor)
        reduce_ops.asked(op.value, sys._getframe())
        del tensor
        return held() is None

    code = all_reduce.__code__
    reduce_ops._ASKING[id(code)] = code
    assert all_reduce()
    assert reduce_ops._asked_for


def test_the_functions_of_torch_are_known() -> None:
    known = {code.co_name for code in reduce_ops._asking().values()}
    assert known >= {"all_reduce", "reduce", "reduce_scatter_tensor"}
