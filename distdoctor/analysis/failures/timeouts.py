"""Calls that ranks gave up because others did not join them in time.

Who gives up is a victim. The cause is who did not come: who is behind in the group, or
made another call at that point, or told of no timeout at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distdoctor.analysis.evidence import ended_well
from distdoctor.analysis.failures.deaths import died
from distdoctor.model.events import Ended, Failure
from distdoctor.model.observations.failures import STALL, Enqueued, TimedOut
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Timeout:
    """Ranks that waited in vain, and why.

    Attributes:
        waiting: By rank, what it gave up first.
        absent: Who did not come, ascending; empty: nobody can be told.
        how: What tells that, one of the constants of this module.
        call: The call that most of them waited in.
        other: By rank of those absent, what it waited in instead, if it did.
        silent: Numbers in the group of members whose ranks are not known.
    """

    waiting: Mapping[int, TimedOut]
    absent: tuple[int, ...]
    how: str
    call: TimedOut
    other: Mapping[int, TimedOut]
    silent: tuple[int, ...] = ()


NAMED = "named"
"""A monitored barrier, or Horovod's stall inspector, says who did not come."""

BEHIND = "behind"
"""They wait in an earlier call of the group than the others."""

UNLIKE = "unlike"
"""They wait in another call, at the point where the others wait in this one."""

SILENT = "silent"
"""They told of no timeout, and all others did."""

TOGETHER = "together"
"""All wait in the same call: no rank is missing."""


UNCLEAR = "unclear"
"""Others may have been missing; which of them is not known."""


def timeout(run: Run) -> Timeout | None:
    """The call that ranks gave up, and who did not come.

    Args:
        run: The run that is judged.

    Returns:
        None: no rank gave up a call; or a rank had died, which explains it; or those
        who gave up went on, and ended well.
    """
    first: dict[int, TimedOut] = {}
    for rank in run.seen:
        if reported := run.of(TimedOut, rank):
            first[rank] = _with_status(reported)
    if not first or any(died(run, rank) for rank in run.seen):
        return None
    if all(run.of(Ended, rank) and ended_well(run, rank) for rank in first):
        return None  # they were told of it, and went on
    for one in first.values():
        if one.absent:
            absent = tuple(sorted(one.absent))
            # Where the most did not come, those that did may be wrong.
            if one.by == STALL and len(absent) * 2 > run.world_size:
                absent = ()
            return Timeout(first, absent, NAMED, one, {})
    groups = Counter(one.group for one in first.values())
    group, _ = groups.most_common(1)[0]
    inside = {rank: one for rank, one in first.items() if one.group == group}
    elsewhere = {rank: one for rank, one in first.items() if one.group != group}
    return _in_group(run, inside, elsewhere)


def _with_status(reported: list[TimedOut]) -> TimedOut:
    """The first that a rank told, of a watchdog if one did."""
    return next((one for one in reported if one.number), reported[0])


def _in_group(
    run: Run, inside: Mapping[int, TimedOut], elsewhere: Mapping[int, TimedOut]
) -> Timeout:
    numbers = Counter(one.number for one in inside.values() if one.number)
    if len(numbers) > 1:
        least = min(numbers)
        behind = [rank for rank, one in inside.items() if one.number == least]
        if len(behind) <= len(inside) / 2:
            return _reported(inside, behind, BEHIND)
        ahead = [rank for rank in inside if rank not in behind]
        # Most wait for few that went on: these left the call out.
        return _reported(inside, ahead, UNLIKE)
    calls = Counter(map(_call, inside.values()))
    if len(calls) > 1:
        (_, most), (_, next_) = calls.most_common(2)
        usual = calls.most_common(1)[0][0]
        unlike = [rank for rank, one in inside.items() if _call(one) != usual]
        return _reported(inside, unlike if most > next_ else (), UNLIKE)
    absent, silent = _silent(run, inside, elsewhere)
    waiting = {**inside, **elsewhere}
    call = next(iter(inside.values()))
    if absent or silent:
        other = {rank: elsewhere[rank] for rank in absent if rank in elsewhere}
        return Timeout(waiting, absent, SILENT, call, other, silent)
    came = {*inside, *_victims(run)}
    came |= {rank for rank in run.seen if _had_come(run, rank, call.number)}
    together = not call.group and len(came) >= run.world_size
    return Timeout(waiting, (), TOGETHER if together else UNCLEAR, call, {})


def _call(one: TimedOut) -> tuple[str, int, int]:
    """What has to be equal on all ranks."""
    sizes_agree = one.op not in {"all_to_all", "all_to_all_single", "gather", "scatter"}
    sizes = (one.numel_in, one.numel_out) if sizes_agree else (-1, -1)
    return one.op, *sizes


def _reported(
    inside: Mapping[int, TimedOut], absent: Iterable[int], how: str
) -> Timeout:
    absent = tuple(sorted(absent))
    others = [one for rank, one in inside.items() if rank not in absent]
    return Timeout(
        inside,
        absent,
        how,
        (others or [*inside.values()])[0],
        {rank: inside[rank] for rank in absent},
    )


def _silent(
    run: Run, inside: Mapping[int, TimedOut], elsewhere: Mapping[int, TimedOut]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Members of the group that told of no timeout: ranks, or numbers in the group."""
    group = next(iter(inside.values())).group
    if not group and all(n.group_rank in {-1, rank} for rank, n in inside.items()):
        silent = {*range(run.world_size)} - {*inside} - set(_victims(run))
        # Who waits in another group may wait for one that waits nowhere.
        silent = silent - {*elsewhere} or silent
        number = next(iter(inside.values())).number
        silent = {rank for rank in silent if not _had_come(run, rank, number)}
        if own := {rank for rank in silent if number and _enqueued(run, rank)}:
            return tuple(sorted(own)), ()  # they said themselves that they had not come
        return (tuple(sorted(silent)) if len(silent) < len(inside) else ()), ()
    known = {one.group_rank: rank for rank, one in inside.items()}
    if -1 in known or len(known) < len(inside):
        return (), ()
    gaps = sorted({*range(max(known))} - {*known})
    if not gaps or len(gaps) >= len(known):
        return (), ()
    ranks = _interpolated(known, gaps)
    return (ranks, ()) if ranks else ((), tuple(gaps))


def _enqueued(run: Run, rank: int) -> list[int]:
    """How many calls of all ranks a rank said that it had issued; mostly nothing."""
    return [one.number for one in run.of(Enqueued, rank) if not one.group]


def _had_come(run: Run, rank: int, number: int) -> bool:
    """Whether a rank said that it had issued a call, though it told of no timeout."""
    return any(issued >= number > 0 for issued in _enqueued(run, rank))


def _victims(run: Run) -> Iterator[int]:
    """Ranks whose call failed because of a peer: they had come."""
    for rank in run.seen:
        if any(failure.secondary for failure in run.of(Failure, rank)):
            yield rank


def _interpolated(known: Mapping[int, int], gaps: list[int]) -> tuple[int, ...]:
    """Global ranks of members, where those that are known lie in equal steps."""
    if len(known) < 2:
        return ()
    (a, first), (b, second) = sorted(known.items())[:2]
    if (second - first) % (b - a):
        return ()
    step = (second - first) // (b - a)
    if step < 1 or any(rank != first + (n - a) * step for n, rank in known.items()):
        return ()
    return tuple(first + (n - a) * step for n in gaps)
