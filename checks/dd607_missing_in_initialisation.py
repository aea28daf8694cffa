"""A rank is missing where a communicator is made.

What it is
----------
All ranks of a communicator meet before it can be used. In the log each prints that it
begins (from NCCL 2.18 on: Init START) and that it is done (Init COMPLETE). If one never
begins, all others wait. If two say that they are the same rank, or processes expect
other sizes of the world, the meeting is refused.

Why it matters
--------------
The job hangs in its first call, mostly without a word, until a timeout of many minutes;
the ranks that time out are those that did everything right.

Sick
----
Rank 2 never begins, and the others do not come to an end:

    rank 0 | nccl_process(host=a)  communicator(comm=world,size=3,member=0,host=a)
    rank 1 | nccl_process(host=a)  communicator(comm=world,size=3,member=1,host=a)
    rank 2 | nccl_process(host=a)

Two processes say that they are rank 0:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=twice,host=a,named=0,status=3)
    rank 1 | nccl_process(host=a)

Well
----
All began and are done:

    rank 0 | nccl_process(host=a)
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
Look at the rank that is absent: its own output, its stack. Typical: it raised an
exception while importing, waits in another collective, makes groups in another order,
is behind a firewall. For sizes and ranks that do not fit, look at `WORLD_SIZE`, `RANK`
and whether two jobs share a port.

Known problems
--------------
Before NCCL 2.18 there is no line at the beginning. A log that was copied while the job
initialised looks like one that hangs if a rank was late. Ranks without any line in the
log of a job that did initialise are told as a warning: their files may not have been
given.

References
----------
- NCCL: creating a communicator –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import NcclProcess
from distdoctor.model.run import Run

CODE = "DD607"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that are missing or twice."""
    yield from findings_of(run, CODE)
    require_whole(run)
