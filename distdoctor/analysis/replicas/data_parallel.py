"""Which ranks read data of their own, of those that train one model together.

Ranks that exchange activations while a model computes share the work of one replica, as
tensor, context and expert parallelism do: they may well read the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.observations.gradients import Within
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_MESSAGES = {one.name for one in OPERATIONS if one.is_point_to_point}


@memoize
def data_parallel(run: Run) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks, each of at least two, that each read a part of the data.

    Of ranks that share the work of a replica, each set has one.

    Args:
        run: The run that is judged.

    Returns:
        Each set ascending, and the sets in order.
    """
    found: dict[tuple[int, ...], None] = {}
    for ranks in replicas(run):
        for one in _apart(run, ranks):
            found.setdefault(one)
    return tuple(sorted(found))


def _apart(run: Run, ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Sets of ranks that have nothing to do with each other's forward passes."""
    groups = at_work(run, ranks)
    if not groups:
        if len(ranks) > 1:
            yield tuple(sorted(ranks))
        return
    teams = {rank: {rank} for rank in ranks}
    for group in groups:
        team = set().union(*(teams[rank] for rank in group))
        teams.update(dict.fromkeys(team, team))
    # Ranks at the same place of their teams, as in a mesh, may have the same share.
    once = {id(team): team for team in teams.values()}  # all members have one set
    each = [sorted(team) for team in once.values()]
    for place in range(min(map(len, each))):
        firsts = {team[place] for team in each}
        if len(firsts) > 1:
            yield tuple(sorted(firsts))


def at_work(
    run: Run, ranks: Sequence[int], *, together: bool = False
) -> set[tuple[int, ...]]:
    """Of those ranks, such as exchanged something within a forward pass.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.
        together: Only by collectives: what is sent from one rank to another may go to
            the next stage of a pipeline.

    Returns:
        Sets of at least two ranks, each ascending.
    """
    among = set(ranks)
    members = {
        group.name: tuple(sorted(among.intersection(group.ranks)))
        for group in run.groups
    }
    found = set()
    for rank in filter(run.life.__contains__, ranks):
        rows = run.rows_of(rank)
        for at, _ in run.told(Within, rank=rank):
            if 0 < at <= len(rows):
                call = run.call(rows[at - 1])
                if not together or call.op not in _MESSAGES:
                    found.add(members.get(call.group, ()))
    return {group for group in found if len(group) > 1}
