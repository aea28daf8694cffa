"""A rank's process was aborted after its work was done, while Python ended.

What it is
----------
The rank had left the job and Python was ending, when the process was aborted:
"terminate called without an active exception". A thread of the backend lets go of the
last tensor while the interpreter is being taken down, and std::terminate follows. Seen
with torch 2.13 and gloo in about 3 of 100 healthy runs.

Why it matters
--------------
It harms nothing that was computed, but the launcher reports a failure, and may start
the job again.

Sick
----
Rank 1 is aborted after its exit handlers ran:

    rank 0 | all_reduce(4)  leave@t.py:9  exit=0
    rank 1 | all_reduce(4)  leave@t.py:9  exit=134

Well
----
All processes end with status 0:

    rank 0 | all_reduce(4)  leave@t.py:9  exit=0
    rank 1 | all_reduce(4)  leave@t.py:9  exit=0

Unknown
-------
A rank without a journal may have been aborted too:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Nothing is wrong with the training. Let models and tensors that took part in
communication go before `destroy_process_group()` (`del model, optimizer`), or end the
program by `os._exit(0)` once everything is saved.

Known problems
--------------
Any abort behind the exit handlers, of a rank that had left the job without an
exception, is taken for torch's own; an extension that aborts there is told so, too.

References
----------
- pytorch: "terminate called without an active exception" at the end –
  https://github.com/pytorch/pytorch/issues/190489
- pytorch: gloo's threads and tensors while Python ends –
  https://github.com/pytorch/pytorch/pull/179291
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Call, Ended, Failure, Left
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

CODE = "DD214"
SEVERITY = Severity.NOTE
NEEDS = (Call,)

_ABORTED = 128 + signal.SIGABRT


def examine(run: Run) -> Iterator[Finding]:
    """Processes that were aborted while Python ended."""
    ends = {
        rank: end
        for rank in run.seen
        for end in run.of(Ended, rank)
        if end.status == _ABORTED
        and end.orderly
        and run.of(Left, rank)
        and not run.of(Failure, rank)
    }
    if ends:
        left = {rank: run.of(Left, rank)[-1].place for rank in ends}
        yield Finding(
            message=f"After {named(ends)} had left the job, while Python ended, "
            f"SIGABRT ended the process{'es' if len(ends) > 1 else ''}; what was "
            "computed is not affected.",
            exhibits=tuple(ends.values()),
            victims=tuple(ends),
            locations=tuple(
                Location(place, (rank,), Role.PARTY, "left the job here")
                for rank, place in left.items()
                if place is not None
            ),
        )
    require_whole(run)
