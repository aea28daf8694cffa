"""A run that was ended while nothing moved is not called well."""

from dataclasses import replace

import pytest
from drawn_backends import put_on

from distdoctor.analysis.deadlock.stalled import stalled
from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import Conclusion, conclude
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.run import Frame, Quiet, Run

WAITING = """
    rank 0 | start=2  barrier@t.py:3...%2
    rank 1 | start=2  barrier@t.py:3...%3
"""

ONE_ELSEWHERE = """
    rank 0 | start=2  barrier@t.py:3...
    rank 1 | start=2  .
"""

ALL_HAVE_LEFT = """
    rank 0 | start=2  barrier@t.py:3  leave@t.py:4
    rank 1 | start=2  barrier@t.py:3  leave@t.py:4  exit=0
"""

NOBODY_WAITS = """
    rank 0 | start=2  barrier@t.py:3
    rank 1 | start=2  barrier@t.py:3
"""


def ended(drawing: str, quiet: Quiet | None, stopped: str = "budget") -> Run:
    run = sketch(drawing)
    object.__setattr__(run, "quiet", quiet)
    object.__setattr__(run, "stopped", stopped)
    frame = Frame(Place("wait.py", 9, "wait_for_file"))
    object.__setattr__(run, "stacks", {0: [frame], 1: [frame]})
    return run


def concluded(run: Run) -> Conclusion:
    return conclude(run, examine(run, every_check()))


def why(run: Run) -> str:
    (gap,) = [g for g in concluded(run).gaps if "ever have gone on" in g.what]
    return gap.why


BOTH = frozenset({0, 1})


@pytest.mark.parametrize(
    ("drawing", "quiet", "verdict"),
    [
        (WAITING, Quiet(6, idle=BOTH), "unknown"),
        (WAITING, Quiet(3, idle=BOTH), "well"),
        (WAITING, Quiet(6), "well"),  # data are on their way
        (ONE_ELSEWHERE, Quiet(6, idle=BOTH), "well"),
        (ALL_HAVE_LEFT, Quiet(9), "well"),  # it is at work, as to save
        (ALL_HAVE_LEFT, Quiet(9, idle=frozenset({0})), "unknown"),
        (ONE_ELSEWHERE, Quiet(9, idle=BOTH), "unknown"),
        (ONE_ELSEWHERE, Quiet(9), "well"),  # rank 1 is at work
        (ONE_ELSEWHERE, Quiet(11), "unknown"),
        (ONE_ELSEWHERE, Quiet(21, longest_before=8), "well"),  # as it did before
        (NOBODY_WAITS, Quiet(100), "well"),  # both are at work
        (NOBODY_WAITS, Quiet(9, idle=BOTH), "unknown"),
        (NOBODY_WAITS, Quiet(9, idle=frozenset({0})), "well"),
        (NOBODY_WAITS, None, "well"),
    ],
)
def test_a_run_that_is_ended_while_nothing_moves_is_not_well(
    drawing: str, quiet: Quiet | None, verdict: str
) -> None:
    assert concluded(ended(drawing, quiet)).verdict == verdict


def test_it_is_told_where_the_ranks_stood() -> None:
    assert "ranks {0-1} in wait_for_file at wait.py:9" in why(
        ended(NOBODY_WAITS, Quiet(9, idle=BOTH))
    )
    reason = why(ended(ONE_ELSEWHERE, Quiet(30)))
    assert "30 s" in reason
    assert "rank 1 in wait_for_file at wait.py:9" in reason


def test_processes_that_never_became_ranks_are_told_by_their_lines() -> None:
    run = Run(world_size=0, stopped="budget")
    frame = Frame(Place("wait.py", 9, "wait_for_file"))
    object.__setattr__(run, "stacks", {-1: [frame], -2: [frame]})
    (gap,) = concluded(run).gaps
    assert "in wait_for_file at wait.py:9 (2 processes)" in gap.why


AHEAD = """
    rank 0 | start=2  all_reduce(4)@t.py:3  all_reduce(4)@t.py:3
    rank 1 | start=2  all_reduce(4)@t.py:3
"""


AS_RECORDED = Quiet(33.9, longest_before=5.4, idle=frozenset({1}))
"""On an H100 with NCCL 2.28.9."""


def on(backend: str, quiet: Quiet = AS_RECORDED) -> Run:
    """A run that stood, by default for half a minute."""
    run = ended(AHEAD, quiet)
    put_on(backend, run)
    return run


def test_who_is_ahead_on_nccl_may_wait_for_its_gpu() -> None:
    assert concluded(on("nccl")).verdict == "unknown"
    assert "ranks {0-1} in wait_for_file at wait.py:9" in why(on("nccl"))
    assert concluded(on("gloo")).verdict == "well"


def test_a_rank_that_waits_for_its_gpu_is_at_work_on_nothing() -> None:
    """As on an H200: it asks the GPU again and again, and the other is in no call."""
    quiet = Quiet(9, longest_before=8, idle=frozenset({1}))
    assert concluded(on("nccl", quiet)).verdict == "unknown"
    assert concluded(on("gloo", quiet)).verdict == "well"
    at_work = replace(quiet, idle=frozenset())
    assert concluded(on("nccl", at_work)).verdict == "well"


def test_a_group_of_which_no_member_is_known_holds_nobody_up() -> None:
    run = ended(ONE_ELSEWHERE, Quiet(9, idle=BOTH))
    groups = tuple(replace(group, ranks=()) for group in run.groups)
    object.__setattr__(run, "groups", groups)
    assert stalled(run)
