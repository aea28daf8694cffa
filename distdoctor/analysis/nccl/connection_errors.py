"""Ranks that cannot connect to others, and ranks that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, parties_of, who
from distdoctor.model.findings import Certainty
from distdoctor.model.observations.nccl import ComplaintKind

_CONNECT_CURE = (
    "The log of the rank that is to be met; firewall (ephemeral "
    "ports), NCCL_SOCKET_IFNAME."
)
GONE_CURE = (
    "Look at the log of the rank that is gone, and for a kill "
    "for want of memory in `dmesg` of its host."
)
"""What to do where a rank is gone."""


def connection_errors(job: LoggedJob) -> Iterator[Told]:
    """Who could not connect; else who is gone, where others saw connections closed.

    Args:
        job: The job.
    """
    stated = list(job.complaints(ComplaintKind.CONNECT))
    hard = [pair for pair in stated if not pair[1].mild]
    stated = hard or (stated if job.failed or job.made_none else [])
    if not stated:
        yield from _of_the_dead(job)
        return
    first = stated[0][1]
    reporters = {party.host for party, _ in stated}
    peers = {one.peer for _, one in stated if one.peer}
    others = {host for host in job.hosts if host not in reporters}
    wrong = _wrong_interfaces(job)
    code, hosts, sure = "DD605", tuple(sorted(reporters | peers)), False
    reason = ""
    if wrong:
        code, hosts, sure = "DD602", tuple(sorted({p.host for p in wrong})), True
        used = sorted({p.process.interface for p in wrong if p.process})
        reason = f"; it meets the others by {', '.join(used)}"
    elif len(peers) == 1 and not peers & reporters and len(reporters) > 1:
        hosts, sure = tuple(peers), True
    elif len(reporters) == 1 and (len(peers) > 1 or len(others - peers) > 1):
        hosts, sure = tuple(reporters), True
    parties = job.on(*hosts) if sure else []
    parties = wrong or parties
    subject = who(parties) if parties else ", ".join(hosts)
    reported = who(parties_of(stated))
    to = f" to {', '.join(sorted(peers))}" if peers else ""
    suspect = f"; suspect: {subject}" if subject else ""
    yield Told(
        code=code,
        message=f"{capital(reported)} could not connect{to}: {first.text}"
        f"{suspect}{reason}.",
        parties=parties,
        hosts=hosts,
        exhibits=[one for _, one in stated],
        certainty=Certainty.LIKELY,
        cure=_CONNECT_CURE,
        details={"kind": first.kind, "peers": sorted(peers)},
    )


def _wrong_interfaces(job: LoggedJob) -> list[Party]:
    """Ranks that meet others by an interface of their own host; see `transports`."""
    if len(job.hosts) < 2:
        return []
    return [
        party
        for party in job.parties.values()
        if party.process and is_local_interface(party.process.interface)
    ]


def is_local_interface(interface: str) -> bool:
    """Whether an interface leads to no other host, by its name and its address.

    Args:
        interface: Name and address, with a blank between them.
    """
    name, _, address = interface.partition(" ")
    return (
        name == "lo"
        or name.startswith(
            ("docker", "virbr", "veth", "br-", "cni", "podman", "lxc", "flannel.")
        )
        or address.startswith(("127.", "169.254.", "172.17."))
    )


def _of_the_dead(job: LoggedJob) -> Iterator[Told]:
    """All complain that connections were closed: who says nothing is gone."""
    stated = list(job.complaints(ComplaintKind.CLOSED))
    stated = [pair for pair in stated if pair[1].status or job.failed]
    if not stated:
        return
    reporters = {party.key for party, _ in stated}
    peers = {one.peer for _, one in stated if one.peer}
    named_ranks = {rank for _, one in stated for rank in one.named}
    silent = [
        party
        for party in job.parties.values()
        if party.key not in reporters
        and not any(one.destroyed or one.aborted for one in party.communicators)
        and not party.complaints
    ]
    pointed = [party for party in silent if party.host in peers or not peers]
    dead = pointed if pointed and len(pointed) < len(job.parties) / 2 else []
    if not dead and len(silent) == 1 and len(reporters) > 1:
        dead = silent
    unseen = sorted(job.run.unseen)
    gone: list[int] = []
    if not dead and unseen and len(unseen) * 2 < job.run.world_size:
        gone = [rank for rank in unseen if not named_ranks or rank in named_ranks]
    first = stated[0][1]
    reported = who(parties_of(stated))
    by = f" to {', '.join(sorted(peers)[:4])}" if peers else ""
    culprit = who(dead) if dead else f"ranks {gone}" if gone else ""
    end = (
        f"{capital(culprit)} died without a word, or was killed"
        if culprit
        else "Nobody's log says why"
    )
    if not culprit and job.run.cancelled:
        return  # ranks that are ended one after the other see the first ones go
    yield Told(
        code="DD605",
        message=f"{end}; {reported} only saw connections{by} closed: {first.text}",
        parties=dead,
        ranks=gone,
        hosts=tuple(sorted({p.host for p in dead} or peers)),
        exhibits=[one for _, one in stated],
        certainty=Certainty.LIKELY,
        cure=GONE_CURE,
        details={"kind": first.kind, "peers": sorted(peers)},
    )
