"""Who waits for whom now, as far as the newest records tell. It proves nothing.

A rank waits for the members of its call's group that have not issued that call; of a
call with a root, for the root where that gives. A member of which some records were
passed over, and none of the rest tells of the group, is not named: it may have come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.model.operations import OPERATIONS, Waits
from distdoctor.model.run import Group
from distdoctor.watching.followed_rank import BlockedCall
from distdoctor.watching.snapshot import RankDoing

LONG_ENOUGH_S = 0.5
"""What takes less is how a healthy job goes on; it is not told."""


@dataclass(slots=True)
class HeldWait:
    """Ranks that wait in calls alike for the same ranks.

    Attributes:
        ranks: Who.
        call: The call of the one that has waited for the longest.
        on: For whom; empty: all have come, or it is not known.
        any_of: One of these is enough.
        unlike: Ranks that stand in another call of that number on the group.
    """

    ranks: list[int]
    call: BlockedCall
    on: frozenset[int]
    any_of: bool = False
    unlike: frozenset[int] = frozenset()


@dataclass(slots=True)
class Arrivals:
    """How far ranks came in the calls of groups.

    Attributes:
        groups: By number.
        reached: By group and rank, the last ordinal that was issued.
        whole: Ranks all of whose records were read.
    """

    groups: Sequence[Group]
    reached: Mapping[int, Mapping[int, int]]
    whole: frozenset[int]
    _absent: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)

    def absent(self, group: int, ordinal: int) -> frozenset[int]:
        """Members that have not issued a collective, and of which that is known."""
        key = group, ordinal
        if key not in self._absent:
            came = self.reached.get(group, {})
            self._absent[key] = frozenset(
                rank
                for rank in self.groups[group].ranks
                if (rank in came or rank in self.whole) and came.get(rank, 0) < ordinal
            )
        return self._absent[key]


def waits_of(
    pending: Sequence[BlockedCall], arrivals: Arrivals, now_ns: int
) -> list[HeldWait]:
    """The waits that have lasted, those of the longest time first.

    Args:
        pending: The calls that ranks are blocked in.
        arrivals: How far they came.
        now_ns: The time, on the monotonic clock.
    """
    alike: dict[object, HeldWait] = {}
    signatures = _signatures(pending)
    for call in pending:
        if now_ns - call.since_ns < LONG_ENOUGH_S * 1e9:
            continue
        on, any_of = _on(call, arrivals)
        if call.doing is RankDoing.BACKWARD and not on:
            continue  # at work in its own backward pass, for all that is known
        same = call.group, call.ordinal, call.signature
        key = (*same, call.op, call.site, call.doing, on)
        known = alike.get(key)
        if known is None:
            others = signatures.get(same[:2], {})
            unlike = frozenset(
                rank
                for signature, ranks in others.items()
                if signature != call.signature
                for rank in ranks
            )
            alike[key] = HeldWait([call.rank], call, on, any_of, unlike)
            continue
        if call.rank not in known.ranks[-1:]:
            known.ranks.append(call.rank)
        if call.since_ns < known.call.since_ns:
            known.call = call
    return sorted(alike.values(), key=lambda one: one.call.since_ns)


def _signatures(
    pending: Sequence[BlockedCall],
) -> dict[tuple[int, int], dict[int, list[int]]]:
    """By group and ordinal, and by signature, who stands in that call.

    What a probe could not read meets any other call, and is left out; so is what is
    matched by name, and what has no order.
    """
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for call in pending:
        if call.ordinal and call.signature and call.group >= 0 and call.op >= 0:
            at = found.setdefault((call.group, call.ordinal), {})
            at.setdefault(call.signature, []).append(call.rank)
    return {key: some for key, some in found.items() if len(some) > 1}


def _on(call: BlockedCall, arrivals: Arrivals) -> tuple[frozenset[int], bool]:
    """Whom a call waits for, and whether one of these is enough."""
    nobody: frozenset[int] = frozenset()
    if call.doing is RankDoing.REFUSED or call.op < 0:
        return nobody, False
    if not 0 <= call.group < len(arrivals.groups):
        return nobody, False
    operation, members = OPERATIONS[call.op], arrivals.groups[call.group].ranks
    peer = members[call.peer] if 0 <= call.peer < len(members) else None
    if operation.is_point_to_point:
        return (nobody if peer is None else frozenset({peer})), False
    if not operation.is_collective or not call.ordinal:
        return nobody, False
    absent = arrivals.absent(call.group, call.ordinal) - {call.rank}
    if not operation.is_rooted or peer is None:
        return absent, False
    if operation.waits is Waits.ROOT and peer in absent:
        return frozenset({peer}), False
    return absent, call.rank != peer or operation.waits is Waits.ROOT
