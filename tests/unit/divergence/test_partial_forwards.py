"""Passes through a wrapped model that only some ranks made, from drawings."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Frame


def test_the_first_stray_is_named_although_the_hang_is_elsewhere() -> None:
    run = sketch(
        """
        rank 0 | broadcast(8)@t.py:7  broadcast(8,by=ddp)@e.py:3  barrier@t.py:9!
        rank 1 | broadcast(8)@t.py:7  broadcast(8)@t.py:7  all_reduce(4)@t.py:8...
        """
    )
    (divergence,) = divergences(run)
    assert (divergence.why, divergence.culprits) == (Cause.FORWARD, (0,))
    assert [str(line.place) for line in divergence.elsewhere] == ["e.py:3"]


def test_a_users_own_call_is_skipped_or_added_and_no_forward() -> None:
    run = sketch(
        """
        rank 0 | broadcast(8,by=ddp)@t.py:7  broadcast(8)@e.py:3...
        rank 1 | broadcast(8,by=ddp)@t.py:7  all_reduce(4,by=backward)@t.py:8...
        """
    )
    assert Cause.FORWARD not in {d.why for d in divergences(run)}


def test_a_model_run_from_each_ranks_own_branch_is_no_stray() -> None:
    run = sketch(
        """
        rank 0 | broadcast(8,by=ddp)@e.py:3  all_reduce(4)@t.py:9  barrier@t.py:11...
        rank 1 | broadcast(8,by=ddp)@e.py:5  all_reduce(4)@t.py:9  all_reduce(4)@t.py:9!
        """
    )
    assert [d.why for d in divergences(run)] != [Cause.FORWARD]


def test_a_stray_that_was_made_up_for_is_not_blamed_for_what_comes_later() -> None:
    run = sketch(
        """
        rank 0 | broadcast(8,by=ddp)@e.py:3  broadcast(8)@t.py:7  barrier@t.py:9...
        rank 1 | broadcast(8,by=ddp)@t.py:7  broadcast(8)@t.py:7  all_reduce(4)@t.py:8!
        """
    )
    assert Cause.FORWARD not in {d.why for d in divergences(run)}


@pytest.mark.parametrize("how", ["exit=0", "fail=KeyError  exit=1"])
def test_a_rank_that_left_early_is_missed_by_the_forward_of_the_rest(how: str) -> None:
    run = sketch(
        f"""
        rank 0 | all_reduce(4)@t.py:7  broadcast(8,by=ddp)@e.py:3...
        rank 1 | all_reduce(4)@t.py:7  broadcast(8,by=ddp)@e.py:3...
        rank 2 | all_reduce(4)@t.py:7  {how}
        """
    )
    (divergence,) = divergences(run)
    assert divergence.why in {Cause.FINISHED, Cause.DIED}
    assert divergence.culprits == (2,)


def test_one_that_evaluates_alone_at_the_end_is_not_missed_by_its_loaders() -> None:
    """Rank 1 has finished, with all loaders it knows: rank 0 goes through another."""
    run = sketch(
        """
        rank 0 | broadcast(8,by=ddp)@t.py:7  batches=2@t.py:6  batches=1@e.py:2...  broadcast(8,by=ddp)@e.py:3...
        rank 1 | broadcast(8,by=ddp)@t.py:7  batches=2@t.py:6  leave@t.py:9  exit=0
        """  # noqa: E501 - a rank is drawn on one line
    )
    source = cleandoc("""
        def predict(loader):
            for batch in loader:
                model(batch)
        def validate():
            predict(held_out)
        validate()
    """)
    run = replace(run, sources={"e.py": source})
    (divergence,) = divergences(run)
    assert (divergence.why, divergence.culprits) == (Cause.FORWARD, (0,))
    assert [line.place.line for line in divergence.elsewhere] == [5, 6]


LEFT = cleandoc("""
    def train():
        for batch in range(9):
            loss = model(batch)
            loss.backward()
            if enough(loss):
                break
    def wrapped():
        return DistributedDataParallel(net)
    wrapped()
    train()
    wrapped()
""")


def test_who_left_the_loop_is_not_said_never_to_run_the_model_there() -> None:
    """The first forward of a DDP model sends nothing: both ranks have made it."""
    run = sketch(
        """
        rank 0 | all_gather(1,by=ddp)@t.py:8  all_reduce(6,by=backward)@t.py:4  broadcast(5,by=ddp)@t.py:3...
        rank 1 | all_gather(1,by=ddp)@t.py:8  all_reduce(6,by=backward)@t.py:4  all_gather(1,by=ddp)@t.py:8!
        """  # noqa: E501 - a rank is drawn on one line
    )

    def stack(*lines: tuple[int, str]) -> list[Frame]:
        return [Frame(Place("t.py", line, function)) for line, function in lines]

    stacks = {
        0: stack((3, "train"), (10, "<module>")),
        1: stack((8, "wrapped"), (11, "<module>")),
    }
    (found,) = divergences(replace(run, sources={"t.py": LEFT}, stacks=stacks))
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert found.certainty is Certainty.LIKELY


def test_another_call_at_a_forwards_line_is_none_of_a_model() -> None:
    run = sketch(
        """
        rank 0 | broadcast(8)@t.py:7  broadcast(8,by=ddp)@e.py:3
               | broadcast(8,by=backward)@e.py:3  barrier@t.py:9!
        rank 1 | broadcast(8)@t.py:7  broadcast(8)@t.py:7
               | broadcast(8,by=ddp)@e.py:3  barrier@t.py:9!
        rank 2 | broadcast(8)@t.py:7  broadcast(8)@t.py:7
               | broadcast(8)@t.py:7  all_reduce(4)@t.py:8...
        rank 3 | broadcast(8)@t.py:7  broadcast(8)@t.py:7
               | broadcast(8)@t.py:7  all_reduce(4)@t.py:8...
        """
    )
    assert Cause.FORWARD not in {d.why for d in divergences(run)}
