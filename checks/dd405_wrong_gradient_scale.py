"""Gradients are summed over ranks and not divided, or divided twice.

What it is
----------
Ranks must step with the mean of their gradients. An `all_reduce` sums: the result must
be divided by the number of ranks, unless `op=AVG` is asked for, or the loss was divided
already. DistributedDataParallel and FSDP divide by themselves: who divides again, or
adds an `all_reduce` of his own, or divides the loss, is off by the number of ranks.

Why it matters
--------------
The learning rate is in effect that many times larger or smaller, and changes with the
number of ranks. On two ranks training seems to go; on sixty-four it diverges, or
crawls.

Sick
----
Summed, and not divided; the loss is a plain mean:

    rank 0 | holds(names=w,sizes=4)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=3+5+7,factor=1)@t.py:9
           | exit=0
    rank 1 | holds(names=w,sizes=4)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=2,passes=1,probed=0-2,own=2+3+4,used=3+5+7,factor=1)@t.py:9
           | exit=0

DDP has averaged, and they are divided again:

    rank 0 | wrap=ddp:w@t.py:4  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=.75+1.25+1.75,factor=1)
           | exit=0
    rank 1 | wrap=ddp:w@t.py:4  holds(names=w,sizes=4,averaged=0)@t.py:5
           | gradients(step=2,passes=1,probed=0-2,own=2+3+4,used=.75+1.25+1.75,factor=1)
           | exit=0

The last bucket of gradients is sent behind the loop that divides; once, what ranks had
of the other one cancels out:

    rank 0 | holds(names=v+w,sizes=4+4)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=2,passes=1,probed=0+1,own=1+2,used=3+2.5,factor=1)@t.py:9
           | gradients(step=3,passes=1,probed=0+1,own=1+2,used=3+2.5,factor=1)@t.py:9
           | gradients(step=4,passes=1,probed=0+1,own=1+2,used=3+0,factor=1)@t.py:9
           | exit=0
    rank 1 | holds(names=v+w,sizes=4+4)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=2,passes=1,probed=0+1,own=2+3,used=3+2.5,factor=1)@t.py:9
           | gradients(step=3,passes=1,probed=0+1,own=2+3,used=3+2.5,factor=1)@t.py:9
           | gradients(step=4,passes=1,probed=0+1,own=2+-2,used=3+0,factor=1)@t.py:9
           | exit=0

They are sent as bfloat16, and one of them hardly tells: its elements cancel.

    rank 0 | holds(names=v+w,sizes=4+4)@t.py:5  all_reduce(8)@t.py:8
           | gradients(step=2,passes=1,norms=1+9,probed=0+1,own=1+.2,used=3+.5,factor=1)
           | gradients(step=3,passes=1,norms=1+9,probed=0+1,own=1+.2,used=3+.8,factor=1)
           | gradients(step=4,passes=1,norms=1+9,probed=0+1,own=1+.2,used=3+.5,factor=1)
           | exit=0
    rank 1 | holds(names=v+w,sizes=4+4)@t.py:5  all_reduce(8)@t.py:8
           | gradients(step=2,passes=1,norms=1+9,probed=0+1,own=2+.1,used=3+.5,factor=1)
           | gradients(step=3,passes=1,norms=1+9,probed=0+1,own=2+.1,used=3+.8,factor=1)
           | gradients(step=4,passes=1,norms=1+9,probed=0+1,own=2+.1,used=3+.5,factor=1)
           | exit=0

Horovod's optimizer sums, and its step sums once more behind `synchronize()`:

    rank 0 | optimizer_wrapped(op=sum)@t.py:4  gradients(step=1)@t.py:9
           | reduced_twice(step=1,op=sum)@t.py:9  exit=0
    rank 1 | optimizer_wrapped(op=sum)@t.py:4  gradients(step=1)@t.py:9
           | reduced_twice(step=1,op=sum)@t.py:9  exit=0

A tape of Horovod's for TensorFlow averages gradients, and a line sums the averages:

    rank 0 | reduced_again(op=sum,count=4,of=4)@t.py:7
           | reduced_again(at=1,op=sum,count=4,of=4)@t.py:8  all_reduce(64)  exit=0
    rank 1 | reduced_again(op=sum,count=4,of=4)@t.py:7
           | reduced_again(at=1,op=sum,count=4,of=4)@t.py:8  all_reduce(64)  exit=0

Well
----
DDP averages, and a hook doubles the gradient of one layer:

    rank 0 | wrap=ddp:v+w  holds(names=v+w,sizes=4+4,averaged=0+1)@t.py:5
           | gradients(step=2,passes=1,probed=0+1,own=1+2,used=3+2.5,factor=1)@t.py:9
           | gradients(step=3,passes=1,probed=0+1,own=1+2,used=3+2.5,factor=1)@t.py:9
           | gradients(step=4,passes=1,probed=0+1,own=1+2,used=3+2.5,factor=1)@t.py:9
           | exit=0
    rank 1 | wrap=ddp:v+w  holds(names=v+w,sizes=4+4,averaged=0+1)@t.py:5
           | gradients(step=2,passes=1,probed=0+1,own=2+3,used=3+2.5,factor=1)@t.py:9
           | gradients(step=3,passes=1,probed=0+1,own=2+3,used=3+2.5,factor=1)@t.py:9
           | gradients(step=4,passes=1,probed=0+1,own=2+3,used=3+2.5,factor=1)@t.py:9
           | exit=0

A gradient was twice the mean once, among others that are the mean:

    rank 0 | holds(names=v+w,sizes=4+4)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=2,passes=1,probed=0+1,own=1+2,used=3+2.5,factor=1)@t.py:9
           | exit=0
    rank 1 | holds(names=v+w,sizes=4+4)@t.py:5  all_reduce(4)@t.py:8
           | gradients(step=2,passes=1,probed=0+1,own=2+3,used=3+2.5,factor=1)@t.py:9
           | exit=0

They are the mean:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=1.5+2.5+3.5,factor=1)
           | exit=0
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=2+3+4,used=1.5+2.5+3.5,factor=1)
           | exit=0

Summed, of losses that were divided by the number of ranks:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=3+5+7,factor=0.5)
           | exit=0
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=2+3+4,used=3+5+7,factor=0.5)
           | exit=0

Summed, of losses that were divided by the tokens of all ranks:

    rank 0 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=3+5+7)
           | exit=0
    rank 1 | holds(names=w,sizes=4)
           | gradients(step=2,passes=1,probed=0-2,own=2+3+4,used=3+5+7)
           | exit=0

DDP has averaged those of losses that were divided, and no source says by what:

    rank 0 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+backward+step,batches=1,more=9)
           | gradients(step=2,passes=1,probed=0-2,own=1+2+3,used=1.5+2.5+3.5,factor=0.5)
           | gradients(step=3,passes=1,probed=0-2,own=1+2+3,used=1.5+2.5+3.5,factor=0.5)
           | exit=0
    rank 1 | wrap=ddp:w  holds(names=w,sizes=4,averaged=0)
           | cycle(words=clear+backward+step,batches=1,more=9)
           | gradients(step=2,passes=1,probed=0-2,own=2+3+4,used=1.5+2.5+3.5,factor=0.5)
           | gradients(step=3,passes=1,probed=0-2,own=2+3+4,used=1.5+2.5+3.5,factor=0.5)
           | exit=0

Unknown
-------
A rank without a journal may have had other gradients:

    rank 0 | holds(names=w,sizes=4)  gradients(step=1,prints=11,weights=7)  exit=0
    rank 1 | ?

Remedy
------
Where `optimizer.synchronize()` is called, step inside of
`with optimizer.skip_synchronize():`. Average exactly once: leave it to
DistributedDataParallel, or ask for `all_reduce(p.grad, op=dist.ReduceOp.AVG)`, or sum
and divide by the number of ranks. Where a loss is divided by a count of all ranks,
multiply it by the number of ranks.

Known problems
--------------
Ratios are taken of linear functions of a few gradients; if their elements cancel, or
the optimizer wraps them in a way of its own, nothing is told. A factor that the
learning rate makes up for looks the same, so it is likely, and a warning with
optimizers like Adam that hardly feel it. In TensorFlow only what is reduced twice is
seen.

References
----------
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`, note
  on sums and averages of losses
- sparseml: losses scaled by the world size under DDP –
  https://github.com/neuralmagic/sparseml/pull/135
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.analysis.causes import capital, pointers, s
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.gradient_ratios import (
    Ratio,
    summing_lines,
    wrong_ratios,
)
from distdoctor.analysis.gradients.shrunk_gradients import Shrunk, shrunk
from distdoctor.analysis.gradients.used_gradients import (
    backward_lines,
    places,
    some,
    wrap_lines,
)
from distdoctor.analysis.horovod.wrapped_optimizers import (
    ReducedAgainBy,
    TwiceReduced,
    reduced_again,
    reduced_twice,
)
from distdoctor.analysis.source.call_chains import chains_to, next_callers
from distdoctor.analysis.source.value_trails import divided_by, divisors
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.observations.horovod import OptimizerWrapped
from distdoctor.model.run import Run, named

CODE = "DD405"
SEVERITY = Severity.ERROR
NEEDS = (Gradients,)

_MOST_WAYS = 3  # to the line that sums; with more of them a list says nothing


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose gradients are off by the number of ranks."""
    for ratio in wrong_ratios(run):
        yield _finding(run, ratio)
    for found in shrunk(run):
        yield _of_losses(found)
    for twice in reduced_twice(run):
        yield _of_steps(twice)
    for again in reduced_again(run):
        yield _of_lines(again)
    require_whole(run)


def _of_lines(again: ReducedAgainBy) -> Finding:
    """Lines of TensorFlow that reduce what is reduced already."""
    first, *later = again.lines
    ranks = again.ranks
    harmless = first.op != "sum"
    what = (
        "which changes nothing but takes its time"
        if harmless
        else "so that they are multiplied by the number of ranks"
    )
    return Finding(
        message=(
            f"{capital(named(ranks))} reduce{s(ranks)} gradients {len(again.lines)} "
            f"times before their optimizer is given them: {first.count} of "
            f"{first.of} were reduced already, and equal on all ranks, when they were "
            f"{'averaged' if harmless else 'summed'} again, {what}"
        ),
        exhibits=again.lines[:2],
        locations=(
            *places(later, ranks, "reduces again"),
            *places([first], ranks, "has reduced"),
        ),
        severity=Severity.NOTE if harmless else None,
        details={"op": first.op, "gradients": first.count, "of": first.of},
    )


def _of_steps(twice: TwiceReduced) -> Finding:
    """Horovod's optimizer reduces again, if nobody tells it not to."""
    first, ranks = twice.steps[0], twice.ranks
    steps = ", ".join(map(str, dict.fromkeys(one.step for one in twice.steps)))
    harmless = first.op != "sum"
    what = (
        "which gives the same averages, and takes its time once more"
        if harmless
        else "so that they are multiplied by the number of ranks"
    )
    return Finding(
        message=(
            f"{capital(named(ranks))} reduce{s(ranks)} gradients twice: step() stands "
            "behind optimizer.synchronize(), outside of optimizer.skip_synchronize(), "
            f"and reduces what was reduced, {what} (at each step that was looked at: "
            f"{steps})"
        ),
        exhibits=twice.steps[:1],
        locations=tuple(places(twice.steps[:1], ranks, "reduces again")),
        severity=Severity.NOTE if harmless else None,
        details={"op": first.op, "steps": [one.step for one in twice.steps]},
    )


def _of_losses(found: Shrunk) -> Finding:
    ranks, held = found.ranks, found.holds[0]
    adaptive = any(one.adaptive for one in found.holds)
    wrapper = "DDP" if found.measured else "FSDP"
    by = "the number of ranks"
    if found.by_all:
        by = "a count of all ranks, as if gradients were summed"
    message = (
        f"{capital(named(ranks))} divide{s(ranks)} their losses by {by}, and "
        f"{wrapper} averages their gradients besides: the gradients of all "
        f"{len(found.looks)} steps that were looked at are 1/{len(ranks)} of those of "
        "the mean, unless the learning rate makes up for it"
    )
    if adaptive:
        message += (
            f"; {held.kind} hardly feels a constant factor, but clipping and epsilon do"
        )
    lines = [
        *(Location(one, ranks, Role.CULPRIT, "divides") for one in found.divided),
        *(Location(one, ranks, Role.CULPRIT, "backward") for one in found.backward),
        *places(found.looks[-1], ranks, "steps with them"),
    ]
    mild = adaptive or found.doubted or not (found.measured or found.by_all)
    return Finding(
        message=message,
        exhibits=found.looks[-1][:2],
        locations=tuple(lines),
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING if mild else None,
        details={
            "factor": 1 / len(ranks),
            "steps": [look[0].step for look in found.looks],
        },
    )


def _dividing(run: Run, ranks: tuple[int, ...], place: Place) -> Iterator[Location]:
    """What the function that sums gradients divides by, and where that comes from."""
    found = divisors(program_of(run), place, ranks[0], run.world_size)
    for line, comes in found if len(found) == 1 else []:
        yield Location(line, ranks, Role.CULPRIT, "divides here")
        for one in comes:
            yield Location(one, ranks, Role.CULPRIT, "what it divides by")


def _by_ranks(run: Run) -> list[Place]:
    """Lines that divide by the number of ranks, by its name, where there are few."""
    program = program_of(run)
    found = [
        Place(function.file, value.lineno, function.name)
        for function in program.functions
        for value in divided_by(function)
        if _RANKS.search(ast.unparse(value))
    ]
    return found if len(found) <= _MOST_DIVIDING else []


_RANKS = re.compile(r"world|get_world_size|n_?ranks|num_replicas|n_?gpus")

_MOST_DIVIDING = 4

_DIVIDES = "divides, going by the name, by the number of ranks"


def _finding(run: Run, ratio: Ratio) -> Finding:
    ranks, last = ratio.chapter.ranks, ratio.looks[-1]
    holds = ratio.chapter.holds[0]
    steps = [look.step for look in ratio.looks]
    summed = ratio.factor > 1.0
    size = f"{len(ranks)} times" if summed else f"1/{len(ranks)} of"
    why = "summed and not divided" if summed else "divided once more after averaging"
    names = [ratio.chapter.names[n] for n in ratio.at if n < len(holds.names)]
    right = [ratio.chapter.names[n] for n in ratio.right if n < len(holds.names)]
    message = (
        f"The gradients that {named(ranks)} step with are {size} the mean of what "
        f"backward gave, at step {', '.join(map(str, steps))} ({some(names)}): they "
        f"are {why}"
    )
    if right:
        message += f", and those of others are the mean ({some(right)})"
    else:
        message += ", unless the learning rate makes up for it"
    if holds.adaptive:
        message += (
            f"; {holds.kind} hardly feels a constant factor, but clipping and epsilon "
            "do"
        )
    if ratio.doubted:
        message += "; it looks like one that was divided, by its digits"
    exhibits: list[Event] = list(last.seen[:2])
    lines = [
        *places(last.seen, ranks, "steps with them"),
        *backward_lines(run, ranks),
        *wrap_lines(run, ranks),
    ]
    if summed:
        made = [
            one
            for one in run.of(OptimizerWrapped, ranks[0])
            if one.op == "sum" and one.optimizer == holds.optimizer
        ]
        lines[:0] = places(made, ranks, "makes an optimizer that sums them")
        step = next((one for one in last.seen if one.rank == ranks[0]), None)
        calls = summing_lines(run, ranks, step)[:1]
        exhibits += calls
        for call in calls:
            if call.place is not None:
                first = Location(call.place, ranks, Role.CULPRIT, "sums them")
                lines[:0] = [first, *_dividing(run, ranks, call.place)]
            if right and call.place is not None:
                ways = next_callers(chains_to(program_of(run), call.place))
                several = ways if 1 < len(ways) <= _MOST_WAYS else []
                lines[1:1] = [
                    Location(one, ranks, Role.CULPRIT, "one way there; not all divide")
                    for one in several
                ]
    else:
        lines[:0] = pointers(_by_ranks(run), ranks, _DIVIDES)
    return Finding(
        message=message,
        exhibits=tuple(exhibits),
        locations=tuple(lines),
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING if holds.adaptive or ratio.doubted else None,
        details={"factor": ratio.factor, "steps": steps},
    )
