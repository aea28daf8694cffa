"""Only some ranks ran the wrapped model.

What it is
----------
The forward pass of a wrapped model communicates by itself: DDP broadcasts the buffers
(BatchNorm's), FSDP gathers the weights, and so does their state dict. Here some ranks
run it at a line where the others do not: mostly rank 0, to evaluate or to save.

Why it matters
--------------
The call pairs with whatever the others do next. Where that is alike, as with a training
step's own broadcast, nothing fails for epochs; the job hangs much later, elsewhere,
often when it should end.

Sick
----
Rank 0 evaluates the DDP model; its broadcast meets that of the next step of rank 1:

    rank 0 | broadcast(8)@t.py:7  broadcast(8,by=ddp)@e.py:3  broadcast(8)@t.py:7...
    rank 1 | broadcast(8)@t.py:7  broadcast(8,by=ddp)@t.py:7  exit=0

Rank 0 alone makes the whole state dict of a sharded model:

    rank 0 | all_gather(8,by=fsdp)@t.py:7  all_gather(4,by=checkpoint)@save.py:3...
    rank 1 | all_gather(8,by=fsdp)@t.py:7  all_gather(8,by=fsdp)@t.py:7!

Well
----
Rank 0 evaluates `model.module`, which communicates with nobody:

    rank 0 | broadcast(8,by=ddp)@t.py:7  broadcast(8,by=ddp)@t.py:7  exit=0
    rank 1 | broadcast(8,by=ddp)@t.py:7  broadcast(8,by=ddp)@t.py:7  exit=0

Each rank runs the model, from its own branch:

    rank 0 | all_gather(8,by=fsdp)@t.py:7  all_gather(8,by=fsdp)@e.py:3  exit=0
    rank 1 | all_gather(8,by=fsdp)@t.py:7  all_gather(8,by=fsdp)@e.py:5  exit=0

Unknown
-------
A rank without a journal may be the one that ran it alone:

    rank 0 | start=2  broadcast(8,by=ddp)@t.py:7  exit=0
    rank 1 | ?

Remedy
------
On one rank run `model.module` (DDP only); with FSDP let all ranks run it, or collect
the state dict on all of them and save it on one. Better: all evaluate, each its shard.

Known problems
--------------
Forward passes are known by what they communicate. A DDP model without buffers sends
nothing in its forward pass, so rank 0 may well evaluate it alone; that it stops being
so once a BatchNorm is added is not foreseen.

References
----------
- dgl: rank 0 evaluates the DDP model and is stuck, `model.module` is not –
  https://github.com/dmlc/dgl/pull/4385
- pytorch: FSDP on some ranks only – https://github.com/pytorch/pytorch/issues/148334
- DistributedDataParallel, in torch's documentation –
  https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.partial_forwards import LoneForward
from distdoctor.analysis.divergence.rank_guards import RankGuard
from distdoctor.analysis.divergence.source_forks import DataFork
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD212"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Passes through a wrapped model that only some ranks made."""
    yield from findings(run, Cause.FORWARD)
    require_whole(run)


@sentence_of(Cause.FORWARD)
def _sentence(forward: RankGuard | DataFork | LoneForward) -> str:
    match forward:
        case RankGuard(inside, outside, call, where, condition, place, does=does):
            return (  # which the remarks end
                f"{capital(named(inside))} alone {does} at {call.place}, which calls "
                f"{call.op} ({where}), behind `{condition}` at {place}, which keeps "
                f"{named(outside)} out"
            )
        case DataFork(behind, others, op, other_op, where, condition, place):
            return (
                f"{capital(named(behind))} alone {forward.does} and call{s(behind)} "
                f"{op} ({where}), behind `{condition}` at {place}; {named(others)} "
                f"went on to {other_op}."
            )
        case LoneForward(ranks, others, does, call, where):
            never = "does" if len(others) == 1 else "do"
            return (
                f"{capital(named(ranks))} alone {does} at {call.place}, which calls "
                f"{call.op} ({where}); {named(others)} never {never} so there."
            )
