"""Ranks of a communicator that give no sign while it is initialised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, spoken, who
from distdoctor.model.findings import Certainty, Severity
from distdoctor.model.observations.nccl import Communicator, ComplaintKind
from distdoctor.model.run import named

_SLOW_S = 60.0
"""Initialisation takes seconds on some hosts, and less than this on thousands."""


def absent_members(job: LoggedJob) -> Iterator[Told]:
    """The first communicator that was begun and not made.

    Args:
        job: The job.
    """
    if _others_are_elsewhere(job):
        return
    for name, members in job.communicators.items():
        size = members[0][1].size
        if any(one.complete or one.aborted for _, one in members) or size < 2:
            continue
        absent = sorted({*range(size)} - {one.member for _, one in members})
        if absent and len(absent) * 2 <= size:
            yield _absent(job, name, members, absent)
            return
        if not absent and _waited(job, members):
            yield _nobody_completed(name, members)
            return
    if not job.communicators:
        yield from _before_any(job)


def unseen_members(job: LoggedJob) -> Iterator[Told]:
    """Ranks of a communicator that was made, and that are nowhere in the log.

    Args:
        job: The job.
    """
    if _others_are_elsewhere(job):
        return
    for name, members in job.communicators.items():
        size = members[0][1].size
        absent = sorted({*range(size)} - {one.member for _, one in members})
        is_made = any(one.complete for _, one in members)
        if name != "world" or not absent or not is_made or len(members) < 2:
            continue
        if any(party.process and party.process.torn for party, _ in members):
            continue
        nameless = [p for p in job.parties.values() if not p.is_ranked and p.process]
        if nameless:
            continue  # their beginning is not in the log, and they are these ranks
        yield Told(
            code="DD607",
            message=f"{capital(named(absent))} of {size:,} are missing in the log: "
            "their files were not given, or they printed nothing. What is there is of "
            "the others only.",
            ranks=absent,
            exhibits=[one for _, one in members],
            severity=Severity.WARNING,
            cure="Look for the logs of these ranks, or of their host.",
            details={"absent": absent},
        )
        return


def _others_are_elsewhere(job: LoggedJob) -> bool:
    """Whether the logs are those of our own record, which has not all ranks.

    The logs of the others lie where these ran: that none is here means nothing.
    """
    return "run" in job.run.evidence and bool(job.run.unseen)


def slow_initialisation(job: LoggedJob) -> Iterator[Told]:
    """An initialisation that took minutes, and who came last.

    Args:
        job: The job.
    """
    reported = [p for p in job.parties.values() if p.process and p.process.init_s]
    slow = [p for p in reported if p.process and p.process.init_s > _SLOW_S]
    if not slow:
        return
    longest = max(p.process.init_s for p in slow if p.process)
    waiting = [p for p in reported if p.process and p.process.waited_s > _SLOW_S / 2]
    last = [p for p in reported if p not in waiting]
    late = last if waiting and 0 < len(last) * 2 <= len(reported) else []
    by = f"; {who(late)} came last, the others waited (bootstrap)" if late else ""
    yield Told(
        code="DD607",
        message=f"Initialisation took up to {longest:,.0f} s (Init timings){by}.",
        parties=late,
        exhibits=[p.process for p in slow if p.process],
        severity=Severity.NOTE,
        cure="nvidia-persistenced; a faster interface for NCCL_SOCKET_IFNAME; look at "
        "what the rank that came last did before.",
    )


def _absent(
    job: LoggedJob,
    name: str,
    members: Sequence[tuple[Party, Communicator]],
    absent: list[int],
) -> Told:
    size = members[0][1].size
    inside = {party.key for party, _ in members}
    present = [
        party
        for party in job.parties.values()
        if party.key not in inside and party.process is not None
    ]
    parties = (
        present if name.startswith("world") and len(present) == len(absent) else []
    )
    where = f", likely {who(parties)}" if parties else ""
    on = spoken(name)
    return Told(
        code="DD607",
        message=f"{capital(named(absent))} of {size:,} never began the initialisation "
        f"of {on}{where}: {len(members):,} ranks print Init START, none of them "
        "COMPLETE; they wait.",
        ranks=absent if name.startswith("world") else (),
        parties=parties,
        exhibits=[one for _, one in members],
        certainty=Certainty.LIKELY,
        cure="Look at the stack or the last lines of the rank that is absent: it died, "
        "is in other code, makes groups in another order, or cannot reach the others.",
        details={"absent": absent, "communicator": name},
    )


def _nobody_completed(name: str, members: Sequence[tuple[Party, Communicator]]) -> Told:
    on = spoken(name)
    return Told(
        code="DD607",
        message=f"All {len(members):,} ranks began the initialisation of {on} (Init "
        "START) and none came to its end (COMPLETE): one of them stopped there, or "
        "they cannot reach each other.",
        exhibits=[one for _, one in members],
        certainty=Certainty.LIKELY,
        cure="Take the stacks of all ranks; look at firewalls and interfaces.",
        details={"communicator": name},
    )


def _waited(job: LoggedJob, members: Sequence[tuple[Party, Communicator]]) -> bool:
    return job.failed or any(one.waited for _, one in members)


def _before_any(job: LoggedJob) -> Iterator[Told]:
    """Versions that do not tell when they begin: who has not come to a network."""
    if not any(party.of(ComplaintKind.WAITING) for party in job.parties.values()):
        return
    reported = [p for p in job.parties.values() if p.process is not None]
    behind = [p for p in reported if p.process and not p.process.network]
    if not behind or len(behind) * 2 > len(reported):
        return
    yield Told(
        code="DD607",
        message=f"{capital(who(behind))} did not come as far in the initialisation as "
        "the others, which wait.",
        parties=behind,
        exhibits=[p.process for p in behind if p.process],
        certainty=Certainty.LIKELY,
        cure="Look at the stack or the last lines of the rank that is behind.",
    )
