"""A call of CUDA failed inside NCCL, or the GPU did.

What it is
----------
NCCL reports what CUDA answers: out of memory while it allocates its buffers, an illegal
access of an earlier kernel that shows only now, an uncorrectable ECC error, no access
to a peer's memory, multicast memory (NVLS) that cannot be bound. The kernel's Xid lines
are read as well.

Why it matters
--------------
One rank has the error; all others see a closed connection and report "internal error"
or "remote error". Whoever reads theirs looks in the wrong place.

Sick
----
One rank's GPU is full:

    rank 0 | nccl_process(host=a)  nccl_complaint(kind=closed,host=a,peer=a,status=6)
    rank 1 | nccl_process(host=a)
           | nccl_complaint(kind=gpu%20memory,host=a,text=out%20of%20memory,status=1)

Well
----
NVLS is not to be had, and NCCL goes on without:

    rank 0 | nccl_process(host=a)
           | nccl_complaint(kind=cuda,host=a,text=Cuda%20failure%201,harmless)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=2,member=1,host=a,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
`cure` in the finding's details is that of the error at hand: leave memory to NCCL,
drain a host with Xid or ECC errors and run `dcgmi diag`, restart the fabric manager for
NVLS, `CUDA_LAUNCH_BLOCKING=1` for illegal accesses.

Known problems
--------------
CUDA tells an error late: the kernel at fault may be the program's own. The log has no
line of it if the process died before its buffer was written.

References
----------
- NVIDIA: Xid errors –
  https://docs.nvidia.com/deploy/xid-errors/index.html
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

CODE = "DD606"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


_ERRORS = {
    ComplaintKind.XID: (
        "had an error of the GPU that the driver reports (Xid)",
        "Drain the host, run `dcgmi diag` and look the Xid up; restart elsewhere.",
    ),
    ComplaintKind.GPU_FAULT: (
        "had a fault of the GPU",
        "Look for Xid in `dmesg`; drain the host and run `dcgmi diag`.",
    ),
    ComplaintKind.GPU_MEMORY: (
        "ran out of memory on the GPU while NCCL allocated",
        "Leave 1-2 GiB of the GPU to NCCL; fewer communicators, smaller NCCL_BUFFSIZE.",
    ),
    ComplaintKind.NVLS: (
        "could not bind multicast memory of NVLink SHARP",
        "Restart the fabric manager and reset the GPUs; NCCL_NVLS_ENABLE=0 meanwhile.",
    ),
    ComplaintKind.NVLINK_OFF: (
        "found P2P disabled between GPUs that NVLink connects",
        "`nvidia-smi nvlink -s`; reset the GPUs or the fabric manager.",
    ),
    ComplaintKind.PEER_ACCESS: (
        "could not reach the memory of another GPU of its host",
        "Show all GPUs of the host to each process; else NCCL_P2P_DISABLE=1.",
    ),
    ComplaintKind.CUDA: (
        "had an error of CUDA inside NCCL",
        "An earlier kernel may be at fault: CUDA_LAUNCH_BLOCKING=1, "
        "compute-sanitizer; start processes by spawn; compare driver and "
        "CUDA versions.",
    ),
}
"""By kind of error, what is said of who met it, and the cure."""


def examine(run: Run) -> Iterator[Finding]:
    """Errors of CUDA and of GPUs."""
    yield from findings_of(run, CODE, {LocalError: worded(_ERRORS)})
    require_whole(run)
