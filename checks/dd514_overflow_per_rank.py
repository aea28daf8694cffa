"""Ranks decide each for itself whether to leave out a step that overflowed.

What it is
----------
In half precision a gradient becomes Inf now and then. A GradScaler, or the job's own
check, then leaves out the step. Ranks that train one model must do so together. Here
each looked at what it has itself: at gradients that are averaged only later, at its own
shard, or at its own loss; some left out the step, and others made it.

Why it matters
--------------
From that step on replicas have different weights, or a model that is sharded has parts
of different steps. The GradScalers also go on with different scales, so that gradients
of one rank count for more than those of others. Nothing ever puts that right.

Sick
----
The GradScaler of rank 1 alone finds Inf:

    rank 0 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | weights(prints=1)  weights(step=1,prints=1,gradients=5)@t.py:9
           | trail(before=1-3,gradients=5-7,after=2-4)
           | stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | weights(prints=1)  weights(step=1,prints=1,gradients=5)@t.py:9
           | overflow(round=2,scale=1024.0)@t.py:9
           | trail(before=1+2,gradients=5+7,after=2+8)
           | stride(until=3)@t.py:9  stride(first=3,until=3)@t.py:9  exit=0

A job without a GradScaler leaves out batches whose loss is not finite:

    rank 0 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | weights(prints=1)  weights(step=1,prints=1,gradients=5)@t.py:9
           | trail(before=1-3,gradients=5-7,after=2-4)
           | stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | weights(prints=1)  weights(step=1,prints=1,gradients=5)@t.py:9
           | overflow(round=2,loss)@t.py:8
           | trail(before=1+2,gradients=5+7,after=2+8)
           | stride(until=3)@t.py:9  stride(first=3,until=3)@t.py:9  exit=0

Each rank has a shard of the model, and a GradScaler that knows of no other:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=6,sharded)
           | stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=6,sharded)
           | overflow(scale=1024.0,round=1)@t.py:9
           | stride(first=2,count=2,until=3)@t.py:9  exit=0

Each rank makes the step for a part of the parameters, and broadcasts them then:

    rank 0 | trained(names=v+w,numels=6+6)  holds(names=v,sizes=6)  trail(before=1)
           | reduce(12)  broadcast(12)  reduce(12)  broadcast(12)  reduce(12)
           | stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | trained(names=v+w,numels=6+6)  holds(names=w,sizes=6)  trail(before=1)
           | reduce(12)  broadcast(12)  reduce(12)  broadcast(12)  reduce(12)
           | overflow(scale=1024.0,round=2)@t.py:9  stride(until=3)@t.py:9
           | stride(first=3,until=3)@t.py:9  exit=0

Well
----
All ranks leave out the same step:

    rank 0 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | overflow(round=1,scale=65536.0)@t.py:9
           | stride(first=2,count=2,until=3)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | overflow(round=1,scale=65536.0)@t.py:9
           | stride(first=2,count=2,until=3)@t.py:9  exit=0

Ranks that train a model each decide each for itself:

    rank 0 | trained(names=w,numels=6)  holds(names=w,sizes=6)
           | trail(before=1-3,gradients=5-7,after=2-4)
           | stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | trained(names=w,numels=6)  holds(names=w,sizes=6)
           | overflow(scale=1024.0,round=1)@t.py:9
           | trail(before=1+8,gradients=2+9,after=8-9)
           | stride(first=2,count=2,until=3)@t.py:9  exit=0

The weights are broadcast after each step:

    rank 0 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | weights(prints=1)  weights(step=1,prints=1,gradients=5)@t.py:9
           | trail(before=1-3,gradients=5-7,after=2-4)
           | stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6)
           | weights(prints=1)  weights(step=1,prints=1,gradients=5)@t.py:9
           | overflow(round=3,scale=1024.0)@t.py:9
           | trail(before=1+2,gradients=5+6,after=2+3)
           | stride(count=2,until=3)@t.py:9  exit=0

Ranks count their rounds apart, as they do where inputs are uneven:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=6)  stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=6)  overflow(round=2,scale=1024.0)@t.py:9
           | stride(until=2)@t.py:9  exit=0

Unknown
-------
A rank without a journal may have left out a step alone:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=6)  stride(count=3,until=3)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Average gradients before they are looked at: with DistributedDataParallel, `unscale_`
and `step` see the same on all ranks. Where each rank has a shard, use
`torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`, or `all_reduce` the flag
with `ReduceOp.MAX` before it is asked; so also for a check of one's own:
`dist.all_reduce(bad, op=dist.ReduceOp.MAX)`.

Known problems
--------------
Rounds are counted by steps and skips of each optimizer; where ranks make unlike numbers
of rounds, nothing is compared. Replicas that are made alike again before anybody looks
at them are left out. On the CPU an overflow happens at other steps than on the GPU.

References
----------
- `torch/distributed/fsdp/sharded_grad_scaler.py` (pytorch/pytorch), `ShardedGradScaler`
- pytorch: found_inf must reach all ranks –
  https://github.com/pytorch/pytorch/pull/115710
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.amp.overflow_splits import Split, splits
from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    replica_divergences,
)
from distdoctor.model.findings import Certainty, Finding, Location, Severity
from distdoctor.model.observations.amp import Stride
from distdoctor.model.run import Run, named

CODE = "DD514"
SEVERITY = Severity.ERROR
NEEDS = (Stride,)


def examine(run: Run) -> Iterator[Finding]:
    """Steps that some ranks of a set leave out, and others make."""
    parted = {
        one.ranks
        for one in replica_divergences(run)
        if one.cause is DivergenceCause.OVERFLOW
    }
    for split in splits(run):
        # Replicas may have been made alike again; what nobody saw is not told.
        if split.sharded or split.ranks in parted:
            yield _finding(run, split)
    require_whole(run)


def _finding(run: Run, split: Split) -> Finding:
    left_out = split.left_out
    others = tuple(rank for rank in split.ranks if rank not in left_out)
    first = split.overflows[0]
    mine = [one for one in split.overflows if one.round == first.round]
    often = len(split.rounds)
    more = f", and so it went {often} times" if often > 1 else ""
    if split.by_scaler:
        scales = sorted({f"{one.scale:g}" for one in mine if one.scale})
        why = (
            f"the GradScaler of {named(left_out)} found Inf or NaN and left out step "
            f"{split.step} (its scale was {' or '.join(scales)})"
        )
    else:
        why = (
            f"the loss of {named(left_out)} was not finite, and step {split.step} was "
            "left out there"
        )
    after = "weights are of different steps" if split.sharded else "weights differ"
    lines: list[Location] = [
        *places(mine, left_out, "leaves out the step"),
        *places(list(split.strides), others, "makes the step"),
        *backward_lines(run, split.ranks),
    ]
    return Finding(
        message=f"{capital(why)}, while {named(others)} made it{more}; since then "
        f"their {after}",
        exhibits=(*mine, *split.strides[:1]),
        culprits=left_out if len(left_out) <= len(others) else (),
        victims=others if len(left_out) <= len(others) else (),
        locations=tuple(lines),
        certainty=Certainty.PROVED,
        details={
            "step": split.step,
            "rounds": list(split.rounds[:16]),
            "optimizer": split.optimizer,
            "sharded": split.sharded,
        },
    )
