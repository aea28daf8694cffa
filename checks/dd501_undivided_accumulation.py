"""Losses of accumulated batches are summed up, and not divided by their number.

What it is
----------
Gradients of several batches are accumulated, and a step is made with them. The loss of
each batch is a mean over the batch. Neither is it divided by the number of batches, nor
are the gradients, before the step. What the optimizer gets is the sum of several means,
and as many times too large. The same holds for one batch that is split, and whose parts
are accumulated.

Why it matters
--------------
Accumulation is to give the step of one large batch. Here, the learning rate is as good
as multiplied by the number of batches; clipping by norm cuts off nearly every gradient;
weight decay is as many times too weak beside them. Who changes how much is accumulated
changes the training.

Sick
----
Four batches to a step, each with the factor 1:

    rank 0 | weighed(window=1,batches=4,factors=1+1+1+1,own=3,used=3)@t.py:9
           | weighed(window=2,batches=4,factors=1+1+1+1,own=2,used=2)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=4,factors=1+1+1+1,own=3,used=3)@t.py:9
           | weighed(window=2,batches=4,factors=1+1+1+1,own=2,used=2)@t.py:9  exit=0

One batch is split in two, and the ranks average their gradients behind backward:

    rank 0 | weighed(window=1,batches=2,factors=1+1,parts,own=3,used=2)@t.py:9
           | weighed(window=2,batches=2,factors=1+1,parts,own=2,used=4)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=2,factors=1+1,parts,own=1,used=2)@t.py:9
           | weighed(window=2,batches=2,factors=1+1,parts,own=6,used=4)@t.py:9  exit=0

Gradients are clipped before each step, by more the larger they are:

    rank 0 | weighed(window=1,batches=4,factors=1+1+1+1,own=3,used=2)@t.py:9
           | weighed(window=2,batches=4,factors=1+1+1+1,own=4,used=2)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=4,factors=1+1+1+1,own=3,used=2)@t.py:9
           | weighed(window=2,batches=4,factors=1+1+1+1,own=4,used=2)@t.py:9  exit=0

Losses are divided by the number of ranks, whose gradients are summed up:

    rank 0 | weighed(window=1,batches=4,factors=.5+.5+.5+.5,own=3,used=4)@t.py:9
           | weighed(window=2,batches=4,factors=.5+.5+.5+.5,own=2,used=8)@t.py:9
           | exit=0
    rank 1 | weighed(window=1,batches=4,factors=.5+.5+.5+.5,own=1,used=4)@t.py:9
           | weighed(window=2,batches=4,factors=.5+.5+.5+.5,own=6,used=8)@t.py:9
           | exit=0

Well
----
Each loss is divided by four:

    rank 0 | weighed(window=1,batches=4,factors=.25+.25+.25+.25,own=3,used=3)@t.py:9
           | weighed(window=2,batches=4,factors=.25+.25+.25+.25,own=2,used=2)@t.py:9
           | exit=0
    rank 1 | weighed(window=1,batches=4,factors=.25+.25+.25+.25,own=3,used=3)@t.py:9
           | weighed(window=2,batches=4,factors=.25+.25+.25+.25,own=2,used=2)@t.py:9
           | exit=0

The gradients are, before the step:

    rank 0 | weighed(window=1,batches=4,factors=1+1+1+1,own=4,used=1)@t.py:9
           | weighed(window=2,batches=4,factors=1+1+1+1,own=2,used=.5)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=4,factors=1+1+1+1,own=4,used=1)@t.py:9
           | weighed(window=2,batches=4,factors=1+1+1+1,own=2,used=.5)@t.py:9  exit=0

Losses are sums, or nobody knows what they are:

    rank 0 | weighed(window=1,batches=4,factors=0+0+0+0,own=3,used=3)@t.py:9
           | weighed(window=2,batches=4,factors=0+0+0+0,own=2,used=2)@t.py:9  exit=0
    rank 1 | weighed(window=1,batches=4,factors=0+0+0+0,own=3,used=3)@t.py:9
           | weighed(window=2,batches=4,factors=0+0+0+0,own=2,used=2)@t.py:9  exit=0

One term of the loss is divided by four, and one is not:

    rank 0 | weighed(window=1,batches=2,factors=1+1,constants=.5,own=3,used=3)@t.py:9
           | weighed(window=2,batches=2,factors=1+1,constants=.5,own=2,used=2)@t.py:9
           | exit=0
    rank 1 | weighed(window=1,batches=2,factors=1+1,constants=.5,own=3,used=3)@t.py:9
           | weighed(window=2,batches=2,factors=1+1,constants=.5,own=2,used=2)@t.py:9
           | exit=0

Unknown
-------
A rank without a journal may accumulate:

    rank 0 | weighed(window=1,batches=2,factors=.5+.5,own=3,used=3)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Divide each loss by the number of batches before backward: `(loss / window).backward()`.
Or divide the sum of all by the number of samples or tokens of the window. Choose the
learning rate for the mean.

Known problems
--------------
It is told from a few windows and from the graph of the loss: with one window of that
size, or where it comes late in a long run, nothing is said. That a learning rate was
chosen for the sum is not known, so it is likely at most, and a loss of the user's own
whose graph has no mean says nothing.

References
----------
- torch's examples of mixed precision –
  https://docs.pytorch.org/docs/stable/notes/amp_examples.html
- transformers: the loss under gradient accumulation –
  https://github.com/huggingface/transformers/pull/34191
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.accumulation.unequal_weights import (
    MUCH_LARGER,
    UndividedAccumulation,
    undivided,
)
from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.making_lines import loss_lines
from distdoctor.analysis.source.value_trails import multipliers
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Weighed
from distdoctor.model.run import Run, named

CODE = "DD501"
SEVERITY = Severity.ERROR
NEEDS = (Weighed,)


def examine(run: Run) -> Iterator[Finding]:
    """Steps that are made with the sum of the gradients of several means."""
    for found in undivided(run):
        yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: Sequence[UndividedAccumulation]) -> Finding:
    ranks = tuple(sorted({each.rank for each in found}))
    one = max(found, key=lambda each: each.times)
    what = "parts of a batch" if one.seen[0].parts else "batches"
    steps = [each.seen[0] for each in found]
    backward = backward_lines(run, ranks)
    times = f"gradients are {one.batches} times those of the mean"
    if one.smaller:
        times += (
            ", and are made smaller before each step, as by clipping, to "
            f"{one.times:.3g} times those in the middle"
        )
    elif one.adaptive:
        times += ", which the optimizer makes up for but for clipping and its `eps`"
    return Finding(
        message=f"{capital(named(ranks))} accumulate{s(ranks)} the gradients of "
        f"{one.batches} {what} to a step, the loss of each is a mean, and nothing is "
        f"divided by {one.batches}: {times}, unless the learning rate is chosen for "
        "that",
        exhibits=one.seen[:2],
        locations=(
            *backward,
            *_weights(run, backward, ranks),
            *loss_lines(run, backward, ranks),
            *places(steps, ranks, "steps with the sum"),
        ),
        certainty=Certainty.LIKELY,
        severity=None if one.times >= MUCH_LARGER else Severity.WARNING,
        details={
            "batches": one.batches,
            "times": one.times,
            "steps": [look.window for look in one.seen],
            "parts": one.seen[0].parts,
            "adaptive": one.adaptive,
        },
    )


def _weights(
    run: Run, backward: Sequence[Location], ranks: tuple[int, ...]
) -> list[Location]:
    """Where the numbers come from that losses are multiplied by."""
    program = program_of(run)
    lines = dict.fromkeys(
        line
        for one in backward
        for line in multipliers(program, one.place, ranks[0], run.world_size)
    )
    return [Location(one, ranks, Role.CULPRIT, "weighs the loss") for one in lines]
