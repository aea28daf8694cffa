"""Pipelines of TensorFlow, compared among ranks by their stages and samples."""

import pytest

from distdoctor.analysis.horovod.pipeline_passes import (
    overlapping_shards,
    same_inputs,
    same_samples,
)
from distdoctor.model.drawing import sketch

_SHUFFLED = "pipeline_stage(at=1,kind=shuffle,size=99,seeds={})"
_CUT = "pipeline_stage(at=2,kind=shard,size=2,index={})"


def two_ranks(*parts: str) -> str:
    """A drawing of two ranks that do the same; "/" stands between what differs."""
    rows = []
    for rank in (0, 1):
        words = [part.split("/")[-1 if rank else 0] for part in parts]
        rows.append(f"    rank {rank} | " + "\n           | ".join(words))
    return "\n".join(rows)


CUT = "pipeline_stage(at=2,kind=shard,size=2)/" + _CUT.format(1)

PIECES = "pipeline_read(contents=1-40,steps=1)/pipeline_read(contents=20-59,steps=1)"
APART = "pipeline_read(contents=1-40,steps=1)/pipeline_read(contents=50-89,steps=1)"
UNSEEN = "pipeline_read(steps=1)"


@pytest.mark.parametrize(
    ("seeds", "read", "twice"),
    [("0+0", PIECES, 21), ("7+1/7+2", UNSEEN, -1), ("7+1", PIECES, 21)],
)
def test_shards_overlap(seeds: str, read: str, twice: int) -> None:
    shuffled = "/".join(map(_SHUFFLED.format, seeds.split("/")))
    run = sketch(two_ranks(shuffled, CUT, "pipeline_read", "all_reduce(64)", read))
    (fault,) = overlapping_shards(run)
    assert fault.twice == twice
    assert fault.sure is (twice > 0)


@pytest.mark.parametrize(
    ("seeds", "read"), [("0+0", APART), ("7+1", UNSEEN), ("7+1", APART)]
)
def test_shards_that_are_parts_of_one_order_are_well(seeds: str, read: str) -> None:
    drawing = two_ranks(
        _SHUFFLED.format(seeds), CUT, "pipeline_read", "all_reduce(64)", read
    )
    assert not list(overlapping_shards(sketch(drawing)))


@pytest.mark.parametrize(
    "between", ["all_reduce(1)", "all_gather(640)  all_reduce(64)"]
)
def test_ranks_that_average_no_gradients_or_share_samples_are_left_alone(
    between: str,
) -> None:
    read = "pipeline_read(contents=1-40,steps=1)"
    run = sketch(two_ranks("pipeline_read", between, read))
    assert not list(same_samples(run))
    assert not list(overlapping_shards(run))


def test_the_same_samples_are_seen() -> None:
    read = "pipeline_read(contents=1-40,steps=1)"
    (fault,) = same_samples(sketch(two_ranks("pipeline_read", "all_reduce(64)", read)))
    assert fault.sharing == (0, 1)


def test_one_batch_over_and_over_is_left_alone() -> None:
    read = "pipeline_read(contents=1+2+1+2+1+2+1+2,steps=4)"
    four = "  ".join(["all_reduce(64)"] * 4)
    assert not list(same_samples(sketch(two_ranks("pipeline_read", four, read))))


def test_each_rank_with_an_order_of_its_own_is_well() -> None:
    read = (
        "pipeline_read(contents=1-40,steps=1)/pipeline_read(contents=9-40+1-8,steps=1)"
    )
    run = sketch(two_ranks("pipeline_read", "all_reduce(64)", read))
    assert not list(same_samples(run))
    assert not list(overlapping_shards(run))


def test_a_repeated_order_that_is_cut_later_overlaps_by_right() -> None:
    repeated = "pipeline_stage(at=2,kind=repeat,size=-1)"
    cut = "pipeline_stage(at=3,kind=shard,size=2)/" + _CUT.format(1).replace(
        "2", "3", 1
    )
    shuffled = _SHUFFLED.format("7+1")
    run = sketch(
        two_ranks(shuffled, repeated, cut, "pipeline_read", "all_reduce(64)", PIECES)
    )
    assert not list(overlapping_shards(run))


@pytest.mark.parametrize(("second", "found"), [("6", 1), ("6/7", 0), ("5", 0)])
def test_functions_are_given_the_same(second: str, found: int) -> None:
    fed = "/".join(f"fed(step=2,inputs={one})" for one in second.split("/"))
    drawing = two_ranks(
        "fed(step=1,inputs=5)  all_reduce(64)",
        fed,
        "all_reduce(64)",
        "variable_prints(step=2)",
    )
    assert len(list(same_inputs(sketch(drawing)))) == found


def test_each_rank_may_shuffle_and_cut_files_of_its_own() -> None:
    first = "pipeline_read(source=3)/pipeline_read(source=4)"
    read = "pipeline_read(source=3,steps=1)/pipeline_read(source=4,steps=1)"
    shuffled = _SHUFFLED.format("0+0")
    run = sketch(two_ranks(shuffled, CUT, first, "all_reduce(64)", read))
    assert not list(overlapping_shards(run))
