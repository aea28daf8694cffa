"""A parameter got no gradient on some ranks, and DDP waits for it.

What it is
----------
DistributedDataParallel averages gradients in buckets, and sends a bucket when all its
parameters have a gradient. Where the loss of one rank leaves a layer out (a head
without labels in this batch, an early exit, a branch), its bucket is never full.

Why it matters
--------------
Nothing is said at the fault: backward ends on that rank, its optimizer steps with
gradients that were never averaged, and the others stay in the end of theirs. The error
of the next forward pass names no parameter and no rank but its own.

Sick
----
The last batch of rank 1 has no outlines, so the head for them is not used:

    rank 0 | wrap=ddp:a+b  all_reduce(9)@t.py:5  all_reduce(9,by=backward)@t.py:5...
    rank 1 | wrap=ddp:a+b  all_reduce(9)@t.py:5  unreduced=b@t.py:5  exit=0
    rank 2 | wrap=ddp:a+b  all_reduce(9)@t.py:5  all_reduce(9,by=backward)@t.py:5...

It goes on to average its loss, and meets a bucket there:

    rank 0 | wrap=ddp:a+b  .                 all_reduce(9,by=backward)@t.py:5...
    rank 1 | wrap=ddp:a+b  unreduced=b@t.py:5  all_reduce(1)@t.py:7!

Well
----
Backward is called twice for one forward pass, and the second brings the rest:

    rank 0 | wrap=ddp:a+b  unreduced=b@t.py:4  all_reduce(9,by=backward)@t.py:5  exit=0
    rank 1 | wrap=ddp:a+b  unreduced=b@t.py:4  all_reduce(9,by=backward)@t.py:5  exit=0

Unknown
-------
A rank without a journal may be the one that left a parameter out:

    rank 0 | wrap=ddp:a+b@t.py:44  all_reduce(9,by=backward)  exit=0
    rank 1 | ?

Remedy
------
Let every parameter take part in every loss (add `0 * output.sum()` of the layer that
is left out), or wrap with `find_unused_parameters=True`. Freeze what is never used
(`requires_grad_(False)`) before wrapping.

Known problems
--------------
It is seen with DDP alone, where a rank waits because of it or the next forward pass is
refused: in the last step of a job, with nothing behind it, it may pass. The branch of
the source is named only where the module is called in one place.

References
----------
- pytorch: parameters out of sync because of unused ones –
  https://github.com/pytorch/pytorch/issues/128949
- torch's note on how DDP works – https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, waits
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replicas.unused_parameters import NoGradient
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Wrapped
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD116"
SEVERITY = Severity.ERROR
NEEDS = (Wrapped,)


def examine(run: Run) -> Iterator[Finding]:
    """Buckets that were never full, because of a parameter left out."""
    yield from findings(run, Cause.UNUSED)
    require_whole(run)


@sentence_of(Cause.UNUSED)
def _sentence(unused: NoGradient) -> str:
    ranks, waiting = unused.ranks, unused.waiting
    without = (
        f"On {named(ranks)} {_list(unused.names)} got no gradient in a backward pass"
    )
    if waiting:
        whose = "their" if len(ranks) > 1 else "its"
        return (
            f"{without}, so DDP never sent {whose} part; {named(waiting)} "
            f"{waits(waiting)} for it in {'/'.join(unused.ops)} ({unused.where})."
        )
    return (
        f"{without}; DDP still waited for it when {named(unused.refused)} began the "
        "next forward pass, and refused that."
    )


_MOST_NAMES = 4


def _list(names: tuple[str, ...]) -> str:
    if not names:
        return "some parameters"
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
