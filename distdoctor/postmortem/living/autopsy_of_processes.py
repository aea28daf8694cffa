"""From process numbers or a name to evidence of each living job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.living.calls_apart import operations
from distdoctor.postmortem.living.dump_taking import take
from distdoctor.postmortem.living.job_finding import (
    LivingJob,
    jobs_with,
    numbered,
)
from distdoctor.postmortem.living.listed_processes import listed
from distdoctor.postmortem.living.living_evidence import evidence_of
from distdoctor.postmortem.living.living_recorders import SAME_FOR_S, equal_dumps
from distdoctor.postmortem.living.looks import (
    JobLook,
    Pause,
    seconds_of,
    watch,
)
from distdoctor.postmortem.living.rank_conditions import (
    RankCondition,
    RankState,
    condition_of,
)
from distdoctor.postmortem.living.seen_job import JobPart, SeenJob, part_of
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.postmortem.living.worker_servers import WorkerServers, sockets_named
from distdoctor.postmortem.stacks.spawned_ranks import rank_in

PAUSES_S = (2.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0)
"""Between looks: together a little longer than DD204 asks for."""

PAUSES_APART_S = (*PAUSES_S, 5.0, 5.0)
"""The same where a part of a job is looked at, and others at about the same time."""

_SHORT_S = 6.0
"""Of looking, for what more looks would not tell better."""

_APART_S = 10.5
"""Of looking at ranks in different collectives; a little longer than DD101 asks for."""

_MOST_HELPERS = 64  # processes of a rank that are looked at

_MOST_NATIVE = 64
"""Ranks whose native functions are taken; it costs a second and 100 MB each."""


@dataclass(frozen=True, slots=True)
class Which:
    """Which jobs are meant, and how they are looked at.

    Attributes:
        pids: Processes of them.
        name: Part of a command line.
        everything: All jobs of this user.
        native: Take native functions as well, of jobs that are not too large.
        worker_server: Path of the sockets of the ranks' worker servers, with `{rank}`
            in it; empty: what the environment of each names.
        is_whole: The job is judged from here; else this is a part of what is judged.
    """

    pids: tuple[int, ...] = ()
    name: str = ""
    everything: bool = False
    native: bool = True
    worker_server: str = ""
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A job, looked at.

    Attributes:
        job: Its ranks.
        part: What was seen of it on this machine.
        seconds: How long that took.
    """

    job: LivingJob
    part: JobPart
    seconds: float

    @property
    def evidence(self) -> Evidence:
        """What that tells, if the job has no other part."""
        return evidence_of(SeenJob((self.part,)))


def jobs_of(which: Which) -> list[LivingJob]:
    """The jobs that are meant, with ranks that run on this machine.

    Args:
        which: Which are meant.

    Raises:
        LeavingsMissing: There are none.
    """
    return jobs_with(
        listed(), pids=which.pids, name=which.name, everything=which.everything
    )


def look_at(
    job: LivingJob, how: Which | None = None, pause: Pause = time.sleep
) -> LookedAt:
    """Look at a job several times, for some seconds; longer, if it seems to hang.

    Args:
        job: Its ranks.
        how: How to look.
        pause: Waits; by default, time passes.

    Raises:
        LeavingsMissing: Its processes have ended, or nothing tells their ranks.
    """
    how = how or Which()
    numbered_by_stacks(job)
    servers = _servers(job, how.worker_server)
    pids = {rank: process.pid for rank, process in job.ranks.items()}
    directory = job.directory
    helpers = {
        pid: [one.pid for one in job.helpers.get(pid, ())][:_MOST_HELPERS]
        for pid in pids.values()
    }

    def conditions(looks: Sequence[JobLook]) -> dict[int, RankCondition]:
        return {
            rank: condition_of(WatchedProcess(pid, looks, helpers[pid]), directory)
            for rank, pid in pids.items()
        }

    def goes_on(looks: list[JobLook]) -> bool:
        if not how.is_whole:
            return _may_hang_elsewhere(conditions(looks))
        return _is_worth_more(conditions(looks), looks)

    recorded = servers.recorded(pids.values())
    asked_s, now_s = time.monotonic(), time.time()
    looks = watch(
        list(pids.values()),
        [pid for some in helpers.values() for pid in some],
        PAUSES_S if how.is_whole else PAUSES_APART_S,
        goes_on,
        native=how.native and len(pids) <= _MOST_NATIVE,
        servers=servers,
        pause=pause,
    )
    begun_s = now_s + looks[0].ended_s - asked_s
    watched = {rank: WatchedProcess(pid, looks) for rank, pid in pids.items()}
    same: dict[int, bytes] = {}
    if recorded:
        pause(max(0.0, asked_s + SAME_FOR_S - time.monotonic()))
        same = equal_dumps(job, recorded, servers.recorded(pids.values()))
    part = part_of(
        *(job, watched, conditions(looks), same),
        script=_script(job),
        begun_s=begun_s,
    )
    return LookedAt(job, part, round(looks[-1].ended_s - looks[0].at_s, 1))


def _is_worth_more(
    conditions: dict[int, RankCondition], looks: Sequence[JobLook]
) -> bool:
    """Whether the ranks may hang, and a longer look would tell."""
    kinds = [one.condition for one in conditions.values()]
    seconds = seconds_of(looks)
    if RankState.MOVING in kinds or RankState.WAITING not in kinds:
        return False
    if seconds < _SHORT_S:
        return True
    if seconds < _APART_S and len(operations(conditions)) > 1:
        return True
    stuck = {RankState.STUCK, RankState.STOPPED}
    locked = any(one.lock is not None for one in conditions.values())
    return RankState.CALLING not in kinds and (bool(stuck & set(kinds)) or locked)


def _may_hang_elsewhere(conditions: Mapping[int, RankCondition]) -> bool:
    """Whether all ranks may hang, with those of other machines."""
    moving = {RankState.MOVING, RankState.UNSEEN}
    return not any(one.condition in moving for one in conditions.values())


def _servers(job: LivingJob, pattern: str) -> WorkerServers:
    """The worker servers of its ranks, as far as anything names them."""
    ranks = {rank: process.pid for rank, process in job.ranks.items()}
    known = {one.pid: one.worker_socket for one in job.ranks.values()}
    return WorkerServers(sockets_named(pattern, ranks, known))


def numbered_by_stacks(job: LivingJob) -> None:
    """Give ranks to processes whose environment tells none: their stacks may.

    Args:
        job: The job; it is changed.

    Raises:
        LeavingsMissing: Nothing tells the ranks of several processes.
    """
    unknown = [process.pid for key, process in job.ranks.items() if key < 0]
    if not unknown:
        return
    dumps = take(unknown)
    reported = {pid: rank_in(stacks) for pid, stacks in dumps.stacks.items()}
    rank_of: Callable[[int], int | None] = reported.get
    if not numbered(job, rank_of):
        why = next(iter(dumps.refusals.values()), "neither environment nor stacks do")
        raise LeavingsMissing(
            f"nothing tells the ranks of the processes {sorted(unknown)[:8]}: {why}"
        )


def _script(job: LivingJob) -> str:
    """What the ranks run: their command without the interpreter and its options."""
    command = next(iter(job.ranks.values())).command
    words = [word for word in command[1:] if not word.startswith("-")]
    if any("spawn_main" in word for word in command) and job.parents:
        words = [w for w in job.parents[0].command[1:] if not w.startswith("-")]
    return words[0] if words else " ".join(command[:1])
