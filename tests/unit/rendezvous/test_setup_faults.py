"""Ranks that do not meet while they join, make groups or wait for keys."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Failure
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Quiet

JOIN = "init_process_group"


def only(drawing: str) -> Divergence:
    (divergence,) = divergences(sketch(drawing))
    return divergence


@pytest.mark.parametrize(
    ("drawing", "culprits"),
    [
        (  # the minority creates another group
            "rank 0 | new_group(names=0+1)\nrank 1 | new_group(names=0+1)\n"
            "rank 2 | new_group(names=1+2)!",
            (2,),
        ),
        (  # a tie
            "rank 0 | new_group(names=0+1)\nrank 1 | new_group(names=0+1)\n"
            "rank 2 | new_group(names=2+3)!\nrank 3 | new_group(names=2+3)!",
            (),
        ),
        (  # the minority goes on
            "rank 0 | new_group(names=0+1)...inside\n"
            "rank 1 | new_group(names=0+1)...inside\nrank 2 | all_reduce(4)...",
            (2,),
        ),
        (  # the minority creates a group of its own
            "rank 0 | new_group(names=0)...inside\n"
            "rank 1 | all_reduce(4)...\nrank 2 | all_reduce(4)...",
            (0,),
        ),
        (  # nobody is in the minority
            "rank 0 | new_group(names=0)...inside\nrank 1 | all_reduce(4)...",
            (),
        ),
        (  # one has ended
            "rank 0 | new_group(names=0)...inside\nrank 1 | leave  exit=0",
            (),
        ),
        (  # the minority has ended
            "rank 0 | new_group(names=0)...inside\nrank 1 | leave  exit=0\n"
            "rank 2 | new_group(names=0)...inside",
            (1,),
        ),
    ],
)
def test_groups_that_not_all_create_alike(
    drawing: str, culprits: tuple[int, ...]
) -> None:
    divergence = only(drawing)
    assert (divergence.why, divergence.culprits) == (Cause.GROUPS, culprits)
    assert "new_group" in sentence(divergence) or "group of" in sentence(divergence)


def test_who_died_is_the_cause_and_not_the_group() -> None:
    divergence = only(
        "rank 0 | new_group(names=0)...inside\nrank 1 | fail=KeyError@t.py:3  exit=1"
    )
    assert (divergence.why, divergence.culprits) == (Cause.DIED, (1,))


@pytest.mark.parametrize(
    "drawing",
    [
        "rank 0 | new_group(names=0)...inside\nrank 1 | .",
        "rank 0 | new_group(names=0)...inside\nrank 1 | ?",
        f"rank 0 | {JOIN}...inside\nrank 1 | ?",
        f"rank 0 | {JOIN}...inside\nrank 1 | .",
        f"rank 0 | {JOIN}...inside\nrank 1 | .\nnobody else",
        "rank 0 | store_wait(names=a)...inside\nrank 1 | .",
        "rank 0 | store_wait(names=a)...inside\nrank 1 | .\nnobody else",
        "rank 0 | store_wait(names=a)...inside\nrank 1 | barrier...",
        "rank 0 | store_wait(names=a)...inside\n"
        "rank 1 | store_set(names=a)  barrier...",
    ],
)
def test_what_may_still_come_is_not_accused(drawing: str) -> None:
    assert not divergences(sketch(drawing))


@pytest.mark.parametrize(
    ("drawing", "culprits", "phrase"),
    [
        (f"rank 0 | {JOIN}...inside\nrank 1 | ?\nnobody else", (), "only 1 of 2"),
        (
            f"rank 0 | {JOIN}...inside\nrank 1 | {JOIN}...inside\n"
            f"rank 2 | leave  exit=0\nnobody else",
            (2,),
            "set-up",
        ),
        (
            f"rank 0 | {JOIN}(names=a)...inside\nrank 1 | {JOIN}(names=b)...inside\n"
            f"rank 2 | {JOIN}(names=a)...inside\nnobody else",
            (1,),
            "rank 1 b",
        ),
        (
            f"rank 0 | {JOIN}(names=a)...inside\nrank 1 | {JOIN}(names=a)...inside\n"
            "nobody else",
            (),
            "do not find each other",
        ),
        (f"rank 0 | {JOIN}^  fail=DistStoreError^  exit=1\nrank 1 | ?", (), "only 1"),
    ],
)
def test_ranks_that_do_not_join(
    drawing: str, culprits: tuple[int, ...], phrase: str
) -> None:
    divergence = only(drawing)
    assert (divergence.why, divergence.culprits) == (Cause.JOINING, culprits)
    assert phrase in sentence(divergence)


@pytest.mark.parametrize(("seconds", "count"), [(0.2, 0), (20.0, 1)])
def test_ranks_that_came_just_now_may_yet_find_each_other(
    seconds: float, count: int
) -> None:
    one = f"{JOIN}(names=a)...inside"
    run = sketch(f"rank 0 | {one}\nrank 1 | {one}\nnobody else")
    quiet = Quiet(seconds, idle=frozenset({0, 1}))
    assert len(divergences(replace(run, quiet=quiet))) == count
    asking = replace(quiet, name_server="10.0.0.53")  # and the store waits for it
    assert not divergences(replace(run, quiet=asking))


def test_world_sizes_that_differ() -> None:
    divergence = only(
        f"group small | 0 1\nrank 0 | {JOIN}/small...inside\n"
        f"rank 1 | {JOIN}/small...inside\nrank 2 | {JOIN}...inside\nnobody else"
    )
    assert (divergence.why, divergence.culprits) == (Cause.JOINING, (2,))
    assert "ranks {0-1} 2; rank 2 3" in sentence(divergence)


def test_a_second_attempt_that_succeeded_is_forgiven() -> None:
    assert not divergences(
        sketch(
            f"rank 0 | {JOIN}^  {JOIN}  all_reduce(4)  exit=0\n"
            f"rank 1 | {JOIN}^  {JOIN}  all_reduce(4)  exit=0"
        )
    )


def test_a_missing_key_is_told_beside_those_that_are_there() -> None:
    divergence = only(
        "rank 0 | store_set(names=ready%2F0)  barrier...\n"
        "rank 1 | store_wait(names=ready_0)...inside\nnobody else"
    )
    assert divergence.why is Cause.KEY
    assert "'ready_0'" in sentence(divergence)
    assert "'ready/0'" in sentence(divergence)
    assert "rank 0 waits in barrier" in sentence(divergence)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("Timed out after 6 seconds waiting for clients. 1/2 clients joined.", 1),
        ("The client socket has timed out after 5000ms", 1),
        ("wait timeout after 30000ms, keys: /default_pg/0//cpu", 1),
        ("The server socket has failed to listen: EADDRINUSE", 0),
        ("invalid init_method", 0),
    ],
)
def test_only_who_ran_out_of_time_has_waited(message: str, found: int) -> None:
    run = sketch(f"rank 0 | {JOIN}^  fail=DistNetworkError^  exit=1\nrank 1 | ?")
    life = {
        rank: [
            (
                n,
                replace(event, message=message)
                if isinstance(event, Failure)
                else event,
            )
            for n, event in events
        ]
        for rank, events in run.life.items()
    }
    assert len(divergences(replace(run, life=life))) == found


LEADERS = dedent("""
    def make(rank):
        if rank == 0:
            new_group([0])
        if rank % 2 == 0:
            new_group([0, 2])
        if rank % 2 == 0:
            new_group([0, 1, 2, 3])
        new_group()
        all_reduce(x)
""")


def by_source(drawing: str) -> Divergence:
    """The divergence of a drawing whose calls are from the lines of LEADERS."""
    run = replace(sketch(drawing), sources={"t.py": LEADERS})
    (divergence,) = divergences(run)
    return divergence


@pytest.mark.parametrize(
    "others",
    [
        "new_group(names=0-3)@t.py:9!",
        "all_reduce(4)@t.py:10...",
        "leave  exit=0",
    ],
)
def test_of_two_halves_those_are_at_fault_whom_the_members_branch_keeps_out(
    others: str,
) -> None:
    leads = "new_group(names=0+2)@t.py:6...inside"
    divergence = by_source(
        f"rank 0 | {leads}\nrank 1 | {others}\nrank 2 | {leads}\nrank 3 | {others}"
    )
    assert divergence.why is Cause.GROUPS
    assert divergence.culprits == (1, 3)
    assert divergence.victims == (0, 2)
    assert divergence.certainty is Certainty.LIKELY
    assert [location.place.line for location in divergence.elsewhere] == [5, 6]
    assert "if rank % 2 == 0" in sentence(divergence)


def test_of_two_ranks_as_well() -> None:
    divergence = by_source(
        "rank 0 | new_group(names=0)@t.py:4...inside\nrank 1 | all_reduce(4)@t.py:10..."
    )
    assert divergence.culprits == (1,)


def test_of_two_ranks_one_strays_with_a_group_of_both() -> None:
    drawing = (
        "rank 0 | new_group(names=0+1)@t.py:2...inside\nrank 1 | barrier@t.py:3..."
    )
    source = "if get_rank() == 0:\n    new_group([0, 1])\nbarrier()\n"
    (divergence,) = divergences(replace(sketch(drawing), sources={"t.py": source}))
    assert (divergence.why, divergence.culprits) == (Cause.GROUPS, (0,))
    assert divergence.certainty is Certainty.LIKELY
    assert divergence.elsewhere[0].place.line == 1


def test_a_branch_that_makes_a_group_of_all_ranks_is_not_the_members() -> None:
    makes, waits = "new_group(names=0-3)@t.py:8...inside", "all_reduce(4)@t.py:10..."
    divergence = by_source(
        f"rank 0 | {makes}\nrank 1 | {waits}\nrank 2 | {makes}\nrank 3 | {waits}"
    )
    assert (divergence.why, divergence.culprits) == (Cause.GROUPS, ())


def test_without_a_branch_two_halves_are_a_tie() -> None:
    makes, waits = "new_group(names=0+2)@t.py:9...inside", "all_reduce(4)@t.py:10..."
    divergence = by_source(
        f"rank 0 | {makes}\nrank 1 | {waits}\nrank 2 | {makes}\nrank 3 | {waits}"
    )
    assert (divergence.why, divergence.culprits) == (Cause.GROUPS, ())
