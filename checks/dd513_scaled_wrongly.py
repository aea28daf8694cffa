"""Gradients are divided by the loss scale twice, or not at all, or without reason.

What it is
----------
A GradScaler works if each gradient that an optimizer uses was multiplied by the scale
once, by `scale`, and divided by it once, by `unscale_` or in the scaler's own `step`.
Here it is not so: the job divides by hand what the scaler divides again; backward runs
on the loss from before `scale`; the optimizer's own `step` is called, which knows of no
scale; or backward adds gradients of one sort to those of the other.

Why it matters
--------------
Gradients are wrong by a factor of many thousands, or are a mixture of which one part
counts for nothing. With SGD training stands still or explodes; Adam, which divides by
the size of gradients, hides it, but for its epsilon, weight decay and clipping. And
where the scaler does not make the step, nobody leaves it out when it overflows.

Sick
----
The job divides by the scale, to look at the norm, and the scaler does so again:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=scaled)@t.py:7  scale_read@t.py:4
           | cycle(step=1,words=update+clear+scaled+divided+scaled_step,more=9)@t.py:9
           | exit=0

`unscale_` is called twice, and torch raises:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=unscale)@t.py:8
           | refused(method=unscale_,why=unscaled,words=clear+scaled+unscale+clip+unscale)@t.py:9
           | fail=RuntimeError@t.py:9  exit=1

Backward runs on the loss as it was, and the scaler divides:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=backward)@t.py:8
           | cycle(step=1,words=update+clear+backward+scaled_step,more=9)@t.py:9  exit=0

The optimizer's own step is called:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=scaled)@t.py:7
           | cycle(step=1,words=clear+scaled+step,more=9)@t.py:9  exit=0

Gradients are unscaled after the first batch of four, and scaled ones come on top:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=unscale)@t.py:8
           | cycle(step=1,words=update+clear+scaled+unscale+3:scaled+scaled_step,more=9)@t.py:9
           | exit=0

A second loss is not scaled:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=backward)@t.py:8
           | cycle(step=1,words=update+clear+scaled+backward+scaled_step,more=9)@t.py:9
           | exit=0

Well
----
Scaled once, and divided once; with accumulation behind the last batch:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=update+clear+scaled+scaled_step,more=9)@t.py:9
           | cycle(step=1,words=update+clear+4:scaled+unscale+clip+scaled_step,more=9)@t.py:9
           | exit=0

The job divides by hand, and steps by hand:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=clear+scaled+divided+clip+step,more=9)@t.py:9  exit=0

It does so in a way of its own:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=clear+scaled+changed+step,more=9)@t.py:9  exit=0

The loss of another optimizer was never scaled, nor is its step:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | cycle(step=1,words=update+clear+scaled+scaled_step,more=9)@t.py:9
           | cycle(optimizer=1,step=1,words=clear+backward+step,more=9)@t.py:11  exit=0

The scale is 1:

    rank 0 | scaling(scale=1.0)@t.py:7
           | cycle(step=1,words=clear+scaled+step,more=9)@t.py:9  exit=0

Unknown
-------
A rank without a journal may do so:

    rank 0 | scaling(scale=1024.0)  cycle(step=1,words=scaled+scaled_step)  exit=0
    rank 1 | ?

Remedy
------
`scaler.scale(loss).backward()` for each loss; to look at gradients or to clip them,
`scaler.unscale_(optimizer)`, once, behind the last backward; then
`scaler.step(optimizer)` and `scaler.update()`. What has only to be shown is divided in a
copy: `norm / scaler.get_scale()`.

Known problems
--------------
Division by hand is seen as a change of gradients, and by how much it divides is not: a
job that only asks for the scale and changes gradients for another reason may be told. A
custom backward that multiplies by itself does not count as a scaled loss.

References
----------
- torch's examples of mixed precision –
  https://docs.pytorch.org/docs/stable/notes/amp_examples.html
- `torch/amp/grad_scaler.py` (pytorch/pytorch), `GradScaler.step`
"""  # noqa: E501 - what happened between two steps is one word of a drawing

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from distdoctor.analysis.amp.scaler_faults import (
    ADDED,
    NO_SCALE,
    TWICE,
    faulty,
    is_by_passed,
    reason,
    refusals,
)
from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.gradient_states import ProtocolFault
from distdoctor.analysis.optimizer_step.step_cycles import OptimizerHistory, lines_of
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.amp import Refused, ScaleRead, Scaling
from distdoctor.model.observations.gradients import NotFinite
from distdoctor.model.observations.optimizer_step import BACKWARD, SCALED, UNSCALE
from distdoctor.model.run import Run, named

CODE = "DD513"
SEVERITY = Severity.ERROR
NEEDS = (Scaling,)

_FAULTS = (
    *(
        ProtocolFault.UNSCALED_TWICE,
        ProtocolFault.NEVER_SCALED,
        ProtocolFault.BY_PASSED,
    ),
    *(ProtocolFault.ADDED_UNSCALED, ProtocolFault.MIXED, ProtocolFault.UNCHECKED),
)


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose gradients are not multiplied and divided once."""
    reported: set[int] = set()  # one fault of an optimizer brings others with it
    found = faulty(run, *_FAULTS)
    for fault in _FAULTS:
        for several in found.get(fault, ()):
            number = several[0].optimizer
            if number in reported or not _is_clear(fault, several[0]):
                continue
            reported.add(number)
            yield _finding(run, fault, several)
    for refused in refusals(run, TWICE, ADDED, NO_SCALE):
        if refused[0].optimizer not in reported:
            reported.add(refused[0].optimizer)
            yield _refused(run, refused)
    require_whole(run)


def _is_clear(fault: ProtocolFault, course: OptimizerHistory) -> bool:
    return fault is not ProtocolFault.BY_PASSED or is_by_passed(course.first[fault])


def _finding(
    run: Run, fault: ProtocolFault, found: Sequence[OptimizerHistory]
) -> Finding:
    course, ranks = found[0], tuple(each.rank for each in found)
    cycle, count = course.first[fault], course.faults[fault]
    scale = max(one.scale for one in run.of(Scaling, course.rank))
    words, remark = _LINES[fault]
    acts: list[Event] = list(lines_of(run, course, *words))
    asked: list[Event] = []
    if fault is ProtocolFault.UNSCALED_TWICE:
        asked = list(run.of(ScaleRead, course.rank))
    spoilt = any(run.of(NotFinite, rank) for rank in ranks)
    mild = fault is ProtocolFault.UNCHECKED and not spoilt
    often = f", in {count} of {course.steps} steps" if count < course.steps else ""
    last = "makes the step"
    lines = [
        *places(asked, ranks, "asks for the scale"),
        *places(acts, ranks, remark),
    ]
    step = places([cycle], ranks, last)
    by_step = fault in {ProtocolFault.BY_PASSED, ProtocolFault.UNCHECKED}
    lines = [*step, *lines] if by_step else [*lines, *step]
    return Finding(
        message=f"{capital(named(ranks))}: {_STORIES[fault](scale)}{often}",
        exhibits=(cycle, *asked[:1]),
        locations=(*lines, *backward_lines(run, ranks)),
        certainty=Certainty.LIKELY if mild else Certainty.PROVED,
        severity=Severity.WARNING if mild else None,
        details={
            "fault": str(fault),
            "optimizer": course.optimizer,
            "scale": scale,
            "cycles": count,
            "of": course.steps,
        },
    )


_STORIES: dict[ProtocolFault, Callable[[float], str]] = {
    ProtocolFault.UNSCALED_TWICE: lambda scale: (
        f"gradients are divided by the loss scale twice ({scale:g} at first): by the "
        "job, and again by the GradScaler, which does not know of that"
    ),
    ProtocolFault.NEVER_SCALED: lambda scale: (
        "the GradScaler divides gradients by the loss scale "
        f"({scale:g} at first) that were never multiplied by it: backward runs on a "
        "loss that `scale` has not made"
    ),
    ProtocolFault.BY_PASSED: lambda scale: (
        "the optimizer's own step is called, past the GradScaler, with gradients that "
        f"are still multiplied by the loss scale ({scale:g} at first)"
    ),
    ProtocolFault.ADDED_UNSCALED: lambda scale: (
        "backward adds scaled gradients to those that `unscale_` has divided by the "
        f"loss scale ({scale:g} at first): the former count for that much more"
    ),
    ProtocolFault.MIXED: lambda scale: (
        "gradients of a loss that was scaled and of one that was not are added up, and "
        f"all are divided by the loss scale ({scale:g} at first): the latter count for "
        "next to nothing"
    ),
    ProtocolFault.UNCHECKED: lambda _scale: (
        "the optimizer's own step is called, past the GradScaler, with gradients that "
        "were unscaled: it is made although they may be Inf or NaN, unless the job "
        "looks for that itself"
    ),
}

_LINES: dict[ProtocolFault, tuple[tuple[str, ...], str]] = {
    ProtocolFault.UNSCALED_TWICE: ((UNSCALE,), "divides by the scale"),
    ProtocolFault.NEVER_SCALED: ((BACKWARD,), "backward of a loss that is not scaled"),
    ProtocolFault.BY_PASSED: ((SCALED,), "backward of a scaled loss"),
    ProtocolFault.ADDED_UNSCALED: ((UNSCALE,), "divides before all is added up"),
    ProtocolFault.MIXED: ((BACKWARD,), "backward of a loss that is not scaled"),
    ProtocolFault.UNCHECKED: ((UNSCALE,), "divides by the scale"),
}


def _refused(run: Run, several: Sequence[Refused]) -> Finding:
    one, ranks = several[0], tuple(each.rank for each in several)
    why = reason(one)
    who = named(ranks)
    course = OptimizerHistory(one.rank, one.optimizer, [])
    acts: list[Event] = list(lines_of(run, course, UNSCALE))
    if why == NO_SCALE:
        story = (
            f"{who} gave a GradScaler gradients that it never scaled, and "
            f"{one.method} raised"
        )
        acts = list(lines_of(run, course, BACKWARD))
    elif why == ADDED:
        story = (
            f"{who} called unscale_ again, behind another backward of the same step, "
            "and it raised: scaled gradients were added to unscaled ones"
        )
    else:
        story = (
            f"{who} called unscale_ twice for an optimizer in one step, and it raised: "
            "the gradients would be divided by the scale twice"
        )
    return Finding(
        message=capital(story),
        exhibits=tuple(several[:1]),
        culprits=ranks if len(ranks) < len(run.seen) else (),
        locations=(
            *places(list(several), ranks, "raised here"),
            *places(acts, ranks, "was called here"),
            *backward_lines(run, ranks),
        ),
        certainty=Certainty.PROVED,
        details={"fault": why, "optimizer": one.optimizer, "method": one.method},
    )
