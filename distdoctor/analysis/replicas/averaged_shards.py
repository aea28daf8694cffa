"""What is told of shards whose gradients are averaged with each other."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    ReplicaDivergence,
    replica_divergences,
)
from distdoctor.analysis.replicas.shard_dimensions import exchanges, groups_taken, peers
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role
from distdoctor.model.run import Run, named

_MOST_TOLD = 4  # sets of ranks, in words


def findings(run: Run) -> Iterator[Finding]:
    """One finding for each model whose shards are averaged with each other.

    Args:
        run: The run that is judged.

    Yields:
        The findings.
    """
    by_model: dict[int, list[ReplicaDivergence]] = {}
    for parting in replica_divergences(run):
        if parting.cause is DivergenceCause.MESH:
            by_model.setdefault(parting.model, []).append(parting)
    for found in by_model.values():
        yield _finding(run, found)


def _finding(run: Run, found: list[ReplicaDivergence]) -> Finding:
    seen = {rank: one.seen[rank] for one in found for rank in one.ranks}
    step = found[0].step
    same = peers({rank: one.weights[step].prints for rank, one in seen.items()})
    shown: dict[object, Event] = {}
    for one in seen.values():
        weights = one.weights[step]
        shown.setdefault(weights.prints, one.whole.weights[step])
    return Finding(
        message=f"Gradients are averaged among {_sets([one.ranks for one in found])}, "
        "whose weights differ from the start and which work on one forward pass "
        f"together, as the shards of a model do; {_sets(same)} began with the same "
        "weights, and never average: one dimension of the mesh was taken for another.",
        exhibits=tuple(shown.values()),
        victims=tuple(sorted(seen)),
        locations=tuple(_locations(run, sorted(seen))),
        certainty=Certainty.LIKELY,
        details={
            "averaging": [list(one.ranks) for one in found],
            "alike": [list(ranks) for ranks in same],
        },
    )


def _sets(sets: list[tuple[int, ...]]) -> str:
    text = " and among ".join(named(ranks) for ranks in sets[:_MOST_TOLD])
    return text + " and others" * (len(sets) > _MOST_TOLD)


def _locations(run: Run, ranks: list[int]) -> Iterator[Location]:
    lines: dict[Place, list[int]] = {}
    for rank, place in exchanges(run, ranks):
        lines.setdefault(place, []).append(rank)
    for place, who in lines.items():
        yield Location(place, tuple(who), Role.PARTY, "averages the gradients")
    for place in dict.fromkeys(
        one for line in lines for one in groups_taken(run, line)
    ):
        yield Location(place, tuple(ranks), Role.PARTY, "takes the group")
