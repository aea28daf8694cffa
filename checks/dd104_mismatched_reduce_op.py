"""Ranks asked one reduction for different results.

What it is
----------
All ranks of a reduction must pass the same reduce op. Here one asks for a sum where
another asks for a maximum.

Why it matters
--------------
No backend notices. Each rank applies its own op to the parts it handles: the job runs
on with numbers that are neither sum nor maximum.

Sick
----
One rank takes the maximum of what the others add up:

    rank 0 | all_reduce(4)@train.py:7!
    rank 1 | all_reduce(4,op=max)@train.py:9...
    rank 2 | all_reduce(4)@train.py:7!

Well
----
Different ops, one after the other, on all ranks alike:

    rank 0 | all_reduce(4,op=min)  all_reduce(4,op=max)  exit=0
    rank 1 | all_reduce(4,op=min)  all_reduce(4,op=max)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

torch 2.8 hides the reduce op of calls that C++ makes by itself; it counts as equal.

Remedy
------
Pass the same `op` on every rank. If it depends on a setting, broadcast the setting
first, or read it from one place.

Known problems
--------------
With torch 2.8 the op of a call that C++ makes by itself is hidden, and a mismatch there
goes unseen. Of a premultiplied sum the kind is compared, and not the factor.

References
----------
- ReduceOp, in torch's documentation –
  https://docs.pytorch.org/docs/stable/distributed.html
- `torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp` (pytorch/pytorch),
  `CollectiveFingerPrint`, which does not hold the reduce op
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

CODE = "DD104"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings at which reduce ops differ."""
    yield from findings(run, Cause.REDUCE_OP)
    require_whole(run)


@sentence_of(Cause.REDUCE_OP)
def _sentence(unlike: UnlikeCalls | HorovodRefusal) -> str:
    if isinstance(unlike, HorovodRefusal):
        return str(unlike)
    return compared(
        unlike,
        f"different reduce ops in {unlike.op}",
        lambda call: f"with {call.reduce_op}",
    )
