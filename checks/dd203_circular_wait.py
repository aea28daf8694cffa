"""Ranks wait for each other in a circle, across groups.

What it is
----------
Every rank's calls are fine on each group taken alone, and the groups are used in an
order that closes a circle: 0 waits for 1 on one group, 1 for 2 on another, 2 for 0 on
a third.

Why it matters
--------------
Nobody makes a mistake that a look at one group would show, nothing is ever printed, and
NCCL's watchdog blames whichever group times out first.

Sick
----
Three pairs, each rank beginning with the one to its right:

    group ab | 0 1
    group bc | 1 2
    group ca | 0 2
    rank 0 | all_reduce(4)/ab@t.py:7...
    rank 1 | all_reduce(4)/bc@t.py:7...
    rank 2 | all_reduce(4)/ca@t.py:7...

Two groups over the same ranks, in opposite order:

    group dp | 0 1
    group tp | 0 1
    rank 0 | all_reduce(4)/dp@t.py:7...
    rank 1 | all_reduce(4)/tp@t.py:9...

Two roots that hand out their weights, each first on a group of its own:

    group a | 0 1
    group b | 0 1
    rank 0 | broadcast(4)/a@t.py:7...
    rank 1 | broadcast(4,root=1)/b@t.py:9...

Well
----
A chain has an end: rank 2 is on its way, and then all can go on:

    group ab | 0 1
    group bc | 1 2
    rank 0 | all_reduce(4)/ab...
    rank 1 | all_reduce(4)/bc...
    rank 2 | .

Asynchronous calls cross without waiting:

    group dp | 0 1
    group tp | 0 1
    rank 0 | all_reduce(4)/dp&  all_reduce(4)/tp&  exit=0
    rank 1 | all_reduce(4)/tp&  all_reduce(4)/dp&  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Use the groups in one global order on all ranks: sort them (by their ranks, for
instance) before the loop, or start all calls with `async_op=True` and wait for them
afterwards.

Known problems
--------------
The circle is proved for the calls as they were made here. With asynchronous calls on
gloo an order may get by that NCCL, with a stream and kernels that block, does not
forgive: NCCL itself is never asked.

References
----------
- NCCL: Using multiple NCCL communicators concurrently –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `new_group`, Safe
  concurrent usage
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.deadlock.circular_waits import WaitCircle
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD203"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Circles of ranks that wait for each other on different groups."""
    yield from findings(run, Cause.CIRCLE)
    require_whole(run)


@sentence_of(Cause.CIRCLE)
def _sentence(circle: WaitCircle) -> str:
    return f"{circle}."
