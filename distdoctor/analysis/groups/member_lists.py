"""Ranks that take other ranks for the members of a group, as recorders tell."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.rendezvous.group_creation import UnlikeGroups
from distdoctor.model.observations.groups import MembersListed
from distdoctor.model.run import Run, named


def unlike_members(run: Run) -> Iterator[Divergence]:
    """Groups of which not all ranks have the same list of members.

    Args:
        run: The run that is judged.

    Yields:
        A divergence for each name that groups with different members in common have.
    """
    lists: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for rank in run.seen:
        for listed in run.of(MembersListed, rank):
            by_ranks = lists.setdefault(listed.group, {})
            by_ranks.setdefault(listed.ranks, []).append(rank)
    for name, by_ranks in lists.items():
        camps = sorted(by_ranks.items(), key=lambda item: (-len(item[1]), item[1]))
        if len(camps) < 2:
            continue
        tie = len(camps[0][1]) == len(camps[1][1])
        few = [] if tie else [rank for _, who in camps[1:] for rank in who]
        yield Divergence(
            why=Cause.GROUPS,
            group=None,
            ordinal=0,
            calls={},
            culprits=tuple(sorted(few)),
            victims=tuple(sorted({r for ranks, _ in camps for r in ranks} - set(few))),
            facts=UnlikeGroups(
                tuple(
                    (tuple(who), named(ranks) if ranks else "other ranks")
                    for ranks, who in camps
                )
            ),
            remarks=f" It is the group {name}.",
            details={"group": name},
        )
