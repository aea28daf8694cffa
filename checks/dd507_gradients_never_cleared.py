"""Gradients are never cleared: each step is made with those of all steps before.

What it is
----------
Backward adds to what is in `.grad`. Who calls no `zero_grad`, or clears tensors that
are the gradients no more, adds up the gradients of all batches since the job began. A
list of gradients goes stale when DDP lays its buckets anew, behind the first step, with
`gradient_as_bucket_view`; and `zero_grad` of one optimizer reaches none of another's.

Why it matters
--------------
The step is made with a sum that grows with the number of steps and is made up of stale
gradients. It works as momentum that never fades: the loss falls at first, and swings or
grows later, and no error is raised.

Sick
----
Backward finds the gradients of the step before, each time:

    rank 0 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=backward+step,more=5)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=backward+step,more=5)@t.py:9  exit=0

They were cleared once, and a list of them went stale:

    rank 0 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=clear+backward+step)@t.py:9
           | cycle(step=3,words=backward+step,more=9)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=clear+backward+step)@t.py:9
           | cycle(step=3,words=backward+step,more=9)@t.py:9  exit=0

Well
----
They are cleared behind each step:

    rank 0 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=clear+backward+step,more=9)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=clear+backward+step,more=9)@t.py:9  exit=0

A pass for the sake of something else adds to them, and is cleared before the next:

    rank 0 | cycle(step=1,words=backward+drop+backward+step)@t.py:9
           | cycle(step=2,words=3:backward+drop+backward+step,more=9)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=backward+drop+backward+step)@t.py:9
           | cycle(step=2,words=3:backward+drop+backward+step,more=9)@t.py:9  exit=0

Several passes are for one step:

    rank 0 | cycle(step=1,words=4:backward+step)@t.py:9
           | cycle(step=2,words=clear+4:backward+step,more=9)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=4:backward+step)@t.py:9
           | cycle(step=2,words=clear+4:backward+step,more=9)@t.py:9  exit=0

Something makes others of them: they fade, on purpose.

    rank 0 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=changed+backward+step,more=9)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=changed+backward+step,more=9)@t.py:9  exit=0

Now and then nothing is cleared:

    rank 0 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=clear+backward+step,more=9)@t.py:9
           | cycle(step=12,words=backward+step)@t.py:9  exit=0
    rank 1 | cycle(step=1,words=backward+step)@t.py:9
           | cycle(step=2,words=clear+backward+step,more=9)@t.py:9
           | cycle(step=12,words=backward+step)@t.py:9  exit=0

Unknown
-------
A rank without a journal may have done so:

    rank 0 | cycle(step=1,words=backward+step)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Call `optimizer.zero_grad()` behind each step, or before the first backward of a window.
Where gradients are cleared by hand, go through the parameters each time and take their
`.grad`: keep no list of gradients.

Known problems
--------------
Gradients that are kept on purpose, as a momentum that is written by hand, are told
where nothing makes them smaller. Followed are a few parameters of each optimizer, so
that one which alone is never cleared is missed.

References
----------
- `torch/optim/optimizer.py` (pytorch/pytorch), `Optimizer.zero_grad`
- xla: gradients that were not reset, and NaN in the end –
  https://github.com/pytorch/xla/pull/3915
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.gradient_states import ProtocolFault
from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    norms_of,
    with_fault,
)
from distdoctor.analysis.optimizer_step.step_lines import clearing_in_vain
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.optimizer_step import Cycle
from distdoctor.model.run import Run, named

CODE = "DD507"
SEVERITY = Severity.ERROR
NEEDS = (Cycle,)

_LEAST = 3
"""Steps that are made with gradients of the step before."""

_MOST_STEPS = 0.8
"""Share of the steps; of fewer, a part may be on purpose."""

_ALL = 0.95
"""Share of the steps from which on nobody can have wanted it."""


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose gradients are those of all steps so far."""
    for found in with_fault(run, ProtocolFault.CARRIED):
        frequent = [one for one in found if _is_frequent(one)]
        if frequent:
            yield _finding(run, frequent)
    require_whole(run)


def _is_frequent(one: OptimizerHistory) -> bool:
    carried = one.faults[ProtocolFault.CARRIED]
    return carried >= _LEAST and carried >= _MOST_STEPS * _later(one)


def _later(one: OptimizerHistory) -> int:
    """Steps that could have found gradients of one before."""
    return max(1, one.steps - 1)


def _finding(run: Run, found: list[OptimizerHistory]) -> Finding:
    one, ranks = found[0], tuple(each.rank for each in found)
    cycle, carried = one.first[ProtocolFault.CARRIED], one.faults[ProtocolFault.CARRIED]
    vain = [
        Location(place, ranks, Role.CULPRIT, "clears what are not the gradients")
        for place in clearing_in_vain(run)
    ]
    steps = places(
        [each.first[ProtocolFault.CARRIED] for each in found], ranks, "steps"
    )
    norms = norms_of(run, one)
    grown = ""
    if len(norms) > 1:
        (first, before), (last, after) = norms[0], norms[-1]
        grown = (
            f" (norm of all gradients: {before:.3g} at step {first}, {after:.3g} at "
            f"step {last})"
        )
    often = carried / _later(one)
    return Finding(
        message=f"{capital(named(ranks))} never "
        f"clear{'s' * (len(ranks) == 1)} the gradients: backward adds to those of the "
        f"step before at {carried} of {one.steps} steps{grown}",
        exhibits=(cycle, *[each.cycles[-1] for each in found][:2]),
        culprits=() if set(ranks) == set(run.seen) else ranks,
        locations=(*vain, *steps, *backward_lines(run, ranks)),
        certainty=Certainty.PROVED if often >= _ALL else Certainty.LIKELY,
        details={"carried": carried, "steps": one.steps},
    )
