"""Some ranks skipped a collective, or made one of their own.

What it is
----------
A collective stands in a branch that only some ranks take: `if rank == 0:`, a `continue`
when the loss is not finite, a cache that only some ranks have. The others go on to the
next call, and from there on all are out of step.

Why it matters
--------------
The ranks wait in different calls for each other, for ever. With calls of one kind they
pair up one step apart instead: rank 2's gradients of step 8 with everybody's of step 7.

Sick
----
Rank 2 skips a batch and is already at the end of the epoch:

    rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
    rank 1 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
    rank 2 | all_reduce(4)@t.py:7  barrier@t.py:9  barrier@t.py:9...

Rank 0 alone makes sure that its checkpoint is on disk:

    rank 0 | all_reduce(4)@t.py:7  barrier@save.py:3...
    rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!

Rank 0 alone waits at the end for ranks that never do:

    rank 0 | all_reduce(4)@t.py:7  barrier@t.py:12...  .
    rank 1 | all_reduce(4)@t.py:7  leave               exit=0
    rank 2 | all_reduce(4)@t.py:7  leave               exit=0

Well
----
Every rank calls the barrier, each from its own branch:

    rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9   all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  barrier@t.py:11  all_reduce(4)@t.py:7  exit=0

A subgroup is used by its members only:

    rank 0 | all_reduce(4)  all_reduce(1)/log  all_reduce(4)  exit=0
    rank 1 | all_reduce(4)  all_reduce(1)/log  all_reduce(4)  exit=0
    rank 2 | all_reduce(4)  all_reduce(4)      exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Take the collective out of the branch, or let all ranks decide together: `all_reduce`
the flag (MAX) and branch on the result. A rank that skips its work still makes the
call, with zeros.

Known problems
--------------
Calls of one kind pair up one step apart, and it shows only at a call of another kind or
at the end: a run that is ended before that (`--budget`) shows nothing. Of two ranks
neither is the majority; where neither the source nor the loops tell which side left the
call out, both are shown, and a condition on a rank's own data is told as likely.

References
----------
- Lightning: one rank skips a batch, and the ranks are out of step –
  https://github.com/Lightning-AI/pytorch-lightning/issues/6430
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `monitored_barrier`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s, waits
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.excluded_ranks import KeptFromMessage
from distdoctor.analysis.divergence.rank_guards import RankGuard
from distdoctor.analysis.divergence.source_forks import DataFork
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD108"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that only some ranks made."""
    yield from findings(run, Cause.SKIPPED, _sentence)
    require_whole(run)


def _sentence(told: RankGuard | DataFork | KeptFromMessage) -> str:
    """The words where the source has a branch; those for calls alone are shared."""
    at = f"`{told.condition}` at {told.place}"
    match told:
        case RankGuard():
            return str(told)
        case DataFork(behind, others, left=True):
            return (
                f"{capital(named(others))} skipped {told.op} ({told.where}) and went "
                f"on to {told.other_op}, most likely by {at}; {named(behind)} "
                f"{waits(behind)} in it."
            )
        case DataFork(behind, others):
            return (
                f"{capital(named(behind))} alone call{s(behind)} {told.op} "
                f"({told.where}), behind {at}; {named(others)} went on to "
                f"{told.other_op}."
            )
        case KeptFromMessage():
            stands, call = told.stands, told.waits
            return (
                f"Rank {stands.rank} is kept by {at} from what all others do behind "
                f"it: it is at {stands.op} ({stands.place}), and rank {call.rank} "
                f"waits in {call.op}."
            )
