"""Ranks met in different collectives.

What it is
----------
The members of a process group must issue the same collectives in the same order.
Here the n-th call of one rank is another operation than the n-th call of the others,
and nothing shows that a call was merely left out or added (that is DD108).

Why it matters
--------------
The backend pairs the calls by order, not by name. NCCL and gloo then wait for a
partner that never comes, until a timeout ends the job far from the cause; or, worse,
the operations pair up and the job trains on garbage.

Sick
----
One rank reduces to a root where the others reduce to all:

    rank 0 | all_reduce(4)@train.py:7!
    rank 1 | reduce(4)@train.py:9...
    rank 2 | all_reduce(4)@train.py:7!

It counts on any group, and when every call did return:

    rank 0 | all_reduce(4)/tp@a.py:1  broadcast(4)/tp@a.py:2  exit=0
    rank 1 | all_reduce(4)/tp@a.py:1  barrier/tp@a.py:5       exit=0

Well
----
The same operations in the same order; the groups are ordered apart:

    rank 0 | all_reduce(4)     barrier/tp        barrier  exit=0
    rank 1 | all_reduce(4)     barrier           exit=0
    rank 2 | barrier/tp        all_reduce(4)     barrier  exit=0

Each rank calls the same barrier from a line of its own:

    rank 0 | barrier@prepare.py:8   all_reduce(4)  exit=0
    rank 1 | barrier@prepare.py:12  all_reduce(4)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Let every rank take the same branch, or call the same operation in both branches. If
the branch depends on data, agree on it first with an `all_reduce` of the condition.

Known problems
--------------
Of a job that runs without our probes stacks tell it, as likely, if all ranks stand in
calls on the default group for 10 seconds, not all in the same operation, and nothing
runs. Such a call may as well have been left out or added by some (DD108).

Only calls that pass torch's dispatcher are compared: those of a backend object's own
methods, of RPC, or of a library with its own NCCL, are not seen. Where one helper makes
all calls from one line and the source does not tell the ways to it apart, a call that
was left out (DD108) may be told as another operation.

References
----------
- NCCL: Collective Operations, on equal counts and dtypes –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
- `torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp` (pytorch/pytorch),
  `CollectiveFingerPrint`, what DETAIL compares
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import NO_MAJORITY, Cause
from distdoctor.analysis.collectives.horovod_refusals import HorovodRefusal
from distdoctor.analysis.collectives.unlike_calls import UnlikeCalls, compared
from distdoctor.analysis.collectives.unlike_stands import UnlikeStands
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD101"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings at which ranks call different operations."""
    yield from findings(run, Cause.OPERATION)
    require_whole(run)


@sentence_of(Cause.OPERATION)
def _sentence(unlike: UnlikeCalls | UnlikeStands | HorovodRefusal) -> str:
    if isinstance(unlike, HorovodRefusal):
        return str(unlike)
    if isinstance(unlike, UnlikeStands):
        return _standing(unlike)
    ops = {call.op for call, _ in unlike.calls[:2]}
    what = "different operations"
    if len(ops) == 1:
        what = f"different arguments in {unlike.op}"
    return compared(unlike, what, lambda call: f"in {call}")


def _standing(unlike: UnlikeStands) -> str:
    """Where ranks stand that wait for each other, as their stacks tell it."""
    undecided = f" ({NO_MAJORITY})" if unlike.tied else ""
    each = "; ".join(f"{named(ranks)} in {call}" for call, ranks in unlike.calls)
    return (
        f"Ranks stand in different operations of the default group{undecided}: {each}. "
        f"Nothing moved for {unlike.seconds:.0f} s, though all members are there; "
        "whether some left a call out or made another one, their stacks do not tell."
    )
