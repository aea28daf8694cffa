"""What ranks send does not fit what their peers expect.

What it is
----------
In an all-to-all, the part that rank i sends to rank j must be as large as the part that
rank j expects from rank i. In collectives on lists of tensors, the lists must be
equally long.

Why it matters
--------------
The backend rejects the call on one rank only, aborts, or hangs; in expert-parallel
models it depends on the data, so it strikes after hours.

Sick
----
Rank 1 still expects what rank 0 sent in the step before:

    rank 0 | all_to_all_single(5,sent=2/3,received=2/2)@moe.py:30...
    rank 1 | all_to_all_single(4,sent=2/2,received=2/2)@moe.py:30...

A list is longer on one rank:

    rank 0 | reduce_scatter(4+4)@zero.py:9!
    rank 1 | reduce_scatter(4+4)@zero.py:9...
    rank 2 | reduce_scatter(4+4+4)@zero.py:9!

Well
----
Uneven, and agreed on:

    rank 0 | all_to_all_single(5,sent=2/3,received=2/1)  exit=0
    rank 1 | all_to_all_single(3,sent=1/2,received=3/2)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Exchange the counts in every step before the data: an `all_to_all_single` of the split
sizes, then one of the payload. Do not reuse counts of an earlier step.

Known problems
--------------
In groups of more than 256 ranks the splits of the pairs are not compared, for pairs
grow with the square of the ranks. Parts that fit in size, and belong to another expert,
pass.

References
----------
- pytorch: all_to_all_single stuck with split sizes that do not fit –
  https://github.com/pytorch/pytorch/issues/117486
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `all_to_all_single`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.collectives.unlike_calls import (
    UnfitSplits,
    UnlikeCalls,
    compared,
)
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.recorded_slips import UnequalTotals
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD106"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """All-to-alls and lists whose parts do not fit together."""
    yield from findings(run, Cause.SPLITS)
    require_whole(run)


@sentence_of(Cause.SPLITS)
def _sentence(unlike: UnfitSplits | UnlikeCalls | UnequalTotals) -> str:
    if isinstance(unlike, UnequalTotals):
        return (
            f"In {unlike.op} ({unlike.where}) all ranks together send {unlike.sent:,} "
            f"elements and expect {unlike.taken:,}: the splits of some do not fit."
        )
    if isinstance(unlike, UnfitSplits):
        rest = f"; {unlike.more} more pairs disagree." if unlike.more else "."
        return (
            f"In {unlike.op} ({unlike.where}) rank {unlike.sender} sends {unlike.sent} "
            f"elements to rank {unlike.receiver}, which expects {unlike.expected}{rest}"
        )
    return compared(
        unlike,
        f"lists of different length in {unlike.op}",
        lambda call: f"with {len(call.tensors)}",
    )
