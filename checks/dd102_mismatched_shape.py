"""Ranks brought tensors of different size to one collective.

What it is
----------
All ranks of a collective must move the same number of elements. Shapes may differ as
long as the number of elements agrees: backends move flat buffers.

Why it matters
--------------
gloo ends a process by abort (signal 6) when more bytes arrive than it expects; NCCL
reads past the end of the smaller buffer, or hangs. Neither names the tensor.

Sick
----
One rank's last batch, or vocabulary, has another size:

    rank 0 | all_reduce(100)@train.py:7!
    rank 1 | all_reduce(100)@train.py:7...
    rank 2 | all_reduce(96)@train.py:7!

With two ranks there is no majority; both sides are shown:

    rank 0 | reduce_scatter_tensor(432)@zero.py:31...
    rank 1 | reduce_scatter_tensor(480)@zero.py:31!

Of a job that nobody watched, gloo's last words are left: a rank was sent a message
larger than its call expects:

    rank 0 | start=2  message_too_large(received=148,expected=4,aborted=0)
           | fail=EnforceNotMet^  exit=134!
    rank 1 | start=2  fail=RuntimeError^  exit=1

Well
----
Sizes change from step to step, on all ranks alike:

    rank 0 | all_reduce(64x8)  all_reduce(64x16)  exit=0
    rank 1 | all_reduce(64x8)  all_reduce(64x16)  exit=0

The same elements in another shape:

    rank 0 | all_reduce(2x2)  exit=0
    rank 1 | all_reduce(4)    exit=0

All-to-all with uneven splits that the peers know of:

    rank 0 | all_to_all_single(4,sent=1/3,received=1/2)  exit=0
    rank 1 | all_to_all_single(5,sent=2/3,received=3/3)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Make the size the same on all ranks: pad to the largest (agree on it by an `all_reduce`
with MAX), drop the last incomplete batch, or use an operation with explicit splits.

Known problems
--------------
Where a rank leaves a loop over parameters early, its next call meets a larger or
smaller one of the others and may be told here, though a call was left out (DD108). Of a
job that nobody watched gloo tells two sizes and no calls; that too is told here, as
likely, though it may be a call that was left out. Elements are counted and not
understood: two tensors of one size that have nothing to do with each other pass (DD107
looks at their lines and names).

References
----------
- NCCL: all_reduce with other sizes hangs or gives wrong sums –
  https://github.com/NVIDIA/nccl/issues/1417
- NCCL: sizes that differ, and what gloo says of them –
  https://github.com/NVIDIA/nccl/issues/1394
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.collectives.horovod_refusals import HorovodRefusal
from distdoctor.analysis.collectives.unlike_calls import UnlikeCalls, compared
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.failures.large_messages import large_messages
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD102"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings at which the numbers of elements differ."""
    yield from findings(run, Cause.NUMEL)
    yield from large_messages(run)
    require_whole(run)


@sentence_of(Cause.NUMEL)
def _sentence(unlike: UnlikeCalls | HorovodRefusal) -> str:
    if isinstance(unlike, HorovodRefusal):
        return str(unlike)
    return compared(unlike, f"different numbers of elements in {unlike.op}", _sizes)


def _sizes(call: Call) -> str:
    sizes = "+".join(str(tensor.numel) for tensor in call.tensors)
    shapes = "+".join(
        "x".join(map(str, tensor.shape)) or "scalar" for tensor in call.tensors
    )
    return f"with {sizes} ({shapes})" if shapes != sizes else f"with {sizes}"
