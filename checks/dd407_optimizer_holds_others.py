"""The optimizer misses parameters that are trained, or holds some that are not.

What it is
----------
An optimizer changes the tensors that it was given, whatever becomes of the model. A
layer that was replaced or added later, a model that was built anew, or layers kept in a
plain list get gradients, and no optimizer steps with them.

Why it matters
--------------
Nothing is said: those parameters keep their first values, and the rest of the model
learns around them.

Sick
----
The head was replaced when the optimizer was made already:

    rank 0 | holds(names=body+?,sizes=4+4)@t.py:5
           | gradients(step=1,prints=1+0,weights=7+7,passes=1)
           | gradients(step=2,prints=2+0,weights=8+7,passes=1)
           | forgotten(names=head,step=8,late)@t.py:6  exit=0

The optimizer was made of a model that is not the one that is trained:

    rank 0 | holds(names=a,sizes=4)@t.py:5
           | gradients(step=1,weights=7,prints=0,passes=1)
           | gradients(step=2,weights=7,prints=0,passes=1)
           | forgotten(names=b,step=8)  exit=0

Each rank has two stages of a pipeline, and its optimizer holds those of the first:

    rank 0 | holds(names=stage0.w,sizes=4)@t.py:5  forgotten(names=stage2.w,step=4)
    rank 1 | holds(names=stage1.w,sizes=4)@t.py:5  forgotten(names=stage3.w,step=4)

Its groups are generators that a log line has gone through, and it holds nothing:

    rank 0 | holds(kind=AdamW)@t.py:5  gradients(step=1,passes=1)
           | gradients(step=2,passes=1)  forgotten(names=b,step=4)  exit=0

Well
----
Another optimizer holds them, and was made later:

    rank 0 | holds(names=a,sizes=4)  forgotten(names=b,step=8)
           | holds(optimizer=1,names=b,sizes=4)  exit=0

The script changes them by itself:

    rank 0 | holds(names=a,sizes=4)  forgotten(names=b,step=8,changed)  exit=0

Unknown
-------
A rank without a journal may hold them:

    rank 0 | holds(names=a,sizes=4)  exit=0
    rank 1 | ?

Remedy
------
Make the optimizer last, of `model.parameters()` of the model that is trained, or give
it what came later (`add_param_group`); keep layers in `nn.ModuleList`. Freeze what is
not to be trained (`requires_grad_(False)`): its gradients are computed in vain.

Known problems
--------------
Parameters that get gradients are looked for at the second and the fourth step; what
comes later is not. Where several models have equal names of parameters, one that no
optimizer holds may be taken for the other, and goes unseen. Parameters that are left
out on purpose, and not frozen, are a warning.

References
----------
- `torch/optim/optimizer.py` (pytorch/pytorch), `Optimizer.add_param_group`
- mace: parameters that no group claims are silently untrained –
  https://github.com/ACEsuit/mace/issues/525
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import pointers
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places, some
from distdoctor.analysis.leading_lines import with_callers
from distdoctor.analysis.optimizer_step.held_parameters import (
    Missed,
    chosen_at,
    held,
    missed,
    without_stages,
)
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.run import Run, named

CODE = "DD407"
SEVERITY = Severity.ERROR
NEEDS = (Holds,)

_LATE = "comes into the model late"
_CHOOSES = "chooses what it holds"


def examine(run: Run) -> Iterator[Finding]:
    """Parameters with gradients that no optimizer holds."""
    alike: dict[tuple[tuple[str, ...], bool], list[Missed]] = {}
    for rank in run.seen:
        for one in missed(run, rank):
            key = without_stages(one.names), one.idle is not None
            alike.setdefault(key, []).append(one)
    for found in alike.values():
        yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: list[Missed]) -> Finding:
    one = found[0]
    ranks = tuple(sorted({each.event.rank for each in found}))
    everyone = set(ranks) == set(run.seen)
    names = one.names
    if any(each.names != names for each in found):
        names = without_stages(names)
    message = (
        f"{len(names)} parameters ({some(names)}) get gradients on "
        f"{named(ranks)}, and no optimizer holds them at step {one.event.step}"
    )
    every = held(run, one.event.rank)
    empty = [each.holds for each in every if each.seen and not each.holds.names]
    if one.idle is not None:
        what = "that are in no model" if "?" in one.idle_names else "without a gradient"
        message += (
            f"; {one.idle.holds.kind or 'one'} holds {len(one.idle_names)} parameters "
            f"{what} instead"
        )
    elif empty:
        message += f"; {empty[0].kind} makes steps, and holds nothing at all"
    elif one.event.late:
        message += "; they came into the model when the optimizer was made already"
    else:
        message += ", unless they are to stay as they are"
    proved = one.idle is not None or one.event.late
    holds = [each.holds for each in every]
    chosen = dict.fromkeys(place for each in holds for place in chosen_at(run, each))
    made: list[Event] = [*holds]
    idle: list[Event] = [] if one.idle is None else [one.idle.holds]
    return Finding(
        message=message,
        exhibits=(one.event, *idle),
        culprits=() if everyone else ranks,
        locations=with_callers(
            run,
            [
                *places([one.event for one in found], ranks, _LATE),
                *(() if proved else pointers(chosen, ranks, _CHOOSES)),
                *places(idle or made, ranks, "makes the optimizer"),
            ],
        ),
        certainty=Certainty.PROVED if proved else Certainty.LIKELY,
        severity=None if proved or empty else Severity.WARNING,
        details={"parameters": list(names)},
    )
