"""Two ranks use the same GPU.

What it is
----------
Each rank of a communicator needs a GPU of its own (NCCL 2.30 can share one if it is
told to). Two get the same one if `torch.cuda.set_device(local_rank)` is missing, the
local rank is always 0, all see the same single entry of `CUDA_VISIBLE_DEVICES`, or
there are more ranks than GPUs.

Why it matters
--------------
NCCL refuses to make the communicator, and every rank that is named ends with "invalid
usage".

Sick
----
Both ranks took device 0:

    rank 0 | nccl_process(host=a)
           | nccl_complaint(kind=same%20gpu,host=a,named=0-1,status=5)
    rank 1 | nccl_process(host=a)
           | nccl_complaint(kind=same%20gpu,host=a,named=1+0,status=5)

Well
----
Each has its own:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=2,member=0,host=a,bus=7000,complete)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=2,member=1,host=a,device=1,bus=f000,complete)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before
`init_process_group`, start no more ranks than there are GPUs, one slice of MIG per GPU.
`NCCL_MULTI_RANK_GPU_ENABLE=1` allows sharing from NCCL 2.30 on.

Known problems
--------------
Newer versions do not name the ranks: then all that say so, or share a bus id, are
named. Where no log was read, the exceptions tell: then those that were refused are
named. Where the CPU takes the GPUs' place, that is the rank that came second, and with
it the first; the line that first put something on a GPU is told as well.

References
----------
- NCCL: one rank per device –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.analysis.nccl.refused_sharing import RefusedSharing, refused_sharing
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import NcclProcess
from distdoctor.model.run import Run, named

CODE = "DD604"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that share a GPU."""
    logged = list(findings_of(run, CODE))
    yield from logged
    sharing = None if logged else refused_sharing(run)
    if sharing is not None:
        yield _finding(run, sharing)
    require_whole(run)


def _finding(run: Run, sharing: RefusedSharing) -> Finding:
    """What the exceptions tell where no log does."""
    ranks, first = sharing.ranks, next(iter(sharing.refused.values()))
    on = f"{'are' if len(ranks) > 1 else 'is'} on the same GPU" + (
        "" if len(ranks) > 1 else " as another rank"
    )
    at = f" at {first.place}" if first.place else ""
    others = tuple(rank for rank in run.seen if rank not in ranks)
    return Finding(
        message=f"{capital(named(ranks))} {on}: {named(sharing.refused)} raised "
        f"{first.error}{at} ({sharing.text}).",
        exhibits=(*sharing.refused.values(), *sharing.used),
        culprits=ranks if others else (),
        victims=others or ranks,
        locations=sharing.locations,
        remedy="Call torch.cuda.set_device(local_rank), or name the device "
        "cuda:LOCAL_RANK, before anything is put on a GPU; start no more ranks than "
        "there are GPUs.",
    )
