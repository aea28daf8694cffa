"""An optimizer steps weights in half precision, and keeps no copy of them.

What it is
----------
Parameters are float16 or bfloat16, and so is all that the optimizer keeps for them: no
copy in float32 takes up what a step adds. Neighbouring numbers lie 1/1024 of their size
apart in float16, and 1/128 in bfloat16; a step that is smaller than half of that is
rounded away. In float16, numbers below 3e-8 are 0: the squares that Adam averages,
where a gradient is below 2e-4, and its epsilon of 1e-8. Then it divides by 0.

Why it matters
--------------
Weights become NaN; or they stop where they are while the loss still has far to fall,
because every single step is lost, however many there are.

Sick
----
Adam's steps in float16 have spoilt the weights:

    rank 0 | holds(names=w,sizes=400,kind=Adam,halves)@t.py:5
           | half_step(step=1,rate=.001,epsilon=1e-8,stateful,given=400,faded=90)@t.py:9
           | not_finite(step=1,finite=1,names=w,count=1,of=1)@t.py:9  exit=0

They have not yet, and divide by 0:

    rank 0 | holds(names=w,sizes=400,kind=Adam,halves)@t.py:5
           | half_step(step=1,rate=.001,epsilon=1e-8,stateful,given=400,faded=9)@t.py:9
           | half_step(step=2,rate=.001,epsilon=1e-8,stateful,given=400,faded=7)@t.py:9
           | exit=0

Most steps are too small for float16, and momentum does not add them up:

    rank 0 | holds(names=w,sizes=400,kind=SGD,halves)@t.py:5
           | half_step(step=1,rate=.001,stateful,given=400,lost=340)@t.py:9
           | half_step(step=2,rate=.001,stateful,given=400,lost=290)@t.py:9  exit=0

Nearly all are too small for bfloat16:

    rank 0 | holds(names=w,sizes=400,kind=AdamW,halves)@t.py:5
           | half_step(step=1,dtype=bfloat16,rate=2e-5,given=400,lost=390)@t.py:9
           | half_step(step=2,dtype=bfloat16,rate=2e-5,given=400,lost=392)@t.py:9
           | exit=0

Some of the steps on a third of the weights are too small, and it is always the same:

    rank 0 | holds(names=w,sizes=400,kind=AdamW,halves,adaptive)@t.py:5
           | half_step(step=1,dtype=bfloat16,rate=5e-4,given=400)@t.py:9
           | half_step(step=4,dtype=bfloat16,rate=5e-4,given=400,lost=140,since=1,stayed=90)@t.py:9
           | half_step(step=8,dtype=bfloat16,rate=5e-4,given=400,lost=160,since=4,stayed=130)@t.py:9
           | exit=0

Well
----
As many of the steps are too small, and others move the same weights:

    rank 0 | holds(names=w,sizes=400,kind=AdamW,halves,adaptive)@t.py:5
           | half_step(step=1,dtype=bfloat16,rate=2e-3,given=400)@t.py:9
           | half_step(step=4,dtype=bfloat16,rate=2e-3,given=400,lost=140,since=1,stayed=9)@t.py:9
           | half_step(step=8,dtype=bfloat16,rate=2e-3,given=400,lost=160,since=4,stayed=9)@t.py:9
           | exit=0

Plain gradient descent, which has next to nothing to add to what stays:

    rank 0 | holds(names=w,sizes=400,kind=SGD,halves)@t.py:5
           | half_step(step=1,dtype=bfloat16,rate=.5,given=400)@t.py:9
           | half_step(step=4,dtype=bfloat16,rate=.5,given=400,lost=140,since=1,stayed=90)@t.py:9
           | half_step(step=8,dtype=bfloat16,rate=.5,given=400,lost=160,since=4,stayed=130)@t.py:9
           | exit=0

Weights in bfloat16, and steps that they can show:

    rank 0 | holds(names=w,sizes=400,kind=AdamW,halves)@t.py:5
           | half_step(step=1,dtype=bfloat16,rate=.001,given=400,lost=9)@t.py:9
           | half_step(step=2,dtype=bfloat16,rate=.001,given=400,lost=80)@t.py:9
           | exit=0

The steps of a warm-up are small:

    rank 0 | holds(names=w,sizes=400,kind=AdamW,halves)@t.py:5
           | half_step(step=1,dtype=bfloat16,rate=1e-6,given=400,lost=400)@t.py:9
           | half_step(step=2,dtype=bfloat16,rate=2e-6,given=400,lost=400)@t.py:9
           | half_step(step=4,dtype=bfloat16,rate=4e-6,given=400,lost=400)@t.py:9
           | exit=0

The optimizer keeps what rounding takes away, or rounds by chance:

    rank 0 | holds(names=w,sizes=400,kind=KahanAdam,halves)@t.py:5
           | half_step(step=1,dtype=bfloat16,own,compensated,given=400,lost=390)@t.py:9
           | half_step(step=2,dtype=bfloat16,own,compensated,given=400,lost=390)@t.py:9
           | exit=0

Unknown
-------
A rank without a journal may keep others:

    rank 0 | holds(names=w,sizes=400,kind=Adam)@t.py:5  exit=0
    rank 1 | ?

Remedy
------
Leave the model in float32 and compute under `torch.autocast`, for float16 with a
GradScaler. Where memory is short, keep weights in half precision for forward and
backward and let the optimizer step copies in float32, as the mixed precision of FSDP
does; or add up in bfloat16 with stochastic rounding or with Kahan's compensation.

Known problems
--------------
Looked at are up to 32 parameters and 2048 elements of each, at a few steps, and copies
in float32 are searched for among tensors that the optimizer holds: one that a library
keeps elsewhere is missed. Shares above which it is told were chosen on small models; at
a rate that falls, steps become too small by nature.

References
----------
- Zamirai et al. (2020), Revisiting BFloat16 Training – https://arxiv.org/abs/2010.06192
- Micikevicius et al. (2018), Mixed Precision Training –
  https://arxiv.org/abs/1710.03740
- torchao: weights in bfloat16 and stochastic rounding –
  https://github.com/pytorch/ao/pull/1124
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.amp.low_precision_weights import (
    LowPrecisionWeights,
    Trouble,
    halves,
    still_in,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places, some
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.run import Run, named

CODE = "DD516"
SEVERITY = Severity.ERROR
NEEDS = (Holds,)


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers that step weights in half precision, each with all its ranks."""
    found: dict[tuple[int, Trouble], list[LowPrecisionWeights]] = {}
    for one in halves(run):
        found.setdefault((one.holds.optimizer, one.trouble), []).append(one)
    for alike in found.values():
        yield _finding(alike)
    require_whole(run)


def _finding(alike: Sequence[LowPrecisionWeights]) -> Finding:
    one, ranks = alike[0], tuple(sorted({each.rank for each in alike}))
    step = one.shown
    spoilt = [each.spoilt for each in alike if each.spoilt is not None]
    exhibits: list[Event] = [one.holds, step, *spoilt[:2]]
    made: list[Event] = [each.holds for each in alike]
    proved = one.trouble is Trouble.NOT_FINITE
    return Finding(
        message=f"{one.holds.kind} on {named(ranks)} steps {step.count} of "
        f"{len(one.holds.names)} parameters in {step.dtype} ({some(one.holds.names)}), "
        f"without a copy in float32: {_what(one)}",
        exhibits=tuple(exhibits),
        locations=(
            *places(made, ranks, "makes the optimizer"),
            *places(spoilt, ranks, "first seen here"),
            *places([each.shown for each in alike], ranks, "steps"),
        ),
        certainty=Certainty.PROVED if proved else Certainty.LIKELY,
        severity=None if one.grave else Severity.WARNING,
        details={
            "trouble": str(one.trouble),
            "dtype": step.dtype,
            "share": one.share,
            "step": step.step,
        },
    )


def _what(one: LowPrecisionWeights) -> str:
    step = one.shown
    faded = f"{one.share:.1%} of what it keeps is 0 at step {step.step}"
    if step.epsilon:
        faded += f", where it divides by that and {step.epsilon:g}, which is 0, too"
    match one.trouble:
        case Trouble.NOT_FINITE:
            assert one.spoilt is not None
            sentence = f"weights became NaN or Inf by step {one.spoilt.step}"
            return f"{sentence}; {faded}" if one.share else sentence
        case Trouble.LOST:
            return (
                f"of the weights that have a gradient, {one.share:.0%} or more stay as "
                f"they are at each of {len(one.seen)} steps that were looked at; steps "
                f"at a learning rate of {step.rate:g} are too small for the dtype"
            )
        case Trouble.STILL:
            windows = " and ".join(
                f"from step {each.since} to {each.step}" for each in still_in(one.seen)
            )
            return (
                f"of the weights that have a gradient, {one.share:.0%} or more stay "
                f"exactly as they are {windows}: at a learning rate of {step.rate:g} "
                "every single step on them is rounded away"
            )
        case Trouble.FADED:
            return faded
        case Trouble.RISKY:
            return "it works as long as gradients and steps are large enough"
