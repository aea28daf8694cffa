"""Swallowed exceptions, seen or told by the source, from drawings."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.communication.divergence import divergences
from distdoctor.analysis.reasons import Why
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty

WAY_AROUND = """
def train():
    for step in range(6):
        try:
            loss = forward(step)
        except ValueError:
            continue
        for parameter in parameters:
            all_reduce(parameter.grad)
    barrier()
"""

INSIDE = """
def train():
    for step in range(6):
        try:
            loss = forward(step)
            loss.backward()
            all_reduce(loss)
            optimizer.step()
        except (ValueError, OSError) as error:
            print(error)
    barrier()
"""

CALLED = """
def train():
    all_reduce(loss())
for step in range(6):
    try:
        train()
    except ValueError:
        pass

barrier()
"""

CONDITION = INSIDE.replace("all_reduce(loss)", "if big: all_reduce(loss)")
OTHER_WAY = WAY_AROUND.replace("range(6):", "range(6):\n        if rank: continue")
RAISING = INSIDE.replace("print(error)", "raise")


def skipped(source: str) -> tuple[Why, Certainty]:
    """What a rank that went from the all_reduce's loop to the barrier did."""
    text = cleandoc(source)
    lines = text.splitlines()
    call = next(n for n, line in enumerate(lines, 1) if "all_reduce" in line)
    end = next(n for n, line in enumerate(lines, 1) if "barrier" in line)
    run = sketch(
        f"""
        rank 0 | barrier@t.py:{end}  all_reduce(4)@t.py:{call}...
        rank 1 | barrier@t.py:{end}  barrier@t.py:{end}!
        rank 2 | barrier@t.py:{end}  all_reduce(4)@t.py:{call}...
        """
    )
    name = "train" if "def" in source else "<module>"
    sites = [place and replace(place, function=name) for place in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert divergence.culprits == (1,)
    return divergence.why, divergence.certainty


@pytest.mark.parametrize("source", [WAY_AROUND, INSIDE, CALLED])
def test_a_handler_is_the_only_way_around_a_call(source: str) -> None:
    assert skipped(source) == (Why.SWALLOWED, Certainty.LIKELY)


@pytest.mark.parametrize("source", [CONDITION, OTHER_WAY, RAISING])
def test_where_something_else_may_explain_it_no_handler_is_blamed(source: str) -> None:
    assert skipped(source) == (Why.SKIPPED, Certainty.PROVED)


def test_an_exception_that_ended_the_rank_was_not_swallowed() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  fail=OSError@d.py:3  exit=1
        """
    )
    assert [divergence.why for divergence in divergences(run)] == [Why.DIED]


def test_a_rank_that_had_all_batches_and_made_fewer_calls_left_some_out() -> None:
    text = cleandoc(CALLED)
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:2  all_reduce(4)@t.py:2...  batches=2@t.py:3...
        rank 1 | all_reduce(4)@t.py:2  batches=2@t.py:3         exit=0
        """
    )
    sites = [place and replace(place, function="train") for place in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert (divergence.why, divergence.culprits) == (Why.SWALLOWED, (1,))


def test_a_rank_that_had_fewer_batches_did_not() -> None:
    text = cleandoc(CALLED)
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:2  all_reduce(4)@t.py:2...  batches=2@t.py:3...
        rank 1 | all_reduce(4)@t.py:2  batches=1@t.py:3         exit=0
        """
    )
    sites = [place and replace(place, function="train") for place in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert divergence.why is Why.UNEVEN
