"""Which dump is whose, and which is of another run of the job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distdoctor.model.events import MOST_RANKS
from distdoctor.postmortem import rank_names
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.entry_columns import CREATED

_LAST = re.compile(r"(\d{1,7})\D{0,3}?(?:\.[a-z_]{1,10})*$", re.IGNORECASE)
_FAR_APART_NS = 600 * 1_000_000_000
"""Silence after which a dump without part in the others' calls is of another run.

Our choice: it is the usual timeout, and a job is not started again any sooner.
"""

DEFAULT_GROUP = "0"
DEFAULT_DESCRIPTION = "default_pg"


@dataclass(slots=True)
class Assigned:
    """Dumps by rank, and what was left out.

    Attributes:
        dumps: By rank.
        paths: Of their files.
        stale: Files of another run: path and rank.
        rejected: Path and reason of other files.
        doubled: Path and reason of dumps of which there is a better one.
        clashing: Numbers that dumps of several ranks have: whose they are is not known.
        world_size: That the dumps tell; 0: none does.
    """

    dumps: dict[int, Dump] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    stale: list[tuple[str, int]] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    doubled: list[tuple[str, str]] = field(default_factory=list)
    clashing: set[int] = field(default_factory=set)
    world_size: int = 0


def rank_of(path: str) -> int | None:
    """The rank in a file's name: the digits behind "rank", or the last ones.

    Args:
        path: Of the file.

    Returns:
        The rank; None if there are none.
    """
    name = re.sub(r"\.(?:gz|bz2|xz)$", "", os.path.basename(path))  # noqa: PTH119
    rank = rank_names.rank_of(name) if "rank" in name.lower() else None
    if rank is None:
        found = _LAST.search(name)
        rank = rank_names.rank_of(path) if found is None else int(found[1])
    return rank if rank is not None and rank < MOST_RANKS else None


def assign(found: Sequence[tuple[str, Dump]]) -> Assigned:
    """Give each dump to its rank.

    Args:
        found: Files and what is in them, in any order.

    Returns:
        The dumps of the latest run.
    """
    given = Assigned()
    by_world: dict[tuple[int, ...], list[tuple[str, int, Dump]]] = {}
    same: dict[int, list[tuple[str, int, Dump]]] = {}  # a list of all ranks is long
    for path, dump in sorted(found, key=lambda one: one[0]):
        rank = rank_of(path)
        if rank is None:
            given.rejected.append((path, "its name does not tell a rank"))
            continue
        if id(dump.members) not in same:
            same[id(dump.members)] = by_world.setdefault(_world(dump), [])
        same[id(dump.members)].append((path, rank, dump))
    worlds = _current(by_world)
    known: dict[int, frozenset[int]] = {}
    for world, files in by_world.items():
        if world in worlds:
            for path, rank, dump in files:
                if id(dump.members) not in known:
                    known[id(dump.members)] = frozenset().union(*dump.members.values())
                _give(given, path, rank, dump, known[id(dump.members)])
        else:
            given.stale += [(path, rank) for path, rank, _ in files]
    for rank in given.clashing:
        path = given.paths.pop(rank)
        del given.dumps[rank]
        why = f"several dumps have the number {rank}: whose they are is not known"
        given.rejected.append((path, why))
    _set_apart(given)
    reported = [world for world in worlds if world]
    given.world_size = max((max(world) + 1 for world in reported), default=0)
    return given


def _give(
    given: Assigned, path: str, rank: int, dump: Dump, listed: frozenset[int]
) -> None:
    if dump.members and rank not in listed:
        why = f"its name says rank {rank}, which is in none of its groups"
        given.rejected.append((path, why))
    elif rank not in given.dumps:
        given.dumps[rank], given.paths[rank] = dump, path
    else:
        _give_again(given, path, rank, dump)


def _give_again(given: Assigned, path: str, rank: int, dump: Dump) -> None:
    """A second dump with one rank's number: of the same ring, an older run, or another.

    Where names end with the rank on a host, files of several hosts have one number.
    """
    known = given.dumps[rank]
    if _is_of_one_ring(known, dump):
        left = path
        if _worth(dump) > _worth(known):
            left = given.paths[rank]
            given.dumps[rank], given.paths[rank] = dump, path
        given.doubled.append((left, f"there is another dump of rank {rank}"))
    elif abs(dump.last_ns - known.last_ns) > _FAR_APART_NS:
        if dump.last_ns > known.last_ns:
            given.stale.append((given.paths[rank], rank))
            given.dumps[rank], given.paths[rank] = dump, path
        else:
            given.stale.append((path, rank))
    else:
        given.clashing.add(rank)


def _is_of_one_ring(one: Dump, other: Dump) -> bool:
    """Whether calls that both have were made at the same times."""
    a, b = one.entries, other.entries
    _, mine, theirs = np.intersect1d(a["record"], b["record"], return_indices=True)
    same = one.times[CREATED, mine] == other.times[CREATED, theirs]
    return bool(len(same)) and bool(same.all())


def _worth(dump: Dump) -> tuple[int, bool]:
    """How much a dump tells: how far it goes, and whether it has stacks."""
    return dump.last_ns, bool(dump.entries["chain"].any())


def _world(dump: Dump) -> tuple[int, ...]:
    """The ranks of the whole job, as a dump tells them; empty: it does not."""
    for name, stated in dump.descriptions.items():
        if stated == DEFAULT_DESCRIPTION and name in dump.members:
            return tuple(sorted(dump.members[name]))
    return tuple(sorted(dump.members.get(DEFAULT_GROUP, ())))


def _current(
    by_world: Mapping[tuple[int, ...], Sequence[tuple[str, int, Dump]]],
) -> set[tuple[int, ...]]:
    """The world of the latest run, and dumps that tell of none."""
    reported = [world for world in by_world if world]
    if len(reported) < 2:
        return set(by_world)
    when = {
        world: max(dump.last_ns for _, _, dump in by_world[world]) for world in reported
    }
    latest = max(when.values())
    near = [world for world in reported if latest - when[world] < _FAR_APART_NS]
    if len(near) == 1 or not _disagree(near):
        return {*near, ()}
    # Runs that follow close on each other: the one with the most of its files.
    whole = {
        world: len({rank for _, rank, _ in by_world[world]} & set(world)) / len(world)
        for world in near
    }
    if len({round(share, 3) for share in whole.values()}) > 1:
        return {max(whole, key=lambda world: (whole[world], when[world])), ()}
    return {max(when, key=lambda world: when[world]), ()}


def _disagree(worlds: Sequence[tuple[int, ...]]) -> bool:
    """Whether no rank of one run can be in the other: sizes are those of two runs.

    A rank that made the default group from another list is a fault of one run; there
    the lists differ and the sizes of the job are nearly the same. A default group
    always holds all ranks from 0.
    """
    return len({len(world) for world in worlds}) > 1


def _set_apart(given: Assigned) -> None:
    """Dumps that are far older than all others and had no part in their calls."""
    if len(given.dumps) < 2:
        return
    first = {rank: dump.first_ns for rank, dump in given.dumps.items()}
    last = {rank: dump.last_ns for rank, dump in given.dumps.items()}
    timed = sorted(rank for rank in given.dumps if last[rank])
    if len(timed) < 2:
        return
    ends = sorted(last[rank] for rank in timed)
    gaps = np.diff(np.array(ends, np.int64))
    wide = np.flatnonzero(gaps > _FAR_APART_NS)
    if not len(wide):
        return
    newest = [rank for rank in timed if last[rank] >= ends[int(wide[-1]) + 1]]
    begun = min(first[rank] for rank in newest)
    for rank in timed:
        old = rank not in newest and begun - last[rank] > _FAR_APART_NS
        if old and not _has_part(given.dumps[rank], [given.dumps[n] for n in newest]):
            given.stale.append((given.paths.pop(rank), rank))
            del given.dumps[rank]


def _has_part(old: Dump, others: Iterable[Dump]) -> bool:
    """Whether what others completed is no more than what an old one had come to.

    A rank that stopped long ago keeps its groups from going on; one of another run does
    not.
    """
    mine = old.reached()
    done: dict[str, int] = {}
    for dump in others:
        for group, ordinal in dump.reached(completed=True).items():
            done[group] = max(done.get(group, 0), ordinal)
    return all(done.get(group, 0) <= ordinal for group, ordinal in mine.items())
