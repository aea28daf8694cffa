"""Gradients are cleared within a window: the step is made with its last batches alone.

What it is
----------
To accumulate, backward is called for several batches, and a step is made for all of
them. `zero_grad` then belongs behind the step. Called for every batch, it throws away
what the batches before have given.

Why it matters
--------------
All but the last batch of a window are computed for nothing. The effective batch is a
fraction of what it is meant to be, and losses that are divided by the window make steps
that are too small by that factor, too. No error is raised.

Sick
----
Each batch clears what the one before has given, and every fourth is stepped with:

    rank 0 | cycle(words=clear+3:backward.drop+backward+step,batches=4,more=7)@t.py:9
           | act(word=drop)@t.py:6  exit=0
    rank 1 | cycle(words=clear+3:backward.drop+backward+step,batches=4,more=7)@t.py:9
           | act(word=drop)@t.py:6  exit=0

One batch is split in a loop, and each part has labels of its own:

    rank 0 | cycle(words=clear+backward+drop+backward+step,batches=1,others,more=7)
           | act(word=drop)@t.py:6  exit=0
    rank 1 | cycle(words=clear+backward+drop+backward+step,batches=1,others,more=7)
           | act(word=drop)@t.py:6  exit=0

What clears keeps another time than the steps, as a callback at every third batch:

    rank 0 | cycle(words=clear+backward+drop+3:backward+step)@t.py:9
           | cycle(step=2,words=clear+3:backward+drop+backward+step)@t.py:9
           | cycle(step=3,words=clear+2:backward+drop+2:backward+step)@t.py:9
           | act(word=drop)@t.py:6  exit=0
    rank 1 | cycle(words=clear+backward+drop+3:backward+step)@t.py:9
           | cycle(step=2,words=clear+3:backward+drop+backward+step)@t.py:9
           | cycle(step=3,words=clear+2:backward+drop+2:backward+step)@t.py:9
           | act(word=drop)@t.py:6  exit=0

It clears after every sixth pass, and some windows of four lose half of theirs:

    rank 0 | cycle(words=4:backward+step)@t.py:9
           | cycle(step=2,words=clear+2:backward+drop+2:backward+step)@t.py:9
           | cycle(step=3,words=clear+4:backward+drop+step)@t.py:9
           | cycle(step=4,words=4:backward+step)@t.py:9
           | cycle(step=5,words=clear+2:backward+drop+2:backward+step)@t.py:9
           | cycle(step=6,words=clear+4:backward+drop+step)@t.py:9
           | act(word=drop)@t.py:6  exit=0
    rank 1 | cycle(words=4:backward+step)@t.py:9
           | cycle(step=2,words=clear+2:backward+drop+2:backward+step)@t.py:9
           | cycle(step=3,words=clear+4:backward+drop+step)@t.py:9
           | cycle(step=4,words=4:backward+step)@t.py:9
           | cycle(step=5,words=clear+2:backward+drop+2:backward+step)@t.py:9
           | cycle(step=6,words=clear+4:backward+drop+step)@t.py:9
           | act(word=drop)@t.py:6  exit=0

Well
----
An attack makes as many passes at each step, which it clears:

    rank 0 | cycle(words=clear+3:backward+drop+backward+step)@t.py:9
           | cycle(step=2,words=clear+3:backward+drop+backward+step,more=4)@t.py:9
           | act(word=drop)@t.py:6  exit=0
    rank 1 | cycle(words=clear+3:backward+drop+backward+step)@t.py:9
           | cycle(step=2,words=clear+3:backward+drop+backward+step,more=4)@t.py:9
           | act(word=drop)@t.py:6  exit=0

They are cleared behind the step:

    rank 0 | cycle(step=1,words=clear+4:backward+step,more=7)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=clear+4:backward+step,more=7)@t.py:9  exit=0

What is dropped is for another optimizer, which made a step with it:

    rank 0 | cycle(step=1,words=spare+clear+backward+step,more=7)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=spare+clear+backward+step,more=7)@t.py:9  exit=0

The weights were moved by it, as sharpness-aware steps do:

    rank 0 | cycle(step=1,words=clear+backward+taken+clear+backward+step,more=7)@t.py:9
           | exit=0
    rank 1 | cycle(step=1,words=clear+backward+taken+clear+backward+step,more=7)@t.py:9
           | exit=0

What each loss gives is kept, and put together before the step:

    rank 0 | cycle(words=clear+2:backward.drop+backward+changed+step,more=7)@t.py:9
           | exit=0
    rank 1 | cycle(words=clear+2:backward.drop+backward+changed+step,more=7)@t.py:9
           | exit=0

A batch is bad now and then, and left out:

    rank 0 | cycle(step=1,words=clear+backward+step,more=7)@t.py:9
           | cycle(step=9,words=clear+backward+drop+backward+step)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=clear+backward+step,more=7)@t.py:9
           | cycle(step=9,words=clear+backward+drop+backward+step)@t.py:9  exit=0

A first pass on the same batch is for something else, such as the input's gradient or a
measure, also where a helper runs backward for both:

    rank 0 | cycle(words=clear+backward+drop+backward+step,batches=1,more=7)@t.py:9
           | act(word=backward)@t.py:4  exit=0
    rank 1 | cycle(words=clear+backward+drop+backward+step,batches=1,more=7)@t.py:9
           | act(word=backward)@t.py:4  exit=0

So is one on a batch of another loader:

    rank 0 | cycle(words=clear+backward+drop+backward+step,batches=2,loaders=2,more=7)
           | exit=0
    rank 1 | cycle(words=clear+backward+drop+backward+step,batches=2,loaders=2,more=7)
           | exit=0

Unknown
-------
A rank without a journal may have done so:

    rank 0 | cycle(step=1,words=backward+step)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Clear the gradients behind the step, under the condition that the step has, or before
the first batch of a window.

Known problems
--------------
Whether a pass was for the step or for something else (an adversary, a measure) is told
by the batches; where all passes are on one batch it is a warning or nothing. Gradients
of a few parameters of each optimizer are followed, so what is cleared for others alone
is not seen.

References
----------
- `torch/optim/optimizer.py` (pytorch/pytorch), `Optimizer.zero_grad`
- torch's examples of mixed precision –
  https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.accumulation.cleared_gradients import LostGradients, lost
from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.gradient_states import ProtocolFault
from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    lines_of,
    with_fault,
)
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.optimizer_step import DROP, Cycle
from distdoctor.model.run import Run, named

CODE = "DD503"
SEVERITY = Severity.ERROR
NEEDS = (Cycle,)

_LEAST = 3
"""Steps before which something was lost."""

_LEAST_OF_ALL = 2
"""Likewise, where nothing else was seen: a job may be that short."""

_MOST_STEPS = 0.6
"""Share of the steps; where batches are left out now and then, it is less."""

_MUCH = 0.4
"""Share of the passes that are lost: of windows of two, it is half of them."""

_MUCH_AT_ALL = 0.2
"""Likewise, where it is more of them in one window than in another."""


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers that lose what most batches give."""
    for found in with_fault(run, ProtocolFault.DROPPED):
        losing = [(one, of) for one in found if (of := _lost(one)) is not None]
        if losing:
            yield _finding(run, losing)
    require_whole(run)


def _lost(one: OptimizerHistory) -> LostGradients | None:
    found = lost(one)
    least = _LEAST_OF_ALL if found and found.cycles == one.steps else _LEAST
    if found is None or (found.cycles < least and not found.every):
        return None
    much = _MUCH_AT_ALL if found.wanders else _MUCH
    share = 0.0 if found.every else _MOST_STEPS
    if found.cycles < share * one.steps or found.dropped < much * found.passes:
        return None
    known = found.batches or found.others or found.turns or found.wanders
    return found if known else None


def _finding(run: Run, losing: list[tuple[OptimizerHistory, LostGradients]]) -> Finding:
    (one, found), ranks = losing[0], tuple(each.rank for each, _ in losing)
    acts = [act for each, _ in losing for act in lines_of(run, each, DROP)]
    steps = [of.typical for _, of in losing]
    used = found.passes - found.dropped
    return Finding(
        message=f"{capital(named(ranks))} clear{'s' * (len(ranks) == 1)} gradients "
        f"before a step was made with them, at {found.cycles} of {one.steps} steps: "
        f"of {found.passes} backward passes, {found.dropped} are lost, and {used} "
        f"{'is' if used == 1 else 'are'} stepped with",
        exhibits=(found.typical, *acts[:1]),
        culprits=() if set(ranks) == set(run.seen) else ranks,
        locations=(
            *places(acts, ranks, "clears what no step was made with"),
            *places(steps, ranks, "steps with what is left"),
            *backward_lines(run, ranks),
        ),
        certainty=Certainty.PROVED if found.batches else Certainty.LIKELY,
        severity=(
            None if found.batches or found.others or found.wanders else Severity.WARNING
        ),
        details={
            "passes": found.passes,
            "lost": found.dropped,
            "steps": one.steps,
        },
    )
