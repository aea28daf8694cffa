"""Messages with one side only: who is at fault, and what is not accused."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty


def cause_of(drawing: str) -> tuple[Cause, tuple[int, ...]]:
    (found,) = divergences(sketch(drawing))
    return found.why, found.culprits


def test_a_rank_that_did_less_than_its_like_is_at_fault() -> None:
    (found,) = divergences(
        sketch("""
        rank 0 | recv(4,peer=1)@t:9  recv(4,peer=2)@t:9...  .
        rank 1 | send(4,peer=0)@t:5  broadcast(4)@t:11...   .
        rank 2 | broadcast(4)@t:11...
        """)
    )
    assert (found.why, found.culprits) == (Cause.UNANSWERED, (2,))
    assert (found.victims, found.certainty) == ((0, 1), Certainty.PROVED)


def test_a_rank_that_waits_for_one_more_than_all_others_gave_is_at_fault() -> None:
    assert cause_of("""
        rank 0 | recv(4,peer=1)@t:9  recv(4,peer=2)@t:9  recv(4,peer=1)@t:9...
        rank 1 | send(4,peer=0)@t:5  barrier@t:11...     .
        rank 2 | send(4,peer=0)@t:5  barrier@t:11...     .
    """) == (Cause.UNANSWERED, (0,))


def test_a_rank_that_leaves_its_habit_is_at_fault() -> None:
    assert cause_of("""
        rank 0 | recv(peer=1)@t:5  barrier@t:6  recv(peer=1)@t:5  recv(peer=1)@t:7...
        rank 1 | send(peer=0)@t:9  barrier@t:6  send(peer=0)@t:9  barrier@t:6...
    """) == (Cause.UNANSWERED, (0,))


def test_between_two_the_one_that_went_elsewhere_may_be_at_fault() -> None:
    (found,) = divergences(
        sketch("""
        rank 0 | send(4,peer=1)@t:5...
        rank 1 | barrier@t:9...
        """)
    )
    assert (found.why, found.culprits) == (Cause.UNANSWERED, (1,))
    assert found.certainty is Certainty.LIKELY


def test_who_waits_for_one_that_waits_in_vain_is_a_victim() -> None:
    (found,) = divergences(
        sketch("""
        rank 0 | leave@t:30  exit=0
        rank 1 | recv(4,peer=0)@t:5...
        rank 2 | recv(4,peer=1)@t:5...
        """)
    )
    assert (found.culprits, found.victims) == ((0,), (1, 2))
    assert [location.place.line for location in found.elsewhere] == [30]


def test_a_rank_that_died_of_waiting_is_a_victim() -> None:
    assert cause_of("""
        rank 0 | send(4,peer=1)  leave  exit=0
        rank 1 | recv(4,peer=0)  recv(4,peer=0)^  fail=RuntimeError^  exit=1
    """) == (Cause.UNANSWERED, (0,))


def test_a_rank_whose_handle_found_the_connection_closed_is_a_victim_too() -> None:
    drawing = """
        rank 0 | send(4,peer=1)&...issued  send(4,peer=1)&...issued  {how}  exit=1
        rank 1 | exit=0
    """
    assert cause_of(drawing.format(how="fail=RuntimeError^")) == (
        Cause.UNANSWERED,
        (1,),
    )
    (found,) = divergences(sketch(drawing.format(how="fail=RuntimeError^")))
    assert "Rank 0 waited in vain in send for rank 1" in sentence(found)


def test_a_death_goes_before_the_message_it_left_out() -> None:
    assert cause_of("""
        rank 0 | fail=KeyError@t:3  exit=1
        rank 1 | recv(4,peer=0)@t:5...
    """) == (Cause.DIED, (0,))


def test_a_circle_of_messages_whose_ranks_all_keep_their_habit_is_an_order() -> None:
    assert cause_of("""
        rank 0 | send(4,peer=1)@t:5...
        rank 1 | send(4,peer=0)@t:5...
    """) == (Cause.MESSAGES, ())


@pytest.mark.parametrize(
    "drawing",
    [
        "rank 0 | send(4,peer=1)&...issued  exit=1\nrank 1 | exit=0",
        "rank 0 | send(4,peer=1)&...issued  exit=0\nrank 1 | exit=1",
        "rank 0 | send(4,peer=1)&...issued  exit=0\nrank 1 | .",
        "rank 0 | send(4,peer=1)^  exit=0\nrank 1 | exit=0",
        "rank 0 | send(4,peer=1)&...issued  exit=0\nrank 1 | recv_any(4)  exit=0",
        "rank 0 | recv(4,peer=1)&...issued  exit=0\nrank 1 | exit=0",
    ],
)
def test_what_may_have_been_received_or_meant_is_not_left_over(drawing: str) -> None:
    assert divergences(sketch(drawing)) == []


def test_a_job_cut_short_has_nothing_left_over() -> None:
    run = sketch("rank 0 | send(4,peer=1)&...issued  exit=0\nrank 1 | exit=0")
    assert [each.why for each in divergences(run)] == [Cause.LEFT_OVER]
    assert divergences(replace(run, stopped="steps")) == []


def test_what_is_left_over_is_a_warning_and_the_job_well() -> None:
    run = sketch("""
        rank 0 | start=2  send(4,peer=1)@t:5&...issued  exit=0
        rank 1 | start=2  .                             exit=0
    """)
    assert conclude(run, examine(run, every_check())).verdict == "well"


STAGES = """
def exchange(peer):
    send(peer)
def train(rank):
    {guard}
    for step in range(9):
        exchange(rank + 1)
        all_reduce(norm)
train(get_rank())
barrier()
"""


def of_stages(guard: str, third: str) -> Divergence:
    """Three stages: two wait in `exchange`, and the third is at the barrier."""
    drawing = f"""
        rank 0 | send(4,peer=1)@t.py:2<t.py:6<t.py:8...
        rank 1 | recv(4,peer=0)@t.py:2<t.py:6<t.py:8...
        rank 2 | {third}  barrier@t.py:9...
    """
    drawing = drawing.replace("recv(4,peer=0)", "send(4,peer=2)")
    source = cleandoc(STAGES.format(guard=guard))
    (found,) = divergences(replace(sketch(drawing), sources={"t.py": source}))
    return found


def test_a_stage_that_a_branch_keeps_from_all_is_told_by_it() -> None:
    found = of_stages("if rank == 2: return", "")
    assert (found.why, found.culprits, found.victims) == (Cause.SKIPPED, (2,), (0, 1))
    assert found.certainty is Certainty.LIKELY
    assert found.elsewhere[0].place.line == 4


def test_a_branch_that_lets_others_out_as_well_explains_no_message() -> None:
    assert of_stages("if rank > 0: return", "").why is Cause.UNANSWERED
    assert of_stages("if done: return", "").why is Cause.UNANSWERED


def test_a_stage_that_has_been_behind_the_branch_is_not_told_by_it() -> None:
    been = "all_reduce(1)/own@t.py:7<t.py:8"
    assert of_stages("if rank == 2: return", been).why is Cause.UNANSWERED


def stages(*chunks: int) -> str:
    """Two stages: the first sends so many micro-batches a step, and four are wanted."""
    first, second = [], []
    for sent in chunks:
        first += ["send(4,peer=1)@t:5"] * sent + ["recv(4,peer=1)@t:7"] * 4
        second += ["recv(4,peer=0)@t:9"] * 4 + ["send(4,peer=0)@t:11"] * 4
    stands = len(first) - 4
    late = len(second) - 8 + chunks[-1]
    mine = "  ".join(first[:stands])
    theirs = "  ".join(second[:late])
    return f"""
        rank 0 | {mine}  recv(4,peer=1)@t:7...
        rank 1 | {theirs}  recv(4,peer=0)@t:9...
    """


def test_a_stage_that_sends_fewer_than_in_all_steps_before_is_at_fault() -> None:
    assert cause_of(stages(4, 4, 3)) == (Cause.UNANSWERED, (0,))
    assert cause_of(stages(4, 3)) == (Cause.MESSAGES, ())  # once is no habit
