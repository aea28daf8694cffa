"""Conditions of ranks → evidence: what several looks at a living job tell checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from distdoctor.model.events import Busy, Call, Event, Locked, State
from distdoctor.model.run import PROVED_DEFAULT, Frame, Quiet
from distdoctor.postmortem.job_evidence import STACK, Evidence, SourceRead
from distdoctor.postmortem.living.absent_ranks import HANGS_AFTER_S, ended, tell_missing
from distdoctor.postmortem.living.calls_apart import apart_in_words, are_apart
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.living_recorders import tell_recorded
from distdoctor.postmortem.living.living_sentences import (
    looks_at,
    process_view,
    remarks,
)
from distdoctor.postmortem.living.rank_conditions import (
    RankCondition,
    RankState,
    shown_lines,
)
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.postmortem.stacks.stack_calls import columns_of
from distdoctor.postmortem.stacks.stack_tree import merged
from distdoctor.postmortem.stacks.thread_stacks import ThreadStack, place_of, users


def evidence_of(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
    recorded: Mapping[int, bytes] | None = None,
) -> Evidence:
    """What the looks at a job tell.

    Args:
        job: Its ranks.
        watched: By rank, the looks at it.
        conditions: By rank, how it is.
        recorded: By rank, the dump of its flight recorder, if all gave theirs and
            nothing was called meanwhile.

    Returns:
        Evidence; ranks of which nothing is known are in its `unseen`.
    """
    evidence = Evidence(world_size=job.world_size, closed=False)
    seen = [rank for rank in watched if conditions[rank].condition != RankState.UNSEEN]
    evidence.sources.append(
        SourceRead(
            path="processes of this machine",
            kind=f"living job, looked at {looks_at(watched)} times",
            evidence=STACK,
            ranks=tuple(sorted(watched)),
        )
    )
    for rank in seen:
        main = watched[rank].main
        evidence.add(rank)
        if main is not None:
            evidence.stacks[rank] = frames_of(main, job.directory)
    seconds = max((one.seconds for one in watched.values()), default=0.0)
    tell_recorded(recorded or {}, conditions, evidence)
    calls = _calls(job, conditions)
    if are_apart(job, watched, conditions):
        calls = [replace(call, group=PROVED_DEFAULT) for call in calls]
    if calls and not len(evidence.columns.calls):
        evidence.columns = columns_of(calls, job.world_size)
    for rank in seen:
        evidence.add(rank, *_events(rank, watched[rank], conditions, seconds))
    tell_missing(job, watched, conditions, evidence, seconds)
    if seconds >= HANGS_AFTER_S and _nobody_moves(conditions):
        idle = {rank for rank in seen if watched[rank].is_idle}
        evidence.quiet = Quiet(round(seconds, 1), idle=frozenset(idle))
    evidence.stack_tree = merged(
        shown_lines(watched),
        {rank: one.doing for rank, one in conditions.items()},
        job.directory,
    )
    evidence.processes = tuple(
        process_view(rank, job, watched[rank], conditions[rank])
        for rank in sorted(watched)
    )
    evidence.remarks += remarks(job, watched, conditions, seconds)
    if not recorded:
        evidence.remarks += apart_in_words(job, watched, conditions)
    return evidence


def frames_of(thread: ThreadStack, directory: str) -> Sequence[Frame]:
    """The user's own lines of a stack, innermost first, with their whole numbers.

    Args:
        thread: The stack.
        directory: Where the job runs.
    """
    frames = []
    for at, line in users(thread.lines):
        integers = {}
        variables = thread.variables[at] if at < len(thread.variables) else {}
        for name, value in variables.items():
            with suppress(ValueError):
                integers[name] = int(value)
        frames.append(Frame(place_of(line, directory), integers))
    return frames


def _calls(job: LivingJob, conditions: Mapping[int, RankCondition]) -> list[Call]:
    """The calls in which ranks surely stand.

    Of which group a collective is, and the how-manyth, no stack tells: it has no
    ordinal, so nothing lines it up with others.
    """
    calls = []
    for rank, one in sorted(conditions.items()):
        for thread, call, place in (
            (0, one.call, one.place),
            (1, one.other_call, one.other_place),
        ):
            if call is None or not call.op:
                continue
            if thread == 0 and one.condition is not RankState.WAITING:
                continue
            if thread == 1 and not (_holds_lock(one) and _stand_by_lock(conditions)):
                continue  # without a lock, nothing says what the main thread needs
            peer = call.peer if call.peer is not None else None
            if peer is not None and not 0 <= peer < job.world_size:
                peer = None
            calls.append(
                Call(
                    rank=rank,
                    op=call.op,
                    peer=peer,
                    tag=call.tag,
                    state=State.WAITING,
                    place=place,
                    thread=thread,
                )
            )
    return calls


def _events(
    rank: int,
    watched: WatchedProcess,
    conditions: Mapping[int, RankCondition],
    seconds: float,
) -> Iterator[Event]:
    """What a rank does beside waiting in a call."""
    one = conditions[rank]
    if one.condition is RankState.ENDED:
        yield from ended(rank, watched.pid)
    if _holds_lock(one) and _stand_by_lock(conditions):
        assert one.lock is not None
        yield Locked(rank=rank, place=one.lock, seconds=round(seconds, 1))
        return
    stuck = one.condition in {RankState.STUCK, RankState.STOPPED}
    if not stuck or one.place is None or not _is_odd(conditions):
        return
    yield Busy(
        rank=rank,
        place=one.place,
        seconds=round(seconds, 1),
        looks=len(watched.looks),
        cpu=round(watched.cpu, 2),
        doing=one.doing if one.doing != "working" else "",
    )


def _holds_lock(one: RankCondition) -> bool:
    """Whether one thread waits for a lock, and another in a call."""
    return one.lock is not None and (one.other_call or one.call) is not None


def _stand_by_lock(conditions: Mapping[int, RankCondition]) -> bool:
    """Whether it can be the lock that keeps all ranks waiting.

    A thread may well wait for a lock until a call has ended that the others are late
    for, or that all stand in alike.
    """
    for one in conditions.values():
        if one.condition is not RankState.WAITING and not _holds_lock(one):
            return False
    places = {
        (call.op, place)
        for one in conditions.values()
        for call, place in ((one.call, one.place), (one.other_call, one.other_place))
        if call is not None
    }
    return len(places) > 1


def _is_odd(conditions: Mapping[int, RankCondition]) -> bool:
    """Whether those who are stuck are no more than those who surely wait."""
    counts = Counter(one.condition for one in conditions.values())
    stuck = counts[RankState.STUCK] + counts[RankState.STOPPED]
    moving = counts[RankState.MOVING] + counts[RankState.CALLING]
    return stuck <= counts[RankState.WAITING] and not moving


def _nobody_moves(conditions: Mapping[int, RankCondition]) -> bool:
    moving = {RankState.MOVING, RankState.CALLING, RankState.UNSEEN}
    return all(one.condition not in moving for one in conditions.values())
