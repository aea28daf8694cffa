"""Conditions of ranks → evidence: what several looks at a living job tell checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from distdoctor.model.events import Busy, Call, Ended, Event, Locked, Quit, State
from distdoctor.model.outside_view import ProcessView
from distdoctor.model.run import Frame, Quiet, named
from distdoctor.postmortem.job_evidence import STACK, Evidence, SourceRead
from distdoctor.postmortem.living.dump_taking import REFUSED, cure
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.looks import WatchedProcess
from distdoctor.postmortem.living.process_facts import exit_status_of, peers_of
from distdoctor.postmortem.living.rank_conditions import (
    RankCondition,
    RankState,
    shown_lines,
)
from distdoctor.postmortem.stacks.stack_calls import columns_of
from distdoctor.postmortem.stacks.stack_tree import merged
from distdoctor.postmortem.stacks.thread_stacks import ThreadStack, place_of, users

_MOST_HELPERS = 16
_LONGEST_COMMAND = 60

HANGS_AFTER_S = 5.0
"""Shorter than this, who waits for a rank that has ended may be about to end, too."""


def evidence_of(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
) -> Evidence:
    """What the looks at a job tell.

    Args:
        job: Its ranks.
        watched: By rank, the looks at it.
        conditions: By rank, how it is.

    Returns:
        Evidence; ranks of which nothing is known are in its `unseen`.
    """
    evidence = Evidence(world_size=job.world_size, closed=False)
    seen = [rank for rank in watched if conditions[rank].condition != RankState.UNSEEN]
    evidence.sources.append(
        SourceRead(
            path="processes of this machine",
            kind=f"living job, looked at {_looks(watched)} times",
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
    calls = _calls(job, conditions)
    if calls:
        evidence.columns = columns_of(calls, job.world_size)
    for rank in seen:
        evidence.add(rank, *_events(rank, watched[rank], conditions, seconds))
    _missing(job, watched, conditions, evidence, seconds)
    if seconds >= HANGS_AFTER_S and _nobody_moves(conditions):
        idle = {rank for rank in seen if watched[rank].is_idle}
        evidence.quiet = Quiet(round(seconds, 1), idle=frozenset(idle))
    evidence.stack_tree = merged(
        shown_lines(watched),
        {rank: one.doing for rank, one in conditions.items()},
        job.directory,
    )
    evidence.processes = tuple(
        _process(rank, job, watched[rank], conditions[rank]) for rank in sorted(watched)
    )
    evidence.remarks += _remarks(job, watched, conditions, seconds)
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


def _looks(watched: Mapping[int, WatchedProcess]) -> int:
    return max((len(one.looks) for one in watched.values()), default=0)


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
        yield from _ended(rank, watched.pid)
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


def _ended(rank: int, pid: int) -> Iterator[Event]:
    status = exit_status_of(pid)
    if status and status <= _MOST_BY_ITSELF:
        yield Quit(rank=rank, how="exit", status=status)
    yield Ended(rank=rank, status=status, orderly=status == 0)


_MOST_BY_ITSELF = 128
"""The highest status that a process ends itself with; above are signals."""


def _missing(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
    evidence: Evidence,
    seconds: float,
) -> None:
    """Ranks that were not looked at: why, and what became of those of this machine."""
    absent = [rank for rank in range(job.world_size) if rank not in watched]
    here = set(_of_this_machine(job, absent))
    gone = [rank for rank in absent if rank in here]
    dead = [one for one in job.zombies if exit_status_of(one.pid) is not None]
    waits = any(one.condition is RankState.WAITING for one in conditions.values())
    for rank in absent:
        evidence.unseen[rank] = (
            _why_gone(job, seconds)
            if rank in here
            else "it is not on this machine: look there as well"
        )
    if gone and len(gone) == len(dead) and waits and seconds >= HANGS_AFTER_S:
        # A launcher starts ranks in their order, and the kernel numbers them so.
        for rank, process in zip(gone, dead, strict=True):
            del evidence.unseen[rank]
            evidence.add(rank, *_ended(rank, process.pid))
    for rank, one in conditions.items():
        if one.condition is RankState.UNSEEN:
            why = next(iter(_refusals(watched[rank])), "its stack could not be read")
            evidence.unseen[rank] = f"its stacks could not be taken: {why}"


def _why_gone(job: LivingJob, seconds: float) -> str:
    """What became of a rank of this machine that has no process."""
    agents = {identity.launcher for identity in job.identities.values()}
    lives = any(parent.is_launcher for parent in job.parents)
    if agents == {"torchrun"} and lives and seconds >= HANGS_AFTER_S:
        return (
            "its process has ended, and, as it seems, without an error: torchrun would "
            "have ended the others"
        )
    return "its process is not there any more, or never was"


def _of_this_machine(job: LivingJob, absent: Sequence[int]) -> Iterator[int]:
    """Those of the absent ranks that have, or had, their process on this machine."""
    sizes = {
        (rank - one.local_rank, one.local_size)
        for rank, one in job.identities.items()
        if one.local_rank >= 0 and one.local_size
    }
    for rank in absent:
        if any(first <= rank < first + size for first, size in sizes):
            yield rank


def _refusals(watched: WatchedProcess) -> Iterator[str]:
    for one in reversed(watched.looks):
        if why := one.dumps.refusals.get(watched.pid):
            yield why


def _process(
    rank: int, job: LivingJob, watched: WatchedProcess, condition: RankCondition
) -> ProcessView:
    facts = watched.facts
    helpers = job.helpers.get(watched.pid, [])
    words = [
        f"{one.pid} {' '.join(one.command)[:_LONGEST_COMMAND]}".strip()
        for one in helpers[:_MOST_HELPERS]
    ]
    if len(helpers) > _MOST_HELPERS:
        words.append(f"and {len(helpers) - _MOST_HELPERS} more")
    refusal = next(iter(_refusals(watched)), "")
    return ProcessView(
        rank=rank,
        pid=watched.pid,
        condition=str(condition.condition),
        doing=condition.doing,
        kernel=" in ".join(part for part in (facts.call, facts.wchan) if part),
        cpu=round(watched.cpu, 2),
        memory_bytes=facts.memory_bytes,
        peers=peers_of(watched.pid),
        helpers=tuple(words),
        remark=refusal if condition.condition is RankState.UNSEEN else "",
    )


def _remarks(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
    seconds: float,
) -> Iterator[str]:
    """Sentences for the report on what was seen."""
    by_words: dict[str, list[int]] = {}
    for rank, one in sorted(conditions.items()):
        by_words.setdefault(_sentence(one, watched[rank].cpu), []).append(rank)
    for words, ranks in sorted(by_words.items(), key=lambda item: -len(item[1])):
        yield f"{named(ranks)}: {words}"
    refused = [rank for rank, one in watched.items() if REFUSED in set(_refusals(one))]
    if refused:
        yield f"the stacks of {named(refused)} may not be read; {cure()}"
    helpers = sum(len(one) for one in job.helpers.values())
    if helpers:
        yield (
            f"ranks have started {helpers} more process{'es' * (helpers != 1)}, such "
            "as workers of DataLoaders; their stacks were not taken"
        )
    yield f"all ranks were looked at {_looks(watched)} times in {seconds:.0f} s"


def _sentence(one: RankCondition, cpu: float) -> str:
    at = f" at {one.place}" if one.place is not None else ""
    match one.condition:
        case RankState.WAITING:
            return f"in the same call of {one.doing}{at} all the time"
        case RankState.CALLING:
            return f"in {one.doing} at the last look{at}; calls may come and go"
        case RankState.STUCK:
            function = one.place.function if one.place is not None else ""
            inside = f" in {function}" if function else ""
            work = f", using {cpu:.0%} of a core" if cpu >= _WORTH_TELLING else ""
            return f"in the same functions all the time{inside}{at}: {one.doing}{work}"
        case RankState.MOVING:
            return f"at work{at}"
        case RankState.UNSEEN:
            return f"no stack was read{f'; {one.doing}' if one.doing else ''}"
    return f"{one.doing}{at}"


_WORTH_TELLING = 0.05
