"""What was used before it was waited for: what is told, and who is not accused."""

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.collectives.early_use import raced
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty, Role


def early(drawing: str) -> list[Divergence]:
    return [one for one in divergences(sketch(drawing)) if one.why is Cause.EARLY]


def test_the_line_of_the_call_and_of_the_wait_are_named() -> None:
    (found,) = early(
        """
        rank 0 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  exit=0
        rank 1 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  exit=0
        """
    )
    assert [location.place.line for location in found.elsewhere] == [7, 9]
    assert found.culprits == ()
    assert found.elsewhere[0].role is Role.PARTY


def test_a_rank_that_alone_touches_is_at_fault() -> None:
    (found,) = early(
        """
        rank 0 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  exit=0
        rank 1 | all_reduce(4)@t.py:7&  exit=0
        """
    )
    assert found.culprits == (0,)


def test_one_line_is_told_once_however_often_it_runs() -> None:
    (found,) = early(
        """
        rank 0 | all_reduce(4)@t.py:7&  stepped=t.py:7@t.py:9  stepped=t.py:7@t.py:9
        rank 1 | all_reduce(4)@t.py:7&  .
        """
    )
    assert "2 times" in sentence(found)


def test_what_was_touched_hides_what_was_never_waited_for() -> None:
    """It is the same handle, mostly."""
    found = early(
        """
        rank 0 | all_reduce(4)@t.py:7&'...issued  stepped=t.py:7@t.py:9  exit=0
        rank 1 | all_reduce(4)@t.py:7&'...issued  stepped=t.py:7@t.py:9  exit=0
        """
    )
    assert len(found) == 1


@pytest.mark.parametrize("end", ["exit=143!!", "fail=KeyError  exit=1", "exit=1", "."])
def test_a_rank_that_was_cut_off_may_have_meant_to_wait(end: str) -> None:
    assert not early(
        f"""
        rank 0 | all_reduce(4)@t.py:7&'...issued  {end}
        rank 1 | all_reduce(4)@t.py:7&'...issued  {end}
        """
    )


def test_a_receive_that_nobody_waits_for_is_told() -> None:
    (found,) = early(
        """
        rank 0 | send(4,peer=1)@t.py:7'            leave  exit=0
        rank 1 | recv(4,peer=0)@t.py:9'...issued   leave  exit=0
        """
    )
    assert found.culprits == (1,)


def test_a_fault_that_explains_the_end_comes_first() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  barrier@t.py:9...
        rank 1 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  all_reduce(4)@t.py:7!
        """
    )
    assert Cause.EARLY not in {one.why for one in divergences(run)}


LEAVES = """
    rank 0 | all_reduce(4)@t.py:5  {flag}  all_reduce(4)@t.py:5...
    rank 1 | all_reduce(4)@t.py:5  {flag}  barrier@t.py:9!
"""


def test_who_leaves_right_behind_what_nobody_waits_for_read_it_too_early() -> None:
    (found,) = early(LEAVES.format(flag="all_reduce(1)@t.py:7&'...issued"))
    assert (found.culprits, found.victims) == ((), (0, 1))
    assert found.elsewhere[0].place.line == 7
    assert found.certainty is Certainty.LIKELY


@pytest.mark.parametrize(
    "flag",
    [
        "all_reduce(1)@t.py:7",
        "all_reduce(1)@t.py:7&",
        "all_reduce(1)@t.py:7&'...issued  all_reduce(4)@t.py:8",
        "all_reduce(1)@t.py:7&  all_reduce(1)@t.py:7&'...issued",
    ],
    ids=["waits", "keeps the handle", "another call between", "waits at times"],
)
def test_who_leaves_otherwise_is_told_as_it_was(flag: str) -> None:
    assert not early(LEAVES.format(flag=flag))


def of_buckets(*waited: tuple[str, ...]) -> str:
    """Two ranks that send two buckets in each of three steps."""
    steps = "  ".join(
        f"all_reduce(4)@t.py:7&{first}  all_reduce(4)@t.py:7&{last}  "
        f"gradients(step={step})"
        for step, (first, last) in enumerate(zip(*waited, strict=True), start=1)
    )
    return f"rank 0 | {steps}  exit=0\nrank 1 | {steps}  exit=0"


def test_a_last_bucket_that_is_never_waited_for_is_told() -> None:
    (found,) = early(of_buckets(("", "", ""), ("'", "'", "'")))
    assert "3 of 6 times" in sentence(found)


def test_who_waits_for_the_last_bucket_alone_is_not_accused() -> None:
    assert not early(of_buckets(("'", "'", "'"), ("", "", "")))


def test_ranks_whose_calls_nobody_waits_for_are_racing() -> None:
    lone = of_buckets(("'", "'", "'"), ("'", "'", "'"))
    assert raced(sketch(lone), (0, 1))
    assert not raced(sketch(lone.replace("(4)", "(-)")), (0, 1))


def test_the_caller_whose_calls_nobody_waits_for_is_named_first() -> None:
    lone = of_buckets(("", "", ""), ("'", "'", "'"))
    lone = lone.replace("t.py:7&'", "t.py:7<u.py:4<u.py:9&'")
    lone = lone.replace("t.py:7& ", "t.py:7<u.py:3<u.py:9& ")
    (found,) = early(lone)
    assert [str(one.place) for one in found.elsewhere] == ["u.py:4", "t.py:7"]
    (found,) = early(lone.replace("u.py:3", "u.py:4"))
    assert [str(one.place) for one in found.elsewhere] == ["t.py:7"]
