"""A tensor was used before the asynchronous work on it was waited for.

What it is
----------
`async_op=True`, `isend` and `irecv` return at once, with a handle. Until `wait()` has
returned, the tensor belongs to the backend: whoever writes it changes what is sent, and
whoever reads it may find the old values, the new ones, or a mixture.

Why it matters
--------------
Nothing fails. On a fast network or with small tensors the work is often complete in
time, so the numbers are right on one machine and slightly wrong on another.

Sick
----
The gradients are scaled between the issue and the wait:

    rank 0 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  leave  exit=0
    rank 1 | all_reduce(4)@t.py:7&  touched=t.py:7@t.py:9  leave  exit=0

The optimizer steps before the handles are waited for:

    rank 0 | all_reduce(4)@t.py:7&  stepped=t.py:7@t.py:8  leave  exit=0
    rank 1 | all_reduce(4)@t.py:7&  stepped=t.py:7@t.py:8  leave  exit=0

Nobody ever looks at the handle:

    rank 0 | all_reduce(1)@t.py:7&'...issued  all_reduce(4)@t.py:9  leave  exit=0
    rank 1 | all_reduce(1)@t.py:7&'...issued  all_reduce(4)@t.py:9  leave  exit=0

Well
----
Waited for late, or by another thread, or through a future, is waited for:

    rank 0 | all_reduce(4)@t.py:7&  all_reduce(4)@t.py:7&  leave  exit=0
    rank 1 | all_reduce(4)@t.py:7&  all_reduce(4)@t.py:7&  leave  exit=0

What DistributedDataParallel issues in backward is waited for by itself:

    rank 0 | all_reduce(4)@t.py:7&...issued  leave  exit=0
    rank 1 | all_reduce(4)@t.py:7&...issued  leave  exit=0

A loop prefetches one round ahead, and the last handle is of no use to anybody:

    rank 0 | broadcast(4)@t.py:7&  broadcast(4)@t.py:7&'...issued  leave  exit=0
    rank 1 | broadcast(4)@t.py:7&  broadcast(4)@t.py:7&'...issued  leave  exit=0

A message is sent and forgotten:

    rank 0 | send(4,peer=1)@t.py:7'...issued  leave  exit=0
    rank 1 | recv(4,peer=0)@t.py:9            leave  exit=0

Unknown
-------
A rank without a journal may have touched what it must not. A change through `.data` or
of a part of a larger buffer, and a read, leave no trace that a probe could see.

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Keep the handle and call `wait()` on it before the tensor is read or written, and
before an optimizer steps.

    handles = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for handle in handles:
        handle.wait()
    optimizer.step()

If there is nothing to do in the meantime, leave `async_op=True` out.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.communication.divergence import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.reasons import Why
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD113"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Tensors of asynchronous calls that were used too early."""
    yield from findings(run, Why.EARLY)
    require_whole(run)
