"""NaN or Inf came into the weights.

What it is
----------
A loss that is not finite (the logarithm or root of 0, a division by 0, an overflow of
float16) makes gradients that are not, and a step with them spoils all weights at once.
Averaging brings one rank's NaN to all others. Where gradients are finite and weights
are not, the step itself has overflowed, as Adam's does in float16: its epsilon of 1e-8
is 0 there.

Why it matters
--------------
From then on nothing is learnt: every loss is NaN. The job goes on to its end, and
saves checkpoints.

Sick
----
The loss of rank 1 is NaN, and averaging brings it to all:

    rank 0 | holds(names=w,sizes=4)
           | not_finite(step=6,finite=4,names=w,count=1,of=1,gradients)@t.py:9  exit=0
    rank 1 | holds(names=w,sizes=4)
           | not_finite(step=6,finite=4,names=w,count=1,of=1,gradients,loss)@t.py:8
           | exit=0

Its graph shows by what:

    rank 0 | holds(names=w,sizes=4)
           | not_finite(step=6,finite=4,names=w,count=1,of=1,gradients)@t.py:9  exit=0
    rank 1 | holds(names=w,sizes=4)
           | not_finite(step=6,finite=4,names=w,count=1,of=1,gradients,loss,operation=log)@t.py:8
           | exit=0

The step itself has overflowed, with weights in half precision:

    rank 0 | holds(names=w,sizes=4,kind=Adam,halves)@t.py:5
           | not_finite(step=2,finite=2,names=w,count=1,of=1)@t.py:9  exit=0

Well
----
All steps left finite weights; what a GradScaler skips is no step:

    rank 0 | holds(names=w,sizes=4)  gradients(step=1,norms=1)  exit=0

Unknown
-------
A rank without a journal may have had them first:

    rank 0 | holds(names=w,sizes=4)  exit=0
    rank 1 | ?

Remedy
------
Find the operation with `torch.autograd.set_detect_anomaly(True)` at that step, or look
at that batch: bound what a logarithm, root or division gets (`clamp_min(eps)`), lower
the learning rate, clip gradients. Keep weights in float32 and compute under autocast,
with a GradScaler for float16. Give every parameter a value after `to_empty()`, which
leaves what the memory held before.

Known problems
--------------
On the CPU each step is looked at; on a GPU only steps 1 to 4, 8, 16 and so on, and the
step named may be later than the first. Which operation made the number is read from the
graph once, where the loss is on the CPU; lines of the source that have such an
operation are told as possible.

References
----------
- WeatherGenerator: one rank's NaN poisons the all-reduce –
  https://github.com/ecmwf/WeatherGenerator/pull/2718
- `torch/autograd/anomaly_mode.py` (pytorch/pytorch), `detect_anomaly`
- Micikevicius et al. (2018), Mixed Precision Training –
  https://arxiv.org/abs/1710.03740
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.amp.low_precision_weights import explains
from distdoctor.analysis.amp.spoiling_lines import OPERATIONS, computing
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places, some
from distdoctor.analysis.optimizer_step.held_parameters import held
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Holds, NotFinite
from distdoctor.model.run import Run, named

CODE = "DD416"
SEVERITY = Severity.ERROR
NEEDS = (Holds,)


def examine(run: Run) -> Iterator[Finding]:
    """The first ranks and step with weights that are not finite."""
    seen = [
        event
        for rank in run.seen
        for event in run.of(NotFinite, rank)
        if not explains(run, event)  # then DD516 tells
    ]
    if seen:
        yield _finding(run, seen)
    require_whole(run)


def _finding(run: Run, seen: list[NotFinite]) -> Finding:
    step = min(event.step for event in seen)
    first = [event for event in seen if event.step == step]
    ranks = tuple(sorted({event.rank for event in first}))
    lossy = [event for event in first if event.loss]
    reported = lossy or [event for event in first if event.gradients] or first
    one = reported[0]
    culprits = tuple(sorted({event.rank for event in reported}))
    if len(culprits) == len(run.seen):
        culprits = ()
    when = f"at step {step}"
    if not one.gradients and one.finite < step:
        when = f"between steps {one.finite} and {step}"
    made = [each.holds for each in held(run, one.rank)]
    mine = [each for each in made if each.optimizer == one.optimizer]
    message = (
        f"{_what(one, mine)} {when} on {named(sorted({e.rank for e in reported}))}: "
        f"{one.count} of {one.of} parameters are hit ({some(one.names)})"
    )
    exhibits: list[Event] = [one, *mine[-1:]]
    return Finding(
        message=message,
        exhibits=tuple(exhibits),
        culprits=culprits,
        victims=tuple(rank for rank in ranks if culprits and rank not in culprits),
        locations=tuple(_lines(run, reported, mine, ranks)),
        certainty=Certainty.PROVED,
        details={"step": step, "parameters": list(one.names)},
    )


def _what(one: NotFinite, made: list[Holds]) -> str:
    if one.operation in OPERATIONS:
        return (
            "The loss became NaN or Inf, and so did gradients and weights; the first "
            f"such number that its graph shows comes of {OPERATIONS[one.operation]},"
        )
    if one.loss:
        return "The loss became NaN or Inf, and so did gradients and weights,"
    if one.gradients:
        return "Gradients became NaN or Inf, and so did the weights,"
    halves = any(each.halves for each in made)
    how = f", which {made[-1].kind} steps in half precision," if halves else ""
    return f"Weights{how} became NaN or Inf"


def _lines(
    run: Run, reported: list[NotFinite], made: list[Holds], ranks: tuple[int, ...]
) -> Iterator[Location]:
    one = reported[0]
    blamed = tuple(event.rank for event in reported)
    for place in computing(run, one.operation):
        yield Location(place, blamed, Role.CULPRIT, "may be the operation")
    spoilt = places(list(reported), blamed, "first seen here")
    optimizers = places(list(made[-1:]), ranks, "makes the optimizer")
    if any(each.halves for each in made) and not one.gradients:
        yield from optimizers
        yield from spoilt
    else:
        yield from spoilt
        yield from backward_lines(run, ranks)
        yield from optimizers
