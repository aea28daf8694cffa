"""Means over unequally many tokens are averaged as if they were of equally many.

What it is
----------
Gradients of several batches are accumulated to a step. The loss of each is a mean over
its own tokens, or samples, and all are divided by the same number: that of the batches.
But some batches have far more tokens than others, as they do where padding and ignored
labels do not count. Likewise, DDP gives the mean of each rank's batch the same weight.

Why it matters
--------------
A mean of means is the mean only of equally many. Here, a token of a short batch weighs
more than one of a long batch. What is trained differs from what one large batch would
train, and depends on how the batches were cut. No figure that is printed shows it.

Sick
----
Two batches to a step, one of which has far fewer tokens; now it is the first, and now
the second:

    rank 0 | weighed(window=1,batches=2,factors=.5+.5,counts=20+60)@t.py:9
           | weighed(window=2,batches=2,factors=.5+.5,counts=50+30)@t.py:9
           | weighed(window=3,batches=2,factors=.5+.5,counts=10+60)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=2,factors=.5+.5,counts=44+40)@t.py:9
           | weighed(window=2,batches=2,factors=.5+.5,counts=50+70)@t.py:9
           | weighed(window=3,batches=2,factors=.5+.5,counts=10+60)@t.py:9  exit=0

One rank's batches have far fewer tokens than those of the other, step by step:

    rank 0 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=20)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=60)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=25)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=50)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=30)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=70)@t.py:9  exit=0

One of two ranks has twice as many in each step:

    rank 0 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=40)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=30)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=35)@t.py:9
           | weighed(window=4,batches=1,factors=1,counts=45)@t.py:9
           | weighed(window=8,batches=1,factors=1,counts=40)@t.py:9
           | weighed(window=16,batches=1,factors=1,counts=40)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=90)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=85)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=80)@t.py:9
           | weighed(window=4,batches=1,factors=1,counts=99)@t.py:9
           | weighed(window=8,batches=1,factors=1,counts=90)@t.py:9
           | weighed(window=16,batches=1,factors=1,counts=95)@t.py:9  exit=0

Well
----
Those of ranks differ a little, as padded batches do:

    rank 0 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=40)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=55)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=45)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=50)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=44)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=52)@t.py:9  exit=0

Those of ranks differ, and each trains a model of its own:

    rank 0 | wrap=ddp:w  gradients(step=1,prints=3)
           | weighed(window=1,batches=1,factors=1,counts=20)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=60)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=25)@t.py:9  exit=0
    rank 1 | wrap=ddp:w  gradients(step=1,prints=4)
           | weighed(window=1,batches=1,factors=1,counts=50)@t.py:9
           | weighed(window=2,batches=1,factors=1,counts=30)@t.py:9
           | weighed(window=3,batches=1,factors=1,counts=70)@t.py:9  exit=0

Each has as many as the others, but for the last one of an epoch:

    rank 0 | weighed(window=1,batches=3,factors=1+1+1,counts=8+8+8)@t.py:9
           | weighed(window=2,batches=3,factors=1+1+1,counts=8+8+3)@t.py:9
           | weighed(window=3,batches=3,factors=1+1+1,counts=8+8+3)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=3,factors=1+1+1,counts=8+8+8)@t.py:9
           | weighed(window=2,batches=3,factors=1+1+1,counts=8+8+3)@t.py:9
           | weighed(window=3,batches=3,factors=1+1+1,counts=8+8+3)@t.py:9  exit=0

Each loss is multiplied by its share of the tokens:

    rank 0 | weighed(window=1,batches=2,factors=.25+.75,counts=20+60)@t.py:9
           | weighed(window=2,batches=2,factors=.625+.375,counts=50+30)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=2,factors=.25+.75,counts=20+60)@t.py:9
           | weighed(window=2,batches=2,factors=.625+.375,counts=50+30)@t.py:9  exit=0

The losses are sums, divided by the tokens of all batches of the step:

    rank 0 | weighed(window=1,batches=2,factors=0+0,counts=0+0)@t.py:9
           | weighed(window=2,batches=2,factors=0+0,counts=0+0)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=2,factors=0+0,counts=0+0)@t.py:9
           | weighed(window=2,batches=2,factors=0+0,counts=0+0)@t.py:9  exit=0

Unknown
-------
A rank without a journal may have unequal counts:

    rank 0 | weighed(window=1,batches=2,factors=.5+.5,counts=8+8)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Take the sum over the tokens (`reduction="sum"`), and divide it by the number of tokens
of all batches of the step, which are counted before the first of them. With data
parallelism, that is their sum over all ranks, divided by the number of ranks, as
gradients are averaged over ranks.

Known problems
--------------
Counts are read from the graph of the loss: of a loss of the user's own, of a compiled
or checkpointed one, they may be unknown. That ranks must differ by half is a guess at
what random batches cannot explain, so it is a warning; batches of very unequal length
that are drawn at random may be told.

References
----------
- transformers: sum and not mean, where gradients are accumulated –
  https://github.com/huggingface/transformers/issues/24725
- transformers: the mending of it –
  https://github.com/huggingface/transformers/pull/34191
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.accumulation.unequal_weights import (
    MUCH,
    TWICE,
    UnequalMeans,
    UnevenRanks,
    excess_of,
    uneven,
    uneven_ranks,
)
from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.making_lines import mean_loss_lines
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.gradients import Weighed
from distdoctor.model.run import Run, named

CODE = "DD504"
SEVERITY = Severity.ERROR
NEEDS = (Weighed,)


def examine(run: Run) -> Iterator[Finding]:
    """Steps that are made with means of unequally many elements."""
    for found in uneven(run):
        yield _finding(run, found)
    for ranks in uneven_ranks(run):
        yield _of_ranks(run, ranks)
    require_whole(run)


def _of_ranks(run: Run, found: UnevenRanks) -> Finding:
    counts = ", ".join(f"{one.counts[0]:.0f}" for one in found.worst)
    backward = backward_lines(run, found.ranks)
    largest = max(found.looks[0], key=lambda one: one.counts[0]).rank
    always = f", and rank {largest} has the most in each" if found.steady else ""
    return Finding(
        message=f"The losses of {named(found.ranks)} are means over their own tokens "
        "or samples, and are averaged as if of equally many, but their counts differ, "
        f"as {counts} at step {found.worst[0].window}: an element of one rank weighs "
        f"{found.excess:.0%} more than one of another, in the middle of "
        f"{len(found.looks)} steps{always}, unless each rank is to weigh the same on "
        "purpose",
        exhibits=found.worst,
        locations=(
            *mean_loss_lines(run, backward, found.ranks),
            *backward,
            *places(found.worst, found.ranks, "steps with the mean of means"),
        ),
        certainty=Certainty.LIKELY,
        severity=None if found.steady and found.excess >= TWICE else Severity.WARNING,
        details={"excess": found.excess, "looked": len(found.looks)},
    )


def _finding(run: Run, found: Sequence[UnequalMeans]) -> Finding:
    ranks = tuple(sorted({each.rank for each in found}))
    one = max(found, key=lambda each: each.excess)
    worst = max(one.seen, key=excess_of)
    counts = ", ".join(f"{count:.0f}" for count in worst.counts)
    steps = [each.seen[0] for each in found]
    backward = backward_lines(run, ranks)
    return Finding(
        message=f"{capital(named(ranks))} accumulate{s(ranks)} the gradients of "
        f"{one.batches} {'parts of a batch' if worst.parts else 'batches'} to a step, "
        "the loss of each is a mean over its own tokens or samples, and all weigh the "
        f"same, but their counts differ, as {counts} for step {worst.window} of rank "
        f"{one.rank}: one weighs up to {excess_of(worst):.0%} more than another, "
        "unless each batch is to weigh the same on purpose",
        exhibits=(worst, *(look for look in one.seen if look is not worst)),
        locations=(
            *mean_loss_lines(run, backward, ranks),
            *backward,
            *places(steps, ranks, "steps with the mean of means"),
        ),
        certainty=Certainty.LIKELY,
        severity=None if one.excess >= MUCH else Severity.WARNING,
        details={
            "batches": one.batches,
            "counts": list(worst.counts),
            "excess": one.excess,
            "steps": len(one.seen),
            "looked": one.looked,
        },
    )
