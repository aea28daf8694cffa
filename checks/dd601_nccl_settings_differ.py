"""Versions or settings of NCCL are not the same on all ranks.

What it is
----------
NCCL's log tells its version and each variable `NCCL_…` that it took notice of. Ranks
of one job have to agree: in the version, and in what shapes their messages
(`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_BUFFSIZE`, numbers of threads and channels, which
transports are allowed). Names of interfaces and devices may differ from host to host.

Why it matters
--------------
Ranks that chose another algorithm or protocol send messages of other sizes: the job
ends with "message truncated", hangs, or mixes numbers. Where nothing has failed so far,
it is a warning.

Sick
----
Two versions, and the job ended with an error:

    rank 0 | nccl_process(host=a,version=2.27.3)
           | nccl_complaint(kind=versions,host=a,status=5)
    rank 1 | nccl_process(host=b,version=2.26.2)

A setting that one host alone has, and messages that do not fit:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=0,host=a,complete)
           | nccl_complaint(kind=sizes,host=a,status=5)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=1,host=a,complete)
    rank 2 | nccl_process(host=b,settings=NCCL_ALGO%3DTree)
           | communicator(comm=world,size=3,member=2,host=b,complete)

Nothing has failed so far, which is a warning:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_NTHREADS%3D256)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Well
----
Each host has an interface of its own, and names it:

    rank 0 | nccl_process(host=a,settings=NCCL_SOCKET_IFNAME%3Deth0)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_SOCKET_IFNAME%3Dens5)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Give all hosts one image and one libnccl, and set `NCCL_…` in one place for all ranks:
in the launcher, not in a shell's start-up file of one host.

Known problems
--------------
Before NCCL 2.22 only the first rank prints its version; another one then shows by the
form of its lines, and only where the job failed. A variable is printed when it is used
first: a rank that came less far than the others may have it, too.

References
----------
- NCCL: environment variables –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.local_errors import LocalError, worded
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import ComplaintKind, NcclProcess
from distdoctor.model.run import Run

CODE = "DD601"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


_NO_TOPOLOGY = {
    ComplaintKind.TOPOLOGY: (
        "could not read the description of the topology",
        "Mend or unset NCCL_TOPO_FILE.",
    ),
}
"""By kind of error, what is said of who met it, and the cure."""


def examine(run: Run) -> Iterator[Finding]:
    """Versions and settings that differ."""
    yield from findings_of(run, CODE, {LocalError: worded(_NO_TOPOLOGY)})
    require_whole(run)
