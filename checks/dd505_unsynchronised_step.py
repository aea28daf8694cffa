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

Rank 1 keeps the last pass of a window inside, and rank 0 does not:

    rank 0 | wrap=ddp:w
           | cycle(step=1,words=clear+2:backward/local+backward+step,more=1)@t.py:9
    rank 1 | wrap=ddp:w  unsynced@t.py:5
           | cycle(step=1,words=clear+2:backward/local+backward+step)@t.py:9
           | cycle(step=2,words=clear+3:backward/local+step)@t.py:9  exit=0

The last window of an epoch is shorter, and ends inside; later windows are averaged:

    rank 0 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | gradients(step=1,prints=11)@t.py:9  weights(prints=7,step=1,gradients=11)
           | weights(prints=8,step=2,gradients=12)
           | gradients(step=3,prints=13)@t.py:9  weights(prints=5,step=3,gradients=13)
           | cycle(step=1,words=2:backward/local+backward+step)@t.py:9
           | cycle(step=2,words=clear+2:backward/local+step)@t.py:9
           | cycle(step=3,words=clear+2:backward/local+backward+step)@t.py:9
           | trail(before=7+8+5,gradients=11+12+13,after=8+5+4)
           | unsynced@t.py:5  exit=0
    rank 1 | wrap=ddp:w  trained(names=w,numels=4,wrapped)  optimised
           | gradients(step=1,prints=11)@t.py:9  weights(prints=7,step=1,gradients=11)
           | weights(prints=8,step=2,gradients=22)
           | gradients(step=3,prints=13)@t.py:9  weights(prints=6,step=3,gradients=13)
           | cycle(step=1,words=2:backward/local+backward+step)@t.py:9
           | cycle(step=2,words=clear+2:backward/local+step)@t.py:9
           | cycle(step=3,words=clear+2:backward/local+backward+step)@t.py:9
           | trail(before=7+8+6,gradients=11+22+13,after=8+6+3)
           | unsynced@t.py:5  exit=0

Well
----
Windows are not as long on all ranks, and end with an average on each:

    rank 0 | wrap=ddp:w  unsynced@t.py:5
           | cycle(step=1,words=clear+2:backward/local+backward+step)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  unsynced@t.py:5
           | cycle(step=1,words=clear+backward+step)@t.py:9  exit=0

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

Known problems
--------------
Steps are told where weights were seen to part afterwards; a job in which all ranks have
the same batch stays alike and is well here. Averages that a comm hook or the script
makes later in another way are known only where they send gradients.

References
----------
- `torch/nn/parallel/distributed.py` (pytorch/pytorch),
  `DistributedDataParallel.no_sync`
- DistributedDataParallel, in torch's documentation –
  https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.accumulation.no_sync_lines import deciding
from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.ddp_averaging import UnaveragedGradients, unreduced
from distdoctor.analysis.gradients.kept_local import KeptLocal, kept_by_some
from distdoctor.analysis.gradients.used_gradients import places, some
from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    lines_of,
    passes_of,
)
from distdoctor.analysis.optimizer_step.step_lines import assigning
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    SCALED,
    Cycle,
    Unsynced,
)
from distdoctor.model.run import Run, named

CODE = "DD505"
SEVERITY = Severity.ERROR
NEEDS = (Cycle,)


_DECIDES = "decides which pass is to be averaged"

_TOGGLES = "tells DDP whether to average"


def examine(run: Run) -> Iterator[Finding]:
    """Replicas that step with gradients of their own."""
    unaveraged = list(unreduced(run))
    for found in unaveraged:
        yield _finding(run, found)
    if not unaveraged:
        for kept in kept_by_some(run):
            yield _of_some(run, kept)
    require_whole(run)


def _finding(run: Run, found: UnaveragedGradients) -> Finding:
    one = found.courses[0]
    ranks = found.parting.ranks
    number = len(list(passes_of(found.cycles[0])))
    if found.sync_disabled:
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
            "told": found.sync_disabled,
        },
    )


def _of_some(run: Run, kept: KeptLocal) -> Finding:
    steps, of = kept.steps
    have, their = ("has", "its") if len(kept.ranks) == 1 else ("have", "their")
    return Finding(
        message=f"{capital(named(kept.ranks))} {have} kept {their} gradients to step "
        f"{kept.step}, as DDP was told, which {named(kept.others)} averaged"
        f" ({steps:,} of {of:,} steps are so): from there on the averages that "
        "meet are of different steps, and in the end one is missing",
        exhibits=(*list(kept.cycles.values())[:1], kept.averaged),
        culprits=kept.ranks,
        locations=tuple(
            _lines_of(run, kept.ranks, kept.courses, [*kept.cycles.values()])
        ),
        certainty=Certainty.PROVED,
        details={"steps": steps, "of": of, "parted": kept.step, "told": True},
    )


def _lines(run: Run, found: UnaveragedGradients) -> list[Location]:
    ranks = found.parting.ranks
    return _lines_of(
        run, ranks, found.courses, found.cycles, by_request=found.sync_disabled
    )


def _lines_of(
    run: Run,
    ranks: Sequence[int],
    courses: Sequence[OptimizerHistory],
    cycles: Sequence[Cycle],
    by_request: bool = True,
) -> list[Location]:
    ranks = tuple(ranks)
    unsynced = [event for rank in ranks for event in run.of(Unsynced, rank)]
    acts = [
        act
        for course in courses
        for act in lines_of(run, course, BACKWARD, SCALED)
        if "/" in act.word
    ]
    toggled = assigning(run, "require_backward_grad_sync") if by_request else []
    # The branch that took a pass for one that is not the last.
    decides = dict.fromkeys(
        line
        for place in dict.fromkeys(one.place for one in unsynced if by_request)
        if place is not None
        for line in deciding(run, place)
        if (line.file, line.line) != (place.file, place.line)
    )
    return [
        *(places(unsynced, ranks, "tells DDP not to average") if by_request else []),
        *[Location(one, ranks, Role.CULPRIT, _DECIDES) for one in decides],
        *[Location(one, ranks, Role.CULPRIT, _TOGGLES) for one in toggled],
        *places(acts, ranks, "backward, not averaged"),
        *places(cycles, ranks, "steps with gradients of its own"),
    ]
