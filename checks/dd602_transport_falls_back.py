"""Ranks reach each other by another way than was meant.

What it is
----------
NCCL chooses the fastest way that works: P2P or shared memory inside a host, InfiniBand
or RoCE or a plugin between hosts, and TCP sockets where there is nothing else. It takes
the next one without a word of warning if a device is not there, an interface of
containers comes first by name, or a setting forbids it.

Why it matters
--------------
A job over sockets runs, at a tenth of the speed. If only some hosts fall back, the two
sides cannot talk to each other, and initialisation hangs: that is an error. The rest is
told as a warning or a note.

Sick
----
One host has no device of InfiniBand, and no rank completes the initialisation:

    rank 0 | nccl_process(host=a,network=IB)
           | communicator(comm=world,size=3,member=0,host=a)
    rank 1 | nccl_process(host=b,network=IB)
           | communicator(comm=world,size=3,member=1,host=b)
    rank 2 | nccl_process(host=c,network=Socket,no_adapter)
           | communicator(comm=world,size=3,member=2,host=c)

Hosts meet by an interface that leads nowhere:

    rank 0 | nccl_process(host=a,network=Socket,interface=docker0%20172.17.0.1)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,network=Socket,interface=docker0%20172.17.0.1)
           | communicator(comm=world,size=2,member=1,host=b,complete)

All use sockets, which is a note:

    rank 0 | nccl_process(host=a,network=Socket,no_adapter)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,network=Socket,no_adapter)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Well
----
All ranks use one network:

    rank 0 | nccl_process(host=a,network=IB,inside=P2P%2FIPC,between=NET%2FIB%2FGDRDMA)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,network=IB,inside=P2P%2FIPC,between=NET%2FIB%2FGDRDMA)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Inside one host the network does not matter:

    rank 0 | nccl_process(host=a,network=Socket,no_adapter)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=a,network=Socket,no_adapter)
           | communicator(comm=world,size=2,member=1,host=a,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Give the container the devices (`/dev/infiniband`) and rdma-core; look at `ibv_devinfo`,
`NCCL_IB_HCA` and `NCCL_SOCKET_IFNAME` (a prefix, or `^docker,lo,veth,br-,virbr`). For
P2P look at `nvidia-smi topo -p2p r`; for GPU Direct RDMA load nvidia_peermem.

Known problems
--------------
Whether a host has a faster network that is not found is not in the log: hosts with
Ethernet only look the same, hence a note. GPUs without P2P have no other way than SHM.

References
----------
- NCCL: environment variables –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
- NCCL: networking in troubleshooting –
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

CODE = "DD602"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


_NO_INTERFACE = {
    ComplaintKind.INTERFACE: (
        "found no network interface that it may use",
        "Let NCCL_SOCKET_IFNAME name an interface of each host, or exclude by ^.",
    ),
}
"""By kind of error, what is said of who met it, and the cure."""


def examine(run: Run) -> Iterator[Finding]:
    """Ways that are not those meant."""
    yield from findings_of(run, CODE, {LocalError: worded(_NO_INTERFACE)})
    require_whole(run)
