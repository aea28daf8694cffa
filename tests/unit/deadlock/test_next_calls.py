"""What a rank that stands still would have done next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.analysis.deadlock.next_calls import next_calls
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run


def calls_after(run: Run, rank: int = 0) -> list[str]:
    return [str(run.call(row)) for row in next_calls(run, rank)]


ROUND = "all_reduce(4)@t.py:3  broadcast(2,root=0)@t.py:4  barrier@t.py:5  "


@pytest.mark.parametrize(
    ("calls", "following"),
    [
        (ROUND + "all_reduce(4)@t.py:3!", ["broadcast(2 float32, root=0)", "barrier"]),
        (  # out of turn
            ROUND * 2 + "barrier@t.py:5...",
            ["all_reduce(4 float32)", "broadcast(2 float32, root=0)"],
        ),
        (ROUND + "all_reduce(4)@t.py:3", []),  # it does not stand still
        (ROUND + "all_reduce(4)@t.py:9!", []),  # it never was here
        (ROUND + "all_reduce(8)@t.py:3!", []),
        ("barrier!", []),  # no line is known
        (".", []),
        (  # what came before tells which of two occasions it is
            "all_reduce(1)@t.py:1  barrier@t.py:9  all_reduce(2)@t.py:2  "
            "broadcast(1,root=0)@t.py:3  barrier@t.py:9  all_reduce(3)@t.py:4  "
            "all_reduce(1)@t.py:1  barrier@t.py:9...",
            ["all_reduce(2 float32)", "broadcast(1 float32, root=0)"],
        ),
    ],
)
def test_what_came_next_the_time_before(calls: str, following: list[str]) -> None:
    run = sketch(f"rank 0 | {calls}\nrank 1 | barrier")
    assert [text.replace(", op=sum", "") for text in calls_after(run)] == following


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=6),
    st.integers(2, 4),
    st.integers(0, 5),
)
def test_a_steady_round_is_foretold(round_: list[int], times: int, at: int) -> None:
    at %= len(round_)
    sizes = round_ * times + round_[: at + 1]
    words = [f"broadcast({n},root=0)@t.py:{n}" for n in sizes]
    run = sketch(f"rank 0 | {'  '.join(words)}!\nrank 1 | barrier")
    next_one = (round_ * 2)[at + 1]
    assert calls_after(run)[0] == f"broadcast({next_one} float32, root=0)"
