"""Ranks whose shares of a loop were of unlike length, from drawings with a source."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty

PACKED = cleandoc("""
    def packed(corpus):
        mine = [corpus[n] for n in order[rank::world]]
        for batch in Packing(mine).batches():
            yield batch
    def train():
        for tokens in packed(corpus):
            all_reduce(tokens)
    train()
    destroy_process_group()
""")

CALLS = """
    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7  {end}
"""


def divergence_of(source: str, end: str = "leave@t.py:9  exit=0") -> Divergence:
    run = replace(sketch(CALLS.format(end=end)), sources={"t.py": source})
    (found,) = divergences(run)
    return found


def test_who_has_finished_had_a_shorter_share() -> None:
    found = divergence_of(PACKED)
    assert (found.why, found.culprits) == (Cause.UNEVEN, (1,))
    assert found.certainty is Certainty.LIKELY
    assert [one.place.line for one in found.elsewhere][:2] == [2, 6]


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (PACKED.replace("order[rank::world]", "order"), "leave@t.py:9  exit=0"),
        (PACKED, "quit=sys.exit:0@t.py:7  exit=0"),
        (PACKED, "fail=KeyError  exit=1"),
    ],
    ids=["no shares", "it was asked for", "it failed"],
)
def test_another_end_is_told_as_it_was(source: str, end: str) -> None:
    assert divergence_of(source, end).why is not Cause.UNEVEN
