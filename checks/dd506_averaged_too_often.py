"""Gradients are averaged for each batch of a window, where once for a step would do.

What it is
----------
Accumulation sums the gradients of several batches. DDP averages in each backward, and
each time sends the sum so far. Inside of `no_sync` it leaves that for the last batch of
the window, and what the step is made with is the same.

Why it matters
--------------
The result is right. But all gradients are sent as often as there are batches to a step,
and backward waits for it: over a network that may be most of the time of a step.

Sick
----
Four passes to a step, all of which are averaged:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+4:backward+step,elements=4,size_bytes=16,more=31)@t.py:9
           | exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+4:backward+step,elements=4,size_bytes=16,more=31)@t.py:9
           | exit=0

`no_sync` is around backward alone, where it has no say:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)  unsynced@t.py:6
           | cycle(words=clear+4:backward+step,elements=4,size_bytes=16,more=2)@t.py:9
           | exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)  unsynced@t.py:6
           | cycle(words=clear+4:backward+step,elements=4,size_bytes=16,more=2)@t.py:9
           | exit=0

Well
----
The last one alone:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+3:backward/local+backward+step,more=31)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+3:backward/local+backward+step,more=31)@t.py:9  exit=0

Each pass has its step:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+backward+step,more=31)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+backward+step,more=31)@t.py:9  exit=0

The graph is said to be always the same, which `no_sync` does not go with:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+4:backward+step,static,more=31)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+4:backward+step,static,more=31)@t.py:9  exit=0

What each batch gives is clipped for itself:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+4:backward.clip+step,more=31)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+4:backward.clip+step,more=31)@t.py:9  exit=0

Unknown
-------
A rank without a journal may have done so:

    rank 0 | wrap=ddp:w  cycle(words=clear+backward+step)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Run forward and backward of all batches but the last of a window inside of
`model.no_sync()`. It is the forward pass that counts: around backward alone it does
nothing.

Known problems
--------------
It is advice by counting: whether sending costs anything on the cluster is not measured
here. A hook or a script that needs the average of each batch (clipping each, logging
norms) looks the same unless it clips.

References
----------
- accelerate: what improper use of no_sync costs –
  https://github.com/huggingface/accelerate/pull/1153
- `torch/nn/parallel/distributed.py` (pytorch/pytorch),
  `DistributedDataParallel.no_sync`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.ddp_averaging import Repeated, repeated
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.optimizer_step.step_cycles import lines_of
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    SCALED,
    Cycle,
    Unsynced,
)
from distdoctor.model.run import Run, named

CODE = "DD506"
SEVERITY = Severity.NOTE
NEEDS = (Cycle,)

_LEAST = 8
"""Steps that are so; a job of few has nothing to gain."""

_LEAST_IN_VAIN = 3
"""Likewise, where `no_sync` was called, and nothing came of it."""

_SHARE = 0.8
"""Of all steps."""


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose gradients are sent more often than they are used."""
    if run.world_size > 1:
        for found in repeated(run):
            frequent = [one for one in found if _is_frequent(run, one)]
            if frequent:
                yield _finding(run, frequent)
    require_whole(run)


def _is_frequent(run: Run, one: Repeated) -> bool:
    asked = run.of(Unsynced, one.course.rank)
    least = _LEAST_IN_VAIN if asked else _LEAST
    return one.steps >= least and one.steps >= _SHARE * one.course.steps


def _finding(run: Run, found: Sequence[Repeated]) -> Finding:
    one, ranks = found[0], tuple(each.course.rank for each in found)
    acts = [
        act for each in found for act in lines_of(run, each.course, BACKWARD, SCALED)
    ]
    spared = (one.passes - 1) * one.size_bytes
    asked = [act for each in found for act in run.of(Unsynced, each.course.rank)]
    vain = ""
    if asked:
        vain = "; `no_sync` changes nothing about that unless forward runs inside of it"
    return Finding(
        message=f"{capital(named(ranks))} average{'s' * (len(ranks) == 1)} gradients "
        f"in each of {one.passes} backward passes to a step, at {one.steps} of "
        f"{one.course.steps} steps: {one.passes - 1} of {one.passes} times, "
        f"{_size(spared)} a step, are sent for nothing{vain}",
        exhibits=(one.cycle, *asked[:1]),
        locations=(
            *places(asked, ranks, "tells DDP not to average, in vain"),
            *places(acts, ranks, "backward, averaged each time"),
            *places([each.cycle for each in found], ranks, "the one step for them"),
        ),
        severity=Severity.WARNING if asked else None,
        details={
            "passes": one.passes,
            "steps": one.steps,
            "spared_bytes_per_step": spared,
        },
    )


def _size(size_bytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes} bytes"
