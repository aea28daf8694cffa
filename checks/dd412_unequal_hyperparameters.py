"""Ranks that train one model step with different hyper-parameters.

What it is
----------
The gradients of a model are averaged, and each rank then makes the step by itself. The
optimizer of one rank has another learning rate, weight decay or momentum, for instance
because it was computed from the rank, from the length of the rank's own data, from an
argument or a variable that not all ranks were given, or because a schedule is longer on
one rank.

Why it matters
--------------
The replicas drift apart, step by step, with equal gradients. What is saved is the model
of rank 0, and the others work on gradients of other weights.

Sick
----
Rank 1 steps with another learning rate:

    rank 0 | wrap=ddp:w  hyperparameters(shared,names=0.lr,values=0.1)@t.py:8
    rank 1 | wrap=ddp:w  hyperparameters(shared,names=0.lr,values=0.2)@t.py:8

A schedule of rank 2 is shorter than that of the others:

    rank 0 | wrap=ddp:w  hyperparameters(shared,step=9,names=0.lr,values=0.05)@t.py:8
    rank 1 | wrap=ddp:w  hyperparameters(shared,step=9,names=0.lr,values=0.05)@t.py:8
    rank 2 | wrap=ddp:w  hyperparameters(shared,step=9,names=0.lr,values=0.02)@t.py:8

Only rank 0 asks its scheduler for the next rate:

    rank 0 | wrap=ddp:w  hyperparameters(shared,step=2,names=0.lr,values=0.09)@t.py:8
           | schedule(calls=40,steps=40)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  hyperparameters(shared,step=2,names=0.lr,values=0.1)@t.py:8
           | schedule(steps=40)  exit=0

The rate follows a metric, and each rank gives its own:

    rank 0 | wrap=ddp:w  hyperparameters(shared,step=9,names=0.lr,values=0.1)@t.py:8
           | schedule(steps=40,kind=ReduceLROnPlateau)@t.py:7  exit=0
    rank 1 | wrap=ddp:w  hyperparameters(shared,step=9,names=0.lr,values=0.05)@t.py:8
           | schedule(steps=40,kind=ReduceLROnPlateau)@t.py:7  exit=0

Each makes its schedule for the batches of its own share:

    rank 0 | wrap=ddp:w  scheduled(kind=CosineAnnealingLR)@t.py:5
           | hyperparameters(shared,step=2,names=0.lr,values=0.09)@t.py:8
           | schedule(kind=CosineAnnealingLR,length=36,calls=30,steps=30)@t.py:9
    rank 1 | wrap=ddp:w  scheduled(kind=CosineAnnealingLR)@t.py:5
           | hyperparameters(shared,step=2,names=0.lr,values=0.08)@t.py:8
           | schedule(kind=CosineAnnealingLR,length=33,calls=30,steps=30)@t.py:9

Well
----
All are equal:

    rank 0 | wrap=ddp:w  hyperparameters(shared,names=0.lr,values=0.1)@t.py:8
    rank 1 | wrap=ddp:w  hyperparameters(shared,names=0.lr,values=0.1)@t.py:8

Each rank has arguments of its own, and the optimizers are equal:

    rank 0 | wrap=ddp:w  arguments(names=rank,values=0)  hyperparameters(shared)
    rank 1 | wrap=ddp:w  arguments(names=rank,values=1)  hyperparameters(shared)

Each rank trains a model of its own, as in federated learning:

    rank 0 | hyperparameters(names=0.lr,values=0.1)@t.py:8
    rank 1 | hyperparameters(names=0.lr,values=0.2)@t.py:8

A part of the model belongs to one rank, and has an optimizer of its own:

    rank 0 | wrap=ddp:w  hyperparameters(optimizer=1,names=0.lr,values=0.1)@t.py:8
    rank 1 | wrap=ddp:w  hyperparameters(optimizer=1,names=0.lr,values=0.2)@t.py:8

One rank has fewer batches in each epoch, under `Join`, and is in the next one earlier:

    rank 0 | wrap=ddp:w  hyperparameters(shared,step=1,names=0.lr,values=0.1)@t.py:8
           | hyperparameters(shared,step=9,names=0.lr,values=0.1)@t.py:8
           | cycle(step=1,words=clear+backward+step,more=15)@t.py:8  exit=0
    rank 1 | wrap=ddp:w  hyperparameters(shared,step=1,names=0.lr,values=0.1)@t.py:8
           | hyperparameters(shared,step=9,names=0.lr,values=0.05)@t.py:8
           | cycle(step=1,words=clear+backward+step,more=12)@t.py:8  exit=0

Unknown
-------
A rank without a journal may have others:

    rank 0 | wrap=ddp:w  hyperparameters(shared,names=0.lr,values=0.1)@t.py:8
    rank 1 | ?

Remedy
------
Compute hyper-parameters from what all ranks share: the world size, the whole dataset's
size, the number of steps that all make. What one rank reads (a file, a variable, a
search's suggestion), broadcast: `dist.broadcast_object_list([settings], src=0)`.

Known problems
--------------
Settings are those in the optimizer's groups; a factor that a rank multiplies its loss
or step with is not among them. Where a rank counts its schedule by hand, which count is
the wrong one is likely at most. Ranks under `Join` that make unlike numbers of steps
through the same rates are left alone.

References
----------
- disruptcnn: ReduceLROnPlateau follows each rank's own loss –
  https://github.com/rmchurch/disruptcnn/issues/3
- `torch/optim/lr_scheduler.py` (pytorch/pytorch), `ReduceLROnPlateau`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.analysis.causes import capital
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.learning_rate.schedules import (
    counting,
    given_metrics,
    unequally_asked,
    unequally_long,
    unequally_made,
)
from distdoctor.analysis.optimizer_step.unequal_hyperparameters import (
    POSITIONS,
    Differing,
    differing,
    made_at,
    unequal_arguments,
    unlike_ways,
)
from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    replica_divergences,
    state_loaded_by_some,
)
from distdoctor.analysis.source.rank_origins import origins
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.observations.checkpoints import Scheduled
from distdoctor.model.observations.environment import Hyperparameters
from distdoctor.model.observations.learning_rate import Schedule
from distdoctor.model.run import Run, named

CODE = "DD412"
SEVERITY = Severity.ERROR
NEEDS = (Hyperparameters,)


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose settings are not the same on all ranks of a model."""
    # Who loads an optimizer's state has its settings with it: the state is told.
    loaded = {
        parting.ranks
        for parting in replica_divergences(run)
        if parting.cause is DivergenceCause.STATE
        and state_loaded_by_some(parting.seen, parting.step)
    }
    for one in differing(run):
        if one.ranks not in loaded:
            yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: Differing) -> Finding:
    first = next(iter(one.first.values()))
    settings = [
        f"{name.partition('.')[2]} {_values(by_rank)}"
        for name, by_rank in list(one.settings.items())[:_MOST_SHOWN]
    ]
    more = len(one.settings) - _MOST_SHOWN
    settings += [f"{more} more"] * (more > 0)
    shown: dict[tuple[str, ...], Event] = {}
    for event in one.first.values():
        shown.setdefault(event.values, event)
    exhibits = list(shown.values())[:_MOST_SHOWN]
    arguments = unequal_arguments(run, one.ranks)
    made = made_at(run, one)
    hints = [
        f"argument {name} is {_values(by_rank)}"
        for name, (by_rank, _) in arguments.items()
        if {*by_rank.values()} & {v for s in one.settings.values() for v in s.values()}
    ]
    locations = _locations(one)
    if hints:
        read = next(iter(arguments.values()))[1]
        exhibits.append(read)
        if read.place is not None:
            locations.append(
                Location(read.place, one.ranks, Role.PARTY, "reads the arguments")
            )
    asked: dict[int, Schedule] = {}
    long: dict[int, Schedule] = {}
    if any(name.endswith(".lr") for name in one.settings):
        long = unequally_long(run, first.optimizer, one.ranks)
        asked = unequally_asked(run, first.optimizer, one.ranks)
    if long:
        lengths = {rank: str(schedule.length) for rank, schedule in long.items()}
        kind = next(iter(long.values())).kind
        hints.append(f"{kind} was made for so many calls: {_values(lengths)}")
        exhibits += list(long.values())[:_MOST_SHOWN]
        locations = [*_making(run, long), *locations]
    elif made_with := (
        unequally_made(run, first.optimizer, one.ranks) if not asked else {}
    ):
        numbers = {
            rank: ", ".join(map(str, schedule.numbers))
            for rank, schedule in made_with.items()
        }
        kind = next(iter(made_with.values())).kind
        hints.append(f"{kind} was made with these numbers: {_values(numbers)}")
        exhibits += list(made_with.values())[:_MOST_SHOWN]
        making = _making(run, made_with)
        counts = [
            replace(each, place=line, remark="counts for it")
            for each in making
            for line in counting(program_of(run), each.place)
        ]
        locations = [*making, *counts, *locations]
    elif asked:
        calls = {rank: str(schedule.calls) for rank, schedule in asked.items()}
        kind = next(iter(asked.values())).kind
        hints.append(f"{kind}.step() was called so many times: {_values(calls)}")
        exhibits += list(asked.values())[:_MOST_SHOWN]
        locations += _asking(asked, "asks for the next rate")
    elif any(name.endswith(".lr") for name in one.settings):
        given = given_metrics(run, first.optimizer, one.ranks)
        exhibits += list(given.values())[:_MOST_SHOWN]
        locations += _asking(given, "the rate follows what this is given")
    if one.by_source:
        hints.append(f"the source gives {named(one.culprits)} a value apart")
    hint = f"; {hints[0]}" if hints else ""
    locations = [*_origins(run, one, made), *locations]
    return Finding(
        message=f"{capital(named(one.ranks))} train one model, and {first.kind} makes "
        f"step {first.step} with {'; '.join(settings)}{hint}",
        exhibits=tuple(exhibits),
        culprits=one.culprits,
        victims=tuple({*one.ranks} - {*one.culprits}) if one.culprits else (),
        locations=tuple(locations),
        details={
            "optimizer": first.kind,
            "step": first.step,
            "settings": {
                name: {str(rank): value for rank, value in by_rank.items()}
                for name, by_rank in list(one.settings.items())[:_MOST_SHOWN]
            },
        },
    )


_MOST_SHOWN = 6


def _origins(run: Run, one: Differing, made: Place | None) -> list[Location]:
    """Where the source makes the values that differ, and may make them so."""
    if made is None:
        return []
    names = dict.fromkeys(name.partition(".")[2] for name in one.settings)
    places: dict[Place, None] = {}
    for name in names:
        position = POSITIONS.get(name, -1)
        for place in (
            *unlike_ways(run, one, made, name, position),
            *origins(program_of(run), made, name, position),
        ):
            places.setdefault(place)
    who = one.culprits or one.ranks
    role = Role.CULPRIT if one.culprits else Role.PARTY
    return [Location(place, who, role, "makes the value") for place in places]


def _values(by_rank: dict[int, str]) -> str:
    """Each value and who has it, the most common first."""
    ranks: dict[str, list[int]] = {}
    for rank, value in by_rank.items():
        ranks.setdefault(value, []).append(rank)
    ordered = sorted(ranks.items(), key=lambda item: -len(item[1]))
    shown = [f"{value} on {named(who)}" for value, who in ordered[:_MOST_SHOWN]]
    return ", ".join(shown) + ", …" * (len(ordered) > _MOST_SHOWN)


def _asking(asked: dict[int, Schedule], remark: str) -> list[Location]:
    """Where ranks ask for the next rate that not all ask for, or that differs."""
    ranks: dict[Place, list[int]] = {}
    for rank, schedule in asked.items():
        if schedule.place is not None:
            ranks.setdefault(schedule.place, []).append(rank)
    return [
        Location(place, tuple(who), Role.PARTY, remark) for place, who in ranks.items()
    ]


def _making(run: Run, long: dict[int, Schedule]) -> list[Location]:
    """Where ranks make the schedulers whose courses are not as long on all."""
    ranks: dict[Place, list[int]] = {}
    for rank, schedule in long.items():
        for made in run.of(Scheduled, rank):
            if made.kind == schedule.kind and made.place is not None:
                its = ranks.setdefault(made.place, [])
                if rank not in its:
                    its.append(rank)
    return [
        Location(place, tuple(who), Role.PARTY, "makes the schedule")
        for place, who in ranks.items()
    ]


def _locations(one: Differing) -> list[Location]:
    """The lines that step, those of the culprits first."""
    ranks: dict[tuple[bool, Place], list[int]] = {}
    for rank in one.ranks:
        if (place := one.first[rank].place) is not None:
            ranks.setdefault((rank not in one.culprits, place), []).append(rank)
    other = Role.VICTIM if one.culprits else Role.PARTY
    return [
        Location(place, tuple(who), other if well else Role.CULPRIT, "makes the step")
        for (well, place), who in sorted(ranks.items())
    ]
