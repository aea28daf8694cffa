"""Who is in which process group, as the dumps of all ranks tell together.

Two groups without a rank in common may have one name, and a rank may have another list
of members than the rest. So a group is its name and its ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from distdoctor.model.events import WORLD, Event
from distdoctor.model.observations.groups import MembersListed
from distdoctor.model.run import Group, ranges
from distdoctor.postmortem.flight_recorder.creation_order import passed_over
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.entry_columns import Kind
from distdoctor.postmortem.flight_recorder.recorder_files import (
    DEFAULT_DESCRIPTION,
    DEFAULT_GROUP,
)

_Members = tuple[int, ...]


@dataclass(slots=True)
class Memberships:
    """The groups of a job.

    Attributes:
        groups: Each once, with a name for readers.
        names: Of each, the name that dumps have; several may have one.
        number: By rank and name of the group there, its position in `groups`.
        lists: By rank, what it takes for the members of groups, where ranks disagree.
        taken: Names for readers that are taken.
    """

    groups: list[Group] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    number: dict[tuple[int, str], int] = field(default_factory=dict)
    lists: dict[int, list[Event]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)


def memberships(
    dumps: Mapping[int, Dump], world_size: int, kinds: Iterable[Kind] = ()
) -> Memberships:
    """Put together what each rank knows of its groups.

    Args:
        dumps: By rank.
        world_size: Of the job.
        kinds: Of the calls, which tell what their groups are said to be for.

    Returns:
        The groups, those of the same name after one another.
    """
    reported: dict[str, dict[_Members, list[int]]] = {}
    untold: dict[str, list[int]] = {}
    users: dict[tuple[str, int], list[int]] = {}
    for rank, name, ranks in _told(dumps):
        if not ranks:
            untold.setdefault(name, []).append(rank)
            continue
        if (name, id(ranks)) not in users:
            users[name, id(ranks)] = reported.setdefault(name, {}).setdefault(ranks, [])
        users[name, id(ranks)].append(rank)
    found = Memberships()
    labels = _labels(dumps, kinds, [*reported, *untold])
    for name, label in labels.items():
        lists = reported.get(name, {})
        for rank in untold.get(name, []):
            ranks = _without_a_list(name, rank, lists, untold[name], world_size)
            lists.setdefault(ranks, []).append(rank)
        _add(found, name, label, lists)
    for name, passing in passed_over(dumps, reported).items():
        _tell(found, labels[name], {**reported[name], (): passing})
    return found


def _told(dumps: Mapping[int, Dump]) -> Iterator[tuple[int, str, _Members]]:
    """Rank, name of a group of its, and its members; none: the dump has no list.

    Lists that are equal are one object: a list of all ranks is looked at once.
    """
    known: dict[_Members, _Members] = {}
    same: dict[int, tuple[_Members, frozenset[int]]] = {}
    for rank, dump in sorted(dumps.items()):
        for name in dict.fromkeys([*dump.members, *dump.numbers]):
            ranks = dump.members.get(name, ())
            if id(ranks) not in same:
                kept = known.setdefault(ranks, ranks)
                same[id(ranks)] = kept, frozenset(kept)
            kept, members = same[id(ranks)]
            if rank in members:
                yield rank, name, kept
            elif name in dump.numbers:
                yield rank, name, ()


@dataclass(frozen=True, slots=True)
class _Label:
    """How readers know a group; several may have one label."""

    text: str
    is_shared: bool


def _labels(
    dumps: Mapping[int, Dump], kinds: Iterable[Kind], names: Iterable[str]
) -> dict[str, _Label]:
    """By name of a group, how readers know it: by what it is said to be for."""
    stated = {group[0]: group[1] for group, *_ in kinds if group[1]}
    for dump in {id(dump.descriptions): dump for dump in dumps.values()}.values():
        stated |= {name: said for name, said in dump.descriptions.items() if said}
    texts = {name: _text(name, stated.get(name, "")) for name in names}
    counts = Counter(texts.values())
    return {name: _Label(text, counts[text] > 1) for name, text in texts.items()}


def _text(name: str, said: str) -> str:
    if said == DEFAULT_DESCRIPTION or (name == DEFAULT_GROUP and said in _NOTHING):
        return WORLD
    if said not in _NOTHING:
        return said[:_LONGEST]
    if name.isdigit() or len(name) > _LONGEST:
        return f"group_{name[:_LONGEST]}"
    return name or "the group"


_NOTHING = {"", "undefined"}
_LONGEST = 64  # characters of a name that is shown
_SHORT = 24  # characters of ranks that are shown


def _without_a_list(
    name: str,
    rank: int,
    lists: Iterable[_Members],
    users: list[int],
    world_size: int,
) -> _Members:
    """Members of a group of which a rank has no list: another's, or its callers."""
    for ranks in lists:
        if rank in ranks:
            return ranks
    if name == DEFAULT_GROUP:
        return tuple(range(world_size))
    return tuple(users)


def _add(
    found: Memberships, name: str, label: _Label, lists: Mapping[_Members, list[int]]
) -> None:
    by_use = sorted(lists.items(), key=lambda item: (-len(item[1]), item[0]))
    for ranks, users in by_use:
        shown = label.text
        if label.is_shared or ranks != by_use[0][0]:
            shown = _told_apart(found, label.text, name, ranks)
        for rank in users:
            found.number[rank, name] = len(found.groups)
        found.groups.append(Group(shown, ranks))
        found.names.append(name)
        found.taken.add(shown)
    unlike = {
        ranks: users
        for ranks, users in by_use
        if any(other != ranks and not set(ranks).isdisjoint(other) for other in lists)
    }
    _tell(found, label, unlike)


def _tell(
    found: Memberships, label: _Label, lists: Mapping[_Members, Iterable[int]]
) -> None:
    """Note who takes whom for the members of a group."""
    for ranks, users in lists.items():
        for rank in users:
            found.lists.setdefault(rank, []).append(
                MembersListed(rank=rank, group=label.text, ranks=ranks)
            )


def _told_apart(found: Memberships, text: str, name: str, ranks: _Members) -> str:
    """A name that no other group has: by its members, if these are said in short."""
    among = ranges(ranks)
    for shown in (f"{text} of {among}", f"{text} ({name})"):
        if shown not in found.taken and len(shown) <= len(text) + _SHORT:
            return shown
    return f"{text} ({name}) of {among}"
