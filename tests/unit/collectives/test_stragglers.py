"""Lateness: what a rank's coming late costs the others."""

import numpy as np

from distdoctor.analysis.collectives.stragglers import late
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run

MS = 1_000_000

MEETINGS = 30


def run_of(call: str, late_ms: int, waited_ms: int = 0) -> Run:
    """A meeting each 200 ms, to which rank 1 comes late; all wait a while later."""
    calls = " ".join([call] * MEETINGS)
    run = sketch(f"rank 0 | {calls} exit=0\nrank 1 | {calls} exit=0")
    for rank in (0, 1):
        mine = run.calls["rank"] == rank
        entered = (200 * np.arange(1, MEETINGS + 1) + rank * late_ms) * MS
        run.calls["enter_ns"][mine] = entered
        if waited_ms:
            run.calls["wait_ns"][mine] = entered + waited_ms * MS
    return run


def test_a_rank_that_others_wait_for_is_late() -> None:
    (found,) = late(run_of("all_reduce(4)", late_ms=150))
    assert found.culprits == (1,)
    assert "by 150 ms in the median; rank 0 waited for it during 78%" in sentence(found)


def test_whoever_waits_for_asynchronous_work_when_all_have_come_loses_nothing() -> None:
    assert not list(late(run_of("all_reduce(4)&", late_ms=150, waited_ms=160)))


def test_whoever_never_waits_loses_nothing() -> None:
    assert not list(late(run_of("all_reduce(4)&", late_ms=150)))


def test_of_asynchronous_work_the_wait_counts() -> None:
    (found,) = late(run_of("all_reduce(4)&", late_ms=150, waited_ms=50))
    assert found.culprits == (1,)
    assert "by 100 ms in the median" in sentence(found)


def test_time_counts_once_however_many_calls_were_issued_in_it() -> None:
    """Four buckets are issued at once, and a rank comes to all of them 60 ms late."""
    run = run_of("all_reduce(4)", late_ms=60)
    run.calls["enter_ns"] -= (run.calls["ordinal"] - 1) % 4 * 200 * MS
    assert not list(late(run))
