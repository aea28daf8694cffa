"""Runs: columns that give back the events they were made of, and names for ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.model.drawing import sketch
from distdoctor.model.events import (
    WORLD,
    Batch,
    Call,
    Ended,
    Event,
    Failure,
    Left,
    Place,
    Started,
    State,
    Tensor,
)
from distdoctor.model.run import CALLS, Group, Run, named, ranges

EVENTS: list[Event] = [
    Started(rank=0, world_size=2),
    Call(
        rank=0,
        op="all_reduce",
        ordinal=1,
        tensors=(Tensor((2, 3), "bfloat16"), Tensor(())),
        reduce_op="max",
        place=Place("a.py", 7, "train"),
    ),
    Call(rank=0, op="broadcast", group="tp", ordinal=1, root=1, state=State.WAITING),
    Batch(rank=0, count=3),
    Call(rank=0, op="send", peer=1, tag=9, asynchronous=True, state=State.ISSUED),
    Call(rank=0, op="recv_any", thread=4, failing=True, state=State.RAISED),
    Call(
        rank=0,
        op="all_to_all_single",
        ordinal=2,
        splits=((1, 3), (2, 2)),
        state=State.REFUSED,
    ),
    Left(rank=0),
    Ended(rank=0, status=0),
]


def test_a_run_gives_back_the_events_it_was_made_of() -> None:
    run = Run.of_events({0: EVENTS, 1: []})
    assert list(run.events(0)) == EVENTS
    assert list(run.events(1)) == []


def test_a_call_is_given_back_by_its_row() -> None:
    run = Run.of_events({0: EVENTS, 1: []})
    calls = [event for event in EVENTS if isinstance(event, Call)]
    assert [run.call(row) for row in run.rows_of(0)] == calls


def test_rows_belong_to_one_rank_and_keep_its_order() -> None:
    run = sketch("""
        rank 0 | barrier  barrier
        rank 1 | .
        rank 2 | barrier
        rank 3 | ?
        rank 4 | barrier
    """)
    assert [list(run.rows_of(rank)) for rank in range(5)] == [[0, 1], [], [2], [], [3]]


def test_calls_get_the_ordinals_they_lack() -> None:
    ops = ("barrier", "send", "barrier")
    run = Run.of_events({0: [Call(rank=0, op=op) for op in ops]})
    assert run.calls["ordinal"].tolist() == [1, 0, 2]


def test_calls_keep_the_ordinals_they_have() -> None:
    run = Run.of_events({0: [Call(rank=0, op="barrier", ordinal=41)]})
    assert run.call(0).ordinal == 41


def test_signatures_are_equal_where_calls_can_meet() -> None:
    run = sketch("""
        rank 0 | all_reduce(2x2)@a.py:1  all_reduce(4)&...issued  all_reduce(5)
        rank 1 | all_reduce(4)@b.py:9    all_reduce(4)         all_reduce(6)
    """)
    signatures = run.calls["signature"].reshape(2, 3)
    assert (signatures[0] == signatures[1]).tolist() == [True, True, False]


def test_life_stands_between_the_calls_it_stood_between() -> None:
    run = sketch("rank 0 | start=1  barrier  batches=2  leave  barrier  exit=0")
    assert [at for at, _ in run.life[0]] == [0, 1, 1, 2]


def test_the_world_has_all_ranks_and_another_group_those_that_use_it() -> None:
    run = sketch("""
        rank 0 | barrier     barrier/tp
        rank 1 | .
        rank 2 | barrier/tp
        rank 3 | ?
    """)
    assert set(run.groups) == {Group(WORLD, (0, 1, 2, 3)), Group("tp", (0, 2))}


def test_members_that_never_used_a_group_are_members() -> None:
    run = sketch("group tp | 2 0 1\nrank 0 | barrier/tp\nrank 1 | .\nrank 2 | .")
    assert run.groups == (Group("tp", (2, 0, 1)),)


def test_ranks_without_a_journal_are_not_seen() -> None:
    run = sketch("rank 0 | ?\nrank 1 | .\nrank 2 | ?")
    assert (run.world_size, run.seen) == (3, [1])


def test_a_gap_between_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="each once"):
        Run.of_events({0: [], 2: []})


@given(st.lists(st.sampled_from(["started", "batch", "left", "ended"]), max_size=9))
def test_told_is_what_life_has_of_some_kinds_in_its_order(kinds: list[str]) -> None:
    made: dict[str, Event] = {
        "started": Started(rank=0, world_size=2),
        "batch": Batch(rank=0, count=1),
        "left": Left(rank=0),
        "ended": Ended(rank=0, status=0),
    }
    run = Run(world_size=2, life={0: [(n, made[kind]) for n, kind in enumerate(kinds)]})
    for wanted in [(Batch,), (Left, Ended), (Ended, Started, Batch), (Failure, Left)]:
        by_hand = [one for one in run.life[0] if isinstance(one[1], wanted)]
        assert list(run.told(*wanted, rank=0)) == by_hand
        assert not run.told(*wanted, rank=1)


def test_of_gives_one_kind_of_one_rank() -> None:
    run = sketch("rank 0 | batches=1  leave  batches=2\nrank 1 | batches=3")
    assert [event.count for event in run.of(Batch, 0)] == [1, 2]
    assert run.of(Left, 1) == []


@pytest.mark.parametrize(
    ("kind", "there"), [(Call, True), (Left, True), (Batch, False), (Ended, False)]
)
def test_has_looks_at_all_ranks(kind: type, there: bool) -> None:
    assert sketch("rank 0 | .\nrank 1 | barrier  leave").has(kind) is there


def test_an_empty_run_is_whole() -> None:
    run = Run(world_size=2)
    assert run.calls.dtype == CALLS
    assert list(run.events(1)) == []
    assert not run.has(Call)


@pytest.mark.parametrize(
    "other",
    [
        "rank 0 | barrier\nrank 1 | barrier...",
        "rank 0 | barrier\nrank 1 | ?",
        "rank 0 | barrier\nrank 1 | barrier\nrank 2 | .",
        "rank 0 | barrier/tp\nrank 1 | barrier/tp",
        "rank 0 | barrier  leave\nrank 1 | barrier",
    ],
)
def test_runs_that_differ_are_not_equal(other: str) -> None:
    assert sketch("rank 0 | barrier\nrank 1 | barrier") != sketch(other)


def test_the_order_of_groups_does_not_make_runs_differ() -> None:
    a = sketch("group a | 0\ngroup b | 1\nrank 0 | .\nrank 1 | .")
    b = sketch("group b | 1\ngroup a | 0\nrank 0 | .\nrank 1 | .")
    assert a == b
    assert a.groups != b.groups


def test_a_run_is_no_other_thing() -> None:
    assert Run(world_size=1) != "rank 0 | ."


def test_a_changed_run_forgets_what_was_concluded_of_the_old_one() -> None:
    run = sketch("rank 0 | barrier")
    run.memory["conclusion"] = "well"
    assert replace(run, stopped="deadlock").memory == {}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        ([0, 1], "{0-1}"),
        ([0, 2], "{0,2}"),
        ([5, 1, 0, 2, 2], "{0-2,5}"),
        (range(512), "{0-511}"),
        ([], "{}"),
    ],
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert ranges(ranks) == text


@settings(deadline=None)
@given(st.sets(st.integers(0, 50)))
def test_ranges_name_every_rank_and_no_other(ranks: set[int]) -> None:
    ranks_named: set[int] = set()
    for part in ranges(ranks).strip("{}").split(","):
        first, _, last = part.partition("-")
        if part:
            ranks_named.update(range(int(first), int(last or first) + 1))
    assert ranks_named == ranks


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([3, 3], "rank 3"), ([0, 1], "ranks {0-1}")]
)
def test_one_rank_is_a_rank_and_more_are_ranks(ranks: list[int], text: str) -> None:
    assert named(ranks) == text


def test_columns_hold_what_a_large_job_needs() -> None:
    assert CALLS["ordinal"] == np.dtype("<i8")
    assert CALLS.itemsize <= 80  # 16,384 ranks of 1,000 calls in 1.3 GB
