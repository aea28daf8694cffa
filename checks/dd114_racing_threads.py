"""Two threads of a rank issue on one group, in no fixed order.

What it is
----------
Collectives on one group pair up by the order in which they are issued. When two threads
of a process use one group (the training loop, and a thread that averages metrics or
saves checkpoints), that order is whatever the scheduler makes it, and another on every
rank.

Why it matters
--------------
It works for hours, until one rank's thread is a little late. Then the job aborts or
hangs; or, if the tensors are of one size, gradients are summed with metrics.

Sick
----
A thread averages the loss on the group of the training loop; it wins on rank 1:

    rank 0 | all_reduce(8)@t.py:7  all_reduce(8)@t.py:7      all_reduce(1)@m.py:3...%2
    rank 1 | all_reduce(8)@t.py:7  all_reduce(1)@m.py:3!%2   all_reduce(8)@t.py:7!

The tensors are of one size, so nothing fails:

    rank 0 | all_reduce(1)@t.py:7  all_reduce(1)@m.py:3%2  all_reduce(1)@t.py:7
    rank 1 | all_reduce(1)@t.py:7  all_reduce(1)@t.py:7    all_reduce(1)@m.py:3%9

A pool of threads sums the gradients, each tensor as its turn comes:

    rank 0 | all_reduce(8)@t.py:7...%1 all_reduce(2)@t.py:7...%2
    rank 1 | all_reduce(2)@t.py:7!%4    all_reduce(8)@t.py:7...%3

Well
----
The thread has a group of its own:

    rank 0 | all_reduce(8)@t.py:7  all_reduce(1)/log@m.py:3%2  all_reduce(8)@t.py:7
    rank 1 | all_reduce(8)@t.py:7  all_reduce(8)@t.py:7  all_reduce(1)/log@m.py:3%2

The main thread waits for the other one, so that their order is the same everywhere:

    rank 0 | all_reduce(8)@t.py:7  all_reduce(1)@m.py:3%2  all_reduce(8)@t.py:7
    rank 1 | all_reduce(8)@t.py:7  all_reduce(1)@m.py:3%9  all_reduce(8)@t.py:7

A future's callback: in the thread that adds it, or, a little later, in one of torch's:

    rank 0 | all_reduce(8)@t.py:7  all_reduce(2)%2        all_reduce(8)@t.py:7
    rank 1 | all_reduce(8)@t.py:7  all_reduce(2)@t.py:7   all_reduce(8)@t.py:7

Unknown
-------
A rank without a journal may be the one whose threads came in another order:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Give the thread a process group of its own, made by `dist.new_group()` on all ranks
before the thread starts. Where the calls depend on each other, make them from one
thread. A hook of DDP that makes calls out of a future's callback (PowerSGD does) wants
one bucket: with several (`bucket_cap_mb`), callbacks and buckets overtake each other.

Known problems
--------------
A race shows only in a run in which the threads really came in another order on some
rank; a run in which all ranks came alike by luck is well. Calls of one signature from
one line cannot be told apart, whichever thread makes them.

References
----------
- NCCL: Thread Safety –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/threadsafety.html
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `new_group`, on several
  threads and groups
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s
from distdoctor.analysis.collectives.thread_races import UnorderedThreads
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD114"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings to which ranks came by different threads."""
    yield from findings(run, Cause.RACE)
    require_whole(run)


@sentence_of(Cause.RACE)
def _sentence(threads: UnorderedThreads) -> str:
    each = "; ".join(
        f"{named(ranks)} make{s(ranks)} {call}" for ranks, call in threads.calls
    )
    silent = ", and as the calls are alike, no error tells" if threads.alike else ""
    return (
        f"{capital(threads.where)} is the call of different threads: {each}; nothing "
        f"orders the threads{silent}."
    )
