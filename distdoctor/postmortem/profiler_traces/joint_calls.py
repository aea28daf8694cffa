"""Collectives of all ranks, matched by their order in a group: who waited for whom.

Clocks of ranks need not agree. No member ends an all-reduce, all-gather or
reduce-scatter before all have come, and all end it together: who came last has the
shortest duration, which is what the transfer took, and what the others took longer is
waiting. The NCCL analyser of TraceLens (AMD-AGI) matches and reckons likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.profiler_traces.interval_sets import Times
from distdoctor.postmortem.profiler_traces.rank_timeline import TracedKind, TracedRank

_ONE_RUN_NS = 600 * 10**9
"""Clocks of machines differ by less, and a job that is started again begins later."""

_NEARLY_ALL = 0.9


@dataclass(slots=True)
class LateRank:
    """A rank that others waited for.

    Attributes:
        times: Collectives to which it came last.
        waited_ns: By all others together.
        window_ns: For how long it was waited for, as the median of the others has it.
        computing_ns: Of that, while it computed.
    """

    times: int = 0
    waited_ns: int = 0
    window_ns: int = 0
    computing_ns: int = 0


@dataclass(slots=True)
class JointCalls:
    """What the traces of all ranks tell together.

    Attributes:
        waits: By rank, of each of its collectives, how long it waited at its beginning
            for the last member, in ns; -1: not known.
        whys: By rank, why this is not known of some.
        late: By rank, how it was waited for.
        times: How many collectives could be matched.
    """

    waits: dict[int, Times] = field(default_factory=dict)
    whys: dict[int, str] = field(default_factory=dict)
    late: dict[int, LateRank] = field(default_factory=dict)
    times: int = 0

    def why_unknown(self, rank: int, traced: TracedRank) -> str:
        """Why it cannot be told how long a rank waited; "": it can.

        Args:
            rank: Which.
            traced: What is kept of its trace.
        """
        known = self.waits[rank] >= 0
        took = traced.ends - traced.starts
        if took[known].sum() >= _NEARLY_ALL * took.sum():
            return ""
        return self.whys.get(
            rank, "most of it is in calls that need not wait for all members"
        )


def joint_calls(ranks: Mapping[int, TracedRank]) -> JointCalls:
    """Match the collectives of all ranks.

    Args:
        ranks: What is kept of the trace of each.
    """
    found = JointCalls()
    groups: dict[tuple[str, str], dict[int, int]] = {}
    for rank, traced in ranks.items():
        found.waits[rank] = np.full(len(traced.starts), -1, np.int64)
        for kind in traced.kinds:
            if kind.group and kind.members > 1:
                key = kind.group, kind.among
                groups.setdefault(key, {})[rank] = kind.members
            elif not kind.group:
                found.whys[rank] = "its trace does not tell of which group they are"
    for key, sizes in groups.items():
        why = _match(key, sizes, ranks, found)
        if why:
            for rank in sizes:
                found.whys.setdefault(rank, why)
    return found


def _match(
    key: tuple[str, str],
    sizes: Mapping[int, int],
    ranks: Mapping[int, TracedRank],
    found: JointCalls,
) -> str:
    """Match those of one group; why that cannot be done, or ""."""
    size, name = max(sizes.values()), key[0]
    if {*sizes.values()} != {len(sizes)}:
        return f"of {size} members of group {name}, {len(sizes)} left a trace"
    begins = [ranks[rank].begin for rank in sizes]
    if max(begins) - min(begins) > _ONE_RUN_NS:
        return "the traces of its ranks are of different times"
    at = {rank: _calls_of(key, ranks[rank]) for rank in sizes}
    if len({*map(len, at.values())}) != 1:
        return f"the traces do not hold equally many calls of group {name}"
    known: dict[TracedKind, int] = {}
    kinds = [_kinds(ranks[rank], rows, known) for rank, rows in at.items()]
    if any((one != kinds[0]).any() for one in kinds):
        return f"the traces do not hold the same calls of group {name}"
    waiting = np.array([one.waits_for_all for one in known], bool)[kinds[0]]
    _reckon({rank: rows[waiting] for rank, rows in at.items()}, ranks, found)
    return ""


def _calls_of(key: tuple[str, str], traced: TracedRank) -> Times:
    kinds = [(one.group, one.among) == key for one in traced.kinds]
    mine = np.array(kinds or [False], bool)
    return np.flatnonzero(mine[traced.kind])


def _kinds(traced: TracedRank, rows: Times, known: dict[TracedKind, int]) -> Times:
    """Kinds by numbers that are the same for all ranks."""
    numbers = [known.setdefault(one, len(known)) for one in traced.kinds]
    return np.array(numbers or [0], np.int64)[traced.kind[rows]]


def _reckon(
    at: Mapping[int, Times], ranks: Mapping[int, TracedRank], found: JointCalls
) -> None:
    members = [*at]
    took = np.stack([(ranks[r].ends - ranks[r].starts)[at[r]] for r in members])
    if not took.size:
        return
    waits = took - took.min(axis=0)
    last: NDArray[np.int64] = took.argmin(axis=0)
    usual = np.sort(waits, axis=0)[1:]
    window = np.median(usual, axis=0).astype(np.int64)
    found.times += took.shape[1]
    for n, rank in enumerate(members):
        found.waits[rank][at[rank]] = waits[n]
        mine = (last == n) & (window > 0)
        if not mine.any():
            continue
        starts = ranks[rank].starts[at[rank]][mine]
        computing = ranks[rank].computing.within(starts - window[mine], starts)
        late = found.late.setdefault(rank, LateRank())
        late.times += int(mine.sum())
        late.waited_ns += int(waits[:, mine].sum())
        late.window_ns += int(window[mine].sum())
        late.computing_ns += int(computing.sum())
