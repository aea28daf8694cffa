"""Weights never change, though backward runs.

What it is
----------
Backward gives gradients and nothing comes of them: the optimizer never steps, on all
ranks or on some; the gradients are cleared before it does; its learning rate is 0; a
GradScaler skips every step; the gradients are exactly zero (a tensor was detached); or
the steps are too small for weights in half precision.

Why it matters
--------------
The job runs at full price, and its model is the one that it began with.

Sick
----
The optimizer never steps:

    rank 0 | holds(names=w,sizes=4)@t.py:5  backward@t.py:8
           | unstepped(passes=4,optimizers=1,weights=7)@t.py:8
           | unstepped(passes=8,optimizers=1,weights=7)@t.py:8  exit=0

One replica steps, and the other one never does:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4)@t.py:5  backward@t.py:8
           | gradients(step=1,prints=1,norms=1,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8,passes=1)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4)@t.py:5  backward@t.py:8
           | unstepped(passes=4,optimizers=1,weights=7)@t.py:8
           | unstepped(passes=8,optimizers=1,weights=7)@t.py:8  exit=0

The other replica has made its steps by the fourth backward pass:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4)@t.py:5  backward@t.py:8
           | gradients(step=1,prints=1,norms=1,weights=7,passes=1)@t.py:9
           | gradients(step=4,prints=2,norms=1,weights=8,passes=1)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4)@t.py:5  backward@t.py:8
           | unstepped(passes=4,optimizers=1,weights=7)@t.py:8  exit=0

One of two models, which backward trains on both ranks, is stepped on one of them:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9
           | holds(optimizer=1,names=v,sizes=4,averaged=0)@t.py:15
           | gradients(optimizer=1,step=1,prints=3,norms=1,weights=5)@t.py:19
           | gradients(optimizer=1,step=2,prints=4,norms=1,weights=6)@t.py:19  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9  exit=0

Weights that are sent when the model begins do not make up for that:

    rank 0 | wrap=ddp:w  broadcast(4)@t.py:3  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9
           | holds(optimizer=1,names=v,sizes=4,averaged=0)@t.py:15
           | gradients(optimizer=1,step=1,prints=3,norms=1,weights=5)@t.py:19
           | gradients(optimizer=1,step=2,prints=4,norms=1,weights=6)@t.py:19  exit=0
    rank 1 | wrap=ddp:w  broadcast(4)@t.py:3  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9  exit=0

It steps, with gradients that are zero:

    rank 0 | holds(names=w,sizes=4)@t.py:5
           | gradients(step=1,prints=1,norms=0,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=2,prints=1,norms=0,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=3,prints=1,norms=0,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=8,prints=1,norms=0,weights=7,passes=1,rate=.1)@t.py:9
           | exit=0

They are cleared between backward and the step:

    rank 0 | holds(names=w,sizes=4)@t.py:5  act(word=drop)@t.py:8
           | cycle(step=1,words=backward+drop+step,more=7)@t.py:9
           | gradients(step=1,prints=0,norms=0,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=8,prints=0,norms=0,weights=7,passes=1,rate=.1)@t.py:9
           | exit=0

A GradScaler finds nothing to look for Inf in, and raises:

    rank 0 | holds(names=w,sizes=4)@t.py:5  act(word=drop)@t.py:8
           | refused(method=step,why=empty,words=2:scaled.drop+unscale)@t.py:9  exit=1

Well
----
It raises because backward gave this optimizer nothing at all, which is another fault:

    rank 0 | holds(names=w,sizes=4)@t.py:5
           | refused(method=step,why=empty,words=unscale)@t.py:9  exit=1

What backward gives is kept elsewhere, and put there again before the step:

    rank 0 | holds(names=w,sizes=4)@t.py:5  act(word=drop)@t.py:8
           | cycle(step=1,words=clear+2:backward.drop+changed+step,more=7)@t.py:9
           | gradients(step=1,prints=1,norms=1,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=8,prints=2,norms=1,weights=8,passes=1,rate=.1)@t.py:9
           | exit=0

Gradients that are not finite are cleared, and a step is made with nothing, now and
then:

    rank 0 | holds(names=w,sizes=4)@t.py:5  act(word=drop)@t.py:8
           | cycle(step=1,words=clear+backward+step,more=7)@t.py:9
           | cycle(step=9,words=clear+backward+drop+step,more=1)@t.py:9
           | cycle(step=11,words=clear+backward+step,more=7)@t.py:9
           | gradients(step=1,prints=1,norms=1,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=8,prints=2,norms=1,weights=8,passes=1,rate=.1)@t.py:9
           | exit=0

A warm-up begins with a learning rate of 0:

    rank 0 | holds(names=w,sizes=4)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=7,passes=1,rate=.1)@t.py:9
           | gradients(step=3,prints=3,norms=1,weights=8,passes=1,rate=.2)@t.py:9
           | gradients(step=8,prints=4,norms=1,weights=9,passes=1,rate=.3)@t.py:9
           | exit=0

The script changes the weights by itself:

    rank 0 | holds(names=w,sizes=4)@t.py:5
           | unstepped(passes=4,optimizers=1,weights=7)@t.py:8
           | unstepped(passes=8,optimizers=1,weights=8)@t.py:8  exit=0

One rank steps, and sends its weights to the other:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8,passes=1)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4)@t.py:5
           | unstepped(passes=4,optimizers=1,weights=7)@t.py:8
           | unstepped(passes=8,optimizers=1,weights=8)@t.py:8  exit=0

Each rank has an optimizer of its own for its part, beside the common one:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9
           | holds(optimizer=1,names=v,sizes=4)@t.py:15
           | gradients(optimizer=1,step=1,prints=3,norms=1,weights=5)@t.py:19
           | gradients(optimizer=1,step=2,prints=4,norms=1,weights=6)@t.py:19  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9  exit=0

A small model's optimizer state lies on one rank, which sends all what it made of it:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9
           | holds(optimizer=1,names=v,sizes=4,averaged=0)@t.py:15
           | gradients(optimizer=1,step=1,prints=3,norms=1,weights=5)@t.py:19
           | gradients(optimizer=1,step=2,prints=4,norms=1,weights=6)@t.py:19
           | broadcast(4)@t.py:19  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=1,norms=1,weights=7)@t.py:9
           | gradients(step=2,prints=2,norms=1,weights=8)@t.py:9
           | broadcast(4)@t.py:19  exit=0

Unknown
-------
A rank without a journal may train:

    rank 0 | holds(names=w,sizes=4)  exit=0
    rank 1 | ?

Remedy
------
Call `optimizer.step()` (or `scaler.step(optimizer)` and `scaler.update()`) after
backward, and `optimizer.zero_grad()` behind it. Give the optimizer the parameters of
the model that is trained and a learning rate above 0, and detach nothing between these
parameters and the loss.

Known problems
--------------
Of a job that accumulates over more than eight backward passes, or was ended early, it
is not known whether it would have stepped. Weights are compared by fingerprints at a
few steps: one that moves and comes back is not told, and weights of a job that only
measures something are.

References
----------
- `torch/amp/grad_scaler.py` (pytorch/pytorch), `GradScaler.step` and its check for Inf
- torch.optim, in torch's documentation –
  https://docs.pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.accumulation.cleared_gradients import (
    Emptied,
    emptied,
    only_drops,
)
from distdoctor.analysis.causes import capital, pointers, s
from distdoctor.analysis.evidence import ended_well, require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places, some
from distdoctor.analysis.optimizer_step.held_parameters import (
    Stepless,
    Unchanged,
    calls_from_the_first_step,
    communicates_at,
    held,
    stepless,
    unchanged,
)
from distdoctor.analysis.optimizer_step.making_lines import loss_lines, zeroed_at
from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    lines_of,
    optimizer_histories,
)
from distdoctor.analysis.replicas.exchanged_parameters import exchanging_parameters
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.events import Observation, Shortened
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.amp import EMPTY, Refused
from distdoctor.model.observations.gradients import Gradients, Holds, Unstepped
from distdoctor.model.observations.optimizer_step import DROP
from distdoctor.model.run import Run, named

CODE = "DD417"
SEVERITY = Severity.ERROR
NEEDS = (Holds,)

LEAST_LOOKS = 4
"""Steps at which the same weights were seen."""

PATIENCE = 8
"""Step that must have been seen: until then, a warm-up may begin with a rate of 0."""

LEAST_PASSES = 8
"""Backward passes without a step: gradients are rarely summed over more."""

LEAST_PASSES_CUT = 64
"""Likewise, of a run that was ended, and may have stepped later."""

LEAST_EMPTY = 3
"""Steps that are made with nothing."""

MOST_STEPS = 0.6
"""Share of all steps; where gradients that are not finite are cleared, it is less."""


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers that never step, and those whose steps change nothing."""
    if not run.has(Shortened) and (stuck := _unstepped(run)):
        yield _never(run, stuck)
    for stuck in _left_behind(run):
        yield _never(run, stuck)
    for lost in stepless(run):
        yield _one_of_several(lost)
    yield from _refused(run)
    cleared: dict[int, list[tuple[OptimizerHistory, Emptied]]] = {}
    for course in optimizer_histories(run):
        if (empty := _emptied(run, course)) is not None:
            cleared.setdefault(course.optimizer, []).append((course, empty))
    for histories in cleared.values():
        yield _empty(run, histories)
    alike: dict[tuple[int, str], list[Unchanged]] = {}
    for rank in run.seen:
        for one in unchanged(run, rank, LEAST_LOOKS, PATIENCE):
            alike.setdefault((one.one.holds.optimizer, one.why), []).append(one)
    for found in alike.values():
        yield _still(run, found)
    require_whole(run)


def _unstepped(run: Run) -> list[Unstepped]:
    """Of each rank the last such event, if no rank ever stepped."""
    last = [_last(run, rank) for rank in run.seen]
    return [one for one in last if one is not None] if None not in last else []


def _left_behind(run: Run) -> Iterator[list[Unstepped]]:
    """The same, of ranks that never step where other replicas of their model do."""
    for ranks in replicas(run):
        if not run.has_seen(ranks):
            continue
        steps = [rank for rank in ranks if _has_stepped(run, rank)]
        soon = (
            _step_each_time(run, steps)
            and all(ended_well(run, rank) for rank in ranks)
            and not exchanging_parameters(
                run, ranks, calls_from_the_first_step(run, steps)
            )
            and not any(
                communicates_at(run, rank, look.place)
                for rank in {*ranks} - {*steps}
                for one in held(run, steps[0])
                for look in one.seen
            )
        )
        last = {rank: _last(run, rank, soon=soon) for rank in ranks}
        stuck = [one for one in last.values() if one is not None]
        if stuck and steps and len(stuck) + len(steps) == len(ranks):
            yield stuck


def _step_each_time(run: Run, ranks: Sequence[int]) -> bool:
    """Whether these ranks make a step behind each backward pass, all of them.

    Before the first step of an optimizer others may have had theirs.
    """
    looks = [one.seen for rank in ranks for one in held(run, rank)]
    return bool(looks) and all(
        seen
        and seen[-1].step >= LEAST_LOOKS
        and all(one.passes == 1 for one in seen if one.step > 1)
        for seen in looks
    )


def _last(run: Run, rank: int, *, soon: bool = False) -> Unstepped | None:
    """The last such event of a rank that never stepped, nor changed its weights.

    With `soon`, one look is enough: others have made their steps by then.
    """
    least = LEAST_PASSES_CUT if run.stopped else LEAST_PASSES
    unstepped = run.of(Unstepped, rank)
    looks = _looks(run, rank)
    changed = any(len(set(weights)) > 1 for weights in looks)
    if _has_stepped(run, rank) or changed or not unstepped:
        return None
    enough = len(unstepped) > 1 and unstepped[-1].passes >= least
    return unstepped[-1] if enough or soon else None


def _looks(run: Run, rank: int) -> list[list[int]]:
    """What a rank's weights were at such events, of the same optimizers each."""
    looks: list[list[int]] = []
    last: Observation | None = None
    if not run.told(Unstepped, rank=rank):
        return looks
    for _, event in run.told(Unstepped, Holds, rank=rank):
        if isinstance(event, Unstepped):
            if not looks or isinstance(last, Holds):
                looks.append([])
            looks[-1].append(event.weights)
        if isinstance(event, Unstepped | Holds):
            last = event
    return looks


def _has_stepped(run: Run, rank: int) -> bool:
    return any(one.seen for one in held(run, rank))


def _never(run: Run, stuck: list[Unstepped]) -> Finding:
    ranks = tuple(event.rank for event in stuck)
    passes = min(event.passes for event in stuck)
    everywhere = set(ranks) == set(run.seen)
    others = "no optimizer ever made a step"
    if not everywhere:
        others = (
            f"never {'makes' if len(ranks) == 1 else 'make'} a step, while the other "
            "replicas of the model do"
        )
    made = [one.holds for rank in ranks for one in held(run, rank)]
    looks = [max(map(len, _looks(run, rank))) for rank in ranks]
    return Finding(
        message=(
            f"{named(ranks).capitalize()} called backward {passes} times and more, and "
            f"{others}: the weights are what they were"
        ),
        exhibits=tuple(stuck[:2]),
        culprits=() if everywhere else ranks,
        locations=(
            *backward_lines(run, ranks),
            *places(stuck, ranks, "backward; a step belongs behind it"),
            *places(made, ranks, "makes the optimizer"),
        ),
        certainty=Certainty.PROVED if min(looks) > 1 else Certainty.LIKELY,
        details={"passes": passes},
    )


def _one_of_several(one: Stepless) -> Finding:
    ranks = one.ranks
    return Finding(
        message=(
            f"{capital(named(ranks))} never step{s(ranks)} with the {one.holds.kind} "
            f"made at {one.holds.place}, with which {named(one.others)} made "
            f"{one.steps} steps and more; the gradients are averaged, and the weights "
            "of these replicas are no longer the same"
        ),
        exhibits=(one.holds, one.step),
        culprits=ranks,
        victims=one.others,
        locations=(
            *places([one.step], ranks, "others step here"),
            *places([one.holds], ranks, "makes the optimizer"),
        ),
        certainty=Certainty.LIKELY,
        details={"steps": one.steps},
    )


def _emptied(run: Run, course: OptimizerHistory) -> Emptied | None:
    found = emptied(course)
    least = max(LEAST_EMPTY, MOST_STEPS * course.steps)
    if found is None or found.cycles < least:
        return None
    looks = [
        look
        for look in run.of(Gradients, course.rank)
        if look.optimizer == course.optimizer
    ]
    return None if any(norm for look in looks for norm in look.norms) else found


def _empty(run: Run, cleared: list[tuple[OptimizerHistory, Emptied]]) -> Finding:
    (course, found), ranks = cleared[0], tuple(each.rank for each, _ in cleared)
    acts = [act for each, _ in cleared for act in lines_of(run, each, DROP)]
    return Finding(
        message=(
            f"{named(ranks).capitalize()} clear{'s' * (len(ranks) == 1)} what backward "
            f"gave before the optimizer uses it: {found.cycles} of {course.steps} "
            "steps are made without gradients"
        ),
        exhibits=(found.typical, *acts[:1]),
        culprits=() if set(ranks) == set(run.seen) else ranks,
        locations=(
            *places(acts, ranks, "clears what no step was made with"),
            *places([found.typical], ranks, "steps with nothing"),
            *backward_lines(run, ranks),
        ),
        details={"steps": course.steps, "empty": found.cycles},
    )


def _refused(run: Run) -> Iterator[Finding]:
    """GradScalers that have raised, for they found no gradient to look for Inf in."""
    found: dict[int, dict[int, Refused]] = {}
    for rank in run.seen:
        for one in run.of(Refused, rank):
            if one.why == EMPTY and only_drops(one):
                found.setdefault(one.optimizer, {}).setdefault(rank, one)
    for optimizer, by_rank in found.items():
        ranks, several = tuple(by_rank), list(by_rank.values())
        acts = [
            act
            for rank in ranks
            for act in lines_of(run, OptimizerHistory(rank, optimizer, []), DROP)
        ]
        yield Finding(
            message=(
                f"{named(ranks).capitalize()} clear{'s' * (len(ranks) == 1)} what "
                "backward gave before the optimizer uses it, and scaler.step raised, "
                "because there is no gradient"
            ),
            exhibits=(several[0], *acts[:1]),
            culprits=() if set(ranks) == set(run.seen) else ranks,
            locations=(
                *places(acts, ranks, "clears what no step was made with"),
                *places(several, ranks, "raised here"),
                *backward_lines(run, ranks),
            ),
        )


def _still(run: Run, found: list[Unchanged]) -> Finding:
    one = found[0].one
    ranks = tuple(sorted({each.one.holds.rank for each in found}))
    last = one.seen[-1]
    backward = backward_lines(run, ranks)
    # What makes gradients zero stands before the loss, or is it.
    zero = found[0].zero
    losses = loss_lines(run, backward, ranks) if zero else []
    zeroed = pointers(zeroed_at(run) if zero else [], ranks, "sets to zero")
    return Finding(
        message=(
            f"{named(ranks).capitalize()}: none of the {len(one.holds.names)} "
            f"parameters of {one.holds.kind or 'the optimizer'} "
            f"({some(one.holds.names)}) has changed a bit by step {last.step}: "
            f"{found[0].why}"
        ),
        exhibits=(one.holds, one.seen[0], last),
        culprits=() if set(ranks) == set(run.seen) else ranks,
        locations=(
            *places([one.holds], ranks, "makes the optimizer"),
            *zeroed,
            *losses,
            *places([last], ranks, "steps"),
            *backward,
        ),
        details={"steps": [look.step for look in one.seen]},
    )
