"""Ties told by the source: arguments by rank, and forks that data decide."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty


def divergence_of(source: str, drawing: str) -> Divergence:
    """The divergence of a drawing whose calls are from the lines of a source t.py."""
    run = replace(sketch(drawing), sources={"t.py": cleandoc(source)})
    (divergence,) = divergences(run)
    return divergence


def sized(source: str, one: int = 3, other: int = 4) -> Divergence:
    """Of two ranks that reduce so many elements in the last line of a source."""
    last = len(cleandoc(source).splitlines())
    return divergence_of(
        source,
        f"""
        rank 0 | all_reduce({one})@t.py:{last}...
        rank 1 | all_reduce({other})@t.py:{last}!
        """,
    )


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("width = 3\nif rank == 0:\n    width = 4\nall_reduce(zeros(width))", 2),
        ("all_reduce(zeros(4 if rank == 0 else 3))", 1),
        ("width = 3 + (rank == 0)\nall_reduce(zeros(width))", 1),
        ("names = []\nif rank == 0:\n    names.append(1)\nall_reduce(of(names))", 2),
        (
            "def width(rank):\n    if rank == 0:\n        return 4\n    return 3\n"
            "all_reduce(zeros(width(rank)))",
            2,
        ),
        (
            "class A:\n    def __init__(self):\n        self.n = 3\n"
            "        if rank == 0:\n            self.n = 4\na = A()\n"
            "all_reduce(zeros(a.n))",
            4,
        ),
    ],
)
def test_a_condition_by_rank_singles_out_whose_argument_is_another(
    source: str, line: int
) -> None:
    found = sized(source)
    assert (found.why, found.culprits) == (Cause.NUMEL, (0,))
    assert found.certainty is Certainty.LIKELY
    assert found.elsewhere[0].place.line == line


def test_an_expression_of_the_rank_singles_out_nobody() -> None:
    found = sized("rank = get_rank()\nwidth = 16 * (rank + 1)\nall_reduce(x(width))")
    assert (found.culprits, found.certainty) == ((), Certainty.PROVED)
    assert found.elsewhere[0].place.line == 2


def test_arguments_that_do_not_depend_on_the_rank_are_left_alone() -> None:
    assert sized("batch = next(loader)\nall_reduce(batch)").elsewhere == ()


LOAD = """
def load(path):
    if exists(path):
        return read(path)
    total = statistics()
    all_reduce(total)
    return total
load("stats")
broadcast(weights)
"""


def test_who_left_before_a_call_skipped_it() -> None:
    found = divergence_of(
        LOAD,
        """
        rank 0 | all_reduce(4)@t.py:5...
        rank 1 | broadcast(9)@t.py:8!
        """,
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert found.certainty is Certainty.LIKELY
    assert [line.place.line for line in found.elsewhere] == [2, 3]


def test_who_is_alone_in_a_branch_added_its_call() -> None:
    found = divergence_of(
        """
        if loss > limit:
            all_gather(losses)
        all_reduce(gradients)
        """,
        """
        rank 0 | all_reduce(4)@t.py:3!
        rank 1 | all_gather(9)@t.py:2...
        """,
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))


def test_a_test_of_what_all_count_alike_tells_nothing() -> None:
    found = divergence_of(
        """
        for step in range(100):
            if step % 10 == 0:
                all_gather(losses)
            all_reduce(gradients)
        """,
        """
        rank 0 | all_reduce(4)@t.py:4!
        rank 1 | all_gather(9)@t.py:3...
        """,
    )
    assert (found.why, found.culprits) == (Cause.OPERATION, ())


def test_where_both_went_ways_of_their_own_nobody_is_named() -> None:
    found = divergence_of(
        """
        if big:
            all_gather(losses)
        if small:
            all_reduce(gradients)
        """,
        """
        rank 0 | all_reduce(4)@t.py:4!
        rank 1 | all_gather(9)@t.py:2...
        """,
    )
    assert (found.why, found.culprits) == (Cause.OPERATION, ())


@pytest.mark.parametrize(
    ("head", "why"),
    [("for step in range(9)", Cause.OPERATION), ("for step in drawn()", Cause.SKIPPED)],
)
def test_who_comes_to_a_branch_by_the_round_alone_has_added_nothing(
    head: str, why: Cause
) -> None:
    found = divergence_of(
        f"""
        {head}:
            all_reduce(gradients)
            if step % 3 == 0:
                all_gather(losses)
        """,
        """
        rank 0 | all_reduce(4)@t.py:2!
        rank 1 | all_gather(9)@t.py:4...
        """,
    )
    assert found.why is why


EARLY_RETURN = """
    def normaliser():
        all_reduce(count)
    def loss(boxes):
        if len(boxes) == 0:
            return zero()
        return normaliser()
    loss(boxes)
    backward()
"""


@pytest.mark.parametrize("alone", [2, 0])
def test_a_minority_left_early_or_made_the_call_by_itself(alone: int) -> None:
    """Who is in the majority is not blamed."""
    here, there = "all_reduce(1)@t.py:2", "all_reduce(9)@t.py:8"
    if not alone:
        here, there = there, here
    calls = [there if rank == 2 else here for rank in range(3)]
    lines = [f"rank {n} | {call}..." for n, call in enumerate(calls[:2])]
    found = divergence_of(EARLY_RETURN, "\n".join([*lines, f"rank 2 | {calls[2]}!"]))
    assert (found.why, found.culprits) == (Cause.SKIPPED, (2,))
    assert ("alone call" in sentence(found)) == (alone == 0)


def test_a_forward_pass_that_one_of_two_came_to_by_a_new_way_is_its_own() -> None:
    """Both know the way of the training step; the other way only one has gone."""
    source = """
    def preview(run):
        if run.folder is None:
            return
        model(noise)
    def train():
        backward(model(batch))
    for step in range(9):
        train()
        preview(run)
    """
    step = "all_gather_into_tensor(4,by=fsdp)@t.py:6<t.py:8"
    alone = "all_gather_into_tensor(9,by=fsdp)@t.py:4<t.py:9"
    found = divergence_of(
        source,
        f"""
        rank 0 | {step}  {alone}...
        rank 1 | {step}  {step}!
        """,
    )
    assert (found.why, found.culprits) == (Cause.FORWARD, (0,))
