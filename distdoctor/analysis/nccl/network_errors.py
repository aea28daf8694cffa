"""Errors of the network: which host or link is at fault, and who only suffers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.connection_errors import GONE_CURE, connection_errors
from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, parties_of, who
from distdoctor.model.findings import Certainty, Severity
from distdoctor.model.observations.nccl import ComplaintKind, NcclComplaint

_FLUSHED = 5
"""Status of a request that was given up after another error: always a victim's."""

_OWN = (ComplaintKind.PORT, ComplaintKind.ADAPTER)
_LINK = (
    *(ComplaintKind.COMPLETION, ComplaintKind.QUEUE_PAIR, ComplaintKind.FABRIC),
    ComplaintKind.DEVICES,
)

_MEANINGS = {
    12: "no answer after all retries",
    13: "the receiver was not ready",
    4: "local protection: GPU Direct through ACS or an IOMMU, or a freed buffer",
    9: "the sizes of the two sides differ",
    10: "remote access",
    11: "remote operation",
}

_CURES = {
    ComplaintKind.COMPLETION: "RoCE: NCCL_IB_GID_INDEX, VLAN, MTU, PFC; rail-only "
    "fabrics: NCCL_CROSS_NIC=0; after hours: counters of that port, cable and switch; "
    "ib_write_bw between the two hosts.",
    ComplaintKind.QUEUE_PAIR: "NCCL_IB_GID_INDEX that is valid on both hosts "
    "(show_gids), NCCL_CROSS_NIC=0 on rails, NCCL_IB_HCA.",
    ComplaintKind.PORT: "Cable, switch port or adapter: drain the host.",
    ComplaintKind.ADAPTER: "The adapter is gone or was reset: drain the host.",
    ComplaintKind.FABRIC: "EFA: the security group must allow all traffic to itself in "
    "both directions; FI_PROVIDER=efa; the plugin's version.",
    ComplaintKind.DEVICES: "The same NCCL_IB_HCA on all hosts, NCCL_IB_MERGE_NICS=0.",
}


def network_errors(job: LoggedJob) -> Iterator[Told]:
    """The error of the network that the others follow from.

    Args:
        job: The job.
    """
    own = [pair for pair in job.complaints(*_OWN) if not pair[1].mild or job.failed]
    links = [
        pair
        for pair in job.complaints(*_LINK)
        if pair[1].numbers[:1] != (_FLUSHED,) and not pair[1].mild
    ]
    if own and (links or job.failed or _are_hard(own)):
        yield _of_own_port(job, own)
    elif links:
        yield _of_links(job, links)
    elif flushed := list(job.complaints(ComplaintKind.COMPLETION)):
        yield _of_links(job, flushed)
    elif killed := list(job.complaints(ComplaintKind.KILLED)):
        yield _of_the_killed(job, killed)
    else:
        yield from connection_errors(job)


def _of_the_killed(
    job: LoggedJob, killed: Sequence[tuple[Party, NcclComplaint]]
) -> Told:
    """Ranks that were ended by SIGKILL, and nothing tells what for."""
    dead = parties_of(killed)
    closed = [
        pair for pair in job.complaints(ComplaintKind.CLOSED) if pair[0] not in dead
    ]
    seen = who(parties_of(closed)) if closed else ""
    rest = f"; {seen} only saw connections closed" * bool(seen)
    return Told(
        code="DD605",
        message=f"{capital(who(dead))} died: killed by SIGKILL{rest}: "
        f"{killed[0][1].text}",
        parties=dead,
        exhibits=[one for _, one in (*killed, *closed)],
        cure=GONE_CURE,
        details={"kind": ComplaintKind.KILLED.value},
    )


def _are_hard(own: Sequence[tuple[Party, NcclComplaint]]) -> bool:
    return any("fatal" in one.text or "catastrophic" in one.text for _, one in own)


def _of_own_port(job: LoggedJob, own: Sequence[tuple[Party, NcclComplaint]]) -> Told:
    hosts = {party.host for party, _ in own}
    parties = [party for party in job.parties.values() if party.host in hosts]
    saying = list(dict.fromkeys(party.key for party, _ in own))
    parties = [one for one in parties if one.key in saying] or parties
    first = own[0][1]
    device = f" ({first.device})" if first.device else ""
    return Told(
        code="DD605",
        message=f"{capital(who(parties))} had an error of the network adapter{device}: "
        f"{first.text}",
        parties=parties,
        exhibits=[one for _, one in own],
        severity=None if job.failed else Severity.WARNING,
        cure=_CURES[ComplaintKind.PORT],
        details={
            "kind": first.kind,
            "devices": sorted({o.device for _, o in own} - {""}),
        },
    )


@dataclass(frozen=True, slots=True)
class _Blame:
    """Hosts at fault, and whether one alone is."""

    hosts: tuple[str, ...]
    is_sure: bool


def _of_links(job: LoggedJob, links: Sequence[tuple[Party, NcclComplaint]]) -> Told:
    first = links[0][1]
    blame = _blame(job, links)
    parties = _ends(job, blame, links)
    kind = ComplaintKind(first.kind)
    status = (
        first.numbers[0] if kind is ComplaintKind.COMPLETION and first.numbers else 0
    )
    meaning = f" (status {status}: {_MEANINGS[status]})" if status in _MEANINGS else ""
    roce = _link_layer(job, links)
    pairs = Counter((party.host, one.peer) for party, one in links)
    known = ", ".join(f"{a} → {b}" for a, b in list(pairs)[:4] if b)
    over = f" between hosts {known}" if known else ""
    subject = "The network failed" if not blame.is_sure else f"{capital(who(parties))}"
    verb = "" if not blame.is_sure else " is where the network failed"
    yield_to = f"{subject}{verb}{over}{roce}{meaning}: {first.text}"
    return Told(
        code="DD605",
        message=yield_to,
        parties=parties if blame.is_sure else (),
        hosts=blame.hosts,
        exhibits=[one for _, one in links],
        certainty=Certainty.LIKELY,
        cure=_CURES[kind],
        details={
            "kind": kind.value,
            "status": status,
            "reporters": sorted({party.host for party, _ in links}),
            "peers": sorted({one.peer for _, one in links if one.peer}),
            "devices": sorted({one.device for _, one in links} - {""}),
        },
    )


def _link_layer(job: LoggedJob, links: Sequence[tuple[Party, NcclComplaint]]) -> str:
    del job
    found = {
        layer
        for party, _ in links
        for layer in ("RoCE", "IB")
        if party.process and f"/{layer}" in party.process.adapters
    }
    return f" over {' and '.join(sorted(found))}" if found else ""


def _blame(job: LoggedJob, links: Sequence[tuple[Party, NcclComplaint]]) -> _Blame:
    """The host that all links which failed have in common."""
    pairs = {(party.host, one.peer) for party, one in links if one.peer != party.host}
    reporters = {a for a, _ in pairs}
    peers = {b for _, b in pairs if b}
    if not peers:
        return _Blame(tuple(sorted(reporters)), is_sure=len(reporters) == 1)
    ends: dict[str, set[str]] = defaultdict(set)
    for a, b in pairs:
        if b:
            ends[a].add(b)
            ends[b].add(a)
    common = [h for h in ends if all(h in pair or not pair[1] for pair in pairs)]
    if len(common) == 1 and len(ends[common[0]]) > 1:
        return _Blame((common[0],), is_sure=True)
    if len(common) == 2:
        silent = [h for h in common if _is_silent(job, h)]
        if len(silent) == 1 and silent[0] in peers:
            return _Blame((silent[0],), is_sure=True)
    if not common and ends:
        # A host that most of them have in common, where the others have nothing so.
        ranked = Counter({host: len(others) for host, others in ends.items()})
        (host, most), *rest = ranked.most_common(2)
        if most > 2 and (not rest or rest[0][1] * 2 <= most):
            return _Blame((host,), is_sure=True)
    return _Blame(tuple(sorted(reporters | peers)), is_sure=False)


def _is_silent(job: LoggedJob, host: str) -> bool:
    here = job.on(host)
    return bool(here) and not any(
        one.kind != ComplaintKind.WAITING for party in here for one in party.complaints
    )


def _ends(
    job: LoggedJob, blame: _Blame, links: Sequence[tuple[Party, NcclComplaint]]
) -> list[Party]:
    """Ranks on the hosts at fault: who told of it there, or else all."""
    saying = {party.key for party, _ in links if party.host in blame.hosts}
    here = job.on(*blame.hosts)
    only = [party for party in here if party.key in saying]
    return only or here
