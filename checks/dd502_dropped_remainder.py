"""Batches left at the end of an epoch are dropped, leak, or are divided wrongly.

What it is
----------
Gradients are accumulated over several batches, and then stepped with. The number of
batches of an epoch is not a multiple of that, and some are left at its end. Either no
step is made with them, and their gradients are cleared; or nothing clears them, and the
first step of the next epoch is made with them and a full window; or a step is made with
them alone, of losses that were divided for a full window.

Why it matters
--------------
What is dropped is computed for nothing, and never learnt from. What leaks is stale, and
makes that step too large. What is divided by a full window makes a step that is too
small, by as many times as there are too few batches.

Sick
----
Four batches to a step, and one is left: its loss is divided by four, too.

    rank 0 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=0.25)@t.py:12  read(steps=3)@t.py:5
           | exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=0.25)@t.py:12  read(steps=3)@t.py:5
           | exit=0

One is left, and the next epoch's first step is made with five:

    rank 0 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | read(steps=2)@t.py:5
           | window(reads=0+1,batches=1+4,factor=0.25)@t.py:9
           | window(reads=1,batches=4,factor=0.25)@t.py:9
           | read(number=1,steps=2)@t.py:5  window(reads=1,batches=1,end=left)  exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | read(steps=2)@t.py:5
           | window(reads=0+1,batches=1+4,factor=0.25)@t.py:9
           | window(reads=1,batches=4,factor=0.25)@t.py:9
           | read(number=1,steps=2)@t.py:5  window(reads=1,batches=1,end=left)  exit=0

One is left in each epoch, and cleared:

    rank 0 | window(reads=0,batches=4,more=1)@t.py:9  read(steps=2)@t.py:5
           | window(reads=0,batches=1,end=cleared)@t.py:4
           | window(reads=1,batches=4,more=1)@t.py:9  read(number=1,steps=2)@t.py:5
           | window(reads=1,batches=1,end=left)  exit=0
    rank 1 | window(reads=0,batches=4,more=1)@t.py:9  read(steps=2)@t.py:5
           | window(reads=0,batches=1,end=cleared)@t.py:4
           | window(reads=1,batches=4,more=1)@t.py:9  read(number=1,steps=2)@t.py:5
           | window(reads=1,batches=1,end=left)  exit=0

Well
----
The loss is divided by as many batches as there are:

    rank 0 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=1)@t.py:12  read(steps=3)@t.py:5  exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=1)@t.py:12  read(steps=3)@t.py:5  exit=0

The count goes on through the epochs, and the job ends with one that is left:

    rank 0 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | read(steps=2)@t.py:5
           | window(reads=0+1,batches=1+3,factor=0.25)@t.py:9
           | window(reads=1,batches=4,factor=0.25)@t.py:9
           | read(number=1,steps=2)@t.py:5  window(reads=1,batches=2,end=left)  exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | read(steps=2)@t.py:5
           | window(reads=0+1,batches=1+3,factor=0.25)@t.py:9
           | window(reads=1,batches=4,factor=0.25)@t.py:9
           | read(number=1,steps=2)@t.py:5  window(reads=1,batches=2,end=left)  exit=0

Gradients are put right before the step with what is left:

    rank 0 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=0.25,changes=1)@t.py:12
           | read(steps=3)@t.py:5  exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=0.25,changes=1)@t.py:12
           | read(steps=3)@t.py:5  exit=0

The loop is left early, after so many steps as were asked for:

    rank 0 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=0.25)@t.py:12
           | read(steps=3,unfinished)@t.py:5  exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25,more=1)@t.py:9
           | window(reads=0,batches=1,factor=0.25)@t.py:12
           | read(steps=3,unfinished)@t.py:5  exit=0

Windows are as long as their tokens make them:

    rank 0 | window(reads=0,batches=4,factor=0.25)@t.py:9
           | window(reads=0,batches=3,factor=0.25)@t.py:9
           | window(reads=0,batches=4,factor=0.25)@t.py:9
           | window(reads=0,batches=1,factor=0.25)@t.py:12  read(steps=4)@t.py:5
           | exit=0
    rank 1 | window(reads=0,batches=4,factor=0.25)@t.py:9
           | window(reads=0,batches=3,factor=0.25)@t.py:9
           | window(reads=0,batches=4,factor=0.25)@t.py:9
           | window(reads=0,batches=1,factor=0.25)@t.py:12  read(steps=4)@t.py:5
           | exit=0

Unknown
-------
A rank without a journal may have had a remainder:

    rank 0 | window(reads=0,batches=4,factor=0.25)@t.py:9  read(steps=1)@t.py:5  exit=0
    rank 1 | ?

Remedy
------
Make a step for the batches that are left, and divide their losses by their number:
`size = min(window, len(loader) - first)`, where `first` is the number of the window's
first batch. Or leave them out, with `drop_last` or a sampler whose length is a multiple
of the window. Or count through all epochs, and clear gradients only behind a step.

Known problems
--------------
Windows are recognised by at least two of one size; a remainder that is meant (each
batch to weigh the same) is told with "unless". In shortened epochs a multiple of many
small numbers is left out, so that a remainder stays one, but a window of an unusual
size may get another.

References
----------
- accelerate: the end of the loader ends a window by default –
  https://github.com/huggingface/accelerate/issues/1847
- accelerate: gradients at the end of the loader are not synchronised –
  https://github.com/huggingface/accelerate/issues/2831
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from distdoctor.analysis.accumulation.dropped_remainders import (
    Fate,
    Remainder,
    remainders,
)
from distdoctor.analysis.causes import capital
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.source.value_trails import divisors
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Window
from distdoctor.model.run import Run, named

CODE = "DD502"
SEVERITY = Severity.ERROR
NEEDS = (Window,)

_MUCH = 0.05
"""Share of the batches that are lost, or of the steps that are wrong; fewer are no
error."""


def examine(run: Run) -> Iterator[Finding]:
    """Loops that lose their last batches, or weigh them wrongly."""
    for found in remainders(run):
        yield _finding(run, found)
    require_whole(run)


def _divided_by(run: Run, ranks: tuple[int, ...]) -> Iterator[Location]:
    """Where the number comes from by which each loss is divided."""
    for backward in backward_lines(run, ranks):
        found = divisors(program_of(run), backward.place, ranks[0], run.world_size)
        for _, comes in found if len(found) == 1 else []:
            for one in comes:
                yield Location(one, ranks, Role.CULPRIT, "what each loss is divided by")


def _finding(run: Run, found: Sequence[Remainder]) -> Finding:
    one, ranks = found[0], tuple(each.rank for each in found)
    windows: list[Event] = [each.windows[0] for each in found]
    full: list[Event] = [each.full for each in found]
    loops: list[Event] = [each.passes[0].read for each in found]
    ends = places(windows, ranks, _REMARKS[one.fate])
    steps = places(full, ranks, "steps with full windows")
    dropped = one.fate is Fate.DROPPED
    lines = [
        *(steps if dropped else ends),  # beside it belongs a step for the rest
        *(_divided_by(run, ranks) if one.fate is Fate.MISDIVIDED else ()),
        *(ends if dropped else steps),
        *backward_lines(run, ranks),
        *places(loops, ranks, "the loop"),
    ]
    steps_made = ceil(one.batches / one.size)
    wrong = one.left / one.batches if dropped else 1 / steps_made
    grave = one.proved and wrong >= _MUCH
    return Finding(
        message=f"{capital(named(ranks))} accumulate{'s' * (len(ranks) == 1)} the "
        f"gradients of {one.size} batches to a step, and {_what(one)}",
        exhibits=(one.full, *one.windows[:2]),
        locations=tuple(lines),
        certainty=Certainty.PROVED
        if one.fate is Fate.LEAKED and one.proved
        else Certainty.LIKELY,
        severity=None if grave else Severity.WARNING,
        details={
            "fate": str(one.fate),
            "window": one.size,
            "left": one.left,
            "batches": one.batches,
            "passes": len(one.passes),
        },
    )


_REMARKS = {
    Fate.DROPPED: "clears what is left",
    Fate.LEAKED: "steps with what is left, too",
    Fate.MISDIVIDED: "steps with what is left",
}


def _what(one: Remainder) -> str:
    seen = len(one.passes)
    often = f"at the end of {seen} epochs" if seen > 1 else "at the end of an epoch"
    left = (
        f"{one.left} of {one.batches} {'is' if one.left == 1 else 'are'} left {often}"
    )
    if one.fate is Fate.DROPPED:
        share = f"{one.left / one.batches:.1%} of the batches"
        return f"{left}: no step is made with that, {share}, unless that is on purpose"
    if one.fate is Fate.LEAKED:
        return (
            f"{left}: nothing clears the gradients, and the next epoch's first step is "
            f"made with {one.left + one.size} batches"
        )
    return (
        f"{left}: a step is made with that, of losses that were divided by {one.size} "
        f"and not by {one.left}: the gradient is {one.left}/{one.size} of their mean, "
        "unless each batch is to weigh the same on purpose"
    )
