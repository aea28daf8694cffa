"""Dimensions of a mesh taken for one another, from drawings."""

from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty

GROUPS = """
    group shard_a | 0 1
    group shard_b | 2 3
    group copy_a | 0 2
    group copy_b | 1 3"""


def whys(ranks: str) -> set[Cause]:
    return {
        divergence.why
        for divergence in divergences(
            sketch(f"{cleandoc(GROUPS)}\n{cleandoc(ranks.rstrip())}")
        )
    }


def test_a_circle_of_a_confused_rank_is_no_matter_of_order() -> None:
    assert whys(
        """
    rank 0 | all_reduce(8)/shard_a@t.py:7...
    rank 1 | all_reduce(8)/copy_b@t.py:7...
    rank 2 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_a@t.py:9...
    rank 3 | all_reduce(8)/shard_b@t.py:7  all_reduce(1)/shard_b@t.py:8...
        """
    ) == {Cause.MESH}


def test_a_helper_that_is_given_a_group_is_one_line_for_all_dimensions() -> None:
    line = "all_reduce(8)/{}@t.py:3  all_reduce(8)/{}@t.py:3  exit=0"
    own = (
        *(("shard_a", "copy_a"), ("shard_a", "copy_b")),
        *(("shard_b", "copy_a"), ("shard_b", "copy_b")),
    )
    drawn = [f"    rank {rank} | {line.format(*own[rank])}" for rank in range(4)]
    assert whys("\n".join(drawn)) == set()


def test_another_fault_on_a_sound_mesh_is_not_its() -> None:
    assert whys(
        """
    rank 0 | all_reduce(8)/shard_a@t.py:7...
    rank 1 | all_reduce(6)/shard_a@t.py:7!
    rank 2 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_a@t.py:9...
    rank 3 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_b@t.py:9...
        """
    ) == {Cause.NUMEL}


def test_where_as_many_are_confused_as_are_not_nobody_is_called_so() -> None:
    assert Cause.MESH not in whys(
        """
    rank 0 | all_reduce(8)/shard_a@t.py:7  all_reduce(8)/copy_a@t.py:9...
    rank 1 | all_reduce(8)/shard_a@t.py:7  all_reduce(8)/copy_b@t.py:9...
    rank 2 | all_reduce(8)/copy_a@t.py:7...
    rank 3 | all_reduce(8)/copy_b@t.py:7...
        """
    )


def by_parity(line: str) -> str:
    """Ranks that average at a line, each over a group, between two sums of shards."""
    own = ("shard_a", "shard_a", "shard_b", "shard_b")
    taken = ("copy_a", "shard_a", "copy_a", "shard_b")
    between = ("  all_reduce(8)/{}@t.py:5!", "...") * 2
    return "\n".join(
        f"    rank {rank} | all_reduce(8)/{own[rank]}@t.py:5  "
        f"{line.format(taken[rank])}{between[rank].format(own[rank])}"
        for rank in range(4)
    )


def test_a_dimension_by_parity_is_likely_where_both_are_used() -> None:
    run = sketch(
        f"{cleandoc(GROUPS)}\n{cleandoc(by_parity('all_reduce(6)/{}@t.py:7'))}"
    )
    (found,) = divergences(run)
    assert (found.why, found.culprits, found.certainty) == (
        Cause.MESH,
        (1, 3),
        Certainty.LIKELY,
    )


def test_a_helper_that_is_given_a_group_is_a_line_for_each_way_to_it() -> None:
    drawn = by_parity("all_reduce(6)/{}@t.py:3<t.py:9").replace(
        "t.py:5", "t.py:3<t.py:8"
    )
    (found,) = divergences(sketch(f"{cleandoc(GROUPS)}\n{cleandoc(drawn)}"))
    assert (found.why, found.culprits) == (Cause.MESH, (1, 3))
    assert [one.place.line for one in found.elsewhere] == [9]


def test_leaders_that_pass_on_what_the_rest_waits_for_are_not_confused() -> None:
    line = "all_reduce(8)/{}@t.py:5  broadcast(6)/{}@t.py:7"
    passed = "  broadcast({})/{}@t.py:9"
    drawn = [
        line.format("shard_a", "copy_a") + passed.format(5, "shard_a") + "!",
        line.format("shard_a", "shard_a") + "...",
        line.format("shard_b", "copy_a") + passed.format(6, "shard_b"),
        line.format("shard_b", "shard_b"),
    ]
    assert Cause.MESH not in whys(
        "\n".join(f"    rank {rank} | {each}" for rank, each in enumerate(drawn))
    )


def test_by_which_branch_ranks_come_to_a_helper_is_no_matter_of_dimensions() -> None:
    drawn = by_parity("all_reduce(6)/{}@t.py:3").replace(
        "shard_a@t.py:3", "shard_a@t.py:3<t.py:8"
    )
    assert Cause.MESH not in whys(drawn)


@pytest.mark.parametrize("size", [8, 6])
def test_leaders_with_a_line_of_their_own_level_are_not_confused(size: int) -> None:
    run = sketch(
        f"""
        group heads | 0 4
        group left | 0 1 2 3
        group right | 4 5 6 7
        rank 0 | broadcast(8)/heads@t.py:7  broadcast(8)/left@t.py:9...
        rank 1 | broadcast(8)/left@t.py:7...
        rank 2 | broadcast(8)/left@t.py:7...
        rank 3 | broadcast({size})/left@t.py:7...
        rank 4 | broadcast(8)/heads@t.py:7  broadcast(8)/right@t.py:9
        rank 5 | broadcast(8)/right@t.py:7
        rank 6 | broadcast(8)/right@t.py:7
        rank 7 | broadcast(8)/right@t.py:7
        """
    )
    assert Cause.MESH not in {divergence.why for divergence in divergences(run)}
