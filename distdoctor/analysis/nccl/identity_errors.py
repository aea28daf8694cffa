"""Errors of who is who: a GPU or a rank that two have, other sizes of the world."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, who
from distdoctor.model.findings import Certainty, Severity
from distdoctor.model.observations.nccl import (
    Communicator,
    ComplaintKind,
)
from distdoctor.model.run import named


def identity_errors(job: LoggedJob) -> Iterator[Told]:
    """Errors of this kind that the job did not get over.

    Args:
        job: The job.
    """
    yield from _same_gpu(job)
    yield from _twice(job)
    yield from _world_sizes(job)


def _same_gpu(job: LoggedJob) -> Iterator[Told]:
    stated = list(job.complaints(ComplaintKind.SAME_GPU))
    if not stated:
        return
    ranks = {rank for _, one in stated for rank in one.named}
    shared = _sharing(job)
    sharing = {party.key for some in shared.values() for party in some}
    parties = [
        party
        for party in job.parties.values()
        if party.key in (ranks or sharing or {party.key for party, _ in stated})
    ]
    shown = [p for p in parties if p.is_ranked and p.host] or [p for p, _ in stated]
    buses = ", ".join(sorted({f"{bus} of host {host}" for host, bus in shared})[:4])
    on = f" ({buses})" if buses else ""
    subject = who(shown)
    if ranks and not any(party.is_ranked for party in shown):
        subject = f"{named(ranks)} ({who(shown)})"
    yield Told(
        code="DD604",
        message=f"{capital(subject)} are on the same GPU as another rank{on}: "
        f"{stated[0][1].text}",
        parties=shown,
        ranks=ranks,
        exhibits=[one for _, one in stated],
        cure="Bind each rank to its own GPU: torch.cuda.set_device(local_rank), one "
        "entry of CUDA_VISIBLE_DEVICES each, no more ranks than GPUs.",
    )


def _sharing(job: LoggedJob) -> dict[tuple[str, str], list[Party]]:
    """By host and GPU, ranks that share it within one communicator."""
    found: dict[tuple[str, str], list[Party]] = {}
    for members in job.communicators.values():
        on: dict[tuple[str, str], list[tuple[Party, Communicator]]] = {}
        for party, one in members:
            if one.bus and party.host:
                on.setdefault((party.host, one.bus), []).append((party, one))
        for gpu, some in on.items():
            if len({one.member for _, one in some}) > 1:
                found.setdefault(gpu, [party for party, _ in some])
    return found


def _twice(job: LoggedJob) -> Iterator[Told]:
    stated = list(job.complaints(ComplaintKind.TWICE))
    if not stated:
        return
    ranks = {rank for _, one in stated for rank in one.named[:1]}
    yield Told(
        code="DD607",
        message=f"Two processes say that they are {named(ranks)}: {stated[0][1].text} "
        f"(told by {who([party for party, _ in stated])}).",
        ranks=ranks,
        exhibits=[one for _, one in stated],
        cure="Look at the launcher's variables of the rank, and whether two jobs share "
        "an address and a port.",
    )


def _world_sizes(job: LoggedJob) -> Iterator[Told]:
    stated = list(job.complaints(ComplaintKind.WORLD_SIZE))
    if not stated:
        return
    reporter, first = stated[0]
    sizes = first.numbers[:2]
    reported = " and ".join(map(str, sizes)) or "different numbers of"
    others = [p for p in job.parties.values() if p.host and p.host != reporter.host]
    odd: list[Party] = []
    if len({party.host for party in others}) == 1 and len(job.hosts) == 2:
        odd = others
    by_size: dict[int, list[Party]] = {}
    for party in job.parties.values():
        for one in party.communicators:
            if one.size in sizes:
                by_size.setdefault(one.size, []).append(party)
    if len(by_size) > 1:
        least = min(by_size.values(), key=len)
        most = max(by_size.values(), key=len)
        odd = least if len(least) < len(most) else odd
    whom = f"; the odd ones are likely those of {who(odd)}" if odd else ""
    yield Told(
        code="DD607",
        message=f"Processes that meet expect worlds of {reported} ranks (rank count "
        f"mismatch): {first.text} (told by {who([reporter])}){whom}.",
        parties=odd,
        exhibits=[one for _, one in stated],
        certainty=Certainty.LIKELY if odd else Certainty.PROVED,
        cure="Give all hosts one WORLD_SIZE; give each job its own MASTER_PORT.",
        details={"sizes": list(sizes)},
    )


def foreign_connections(job: LoggedJob) -> Iterator[Told]:
    """A connection that is not of this communicator.

    Where versions or networks of the job's ranks differ, it is of one of them.

    Args:
        job: The job.
    """
    stated = list(job.complaints(ComplaintKind.FOREIGN))
    if not stated:
        return
    first = stated[0][1]
    hurt = job.failed or job.made_none
    peers = sorted({one.peer for _, one in stated if one.peer})
    inside = job.on(*peers)
    whence = f" from {', '.join(peers)}" if peers else ""
    yield Told(
        code="DD607",
        message=f"{capital(who([party for party, _ in stated]))} got a connection"
        f"{whence} "
        f"that is not of this communicator: {first.text}",
        parties=inside,
        exhibits=[one for _, one in stated],
        severity=None if hurt else Severity.WARNING,
        certainty=Certainty.LIKELY,
        cure="Find out who connects: another job at the same port, a scanner of ports, "
        "a rank with another version of NCCL.",
    )
