"""Whether the gradients of a model's shards are averaged with each other.

In a mesh each rank holds one shard of a model, and has peers that hold the same one.
Gradients of a shard are averaged among those peers. Where they are averaged among the
ranks that hold the other shards, and that work on one forward pass with it, a dimension
of the mesh was taken for another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.replicas.data_parallel import at_work
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.source.rank_origins import makers
from distdoctor.model.events import Place
from distdoctor.model.observations.gradients import Sent
from distdoctor.model.observations.replicas import Trained
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Run

_MAKING_GROUPS = frozenset(
    {"get_group", "get_all_groups", "new_group", "new_subgroups"}
    | {"new_subgroups_by_enumeration", "init_device_mesh", "DeviceMesh"}
)

_GROUP_OF_ALL_REDUCE = 2
"""Position of the argument `group`."""


def peers(prints: Mapping[int, object]) -> list[tuple[int, ...]]:
    """Ranks that began with the same weights, bit by bit.

    Args:
        prints: By rank, fingerprints of its weights, hashable.

    Returns:
        Sets of ranks, each ascending; a rank without peers is a set of its own.
    """
    by_prints: dict[object, list[int]] = {}
    for rank in sorted(prints):
        by_prints.setdefault(prints[rank], []).append(rank)
    return [tuple(ranks) for ranks in by_prints.values()]


def are_shards(
    run: Run, averaging: Sequence[Sequence[int]], prints: Mapping[int, object]
) -> bool:
    """Whether sets of ranks average the gradients of each other's shards.

    The ranks of each set began with weights of their own, and exchange something within
    forward passes, as those that hold the parts of one model do. Each of them has a
    peer in another set that began with the very same weights, with whom it averages
    nothing. Replicas that were seeded apart have no such peers; replicas of a context
    that is split among ranks average with all of them.

    Args:
        run: The run.
        averaging: Sets of ranks that average their gradients of one model.
        prints: By rank, fingerprints of the weights it began with.

    Returns:
        Whether they do.
    """
    everyone = [rank for ranks in averaging for rank in ranks]
    if (
        run.unseen
        or len(averaging) < 2
        or len(set(everyone)) < len(everyone)
        or set(everyone) != set(prints)
        or set(everyone) != set(range(run.world_size))
    ):
        return False
    same = peers(prints)
    if any(len(ranks) < 2 for ranks in same):
        return False
    averaged = [set(ranks) for ranks in replicas(run)]
    apart = not any(len(set(ranks) & one) > 1 for ranks in same for one in averaged)
    teams = at_work(run, everyone)
    return apart and all(tuple(sorted(ranks)) in teams for ranks in averaging)


def exchanges(run: Run, ranks: Sequence[int]) -> Iterator[tuple[int, Place]]:
    """The lines at which ranks first sent their gradients.

    Where no probe saw them as such, the line that reduces tensors of the most sizes
    that parameters have.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Yields:
        Pairs of a rank and a line; ranks that sent nothing are left out.
    """
    for rank in ranks:
        for event in run.of(Sent, rank):
            if event.place is not None and not event.in_backward:
                yield rank, event.place
                break
        else:
            if (place := _reduces_most(run, rank)) is not None:
                yield rank, place


def _reduces_most(run: Run, rank: int) -> Place | None:
    numels = {numel for model in run.of(Trained, rank) for numel in model.numels}
    rows = run.rows_of(rank)
    calls = run.calls[rows.start : rows.stop]
    calls = calls[np.isin(calls["op"], _REDUCING) & (calls["site"] > 0)]
    sizes: dict[int, set[int]] = {}
    for site, spec in np.unique(calls[["site", "spec"]]).tolist():
        found = sum(tensor.numel for tensor in run.specs[spec].tensors)
        sizes.setdefault(site, set()).update({found} & numels)
    most = max(sizes, key=lambda site: len(sizes[site]), default=None)
    return run.sites[most] if most is not None and sizes[most] else None


_REDUCING = [CODE_OF["all_reduce"], CODE_OF["reduce_scatter_tensor"]]


def groups_taken(run: Run, place: Place) -> list[Place]:
    """Lines at which the group of an exchange was made, or taken from the mesh.

    Args:
        run: The run that is judged.
        place: The line of the exchange.

    Returns:
        The lines; empty if the source is not at hand.
    """
    if place.file not in run.sources:
        return []
    program = program_of(run)
    return makers(program, place, "group", _GROUP_OF_ALL_REDUCE, _MAKING_GROUPS)
