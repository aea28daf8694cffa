"""The calls of ranks that NCCL's log shows do not match.

What it is
----------
With NCCL_DEBUG_SUBSYS=COLL each rank prints each call that it enqueues: the operation,
the count, the datatype, the reduce op and the root. The calls of each communicator are
lined up by their order. The first one that not all ranks made alike is told: another
argument, a call that is missing or one too many, another order. If the job failed, so
is a rank that is behind.

Why it matters
--------------
NCCL does not compare: calls that do not match hang, end in network errors, or give
wrong sums without a word.

Sick
----
Rank 1 gathers where the others reduce:

    rank 0 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllReduce)
    rank 1 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllGather)
    rank 2 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllReduce)

Rank 1 is behind when the job is torn down:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=0,host=a,complete,aborted)
           | logged_calls(comm=world,count=9,start=7,calls=AllReduce+Reduce+Reduce)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=1,host=a,complete,aborted)
           | logged_calls(comm=world,count=7,start=7,calls=AllReduce)
    rank 2 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=2,host=a,complete,aborted)
           | logged_calls(comm=world,count=9,start=7,calls=AllReduce+Reduce+Reduce)

Well
----
The log was copied while the job ran: a rank is a call behind, and nothing is wrong:

    rank 0 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=8,calls=AllReduce+Broadcast)
    rank 1 | nccl_process(host=a)
           | logged_calls(comm=world,count=8,start=8,calls=AllReduce)

A line that was cut may have been any call:

    rank 0 | nccl_process(host=a)  logged_calls(comm=world,count=9,start=4,calls=%3F)
    rank 1 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllReduce)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Let all ranks make the same calls in the same order with the same arguments. Run
`distdoctor check` on the script: it names the line, and the branch by which the ranks
parted.

Known problems
--------------
A line tells that a call was enqueued, not that it completed. Sends and receives are not
compared. Where the head of a log is missing, calls are not lined up. Replays of a CUDA
graph print nothing.

References
----------
- NCCL: environment variables –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.communicators.unequal_counts import unequal_counts
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import NcclProcess
from distdoctor.model.run import Run

CODE = "DD608"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that do not match, or are not there."""
    yield from findings_of(run, CODE)
    yield from unequal_counts(run)
    require_whole(run)
