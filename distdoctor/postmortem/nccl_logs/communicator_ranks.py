"""Which process is which rank, and which lines are about one communicator.

The address of a communicator means something in its own process only; what joins its
ranks is its id (from NCCL 2.16), or what it was split from (from 2.18), or else its
size and the order in which a process made its communicators.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from distdoctor.model.events import MOST_RANKS
from distdoctor.postmortem.nccl_logs.process_log import Life, ProcessLog

Key: TypeAlias = tuple[object, ...]

_SURE = 0.9
"""Share of a process's lines that must have one launcher's rank."""


@dataclass(slots=True, eq=False)
class Membership:
    """A process's part in one communicator.

    Attributes:
        process: The process.
        life: The line that it began with, as far as it was read.
        key: The same for all members; see the module.
        lists: Which of the lists of calls at its address are of it.
        began: It said so.
        complete: It was made.
        destroyed: It came to its end.
        aborted: It was torn down.
    """

    process: ProcessLog
    life: Life
    key: Key = ()
    lists: list[int] = field(default_factory=list)
    began: bool = False
    complete: bool = False
    destroyed: bool = False
    aborted: bool = False

    @property
    def calls(self) -> array[int]:
        """Its calls, as numbers of words."""
        lists = self.process.calls.get(self.life.comm, [])
        found = array("I")
        for n in self.lists:
            found.extend(lists[n] if n < len(lists) else array("I"))
        return found


@dataclass(slots=True, eq=False)
class Actor:
    """A rank, as far as the log tells: a process, or one GPU of a process with many.

    Attributes:
        process: Its process.
        rank: In the job; None: the log does not tell.
        device: The CUDA device, if the process has several; -1: any.
    """

    process: ProcessLog
    rank: int | None = None
    device: int = -1


@dataclass(slots=True)
class Cast:
    """Who is who in a log."""

    actors: list[Actor]
    groups: dict[Key, list[Membership]]
    world_size: int
    hosts: dict[str, str]  # by address
    world: set[Key]  # communicators of all ranks

    def actors_of(self, process: ProcessLog, device: int = -1) -> list[Actor]:
        """The ranks of a process; of several, those on a device if one is there."""
        mine = [one for one in self.actors if one.process is process]
        there = [one for one in mine if one.device == device]
        return there if device >= 0 and there and len(mine) > 1 else mine

    def host_of(self, peer: str) -> str:
        """The host that an address or a name is of; itself if nobody knows."""
        if peer in self.hosts:
            return self.hosts[peer]
        short = peer.partition(".")[0] if re.search("[a-zA-Z]", peer) else peer
        names = {actor.process.host for actor in self.actors}
        if short in names:
            return short
        alike = [one for one in names if re.match(re.escape(one) + r"[-_.]", short)]
        return max(alike, key=len) if alike else peer


def cast_of(processes: Iterable[ProcessLog], ranks_named: int = 0) -> Cast:
    """Find out who is who.

    Args:
        processes: All of a job.
        ranks_named: The number of ranks that other lines tell of.
    """
    every = list(processes)
    groups: dict[Key, list[Membership]] = defaultdict(list)
    for process in every:
        for one in _memberships(process):
            groups[one.key].append(one)
    groups = dict(_parted(groups))
    ranks, world_size, world = _ranks(every, groups, ranks_named)
    actors = []
    for process in every:
        mine = ranks.get(id(process), [])
        for rank, device in mine:
            actors.append(Actor(process, rank, device if len(mine) > 1 else -1))
        if not mine:
            actors.append(Actor(process))
    return Cast(actors, groups, world_size, _hosts(every), world)


def _memberships(process: ProcessLog) -> list[Membership]:
    found: list[Membership] = []
    current: dict[str, Membership] = {}
    opened: dict[str, int] = defaultdict(int)
    seen: dict[object, int] = defaultdict(int)
    for life in process.lives:
        comm, one = life.comm, current.get(life.comm)
        opened[comm] += life.opens
        if life.what == "Init START" or one is None or one.destroyed or one.aborted:
            fresh = True
        else:
            fresh = life.what == "Init COMPLETE" and (
                one.complete or one.life.rank != life.rank
            )
        if fresh:
            one = current[comm] = Membership(process, life)
            one.lists.append(opened[comm])
            found.append(one)
            one.key = _key(one, current, seen)
        assert one is not None
        if life.opens and opened[comm] not in one.lists:
            one.lists.append(opened[comm])
        if life.what == "Init START":
            one.began = True
        elif life.what == "Init COMPLETE":
            one.complete = True
        elif life.what.startswith("Destroy"):
            one.complete = one.destroyed = True
        else:
            one.aborted = True
    for one in found:
        if not one.complete and not one.aborted and len(one.calls):
            one.complete = True  # the line was lost: it was used
    return found


def _key(
    one: Membership, current: dict[str, Membership], seen: dict[object, int]
) -> Key:
    life = one.life
    if life.parent:
        parent = current.get(life.parent)
        of: Key = parent.key if parent is not None and parent is not one else ("?",)
        base: Key = ("split", of, life.count, life.color, life.ident)
    elif life.ident:
        base = ("id", life.ident)
    else:
        base = ("size", life.size)
    seen[base, life.rank] += 1
    return (*base, 0 if life.count else seen[base, life.rank])


def _parted(
    groups: dict[Key, list[Membership]],
) -> Iterable[tuple[Key, list[Membership]]]:
    """Communicators; what took several for one is parted by host, or given up."""
    for key, members in groups.items():
        if len({one.life.rank for one in members}) == len(members):
            yield key, members
            continue
        by_host: dict[str, list[Membership]] = defaultdict(list)
        for one in members:
            by_host[one.process.host].append(one)
        if key[0] != "id" and all(
            len({one.life.rank for one in some}) == len(some) == some[0].life.size
            for some in by_host.values()
        ):
            for host, some in by_host.items():
                for one in some:
                    one.key = (*key, host)
                yield (*key, host), some
        else:
            for n, one in enumerate(members):
                one.key = (*key, "apart", n)
                yield one.key, [one]


def _ranks(
    processes: Sequence[ProcessLog],
    groups: dict[Key, list[Membership]],
    ranks_named: int,
) -> tuple[dict[int, list[tuple[int, int]]], int, set[Key]]:
    """By process, its ranks and their devices; the size of the job; its own groups."""
    launched = _launched(processes)
    reported = max([ranks_named, *(rank + 1 for rank in launched.values())], default=0)
    size = max((one.life.size for some in groups.values() for one in some), default=0)
    found: dict[int, dict[int, int]] = defaultdict(dict)
    owner: dict[int, int] = {}
    world = set()
    sure = size >= reported
    for key, members in groups.items():
        if members[0].life.size != size or not sure:
            continue
        world.add(key)
        for one in members:
            process, rank = id(one.process), one.life.rank
            sure &= owner.setdefault(rank, process) == process
            found[process].setdefault(rank, one.life.device)
    if not sure:
        found, world = defaultdict(dict), set()
    for process, rank in {**_hinted(processes), **launched}.items():
        if process not in found and owner.setdefault(rank, process) == process:
            found[process] = {rank: -1}
    if not owner:
        found.update({process: {n: -1} for process, n in _only_host(processes).items()})
    ranks = {process: sorted(some.items()) for process, some in found.items()}
    known = max((rank + 1 for some in found.values() for rank in some), default=0)
    return ranks, max(reported, known, size if sure else 0), world


def _launched(processes: Sequence[ProcessLog]) -> dict[int, int]:
    """By process, its rank as its launcher has it; none if that means another thing."""
    found: dict[int, int] = {}
    for process in processes:
        ranks = process.launcher_ranks
        if not ranks:
            continue
        rank, often = max(ranks.items(), key=lambda one: one[1])
        if rank < MOST_RANKS and often >= _SURE * sum(ranks.values()):
            found[id(process)] = rank
    return found if len(set(found.values())) == len(found) else {}


def _hinted(processes: Sequence[ProcessLog]) -> dict[int, int]:
    """By process, its rank by the edges that it tells; none if two tell the same."""
    hinted = {
        id(process): max(process.hints, key=process.hints.__getitem__)
        for process in processes
        if process.hints
    }
    found = {process: rank for process, rank in hinted.items() if rank < MOST_RANKS}
    return found if len(set(found.values())) == len(found) else {}


def _only_host(processes: Sequence[ProcessLog]) -> dict[int, int]:
    """By process of the only host, its device, where processes have them in order.

    Launchers number the ranks of a host so; nothing else tells them when no
    communicator was begun.
    """
    ordered = sorted(processes, key=lambda one: one.pid)
    devices = [one.device for one in ordered]
    is_alone = len({one.host for one in ordered}) == 1
    if len(ordered) < 2 or not is_alone or devices != list(range(len(ordered))):
        return {}
    return {id(one): n for n, one in enumerate(ordered)}


def _hosts(processes: Sequence[ProcessLog]) -> dict[str, str]:
    owners: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        for address in process.addresses:
            owners[address].add(process.host)
    return {
        address: next(iter(hosts))
        for address, hosts in owners.items()
        if len(hosts) == 1
    }
