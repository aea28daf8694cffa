"""Which dump is whose, and which is of another run of the job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distdoctor.model.run import MOST_RANKS
from distdoctor.postmortem.flight_recorder.decoding import Dump

_RANK = re.compile(r"(\d{1,7})\D{0,3}?(?:\.(?:json|pkl|pickle|bin|dump|pt|txt|log))*$")
_FAR_APART_NS = 600 * 1_000_000_000
"""Silence after which a dump without part in the others' calls is of another run.

Our choice: it is the usual timeout, and a job is not started again any sooner.
"""

DEFAULT_GROUP = "0"
_DEFAULT_DESCRIPTION = "default_pg"


@dataclass(slots=True)
class Assigned:
    """Dumps by rank, and what was left out.

    Attributes:
        dumps: By rank.
        paths: Of their files.
        stale: Files of another run: path and rank.
        rejected: Path, reason, and rank if one is known, of other files.
        world_size: That the dumps tell; 0: none does.
    """

    dumps: dict[int, Dump] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    stale: list[tuple[str, int]] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    world_size: int = 0


def rank_of(path: str) -> int | None:
    """The rank in a file's name: its last digits.

    Args:
        path: Of the file.

    Returns:
        The rank; None if there are none.
    """
    name = re.sub(r"\.(?:gz|bz2|xz)$", "", os.path.basename(path))  # noqa: PTH119
    found = _RANK.search(name)
    if found is None or int(found[1]) >= MOST_RANKS:
        return None
    return int(found[1])


def assign(found: Sequence[tuple[str, Dump]]) -> Assigned:
    """Give each dump to its rank.

    Args:
        found: Files and what is in them, in any order.

    Returns:
        The dumps of the latest run.
    """
    given = Assigned()
    by_world: dict[tuple[int, ...], list[tuple[str, int, Dump]]] = {}
    for path, dump in sorted(found, key=lambda one: one[0]):
        rank = rank_of(path)
        if rank is None:
            given.rejected.append((path, "its name does not end with a rank"))
            continue
        by_world.setdefault(_world(dump), []).append((path, rank, dump))
    worlds = _current(by_world)
    for world, files in by_world.items():
        if world in worlds:
            for path, rank, dump in files:
                _give(given, path, rank, dump)
        else:
            given.stale += [(path, rank) for path, rank, _ in files]
    _set_apart(given)
    told = [world for world in worlds if world]
    given.world_size = max((max(world) + 1 for world in told), default=0)
    return given


def _give(given: Assigned, path: str, rank: int, dump: Dump) -> None:
    lists = dump.members.values()
    if lists and not any(rank in ranks for ranks in lists):
        why = f"its name says rank {rank}, which is in none of its groups"
        given.rejected.append((path, why))
    elif rank not in given.dumps:
        given.dumps[rank], given.paths[rank] = dump, path
    elif _last(dump) > _last(given.dumps[rank]):
        given.stale.append((given.paths[rank], rank))
        given.dumps[rank], given.paths[rank] = dump, path
    else:
        given.stale.append((path, rank))


def _world(dump: Dump) -> tuple[int, ...]:
    """The ranks of the whole job, as a dump tells them; empty: it does not."""
    for name, said in dump.descriptions.items():
        if said == _DEFAULT_DESCRIPTION and name in dump.members:
            return tuple(sorted(dump.members[name]))
    return tuple(sorted(dump.members.get(DEFAULT_GROUP, ())))


def _current(
    by_world: Mapping[tuple[int, ...], Sequence[tuple[str, int, Dump]]],
) -> set[tuple[int, ...]]:
    """The world of the latest run, and dumps that tell of none."""
    told = [world for world in by_world if world]
    if len(told) < 2:
        return set(by_world)
    when = {world: max(_last(dump) for _, _, dump in by_world[world]) for world in told}
    latest = max(when.values())
    near = [world for world in told if latest - when[world] < _FAR_APART_NS]
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
    first = {rank: _first(dump) for rank, dump in given.dumps.items()}
    last = {rank: _last(dump) for rank, dump in given.dumps.items()}
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


def _first(dump: Dump) -> int:
    created = dump.entries["created_ns"]
    return int(created[created > 0].min(initial=np.iinfo(np.int64).max))


def _last(dump: Dump) -> int:
    entries = dump.entries
    return int(
        max(
            entries["created_ns"].max(initial=0),
            entries["completed_ns"].max(initial=0),
        )
    )
