"""Each step makes very many small collectives, where one large one would do.

What it is
----------
Gradients are averaged parameter by parameter, in a loop behind backward; or the buckets
of DistributedDataParallel are so small that it sends each parameter by itself. Each of
these collectives is small, and there are dozens in each step.

Why it matters
--------------
A collective costs some tens of microseconds to begin on one machine, and more between
machines, however little it moves; small ones cost nothing else. Those of a loop behind
backward are waited for besides, one after the other, while backward could have hidden
them. All numbers are right, and the ranks wait.

Sick
----
Thirty parameters are averaged one by one, in each of six steps:

    rank 0 | rate_course(steps=6)  all_reduce(256)@t.py:7+1ms*180  exit=0
    rank 1 | rate_course(steps=6)  all_reduce(256)@t.py:7+1ms*180  exit=0

DDP has twenty buckets for a small model:

    rank 0 | wrap=ddp:w  rate_course(steps=6)
           | all_reduce(400,by=backward)@t.py:9&+1ms*120  exit=0
    rank 1 | wrap=ddp:w  rate_course(steps=6)
           | all_reduce(400,by=backward)@t.py:9&+1ms*120  exit=0

Well
----
A model of six parameters is averaged by hand:

    rank 0 | rate_course(steps=6)  all_reduce(256)@t.py:7+1ms*36  exit=0
    rank 1 | rate_course(steps=6)  all_reduce(256)@t.py:7+1ms*36  exit=0

What is sent is large:

    rank 0 | rate_course(steps=6)  all_reduce(40000)@t.py:7+1ms*180  exit=0
    rank 1 | rate_course(steps=6)  all_reduce(40000)@t.py:7+1ms*180  exit=0

DDP has one bucket, and gradients of twenty batches are accumulated:

    rank 0 | wrap=ddp:w  rate_course(steps=6)  window(reads=0,batches=20,more=5)
           | all_reduce(400,by=backward)@t.py:9&+1ms*120  exit=0
    rank 1 | wrap=ddp:w  rate_course(steps=6)  window(reads=0,batches=20,more=5)
           | all_reduce(400,by=backward)@t.py:9&+1ms*120  exit=0

They are issued without waiting for each:

    rank 0 | rate_course(steps=6)  all_reduce(256)@t.py:7&+1ms*180  exit=0
    rank 1 | rate_course(steps=6)  all_reduce(256)@t.py:7&+1ms*180  exit=0

Unknown
-------
A rank without a journal may do so:

    rank 0 | rate_course(steps=6)  all_reduce(256)@t.py:7+1ms*36  exit=0
    rank 1 | ?

Remedy
------
Average all gradients at once: lay them end to end (`torch.cat` of the flattened
gradients, one `all_reduce`, and copy back), or wrap the model in
`DistributedDataParallel`, which does so in buckets while backward still runs. Leave
`bucket_cap_mb` at its default of 25 unless a measurement on the cluster says otherwise.

Known problems
--------------
It counts calls and bytes, and measures no time: on one machine small collectives may be
cheap. Calls of several lines are not added up, and a library that makes many for a
reason of its own is told like a loop of the user's.

References
----------
- Li et al. (2020), PyTorch Distributed – https://arxiv.org/abs/2006.15704
- Sergeev and Del Balso (2018), Horovod, on tensor fusion –
  https://arxiv.org/abs/1802.05799
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.collectives.small_calls import SmallCalls, small_calls
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places, wrap_lines
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.learning_rate import RateCourse
from distdoctor.model.run import Run, named

CODE = "DD541"
SEVERITY = Severity.NOTE
NEEDS = (RateCourse,)


def examine(run: Run) -> Iterator[Finding]:
    """Lines that make many small collectives in each step."""
    for one in small_calls(run):
        yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: SmallCalls) -> Finding:
    ranks = one.ranks
    what = "all_reduce calls of DDP's buckets" if one.buckets else "all_reduce calls"
    how = (
        "they would fit into one bucket"
        if one.buckets
        else "each is waited for before the next is made"
    )
    calls = places([one.example], ranks, "makes the calls")
    wraps = wrap_lines(run, ranks)
    return Finding(
        message=f"{capital(named(ranks))} make{'s' * (len(ranks) == 1)} {one.calls} "
        f"{what} for each backward pass, on one line, in {one.steps:,} optimizer "
        f"steps: nine of ten move {one.usual:,} bytes or less, and all of a pass "
        f"{one.bytes:,} bytes; {how}",
        exhibits=(one.example,),
        locations=tuple([*wraps, *calls] if one.buckets else calls),
        certainty=Certainty.PROVED,
        details={
            "calls": one.calls,
            "bytes": one.bytes,
            "usual": one.usual,
            "steps": one.steps,
            "buckets": one.buckets,
        },
    )
