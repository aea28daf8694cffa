"""One rank comes late to most collectives, and all others wait for it.

What it is
----------
A collective is as fast as the last rank that arrives. Here it is the same rank again
and again: it has more or longer samples, decodes them in its own process, writes logs
and checkpoints alone, or sits on a slower or busier machine.

Why it matters
--------------
Nothing is wrong and nothing hangs, but the job runs at the speed of its slowest rank,
and the time of all others is lost.

Sick
----
Rank 1 comes 50 ms late to each of 30 calls:

    rank 0 | all_reduce(4)@t.py:7+100ms*30  exit=0
    rank 1 | all_reduce(4)@t.py:7+150ms*30
           | delayed(at_ms=0+4600,delay_ms=90+290)  exit=0

NCCL's Inspector timed 30 collectives on all ranks; those of rank 1 are shorter by 60 ms
and more, because the others were there before it:

    rank 0 | member_waits(size=2,member=1,known=1,joint=30,span_ms=6000,waits_ms=60-89)
    rank 1 |

Well
----
Each is late for a while:

    rank 0 | barrier+100ms*15  barrier+1650ms*15  exit=0
    rank 1 | barrier+150ms*15  barrier+1600ms*15  exit=0

One is late by what a busy machine's scheduler may do:

    rank 0 | barrier+100ms*30  exit=0
    rank 1 | barrier+108ms*30  exit=0

One is late because the machine had no processor for it:

    rank 0 | barrier+100ms*30  exit=0
    rank 1 | barrier+150ms*30  delayed(at_ms=0+4600,delay_ms=90+1390)  exit=0

Rank 0 issues all of them before it waits for any; that is one wait, and not thirty:

    rank 0 | all_reduce(4)&+100ms*30  barrier+9000ms*9  exit=0
    rank 1 | all_reduce(4)&+2600ms*30  barrier+9001ms*9  exit=0

A few calls tell nothing:

    rank 0 | barrier+100ms*9  exit=0
    rank 1 | barrier+190ms*9  exit=0

NCCL's Inspector shows waits for either:

    rank 0 | barrier  member_waits(size=2,joint=60,span_ms=6000,waits_ms=60-89)
    rank 1 | barrier  member_waits(size=2,member=1,joint=60,span_ms=6000,waits_ms=60-89)

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Look at what this rank does between the calls (`py-spy record --pid`, or torch's
profiler on this rank and on another): give all ranks the same amount of work per step
(bucket samples by length), move loading into workers, let rank 0 write in a thread.

Known problems
--------------
Arrivals are compared by the clock of one machine, so ranks on several machines are not
judged, but for durations of NCCL's Inspector, which need no common clock: who comes
last has the shortest. It takes 20 waits of 10 ms and more, and a quarter of the time: a
rank that is slow on its own hardware, as a GPU that is too hot, is not slow on the
machine of the check. On a busy machine what the scheduler delays is taken off by
measurement.

References
----------
- NCCL Inspector –
  https://github.com/NVIDIA/nccl/tree/master/ext-profiler/inspector
- Lin et al. (2025), Understanding Stragglers in Large Model Training –
  https://arxiv.org/abs/2505.05713
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.collectives.stragglers import Straggler, late
from distdoctor.analysis.communicators.late_members import late_members
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import finding, sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD209"
SEVERITY = Severity.WARNING
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The rank that keeps the others waiting."""
    known: set[int] = set()
    for divergence in late(run):
        known |= {*divergence.culprits}
        yield finding(divergence)
    yield from late_members(run, known)
    require_whole(run)


@sentence_of(Cause.LATE)
def _sentence(straggler: Straggler) -> str:
    return (
        f"Rank {straggler.rank} came last to {straggler.times} of {straggler.of} "
        f"collectives on {straggler.group}, by {straggler.delay_ms:.0f} ms in the "
        f"median; {named(straggler.others)} waited for it during {straggler.share:.0%} "
        "of the time."
    )
