"""Where ranks stand, and since when."""

import pytest

from distdoctor.analysis.deadlock.standing_ranks import standing
from distdoctor.model.drawing import sketch


@pytest.mark.parametrize(
    ("drawing", "stands"),
    [
        (  # who stands at the same call is told together, by the first
            """
            rank 0 | barrier+10ms  all_reduce(4)@t.py:7...+2050ms
            rank 1 | barrier+12ms  all_reduce(4)@t.py:7...+2010ms
            rank 2 | barrier+11ms  broadcast(4)@t.py:9...+1010ms
            """,
            [((2,), "broadcast", 1.0), ((0, 1), "all_reduce", 2.0)],
        ),
        (  # of a rank's threads it is the one that waits for the longest
            """
            rank 0 | barrier+10ms  barrier...%1+810ms  barrier...%2+510ms
            rank 1 | barrier+10ms  barrier!+910ms
            """,
            [((0,), "barrier", 0.5), ((1,), "barrier", 0.9)],
        ),
        (  # nobody stands
            """
            rank 0 | barrier+10ms
            rank 1 | barrier^+12ms
            """,
            [],
        ),
        (  # no times are known
            """
            rank 0 | barrier...
            rank 1 | .
            """,
            [],
        ),
    ],
)
def test_who_stands_where_since_when(
    drawing: str, stands: list[tuple[tuple[int, ...], str, float]]
) -> None:
    found = standing(sketch(drawing), range(3))
    assert [(one.ranks, one.call.op, one.since_s) for one in found] == stands


def test_only_the_ranks_in_question_are_told() -> None:
    run = sketch("""
        rank 0 | barrier...+10ms
        rank 1 | barrier...+20ms
    """)
    assert [one.ranks for one in standing(run, [1])] == [(1,)]
