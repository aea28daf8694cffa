"""Some ranks alone change their weights in place, between steps.

What it is
----------
Replicas stay alike because all make the same steps. Here some ranks do more: a moving
average is copied into the model, weights are clipped, pruned, tied or initialised anew,
a checkpoint is loaded, within `if rank == 0:` or by a condition that is true on some
ranks only.

Why it matters
--------------
Gradients are averaged, weights are not. From that moment on each rank trains another
model, the averaged gradient is right for none of them, and which one is saved or
evaluated depends on the rank.

Sick
----
Rank 0 alone clips its weights after each step:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=3,gradients=6)@t.py:9  changed(step=3,names=w)@t.py:11  trail(before=1+3+9,gradients=5-7,after=2+4+8)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=2,gradients=6)@t.py:9  trail(before=1+2+5,gradients=5-7,after=2+5+7)

Well
----
Rank 0 puts the average in for an evaluation, and the weights back before the next step:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1+2,gradients=5+6,after=2+3)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1+2,gradients=5+6,after=2+3)

Rank 0 changes its weights, and they are broadcast before the next step:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  broadcast(6)  trail(before=1+7,gradients=5+6,after=2+8)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  broadcast(6)  trail(before=1+7,gradients=5+6,after=2+8)

Replicas of different seeds that nobody keeps alike:

    rank 0 | trained(names=w,numels=6)  weights(step=1,prints=1,gradients=5)  trail(before=1+7,gradients=5+6,after=2+8)
    rank 1 | trained(names=w,numels=6)  weights(step=1,prints=2,gradients=4)  trail(before=2+3,gradients=4+5,after=3+4)

Unknown
-------
A rank without a journal may be the one:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)
    rank 1 | ?

Remedy
------
Make the change on every rank: all have the same weights, so all come to the same. If
only one rank can know what to do, broadcast its weights right after. Keep a moving
average in a copy, and leave the model itself alone.
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replication.partings import Cause
from distdoctor.analysis.replication.weights import findings
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observed.weights import Weights
from distdoctor.model.run import Run

CODE = "DD414"
SEVERITY = Severity.ERROR
NEEDS = (Weights,)


def examine(run: Run) -> Iterator[Finding]:
    """Replicas that part because some ranks change weights outside of steps."""
    yield from findings(run, Cause.OUTSIDE_SOME)
    require_whole(run)
