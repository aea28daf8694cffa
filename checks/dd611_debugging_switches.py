"""Switches of NCCL that help to find a fault are left on.

What it is
----------
`NCCL_IB_DISABLE=1`, `NCCL_P2P_DISABLE=1` and the like are the usual first try when
something hangs, and stay in a script or an image. NCCL's log says which it took notice
of.

Why it matters
--------------
The job works, over a slower way than the hardware has: sockets instead of InfiniBand,
memory of the host instead of NVLink.

Sick
----
InfiniBand is switched off:

    rank 0 | nccl_process(host=a,settings=NCCL_IB_DISABLE%3D1)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_IB_DISABLE%3D1)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Well
----
A setting that switches nothing off:

    rank 0 | nccl_process(host=a,settings=NCCL_IB_DISABLE%3D0)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_IB_DISABLE%3D0)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Unset it where nothing needs it any more, and measure.

Known problems
--------------
Some systems need such a switch for good: GPUs that cannot reach each other, hosts
without InfiniBand. It is a note for that reason.

References
----------
- NCCL: environment variables –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import NcclProcess
from distdoctor.model.run import Run

CODE = "DD611"
SEVERITY = Severity.NOTE
NEEDS = (NcclProcess,)


def examine(run: Run) -> Iterator[Finding]:
    """Switches that are on."""
    yield from findings_of(run, CODE)
    require_whole(run)
