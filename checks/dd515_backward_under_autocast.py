"""Backward runs under autocast.

What it is
----------
`loss.backward()` is called inside of the `torch.autocast` context. Forward and loss
belong there; backward does not: each of its operations runs in the dtype that autocast
chose for the one it belongs to anyhow. Where the whole loop stands inside of the
context, there is worse: autocast keeps the copies that it makes of weights until its
outermost context is left, and every forward pass uses the copies of the first.

Why it matters
--------------
Whatever backward runs that is not made by autograd itself is lowered once more: an own
`autograd.Function`, a hook, a gradient of a gradient. torch advises against it. With
copies that outlive a step, the optimizer moves weights that nothing reads: the loss
stays what it was, and nothing says why.

Sick
----
The line that calls backward stands inside of the context:

    rank 0 | backward@t.py:9  lowered_backward(device=cpu)@t.py:9  exit=0
    rank 1 | backward@t.py:9  lowered_backward(device=cpu)@t.py:9  exit=0

The context is not left between two steps:

    rank 0 | backward@t.py:9  lowered_backward@t.py:9
           | stale_cast(passes=2,names=a+b)@t.py:9  exit=0
    rank 1 | backward@t.py:9  lowered_backward@t.py:9
           | stale_cast(passes=2,names=a+b)@t.py:9  exit=0

Well
----
Backward is called outside of the context, or autocast is not used:

    rank 0 | backward@t.py:9  exit=0
    rank 1 | backward@t.py:9  exit=0

Unknown
-------
A rank without a journal may call it elsewhere:

    rank 0 | backward@t.py:9  exit=0
    rank 1 | ?

Remedy
------
End the context behind the loss, and call `loss.backward()` outside of it, in each step:
`with torch.autocast("cuda"): loss = criterion(model(inputs), targets)`, and on the next
line, less indented, `loss.backward()`.

Known problems
--------------
It looks at the flag of autocast when backward begins, on the device of the loss. Kept
copies of weights are looked for in the first passes only, and one that is made later,
in an evaluation inside the context, is missed.

References
----------
- `torch/amp/autocast_mode.py` (pytorch/pytorch), `autocast`
- pytorch: the whole loop inside autocast trains badly –
  https://github.com/pytorch/pytorch/issues/120376
- Flow-Factory: a stale weight cache of autocast froze training –
  https://github.com/X-GenGroup/Flow-Factory/pull/186
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places, some
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.amp import LoweredBackward, StaleCast
from distdoctor.model.observations.gradients import Backward
from distdoctor.model.run import Run, named

CODE = "DD515"
SEVERITY = Severity.WARNING
NEEDS = (Backward,)


def examine(run: Run) -> Iterator[Finding]:
    """Backward passes under autocast, and weights that autocast does not read anew."""
    stale = [one for rank in run.seen for one in run.of(StaleCast, rank)]
    lowered = [one for rank in run.seen for one in run.of(LoweredBackward, rank)]
    if stale:
        yield _stale(stale)
    elif lowered:
        yield _lowered(lowered)
    require_whole(run)


def _stale(seen: Sequence[StaleCast]) -> Finding:
    ranks = tuple(sorted({one.rank for one in seen}))
    one = seen[0]
    return Finding(
        message=f"At backward pass {one.passes} under autocast, {named(ranks)} still "
        f"use{s(ranks)} copies of weights that autocast made before a step "
        f"({some(one.names)}): its context is not left between steps, so that no step "
        "reaches the forward pass",
        exhibits=tuple(seen[:2]),
        locations=tuple(places(list(seen), ranks, "backward, inside of autocast")),
        certainty=Certainty.PROVED,
        severity=Severity.ERROR,
        details={"parameters": list(one.names), "passes": one.passes},
    )


def _lowered(seen: Sequence[LoweredBackward]) -> Finding:
    ranks = tuple(sorted({one.rank for one in seen}))
    one = seen[0]
    return Finding(
        message=f"{capital(named(ranks))} call{s(ranks)} backward under autocast, "
        f"which lowers to {one.dtype} on {one.device} whatever backward runs that "
        "autograd has not recorded",
        exhibits=tuple(seen[:2]),
        locations=tuple(places(list(seen), ranks, "backward, inside of autocast")),
        certainty=Certainty.PROVED,
        details={"dtype": one.dtype, "device": one.device},
    )
