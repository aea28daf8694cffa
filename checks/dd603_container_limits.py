"""A limit of the host or the container stops NCCL.

What it is
----------
NCCL needs shared memory in `/dev/shm`, memory that the adapter may lock, open files and
threads. Containers give little of it by default: docker gives 64 MB of `/dev/shm`, many
schedulers 64 KB of locked memory.

Why it matters
--------------
Initialisation ends with an error on the ranks of that host. All others only see closed
connections, and their "internal error" is what the job is reported to have died of.

Sick
----
`/dev/shm` is full on one rank's host:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=shared%20memory,host=a,status=2)
    rank 1 | nccl_process(host=b)  nccl_complaint(kind=closed,host=b,peer=a,status=6)

The limit of locked memory is too small:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=locked%20memory,host=a,status=2)
    rank 1 | nccl_process(host=b)

Well
----
The message was not the end:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=shared%20memory,host=a,harmless)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=2,member=1,host=a,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
`--shm-size=1g` or `--ipc=host` (a memory volume at `/dev/shm` on Kubernetes); delete
stale `/dev/shm/nccl-*`; `ulimit -l unlimited` (`--ulimit memlock=-1`, capability
IPC_LOCK); `ulimit -n` and `-u`. `cure` in the finding's details says which.

Known problems
--------------
A process that the kernel kills for want of memory says nothing itself: it is told only
if the kernel's line is in the log. A launcher's line tells of the kill, and not what it
was for: that is told as DD605.

References
----------
- NCCL: troubleshooting –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.local_errors import LocalError, worded
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import ComplaintKind, NcclProcess
from distdoctor.model.run import Run

CODE = "DD603"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


_LIMITS = {
    ComplaintKind.SHM: (
        "had too little shared memory in /dev/shm",
        "Give the container more (`--shm-size=1g`, `--ipc=host`, a memory "
        "volume at /dev/shm) and delete stale /dev/shm/nccl-*.",
    ),
    ComplaintKind.SHM_ATTACH: (
        "could not attach to shared memory of another rank of its host",
        "Let the containers of a host share /dev/shm and IPC, or give each "
        "its own NCCL_HOSTID.",
    ),
    ComplaintKind.LOCKED_MEMORY: (
        "could not register memory with the network adapter: the limit of "
        "locked memory is too small",
        "`ulimit -l unlimited`, `--ulimit memlock=-1`, capability IPC_LOCK.",
    ),
    ComplaintKind.IMEX: (
        "could not use multi-node NVLink: the IMEX channel is not there",
        "Show /dev/nvidia-caps-imex-channels to the container, or NCCL_MNNVL_ENABLE=0.",
    ),
    ComplaintKind.FILES: (
        "had too many open files",
        "Raise `ulimit -n`.",
    ),
    ComplaintKind.THREADS: (
        "could not start a thread",
        "Raise `ulimit -u` and the container's limit of processes.",
    ),
    ComplaintKind.KILLED: (
        "was killed by the kernel for want of memory",
        "Look at the host's memory and the container's limit; `dmesg` has the reason.",
    ),
    ComplaintKind.HOST_MEMORY: (
        "ran out of memory of the host",
        "Look at the limits of the container and at what else uses memory.",
    ),
}
"""By kind of error, what is said of who met it, and the cure."""


def examine(run: Run) -> Iterator[Finding]:
    """Limits that were reached."""
    yield from findings_of(run, CODE, {LocalError: worded(_LIMITS)})
    require_whole(run)
