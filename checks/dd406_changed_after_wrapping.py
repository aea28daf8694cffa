"""Parameters came into a model when it was wrapped already, and are not averaged.

What it is
----------
DistributedDataParallel takes note of the trainable parameters once, when it is made.
What is added, replaced or unfrozen (`requires_grad_(True)`) later, it does not know:
the gradients of those parameters are never averaged.

Why it matters
--------------
The rest of the model trains as it should, so the loss looks right, and those layers
drift apart silently, on each rank towards its own part of the data.

Sick
----
A head was added when the body was wrapped already:

    rank 0 | wrap=ddp:b  holds(names=b+h,sizes=4+4,averaged=0,late=1)@t.py:5
           | gradients(step=1,prints=11+12,weights=7+7,passes=1,reduced=4)@t.py:9
           | gradients(step=2,prints=13+14,weights=8+8,passes=1,reduced=4)@t.py:9
           | exit=0
    rank 1 | wrap=ddp:b  holds(names=b+h,sizes=4+4,averaged=0,late=1)@t.py:5
           | gradients(step=1,prints=11+22,weights=7+7,passes=1,reduced=4)@t.py:9
           | gradients(step=2,prints=13+24,weights=8+9,passes=1,reduced=4)@t.py:9
           | exit=0

Well
----
A layer is frozen, and stays so:

    rank 0 | wrap=ddp:b  holds(names=b+h,sizes=4+4,averaged=0,late=1)
           | gradients(step=1,prints=11+0,weights=7+7,passes=1,reduced=4)
           | gradients(step=2,prints=13+0,weights=8+7,passes=1,reduced=4)  exit=0
    rank 1 | wrap=ddp:b  holds(names=b+h,sizes=4+4,averaged=0,late=1)
           | gradients(step=1,prints=11+0,weights=7+7,passes=1,reduced=4)
           | gradients(step=2,prints=13+0,weights=8+7,passes=1,reduced=4)  exit=0

The script averages the gradients of what it has added by itself:

    rank 0 | wrap=ddp:b  holds(names=b+h,sizes=4+4,averaged=0,late=1)
           | gradients(step=1,prints=11+12,weights=7+7,passes=1,reduced=4)
           | gradients(step=2,prints=13+14,weights=8+8,passes=1,reduced=4)  exit=0
    rank 1 | wrap=ddp:b  holds(names=b+h,sizes=4+4,averaged=0,late=1)
           | gradients(step=1,prints=11+12,weights=7+7,passes=1,reduced=4)
           | gradients(step=2,prints=13+14,weights=8+8,passes=1,reduced=4)  exit=0

Unknown
-------
A rank without a journal may be the one that differs:

    rank 0 | wrap=ddp:b  holds(names=b,sizes=4)  gradients(step=1,prints=11,weights=7)
           | exit=0
    rank 1 | ?

Remedy
------
Build the whole model first, load it, freeze and unfreeze it, and wrap it last. To
unfreeze layers later, wrap the model anew at that moment (and make the optimizer anew
or `add_param_group`), or wrap it unfrozen and give those layers a learning rate of 0.

Known problems
--------------
Told are parameters whose gradients were seen to differ between ranks at several of the
steps that are looked at; one that is unfrozen near the end of a run, or whose gradients
are equal by chance, is not. A second wrapper around the same model counts as the one
that averages.

References
----------
- DistributedDataParallel, in torch's documentation –
  https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`,
  warning against changing parameters after wrapping
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import (
    UnequalGradients,
    apart,
    places,
    some,
    wrap_lines,
)
from distdoctor.analysis.optimizer_step.step_lines import unfreezing
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Added, Gradients
from distdoctor.model.run import Run, named

CODE = "DD406"
SEVERITY = Severity.ERROR
NEEDS = (Gradients,)


def examine(run: Run) -> Iterator[Finding]:
    """Parameters of wrapped models that their wrapper does not know."""
    for one in apart(run):
        if one.late:
            yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: UnequalGradients) -> Finding:
    ranks, last = one.chapter.ranks, one.looks[-1]
    names = [one.chapter.names[n] for n in one.late]
    added = [event for rank in ranks for event in run.of(Added, rank)]
    wraps = wrap_lines(run, ranks)
    changes = places(added, ranks, "changes a model that is wrapped")
    if not added:
        after = [(one.place.file, one.place.line) for one in wraps]
        changes = [
            Location(place, ranks, Role.CULPRIT, "asks for gradients")
            for place in sorted(
                unfreezing(run),
                key=lambda place: (
                    not any((place.file, place.line) > one for one in after)
                ),
            )
        ]
    return Finding(
        message=(
            f"{len(names)} parameters ({some(names)}) were added, replaced or unfrozen "
            f"after their model was wrapped: {named(ranks)} step with different "
            f"gradients of them at all steps that were looked at (up to step "
            f"{last.step}), and their weights drift apart"
        ),
        exhibits=(*one.chapter.holds[:2], *last.seen[:2]),
        locations=(
            *changes,
            *wraps,
            *places(one.chapter.holds, ranks, "makes the optimizer"),
            *places(last.seen, ranks, "steps with its own gradients"),
        ),
        details={"parameters": names, "steps": [look.step for look in one.looks]},
    )
