"""Gradients are clipped while they are still multiplied by the loss scale.

What it is
----------
A GradScaler multiplies the loss, and with it all gradients, by a scale of many
thousands, and divides them again in `unscale_`, or in its `step` at the latest. Here
they are clipped before that, to a threshold that is meant for true gradients.

Why it matters
--------------
The threshold is too small by a factor of the scale: of a gradient with a norm of 2, a
threshold of 1 and a scale of 65536 leave 0.000015. Plain SGD all but stands still;
Adam divides by the size of gradients, and now gets nothing but their direction, below
its epsilon. Whenever the GradScaler changes its scale, the threshold changes, too.

Sick
----
The norm is clipped before the scaler has divided:

    rank 0 | scaling(scale=65536.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=norm,limit=1.0,found=48000.0,scale=65536.0)@t.py:8
           | cycle(step=1,words=update+clear+scaled+clip+scaled_step,more=9)@t.py:9
           | exit=0
    rank 1 | scaling(scale=65536.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=norm,limit=1.0,found=51000.0,scale=65536.0)@t.py:8
           | cycle(step=1,words=update+clear+scaled+clip+scaled_step,more=9)@t.py:9
           | exit=0

So is each value, and `unscale_` comes behind it:

    rank 0 | scaling(scale=1024.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=value,limit=0.5,found=130.0,scale=1024.0)@t.py:8
           | cycle(words=update+clear+scaled+clip+unscale+scaled_step,more=9)@t.py:9
           | exit=0

The job clips by hand: the scaler always gets a norm of 1:

    rank 0 | scaling(scale=1024.0)@t.py:7
           | handed(norm=0.99999,largest=0.4,scale=1024.0)@t.py:9
           | handed(norm=0.99998,largest=0.6,scale=1024.0)@t.py:9
           | handed(norm=0.99999,largest=0.5,scale=1024.0)@t.py:9
           | cycle(step=1,words=update+clear+scaled+changed+scaled_step,more=9)@t.py:9
           | exit=0

Well
----
`unscale_` comes first:

    rank 0 | scaling(scale=65536.0)@t.py:7  act(word=clip)@t.py:8
           | cycle(words=update+clear+scaled+unscale+clip+scaled_step,more=9)@t.py:9
           | exit=0

The threshold is multiplied by the scale, too:

    rank 0 | scaling(scale=65536.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=norm,limit=32768.0,found=48000.0,scale=65536.0)@t.py:8
           | cycle(step=1,words=update+clear+scaled+clip+scaled_step,more=9)@t.py:9
           | exit=0

Gradients are never as large:

    rank 0 | scaling(scale=65536.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=norm,limit=65000.0,found=48000.0,scale=65536.0)@t.py:8
           | cycle(step=1,words=update+clear+scaled+clip+scaled_step,more=9)@t.py:9
           | exit=0

Nothing is scaled: the scaler is switched off, or its scale is 1:

    rank 0 | scaling(scale=1.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=norm,limit=1.0,found=3.0,scale=1.0)@t.py:8
           | cycle(step=1,words=update+clear+scaled+clip+scaled_step,more=9)@t.py:9
           | exit=0

The job has divided the gradients itself, in a way of its own:

    rank 0 | scaling(scale=65536.0)@t.py:7  act(word=clip)@t.py:8
           | limited(how=norm,limit=1.0,found=3.0,scale=65536.0)@t.py:8
           | cycle(step=1,words=update+clear+scaled+changed+clip+step,more=9)@t.py:9
           | exit=0

Unknown
-------
A rank without a journal may do so:

    rank 0 | scaling(scale=1024.0)  cycle(step=1,words=scaled+scaled_step)  exit=0
    rank 1 | ?

Remedy
------
Call `scaler.unscale_(optimizer)` between backward and the clip. `scaler.step` knows of
it, and does not divide again. With accumulation, do so once, behind the last backward.

Known problems
--------------
Clipping by hand is known only by what it leaves, the same norm again and again, and is
likely. A scaler of a library's own (apex, DeepSpeed) is none that is followed. Where
the stand-in runs a GPU's script on the CPU, gradients have another size than in
float16.

References
----------
- torch's examples of mixed precision –
  https://docs.pytorch.org/docs/stable/notes/amp_examples.html
- `torch/amp/grad_scaler.py` (pytorch/pytorch), `GradScaler.unscale_`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.amp.scaler_faults import ScaledClip, clips
from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import backward_lines, places
from distdoctor.analysis.optimizer_step.step_cycles import OptimizerHistory, lines_of
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.optimizer_step import UNSCALE, Act, Cycle
from distdoctor.model.run import Run, named

CODE = "DD511"
SEVERITY = Severity.ERROR
NEEDS = (Cycle,)


def examine(run: Run) -> Iterator[Finding]:
    """Optimizers whose gradients are clipped while they are scaled."""
    for found in clips(run):
        yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: Sequence[ScaledClip]) -> Finding:
    one, ranks = found[0], tuple(each.rank for each in found)
    size = "a norm" if one.how == "norm" else "values"
    before = ""
    if one.found:
        what = "norm was" if one.how == "norm" else "largest was"
        before = f" (the {what} {one.found:.4g}, unscaled {one.found / one.scale:.3g})"
    how = "by hand " if one.by_hand else ""
    left = one.limit / one.scale
    steps = places([each.proof[-1] for each in found], ranks, "makes the step")
    return Finding(
        message=f"{capital(named(ranks))} clip{'s' * (len(ranks) == 1)} gradients {how}"
        f"to {size} of {one.limit:g} while they are multiplied by the loss scale, "
        f"{one.scale:g}{before}: what the optimizer gets is {left:.3g} at the most",
        exhibits=one.proof,
        locations=(
            *places(list(one.lines), ranks, "clips"),
            *places(_unscaling(run, found), ranks, "unscales; clip behind it"),
            *backward_lines(run, ranks),
            *steps,
        ),
        certainty=Certainty.LIKELY if one.by_hand else Certainty.PROVED,
        details={
            "optimizer": one.optimizer,
            "limit": one.limit,
            "scale": one.scale,
            "by hand": one.by_hand,
        },
    )


def _unscaling(run: Run, found: Sequence[ScaledClip]) -> list[Act]:
    """What was seen to divide these optimizers' gradients by the scale."""
    return [
        act
        for one in found
        for act in lines_of(run, OptimizerHistory(one.rank, one.optimizer, []), UNSCALE)
    ]
