"""Calls that are matched by name get one ordinal on all ranks, whoever comes when."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.analysis.collectives.alignment import alignments
from distdoctor.analysis.deadlock.circular_waits import WaitCircle
from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.model.events import Call, Ended, Event, Place, State, Tensor
from distdoctor.model.named_calls import USE_MASK, USE_SHIFT, NameCounter, packed
from distdoctor.model.run import Run

LINE = Place("train.py", 3)


def call(
    rank: int, name: str, op: str = "all_reduce", state: State = State.DONE
) -> Call:
    return Call(
        rank=rank,
        op=op,
        group="horovod",
        names=(f"{op}.{name}",) if name else (),
        tensors=() if op in {"join", "barrier"} else (Tensor((3,)),),
        place=LINE,
        state=state,
    )


def run_of(*orders: Sequence[Event]) -> Run:
    return Run.of_events(
        dict(enumerate(orders)), members={"horovod": range(len(orders))}
    )


@given(
    names=st.lists(st.sampled_from("abcde"), min_size=1, max_size=20),
    seed=st.integers(0, 2**16),
    ranks=st.integers(2, 5),
)
def test_any_order_of_named_calls_is_one_sequence(
    names: list[str], seed: int, ranks: int
) -> None:
    chance = random.Random(seed)
    orders = [chance.sample(names, len(names)) for _ in range(ranks)]
    run = run_of(*[[call(r, name) for name in order] for r, order in enumerate(orders)])
    (alignment,) = alignments(run)
    assert alignment.equal.all()
    assert set(alignment.counts.tolist()) == {ranks}
    assert alignment.first_fault(run) is None
    assert not standstill(run).waits


@given(
    before=st.lists(st.sampled_from("abc"), max_size=6),
    after=st.lists(st.sampled_from("abc"), max_size=6),
)
def test_who_has_not_used_a_name_is_missed_there(
    before: list[str], after: list[str]
) -> None:
    alone = call(0, "alone", state=State.WAITING)
    rest = [call(1, name) for name in (*before, *after)]
    run = run_of(
        [*(call(0, name) for name in before), *(call(0, n) for n in after), alone],
        [*rest, call(1, "", "barrier", State.WAITING)],
    )
    waits = standstill(run).waits
    assert {rank: waits[rank][0].missing for rank in waits} == {
        0: frozenset({1}),
        1: frozenset({0}),
    }


def test_a_name_in_another_family_is_another_call() -> None:
    run = run_of(
        [call(0, "x", "all_reduce", State.WAITING)],
        [call(1, "x", "all_gather", State.WAITING)],
    )
    assert set(standstill(run).waits) == {0, 1}


def test_two_synchronous_calls_in_opposite_order_wait_for_each_other() -> None:
    run = run_of(
        [call(0, "a", state=State.WAITING)], [call(1, "b", state=State.WAITING)]
    )
    assert set(standstill(run).waits) == {0, 1}


def test_one_call_more_shifts_the_names_of_all_that_have_none() -> None:
    run = run_of(
        [call(0, ""), call(0, "mine"), call(0, "", state=State.WAITING)],
        [call(1, ""), call(1, "", state=State.WAITING)],
    )
    assert set(standstill(run).waits) == {0, 1}


def test_who_has_joined_is_not_missed() -> None:
    run = run_of(
        [call(0, "g"), call(0, "g"), call(0, "g"), call(0, "", "join")],
        [call(1, "g"), call(1, "", "join")],
    )
    assert all(one.first_fault(run) is None for one in alignments(run))
    assert not standstill(run).waits
    # Behind it, names are counted anew.
    again = run_of(
        [call(0, "g"), call(0, "g"), call(0, "", "join"), call(0, "g")],
        [call(1, "g"), call(1, "", "join"), call(1, "g")],
    )
    assert all(one.first_fault(again) is None for one in alignments(again))


def test_of_three_one_that_has_joined_is_not_missed_by_the_others() -> None:
    run = run_of(
        [call(0, "g"), call(0, "g", state=State.WAITING)],
        [call(1, "g")],
        [call(2, "g"), call(2, "", "join", State.WAITING)],
    )
    assert not standstill(run).waits  # rank 1 is at work, and may come
    calls = run.calls
    waiting = calls[(calls["rank"] == 0) & (calls["state"] == State.WAITING)]
    assert run.groups[int(waiting["group"][0])].ranks == (0, 1)


def circle(*names: str) -> str:
    """Of two ranks, in calls of these names."""
    calls = [call(rank, name) for rank, name in enumerate(names)]
    return str(WaitCircle(((calls[0], (1,)), (calls[1], (0,)))))


def test_a_circle_tells_the_names_of_what_does_not_meet() -> None:
    assert circle("loss.0", "loss.1") == (
        "Ranks {0-1} wait in a circle: rank 0 waits in all_reduce "
        "(all_reduce.loss.0) on horovod for rank 1; rank 1 waits in all_reduce "
        "(all_reduce.loss.1) on horovod for rank 0"
    )


def test_a_circle_tells_what_calls_without_a_name_meet() -> None:
    assert "the call of the same number" in circle("", "")


def test_a_root_keeps_its_rank_in_a_smaller_group() -> None:
    sent = {
        rank: Call(
            rank=rank,
            op="broadcast",
            group="horovod",
            names=("broadcast.x",),
            root=2,
            place=LINE,
        )
        for rank in (1, 2)
    }
    run = run_of([call(0, "", "join")], [sent[1]], [sent[2]])
    (row, _) = [n for n in range(len(run.calls)) if run.call(n).op == "broadcast"]
    moved = run.call(row)
    (group,) = [one for one in run.groups if one.name == moved.group]
    assert moved.root is not None
    assert group.ranks[moved.root] == 2


def test_join_waits_for_those_who_do_not_join() -> None:
    over: list[Event] = [call(1, "g"), Ended(rank=1, status=0)]
    run = run_of([call(0, "g"), call(0, "", "join", State.WAITING)], over)
    assert set(standstill(run).waits) == {0}


@given(
    handle=st.integers(1, 2**31 - 1),
    use=st.integers(1, 2**23 - 1),
    joins=st.integers(0, 2**9 - 1),
)
def test_what_is_packed_is_a_positive_number(handle: int, use: int, joins: int) -> None:
    ordinal = packed(handle, use, joins)
    assert 0 < ordinal < 2**63
    assert np.int64(ordinal) == ordinal


def test_uses_of_a_name_are_counted_since_the_last_join() -> None:
    counter = NameCounter()
    uses = [
        counter.numbered("horovod", op, name) >> USE_SHIFT & USE_MASK
        for op, name in [
            *[("all_reduce", "x"), ("all_gather", "x"), ("all_reduce", "x")],
            *[("all_reduce", ""), ("join", ""), ("all_reduce", "x")],
        ]
    ]
    assert uses == [1, 1, 2, 1, 1, 1]
