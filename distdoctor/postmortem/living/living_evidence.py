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
from distdoctor.postmortem.living.living_recorders import all_recorded, tell_recorded
from distdoctor.postmortem.living.living_sentences import process_view, remarks
from distdoctor.postmortem.living.rank_conditions import RankCondition, RankState
from distdoctor.postmortem.living.rank_views import RankView
from distdoctor.postmortem.living.seen_job import SeenJob
from distdoctor.postmortem.stacks.stack_calls import columns_of
from distdoctor.postmortem.stacks.stack_tree import merged
from distdoctor.postmortem.stacks.thread_stacks import ThreadStack, place_of, users


def evidence_of(job: SeenJob) -> Evidence:
    """What the looks at a job tell.

    Args:
        job: What was seen, on one machine or on several.

    Returns:
        Evidence; ranks of which nothing is known are in its `unseen`.
    """
    evidence = Evidence(world_size=job.world_size, closed=False)
    evidence.sources.append(
        SourceRead(
            path="processes of this machine",
            kind=f"living job, looked at {job.looks} times",
            evidence=STACK,
            ranks=tuple(sorted(job.views)),
        )
    )
    tell_seen(job, evidence)
    return evidence


def tell_seen(job: SeenJob, evidence: Evidence) -> None:
    """Add what looks at a job tell.

    Args:
        job: What was seen, on one machine or on several.
        evidence: What is known of the job; it is added to.
    """
    evidence.world_size = max(evidence.world_size, job.world_size)
    evidence.closed = False
    views, conditions = job.views, job.conditions
    seen = [r for r in views if conditions[r].condition != RankState.UNSEEN]
    for part in job.parts:
        for rank, view in part.views.items():
            if rank in seen:
                evidence.add(rank)
                if view.main is not None:
                    evidence.stacks[rank] = frames_of(view.main, part.directory)
    if _are_at_once(job):
        _tell_together(job, seen, evidence)
    else:
        evidence.partial |= dict.fromkeys(seen, _NOT_AT_ONCE)
    tell_missing(job, evidence)
    evidence.stack_tree = merged(
        {rank: view.lines for rank, view in views.items() if view.main is not None},
        {rank: one.doing for rank, one in conditions.items()},
        job.directory,
    )
    evidence.processes = tuple(
        process_view(rank, views[rank], host)
        for rank, host in sorted(
            (rank, part.host) for part in job.parts for rank in part.views
        )
    )
    evidence.remarks += remarks(job)


def _are_at_once(job: SeenJob) -> bool:
    """Whether its parts were looked at for some seconds together."""
    return len(job.parts) == 1 or job.seconds >= HANGS_AFTER_S


_NOT_AT_ONCE = (
    "its node and others were not looked at at the same time: who moved on between the "
    "looks is not known; start distdoctor autopsy --save on all nodes at once"
)


def _tell_together(job: SeenJob, seen: Sequence[int], evidence: Evidence) -> None:
    """Add what ranks did that were looked at together."""
    views, conditions, seconds = job.views, job.conditions, job.seconds
    recorded = all_recorded(job)
    tell_recorded(recorded, conditions, evidence)
    calls = _calls(job)
    if are_apart(job):
        calls = [replace(call, group=PROVED_DEFAULT) for call in calls]
    if calls and not len(evidence.columns.calls):
        evidence.columns = columns_of(calls, job.world_size)
    absent = max(job.world_size - len(views), 0)
    for rank in seen:
        evidence.add(rank, *_events(rank, views[rank], conditions, seconds, absent))
    if seconds >= HANGS_AFTER_S and _nobody_moves(conditions):
        idle = {rank for rank in seen if views[rank].is_idle}
        evidence.quiet = Quiet(round(seconds, 1), idle=frozenset(idle))
    if not recorded:
        evidence.remarks += apart_in_words(job)


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


def _calls(job: SeenJob) -> list[Call]:
    """The calls in which ranks surely stand.

    Of which group a collective is, and the how-manyth, no stack tells: it has no
    ordinal, so nothing lines it up with others.
    """
    calls = []
    conditions = job.conditions
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
    view: RankView,
    conditions: Mapping[int, RankCondition],
    seconds: float,
    absent: int,
) -> Iterator[Event]:
    """What a rank does beside waiting in a call."""
    one = conditions[rank]
    if one.condition is RankState.ENDED:
        yield from ended(rank, view.status)
    if _holds_lock(one) and _stand_by_lock(conditions):
        assert one.lock is not None
        yield Locked(rank=rank, place=one.lock, seconds=round(seconds, 1))
        return
    stuck = one.condition in {RankState.STUCK, RankState.STOPPED}
    if not stuck or one.place is None or not _is_odd(conditions, absent):
        return
    yield Busy(
        rank=rank,
        place=one.place,
        seconds=round(seconds, 1),
        looks=view.looks,
        cpu=round(view.cpu, 2),
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


def _is_odd(conditions: Mapping[int, RankCondition], absent: int) -> bool:
    """Whether those who are stuck are no more than those who surely wait.

    Ranks that were not looked for where they are may be stuck as well.
    """
    counts = Counter(one.condition for one in conditions.values())
    stuck = counts[RankState.STUCK] + counts[RankState.STOPPED]
    moving = counts[RankState.MOVING] + counts[RankState.CALLING]
    return stuck + absent <= counts[RankState.WAITING] and not moving


def _nobody_moves(conditions: Mapping[int, RankCondition]) -> bool:
    moving = {RankState.MOVING, RankState.CALLING, RankState.UNSEEN}
    return all(one.condition not in moving for one in conditions.values())
