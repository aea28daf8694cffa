"""By which ways ranks reach each other, and where that is not the way meant."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.connection_errors import is_local_interface
from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, parties_of, who
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Severity
from distdoctor.model.observations.nccl import ComplaintKind


def mixed_networks(job: LoggedJob) -> Iterator[Told]:
    """Ranks that use another network than the others.

    Args:
        job: The job.
    """
    groups: dict[str, list[Party]] = {}
    for party in job.parties.values():
        if party.process and party.process.network:
            groups.setdefault(party.process.network, []).append(party)
    if len(groups) < 2:
        return
    usual = max(groups, key=lambda one: (len(groups[one]), one != "Socket"))
    odd = [p for name, some in groups.items() if name != usual for p in some]
    clear = len(odd) < len(groups[usual])
    stuck = bool(job.communicators) and job.made_none
    lacking = [p for p in odd or groups[usual] if p.process and p.process.no_adapter]
    why = " (NET/IB: No device found)" if lacking else ""
    parts = "; ".join(f"{name} on {who(some)}" for name, some in groups.items())
    yield Told(
        code="DD602",
        message=f"Networks differ between ranks: {parts}{why}"
        + (
            "; no rank has completed the initialisation (Init COMPLETE)."
            if stuck
            else "."
        ),
        parties=odd if clear else (),
        hosts=sorted({party.host for party in odd}),
        exhibits=[party.process for party in odd if party.process],
        severity=None if stuck or job.failed else Severity.WARNING,
        cure="Give the odd hosts the device (/dev/infiniband in the container, "
        "ibv_devinfo, NCCL_IB_HCA), or set NCCL_NET=Socket on all.",
        details={"networks": {n: [p.key for p in some] for n, some in groups.items()}},
    )


def fall_backs(job: LoggedJob) -> Iterator[Told]:
    """Slower ways than the hardware may have; never an error.

    Args:
        job: The job.
    """
    yield from _sockets(job)
    yield from _interfaces(job)
    yield from _inside_hosts(job)
    yield from _gpu_direct(job)
    yield from _without_nvls(job)
    yield from _other_nodes(job)
    yield from _by_complaint(job)


def _other_nodes(job: LoggedJob) -> Iterator[Told]:
    """NCCL counts other hosts than there are."""
    reported = [p for p in job.parties.values() if p.process and p.process.nodes]
    counts = {p.process.nodes for p in reported if p.process}
    hosts = {p.host for p in reported}
    if len(counts) != 1 or len(reported) < job.run.world_size or len(reported) < 2:
        return
    (count,) = counts
    if count == len(hosts):
        return
    more = count > len(hosts)
    yield Told(
        code="DD602",
        message=f"NCCL counts {count:,} nodes (nNodes), and the log has "
        f"{len(hosts):,} host{'s' * (len(hosts) > 1)}: ranks of a host "
        + (
            "take each other for ranks of others and use the network."
            if more
            else "and of another look the same: their names or ids were cloned."
        ),
        exhibits=[p.process for p in reported if p.process],
        hosts=sorted(hosts),
        severity=Severity.WARNING,
        certainty=Certainty.LIKELY,
        cure="NCCL_HOSTID: equal within a host, different between hosts; unique names.",
    )


_ADVICE = {
    ComplaintKind.GDR_OFF: (
        "work without GPU Direct RDMA",
        "Load nvidia_peermem, or use dma-buf.",
    ),
    ComplaintKind.IOMMU: (
        "run on a kernel whose IOMMU may slow P2P",
        "Boot with iommu=pt.",
    ),
    ComplaintKind.NVLINK_OFF: (
        "go on without P2P between GPUs that NVLink connects",
        "`nvidia-smi nvlink -s`; reset the GPUs or the fabric manager.",
    ),
    ComplaintKind.IMEX: (
        "go on without multi-node NVLink",
        "Show /dev/nvidia-caps-imex-channels to the container.",
    ),
}


def _by_complaint(job: LoggedJob) -> Iterator[Told]:
    for kind, (what, cure) in _ADVICE.items():
        stated = [(p, one) for p in job.parties.values() for one in p.of(kind)]
        parties = parties_of(stated)
        if parties:
            yield Told(
                code="DD602",
                message=f"{capital(who(parties))} {what}: {stated[0][1].text}",
                parties=parties if len(parties) < len(job.parties) else (),
                exhibits=[one for _, one in stated],
                severity=Severity.NOTE,
                certainty=Certainty.LIKELY,
                cure=cure,
            )


def _sockets(job: LoggedJob) -> Iterator[Told]:
    """All ranks of several hosts use sockets."""
    users = [p for p in job.parties.values() if p.process and p.process.network]
    if len({p.host for p in users}) < 2 or any(
        p.process.network != "Socket" for p in users if p.process
    ):
        return
    lacking = [p for p in users if p.process and p.process.no_adapter]
    if not lacking:
        return
    yield Told(
        code="DD602",
        message=f"{capital(who(users))} use TCP sockets between hosts (Using network "
        "Socket): NET/IB: No device found. That is as it should be where hosts have "
        "Ethernet only.",
        exhibits=[p.process for p in lacking if p.process],
        hosts=sorted({p.host for p in users}),
        severity=Severity.NOTE,
        certainty=Certainty.LIKELY,
        cure="Where there is InfiniBand or RoCE: give the container /dev/infiniband "
        "and rdma-core, look at NCCL_IB_HCA.",
    )


def _interfaces(job: LoggedJob) -> Iterator[Told]:
    wrong = [
        party
        for party in job.parties.values()
        if party.process and is_local_interface(party.process.interface)
    ]
    wrong_sockets = [
        party
        for party in job.parties.values()
        if party.process
        and party.process.network == "Socket"
        and any(
            is_local_interface(one.partition("]")[2].replace(":", " ", 1))
            for one in party.process.sockets.split()
        )
    ]
    found = wrong or wrong_sockets
    if not found or len(job.hosts) < 2:
        return
    used = sorted({p.process.interface for p in wrong if p.process})
    used = used or sorted({p.process.sockets for p in found if p.process})
    yield Told(
        code="DD602",
        message=f"{capital(who(found))} use an interface that leads to no other host: "
        f"{', '.join(used[:4])}.",
        parties=found,
        exhibits=[p.process for p in found if p.process],
        severity=Severity.WARNING,
        certainty=Certainty.LIKELY,
        cure="NCCL_SOCKET_IFNAME=eth (a prefix) or ^docker,lo,veth,br-,virbr.",
    )


def _inside_hosts(job: LoggedJob) -> Iterator[Told]:
    stated = [
        (party, one)
        for party in job.parties.values()
        for one in party.of(ComplaintKind.P2P_OFF)
    ]
    by_memory = [
        p
        for p in job.parties.values()
        if p.process and p.process.inside and set(p.process.inside) == {"SHM"}
    ]
    by_net = [
        p
        for p in job.parties.values()
        if p.process
        and p.process.inside
        and any(via.startswith("NET") for via in p.process.inside)
        and not any(via.startswith("P2P") for via in p.process.inside)
    ]
    if by_net:
        yield Told(
            code="DD602",
            message=f"{capital(who(by_net))} reach ranks of their own host by the "
            f"network: channels inside a host are {', '.join(_inside(by_net))}.",
            parties=by_net if len(by_net) < len(job.parties) else (),
            exhibits=[p.process for p in by_net if p.process],
            severity=Severity.WARNING,
            cure="Unset NCCL_P2P_LEVEL and NCCL_SHM_DISABLE; let ranks of a host share "
            "one NCCL_HOSTID.",
        )
        return
    if stated or by_memory:
        parties = by_memory or parties_of(stated)
        text = stated[0][1].text if stated else "P2P between the GPUs is not used"
        exhibits: list[Event] = [one for _, one in stated]
        exhibits += [p.process for p in by_memory if p.process]
        yield Told(
            code="DD602",
            message=f"{capital(who(parties))} use shared memory of the host (SHM) "
            f"instead of P2P: {text}.",
            exhibits=exhibits,
            parties=parties if _some_by_p2p(job) else (),
            severity=Severity.NOTE,
            certainty=Certainty.LIKELY,
            cure="`nvidia-smi topo -p2p r`; NCCL_P2P_DISABLE, NCCL_P2P_LEVEL; GPUs "
            "without P2P have no other way.",
        )


def _some_by_p2p(job: LoggedJob) -> bool:
    return any(
        via.startswith("P2P")
        for party in job.parties.values()
        for via in (party.process.inside if party.process else ())
    )


def _inside(parties: list[Party]) -> list[str]:
    return sorted({via for p in parties if p.process for via in p.process.inside})


def _gpu_direct(job: LoggedJob) -> Iterator[Told]:
    users = [
        p
        for p in job.parties.values()
        if p.process and any(v.startswith("NET/IB") for v in p.process.between)
    ]
    without = [
        p
        for p in users
        if p.process and not any("GDRDMA" in via for via in p.process.between)
    ]
    if without and len(without) < len(users):
        yield Told(
            code="DD602",
            message=f"{capital(who(without))} reach other hosts without GPU Direct "
            "RDMA, and other ranks with it.",
            parties=without,
            exhibits=[p.process for p in without if p.process],
            severity=Severity.WARNING,
            cure="Load nvidia_peermem on these hosts; NCCL_NET_GDR_LEVEL.",
        )
    elif without:
        yield Told(
            code="DD602",
            message="No rank reaches other hosts by GPU Direct RDMA (GDRDMA): data "
            "passes through memory of the host.",
            exhibits=[p.process for p in without if p.process],
            severity=Severity.NOTE,
            certainty=Certainty.LIKELY,
            cure="Load nvidia_peermem, or use dma-buf; NCCL_NET_GDR_LEVEL.",
        )


def _without_nvls(job: LoggedJob) -> Iterator[Told]:
    stated = [
        (party, one)
        for party in job.parties.values()
        for one in party.of(ComplaintKind.NVLS_OFF)
    ]
    if stated:
        parties = parties_of(stated)
        yield Told(
            code="DD602",
            message=f"{capital(who(parties))} go on without NVLink SHARP (NVLS): "
            f"{stated[0][1].text}",
            parties=parties if len(parties) < len(job.parties) else (),
            exhibits=[one for _, one in stated],
            severity=Severity.NOTE,
            cure="Restart the fabric manager and reset the GPUs.",
        )
