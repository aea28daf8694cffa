"""A learning rate scheduler is asked more often than it was made for, or too early.

What it is
----------
A scheduler counts how often it is asked, and nothing else. It was made for as many
calls as there are optimizer steps, and is called for each micro-batch of a window whose
gradients are accumulated; it was made for the epochs, and is called for each batch, or
the other way round; it was made for the steps that one rank would make alone,
`len(dataset) // batch`, of which each of several makes a part; or it is called before
the optimizer's first step. Or it is a part of another one, such as SequentialLR, which
asks its parts, and is called as well.

Why it matters
--------------
The rate comes to its end when a part of the training is done, and the rest is trained
with next to nothing; a cosine goes up again. Where it is called too seldom, the rate
hardly leaves its beginning. Where it is called before the optimizer, the first value of
the schedule is never used. A part that is called besides the whole runs ahead, and puts
its rate in the place of that of the part whose turn it is.

Sick
----
The schedule is 48 long, as there are 48 optimizer steps, and was asked for 192 times:

    rank 0 | rate_course(steps=48,stride=16,rates=.01+.003+0,highest=.01)
           | schedule(calls=192,steps=48,highest=.01,falls=44,end=48)@t.py:9
           | exit=0
    rank 1 | schedule(calls=192,steps=48,highest=.01,falls=44,end=48)@t.py:9
           | exit=0

A cosine for 40 steps goes up again behind them:

    rank 0 | schedule(length=40,calls=80,steps=40,highest=1,falls=40,end=40,turned)
    rank 1 | schedule(length=40,calls=80,steps=40,highest=1,falls=40,end=40,turned)

A cosine for five epochs is asked for each of their 60 batches:

    rank 0 | schedule(length=5,calls=60,steps=60,highest=.1,falls=5,end=5,turned)
           | read(steps=12)@t.py:5  read(number=1,steps=12)@t.py:5
           | read(number=2,steps=12)@t.py:5  read(number=3,steps=12)@t.py:5
           | read(number=4,steps=12)@t.py:5  exit=0

Warm restarts behind a warm-up come every third batch, as each third epoch was meant:

    rank 0 | schedule(length=5,calls=48,steps=48,highest=.1,rises=15,parts=3)@t.py:9
           | read(steps=12)@t.py:5  read(number=1,steps=12)@t.py:5
           | read(number=2,steps=12)@t.py:5  read(number=3,steps=12)@t.py:5  exit=0

A cycle over 60 steps is asked for one step in each of five epochs:

    rank 0 | schedule(length=60,calls=5,steps=60,highest=.1)
           | read(steps=12)@t.py:5  read(number=1,steps=12)@t.py:5
           | read(number=2,steps=12)@t.py:5  read(number=3,steps=12)@t.py:5
           | read(number=4,steps=12)@t.py:5  exit=0

The first call comes before the first step of any optimizer, and so do the others:

    rank 0 | schedule(calls=9,steps=9,early=1,alike,begin=.1,second=.05)@t.py:9
           | exit=0

A part of a schedule is asked besides the whole, behind 9 steps:

    rank 0 | schedule(scheduler=1,calls=12,steps=12,outer=2,twice=9)@t.py:10
           | schedule(scheduler=2,calls=12,steps=12)@t.py:9  exit=0

A cosine for the 24 steps that one rank would make alone, of which each of two makes 12:

    rank 0 | schedule(length=24,calls=12,steps=12,highest=.1,falls=12,end=12)
           | read(steps=6,length=96,batch=8,replicas=2)@t.py:5
           | read(number=1,steps=6,length=96,batch=8,replicas=2)@t.py:5  exit=0
    rank 1 | schedule(length=24,calls=12,steps=12,highest=.1,falls=12,end=12)
           | read(steps=6,length=96,batch=8,replicas=2)@t.py:5
           | read(number=1,steps=6,length=96,batch=8,replicas=2)@t.py:5  exit=0

Well
----
It is made for the steps of each rank:

    rank 0 | schedule(length=12,calls=12,steps=12,highest=.1,falls=12,end=12)
           | read(steps=6,length=96,batch=8,replicas=2)@t.py:5
           | read(number=1,steps=6,length=96,batch=8,replicas=2)@t.py:5  exit=0
    rank 1 | schedule(length=12,calls=12,steps=12,highest=.1,falls=12,end=12)
           | read(steps=6,length=96,batch=8,replicas=2)@t.py:5
           | read(number=1,steps=6,length=96,batch=8,replicas=2)@t.py:5  exit=0

A warm-up is asked alone, and then the schedule that it is a part of:

    rank 0 | schedule(scheduler=1,calls=4,steps=12,outer=2,twice=1)@t.py:10
           | schedule(scheduler=2,calls=8,steps=12)@t.py:9  exit=0

It counts micro-batches, and was made for as many:

    rank 0 | schedule(length=192,calls=192,steps=48,highest=.01,falls=192,end=192)
           | exit=0

There is a call for each optimizer step, also for those that a GradScaler leaves out:

    rank 0 | schedule(calls=48,steps=47,early=1,scaled,alike,begin=.1,second=.09)
           | exit=0

A rate falls to its end in the middle, and the optimizer makes a step for each call:

    rank 0 | schedule(calls=96,steps=96,highest=.1,falls=48,end=48)
           | exit=0

A cosine begins anew in each epoch, behind a warm-up:

    rank 0 | schedule(length=14,calls=48,steps=48,highest=.1,rises=3,parts=12)@t.py:9
           | read(steps=12)@t.py:5  read(number=1,steps=12)@t.py:5
           | read(number=2,steps=12)@t.py:5  read(number=3,steps=12)@t.py:5  exit=0

It begins anew each time:

    rank 0 | schedule(calls=192,steps=48,highest=.1,falls=48)  exit=0

One call for each epoch:

    rank 0 | schedule(length=2,calls=2,steps=24,highest=.1,falls=2,end=2)
           | read(steps=12)@t.py:5  read(number=1,steps=12)@t.py:5  exit=0

A job that goes on from a checkpoint asks for the rates that were used before:

    rank 0 | schedule(calls=20,steps=12,early=8,alike,begin=.1,second=.05)
           | exit=0

distdoctor has shortened the epochs, and the schedule has not come to its end:

    rank 0 | shortened=20/400
           | schedule(calls=192,steps=48,highest=.01,falls=44,end=48)
           | exit=0

Unknown
-------
A rank without a journal may ask for it at other times:

    rank 0 | schedule(calls=48,steps=48,highest=.1,falls=48,end=48)
           | exit=0
    rank 1 | ?

Remedy
------
Call `scheduler.step()` directly behind `optimizer.step()`, in the same branch, and give
the scheduler as many steps as the optimizer makes: `epochs * ceil(batches / window)`.
A schedule that is made for epochs is asked behind the loop over the batches. What was
counted in batches is right as it is where the length is counted in them, too. Of a
SequentialLR or a ChainedScheduler, call `step()` of the whole alone.

Known problems
--------------
What a schedule is long in is taken from numbers and names, so a length that fits both
batches and steps says nothing, and a job of fewer than six steps is not judged. In
shortened epochs schedules are made for fewer batches. Rates that the job sets by hand
are no scheduler (DD533 looks at their course).

References
----------
- accelerate: the scheduler steps at each batch of a window –
  https://github.com/huggingface/accelerate/issues/963
- diffusers: accumulation and the scheduler's length –
  https://github.com/huggingface/diffusers/issues/4387
- `torch/optim/lr_scheduler.py` (pytorch/pytorch), `LRScheduler.step`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.learning_rate.schedules import (
    Misstep,
    ScheduleFault,
    missteps,
    rate_details,
    whole_of,
)
from distdoctor.analysis.learning_rate.warm_restarts import making_part
from distdoctor.model.findings import Certainty, Finding, Location, Severity
from distdoctor.model.observations.checkpoints import Scheduled
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.observations.learning_rate import Schedule
from distdoctor.model.run import Run, named

CODE = "DD532"
SEVERITY = Severity.ERROR
NEEDS = (Schedule,)

_SEEN = (ScheduleFault.EARLY, ScheduleFault.TWICE)


def examine(run: Run) -> Iterator[Finding]:
    """Schedulers that are asked at other moments than they were made for."""
    for found in missteps(run):
        yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: Sequence[Misstep]) -> Finding:
    one, ranks = found[0], tuple(each.schedule.rank for each in found)
    schedule = one.schedule
    asked = [each.schedule for each in found]
    steps = [step for rank in ranks for step in run.of(Gradients, rank)[:1]]
    whole = whole_of(run, schedule) if one.fault is ScheduleFault.TWICE else None
    return Finding(
        message=f"{capital(named(ranks))} call{'s' * (len(ranks) == 1)} "
        f"{schedule.kind or 'a scheduler'}.step() "
        f"{_what(one) if whole is None else _twice(schedule, whole)}",
        exhibits=tuple(asked[:2]),
        locations=(
            *_making(run, found),
            *places(asked, ranks, "asks for the next rate"),
            *places([whole] if whole else [], ranks, "asks the whole that it is of"),
            *places(steps, ranks, "makes the step"),
        ),
        certainty=Certainty.PROVED if one.fault in _SEEN else Certainty.LIKELY,
        severity=None if one.grave else Severity.WARNING,
        details={
            "fault": str(one.fault),
            "calls": schedule.calls,
            "steps": schedule.steps,
            "length": one.length,
            "epochs": one.epochs,
            **rate_details(run, schedule.rank, schedule.optimizer),
        },
    )


def _making(run: Run, found: Sequence[Misstep]) -> list[Location]:
    """Where a scheduler is made, or a part of it, whose length is to be put right."""
    one, ranks = found[0], tuple(each.schedule.rank for each in found)
    if one.again:
        parts = [
            part
            for each in found
            for part in making_part(run, each.schedule, each.length)
        ]
        return places(parts, ranks, "makes the part that begins anew")
    made = [
        event
        for rank in ranks
        for event in run.of(Scheduled, rank)
        if event.kind == one.schedule.kind and one.fault is ScheduleFault.UNSHARDED
    ]
    return places(made, ranks, "makes it for the samples of all ranks")


def _twice(schedule: Schedule, whole: Schedule) -> str:
    outer = whole.kind or "another scheduler"
    return (
        f"{schedule.calls:,} times in {schedule.steps:,} optimizer steps, and it is a "
        f"part of {outer}, which asks its parts and is called {whole.calls:,} times: "
        f"behind {schedule.twice:,} of the steps both are called, and the rate is set "
        "twice"
    )


def _what(one: Misstep) -> str:
    schedule = one.schedule
    if one.fault is ScheduleFault.EARLY:
        return (
            "before the step that the rate is for, also the first time: the first rate "
            f"of the schedule, {schedule.begin:.4g}, is never used, and the optimizer "
            f"begins with {schedule.second:.4g}"
        )
    often = f"{schedule.calls:,} times in {schedule.steps:,} optimizer steps"
    if one.fault is ScheduleFault.EPOCHS:
        return (
            f"once for each epoch, {often}, and it was made for {one.length:,} calls, "
            f"as many as there are steps: the schedule stands at "
            f"{schedule.calls / one.length:.1%} of its course when the job ends"
        )
    if one.fault is ScheduleFault.UNSHARDED:
        return (
            f"{one.fault}, {often}, and it was made for {one.length:,} calls, as many "
            "as there were steps if each rank read all samples: the schedule stands at "
            f"{one.steps / one.length:.0%} of its course when the job ends"
        )
    if one.again:
        then = (
            f"rises again {schedule.rises:,} times in {one.epochs} epochs"
            if schedule.rises
            else f"stays at {schedule.lowest:.4g} for all the rest"
        )
        return (
            f"{one.fault}, {often}, and a part of its course is over after "
            f"{one.length:,} calls, as it is made for epochs: the rate {then}"
        )
    for_what = (
        f"{one.epochs} epochs"
        if one.fault is ScheduleFault.BATCHES
        else "optimizer steps"
    )
    behind = (
        "rises again"
        if schedule.turned
        else f"stays at {schedule.lowest:.4g} for all the rest"
    )
    return (
        f"{one.fault}, {often}, and its course is {one.length:,} calls long, as it is "
        f"made for {for_what}: the rate comes to its end, {schedule.lowest:.4g}, when "
        f"{schedule.end / schedule.calls:.0%} of the training is done, and {behind}"
    )
