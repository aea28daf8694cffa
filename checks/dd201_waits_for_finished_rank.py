"""Ranks wait for one that has finished.

What it is
----------
A rank left the job: it returned, exited or destroyed its process group, while others
still make calls that need it.

Why it matters
--------------
The others wait until the timeout (30 minutes for gloo by default, 10 for NCCL) and then
report a broken connection instead of the rank that left.

Sick
----
Rank 2 stops early and goes home:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 2 | all_reduce(4)@t.py:7  leave@t.py:15  exit=0

Rank 1 goes without a word:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  quit=sys.exit:0@t.py:12  exit=0

The others learn it by a broken connection:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7^  fail=RuntimeError^  exit=1
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:15          exit=0
    rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7^  fail=RuntimeError^  exit=1

Well
----
All leave after their last common call, some earlier than others:

    rank 0 | all_reduce(4)  leave  exit=0
    rank 1 | all_reduce(4)
    rank 2 | all_reduce(4)  leave

A rank that is not needed any more leaves; the rest start again without it:

    group world | 0 1 2
    group two | 0 1
    rank 0 | all_reduce(4)  leave  start=2  all_reduce(4)/two  leave  exit=0
    rank 1 | all_reduce(4)  leave  start=2  all_reduce(4)/two  leave  exit=0
    rank 2 | all_reduce(4)  leave  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Let all ranks leave together: agree on stopping by an `all_reduce` of the stop flag, and
destroy the process group only after the last common call.

Known problems
--------------
A rank that leaves is at fault here, though it may be the others who went on too long:
who was meant to stop is not known. Where it left a loop of which the others began
another round, DD208 or DD108 tells it instead.

References
----------
- pytorch: a process finishes and leaves the others hanging –
  https://github.com/pytorch/pytorch/issues/28257
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `destroy_process_group`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, waits
from distdoctor.analysis.divergence.absence import WaitForFinished
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call, Left, Quit
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD201"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that wait for ranks that have finished."""
    yield from findings(run, Cause.FINISHED)
    require_whole(run)


@sentence_of(Cause.FINISHED)
def _sentence(waiting: WaitForFinished) -> str:
    ranks = waiting.ranks
    match waiting.end:
        case Left(place=place):
            how = f"left the job at {place}"
        case Quit(how=call, status=status, place=place):
            how = f"ended by {call}({status}) at {place}"
        case None:
            how = "ended"
    verb = "waited in vain" if waiting.gave_up else waits(ranks)
    end = "never came" if waiting.gave_up else "will never come"
    return (
        f"{capital(named(ranks))} {verb} in {waiting.op} ({waiting.where}) for "
        f"{named(waiting.finished)}, which {how} after {waiting.made} calls on it and "
        f"{end}."
    )
