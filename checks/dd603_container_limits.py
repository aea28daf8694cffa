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
if the kernel's or the launcher's line is in the log.

References
----------
- NCCL: troubleshooting –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import NcclProcess
from distdoctor.model.run import Run

CODE = "DD603"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


def examine(run: Run) -> Iterator[Finding]:
    """Limits that were reached."""
    yield from findings_of(run, CODE)
    require_whole(run)
