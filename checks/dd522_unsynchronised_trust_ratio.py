"""Layers are scaled by the norms of one rank's gradients.

What it is
----------
LARS and LAMB make the step on each layer as long as a share of its weights: they divide
by the norm of the layer's gradient, or of what Adam makes of it, and multiply by that
of the weights. That is done with the gradients of one rank, before they are averaged:
what is averaged has been divided by another number on each rank; or the gradients are
averaged, and the numbers are not.

Why it matters
--------------
A rank's data count for the less, the larger its gradients are, in every layer by
another factor, and the mean of the steps is not as long as it was meant to be. Where
each rank multiplies the same gradient by numbers of its own, weights drift apart.

Sick
----
What is sent is as long as a hundredth of the weights, whatever the gradients were:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=4.0+.5,sent=.03+.02,weights=3.0+2.0)@t.py:9
           | gradients(step=2,prints=5+7,weights=8+8)@t.py:10
           | sent(step=2,positions=0-1,own=3.0+.4,sent=.031+.02,weights=3.1+2.0)@t.py:9
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=15+16,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=6.0+.3,sent=.03+.02,weights=3.0+2.0)@t.py:9
           | gradients(step=2,prints=15+17,weights=8+8)@t.py:10
           | sent(step=2,positions=0-1,own=7.0+.2,sent=.031+.02,weights=3.1+2.0)@t.py:9

Gradients are averaged, and multiplied by what each rank has found before:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=4.0+.5,sent=4.0+.5,moved=.06+.2)@t.py:9
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=6.0+.4,sent=6.0+.4,moved=.04+.25)@t.py:9

The optimizer averages them within its step, after it has found its factors:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8,passes=1)@t.py:10
           | sent(step=1,positions=0-1,settled=1+2,own=4.0+.5,sent=4.0+.5,moved=.06+.2)
           | gradients(step=2,prints=4+3,weights=1+2,passes=1)@t.py:10
           | sent(step=2,positions=0-1,settled=3+4,own=4.0+.5,sent=4.0+.5)@t.py:9
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=15+16,weights=7+8,passes=1)@t.py:10
           | sent(step=1,positions=0-1,settled=1+2,own=6.0+.4,sent=6.0+.4,moved=.04+.25)
           | gradients(step=2,prints=14+13,weights=3+4,passes=1)@t.py:10
           | sent(step=2,positions=0-1,settled=3+4,own=6.0+.4,sent=6.0+.4)@t.py:9

Gradients are averaged, and multiplied before the step by numbers found before:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=1-2,norms=.06+.2,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=4+.5,sent=4+.5,factors=1+1)@t.py:9
           | gradients(step=2,norms=.06+.2,probed=0-1,own=1+.2,used=.03+.02)@t.py:10
           | gradients(step=3,norms=.05+.1,probed=0-1,own=2+.2,used=.01+.07)@t.py:10
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=11-12,norms=.04+.25,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=6+.4,sent=6+.4,factors=1+1)@t.py:9
           | gradients(step=2,norms=.04+.25,probed=0-1,own=2+.9,used=.02+.025)@t.py:10
           | gradients(step=3,norms=.08+.2,probed=0-1,own=1+.3,used=.016+.14)@t.py:10

Well
----
The optimizer averages gradients within its step, and scales those:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8,passes=1)@t.py:10
           | sent(step=1,positions=0-1,settled=2+3,own=4.0+.5,sent=4.0+.5,moved=.05+.2)
           | gradients(step=2,prints=4+3,weights=1+2,passes=1)@t.py:10
           | sent(step=2,positions=0-1,settled=3+4,own=4.0+.5,sent=4.0+.5)@t.py:9
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=15+16,weights=7+8,passes=1)@t.py:10
           | sent(step=1,positions=0-1,settled=2+3,own=6.0+.4,sent=6.0+.4,moved=.05+.2)
           | gradients(step=2,prints=14+13,weights=1+2,passes=1)@t.py:10
           | sent(step=2,positions=0-1,settled=3+4,own=6.0+.4,sent=6.0+.4)@t.py:9

Gradients are sent as they are, and scaled behind that:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=4.0+.5,sent=4.0+.5,weights=3.0+2.0)@t.py:9
           | gradients(step=2,prints=5+7,weights=8+8)@t.py:10
           | sent(step=2,positions=0-1,own=3.0+.4,sent=3.0+.4,weights=3.1+2.0)@t.py:9
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=6.0+.3,sent=6.0+.3,weights=3.0+2.0)@t.py:9
           | gradients(step=2,prints=5+7,weights=8+8)@t.py:10
           | sent(step=2,positions=0-1,own=7.0+.2,sent=7.0+.2,weights=3.1+2.0)@t.py:9

Signs are sent, which are as long as a tensor is large:

    rank 0 | holds(names=a+b,sizes=64+16)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=4.0+.5,sent=8.0+4.0,weights=4.0+2.0)@t.py:9
           | gradients(step=2,prints=5+7,weights=8+8)@t.py:10
           | sent(step=2,positions=0-1,own=3.0+.4,sent=8.0+4.0,weights=4.0+2.0)@t.py:9
    rank 1 | holds(names=a+b,sizes=64+16)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=6.0+.3,sent=8.0+4.0,weights=4.0+2.0)@t.py:9
           | gradients(step=2,prints=5+7,weights=8+8)@t.py:10
           | sent(step=2,positions=0-1,own=7.0+.2,sent=8.0+4.0,weights=4.0+2.0)@t.py:9

Signs are sent, and some gradients are zero, which have none:

    rank 0 | holds(names=w+b,sizes=64+16)
           | sent(step=1,positions=0-1,own=4.0+.5,sent=7.0+4.0,weights=3.5+2.0)@t.py:9
           | gradients(step=1,prints=5-6,weights=1-2)
           | sent(step=2,positions=0-1,own=3.0+.4,sent=7.0+4.0,weights=3.5+2.0)@t.py:9
           | gradients(step=2,prints=7-8,weights=3-4)
    rank 1 | holds(names=w+b,sizes=64+16)
           | sent(step=1,positions=0-1,own=6.0+.3,sent=7.0+4.0,weights=3.5+2.0)@t.py:9
           | gradients(step=1,prints=5-6,weights=1-2)
           | sent(step=2,positions=0-1,own=7.0+.2,sent=7.0+4.0,weights=3.5+2.0)@t.py:9
           | gradients(step=2,prints=7-8,weights=3-4)

The gradients that ranks step with are no multiples of one another:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=1-2,norms=.06+.2,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=4+.5,sent=4+.5,factors=1+1)@t.py:9
           | gradients(step=2,norms=.06+.2,probed=0-1,own=1+.2,used=.03+.02)@t.py:10
           | gradients(step=3,norms=.05+.1,probed=0-1,own=2+.2,used=.01+.07)@t.py:10
    rank 1 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=11-12,norms=.04+.25,weights=7+8)@t.py:10
           | sent(step=1,positions=0-1,own=6+.4,sent=6+.4,factors=1+1)@t.py:9
           | gradients(step=2,norms=.04+.25,probed=0-1,own=2+.9,used=.03+.025)@t.py:10
           | gradients(step=3,norms=.08+.2,probed=0-1,own=1+.3,used=.026+.14)@t.py:10

Unknown
-------
A rank without a journal may have others to meet with:

    rank 0 | holds(names=a+b,sizes=40+8)@t.py:4
           | gradients(step=1,prints=5+6,weights=7+8)@t.py:10
    rank 1 | ?

Remedy
------
Average gradients first, and let the optimizer see nothing else: wrap the model in
DistributedDataParallel, or call `all_reduce` on every gradient before `step`. The norms
of averaged gradients are the same on all ranks, and so are ratios and steps.

Known problems
--------------
All of it rests on norms and linear functions of gradients at a few steps: that what one
rank uses is a multiple of what another uses is seen by a look at few elements, and is
likely. Signs and other normalised gradients have lengths that come near, and are told
apart by the number of their elements.

References
----------
- You et al. (2017), Large Batch Training of Convolutional Networks (LARS) –
  https://arxiv.org/abs/1708.03888
- You et al. (2019), Large Batch Optimization for Deep Learning (LAMB) –
  https://arxiv.org/abs/1904.00962
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.local_changes import exchange_lines
from distdoctor.analysis.gradients.trust_ratios import Trusted, trusted_apart
from distdoctor.analysis.gradients.used_gradients import backward_lines, places, some
from distdoctor.analysis.optimizer_step.step_lines import (
    norms_before,
    norms_called_before,
)
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.run import Run, named

CODE = "DD522"
SEVERITY = Severity.ERROR
NEEDS = (Gradients,)


def examine(run: Run) -> Iterator[Finding]:
    """Gradients that each rank scales by the norms of its own, layer by layer."""
    for one in trusted_apart(run):
        yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: Trusted) -> Finding:
    first = one.meetings[0]
    ranks, n = first.ranks, one.positions[0]
    names = [first.holds.names[at] for at in one.positions]
    norms = [each.own[each.positions.index(n)] for each in first.sent]
    lengths = f"{norms[0]:.3g} on rank {ranks[0]}, {norms[-1]:.3g} on rank {ranks[-1]}"
    low, high = one.ratio
    if one.sends:
        sent = f"{low:.3g}" if high < low * _ONE else f"{low:.3g} to {high:.3g}"
        story = (
            f"send what is {sent} times as long as the weights, however long their own "
            f"gradients are ({names[0]} at step {first.step}: {lengths}), and average "
            f"that: each has divided {len(names)} of {len(first.holds.names)} tensors "
            f"by norms of its own ({some(names)})"
        )
    else:
        times = f" times those of rank {ranks[0]}" if one.relative else ""
        story = (
            f"step with the same gradients, each times factors of its own, {low:.3g} "
            f"to {high:.3g}{times}: they are inverse to the norms that its own "
            f"gradients of {some(names)} had before they were averaged ({names[0]} at "
            f"step {first.step}: {lengths}), and the weights drift apart"
        )
    return Finding(
        message=f"{capital(named(ranks))} {story}",
        exhibits=(*first.sent[:2], *first.seen[:1]),
        locations=(
            *_norm_lines(run, one),
            *exchange_lines(run, first),
            *places(list(first.seen), ranks, "steps"),
            *places([first.holds], ranks, "makes the optimizer"),
            *backward_lines(run, ranks),
        ),
        certainty=Certainty.LIKELY,
        details={
            "parameters": names,
            "ratio": list(one.ratio),
            "steps": [look.step for look in one.meetings],
        },
    )


def _norm_lines(run: Run, one: Trusted) -> list[Location]:
    """Where a function takes norms of gradients that it averages further down.

    It may call others, to take the norms as well as to average.
    """
    first = one.meetings[0]
    sent = {each.place for each in first.sent if each.place is not None}
    lines: dict[Place, None] = {}
    for place in () if one.sends else sent:
        lines.update(dict.fromkeys(norms_before(run, place)))
    for location in () if one.sends or lines else exchange_lines(run, first):
        lines.update(dict.fromkeys(norms_called_before(run, location.place)))
    return [
        Location(line, first.ranks, Role.CULPRIT, "takes the norm of its own gradient")
        for line in lines
    ]


_ONE = 1.01
"""Up to what spread numbers are told as one."""
