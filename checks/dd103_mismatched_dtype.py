"""Ranks brought tensors of different dtype to one collective.

What it is
----------
All ranks of a collective must use one dtype. Here the operation and the number of
elements agree, and the dtype does not.

Why it matters
--------------
Backends move bytes. gloo combines float32 with int32 without any error and gives
numbers like 1065353216 (measured with torch 2.13); dtypes of different width abort the
process or hang.

Sick
----
One rank computes in double precision:

    rank 0 | all_reduce(4)@train.py:7!
    rank 1 | all_reduce(4:float64)@train.py:7...
    rank 2 | all_reduce(4)@train.py:7!

Well
----
A compression hook sends half precision on all ranks:

    rank 0 | all_reduce(4:float16)  all_reduce(4)  exit=0
    rank 1 | all_reduce(4:float16)  all_reduce(4)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Convert to one dtype before the call, on every rank: `tensor.to(torch.float32)`. Look
for a rank that skips autocast, loads an old checkpoint, or makes a tensor from numpy
(float64 by default).

Known problems
--------------
The dtype is that of the tensor which reaches the dispatcher: what a backend or an
extension converts behind that is not seen. Where other dtype and other size come
together, the size is told (DD102).

References
----------
- NCCL: Collective Operations, on equal counts and dtypes –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
- `torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp` (pytorch/pytorch),
  `CollectiveFingerPrint`, which compares dtypes in debug mode DETAIL
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.collectives.horovod_refusals import HorovodRefusal
from distdoctor.analysis.collectives.unlike_calls import UnlikeCalls, compared
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD103"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings at which dtypes differ."""
    yield from findings(run, Cause.DTYPE)
    require_whole(run)


@sentence_of(Cause.DTYPE)
def _sentence(unlike: UnlikeCalls | HorovodRefusal) -> str:
    if isinstance(unlike, HorovodRefusal):
        return str(unlike)
    return compared(
        unlike,
        f"different dtypes in {unlike.op}",
        lambda call: f"with {'+'.join(tensor.dtype for tensor in call.tensors)}",
    )
