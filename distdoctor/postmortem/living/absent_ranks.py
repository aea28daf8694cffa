"""Ranks that were not looked at: why, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distdoctor.model.events import Ended, Event, Quit
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.process_facts import exit_status_of
from distdoctor.postmortem.living.rank_conditions import RankCondition, RankState
from distdoctor.postmortem.living.watched_process import WatchedProcess

HANGS_AFTER_S = 5.0
"""Shorter than this, who waits for a rank that has ended may be about to end, too."""


def ended(rank: int, pid: int) -> Iterator[Event]:
    """The end of a rank whose process nobody has buried yet, as events.

    Args:
        rank: Its number.
        pid: Of its process.
    """
    status = exit_status_of(pid)
    if status and status <= _MOST_BY_ITSELF:
        yield Quit(rank=rank, how="exit", status=status)
    yield Ended(rank=rank, status=status, orderly=status == 0)


_MOST_BY_ITSELF = 128
"""The highest status that a process ends itself with; above are signals."""


def tell_missing(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
    evidence: Evidence,
    seconds: float,
) -> None:
    """Tell of ranks that were not looked at why, and what became of those of here.

    Args:
        job: Its ranks.
        watched: By rank, the looks at it.
        conditions: By rank, how it is.
        evidence: What is known of the job; it is added to.
        seconds: For how long the job was looked at.
    """
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
            evidence.add(rank, *ended(rank, process.pid))
    for rank, one in conditions.items():
        if one.condition is RankState.UNSEEN:
            why = next(iter(watched[rank].refusals), "its stack could not be read")
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
