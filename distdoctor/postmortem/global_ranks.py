"""Ranks of the job for ranks in communicators, where only processes join the two.

The largest communicator is that of the whole job, and numbers its members as the job
does, if all others are parts of it. Where that cannot be seen, nothing is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from distdoctor.model.events import MOST_RANKS

Members = Mapping[int, Hashable]
"""By rank in a communicator, what its process and GPU are known by."""


@dataclass(frozen=True, slots=True)
class GlobalRanks:
    """Who is who.

    Attributes:
        world_size: Of the job; 0: not known.
        of_process: By what a process is known by, its rank in the job.
        world: The communicators of the whole job.
    """

    world_size: int = 0
    of_process: Mapping[Hashable, int] = field(default_factory=dict)
    world: frozenset[str] = frozenset()

    def of(self, comm: str, member: int, process: Hashable) -> int:
        """The rank in the job of a member.

        Args:
            comm: Its communicator.
            member: Its rank in it.
            process: What it is known by.

        Returns:
            Its rank; -1: not known.
        """
        if comm in self.world:
            return member
        return self.of_process.get(process, -1)


def global_ranks(
    comms: Mapping[str, tuple[int, Members]], reported: int = 0
) -> GlobalRanks:
    """Who is who in these communicators.

    Args:
        comms: By name, the size and what is known of the members.
        reported: The world size, if anything else tells it; 0: nothing does.

    Returns:
        What can be told for sure.
    """
    size = max((size for size, _ in comms.values()), default=0)
    if not 0 < size <= MOST_RANKS or reported not in {0, size}:
        return GlobalRanks()
    world = {name for name, (of, _) in comms.items() if of == size}
    ranks: dict[Hashable, int] = {}
    for name in world:
        members = comms[name][1]
        often = Counter(members.values())
        for member, process in members.items():
            if often[process] > 1:
                continue  # one process with several ranks
            if ranks.setdefault(process, member) != member:
                return GlobalRanks()  # two halves of a job, or another order of ranks
    whole = all(len(comms[name][1]) == size for name in world)
    if len(world) > 1 and not whole:
        return GlobalRanks()
    rest = {
        process
        for name, (_, members) in comms.items()
        if name not in world
        for process in members.values()
    }
    if whole and len(ranks) == size and not rest <= ranks.keys():
        return GlobalRanks()
    if whole and len(ranks) > size:
        return GlobalRanks()
    return GlobalRanks(size, ranks, frozenset(world))
