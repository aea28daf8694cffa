"""Gradients of shards that are averaged with each other, from drawings."""

from textwrap import dedent

import pytest

from distdoctor.analysis.replicas.averaged_shards import findings
from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    replica_divergences,
)
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_origins import makers
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.run import Run

FORWARD = "all_reduce(20)/{group}@t.py:6  within@t.py:6"

AVERAGING = "all_reduce(40)/{group}@t.py:9  sent@t.py:9"


def of_four(
    prints: str,
    *,
    groups: str = "aabb",
    forward: str = FORWARD,
    behind: str = "",
) -> Run:
    """Ranks that average in groups, and began with these weights."""
    lines = []
    for rank, (weights, group) in enumerate(zip(prints, groups, strict=True)):
        step = f"weights(step=1,prints={weights},gradients={ord(group)})@t.py:10"
        lines.append(
            f"rank {rank} | trained(names=w,numels=40)@t.py:4  "
            f"{forward.format(group=group)}  {AVERAGING.format(group=group)}  "
            f"{step}  {behind}"
        )
    return sketch("\n".join(lines))


def causes(run: Run) -> set[DivergenceCause]:
    return {parting.cause for parting in replica_divergences(run)}


@pytest.mark.parametrize("prints", ["1212", "1221"])
def test_shards_that_are_averaged_with_each_other_are_told_once(prints: str) -> None:
    run = of_four(prints)
    assert causes(run) == {DivergenceCause.MESH}
    (finding,) = findings(run)
    assert [place.place.line for place in finding.locations] == [9]
    assert not finding.culprits


def test_replicas_that_were_seeded_apart_are_no_shards() -> None:
    assert causes(of_four("1234")) == {DivergenceCause.START}
    assert causes(of_four("1213")) == {DivergenceCause.START}


def test_without_a_forward_pass_in_common_they_are_replicas_with_other_seeds() -> None:
    assert causes(of_four("1212", forward="")) == {DivergenceCause.START}


def test_what_all_ranks_average_is_no_dimension() -> None:
    assert causes(of_four("1212", groups="aaaa")) == {DivergenceCause.START}


def test_pairs_of_an_ensemble_are_well() -> None:
    assert not causes(of_four("1111"))
    assert not causes(of_four("1122"))


def test_a_rank_that_was_not_seen_may_be_another_shard() -> None:
    seen = of_four("1212")
    run = Run.of_events(
        {rank: list(seen.events(rank)) for rank in range(4)},
        unseen={4: "the rank left no journal"},
        members={group.name: group.ranks for group in seen.groups},
    )
    assert DivergenceCause.MESH not in causes(run)


def test_the_line_that_takes_the_group_is_found_by_the_source() -> None:
    text = dedent("""
        class Parallel:
            def setup(self, mesh):
                self.shards = mesh.get_group("shards")
                self.copies = mesh.get_group(1)

        def average(model, parallel):
            for p in model.parameters():
                dist.all_reduce(p.grad, group=parallel.copies)
    """)
    program = Program({"t.py": text})
    made = {"get_group", "init_device_mesh"}
    found = makers(program, Place("t.py", 9), "group", 2, made)
    assert [place.line for place in found] == [5]
