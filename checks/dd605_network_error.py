"""The network between two hosts failed.

What it is
----------
Sends and receives between hosts ended with an error: a completion with a status other
than success (InfiniBand, RoCE), a queue pair that could not connect, an event of the
adapter's port, a refused connection, or a peer that is gone. Many ranks report it. The
host that all reports have in common is the one to look at.

Why it matters
--------------
The job ends on all ranks with "remote process exited or there was a network error",
whichever cable it was.

Sick
----
Two hosts cannot reach the third:

    rank 0 | nccl_process(host=a)
           | nccl_complaint(kind=completion,host=a,peer=c,numbers=12,status=6)
    rank 1 | nccl_process(host=b)
           | nccl_complaint(kind=completion,host=b,peer=c,numbers=12,status=6)
    rank 2 | nccl_process(host=c)

One rank is gone without a word, and the others see closed connections:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=closed,host=a,peer=c,status=6)
    rank 1 | nccl_process(host=b)  nccl_complaint(kind=closed,host=b,peer=c,status=6)
    rank 2 | nccl_process(host=c)

A rank was killed by SIGKILL, and nothing tells what for:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=closed,host=a,status=6)
    rank 1 | nccl_process(host=a)  nccl_complaint(kind=killed,host=a,status=1)

Well
----
An event that is no error, and retries that came to a connection:

    rank 0 | nccl_process(host=a)
           | nccl_complaint(kind=connect,host=a,text=retrying,mild,harmless)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Look at the host that is named: counters of the port, cable, switch; for RoCE
`NCCL_IB_GID_INDEX` and the switches' flow control; on rail-only fabrics
`NCCL_CROSS_NIC=0`; firewalls for refused connections. If a rank is gone, its own log
and `dmesg` have the reason.

Known problems
--------------
Where only two hosts are seen, either end may be at fault: both are told and no rank is
named. A rank that was killed has no last word; who it was follows from whom the others
name.

References
----------
- NCCL: networking troubleshooting –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
- libibverbs: status of a completion, `ibv_poll_cq`'s manual –
  https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.communicators.late_members import slow_links
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.local_errors import LocalError, worded
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import ComplaintKind, NcclProcess
from distdoctor.model.run import Run

CODE = "DD605"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


_NO_REGISTRATION = {
    ComplaintKind.PEER_MEMORY: (
        "could not register memory of the GPU with the network adapter",
        "Load nvidia_peermem, or use a kernel and driver with dma-buf.",
    ),
}
"""By kind of error, what is said of who met it, and the cure."""


def examine(run: Run) -> Iterator[Finding]:
    """Links and hosts at fault."""
    yield from findings_of(run, CODE, {LocalError: worded(_NO_REGISTRATION)})
    yield from slow_links(run)
    require_whole(run)
