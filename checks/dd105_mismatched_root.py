"""Ranks named different roots for one collective.

What it is
----------
A broadcast, scatter, reduce or gather has one root, and every member must name the
same. Here they do not.

Why it matters
--------------
Two ranks then both send, or all wait for a sender that believes to be a receiver: the
job hangs, or ranks keep values of their own, which nobody notices. Not even
TORCH_DISTRIBUTED_DEBUG=DETAIL compares roots (seen with torch 2.13).

Sick
----
One rank expects the weights from another source:

    rank 0 | broadcast(8)@train.py:5!
    rank 1 | broadcast(8)@train.py:5...
    rank 2 | broadcast(8,root=2)@train.py:5!

Well
----
The root moves on from call to call, on all ranks alike:

    rank 0 | broadcast(8)  broadcast(8,root=1)  exit=0
    rank 1 | broadcast(8)  broadcast(8,root=1)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Use one root on all ranks. Take care with groups: `src` and `dst` are global ranks,
`group_src` and `group_dst` are ranks within the group.

Known problems
--------------
Roots are compared as ranks of the whole job, so a root that is wrong in the same way on
all ranks passes. Whether the sender holds what the others want is not asked.

References
----------
- pytorch: reduce with an inconsistent dst hangs –
  https://github.com/pytorch/pytorch/issues/39706
- `torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp` (pytorch/pytorch),
  `CollectiveFingerPrint`, which does not hold the root
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

CODE = "DD105"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings at which roots differ."""
    yield from findings(run, Cause.ROOT)
    require_whole(run)


@sentence_of(Cause.ROOT)
def _sentence(unlike: UnlikeCalls | HorovodRefusal) -> str:
    if isinstance(unlike, HorovodRefusal):
        return str(unlike)
    return compared(
        unlike, f"different roots in {unlike.op}", lambda call: f"with root {call.root}"
    )
