"""A GradScaler makes steps, and its `update` does not follow.

What it is
----------
After the steps of a batch, `GradScaler.update` makes up its mind: the scale is halved
if something overflowed, and doubled after many steps without. It also makes the scaler
ready for the next step of each optimizer. Here it does not come before backward runs
again, or it comes too early.

Why it matters
--------------
The scale that caused an overflow stays, and causes the next. torch raises as soon as
the same optimizer is to step again, or its gradients are to be divided again: "step()
has already been called since the last update()". If that is caught, or only some ranks
come there, training stands still or hangs. An update between backward and the step
divides gradients by another scale than they were multiplied with.

Sick
----
The second step raises, on all ranks:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=scaled)@t.py:7
           | refused(method=step,why=stepped,words=clear+scaled)@t.py:9
           | cycle(step=1,words=clear+scaled+scaled_step)@t.py:9
           | fail=RuntimeError@t.py:9  exit=1
    rank 1 | scaling(scale=1024.0)@t.py:7  act(word=scaled)@t.py:7
           | refused(method=step,why=stepped,words=clear+scaled)@t.py:9
           | cycle(step=1,words=clear+scaled+scaled_step)@t.py:9
           | fail=RuntimeError@t.py:9  exit=1

A batch is left out by hand behind `unscale_`, and `update` with it:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | refused(method=unscale_,why=unscaled,words=scaled+unscale+drop+scaled+unscale)@t.py:9
           | fail=RuntimeError@t.py:9  exit=1

Backward always runs between a step and its update:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=clear+scaled+scaled_step)@t.py:9
           | cycle(step=2,words=clear+scaled+update+scaled_step,more=8)@t.py:9  exit=0

Well
----
An update follows each step:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=clear+scaled+scaled_step)@t.py:9
           | cycle(step=2,words=update+clear+scaled+scaled_step,more=8)@t.py:9  exit=0

The last step of a job needs none:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=clear+scaled+scaled_step)@t.py:9  exit=0

Two optimizers step, then comes one update:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=clear+scaled+scaled_step)@t.py:9
           | cycle(optimizer=1,step=1,words=clear+scaled+scaled_step)@t.py:11
           | cycle(step=2,words=spare+update+clear+scaled+scaled_step,more=8)@t.py:9
           | cycle(optimizer=1,step=2,words=update+clear+scaled+scaled_step,more=8)@t.py:11
           | exit=0

Unknown
-------
A rank without a journal may leave it out:

    rank 0 | scaling(scale=1024.0)  cycle(step=1,words=scaled+scaled_step)  exit=0
    rank 1 | ?

Remedy
------
Call `scaler.update()` once for each batch that steps were made with, behind the last
`scaler.step(...)`, on all ranks; also for a batch that is left out behind `unscale_`.

Known problems
--------------
Followed is torch's `GradScaler` and what derives from it. That an update comes late is
told as likely, and does no harm as long as the scale stays; who makes steps with two
optimizers, one of them rarely, may mean it.

References
----------
- torch's examples of mixed precision –
  https://docs.pytorch.org/docs/stable/notes/amp_examples.html
- `torch/amp/grad_scaler.py` (pytorch/pytorch), `GradScaler.update`
"""  # noqa: E501 - what happened between two steps is one word of a drawing

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.amp.scaler_faults import (
    EARLY_UPDATE,
    NO_UPDATE,
    faulty,
    reason,
    refusals,
)
from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.gradient_states import ProtocolFault
from distdoctor.analysis.optimizer_step.step_cycles import OptimizerHistory, lines_of
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.amp import Refused, Scaling
from distdoctor.model.observations.optimizer_step import (
    SCALED_STEP,
    SKIP,
    UNSCALE,
    UPDATE,
    Cycle,
    unpacked,
)
from distdoctor.model.run import Run, named

CODE = "DD512"
SEVERITY = Severity.ERROR
NEEDS = (Scaling,)


def examine(run: Run) -> Iterator[Finding]:
    """Steps of a GradScaler without an update behind them."""
    refused = refusals(run, NO_UPDATE, EARLY_UPDATE)
    for several in refused[:1]:
        yield _refused(run, several)
    for found in faulty(run, ProtocolFault.NO_UPDATE).get(ProtocolFault.NO_UPDATE, ()):
        if not refused:
            yield _late(run, found)
    require_whole(run)


def _refused(run: Run, several: Sequence[Refused]) -> Finding:
    one, ranks = several[0], tuple(each.rank for each in several)
    early = reason(one) == EARLY_UPDATE
    who = named(ranks)
    if early:
        story = (
            f"{who} called GradScaler.update before any step was made with the scaled "
            "gradients, or any inf was looked for, and it raised"
        )
    else:
        what = "scaler.step" if one.method == "step" else "scaler.unscale_"
        before = "a step was made" if _stepped(one) else "gradients were unscaled"
        story = (
            f"{who} called {what} for an optimizer once more, and it raised: since "
            f"{before} for the batch before, scaler.update was not called"
        )
    alone = len(ranks) < len(run.seen)
    courses = [OptimizerHistory(each.rank, each.optimizer, []) for each in several[:1]]
    steps = [
        act
        for course in courses
        for act in lines_of(run, course, SCALED_STEP, UNSCALE, UPDATE)
    ]
    cycles = [
        cycle
        for cycle in run.of(Cycle, one.rank)
        if cycle.optimizer == one.optimizer
        and not {SCALED_STEP, SKIP}.isdisjoint(unpacked(cycle.words))
    ]
    beside: list[Event] = [*cycles[:1], *steps]
    stepped = places(beside, ranks, "update belongs behind this")
    known = {location.place for location in stepped}
    raised = places(several, ranks, "raised here")
    return Finding(
        message=capital(story),
        exhibits=(one, *cycles[:1]),
        culprits=ranks if alone else (),
        locations=(
            *stepped,
            *[location for location in raised if location.place not in known],
            *backward_lines(run, ranks),
        ),
        certainty=Certainty.PROVED,
        details={"optimizer": one.optimizer, "method": one.method, "why": one.why},
    )


def _stepped(one: Refused) -> bool:
    return one.why == "stepped"


def _late(run: Run, found: Sequence[OptimizerHistory]) -> Finding:
    course, ranks = found[0], tuple(each.rank for each in found)
    cycle = course.first[ProtocolFault.NO_UPDATE]
    count = course.faults[ProtocolFault.NO_UPDATE]
    lines: list[Event] = [*lines_of(run, course, UPDATE), cycle]
    return Finding(
        message=f"{capital(named(ranks))} run backward again before scaler.update, in "
        f"{count} of {course.steps} steps: gradients are divided by another scale than "
        "they were multiplied with whenever it changes",
        exhibits=(cycle,),
        locations=(
            *places(lines, ranks, "update belongs behind the step"),
            *backward_lines(run, ranks),
        ),
        certainty=Certainty.LIKELY,
        details={"optimizer": course.optimizer, "cycles": count, "of": course.steps},
    )
