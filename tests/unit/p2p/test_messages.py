"""Messages: which send met which receive, and whether the two fit."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.p2p.messages import messages, peer_of
from distdoctor.analysis.p2p.p2p_mismatch import p2p_mismatches
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Call, State, Tensor
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run

RANKS = 3

CALLS = st.builds(
    lambda op, peer, tag: (op, peer, tag),
    st.sampled_from(["send", "recv"]),
    st.integers(0, RANKS - 1),
    st.integers(0, 1),
)


def run_of(programs: list[list[tuple[str, int, int]]]) -> Run:
    """A run whose rank i makes the calls of program i."""
    return Run.of_events(
        {
            rank: [
                Call(rank=rank, op=op, peer=peer, tag=tag, tensors=(Tensor((4,)),))
                for op, peer, tag in program
            ]
            for rank, program in enumerate(programs)
        },
        members={"world": range(RANKS)},
    )


@given(st.lists(st.lists(CALLS, max_size=8), min_size=RANKS, max_size=RANKS))
def test_the_nth_send_meets_the_nth_receive(
    programs: list[list[tuple[str, int, int]]],
) -> None:
    run = run_of(programs)
    found = messages(run)
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    taken: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    row = 0
    for rank, program in enumerate(programs):
        for op, peer, tag in program:
            if op == "send":
                sent[rank, peer, tag].append(row)
            else:
                taken[peer, rank, tag].append(row)
            row += 1
    channels = {*sent, *taken}
    pairs = {
        pair
        for channel in channels
        for pair in zip(sent[channel], taken[channel], strict=False)
    }
    matched = zip(found.sends.tolist(), found.receives.tolist(), strict=True)
    assert set(matched) == pairs
    alone = {
        side[n]: n + 1
        for channel in channels
        for side, other in (
            (sent[channel], taken[channel]),
            (taken[channel], sent[channel]),
        )
        for n in range(len(other), len(side))
    }
    assert found.number == alone
    assert sorted([*found.unreceived, *found.unsent]) == sorted(alone)


def test_a_peer_is_counted_in_its_group() -> None:
    run = sketch("""
        group b | 1 2
        rank 0 | .
        rank 1 | send(4,peer=1)/b  send(4,peer=9)/b
        rank 2 | recv_any(4)/b
    """)
    assert [peer_of(run, row) for row in range(3)] == [2, None, None]


@pytest.mark.parametrize(
    "drawing",
    [
        # part of rank 0 was not seen
        "rank 0 | ?\nrank 1 | recv(8,peer=0)",
        # never reached the backend
        "rank 0 | send(8,peer=1)!  \nrank 1 | recv(4,peer=0)...",
        # a message to oneself fits
        "rank 0 | send(8,peer=0)&  recv(8,peer=0)\nrank 1 | .",
        # the sender is held up by rank 2 and may yet send the other tag
        """rank 0 | send(4,peer=1,tag=1)&...issued  send(4,peer=2)...
           rank 1 | recv(4,peer=0,tag=2)...
           rank 2 | recv(4,peer=1)...""",
        # one of any source that fits one of two
        """rank 0 | send(4,peer=2)
           rank 1 | send(8,peer=2)
           rank 2 | recv_any(8)  recv_any(4)""",
        # of any source, for a message that may be yet to come
        """rank 0 | send(4,peer=1)&...issued
           rank 1 | recv(4,peer=0)  recv_any(6)...""",
    ],
)
def test_nothing_is_said_of_what_may_fit(drawing: str) -> None:
    lines = "\n".join(line.strip() for line in drawing.splitlines())
    assert p2p_mismatches(sketch(lines)) == []


def test_of_three_the_one_who_differs_is_at_fault() -> None:
    (found,) = divergences(
        sketch("""
        rank 0 | send(4,peer=1)@t.py:7  send(4,peer=2)@t.py:7
        rank 1 | recv(4,peer=0)@t.py:9
        rank 2 | recv(6,peer=0)@t.py:9
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.MISFIT, (2,), (0,))
    assert found.certainty is Certainty.PROVED


def test_between_two_neither_is_at_fault_and_the_death_is_its_consequence() -> None:
    (found,) = divergences(
        sketch("""
        rank 0 | send(8,peer=1)@t.py:7  all_reduce(1)^       fail=RuntimeError^  exit=1
        rank 1 | recv(4,peer=0)@t.py:9...  exit=134!
        """)
    )
    assert (found.why, found.culprits) == (Cause.MISFIT, ())
    assert sorted(found.calls) == [0, 1]


def test_same_bytes_of_another_dtype_may_be_meant() -> None:
    (found,) = p2p_mismatches(
        sketch("""
        rank 0 | send(4,peer=1)
        rank 1 | recv(4:int32,peer=0)
        """)
    )
    assert found.certainty is Certainty.LIKELY


def test_a_collective_fault_beside_a_misfit_is_told_too() -> None:
    found = divergences(
        sketch("""
        rank 0 | send(4,peer=1)  all_reduce(4)!
        rank 1 | recv(8,peer=0)  all_reduce(5)...
        """)
    )
    assert [each.why for each in found] == [Cause.MISFIT, Cause.NUMEL]


def test_one_finding_per_pair_of_lines() -> None:
    found = p2p_mismatches(
        sketch("""
        rank 0 | send(4,peer=1)@t.py:7  send(4,peer=1)@t.py:7
        rank 1 | recv(8,peer=0)@t.py:9  recv(8,peer=0)@t.py:9
        """)
    )
    assert len(found) == 1


def test_a_call_that_raised_at_once_is_no_message() -> None:
    run = run_of([[("send", 1, 0), ("send", 1, 0)], [("recv", 0, 0)], []])
    run.calls["enter_ns"] = 5
    run.calls["state"][0] = State.RAISED
    found = messages(run)
    assert (found.sends.tolist(), found.unreceived.tolist()) == ([1], [])
