"""Ranks that were not looked at: why, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.model.events import Ended, Event, Quit
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.living.rank_conditions import RankState
from distdoctor.postmortem.living.seen_job import JobPart, SeenJob

HANGS_AFTER_S = 5.0
"""Shorter than this, who waits for a rank that has ended may be about to end, too."""


def ended(rank: int, status: int | None) -> Iterator[Event]:
    """The end of a rank whose process nobody has buried yet, as events.

    Args:
        rank: Its number.
        status: With which it has ended; None: that is not known.
    """
    if status and status <= _MOST_BY_ITSELF:
        yield Quit(rank=rank, how="exit", status=status)
    yield Ended(rank=rank, status=status, orderly=status == 0)


_MOST_BY_ITSELF = 128
"""The highest status that a process ends itself with; above are signals."""


def tell_missing(job: SeenJob, evidence: Evidence) -> None:
    """Tell of ranks that were not looked at why, and what became of those of here.

    Args:
        job: What was seen.
        evidence: What is known of the job; it is added to.
    """
    absent = [rank for rank in range(job.world_size) if rank not in job.views]
    evidence.unseen |= dict.fromkeys(absent, _elsewhere(job))
    waits = any(one.condition is RankState.WAITING for one in job.conditions.values())
    for part in job.parts:
        gone = list(part.are_here(absent))
        evidence.unseen |= dict.fromkeys(gone, _why_gone(part))
        is_told = waits and job.seconds >= HANGS_AFTER_S  # 0 if never together
        if gone and len(gone) == len(part.dead) and is_told:
            # A launcher starts ranks in their order, and the kernel numbers them so.
            for rank, (_, status) in zip(gone, part.dead, strict=True):
                del evidence.unseen[rank]
                evidence.add(rank, *ended(rank, status))
    for rank, view in job.views.items():
        if view.condition.condition is RankState.UNSEEN:
            why = view.refusal or "its stack could not be read"
            evidence.unseen[rank] = f"its stacks could not be taken: {why}"


def _elsewhere(job: SeenJob) -> str:
    hosts = sorted({part.host for part in job.parts} - {""})
    if not hosts:
        return "it is not on this machine: look there as well"
    return f"it is not on {', '.join(hosts)}: look at its machine as well"


def _why_gone(part: JobPart) -> str:
    """What became of a rank of a machine that has no process."""
    agents = {identity.launcher for identity in part.identities.values()}
    if agents == {"torchrun"} and part.has_launcher and part.seconds >= HANGS_AFTER_S:
        return (
            "its process has ended, and, as it seems, without an error: torchrun would "
            "have ended the others"
        )
    return "its process is not there any more, or never was"
