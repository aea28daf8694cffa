"""Alignment: which calls met, against a slow search for the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdoctor.analysis.collectives import alignment as module
from distdoctor.analysis.collectives.alignment import alignments
from distdoctor.model.drawing import sketch
from distdoctor.model.events import WORLD, Call, Event, State, Tensor
from distdoctor.model.operations import NOT_SEEN
from distdoctor.model.run import Run

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


# --- the slow search ------------------------------------------------------------------


@dataclass(frozen=True)
class Met:
    """The calls of one number on one group."""

    ordinal: int
    calls: Mapping[int, Call]
    absent: tuple[int, ...]
    alike: bool


def meetings_of(run: Run, group: str, members: Sequence[int]) -> list[Met]:
    """What met on a group: every pair of calls is looked at."""
    of_rank = {
        rank: {
            event.ordinal: event
            for event in run.events(rank)
            if isinstance(event, Call) and event.group == group and event.ordinal
        }
        for rank in members
        if rank in run.seen
    }
    # Before the latest first call left, somebody's records fell out of the ring.
    first = max((min(calls) for calls in of_rank.values() if calls), default=1)
    met = []
    for ordinal in sorted({n for calls in of_rank.values() for n in calls}):
        here = {r: calls[ordinal] for r, calls in of_rank.items() if ordinal in calls}
        if ordinal >= first:
            absent = tuple(rank for rank in members if rank not in here)
            alike = all(can_meet(a, b) for a in here.values() for b in here.values())
            met.append(Met(ordinal, here, absent, alike))
    return met


def can_meet(a: Call, b: Call) -> bool:
    return (a.op, [t.numel for t in a.tensors]) == (b.op, [t.numel for t in b.tensors])


# --- runs -----------------------------------------------------------------------------


@st.composite
def runs(choose: st.DrawFn) -> Run:
    """Ranks that mostly make the same calls; some lost their first ones."""
    world_size = choose(st.integers(2, 5))
    members = {WORLD: list(range(world_size))}
    for name in ("tp", "pp")[: choose(st.integers(0, 2))]:
        ranks = st.lists(st.integers(0, world_size - 1), min_size=1, unique=True)
        members[name] = choose(ranks)
    usual = choose(st.lists(words(list(members)), max_size=6))
    hidden = choose(st.sets(st.integers(0, world_size - 1), max_size=world_size - 1))
    events: dict[int, list[Event]] = {}
    for rank in set(range(world_size)) - hidden:
        made = choose(st.just(usual) | st.lists(words(list(members)), max_size=6))
        made = made[: choose(st.integers(0, 6))] if choose(st.booleans()) else made
        lost = choose(st.sampled_from([0, 0, 0, 1, 2]))
        events[rank] = [*calls_of(rank, made, members)[lost:]]
    return Run.of_events(events, dict.fromkeys(hidden, "hidden"), members)


def words(groups: list[str]) -> st.SearchStrategy[tuple[str, str, int]]:
    ops = st.sampled_from(["all_reduce", "all_reduce", "barrier", "send"])
    return st.tuples(ops, st.sampled_from(groups), st.integers(1, 2))


def calls_of(
    rank: int, made: list[tuple[str, str, int]], members: Mapping[str, Sequence[int]]
) -> list[Call]:
    ordinals = dict.fromkeys(members, 0)
    calls = []
    for op, group, size in made:
        if rank in members[group]:
            ordinals[group] += op != "send"
            calls.append(
                Call(
                    rank=rank,
                    op=op,
                    group=group,
                    ordinal=0 if op == "send" else ordinals[group],
                    tensors=() if op == "barrier" else (Tensor((size,)),),
                    state=State.DONE,
                )
            )
    return calls


# --- properties -----------------------------------------------------------------------


@unhurried
@given(runs())
def test_what_met_is_what_a_slow_search_finds(run: Run) -> None:
    found = {
        one.group.name: [
            Met(
                meeting.ordinal,
                {rank: run.call(row) for rank, row in meeting.rows.items()},
                meeting.absent,
                bool(one.equal[n]),
            )
            for n in range(len(one.ordinals))
            for meeting in [one.meeting(run, n)]
        ]
        for one in alignments(run)
    }
    expected = {
        group.name: meetings_of(run, group.name, group.ranks)
        for group in run.groups
        if len(group.ranks) > 1
    }
    assert found == {name: met for name, met in expected.items() if met}


@unhurried
@given(runs())
def test_the_first_fault_is_the_first_meeting_that_is_not_whole(run: Run) -> None:
    for one in alignments(run):
        members = set(one.group.ranks)
        faults = [
            met.ordinal
            for met in meetings_of(run, one.group.name, one.group.ranks)
            if not met.alike or set(met.calls) < members & set(run.seen)
        ]
        fault = one.first_fault(run)
        assert (fault.ordinal if fault else None) == (faults[0] if faults else None)


@unhurried
@given(runs(), st.integers(1, 5), st.data())
def test_what_is_compared_does_not_depend_on_how_much_is_at_once(
    run: Run, at_once: int, choose: st.DataObject
) -> None:
    calls = run.calls.copy()
    for row in range(len(calls)):
        if choose.draw(st.sampled_from([False, False, True])):
            calls["signature"][row] = NOT_SEEN
    run = replace(run, calls=calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        found = alignments(run)
    for one in found:
        for n, meeting in enumerate(one.meetings(run, np.arange(len(one.ordinals)))):
            signatures = {row: calls["signature"][row] for row in meeting.rows.values()}
            whole = [row for row, each in signatures.items() if each != NOT_SEEN]
            assert one.first[n] == max(whole or signatures)
            assert one.equal[n] == (len({signatures[row] for row in whole}) <= 1)
            assert one.counts[n] == len(signatures)


# --- examples -------------------------------------------------------------------------


def test_calls_meet_by_their_number_and_not_by_their_line() -> None:
    run = sketch("""
        rank 0 | all_reduce(4)@a.py:1  all_reduce(4)@a.py:2
        rank 1 | all_reduce(4)@a.py:2  all_reduce(4)@a.py:1
    """)
    (alignment,) = alignments(run)
    assert alignment.equal.tolist() == [True, True]
    assert alignment.first_fault(run) is None


def test_a_group_of_one_meets_nobody() -> None:
    assert alignments(sketch("rank 0 | barrier/own\nrank 1 | .")) == []


def test_messages_are_not_aligned() -> None:
    run = sketch("rank 0 | send(4,peer=1)...\nrank 1 | recv(4,peer=0)...")
    assert alignments(run) == []


def test_a_refused_call_is_at_the_meeting() -> None:
    run = sketch("rank 0 | all_reduce(4)...\nrank 1 | barrier!")
    (alignment,) = alignments(run)
    fault = alignment.first_fault(run)
    assert fault is not None
    assert sorted(fault.rows) == [0, 1]


def test_a_rank_nobody_saw_is_absent_and_no_fault() -> None:
    run = sketch("group world | 0 1 2\nrank 0 | barrier\nrank 1 | barrier\nrank 2 | ?")
    (alignment,) = alignments(run)
    assert alignment.meeting(run, 0).absent == (2,)
    assert alignment.first_fault(run) is None


def test_members_are_told_by_group_and_not_by_their_order() -> None:
    run = sketch("""
        group pp | 2 0
        rank 0 | barrier/pp
        rank 1 | .
        rank 2 | barrier/pp  barrier/pp...
    """)
    (alignment,) = alignments(run)
    fault = alignment.first_fault(run)
    assert fault is not None
    assert (fault.ordinal, fault.absent) == (2, (0,))


def test_what_fell_out_of_one_ring_is_compared_on_none() -> None:
    run = Run.of_events(
        {
            0: [Call(rank=0, op="barrier", ordinal=n) for n in range(1, 6)],
            1: [Call(rank=1, op="barrier", ordinal=n) for n in range(4, 6)],
        }
    )
    (alignment,) = alignments(run)
    assert alignment.ordinals.tolist() == [4, 5]
    assert alignment.first_fault(run) is None


@pytest.mark.parametrize("ranks", [2, 100])
def test_alignment_is_worked_out_once(ranks: int) -> None:
    run = sketch("\n".join(f"rank {rank} | barrier" for rank in range(ranks)))
    assert alignments(run) is alignments(run)
