"""Gradients are never averaged: each rank trains a model of its own.

What it is
----------
In data-parallel training all ranks step with the mean of their gradients. Nothing
averages them where the model was not wrapped, where the forward pass goes to the bare
model (`model.module(x)`), where gradients come from `torch.autograd.grad`, where a copy
of them was averaged and dropped, or where the loss was averaged instead.

Why it matters
--------------
The job runs and its loss falls, but each rank has learnt from its own part of the data
alone, and the checkpoint is that of one of them. N devices do the work of one.

Sick
----
The model was wrapped, and the wrapper sends nothing:

    rank 0 | wrap=ddp:w@t.py:4  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=11,norms=1.0,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=12,norms=1.0,weights=8,passes=1)@t.py:9  exit=0
    rank 1 | wrap=ddp:w@t.py:4  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=21,norms=1.0,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=22,norms=1.0,weights=9,passes=1)@t.py:9  exit=0

A hook of the wrapper's passes some buckets on as they are. In the first step there was
one bucket:

    rank 0 | wrap=ddp:v+w@t.py:4  holds(names=v+w,sizes=4+4,averaged=0+1)@t.py:5
           | gradients(step=1,prints=5+6,weights=7+7,passes=1,reduced=8)@t.py:9
           | gradients(step=2,prints=8+12,weights=8+8,passes=1,reduced=4)@t.py:9
           | gradients(step=3,prints=9+13,weights=9+9,passes=1,reduced=4)@t.py:9  exit=0
    rank 1 | wrap=ddp:v+w@t.py:4  holds(names=v+w,sizes=4+4,averaged=0+1)@t.py:5
           | gradients(step=1,prints=5+6,weights=7+7,passes=1,reduced=8)@t.py:9
           | gradients(step=2,prints=8+22,weights=8+8,passes=1,reduced=4)@t.py:9
           | gradients(step=3,prints=9+23,weights=9+4,passes=1,reduced=4)@t.py:9  exit=0

What was sent in between was for another model; backward gave nothing to that of these:

    rank 0 | wrap=ddp:w@t.py:4  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=11,norms=1.0,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=12,weights=8,passes=2,reduced=9)@t.py:9
           | cycle(step=1,words=backward/bare+step)@t.py:9
           | cycle(step=2,words=backward+drop+backward/bare+step)@t.py:9  exit=0
    rank 1 | wrap=ddp:w@t.py:4  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=1,prints=21,norms=1.0,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=22,weights=9,passes=2,reduced=9)@t.py:9
           | cycle(step=1,words=backward/bare+step)@t.py:9
           | cycle(step=2,words=backward+drop+backward/bare+step)@t.py:9  exit=0

There is no wrapper; the data are divided, and all begin with the same weights:

    rank 0 | holds(names=w,sizes=4,divided)@t.py:5
           | gradients(step=1,prints=11,norms=1.0,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=12,norms=1.0,weights=8,passes=1)@t.py:9  exit=0
    rank 1 | holds(names=w,sizes=4,divided)@t.py:5
           | gradients(step=1,prints=21,norms=1.0,weights=7,passes=1)@t.py:9
           | gradients(step=2,prints=22,norms=1.0,weights=9,passes=1)@t.py:9  exit=0

The last parameter is left out of an average by hand, and the rest of its layer is not:

    rank 0 | holds(names=a.weight+a.bias,sizes=4+2)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=1,prints=5+11,weights=7+8,passes=1,moved=4)@t.py:9
           | gradients(step=2,prints=6+12,weights=4+9,passes=1,moved=4)@t.py:9  exit=0
    rank 1 | holds(names=a.weight+a.bias,sizes=4+2)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=1,prints=5+21,weights=7+8,passes=1,moved=4)@t.py:9
           | gradients(step=2,prints=6+22,weights=4+3,passes=1,moved=4)@t.py:9  exit=0

A whole layer is left out, which may be meant (a warning):

    rank 0 | holds(names=a.weight+b.weight,sizes=4+2)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=1,prints=5+11,weights=7+8,passes=1,moved=4)@t.py:9
           | gradients(step=2,prints=6+12,weights=4+9,passes=1,moved=4)@t.py:9  exit=0
    rank 1 | holds(names=a.weight+b.weight,sizes=4+2)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=1,prints=5+21,weights=7+8,passes=1,moved=4)@t.py:9
           | gradients(step=2,prints=6+22,weights=4+3,passes=1,moved=4)@t.py:9  exit=0

Beside heads that each rank has drawn for itself, a layer is left out that all share
(a warning, likewise):

    rank 0 | trained(names=a.w+b.w+c.w,numels=8+8+8)
           | weights(step=1,prints=7+8+1,samples=.1+.2+.3+.4+.5+.6+.7+.8+.9)
           | holds(names=a.w+b.w+c.w,sizes=8+8+8)@t.py:5  all_reduce(8)@t.py:8
           | sent(step=1,positions=0,own=1,sent=1,factors=1)@t.py:8
           | gradients(step=1,prints=5+11+1,weights=7+8+1,passes=1,moved=8)@t.py:9
           | sent(step=2,positions=0,own=1,sent=1,factors=1)@t.py:8
           | gradients(step=2,prints=6+12+2,weights=4+9+3,passes=1,moved=8)@t.py:9
           | exit=0
    rank 1 | trained(names=a.w+b.w+c.w,numels=8+8+8)
           | weights(step=1,prints=7+8+2,samples=.1+.2+.3+.4+.5+.6+.1+.2+.3)
           | holds(names=a.w+b.w+c.w,sizes=8+8+8)@t.py:5  all_reduce(8)@t.py:8
           | sent(step=1,positions=0,own=2,sent=2,factors=1)@t.py:8
           | gradients(step=1,prints=5+21+5,weights=7+8+2,passes=1,moved=8)@t.py:9
           | sent(step=2,positions=0,own=2,sent=2,factors=1)@t.py:8
           | gradients(step=2,prints=6+22+6,weights=4+3+4,passes=1,moved=8)@t.py:9
           | exit=0

Averaged by its wrapper at first, the model is called without it later:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(step=1,prints=1,gradients=5)
           | weights(step=2,prints=2,gradients=6)  weights(step=3,prints=3,gradients=7)
           | gradients(step=1,prints=5,passes=1,reduced=6)  bypassed@t.py:9
           | gradients(step=2,prints=6,passes=1)  exit=0
    rank 1 | trained(names=w,numels=6,wrapped)  weights(step=1,prints=1,gradients=5)
           | weights(step=2,prints=2,gradients=8)  weights(step=3,prints=4,gradients=9)
           | gradients(step=1,prints=5,passes=1,reduced=6)  bypassed@t.py:9
           | gradients(step=2,prints=8,passes=1)  exit=0

In a mixture of experts nobody averages the shared layer; the experts were drawn anew on
each rank, and the shared layer was not:

    rank 0 | trained(names=s+e,numels=40+20)
           | weights(step=1,prints=7+8,samples=.1+.2+.3+.4+.5+.6)
           | holds(names=s+e,sizes=40+20)@t.py:5
           | gradients(step=1,prints=5+11,weights=7+8,passes=1,unclear=64,moved=64)
           | gradients(step=2,prints=6+12,weights=4+9,passes=1,unclear=64,moved=64)
           | exit=0
    rank 1 | trained(names=s+e,numels=40+20)
           | weights(step=1,prints=7+3,samples=.1+.2+.3+.7+.8+.9)
           | holds(names=s+e,sizes=40+20)@t.py:5
           | gradients(step=1,prints=3+21,weights=7+3,passes=1,unclear=64,moved=64)
           | gradients(step=2,prints=2+22,weights=5+6,passes=1,unclear=64,moved=64)
           | exit=0

Features are gathered in the loss, whose backward sums over ranks; DDP sends nothing:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=8,averaged=0)@t.py:5
           | gradients(step=1,prints=11,weights=7,passes=1,reduced=2,unclear=9)@t.py:9
           | gradients(step=2,prints=12,weights=8,passes=1,reduced=2,unclear=9)@t.py:9
           | gradients(step=3,prints=13,weights=9,passes=1,reduced=2,unclear=9)@t.py:9
           | exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=8,averaged=0)@t.py:5
           | gradients(step=1,prints=21,weights=7,passes=1,reduced=2,unclear=9)@t.py:9
           | gradients(step=2,prints=22,weights=6,passes=1,reduced=2,unclear=9)@t.py:9
           | gradients(step=3,prints=23,weights=5,passes=1,reduced=2,unclear=9)@t.py:9
           | exit=0

Horovod's optimizer is to reduce the gradients of a Keras model, and is given them by
`apply_gradients`, which does not:

    rank 0 | variable_prints(names=w,sizes=40,prints=1,wrapped)@t.py:9  broadcast(40)
           | variable_prints(step=1,names=w,sizes=40,prints=2,wrapped)@t.py:9
           | variable_prints(step=2,names=w,sizes=40,prints=4,wrapped)@t.py:9
    rank 1 | variable_prints(names=w,sizes=40,prints=1,wrapped)@t.py:9  broadcast(40)
           | variable_prints(step=1,names=w,sizes=40,prints=3,wrapped)@t.py:9
           | variable_prints(step=2,names=w,sizes=40,prints=5,wrapped)@t.py:9

Well
----
Stages of a pipeline begin alike, and each has gradients of its own:

    rank 0 | trained(names=w,numels=40)  weights(step=1,prints=7,samples=.1+.2+.3)
           | holds(names=w,sizes=40)
           | gradients(step=1,prints=5,weights=7,passes=1,unclear=64,moved=64)
           | gradients(step=2,prints=6,weights=4,passes=1,unclear=64,moved=64)  exit=0
    rank 1 | trained(names=w,numels=40)  weights(step=1,prints=7,samples=.1+.2+.3)
           | holds(names=w,sizes=40)
           | gradients(step=1,prints=3,weights=7,passes=1,unclear=64,moved=64)
           | gradients(step=2,prints=2,weights=5,passes=1,unclear=64,moved=64)  exit=0

The gradients are equal:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | gradients(step=1,prints=11,weights=7,passes=1)
           | gradients(step=2,prints=12,weights=8,passes=1)  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | gradients(step=1,prints=11,weights=7,passes=1)
           | gradients(step=2,prints=12,weights=8,passes=1)  exit=0

The wrapper has sent something for these steps, and what differs has another cause:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | gradients(step=1,prints=11,weights=7,passes=1,reduced=4)
           | gradients(step=2,prints=12,weights=8,passes=1,reduced=4)
           | cycle(step=1,words=backward+step,more=1)  exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | gradients(step=1,prints=21,weights=7,passes=1,reduced=4)
           | gradients(step=2,prints=22,weights=9,passes=1,reduced=4)
           | cycle(step=1,words=backward+step,more=1)  exit=0

Ranks average weights, now and then:

    rank 0 | holds(names=w,sizes=4,divided)
           | gradients(step=1,prints=11,weights=7,passes=1)
           | gradients(step=2,prints=12,weights=8,passes=1)
           | gradients(step=3,prints=13,weights=6,mixed=4,passes=1)  exit=0
    rank 1 | holds(names=w,sizes=4,divided)
           | gradients(step=1,prints=21,weights=7,passes=1)
           | gradients(step=2,prints=22,weights=9,passes=1)
           | gradients(step=3,prints=23,weights=6,mixed=4,passes=1)  exit=0

Each rank has a head of its own, whose bias begins with zeros on all of them:

    rank 0 | trained(names=a.w+h.w+h.b,numels=8+8+8)
           | weights(step=1,prints=7+8+1,samples=.1+.2+.3+.4+.5+.6+0+0+0)
           | holds(names=a.w+h.w+h.b,sizes=8+8+8)@t.py:5  all_reduce(8)@t.py:8
           | sent(step=1,positions=0,own=1,sent=1,factors=1)@t.py:8
           | gradients(step=1,prints=5+11+1,weights=7+8+1,passes=1,moved=8)@t.py:9
           | sent(step=2,positions=0,own=1,sent=1,factors=1)@t.py:8
           | gradients(step=2,prints=6+12+2,weights=4+9+3,passes=1,moved=8)@t.py:9
           | exit=0
    rank 1 | trained(names=a.w+h.w+h.b,numels=8+8+8)
           | weights(step=1,prints=7+9+1,samples=.1+.2+.3+.7+.8+.9+0+0+0)
           | holds(names=a.w+h.w+h.b,sizes=8+8+8)@t.py:5  all_reduce(8)@t.py:8
           | sent(step=1,positions=0,own=2,sent=2,factors=1)@t.py:8
           | gradients(step=1,prints=5+21+5,weights=7+9+1,passes=1,moved=8)@t.py:9
           | sent(step=2,positions=0,own=2,sent=2,factors=1)@t.py:8
           | gradients(step=2,prints=6+22+6,weights=4+3+4,passes=1,moved=8)@t.py:9
           | exit=0

Each rank tries another learning rate:

    rank 0 | holds(names=w,sizes=4,settings=1)
           | gradients(step=1,prints=11,weights=7,passes=1,moved=2)
           | gradients(step=2,prints=12,weights=8,passes=1,moved=2)  exit=0
    rank 1 | holds(names=w,sizes=4,settings=2)
           | gradients(step=1,prints=11,weights=7,passes=1,moved=2)
           | gradients(step=2,prints=22,weights=9,passes=1,moved=2)  exit=0

Unknown
-------
A rank without a journal may be the one that differs:

    rank 0 | holds(names=w,sizes=4)  gradients(step=1,prints=11,weights=7)  exit=0
    rank 1 | ?

Remedy
------
Wrap the model in DistributedDataParallel and call the wrapped model, not its `.module`;
or average the gradients between `backward()` and `step()`: `all_reduce(p.grad, op=AVG)`
for every parameter, on the gradients themselves. With Horovod and TensorFlow, take the
gradients from `hvd.DistributedGradientTape`, or call `minimize` or `fit`, for
`apply_gradients` reduces nothing. Where each rank is to train a model of its own, give
each its own settings, or leave the process group out.

Known problems
--------------
Steps 1 to 4, 8, 16 and so on are looked at; ranks that average in other steps alone, or
part later, are seen to differ there. Beside layers of each rank's own, that a layer is
shared rests on a few of its elements at the start, and is likely. An ensemble that
begins alike and shares its data looks like this fault.

References
----------
- pytorch: DDP stops averaging after a move to the CPU and back –
  https://github.com/pytorch/pytorch/issues/104336
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`, its
  warnings
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.gradient_combinations import combined_wrongly
from distdoctor.analysis.gradients.gradient_ratios import summing_lines
from distdoctor.analysis.gradients.left_out_parameters import left_out
from distdoctor.analysis.gradients.multiplied_averages import multiples
from distdoctor.analysis.gradients.used_gradients import (
    UnequalGradients,
    apart,
    backward_lines,
    places,
    some,
    wrap_lines,
)
from distdoctor.analysis.horovod.trained_variables import NeverReduced, never_reduced
from distdoctor.analysis.optimizer_step.making_lines import loss_lines
from distdoctor.analysis.optimizer_step.step_cycles import bare_steps
from distdoctor.analysis.replicas.late_bypass import bypassed_later
from distdoctor.analysis.replicas.replica_divergence import ReplicaDivergence
from distdoctor.analysis.source.argument_choices import choosing
from distdoctor.model.events import Call
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Bypassed, Gradients, Holds
from distdoctor.model.run import Run, named

CODE = "DD404"
SEVERITY = Severity.ERROR
NEEDS = (Gradients,)


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers that step with gradients of one rank, on every rank."""
    combined = {one.chapter.ranks for one in combined_wrongly(run)}
    for one in apart(run):
        if one.chapter.ranks in combined:
            continue  # they are averaged, and not among all
        if one.averaged and not _is_reduced(run, one):
            found, certainty = one.averaged, Certainty.PROVED
        elif one.others and _is_one_model(one):
            found, certainty = one.others, Certainty.LIKELY
        else:
            found, certainty = left_out(run, one), Certainty.LIKELY
        if found := _unmade(one, found):
            yield _finding(run, one, found, certainty)
    for parting in bypassed_later(run):
        yield _of_later_steps(run, parting)
    for never in never_reduced(run):
        yield _of_variables(never)
    require_whole(run)


def _of_later_steps(run: Run, parting: ReplicaDivergence) -> Finding:
    """Of a model that its wrapper averaged, until it was called without it."""
    ranks = parting.ranks
    bare = [event for rank in ranks for event in run.of(Bypassed, rank)]
    return Finding(
        message=(
            f"{capital(named(ranks))} step with gradients of their own from step "
            f"{parting.step} on, and the weights drift apart: the model is called "
            "without its wrapper there, and nothing averages what backward gives"
        ),
        exhibits=tuple(bare[:2]),
        locations=(
            *places(bare, ranks, "calls the model without its wrapper"),
            *backward_lines(run, ranks),
            *wrap_lines(run, ranks),
        ),
        certainty=Certainty.LIKELY,
        details={"step": parting.step, "parameters": list(parting.names)},
    )


def _unmade(one: UnequalGradients, positions: tuple[int, ...]) -> tuple[int, ...]:
    """Those of parameters that nothing averages, as far as is known.

    Ranks may have averaged gradients, and multiplied them by numbers of their own.
    """
    found = multiples(one.chapter)
    if found.same.isdisjoint(positions):
        return positions
    return tuple(n for n in positions if n in found.others)


def _is_reduced(run: Run, one: UnequalGradients) -> bool:
    """Whether something was averaged: then another cause makes gradients differ.

    What backward sums for the sake of another model, between two steps on this one, is
    none of it; nor are fewer elements than the wrapper averages, such as those of
    features that ranks gather in their loss.
    """
    bare = [bare_steps(run, hold.rank, hold.optimizer) for hold in one.chapter.holds]
    first = one.chapter.holds[0]
    whole = sum(first.sizes[n] for n in first.averaged)
    return any(
        seen.reduced >= whole and not any(look.step in some for some in steps)
        for look in one.looks
        for seen, steps in zip(look.seen, bare, strict=True)
    )


def _is_one_model(one: UnequalGradients) -> bool:
    """Whether the ranks are meant to train one model, as far as can be told.

    They are if they begin alike, step with the same settings, and share the data or
    their metrics. An ensemble begins with other weights, a search has other settings.
    """
    holds = one.chapter.holds
    if len({hold.settings for hold in holds}) > 1:
        return False
    alike = one.drifted.issuperset(one.others)
    if all(hold.divided for hold in holds):
        return alike or len(one.others) == len(one.chapter.names)
    seen = [each for look in one.looks for each in look.seen]
    return alike and any(each.moved or each.most for each in seen)


def _is_module(one: UnequalGradients, positions: tuple[int, ...]) -> bool:
    """Whether whole modules are left out of an average that has all of the others.

    Such a module may be meant to be each rank's own, as heads of clients are.
    """
    if one.linked or not one.shared:
        return False
    if positions == one.others and all(hold.divided for hold in one.chapter.holds):
        return False  # and no rank has anything of its own
    names = one.chapter.names
    modules = {names[n].rpartition(".")[0] for n in positions}
    return modules.isdisjoint(names[n].rpartition(".")[0] for n in one.shared)


def _finding(
    run: Run, one: UnequalGradients, positions: tuple[int, ...], certainty: Certainty
) -> Finding:
    chapter, ranks = one.chapter, one.chapter.ranks
    names = [chapter.names[n] for n in positions]
    last, worst = one.looks[-1], positions[0]
    norms = [seen.norms[worst] for seen in last.seen if len(seen.norms) > worst]
    figures = ""
    if norms:
        figures = (
            f" (norm of {names[0]} at step {last.step}: {norms[0]:.3g} on rank "
            f"{ranks[0]}, {norms[-1]:.3g} on rank {ranks[-1]})"
        )
    if certainty is Certainty.PROVED:
        story = "the wrapper that is to average them sent nothing"
        if one.shared:
            kept = [chapter.names[n] for n in one.shared]
            story += f" of them, and averaged {some(kept)} alone"
    elif one.shared:
        kept = [chapter.names[n] for n in one.shared]
        story = f"nothing averages them, though {some(kept)} are averaged"
        if _is_module(one, positions):
            story += ", unless each rank is meant to have its own of them"
    else:
        story = (
            "nothing averages them or the weights, unless each rank is meant to train "
            "a model of its own"
        )
    return Finding(
        message=(
            f"{named(ranks).capitalize()} step with different gradients of "
            f"{len(names)} of {len(chapter.names)} parameters ({some(names)}) at all "
            f"{len(one.looks)} steps that were looked at{figures}, and the weights "
            f"drift apart: {story}"
        ),
        exhibits=(*chapter.holds[:2], *last.seen[:2]),
        locations=tuple(_lines(run, one, certainty)),
        certainty=certainty,
        severity=Severity.WARNING if _is_module(one, positions) else None,
        details={"parameters": names, "steps": [look.step for look in one.looks]},
    )


def _lines(run: Run, one: UnequalGradients, certainty: Certainty) -> list[Location]:
    ranks = one.chapter.ranks
    bare = [event for rank in ranks for event in run.of(Bypassed, rank)]
    holds: list[Holds] = list(one.chapter.holds)
    made = places(holds, ranks, "makes the optimizer")
    around = [
        *backward_lines(run, ranks),
        *places(one.looks[-1].seen, ranks, "steps with its own gradients"),
    ]
    if certainty is Certainty.PROVED:
        called = places(bare, ranks, "calls the model without its wrapper")
        called += [] if bare else loss_lines(run, backward_lines(run, ranks), ranks)
        return [*called, *around, *wrap_lines(run, ranks), *made]
    if one.shared:
        calls = summing_lines(run, ranks)[:1]
        summing = places(calls, ranks, "averages the others")
        return [*_choosing(run, one, calls), *summing, *around, *made]
    return [*made, *around]


def _choosing(run: Run, one: UnequalGradients, calls: list[Call]) -> list[Location]:
    """Where the source chooses what is averaged by hand."""
    program = program_of(run)
    lines = [choosing(program, call.place) for call in calls if call.place is not None]
    return [
        Location(line, one.chapter.ranks, Role.CULPRIT, "chooses what is averaged")
        for line in lines
        if line is not None
    ]


def _of_variables(one: NeverReduced) -> Finding:
    """Of a Keras optimizer, whose gradients nobody can read."""
    ranks = tuple(range(len(one.history.looks[0])))
    first, last = one.history.looks[0], one.history.looks[-1]
    names = one.history.names(one.positions)
    story = (
        "Horovod's optimizer, which is to reduce the gradients, sent nothing: given to "
        "`apply_gradients` they are taken as they are"
        if one.wrapped
        else "nothing averages gradients or weights, unless each rank is meant to "
        "train a model of its own"
    )
    return Finding(
        message=(
            f"{named(ranks).capitalize()} have different values of {len(names)} of "
            f"{len(first[0].names)} variables ({some(names)}) after step "
            f"{last[0].step} of their optimizer, and in all steps from "
            f"{first[0].step + 1} to there no gradient was reduced: {story}"
        ),
        exhibits=(*first[:2], *last[:2]),
        locations=tuple(places(last, ranks, "steps with its own gradients")),
        certainty=Certainty.PROVED if one.wrapped else Certainty.LIKELY,
        details={
            "variables": list(names),
            "steps": [look[0].step for look in one.history.looks],
        },
    )
