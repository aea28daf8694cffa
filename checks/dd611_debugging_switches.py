"""Switches that help to find a fault are left on.

What it is
----------
`NCCL_IB_DISABLE=1`, `NCCL_P2P_DISABLE=1` and the like are the usual first try when
something hangs, and stay in a script or an image; `CUDA_LAUNCH_BLOCKING=1` and
`TORCH_DISTRIBUTED_DEBUG=DETAIL` are those for an error that shows elsewhere. A rank
that runs under distdoctor tells its environment when it joins; NCCL's log says which of
its variables it took notice of.

Why it matters
--------------
The job works, over a slower way than the hardware has: sockets instead of InfiniBand,
memory of the host instead of NVLink, or each kernel and each call one after the other.

Sick
----
InfiniBand is switched off:

    rank 0 | nccl_process(host=a,settings=NCCL_IB_DISABLE%3D1)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_IB_DISABLE%3D1)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Each kernel is waited for, on all ranks:

    rank 0 | variables(host=a,settings=CUDA_LAUNCH_BLOCKING%3D1)
    rank 1 | variables(host=a,settings=CUDA_LAUNCH_BLOCKING%3D1)

Well
----
A setting that switches nothing off:

    rank 0 | nccl_process(host=a,settings=NCCL_IB_DISABLE%3D0)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_IB_DISABLE%3D0)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Nothing is set but what torchrun sets by itself:

    rank 0 | variables(settings=OMP_NUM_THREADS%3D1+TORCH_NCCL_ASYNC_ERROR_HANDLING%3D1)
    rank 1 | variables(settings=OMP_NUM_THREADS%3D1+TORCH_NCCL_ASYNC_ERROR_HANDLING%3D1)

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
- PyTorch: torch.distributed, debugging –
  https://docs.pytorch.org/docs/stable/distributed.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.environment.debug_switches import left_switches
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.environment import Configured
from distdoctor.model.run import Run, named

CODE = "DD611"
SEVERITY = Severity.NOTE
NEEDS = (Configured,)

_MOST_EXHIBITS = 64


def examine(run: Run) -> Iterator[Finding]:
    """Switches that are on."""
    told: set[object] = set()
    for finding in findings_of(run, CODE):
        told.add(finding.details["name"])
        yield finding
    for one in left_switches(run):
        if one.name not in told:
            who = "all ranks" if one.is_shared else named(one.on)
            yield Finding(
                message=f"{one.name}={one.value} is set on {who}: {one.effect}.",
                exhibits=tuple(one.on.values())[:_MOST_EXHIBITS],
                culprits=() if one.is_shared else tuple(sorted(one.on)),
                details={
                    "name": one.name,
                    "cure": f"Unset {one.name} for production, if nothing else needs "
                    "it.",
                },
            )
    require_whole(run)
