"""Calls that one rank made alone, found by the lines of all calls around them."""

from __future__ import annotations

import numpy as np
import pytest

from distdoctor.analysis.collectives.further_calls import (
    Calls,
    FurtherCalls,
    further_calls,
)

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_Seen = tuple[Calls, Calls]


def _seen(lines: str) -> _Seen:
    """A rank's calls by their lines; capital letters meet no others than their like."""
    met = [ord(line) if line not in _LETTERS else 1 for line in lines]
    return np.array([*map(ord, lines)], np.uint64), np.array(met, np.uint64)


def _found(one: str, other: str) -> FurtherCalls | None:
    """What the first has more; both are cut where they stand: at their unlike calls."""
    count = min(len(one), len(other))
    mine, theirs = _seen(one[:count]), _seen(other[:count])
    unlike = np.flatnonzero(mine[1] != theirs[1])
    fault = int(unlike[0]) if len(unlike) else None
    if fault is not None:
        mine, theirs = _seen(one[: fault + 1]), _seen(other[: fault + 1])
    assert further_calls(theirs, mine, fault) is None
    return further_calls(mine, theirs, fault)


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [
        ("gglgglx" + "ggl" * 6 + "B", "ggl" * 8 + "B", 6),
        ("ggxl" + "ggl" * 7 + "B", "ggl" * 8 + "B", 2),
        ("ggl" * 7 + "ggxlB", "ggl" * 8 + "B", 23),
    ],
    ids=["in the middle", "in the first step", "in the last step"],
)
def test_a_call_of_one_side_alone_is_found_where_it_was_made(
    one: str, other: str, at: int
) -> None:
    found = _found(one, other)
    assert found is not None
    assert (found.at, found.by, found.times, found.alone) == (at, 1, 1, True)
    assert not found.belongs


def test_a_call_made_again_and_again_is_counted() -> None:
    found = _found("gglgglx" * 5 + "B", "ggl" * 10 + "B")
    assert found is not None
    assert (found.at, found.times) == (6, 4)


def test_a_call_that_one_side_left_out_belongs_there() -> None:
    found = _found("ggl" * 8 + "B", "ggl" * 3 + "gg" + "ggl" * 4 + "B")
    assert found is not None
    assert (found.at, found.belongs) == (11, True)


def test_lines_that_each_side_has_for_itself_belong_together() -> None:
    found = _found("ggmggmx" + "ggm" * 6 + "B", "ggn" * 8 + "B")
    assert found is not None
    assert found.at == 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ggm" * 8 + "B", "ggn" * 8 + "C"),
        ("ggl" * 8 + "B", "ggl" * 8 + "C"),
        ("gmgngngmgngmB", "gngngmgmgmgnC"),
        ("mnmnnmmnnmB", "nmnmmnnmmnC"),
        ("gl" * 5 + "gm" + "gl" * 9 + "B", "gl" * 12 + "gm" + "gl" * 2 + "C"),
        ("ggxl" + "B", "ggl" + "B"),
        ("g" * 9 + "B", "g" * 8 + "B"),
    ],
    ids=[
        *("own lines", "one line", "by data", "two lines in turn", "a rare line"),
        *("too little follows", "all of one line"),
    ],
)
def test_lines_that_differ_on_purpose_are_no_shift(one: str, other: str) -> None:
    assert _found(one, other) is None
    assert _found(other, one) is None
