"""Two calls that ranks make in opposite order, by the text behind each."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty

BOTH = cleandoc("""
    def close(rank):
        if rank == 1:
            dist.all_reduce(high, op=MAX)
            {first}
        else:
            dist.all_reduce(low, op=MIN)
            {second}
    close(dist.get_rank())
""")

LOW, HIGH = "dist.all_reduce(low, op=MIN)", "dist.all_reduce(high, op=MAX)"

MET = """
    rank 0 | all_reduce(4,op=min)@t.py:6!
    rank 1 | all_reduce(4,op=max)@t.py:3!
    rank 2 | all_reduce(4,op=min)@t.py:6!
"""


def divergence_of(source: str) -> Divergence:
    (found,) = divergences(replace(sketch(MET), sources={"t.py": source}))
    return found


def test_where_each_goes_on_to_the_other_call_it_is_the_order() -> None:
    found = divergence_of(BOTH.format(first=LOW, second=HIGH))
    assert (found.why, found.culprits) == (Cause.ORDER, (1,))
    assert found.certainty is Certainty.LIKELY
    assert "Rank 1 makes two calls in another order than ranks {0,2}" in sentence(found)


@pytest.mark.parametrize(("first", "second"), [("pass", "pass"), (LOW, "pass")])
def test_where_one_makes_no_such_call_it_is_not(first: str, second: str) -> None:
    assert divergence_of(BOTH.format(first=first, second=second)).why is Cause.REDUCE_OP


ONE_BY_ONE = cleandoc("""
    def close(rank):
        if rank == 1:
            dist.reduce(count, dst=0)
            dist.reduce(total, dst=0)
        else:
            dist.reduce(total, dst=0)
            dist.reduce({other}, dst=0)
    close(dist.get_rank())
""")

ALIKE = """
    rank 0 | reduce(1,root=0)@t.py:6 reduce(1,root=0)@t.py:7 exit=0
    rank 1 | reduce(1,root=0)@t.py:3 reduce(1,root=0)@t.py:4 exit=0
"""


@pytest.mark.parametrize(("other", "swapped"), [("count", True), ("right", False)])
def test_calls_that_look_alike_have_their_text(other: str, swapped: bool) -> None:
    source = ONE_BY_ONE.format(other=other)
    found = divergences(replace(sketch(ALIKE), sources={"t.py": source}))
    assert [(one.why, one.culprits) for one in found] == [(Cause.ORDER, (1,))] * swapped


def test_the_branch_in_front_of_two_helpers_decides_and_is_named() -> None:
    source = cleandoc("""
        def actor(agent):
            dist.all_reduce(agent.actor)
        def critic(agent):
            dist.all_reduce(agent.critic)
        def average(agent, rank):
            if rank == 1:
                critic(agent)
                actor(agent)
            else:
                actor(agent)
                critic(agent)
        average(agent, dist.get_rank())
    """)
    usual = "all_reduce(4)@t.py:2<t.py:10<t.py:12  all_reduce(4)@t.py:4<t.py:11<t.py:12"
    other = "all_reduce(4)@t.py:4<t.py:7<t.py:12  all_reduce(4)@t.py:2<t.py:8<t.py:12"
    run = sketch(f"rank 0 | {usual}\nrank 1 | {other}")
    (found,) = divergences(replace(run, sources={"t.py": source}))
    assert (found.why, found.culprits) == (Cause.ORDER, (1,))
    assert [one.place.line for one in found.elsewhere] == [6]


BEST = cleandoc("""
    def train(model, loader):
        best = 9.0
        for epoch in range(9):
            dist.all_reduce(gradients)
            error = evaluate(model, loader)
            if error < best:
                best = error
                dist.barrier()
    train(model, loader)
""")

LEFT_OUT_ONCE = """
    rank 0 | all_reduce(9)@t.py:4  barrier@t.py:8  all_reduce(9)@t.py:4
           | all_reduce(9)@t.py:4  barrier@t.py:8
    rank 1 | all_reduce(9)@t.py:4  barrier@t.py:8  all_reduce(9)@t.py:4
           | barrier@t.py:8  all_reduce(9)@t.py:4
    rank 2 | all_reduce(9)@t.py:4  barrier@t.py:8  all_reduce(9)@t.py:4
           | barrier@t.py:8  all_reduce(9)@t.py:4
"""


def test_simulated_ranks_that_come_to_a_call_again_have_not_swapped_it() -> None:
    """Nobody refuses a call of theirs: behind one that was left out, all goes on."""
    run = replace(sketch(LEFT_OUT_ONCE), sources={"t.py": BEST})
    (found,) = divergences(replace(run, simulated=frozenset({0, 1, 2})))
    assert (found.why, found.culprits) == (Cause.SKIPPED, (0,))
    assert "The ways part at `if error < best`" in sentence(found)
