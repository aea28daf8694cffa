"""The gradients that ranks step with are not made of what all ranks had.

What it is
----------
In data-parallel training each rank steps with the mean, or the sum, of what backward
gave on all ranks. Here gradients are exchanged, and part of them is lost on the way: a
receive writes over the rank's own gradients instead of adding to them, rank 0's are
broadcast where all were to be averaged, a sum is over a group that has only some of the
ranks, or it is reduced to one rank and nobody sends it back.

Why it matters
--------------
Nothing is said, and where all ranks get the same their weights stay alike. But the
batches of the ranks that are left out are computed for nothing: N devices do the work
of one, or of half of them.

Sick
----
Both ranks step with the gradients of rank 0:

    rank 0 | holds(names=w,sizes=4)@t.py:5  broadcast(4)@t.py:8
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=1+2+3)@t.py:9
           | broadcast(4)@t.py:8
           | gradients(step=3,passes=1,probed=0-2,own=2+2+5,used=2+2+5)@t.py:9  exit=0
    rank 1 | holds(names=w,sizes=4)@t.py:5  broadcast(4)@t.py:8
           | gradients(step=2,passes=1,probed=0-2,own=2+7+4,used=1+2+3)@t.py:9
           | broadcast(4)@t.py:8
           | gradients(step=3,passes=1,probed=0-2,own=3+9+4,used=2+2+5)@t.py:9  exit=0

Rank 0 has the sum of both, and rank 1 what it had itself:

    rank 0 | holds(names=w,sizes=4)@t.py:5  reduce(4)@t.py:8
           | gradients(step=2,passes=1,weights=1,probed=0-2,own=1+2+3,used=3+9+7)@t.py:9
           | reduce(4)@t.py:8
           | gradients(step=3,passes=1,weights=2,probed=0-2,own=2+2+5,used=5+11+9)
           | exit=0
    rank 1 | holds(names=w,sizes=4)@t.py:5  reduce(4)@t.py:8
           | gradients(step=2,passes=1,weights=1,probed=0-2,own=2+7+4,used=2+7+4)@t.py:9
           | reduce(4)@t.py:8
           | gradients(step=3,passes=1,weights=3,probed=0-2,own=3+9+4,used=3+9+4)
           | exit=0

Rank 2 is in no average:

    rank 0 | holds(names=w,sizes=4)@t.py:5  all_reduce(4)/two@t.py:8
           | gradients(step=2,passes=1,weights=1,probed=0-2,own=1+2+3,used=3+9+7)
           | gradients(step=3,passes=1,weights=2,probed=0-2,own=2+2+5,used=5+11+9)
           | gradients(step=4,passes=1,weights=4,moved=4)
           | exit=0
    rank 1 | holds(names=w,sizes=4)@t.py:5  all_reduce(4)/two@t.py:8
           | gradients(step=2,passes=1,weights=1,probed=0-2,own=2+7+4,used=3+9+7)
           | gradients(step=3,passes=1,weights=2,probed=0-2,own=3+9+4,used=5+11+9)
           | gradients(step=4,passes=1,weights=4)
           | exit=0
    rank 2 | holds(names=w,sizes=4)@t.py:5
           | gradients(step=2,passes=1,weights=1,probed=0-2,own=1+4+9,used=1+4+9)
           | gradients(step=3,passes=1,weights=3,probed=0-2,own=5+2+4,used=5+2+4)
           | gradients(step=4,passes=1,weights=5)
           | exit=0

Well
----
They are the mean of both, clipped:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=.15+.45+.35)
           | gradients(step=3,passes=1,probed=0-2,own=2+2+5,used=2.5+5.5+4.5)  exit=0
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=2+7+4,used=.15+.45+.35)
           | gradients(step=3,passes=1,probed=0-2,own=3+9+4,used=2.5+5.5+4.5)  exit=0

Rank 1 had no samples, and its gradients are zero:

    rank 0 | holds(names=w,sizes=4)  all_reduce(4)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=.5+1+1.5)
           | gradients(step=3,passes=1,probed=0-2,own=2+2+5,used=1+1+2.5)  exit=0
    rank 1 | holds(names=w,sizes=4)  all_reduce(4)
           | gradients(step=2,passes=1,probed=0-2,own=0+0+0,used=.5+1+1.5)
           | gradients(step=3,passes=1,probed=0-2,own=0+0+0,used=1+1+2.5)  exit=0

Signs, the largest elements or a compressed form of the gradients are sent:

    rank 0 | holds(names=w,sizes=4)  all_reduce(4)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=1+1+2)
           | gradients(step=3,passes=1,probed=0-2,own=2+2+5,used=1+0+2)  exit=0
    rank 1 | holds(names=w,sizes=4)  all_reduce(4)
           | gradients(step=2,passes=1,probed=0-2,own=2+7+4,used=1+1+2)
           | gradients(step=3,passes=1,probed=0-2,own=3+9+4,used=1+0+2)  exit=0

Each rank takes the mean with its neighbour, as in gossip:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,weights=1,probed=0+1,own=1+2,used=1.5+4.5)
           | gradients(step=3,passes=1,weights=2,probed=0+1,own=2+2,used=2.5+5.5)
           | exit=0
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,weights=1,probed=0+1,own=2+7,used=1.5+5.5)
           | gradients(step=3,passes=1,weights=3,probed=0+1,own=3+9,used=4+5.5)
           | exit=0
    rank 2 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,weights=1,probed=0+1,own=1+4,used=1+3)
           | gradients(step=3,passes=1,weights=4,probed=0+1,own=5+2,used=3.5+2)
           | exit=0

Unknown
-------
A rank without a journal may have had other gradients:

    rank 0 | holds(names=w,sizes=4)  gradients(step=1,prints=11,weights=7)  exit=0
    rank 1 | ?

Remedy
------
Let every rank's gradients reach every rank: `all_reduce(p.grad, op=AVG)` over the whole
group, or DistributedDataParallel. A ring by hand receives into a tensor of its own, and
adds it to the gradient; what is reduced to one rank is broadcast from there.

Known problems
--------------
Gradients are known by linear functions of a few of them, and all subsets are tried for
up to eight ranks; beyond that only simple cases are seen. Compressed, sign-wise or
gossiped gradients, which are no such sum, are left alone, and so is a loss of ranks
that hides in them. Local SGD and ensembles are excused by their weights.

References
----------
- torch's note on how DDP works – https://docs.pytorch.org/docs/stable/notes/ddp.html
- Li et al. (2020), PyTorch Distributed – https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.gradient_combinations import (
    Combination,
    carriers,
    combined_wrongly,
    is_choice,
)
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.run import Run, named

CODE = "DD418"
SEVERITY = Severity.ERROR
NEEDS = (Gradients,)


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose gradients lack what some ranks had."""
    for one in combined_wrongly(run):
        yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: Combination) -> Finding:
    ranks, last = one.chapter.ranks, one.looks[-1]
    steps = [look.step for look in one.looks]
    choice = is_choice(run, one)
    message = (
        f"{_story(one)}, at every step that was looked at ({_listed(steps)})"
        + ", unless they were chosen on purpose" * choice
    )
    calls = carriers(run, one)
    culprits = _outside(one)
    lines = [
        Location(
            call.place,
            ranks,
            Role.PARTY if culprits else Role.CULPRIT,
            f"{call.op} of gradients",
        )
        for call in calls
        if call.place is not None
    ]
    return Finding(
        message=message,
        exhibits=(*calls[:1], *last.seen[:2]),
        culprits=culprits,
        victims=tuple(rank for rank in ranks if rank not in culprits)
        if culprits
        else (),
        locations=(
            *lines,
            *backward_lines(run, ranks),
            *places(last.seen, ranks, "steps with them"),
        ),
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING if choice else None,
        details={
            "steps": steps,
            "sources": {
                str(rank): list(of) for rank, of in zip(ranks, one.sources, strict=True)
            },
        },
    )


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))


def _outside(one: Combination) -> tuple[int, ...]:
    """Ranks outside of the largest of several sets that average by themselves."""
    if one.common or one.whole:
        return ()
    sizes = Counter(one.sources).most_common(2)
    if len(sizes) < 2 or sizes[0][1] == sizes[1][1]:
        return ()
    return tuple(rank for rank in one.chapter.ranks if rank not in sizes[0][0])


def _story(one: Combination) -> str:
    """What each rank used, and what is missing in it."""
    ranks = one.chapter.ranks
    if one.common:
        lost = [rank for rank in ranks if rank not in one.common]
        return (
            f"{capital(named(ranks))} all step with the gradients of "
            f"{named(one.common)}, and what {named(lost)} found in backward is lost"
        )
    if one.whole:
        others = [rank for rank in ranks if rank not in one.whole]
        return (
            f"The sum or mean of the gradients reaches {named(one.whole)}, and "
            f"{named(others)} did not get it: their weights drift apart"
        )
    if all(len(of) == 1 for of in one.sources):
        pairs = ", ".join(
            f"rank {rank} with those of rank {of[0]}"
            for rank, of in zip(ranks[:4], one.sources, strict=False)
        )
        return f"Ranks step with the gradients of other ranks alone ({pairs})"
    camps = list(dict.fromkeys(one.sources))
    among = "; ".join(named(camp) for camp in camps[:4])
    return (
        f"Gradients are averaged among some of {named(ranks)} only ({among}), and the "
        "weights drift apart, unless each of these sets is to train a model of its own"
    )
