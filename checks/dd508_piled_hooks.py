"""A hook is registered anew in each step, and all of them stay.

What it is
----------
`register_hook`, `register_forward_hook` and their like add a hook to those that are
there; the same function hangs there as often as it was registered. Called in the loop,
or in a function that the loop calls, it runs twice in the second step and a hundred
times in the hundredth, unless the handle that it gives is used to `remove()` it.

Why it matters
--------------
A hook that changes gradients or outputs changes them once more with each step: a factor
of 0.9 is 0.00003 after a hundred. One that only notes something notes it over and over,
keeps what it holds alive, and makes each step slower than the one before.

Sick
----
A hook makes the gradient smaller, once more in each step:

    rank 0 | piled(step=3,count=3,first=1,name=w)@t.py:5  exit=0
    rank 1 | piled(step=3,count=3,first=1,name=w)@t.py:5  exit=0

Well
----
It is registered once:

    rank 0 | cycle(words=clear+backward+step,more=9)@t.py:9  exit=0
    rank 1 | cycle(words=clear+backward+step,more=9)@t.py:9  exit=0

Unknown
-------
A rank without a journal may have done so:

    rank 0 | cycle(words=clear+backward+step)@t.py:9  exit=0
    rank 1 | ?

Remedy
------
Register hooks once, before the loop; or keep the handle and call `handle.remove()`
behind the step.

Known problems
--------------
Hooks are counted at steps 1 to 4, 8, 16 and so on, on up to 64 parameters of an
optimizer and 512 modules; on others, and on tensors that live for one step, they are
not seen. A function that is defined anew in each round counts as the same by its code.

References
----------
- `torch/_tensor.py` (pytorch/pytorch), `Tensor.register_hook`
- `torch/nn/modules/module.py` (pytorch/pytorch), `Module.register_forward_hook`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.optimizer_step.growing_hooks import gives, piled, registering
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.optimizer_step import Cycle, Piled
from distdoctor.model.run import Run, named

CODE = "DD508"
SEVERITY = Severity.ERROR
NEEDS = (Cycle,)


def examine(run: Run) -> Iterator[Finding]:
    """Hooks of which there are more at each step."""
    seen: set[object] = set()
    for found in piled(run):
        if found[0].place not in seen:  # one is enough of all parameters that it is on
            seen.add(found[0].place)
            yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: list[Piled]) -> Finding:
    one, ranks = found[0], tuple(each.rank for each in found)
    changes = gives(run, one.place)
    lines = [] if one.place is None else registering(run, one.place)
    at = [Location(line, ranks, Role.CULPRIT, "registers it anew") for line in lines]
    what = "output" if one.forward else "gradient"
    effect = (
        f"what it gives back takes the place of the {what}, once more each time"
        if changes
        else "each runs every time, and keeps alive what it holds"
    )
    return Finding(
        message=f"{capital(named(ranks))} register{s(ranks)} one hook again and again: "
        f"on {one.name or 'one object'} it hung {one.first} "
        f"time{_plural(one.first)} when it was seen first, and {one.count} times at "
        f"step {one.step}; {effect}",
        exhibits=tuple(found[:2]),
        culprits=() if set(ranks) == set(run.seen) else ranks,
        locations=(*at, *places(found, ranks, "the hook")),
        certainty=Certainty.PROVED,
        severity=None if changes else Severity.WARNING,
        details={"count": one.count, "step": one.step, "name": one.name},
    )


def _plural(count: int) -> str:
    """The ending of a plural."""
    return "s" * (count != 1)
