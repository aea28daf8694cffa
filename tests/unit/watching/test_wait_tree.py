"""Who waits for whom, as lines: trees, chains, circles, and no more than fit."""

from hypothesis import given
from hypothesis import strategies as st

from distdoctor.watching.snapshot import (
    JobState,
    RankDoing,
    Snapshot,
    WatchedCall,
    WatchedJob,
    WatchedRank,
    WatchedWait,
    WatchProof,
)
from distdoctor.watching.wait_tree import wait_lines

CALL = WatchedCall(op="all_reduce", group="world", ordinal=5, place="t.py:3")
RECV = WatchedCall(op="recv", group="world", place="t.py:9")


def look(
    *waits: WatchedWait, ranks: int = 6, proof: WatchProof | None = None
) -> Snapshot:
    waiting = {rank for one in waits for rank in one.ranks}
    return Snapshot(
        job=WatchedJob(name="t.py", state=JobState.RUNNING, ranks=ranks),
        ranks=[
            WatchedRank(
                rank=rank,
                doing=RankDoing.WAITING if rank in waiting else RankDoing.OWN_CODE,
                since_s=3.0,
            )
            for rank in range(ranks)
        ],
        waits=list(waits),
        proof=proof,
    )


def test_a_chain_hangs_from_who_holds_it_up() -> None:
    seen = look(
        WatchedWait(ranks=[0, 1], call=CALL, on=[2], since_s=2.0),
        WatchedWait(ranks=[3], call=RECV, on=[0], since_s=1.0),
    )
    assert wait_lines(seen) == [
        "rank 2: in its own code for 3.0 s",
        "└─ ranks {0-1} wait in all_reduce (call 5 on world), t.py:3, 2.0 s now",
        "   └─ rank 3 waits in recv (on world), t.py:9, 1.0 s now",
    ]


def test_a_circle_begins_with_its_longest_wait() -> None:
    seen = look(
        WatchedWait(ranks=[0], call=RECV, on=[1]),
        WatchedWait(ranks=[1], call=RECV, on=[0]),
        proof=WatchProof(ranks=[0, 1]),
    )
    assert wait_lines(seen) == [
        "proved: ranks {0-1} can never go on",
        "rank 0 waits in recv (on world), t.py:9, for rank 1",
        "└─ rank 1 waits in recv (on world), t.py:9",
    ]


def test_who_is_gone_is_named_beside_a_proof() -> None:
    seen = look(proof=WatchProof(ranks=[0], gone=[1]))
    assert wait_lines(seen) == [
        "proved: rank 0 can never go on; rank 1 will make no further call"
    ]


def test_nothing_is_called_proved_without_a_proof() -> None:
    seen = look(WatchedWait(ranks=[0], call=CALL, on=[1, 2, 3, 4, 5]))
    assert "proved" not in "\n".join(wait_lines(seen))


NUMBERS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)


@given(
    waits=st.lists(
        st.builds(
            WatchedWait,
            ranks=NUMBERS,
            call=st.sampled_from([CALL, RECV]),
            on=st.lists(st.integers(0, 9), max_size=5, unique=True),
            any_of=st.booleans(),
            since_s=st.none() | st.floats(0, 100),
            unlike=st.just([]),
        ),
        max_size=8,
    ),
    most=st.integers(2, 20),
)
def test_each_wait_is_told_once_and_no_more_than_fits(
    waits: list[WatchedWait], most: int
) -> None:
    seen = look(*waits, ranks=10)
    assert len(wait_lines(seen, most)) <= most
    lines = wait_lines(seen, 1000)
    told = sum(" in all_reduce (" in line or " in recv (" in line for line in lines)
    assert told == len(waits)
