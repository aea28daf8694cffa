"""Errors that a process meets by itself: its GPU, its memory, its limits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, who
from distdoctor.model.observations.nccl import ComplaintKind, NcclComplaint


class _Disease(NamedTuple):
    code: str
    what: str  # it follows "who"
    cure: str
    of_host: bool = False  # it concerns all ranks of a host


LOCAL = {
    ComplaintKind.XID: _Disease(
        "DD606",
        "had an error of the GPU that the driver reports (Xid)",
        "Drain the host, run `dcgmi diag` and look the Xid up; restart elsewhere.",
    ),
    ComplaintKind.GPU_FAULT: _Disease(
        "DD606",
        "had a fault of the GPU",
        "Look for Xid in `dmesg`; drain the host and run `dcgmi diag`.",
    ),
    ComplaintKind.GPU_MEMORY: _Disease(
        "DD606",
        "ran out of memory on the GPU while NCCL allocated",
        "Leave 1-2 GiB of the GPU to NCCL; fewer communicators, smaller NCCL_BUFFSIZE.",
    ),
    ComplaintKind.NVLS: _Disease(
        "DD606",
        "could not bind multicast memory of NVLink SHARP",
        "Restart the fabric manager and reset the GPUs; NCCL_NVLS_ENABLE=0 meanwhile.",
        of_host=True,
    ),
    ComplaintKind.NVLINK_OFF: _Disease(
        "DD606",
        "found P2P disabled between GPUs that NVLink connects",
        "`nvidia-smi nvlink -s`; reset the GPUs or the fabric manager.",
        of_host=True,
    ),
    ComplaintKind.PEER_ACCESS: _Disease(
        "DD606",
        "could not reach the memory of another GPU of its host",
        "Show all GPUs of the host to each process; else NCCL_P2P_DISABLE=1.",
    ),
    ComplaintKind.CUDA: _Disease(
        "DD606",
        "had an error of CUDA inside NCCL",
        "An earlier kernel may be at fault: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer; "
        "start processes by spawn; compare driver and CUDA versions.",
    ),
    ComplaintKind.SHM: _Disease(
        "DD603",
        "had too little shared memory in /dev/shm",
        "Give the container more (`--shm-size=1g`, `--ipc=host`, a memory volume at "
        "/dev/shm) and delete stale /dev/shm/nccl-*.",
        of_host=True,
    ),
    ComplaintKind.SHM_ATTACH: _Disease(
        "DD603",
        "could not attach to shared memory of another rank of its host",
        "Let the containers of a host share /dev/shm and IPC, or give each its own "
        "NCCL_HOSTID.",
    ),
    ComplaintKind.LOCKED_MEMORY: _Disease(
        "DD603",
        "could not register memory with the network adapter: the limit of locked "
        "memory is too small",
        "`ulimit -l unlimited`, `--ulimit memlock=-1`, capability IPC_LOCK.",
        of_host=True,
    ),
    ComplaintKind.IMEX: _Disease(
        "DD603",
        "could not use multi-node NVLink: the IMEX channel is not there",
        "Show /dev/nvidia-caps-imex-channels to the container, or NCCL_MNNVL_ENABLE=0.",
        of_host=True,
    ),
    ComplaintKind.FILES: _Disease(
        "DD603", "had too many open files", "Raise `ulimit -n`.", of_host=True
    ),
    ComplaintKind.THREADS: _Disease(
        "DD603",
        "could not start a thread",
        "Raise `ulimit -u` and the container's limit of processes.",
        of_host=True,
    ),
    ComplaintKind.KILLED: _Disease(
        "DD603",
        "was killed by the kernel for want of memory",
        "Look at the host's memory and the container's limit; `dmesg` has the reason.",
    ),
    ComplaintKind.HOST_MEMORY: _Disease(
        "DD603",
        "ran out of memory of the host",
        "Look at the limits of the container and at what else uses memory.",
    ),
    ComplaintKind.INTERFACE: _Disease(
        "DD602",
        "found no network interface that it may use",
        "Let NCCL_SOCKET_IFNAME name an interface of each host, or exclude by ^.",
        of_host=True,
    ),
    ComplaintKind.TOPOLOGY: _Disease(
        "DD601",
        "could not read the description of the topology",
        "Mend or unset NCCL_TOPO_FILE.",
    ),
    ComplaintKind.PEER_MEMORY: _Disease(
        "DD605",
        "could not register memory of the GPU with the network adapter",
        "Load nvidia_peermem, or use a kernel and driver with dma-buf.",
        of_host=True,
    ),
}
"""What each kind is called, and its cure; the first is the most telling."""

_OF_MEMORY = re.compile("out of memory|oom", re.IGNORECASE)
"""In a line of the kernel that tells why it killed a process."""

_ECHOES = {ComplaintKind.HOST_MEMORY, ComplaintKind.CUDA, ComplaintKind.THREADS}
"""What may follow from any other of them."""


def local_errors(job: LoggedJob) -> Iterator[Told]:
    """The first such error, and all who have it.

    Args:
        job: The job.
    """
    found = [
        (party, one) for party, one in job.complaints(*LOCAL) if _is_fatal(job, one)
    ]
    if not found:
        return
    telling = [pair for pair in found if pair[1].kind not in _ECHOES] or found
    first = telling[0][1]
    if first.order == 0:  # nobody knows the order
        order = list(LOCAL)
        telling.sort(key=lambda pair: order.index(ComplaintKind(pair[1].kind)))
        first = telling[0][1]
    kind = ComplaintKind(first.kind)
    disease = LOCAL[kind]
    shown = [one for _, one in found if one.kind == kind]
    by_host: dict[str, list[Party]] = defaultdict(list)
    for party, one in found:
        if one.kind == kind and party not in by_host[party.host]:
            by_host[party.host].append(party)
    parties: list[Party] = []
    for host, some in by_host.items():
        is_whole = disease.of_host and host and len(some) > 1
        others = [one for one in job.on(host) if one not in some] if is_whole else []
        # Who only saw a connection closed had not come to the limit.
        parties += [*some, *(one for one in others if not one.of(ComplaintKind.CLOSED))]
    yield Told(
        code=disease.code,
        message=f"{capital(who(parties))} {disease.what}: {first.text}",
        parties=parties,
        exhibits=shown,
        cure=disease.cure,
        details={"kind": kind.value},
    )


def _is_fatal(job: LoggedJob, one: NcclComplaint) -> bool:
    """Whether it may have been the end; what is told as information may not."""
    if one.kind == ComplaintKind.KILLED:
        return _OF_MEMORY.search(one.text) is not None  # else nobody knows what for
    if one.kind == ComplaintKind.IMEX or one.mild:
        return bool(one.status) and job.failed
    return True
