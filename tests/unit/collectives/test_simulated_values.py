"""Values of simulated ranks: kept as plain data, and read without running any code."""

import argparse
import json
import math
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.probes.collectives.simulated_values import (
    GroupValues,
    NotPlain,
    as_plain,
    of_plain,
)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.frozensets(st.integers())
)
NAMES = st.text() | st.integers() | st.booleans()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(NAMES, inner)
        | st.builds(SimpleNamespace, a=inner)
    ),
    max_leaves=10,
)


def through_file(value: Any) -> Any:
    return of_plain(json.loads(json.dumps(as_plain(value))))


@given(PLAIN)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert through_file(value) == value
    assert type(through_file(value)) is type(value)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16),
        *(torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_tensors_come_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    value = torch.arange(6).to(dtype)[: math.prod(shape)].reshape(shape)
    found = through_file([value])[0]
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.tolist() == value.tolist()


def test_views_and_gradients_come_back_as_plain_tensors() -> None:
    value = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    assert torch.equal(through_file(value), value)


def test_what_numpy_and_argparse_make_comes_back() -> None:
    assert through_file(np.float32(1.5)) == np.float32(1.5)
    assert type(through_file(np.int64(3))) is np.int64
    assert np.array_equal(through_file(np.eye(2)), np.eye(2))
    options = argparse.Namespace(lr=0.1, out=Path("runs"), betas=(0.9, 0.95))
    assert through_file(options) == options


class Users:
    """A class of the user's."""


@pytest.mark.parametrize(
    "value",
    [
        *(Users(), Users, print, {1: Users()}, object()),
        *(torch.empty(1 << 20), torch.empty(2, device="meta")),
        torch.eye(2).to_sparse(),
        np.array(["a"]),
        np.array([Users()]),
    ],
)
def test_what_is_not_plain_is_not_kept(value: Any) -> None:
    with pytest.raises(NotPlain):
        as_plain(value)


def test_a_list_that_holds_itself_is_not_kept() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotPlain):
        as_plain(endless)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "values").mkdir(mode=0o700)
    return tmp_path / "values" / "group"


def test_the_second_rank_gets_what_the_first_has_seen(path: Path) -> None:
    first = GroupValues(path)
    assert first.agree("a", [torch.ones(2)], False)[1] is False
    assert first.agree("b", Users(), True)[1] is True
    assert first.agree("c", {"seed": 3}, True) == ({"seed": 3}, True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = GroupValues(path)
    value, sent = second.agree("a", [torch.zeros(2)], False)
    assert (value[0].tolist(), sent) == ([1.0, 1.0], False)
    assert second.agree("b", "mine", False) == ("mine", False)
    assert second.agree("c", {"seed": 4}, False) == ({"seed": 3}, True)
    assert second.agree("d", "mine", False) == ("mine", False)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\xff\x80", b"cos\nsystem\n(S'exit'\ntR.", b"[", b"[" * 100_000),
        b'{"kind": "a", "own": false, "value": {"import": "os"}}',
        b'{"kind": "a", "own": false, "value": {"tensor": ["load", [1], ""]}}',
        b'{"kind": "a", "own": false, "value": {"tensor": ["int8", [9], "AA=="]}}',
        b'{"kind": "a", "own": false, "value": {"tensor": ["int8", [-1, -1], "AA=="]}}',
        b'{"kind": "a", "own": false, "value": {"array": ["bfloat16", [1], "AAA="]}}',
        b'{"kind": "a", "own": false, "value": {"set": [[]]}}',
    ],
)
def test_damaged_values_are_none(path: Path, line: bytes) -> None:
    path.write_bytes(line + b"\n")
    assert GroupValues(path).agree("a", "mine", False) == ("mine", False)


def test_a_link_in_the_place_of_the_values_is_not_followed(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    path.symlink_to(elsewhere)
    assert GroupValues(path).agree("a", 1, False) == (1, False)
    assert not os.path.lexists(elsewhere)
