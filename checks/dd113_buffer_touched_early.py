"""A tensor was used before the asynchronous work on it was waited for.

What it is
----------
`async_op=True`, `isend` and `irecv` return at once, with a handle. Until `wait()` has
returned, the tensor belongs to the backend: whoever writes it changes what is sent, and
whoever reads it may find the old values, the new ones, or a mixture.

No probe sees that a result is read in between; the lines by which a thread came to
the call and to the wait are noted, and the source shows what is surely run between
them, in the same function, in those that it calls, and in the callers to which a
function gives the result back:

    def launch(self, features):
        work = dist.all_gather_into_tensor(self.room, features, async_op=True)
        self.pending.append(work)
        return self.room

    room = pool.launch(features)
    loss = contrast(own, room.clone())    # too early
    loss.backward()
    pool.drain()                          # waits

Such a finding is likely, and no proof, for it is read from the text. It may be wrong
where a name is given another tensor behind the text's back (`setattr`, a closure), or
where something waits that does not look so: a library's function, or a stream that is
in order by itself. Readings are arithmetic, comparisons, `print`, `item`, `clone`,
`sum` and the like, functions of torch and `nn.functional`, and modules; shapes, views,
lists, and calls of what nobody knows are none. A test that may never hold, a loop that
may have no round, or any wait on the way, also for other work, ends the search. What
`float()` and `to()` give may be the tensor itself, and counts once it is read.

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
A result that is only kept until the wait, and shares that are read meanwhile; ways
alone tell nothing:

    rank 0 | all_reduce(4)@t.py:7&  awaited(issued=t.py:7:f,waited=t.py:9:f)@t.py:7
    rank 1 | all_reduce(4)@t.py:7&  awaited(issued=t.py:7:f,waited=t.py:9:f)@t.py:7

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
of a part of a larger buffer leaves no trace that a probe could see, and a reading is
told only where the source surely shows it: not of tensors that are items of something
(`rooms[n]`, `p.grad for p in …`), nor where another thread waits.

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

Known problems
--------------
What is told of a reading is read from the text and likely at most; it is wrong where
something orders the two that does not look like a wait (a CUDA stream, a library's
function). A change through `.data` or of a part of a buffer, and readings of items of
lists, are missed.

References
----------
- torch.distributed: synchronous and asynchronous collectives –
  https://docs.pytorch.org/docs/stable/distributed.html
- pytorch: what wait() means for CUDA collectives –
  https://github.com/pytorch/pytorch/issues/68112
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s
from distdoctor.analysis.collectives.early_result_reads import EarlyRead
from distdoctor.analysis.collectives.early_use import (
    PartedBehind,
    TouchedEarly,
    Unawaited,
)
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence, sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD113"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Tensors of asynchronous calls that were used too early."""
    yield from findings(run, Cause.EARLY)
    require_whole(run)


@sentence_of(Cause.EARLY)
def _sentence(use: TouchedEarly | EarlyRead | Unawaited | PartedBehind) -> str:
    match use:
        case TouchedEarly(ranks, first, times):
            what = "somebody changed the tensor of"
            at, waited = "", f" at {first.place}" if first.place else ""
            if first.stepped:
                what, waited = "an optimizer's step read the gradients of", ""
            if first.issued:
                at = f" (line {first.issued.line} of {first.issued.file})"
            return (
                f"On {named(ranks)} {what} an asynchronous call{at} before the call "
                f"was waited for{waited}, {times} times."
            )
        case EarlyRead(ranks=issuing):
            return (
                f"{capital(named(issuing))} issue{s(issuing)} {use.op} at "
                f"{use.issued} and wait{s(issuing)} for it at {use.waited}; in "
                f"between, {use.read} reads its result, as the source shows: it may "
                "find the values from before the call, those from after it, or some of "
                "both."
            )
        case Unawaited(ranks=issuing, call=call, count=count, of=of):
            often = f"{count} of {of}" if count < of else f"{count}"
            return (
                f"{capital(named(issuing))} never wait{s(issuing)} for {call.op} at "
                f"{call.place}, issued {often} times on rank {issuing[0]}: whatever "
                "uses its tensors may find them before or after the call."
            )
        case PartedBehind(who, call, culprits, parted):
            return (
                f"{capital(named(who))} never wait{s(who)} for {call.op} at "
                f"{call.place}, and {named(culprits)} parted from the others right "
                "behind it: what was read there may be the rank's own value, and not "
                f"that of all. {sentence(parted)}"
            )
