"""Ranks for which others wait, and of which no call tells where they are.

They may be late, stuck in their own code, or gone. What decides is time that went by
while the others waited, how far those ran ahead, and whether the rank left a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.deadlock.recorded_waits import recorded_waits
from distdoctor.analysis.deadlock.wait_for_graph import Wait, held_up
from distdoctor.analysis.divergence.recorded_slips import LostRanks, NeverCame
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Call, Place, State
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.observations.failures import TimedOut
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

SILENT_S = 60.0
"""That others went on calling while a rank made no call and was waited for.

Our choice: some save or evaluate on one rank for long, and yet the others stand in the
very call then; here they do not, or their own recorders went on.
"""

LONGER = 10.0  # times its own longest silence before
FAR_AHEAD = 32  # calls on one group, that most of its members are ahead


@dataclass(frozen=True, slots=True)
class RankBehind:
    """Ranks that have not made a call for which others wait.

    Attributes:
        ranks: Those behind; they wait for nobody themselves.
        waiting: Who waits for them.
        call: In which call, of the first that waits.
        seconds: How long, as the times in the dumps tell, at least.
        ahead: Calls that most members of its group are ahead.
        timed_out: A call that waits for them was given up, or outlived its timeout.
        ordinal: Of the call on its group.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    call: Call
    seconds: float
    ahead: int
    timed_out: bool
    ordinal: int


@memoize
def ranks_behind(run: Run) -> list[RankBehind]:
    """Where chains of waits end that close no circle.

    Args:
        run: The run that is judged.

    Returns:
        For each set of ranks that others wait for, what is known of them.
    """
    waits = recorded_waits(run).all
    ends: dict[frozenset[int], list[Wait]] = {}
    for found in waits.values():
        for wait in found:
            last = frozenset(rank for rank in wait.missing if rank not in waits)
            if last:
                ends.setdefault(last, []).append(wait)
    every = [_behind(run, ranks, found) for ranks, found in ends.items()]
    if len(every) == 1 and _any_given_up(run, waits, every[0].waiting):
        return [replace(every[0], timed_out=True)]  # all waits lead there
    return every


def _behind(run: Run, ranks: frozenset[int], found: list[Wait]) -> RankBehind:
    rows = np.array([wait.row for wait in found])
    calls = run.calls
    entered = calls["enter_ns"][rows]
    first = found[int(entered.argmin())]
    timed_out = bool((calls["state"][rows] == State.RAISED).any())
    timed_out |= any(_given_up(run, wait) for wait in found)
    newest = int(max(calls["enter_ns"].max(), calls["complete_ns"].max()))
    heard = [_last_heard(run, rank) for rank in ranks if rank not in run.unseen]
    since = max(int(entered.min()), *heard, 0)
    seconds = (newest - since) / 1e9 if entered.min() > 0 else 0.0
    waiting = held_up(recorded_waits(run).all, ranks) - ranks
    call = run.call(first.row)
    return RankBehind(
        tuple(sorted(ranks)),
        tuple(sorted(waiting)),
        call,
        seconds,
        _ahead(run, first, ranks),
        timed_out,
        call.ordinal,
    )


def _any_given_up(
    run: Run, waits: Mapping[int, Sequence[Wait]], ranks: Iterable[int]
) -> bool:
    """Whether one of these ranks gave its call up."""
    rows = [wait.row for rank in ranks for wait in waits.get(rank, ())]
    return bool((run.calls["state"][rows] == State.RAISED).any())


def _given_up(run: Run, wait: Wait) -> bool:
    """Whether the rank that waits said that it gave up this call."""
    ordinal = int(run.calls["ordinal"][wait.row])
    return any(
        reported.number in {0, ordinal}
        and (reported.number or len(reported.absent) == 0)
        for reported in run.of(TimedOut, wait.rank)
    )


def _last_heard(run: Run, rank: int) -> int:
    mine = run.rows_of(rank)
    part = run.calls[mine.start : mine.stop]
    return int(max(part["enter_ns"].max(initial=0), part["complete_ns"].max(initial=0)))


def _ahead(run: Run, wait: Wait, ranks: Iterable[int]) -> int:
    """How many calls the members of a group have made beyond those missing."""
    calls = run.calls
    if OPERATIONS[calls["op"][wait.row]].is_point_to_point:
        return 0
    same = np.flatnonzero(calls["group"] == calls["group"][wait.row])
    number = int(calls["group"][wait.row])
    last = {rank: n for (group, rank), n in run.reached.items() if group == number}
    for rank, ordinal in calls[["rank", "ordinal"]][same].tolist():
        last[rank] = max(last.get(rank, 0), ordinal)
    reached = max((last.get(rank, 0) for rank in ranks), default=0)
    others = [value for rank, value in last.items() if rank not in set(ranks)]
    return int(np.median(others)) - reached if others else 0


def lost_ranks(run: Run) -> Iterator[Divergence]:
    """Ranks that left nothing while all others did, and that these wait for.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence. None where so many left nothing that it was rather not
        collected, or where ranks that did leave a dump are waited for as well.
    """
    without = {*run.unseen, *run.unrecorded}
    if len(without) * 2 > run.world_size:
        return
    found = ranks_behind(run)
    lost = {
        rank
        for one in found
        for rank in one.ranks
        if rank in without and rank not in run.partial
    }
    here = {rank for one in found for rank in one.ranks if rank not in without}
    unreadable = {rank for one in found for rank in one.ranks if rank in run.partial}
    if not lost or here or unreadable & without:
        return
    if any(rank in run.stacks for rank in lost):
        return  # its stack was taken: it was there
    reported = max(found, key=lambda one: len(one.waiting))
    ranks = tuple(sorted(lost))
    victims = sorted({rank for one in found for rank in one.waiting} - lost)
    yield Divergence(
        why=Cause.DIED,
        group=None,
        ordinal=0,
        calls={reported.call.rank: reported.call},
        culprits=ranks,
        victims=tuple(victims),
        certainty=Certainty.LIKELY,
        facts=LostRanks(ranks, tuple(victims), reported.call),
        details={"group": reported.call.group, "ordinal": reported.ordinal},
    )


@dataclass(frozen=True, slots=True)
class SilentRanks:
    """Ranks that made no call for long while others waited for them.

    Attributes:
        behind: Who, and for whom.
        why: What proves that they are not just late, in words.
        stands: Where a stack shows the first of them; none: nobody took one.
    """

    behind: RankBehind
    why: str
    stands: Place | None = None


def silent_ranks(run: Run) -> Iterator[Divergence]:
    """Ranks with a dump that others waited for so long that they are not just late.

    Args:
        run: The run that is judged.

    Yields:
        A divergence for each set of them.
    """
    # A rank whose own call outlived its timeout is not in its own code.
    elsewhere = set(run.calls["rank"][run.with_state(State.RAISED)].tolist())
    found = [
        one
        for one in ranks_behind(run)
        if run.has_seen(one.ranks)
        and elsewhere.isdisjoint(one.ranks)
        and run.unrecorded.keys().isdisjoint(one.ranks)
    ]
    for behind in sorted(found, key=lambda one: -one.seconds):
        why = _no_more_than_late(run, behind)
        if why:
            yield _silent(run, behind, why)
            return


def _no_more_than_late(run: Run, behind: RankBehind) -> str:
    """What proves that ranks are stuck, and not only late; empty: nothing."""
    if behind.timed_out:
        return "the call outlived its timeout"
    pause = max(_longest_pause(run, rank) for rank in behind.ranks)
    if behind.seconds >= max(SILENT_S, LONGER * pause):
        return f"the others' records go on for {behind.seconds:,.0f} s"
    if behind.ahead >= FAR_AHEAD:
        return f"most members of the group are {behind.ahead} calls ahead"
    return ""


def _longest_pause(run: Run, rank: int) -> float:
    if rank in run.pauses:
        return run.pauses[rank] / 1e9
    mine = run.rows_of(rank)
    entered = run.calls["enter_ns"][mine.start : mine.stop]
    return float(np.diff(entered).max(initial=0)) / 1e9


def _stands(run: Run, ranks: Iterable[int]) -> tuple[Location, ...]:
    """Where stacks show ranks that somebody has taken, those of the most first."""
    at: dict[Place, list[int]] = {}
    for rank in ranks:
        if stack := run.stacks.get(rank):
            at.setdefault(stack[0].place, []).append(rank)
    return tuple(
        Location(place, tuple(who), Role.CULPRIT, "its stack shows it here")
        for place, who in sorted(at.items(), key=lambda item: -len(item[1]))
    )


def _silent(run: Run, behind: RankBehind, why: str) -> Divergence:
    """The ranks behind are at fault, unless they are the most."""
    call = behind.call
    callers = dict.fromkeys([call.rank], call)
    members = next(g.ranks for g in run.groups if g.name == call.group)
    came = [rank for rank in members if rank not in behind.ranks]
    details: dict[str, object] = {"group": call.group, "ordinal": behind.ordinal}
    stands = _stands(run, behind.ranks)
    if len(behind.ranks) > len(behind.waiting):
        return Divergence(
            why=Cause.SKIPPED,
            group=None,
            ordinal=0,
            calls=callers,
            culprits=tuple(came),
            victims=behind.ranks,
            certainty=Certainty.LIKELY,
            facts=NeverCame(tuple(came), behind.ranks, call, why),
            details=details,
        )
    return Divergence(
        why=Cause.BUSY,
        group=None,
        ordinal=0,
        calls=callers,
        culprits=behind.ranks,
        victims=behind.waiting,
        certainty=Certainty.LIKELY,
        elsewhere=stands,
        facts=SilentRanks(behind, why, stands[0].place if stands else None),
        details=details,
    )
