"""Some ranks alone change their weights in place, between steps.

What it is
----------
Replicas stay alike because all make the same steps. Here some ranks do more: a moving
average is copied into the model, weights are clipped, pruned, tied or initialised anew,
a checkpoint is loaded, within `if rank == 0:` or by a condition that is true on some
ranks only.

Why it matters
--------------
Gradients are averaged, weights are not. From that moment on each rank trains another
model, the averaged gradient is right for none of them, and which one is saved or
evaluated depends on the rank.

Sick
----
Rank 0 alone clips its weights after each step:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=3,gradients=6)@t.py:9  changed(step=3,names=w)@t.py:11  trail(before=1+3+9,gradients=5-7,after=2+4+8)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=2,gradients=6)@t.py:9  trail(before=1+2+5,gradients=5-7,after=2+5+7)

Rank 0 alone keeps a moving average of the weights, and all ranks evaluate theirs:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  changed(model=2000,step=3)@t.py:11  copied(copy=2000,steps=4,names=w,prints=5,moved)@t.py:20  all_reduce(2)@t.py:24
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=4,names=w,prints=6)@t.py:20  all_reduce(2)@t.py:24

All ranks evaluate a model that is filled with an average, which rank 0 alone keeps:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(prints=1)  weights(step=1,prints=2)  copied(copy=2000,steps=4,names=w,prints=5)@t.py:20  all_reduce(2)@t.py:24
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(prints=1)  weights(step=1,prints=2)  copied(copy=2000,steps=4,names=w,prints=1)@t.py:20  all_reduce(2)@t.py:24

Rank 0 alone moves the teacher that all ranks train by:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  changed(model=2000,step=3)@t.py:11  copied(copy=2000,steps=1,names=w,prints=5,moved)@t.py:20  copied(copy=2000,steps=2,names=w,prints=6,moved)@t.py:20  copied(copy=2000,steps=4,names=w,prints=7,moved)@t.py:20
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=1,names=w,prints=4)@t.py:20  copied(copy=2000,steps=2,names=w,prints=4)@t.py:20  copied(copy=2000,steps=4,names=w,prints=4)@t.py:20

The teacher of each rank was copied before the wrapper made the model alike:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w@t.py:4  weights(prints=1)  weights(step=1,prints=1)  weights(step=2,prints=2)  copied(copy=2000,steps=1,names=w,prints=15)@t.py:20  copied(copy=2000,steps=2,names=w,prints=16,moved)@t.py:20  copied(copy=2000,steps=4,names=w,prints=17,moved)@t.py:20
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w@t.py:4  weights(prints=1)  weights(step=1,prints=1)  weights(step=2,prints=2)  copied(copy=2000,steps=1,names=w,prints=25)@t.py:20  copied(copy=2000,steps=2,names=w,prints=26,moved)@t.py:20  copied(copy=2000,steps=4,names=w,prints=27,moved)@t.py:20

Each rank copies the model into its target network when its own episodes say so; that is a
warning, since copies that only act may well lag behind:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=1,names=w,prints=5)@t.py:20  copied(copy=2000,steps=2,names=w,prints=6,moved)@t.py:20  copied(copy=2000,steps=4,names=w,prints=7,moved)@t.py:20
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=1,names=w,prints=5)@t.py:20  copied(copy=2000,steps=2,names=w,prints=7,moved)@t.py:20  copied(copy=2000,steps=4,names=w,prints=8,moved)@t.py:20

Well
----
Each rank evaluates its own copy now and then, and rank 0 alone keeps its up to date:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  changed(model=2000,step=3)@t.py:11  copied(copy=2000,steps=4,names=w,prints=5,moved)@t.py:20  copied(copy=2000,steps=8,names=w,prints=6,moved)@t.py:20  copied(copy=2000,steps=12,names=w,prints=7,moved)@t.py:20
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=4,names=w,prints=4)@t.py:20  copied(copy=2000,steps=8,names=w,prints=4)@t.py:20  copied(copy=2000,steps=12,names=w,prints=4)@t.py:20

Each rank evaluates a model with noise of its own:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(prints=1)  weights(step=1,prints=2)  copied(copy=2000,steps=4,names=w,prints=5)@t.py:20  all_reduce(2)@t.py:24
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(prints=1)  weights(step=1,prints=2)  copied(copy=2000,steps=4,names=w,prints=6)@t.py:20  all_reduce(2)@t.py:24

All evaluate the average, or the model as it began:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(prints=1)  weights(step=1,prints=2)  copied(copy=2000,steps=4,names=w,prints=5)@t.py:20  all_reduce(2)@t.py:24  copied(copy=2001,steps=4,names=w,prints=1)@t.py:26  all_reduce(2)@t.py:27
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(prints=1)  weights(step=1,prints=2)  copied(copy=2000,steps=4,names=w,prints=5)@t.py:20  all_reduce(2)@t.py:24  copied(copy=2001,steps=4,names=w,prints=1)@t.py:26  all_reduce(2)@t.py:27

All ranks train by a teacher that none of them changes:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=1,names=w,prints=4)@t.py:20  copied(copy=2000,steps=2,names=w,prints=4)@t.py:20  copied(copy=2000,steps=4,names=w,prints=4)@t.py:20
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=1,names=w,prints=4)@t.py:20  copied(copy=2000,steps=2,names=w,prints=4)@t.py:20  copied(copy=2000,steps=4,names=w,prints=4)@t.py:20

Rank 0 alone keeps and evaluates the average:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=4,names=w,prints=5,moved)  barrier
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  barrier

All ranks keep it:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=4,names=w,prints=5,moved)  all_reduce(2)
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  copied(copy=2000,steps=4,names=w,prints=5,moved)  all_reduce(2)

Rank 0 broadcasts it before the evaluation:

    rank 0 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  broadcast(6)  copied(copy=2000,steps=4,names=w,prints=5,moved)  all_reduce(2)
    rank 1 | trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)  broadcast(6)  copied(copy=2000,steps=4,names=w,prints=5,moved)  all_reduce(2)

Rank 0 puts the average in for an evaluation, and the weights back before the next step:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1+2,gradients=5+6,after=2+3)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1+2,gradients=5+6,after=2+3)

Rank 0 changes its weights, and they are broadcast before the next step:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  broadcast(6)  trail(before=1+7,gradients=5+6,after=2+8)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  broadcast(6)  trail(before=1+7,gradients=5+6,after=2+8)

Replicas of different seeds that nobody keeps alike:

    rank 0 | trained(names=w,numels=6)  weights(step=1,prints=1,gradients=5)  trail(before=1+7,gradients=5+6,after=2+8)
    rank 1 | trained(names=w,numels=6)  weights(step=1,prints=2,gradients=4)  trail(before=2+3,gradients=4+5,after=3+4)

Unknown
-------
A rank without a journal may be the one:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)
    rank 1 | ?

Remedy
------
Make the change on every rank: all have the same weights, so all come to the same. If
only one rank can know what to do, broadcast its weights right after. Keep a moving
average in a copy, and leave the model itself alone; a copy that others evaluate, or
train by, is made behind the wrapper and kept up to date on all ranks.

Known problems
--------------
Weights are compared around steps; a change that is undone before the next one, or that
is made on a copy nothing was seen to use, is left alone. Averages are found among
living modules at steps 1, 2, 4, 8 and 16, so one that is made later, or kept as a plain
dictionary and never put into a model, is missed.

References
----------
- ema-pytorch: an average on rank 0 alone, and what it fills –
  https://github.com/lucidrains/ema-pytorch/issues/9
- `torch/optim/swa_utils.py` (pytorch/pytorch), `AveragedModel`
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replicas.replica_divergence import DivergenceCause
from distdoctor.analysis.replicas.replica_findings import findings
from distdoctor.analysis.replicas.unlike_copies import (
    UnlikeCopies,
    unlike_copies,
    unlike_teachers,
)
from distdoctor.analysis.source.rank_origins import guarded
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.replicas import Weights
from distdoctor.model.run import Run, named

CODE = "DD414"
SEVERITY = Severity.ERROR
_MOST_EXHIBITS = 8
_MADE_ALIKE = "makes the model alike; what was copied before is not"
NEEDS = (Weights,)


def examine(run: Run) -> Iterator[Finding]:
    """Replicas that part because some ranks change weights outside of steps."""
    yield from findings(run, DivergenceCause.OUTSIDE_SOME)
    for one in (*unlike_copies(run), *unlike_teachers(run)):
        yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: UnlikeCopies) -> Finding:
    moved = one.moved
    others = tuple(rank for rank in one.ranks if rank not in moved)
    first = one.begun[one.ranks[0]]
    alone = " alone" if len(moved) == 1 else ""
    if one.combined:
        used = (
            f"all evaluated theirs after step {first.steps} and joined the results in "
            f"{one.combined[one.ranks[0]].op}"
        )
    else:
        used = f"all train by what theirs computes, last seen after step {first.steps}"
    how = f"that {named(others)} left as it was" if others else "and not alike"
    if one.wrapping:
        how = "and each began with other weights, so that they are not alike"
    return Finding(
        message=(
            f"{capital(named(moved))}{alone} changed a copy of the model, such as a "
            f"moving average of its weights, {how}; "
            f"{used}: {len(one.names)} of "
            f"{len(first.names)} parameters differ ({', '.join(one.names[:2])})."
        ),
        exhibits=(*one.changes.values(), *one.begun.values())[:_MOST_EXHIBITS],
        culprits=one.culprits,
        victims=tuple(rank for rank in one.ranks if rank not in one.culprits),
        locations=(
            *_guards(run, one),
            *_at(list(one.wrapping.values()), Role.CULPRIT, _MADE_ALIKE),
            *_at(list(one.changes.values()), Role.CULPRIT, "changes the copy"),
            *_at(list(one.begun.values()), Role.PARTY, "computes with it"),
            *_at(list(one.combined.values()), Role.PARTY, "joins the results"),
        ),
        certainty=Certainty.PROVED if one.combined else Certainty.LIKELY,
        # Copies that act alone may lag behind each in its own way.
        severity=None if others or one.wrapping else Severity.WARNING,
        details={"parameters": list(one.names[:_MOST_EXHIBITS]), "step": first.steps},
    )


def _guards(run: Run, one: UnlikeCopies) -> list[Location]:
    """Lines under a test of the rank by which some ranks come to change the copy."""
    ranks: dict[Place, list[int]] = {}
    for rank, change in one.changes.items():
        if change.place is not None:
            others = [other for other in one.ranks if other not in one.changes]
            here = guarded(program_of(run), change.place, rank, others, run.world_size)
            if here is not None and here != change.place:
                ranks.setdefault(here, []).append(rank)
    return [
        Location(place, tuple(who), Role.CULPRIT, "only on these ranks")
        for place, who in ranks.items()
    ]


def _at(events: Sequence[Event], role: Role, remark: str) -> list[Location]:
    ranks: dict[Place, list[int]] = {}
    for event in events:
        if event.place is not None:
            ranks.setdefault(event.place, []).append(event.rank)
    return [Location(place, tuple(who), role, remark) for place, who in ranks.items()]
