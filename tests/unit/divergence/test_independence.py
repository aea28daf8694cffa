"""Several faults in one run: each once, the first first, and no consequences."""

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import finding, sentence
from distdoctor.model.drawing import sketch


def faults(drawing: str) -> list[tuple[Cause, str, tuple[int, ...]]]:
    return [
        (found.why, found.group.name if found.group else "", found.culprits)
        for found in divergences(sketch(drawing))
    ]


def test_what_a_stray_rank_does_next_is_a_consequence() -> None:
    assert faults("""
        group a | 0 1 2
        group b | 2 3 4
        rank 0 | all_reduce(4)/a@t.py:7!
        rank 1 | all_reduce(4)/a@t.py:7!
        rank 2 | all_reduce(5)/a@t.py:7&  all_reduce(6)/b@t.py:9...
        rank 3 | all_reduce(7)/b@t.py:9!
        rank 4 | all_reduce(7)/b@t.py:9!
    """) == [(Cause.NUMEL, "a", (2,))]


def test_on_a_rank_the_earlier_fault_comes_first() -> None:
    """Rank 2 takes part in both, and is at fault in none."""
    drawing = """
        group b | 2 3 4
        group a | 0 1 2
        rank 0 | all_reduce(5)/a@t.py:7!
        rank 1 | all_reduce(4)/a@t.py:7&
        rank 2 | all_reduce(4)/a@t.py:7&  all_reduce(6)/b@t.py:9...
        rank 3 | all_reduce(6)/b@t.py:9...
        rank 4 | all_reduce(7)/b@t.py:9!
    """
    assert faults(drawing) == [(Cause.NUMEL, "a", (0,)), (Cause.NUMEL, "b", (4,))]


def test_an_exception_of_its_own_is_no_consequence() -> None:
    assert {
        culprits
        for _, _, culprits in faults("""
        group a | 0 1 2
        group b | 2 3 4
        rank 0 | all_reduce(4)/a@t.py:7!
        rank 1 | all_reduce(4)/a@t.py:7!
        rank 2 | all_reduce(5)/a@t.py:7&  fail=KeyError@t.py:8  exit=1
        rank 3 | all_reduce(7)/b@t.py:9...
        rank 4 | all_reduce(7)/b@t.py:9...
    """)
    } == {(2,)}


def two_circles(*lines: tuple[int, int]) -> str:
    """Two pairs of ranks, each with a collective on two groups in turned order."""
    drawing = []
    for number, (first, second) in enumerate(lines):
        one, other = 2 * number, 2 * number + 1
        ahead, behind = f"ahead{number}", f"behind{number}"
        drawing += [
            f"group {ahead} | {one} {other}",
            f"group {behind} | {one} {other}",
            f"rank {one} | all_reduce(4)/{ahead}@t.py:{first}...",
            f"rank {other} | all_reduce(4)/{behind}@t.py:{second}...",
        ]
    return "\n".join(drawing)


def test_circles_that_touch_nothing_else_are_told_each_once() -> None:
    found = divergences(sketch(two_circles((7, 9), (17, 19))))
    assert [(fault.why, set(fault.calls)) for fault in found] == [
        (Cause.CIRCLE, {0, 1}),
        (Cause.CIRCLE, {2, 3}),
    ]
    assert all(not fault.victims for fault in found)


def test_circles_of_the_same_lines_are_one() -> None:
    (found,) = divergences(sketch(two_circles((7, 9), (7, 9))))
    assert set(found.calls) == {0, 1, 2, 3}
    assert sentence(found).endswith("The same 1 more time, with ranks {2-3}.")


def test_after_a_refused_call_it_is_told_what_came_next() -> None:
    (found,) = divergences(
        sketch("""
            rank 0 | all_reduce(5)@t.py:7&  barrier@t.py:9...
            rank 1 | all_reduce(4)@t.py:7!
            rank 2 | all_reduce(4)@t.py:7!
        """)
    )
    assert finding(found).details["next"] == [
        {"ranks": [0], "call": "barrier", "at": "t.py:9"}
    ]
