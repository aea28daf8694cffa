"""The learning rate jumps where its warm-up ends.

What it is
----------
The learning rate rises over some steps, and then a second formula takes over: a decay
by a cosine or a line, or a constant. The two do not meet. The second formula begins
above the rate that the warm-up has come to, for instance because the base rate is added
to a curve that begins at the highest rate already, or far below it, because it counts
steps from another one, or begins with another base.

Why it matters
--------------
A warm-up is there to come to the highest rate slowly. Where the rate jumps up, the
steps that it should protect from come all the same, and the loss may leap; where it
drops, the highest rate is never trained with.

Sick
----
Behind the warm-up, the curve begins higher by three times the slope, and falls:

    rank 0 | rate_rise(steps=3-10,rates=.02+.025+.03+.035+.05+.0497+.049+.047,until=10)
           | exit=0
    rank 1 | rate_rise(steps=3-10,rates=.02+.025+.03+.035+.05+.0497+.049+.047,until=10)
           | exit=0

It drops to a third:

    rank 0 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.27+.26+.25,until=9)@t.py:9  exit=0
    rank 1 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.27+.26+.25,until=9)@t.py:9  exit=0

It stays where it drops to:

    rank 0 | rate_rise(steps=3-7,rates=.2+.4+.6+.8+.1,until=90)@t.py:9  exit=0
    rank 1 | rate_rise(steps=3-7,rates=.2+.4+.6+.8+.1,until=90)@t.py:9  exit=0

Well
----
A line up, and a cosine down:

    rank 0 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.79+.78+.76,until=9)  exit=0
    rank 1 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.79+.78+.76,until=9)  exit=0

The highest rate is kept for a while, and then divided by ten:

    rank 0 | rate_rise(steps=3-6+40+80,rates=.2+.4+.6+.8+.08+.008,until=90)  exit=0
    rank 1 | rate_rise(steps=3-6+40+80,rates=.2+.4+.6+.8+.08+.008,until=90)  exit=0

It grows by a factor:

    rank 0 | rate_rise(steps=1-7,rates=.001+.01+.1+1.0+.9+.8+.7,until=7)  exit=0
    rank 1 | rate_rise(steps=1-7,rates=.001+.01+.1+1.0+.9+.8+.7,until=7)  exit=0

It falls as fast as it has risen, and rises again:

    rank 0 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.6+.4+.2,until=9)  exit=0
    rank 1 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.6+.4+.2,until=9)  exit=0

Unknown
-------
A rank without a journal may have another schedule:

    rank 0 | rate_rise(steps=3-9,rates=.2+.4+.6+.8+.79+.78+.76,until=9)  exit=0
    rank 1 | ?

Remedy
------
Let the second formula begin at the rate that the warm-up ends with, and count its steps
from there: `low + (top - low) * (1 + cos(pi * gone)) / 2` for a warm-up from `low` to
`top`. Or leave both to torch: `SequentialLR` of `LinearLR` and `CosineAnnealingLR`,
whose milestone is the length of the first.

Known problems
--------------
The run has to get past the warm-up, and two steps further. Restarts, cycles and a rate
that is meant to leap (super-convergence, a second phase) look alike and are told as
likely; a jump of less than a tenth is not told at all.

References
----------
- Goyal et al. (2017), Accurate, Large Minibatch SGD – https://arxiv.org/abs/1706.02677
- `torch/optim/lr_scheduler.py` (pytorch/pytorch), `SequentialLR`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.learning_rate.schedules import rate_details
from distdoctor.analysis.learning_rate.warm_up_jumps import MUCH, Jump, jumps
from distdoctor.analysis.source.result_lines import returned_at, returns_of
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.learning_rate import (
    RateRise,
    RateSet,
)
from distdoctor.model.run import Run, named

CODE = "DD533"
SEVERITY = Severity.ERROR
NEEDS = (RateRise,)


def examine(run: Run) -> Iterator[Finding]:
    """Learning rates that do not go on from where their warm-up ended."""
    for ranks, jump in jumps(run):
        yield _finding(run, ranks, jump)
    require_whole(run)


def _finding(run: Run, ranks: tuple[int, ...], jump: Jump) -> Finding:
    climb = jump.climb
    setters = [
        one for one in run.of(RateSet, climb.rank) if one.optimizer == climb.optimizer
    ]
    goes_on = (
        f"falls by {jump.next_slope:.3g} at most each time from there on"
        if jump.decays
        else "stays there"
    )
    up = jump.after > jump.before
    grave = jump.decays and jump.share >= MUCH
    return Finding(
        message=f"The learning rate of {named(ranks)} rises by {jump.slope:.3g} each "
        f"time, to {jump.before:.4g}, and at step {jump.step} it "
        f"{'jumps up' if up else 'drops'} to {jump.after:.4g} and {goes_on}: the "
        "warm-up and what comes behind it do not meet, unless that is on purpose",
        exhibits=(climb, *setters),
        locations=(
            *_setting(run, ranks, setters),
            *places([climb], ranks, "makes the step"),
        ),
        certainty=Certainty.LIKELY,
        severity=None if grave else Severity.WARNING,
        details={
            "step": jump.step,
            "before": jump.before,
            "after": jump.after,
            "slope": jump.slope,
            **rate_details(run, climb.rank, climb.optimizer),
        },
    )


def _setting(
    run: Run, ranks: tuple[int, ...], setters: Sequence[RateSet]
) -> Iterator[Location]:
    """Lines that set the rate; of a function that computes it, those that return it."""
    for setter in setters:
        returns = []
        if setter.place is not None:
            program = program_of(run)
            returns = returns_of(program, setter.place)
            returns = returns or returned_at(program, setter.place)
        for place in returns:
            yield Location(place, ranks, Role.CULPRIT, "computes the learning rate")
        yield from places([setter], ranks, "sets the learning rate")
