"""Whom DD119 blames, and how a refused call becomes known."""

from __future__ import annotations

import pytest

from distdoctor.catalogue import every_check
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Finding

REFUSED = (
    "all_reduce(4,names=allreduce.loss)/h@t.py:8&...issued  "
    "name_in_flight(name=allreduce.loss)@t.py:9  fail=ValueError@t.py:9  exit=1"
)
WAITS = "all_reduce(4,names=allreduce.loss)/h@t.py:8&..."
ISSUED = "all_reduce(4,names=allreduce.loss)/h@t.py:8&...issued  exit=143!!"
NOT_YET = "."


def finding(*lives: str) -> Finding:
    (doctor,) = [one for one in every_check() if one.code == "DD119"]
    ranks = "\n".join(f"rank {rank} | {life}" for rank, life in enumerate(lives))
    (found,) = doctor.examine(sketch(f"group h | 0 1\n{ranks}"))
    return found


@pytest.mark.parametrize(
    ("other", "culprits"),
    [(WAITS, (0,)), (REFUSED, ()), (ISSUED, ()), (NOT_YET, ())],
    ids=["waits", "refused", "issued", "not yet"],
)
def test_a_rank_is_blamed_where_the_other_waited_for_the_first(
    other: str, culprits: tuple[int, ...]
) -> None:
    assert finding(REFUSED, other).culprits == culprits


def test_the_call_that_has_the_name_is_shown() -> None:
    lines = [str(one.place) for one in finding(REFUSED, REFUSED).locations]
    assert lines == ["t.py:9", "t.py:8"]


def test_optimizers_are_shown_where_they_were_made() -> None:
    life = (
        "optimizer_wrapped(optimizer=1)@t.py:5  optimizer_wrapped(optimizer=2)@t.py:7  "
        "name_in_flight(name=allreduce.w,holders=2,parameters={})@t.py:9  "
        "fail=ValueError@t.py:9  exit=1"
    )
    shared, apart = (finding(*[life.format(count)] * 2) for count in (1, 2))
    assert [str(one.place) for one in shared.locations] == [
        "t.py:7",
        "t.py:5",
        "t.py:9",
    ]
    assert "hold the same parameter" in shared.message
    assert "each another one" in apart.message
