"""A rank swallowed an exception, and left out calls that the others made.

What it is
----------
A handler around the training step (`except RuntimeError: continue`) catches what one
rank meets alone: a damaged sample, a moment without memory. The rank skips its step,
and with it the collectives of that step.

Why it matters
--------------
The handler was written to keep the job alive, and makes it hang: from then on this rank
is a call ahead. Where the calls look alike its gradients are added to those of another
step of the others, without an error, until the loop ends.

Sick
----
The loader of rank 1 raises, and the loop goes on:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  barrier@t.py:9!

Well
----
All ranks swallow one, and none is ahead:

    rank 0 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  all_reduce(4)@t.py:7  exit=0

Rank 1 tries again, and misses no call:

    rank 0 | all_reduce(4)@t.py:7  .                     all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  all_reduce(4)@t.py:7  exit=0

Unknown
-------
A rank without a journal may be the one that went on:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Catch the error where it arises and go on with something of the same shape (a batch of
zeros, the batch before), so that the rank makes its step; or let all ranks skip it:
`all_reduce` a flag (MAX) and branch on the result.

Known problems
--------------
Handlers are seen in the user's own functions, and where they write or log; one in a
library, in native code, or in a function that was running when the rank joined is not.
An exception that was swallowed long before the calls part may be taken for the cause.

References
----------
- pytorch: an out-of-memory error is caught on one rank, and DDP hangs –
  https://github.com/pytorch/pytorch/issues/44353
- Lightning: what happens when one rank raises –
  https://github.com/Lightning-AI/pytorch-lightning/issues/6430
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, failed
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.failures.swallowed_exceptions import (
    LikelySwallowed,
    SwallowedException,
)
from distdoctor.analysis.sentences import sentence, sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD211"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls left out by ranks that swallowed an exception."""
    yield from findings(run, Cause.SWALLOWED)
    require_whole(run)


@sentence_of(Cause.SWALLOWED)
def _sentence(swallowed: SwallowedException | LikelySwallowed) -> str:
    if isinstance(swallowed, SwallowedException):
        return (
            f"{failed(swallowed.ranks, swallowed.failure)}, and went on without "
            f"the calls that the others made. {sentence(swallowed.left_out)}"
        )
    return (
        f"{sentence(swallowed.left_out)} The source has one way around that call: the "
        f"handler at {swallowed.handler}, which swallows {swallowed.what}. "
        f"{capital(named(swallowed.ranks))} most likely met that, unless the loop "
        "itself had fewer rounds there."
    )
