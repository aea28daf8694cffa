"""Calls of one helper's line, of which one side makes a later one, from drawings."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Frame

HELPER = cleandoc("""
    def average(tensor):
        all_reduce(tensor)
    def rare(model, batch):
        rows = batch.users[batch.users >= 9]
        if rows.numel() == 0:
            return
        average(model.rare.grad)
    def usual(model):
        average(model.grad)
    def train(loader):
        for step, batch in enumerate(loader):
            rare(model, batch)
            usual(model)
""")

CALLS = """
    rank 0 | all_reduce(8)@t.py:2  all_reduce(4)@t.py:2  all_reduce(8)@t.py:2...
    rank 1 | all_reduce(8)@t.py:2  all_reduce(4)@t.py:2  all_reduce(8)@t.py:2...
    rank 2 | all_reduce(8)@t.py:2  all_reduce(4)@t.py:2  all_reduce(4)@t.py:2!
"""


def stack(step: int | None, *lines: tuple[int, str]) -> list[Frame]:
    """Frames, innermost first, of which the last is the loop's."""
    *inner, last = [Place("t.py", line, function) for line, function in lines]
    integers = {} if step is None else {"step": step}
    return [*(Frame(place) for place in inner), Frame(last, integers)]


def rare(step: int | None) -> list[Frame]:
    return stack(step, (2, "average"), (7, "rare"), (12, "train"))


def usual(step: int | None) -> list[Frame]:
    return stack(step, (2, "average"), (9, "usual"), (13, "train"))


def divergence_of(source: str, stacks: dict[int, list[Frame]]) -> Divergence:
    run = replace(sketch(CALLS), sources={"t.py": source}, stacks=stacks)
    (found,) = divergences(run)
    return found


def test_who_has_come_further_in_the_same_round_skipped_the_call() -> None:
    found = divergence_of(HELPER, {0: rare(1), 1: rare(1), 2: usual(1)})
    assert (found.why, found.culprits, found.victims) == (Cause.SKIPPED, (2,), (0, 1))
    assert found.certainty is Certainty.LIKELY
    assert {5, 7} <= {one.place.line for one in found.elsewhere}
    assert "rows.numel() == 0" in sentence(found)


@pytest.mark.parametrize("theirs", [0, 2, None])
def test_in_another_round_nobody_knows_who_is_further(theirs: int | None) -> None:
    found = divergence_of(HELPER, {0: rare(1), 1: rare(1), 2: usual(theirs)})
    assert found.why is not Cause.SKIPPED


def test_where_nothing_leads_around_the_call_it_was_not_skipped() -> None:
    source = HELPER.replace("rows.numel() == 0", "False")
    found = divergence_of(source, {0: rare(1), 1: rare(1), 2: usual(1)})
    assert found.why is not Cause.SKIPPED


def test_without_stacks_it_is_what_the_calls_tell() -> None:
    assert divergence_of(HELPER, {0: rare(1)}).why is not Cause.SKIPPED
