"""A step is made with gradients that DDP was told not to average.

What it is
----------
Inside of `no_sync`, DDP leaves the gradients of each rank alone. To accumulate, all but
the last pass of a window belong inside: the last one averages what all have given. It
is the forward pass that counts: DDP decides there. Where the last pass is inside, too,
or where backward is called a second time for one forward pass, each rank steps with
gradients of its own.

Why it matters
--------------
The replicas drift apart with every such step, and nothing brings them together: the
ranks train different models, and the checkpoint is that of one of them. No error is
raised.

Sick
----
All passes are inside:

    rank 0 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | weights(prints=7,step=1,gradients=11)
           | weights(prints=8,step=2,gradients=12)
           | cycle(step=1,words=4:backward/local+step,more=1)@t.py:9
           | unsynced@t.py:5  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | weights(prints=7,step=1,gradients=21)
           | weights(prints=9,step=2,gradients=22)
           | cycle(step=1,words=4:backward/local+step,more=1)@t.py:9
           | unsynced@t.py:5  exit=0

Well
----
The last pass is outside:

    rank 0 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | weights(prints=7,step=1,gradients=11)
           | weights(prints=8,step=2,gradients=12)
           | cycle(step=1,words=3:backward/local+backward+step,more=1)@t.py:9
           | unsynced@t.py:5  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | weights(prints=7,step=1,gradients=11)
           | weights(prints=8,step=2,gradients=12)
           | cycle(step=1,words=3:backward/local+backward+step,more=1)@t.py:9
           | unsynced@t.py:5  exit=0

Ranks average their gradients themselves, or their weights now and then:

    rank 0 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | weights(prints=7,step=1,gradients=11)
           | weights(prints=8,step=2,gradients=12)
           | weights(prints=6,step=3,gradients=13)
           | cycle(step=1,words=backward/local+step,more=2)@t.py:9
           | unsynced@t.py:5  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | weights(prints=7,step=1,gradients=21)
           | weights(prints=9,step=2,gradients=22)
           | weights(prints=6,step=3,gradients=23)
           | cycle(step=1,words=backward/local+step,more=2)@t.py:9
           | unsynced@t.py:5  exit=0

Unknown
-------
A rank without a journal may be the one that differs:

    rank 0 | cycle(step=1,words=clear+backward+step)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Leave `no_sync` for the last batch of a window, with its forward pass and its backward:
`with nullcontext() if last else model.no_sync():`. The last window of an epoch ends
with the epoch's last batch. Add up the losses of one forward pass, and call backward
once for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.reasons import capital
from distdoctor.analysis.steps.courses import lines_of, passes_of
from distdoctor.analysis.steps.gradients import places, some
from distdoctor.analysis.steps.lines import assigning
from distdoctor.analysis.steps.reduction import Unreduced, unreduced
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observed.protocol import BACKWARD, SCALED, Cycle, Unsynced
from distdoctor.model.run import Run, named

CODE = "DD505"
SEVERITY = Severity.ERROR
NEEDS = (Cycle,)


_TOGGLES = "tells DDP whether to average"


def examine(run: Run) -> Iterator[Finding]:
    """Replicas that step with gradients of their own."""
    for found in unreduced(run):
        yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: Unreduced) -> Finding:
    one = found.courses[0]
    ranks = found.parting.ranks
    number = len(list(passes_of(found.cycles[0])))
    if found.told:
        story = "the last backward before them ran without averaging, as DDP was told"
    else:
        story = "DDP averages in the first backward behind a forward pass alone"
    return Finding(
        message=f"{capital(named(ranks))} make {found.steps} of {one.steps} steps with "
        f"gradients that are not averaged ({number} backward "
        f"pass{'es' * (number > 1)} to a step): {story}. Their weights differ from "
        f"step {found.parting.step} on ({some(found.parting.names)})",
        exhibits=found.cycles[:2],
        locations=tuple(_lines(run, found)),
        certainty=Certainty.PROVED,
        details={
            "steps": found.steps,
            "of": one.steps,
            "parted": found.parting.step,
            "told": found.told,
        },
    )


def _lines(run: Run, found: Unreduced) -> list[Location]:
    ranks = found.parting.ranks
    told = [event for rank in ranks for event in run.of(Unsynced, rank)]
    acts = [
        act
        for course in found.courses
        for act in lines_of(run, course, BACKWARD, SCALED)
        if "/" in act.word
    ]
    toggled = assigning(run, "require_backward_grad_sync") if found.told else []
    return [
        *(places(told, ranks, "tells DDP not to average") if found.told else []),
        *[Location(one, ranks, Role.CULPRIT, _TOGGLES) for one in toggled],
        *places(acts, ranks, "backward, not averaged"),
        *places(found.cycles, ranks, "steps with gradients of its own"),
    ]
