"""Ranks went through a different number of rounds.

What it is
----------
One rank's loader ran out of batches, or it left its loop for a reason of its own
(early stopping decided locally), while the others began another round. Each round
communicates, so the others wait for a partner that is already behind the loop.

Why it matters
--------------
With DistributedDataParallel the job hangs in the last step of an epoch, only for data
sets whose size does not divide by the ranks, and only when the sampler does not pad.

Sick
----
Rank 1's loader ends one batch early, and it finishes:

    rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5     leave@t.py:9

It goes on to the barrier after the loop:

    rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5     barrier@t.py:8!

Well
----
As many batches on all ranks:

    rank 0 | all_reduce(4)@t.py:7  batches=1@t.py:5  barrier@t.py:8  exit=0
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5  barrier@t.py:8  exit=0

Fewer batches under `Join`, whose rank keeps calling along:

    rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5  all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5  all_reduce(4)@t.py:4  exit=0

Unknown
-------
A rank without a journal may be the one that ran out of batches:

    rank 0 | start=2  batches=2@t.py:5...  all_reduce(4)...
    rank 1 | ?

Remedy
------
Give all ranks the same number of rounds: DistributedSampler (it pads),
`drop_last=True`, or wrap the loop in `torch.distributed.algorithms.join.Join`. A
decision to stop must be common: `all_reduce` the flag before the `break`.

Known problems
--------------
Rounds are counted by loaders, forward passes and stacks: a loop that has none of them
(batches made by hand, and no model) is told as a skipped call or a rank that finished.
Where epochs were shortened for the budget, a loader is still shorter by as much, but a
loop that would be left on a condition later in the epoch is not.

References
----------
- pytorch: support uneven DDP inputs – https://github.com/pytorch/pytorch/issues/33148
- pytorch: Join, for uneven inputs – https://github.com/pytorch/pytorch/issues/38174
- `torch/distributed/algorithms/join.py` (pytorch/pytorch), `Join`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD208"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that left a loop which others are still in."""
    yield from findings(run, Cause.UNEVEN)
    require_whole(run)
