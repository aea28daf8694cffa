"""Who is in which process group, as the dumps of all ranks tell together.

Two groups without a rank in common may have one name, and a rank may have another list
of members than the rest. So a group is its name and its ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distdoctor.model.events import Event
from distdoctor.model.observations.groups import MembersListed
from distdoctor.model.run import Group, ranges
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.recorder_files import DEFAULT_GROUP


@dataclass(slots=True)
class Memberships:
    """The groups of a job.

    Attributes:
        groups: Each once.
        number: By rank and name of the group there, its position in `groups`.
        lists: By rank, what it takes for the members of groups, where ranks disagree.
    """

    groups: list[Group] = field(default_factory=list)
    number: dict[tuple[int, str], int] = field(default_factory=dict)
    lists: dict[int, list[Event]] = field(default_factory=dict)


def memberships(dumps: Mapping[int, Dump], world_size: int) -> Memberships:
    """Put together what each rank knows of its groups.

    Args:
        dumps: By rank.
        world_size: Of the job.

    Returns:
        The groups, those of the same name after one another.
    """
    reported: dict[str, dict[tuple[int, ...], list[int]]] = {}
    untold: dict[str, list[int]] = {}
    for rank, dump in sorted(dumps.items()):
        for name in dict.fromkeys([*dump.members, *dump.numbers]):
            ranks = dump.members.get(name, ())
            if rank in ranks:
                reported.setdefault(name, {}).setdefault(ranks, []).append(rank)
            elif name in dump.numbers:
                untold.setdefault(name, []).append(rank)
    found = Memberships()
    for name in dict.fromkeys([*reported, *untold]):
        lists = reported.get(name, {})
        for rank in untold.get(name, []):
            ranks = _without_a_list(name, rank, lists, untold[name], world_size)
            lists.setdefault(ranks, []).append(rank)
        _add(found, name, lists)
    return found


def _without_a_list(
    name: str,
    rank: int,
    lists: Iterable[tuple[int, ...]],
    users: list[int],
    world_size: int,
) -> tuple[int, ...]:
    """Members of a group of which a rank has no list: another's, or its callers."""
    for ranks in lists:
        if rank in ranks:
            return ranks
    if name == DEFAULT_GROUP:
        return tuple(range(world_size))
    return tuple(users)


def _add(
    found: Memberships, name: str, lists: Mapping[tuple[int, ...], list[int]]
) -> None:
    by_use = sorted(lists.items(), key=lambda item: (-len(item[1]), item[0]))
    for ranks, users in by_use:
        shown = name if ranks == by_use[0][0] else f"{name} of {ranges(ranks)}"
        for rank in users:
            found.number[rank, name] = len(found.groups)
        found.groups.append(Group(shown, ranks))
    for ranks, users in by_use:
        members = set(ranks)
        if any(other != ranks and members & set(other) for other in lists):
            for rank in users:
                found.lists.setdefault(rank, []).append(
                    MembersListed(rank=rank, group=name, ranks=ranks)
                )
