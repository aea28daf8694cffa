"""A call hangs on a lock, or is made by a function that nobody calls.

What it is
----------
One thread holds a lock and waits in a collective; another thread of the rank waits for
the lock, and for that thread's call the other ranks wait. Or the collective stands in a
finalizer (`__del__`, `weakref.finalize`) or a signal handler, which runs when it
happens to: when the last reference goes, when garbage is collected, when a signal
comes. Or it stands in a dataset, and is called by a loader's worker: a forked process,
which is no rank.

Why it matters
--------------
It hangs only when threads, garbage or signals come in an unlucky order, mostly after
hours, and the stack shows a line that is right on all other ranks.

Sick
----
The training loop sums gradients under the lock that the saving thread wants, and on the
other rank it is the other way round:

    rank 0 | all_reduce(4)@t.py:7...         locked=30@save.py:4
    rank 1 | barrier/save@save.py:6...%2     locked=30@t.py:6

Only rank 0's saving thread got as far as its barrier:

    rank 0 | barrier/save@save.py:6...%2  locked=30@t.py:6
    rank 1 | all_reduce(4)@t.py:7...
    group save | 0 1

A dataset that averages over the ranks is asked by a loader's worker:

    rank 0 | start=2  called_in_child(op=all_reduce,worker=0)@data.py:9
    rank 1 | start=2  called_in_child(op=all_reduce,worker=0)@data.py:9

Well
----
Threads wait for a lock for a moment, and all goes on:

    rank 0 | all_reduce(4)@t.py:7  barrier/save@save.py:6%2  exit=0
    rank 1 | all_reduce(4)@t.py:7  barrier/save@save.py:6%2  exit=0

Unknown
-------
A rank without a journal may be the one whose callback strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Take what the lock guards, let go of the lock, and then make the call. Out of a
finalizer or a signal handler make none: set a flag there, and let all ranks agree on it
(an `all_reduce` with MAX) at a fixed place of the loop. What a dataset needs of other
ranks, compute in the rank's own process before the loader is made, or after a batch
has come.

Known problems
--------------
That the one thread holds the lock which the other waits for is not seen: it follows
from both standing still at once, and is likely. A call out of a finalizer is told where
ranks part because of it, and a run in which garbage was collected alike everywhere is
well.

References
----------
- pytorch: a collective issued from garbage collection deadlocks –
  https://github.com/pytorch/pytorch/issues/195500
- Python: object.__del__ and when it is called –
  https://docs.python.org/3/reference/datamodel.html#object.__del__
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s, waits
from distdoctor.analysis.deadlock.locks import HeldLock
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.implicit_calls import ImplicitCall
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.processes.forked_calls import ForkedCall
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD210"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that a lock keeps from being made, out of callbacks, or in a child."""
    yield from findings(run, Cause.LOCK)
    yield from findings(run, Cause.CALLBACK)
    yield from findings(run, Cause.CHILD)
    require_whole(run)


@sentence_of(Cause.LOCK)
def _under_a_lock(held: HeldLock) -> str:
    call, lock, others = held.call, held.lock, held.others
    for_them = f", and {named(others)} wait{s(others)}" if others else ""
    return (
        f"{capital(named([call.rank]))} waits in {call.op} at {call.place}, and "
        f"another thread of it has waited for a lock at {lock.place} for "
        f"{lock.seconds:.0f} s{for_them}: the lock seems to be held across the call."
    )


@sentence_of(Cause.CALLBACK)
def _from_a_callback(made: ImplicitCall) -> str:
    ranks, others = made.ranks, made.others
    return (
        f"{capital(named(ranks))} call{s(ranks)} {made.op} ({made.where}) from "
        f"{made.callback}, which runs when it happens to; {named(others)} "
        f"{waits(others)} in {made.other_op}."
    )


@sentence_of(Cause.CHILD)
def _in_a_child(made: ForkedCall) -> str:
    at = f" at {made.call.place}" if made.call.place else ""
    return (
        f"{capital(named(made.ranks))}: {made.whose} calls {made.call.op}{at}. It is "
        "no rank: a fork takes the group's connections along, and not the threads that "
        "serve them."
    )
