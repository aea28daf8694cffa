"""Each rank clips its own gradients before they are averaged.

What it is
----------
Gradients are clipped to a norm, and exchanged between the ranks only after that. Each
rank has divided by the norm of its own gradients, a different one on each, and the mean
of what is left is not the clipped mean.

Why it matters
--------------
A rank with a large gradient counts for less, and one with a small one for more, than
its data should: the step points elsewhere. It changes with the number of ranks, which
ought to change nothing, and the norm that is logged is that of one rank's batch.

Sick
----
The bound is 1, and the norms are 4 and 2 before the gradients are sent:

    rank 0 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=1.0,factors=.25,norm=4,bound=1)@t.py:9
           | gradients(step=2,prints=6,weights=8)@t.py:10
           | sent(step=2,positions=0,own=3.0,sent=1.0,factors=.33,norm=3,bound=1)@t.py:9
    rank 1 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=2.0,sent=1.0,factors=.5,norm=2,bound=1)@t.py:9
           | gradients(step=2,prints=6,weights=8)@t.py:10
           | sent(step=2,positions=0,own=.5,sent=.5,factors=1.0,norm=.5,bound=1)@t.py:9

No function was seen to clip, and what is sent is never longer than 1:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9,norms=.8)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=1.0,factors=.25)@t.py:9
           | gradients(step=2,prints=6,weights=8,norms=.6)@t.py:10
           | sent(step=2,positions=0,own=3.0,sent=1.0,factors=.33333)@t.py:9
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9,norms=.8)@t.py:10
           | sent(step=1,positions=0,own=2.0,sent=1.0,factors=.5)@t.py:9
           | gradients(step=2,prints=6,weights=8,norms=.6)@t.py:10
           | sent(step=2,positions=0,own=0.5,sent=0.5,factors=1.0)@t.py:9

Horovod averages gradients in the background, and they are clipped before it was waited
for:

    rank 0 | optimizer_wrapped@t.py:6  gradients(step=1,prints=5,weights=9)@t.py:10
           | changed_in_flight(step=1,count=4,of=4,how=clip,norm=4,bound=1)@t.py:9
           | changed_in_flight(step=2,count=4,of=4,how=clip,norm=3,bound=1)@t.py:9
    rank 1 | optimizer_wrapped@t.py:6  gradients(step=1,prints=5,weights=9)@t.py:10
           | changed_in_flight(step=1,count=4,of=4,how=clip,norm=2,bound=1)@t.py:9
           | changed_in_flight(step=2,count=4,of=4,how=clip,norm=3,bound=1)@t.py:9

Well
----
Gradients are sent as they are, and clipped behind that:

    rank 0 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=4.0,factors=1.0,again)@t.py:9
           | gradients(step=2,prints=6,weights=8)@t.py:10
           | sent(step=2,positions=0,own=3.0,sent=3.0,factors=1.0,again)@t.py:9
    rank 1 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=2.0,sent=2.0,factors=1.0,again)@t.py:9
           | gradients(step=2,prints=6,weights=8)@t.py:10
           | sent(step=2,positions=0,own=0.5,sent=0.5,factors=1.0,again)@t.py:9

The bound was never reached:

    rank 0 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=4.0,factors=1.0,norm=4,bound=9)@t.py:9
    rank 1 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=2.0,sent=2.0,factors=1.0,norm=2,bound=9)@t.py:9

Ranks weigh their gradients by how many tokens they had:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9,norms=.8)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=2.4,factors=.6)@t.py:9
           | gradients(step=2,prints=6,weights=8,norms=.6)@t.py:10
           | sent(step=2,positions=0,own=3.0,sent=1.5,factors=.5)@t.py:9
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9,norms=.8)@t.py:10
           | sent(step=1,positions=0,own=2.0,sent=0.8,factors=.4)@t.py:9
           | gradients(step=2,prints=6,weights=8,norms=.6)@t.py:10
           | sent(step=2,positions=0,own=0.5,sent=0.25,factors=.5)@t.py:9

Noise was added to what was clipped, for the sake of privacy:

    rank 0 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=1.4,factors=0.0,norm=4,bound=1)@t.py:9
    rank 1 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=2.0,sent=1.7,factors=0.0,norm=2,bound=1)@t.py:9

Unknown
-------
A rank without a journal may have others to meet with:

    rank 0 | clip@t.py:8  holds(names=w,sizes=4)
           | gradients(step=1,prints=5,weights=9)@t.py:10
           | sent(step=1,positions=0,own=4.0,sent=1.0,factors=.25,norm=4,bound=1)@t.py:9
    rank 1 | ?

Remedy
------
Average first, and clip what all ranks have in common: with DistributedDataParallel,
behind the backward pass that is not inside of `no_sync`; by hand, behind the loop that
calls `all_reduce`. With Horovod, call `optimizer.synchronize()`, clip, and then step
inside of `optimizer.skip_synchronize()`.

Known problems
--------------
It is looked at in a few steps, and only where lines of the user's own exchange
gradients. A bound that no rank reaches there shows nothing. Without a function that was
seen to clip, equal norms tell it, and the finding is likely: ranks may be normalised on
purpose.

References
----------
- Horovod: clipping before or after the allreduce –
  https://github.com/horovod/horovod/issues/1346
- Horovod: synchronize, clip, then step – https://github.com/horovod/horovod/issues/1099
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.local_changes import exchange_lines
from distdoctor.analysis.gradients.local_clipping import Clipped, clipped_apart
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.horovod.wrapped_optimizers import InFlight, changed_in_flight
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.gradients import Clip, Gradients
from distdoctor.model.run import Run, named

CODE = "DD521"
SEVERITY = Severity.ERROR
NEEDS = (Gradients,)


def examine(run: Run) -> Iterator[Finding]:
    """Gradients that were clipped on each rank, and averaged after or during that."""
    for changed in changed_in_flight(run):
        yield _in_flight(run, changed)
    for one in clipped_apart(run):
        yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: Clipped) -> Finding:
    first, ranks = one.meetings[0], one.meetings[0].ranks
    times = len(one.meetings)
    norms = ", ".join(f"{norm:.3g}" for norm in one.norms[:_MOST_NORMS])
    more = ", …" if len(one.norms) > _MOST_NORMS else ""
    clips: list[Event] = [
        each
        for rank in ranks
        for each in run.of(Clip, rank)
        if each.optimizer == first.holds.optimizer
    ]
    return Finding(
        message=f"{capital(named(ranks))} clip gradients to a norm of {one.bound:.3g}, "
        f"each its own, and average what is left: at step {first.step} the norms were "
        f"{norms}{more}, and at {times} of {one.of} steps that were looked at, ranks "
        "divided by different numbers" + _UNLESS * (not one.by_function),
        exhibits=(*first.sent[:2], *clips[:1]),
        locations=(
            *places(clips if one.by_function else [], ranks, "clips"),
            *exchange_lines(run, first),
            *places(list(first.seen), ranks, "steps"),
            *backward_lines(run, ranks),
        ),
        certainty=Certainty.PROVED if one.by_function else Certainty.LIKELY,
        severity=Severity.WARNING if times == 1 and one.of >= _MANY else None,
        details={
            "bound": one.bound,
            "norms": list(one.norms),
            "steps": [look.step for look in one.meetings],
            "looks": one.of,
        },
    )


def _in_flight(run: Run, changed: InFlight) -> Finding:
    """Horovod's optimizer was averaging them in the background."""
    first, ranks = changed.changes[0], changed.ranks
    doing, remark = _DOINGS[first.how]
    norm = f" of norm {first.norm:.3g} to {first.bound:.3g}" if first.norm else ""
    steps = ", ".join(map(str, dict.fromkeys(one.step for one in changed.changes)))
    return Finding(
        message=(
            f"{capital(named(ranks))} {doing} {first.count} of {first.of} gradients"
            f"{norm} while Horovod was averaging them in the background, between "
            "backward() and the wait for it in optimizer.synchronize() or step() (of "
            f"the steps that were looked at: {steps}): what it averages, and what the "
            "averages overwrite, is left to chance and differs from rank to rank"
        ),
        exhibits=changed.changes[:1],
        locations=(
            *places([first], ranks, remark),
            *backward_lines(run, ranks),
        ),
        details={"parameters": first.count, "of": first.of, "how": first.how},
    )


_DOINGS = {
    "clip": ("clip", "clips"),
    "unscale": ("unscale", "unscales"),
    "": ("change", "waits for gradients that were changed"),
}
"""What was done to gradients, as in `ChangedInFlight.how`, in words."""

_MOST_NORMS = 4

_MANY = 4
"""Steps that were looked at, of which one alone is no error."""

_UNLESS = ", unless each rank is to weigh the same on purpose"
