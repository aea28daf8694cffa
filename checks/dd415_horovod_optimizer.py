"""Horovod's optimizer does not do what the one it was made of would have done.

What it is
----------
`hvd.DistributedOptimizer(optimizer)` makes a new optimizer with the parameters and
settings of the given one. It does not take over its state: momentum, or the moments and
step count of Adam, that were loaded before are gone. And in backward it hands each
gradient to Horovod at once: a second backward pass before `step`, or clearing gradients
that are on their way, is refused by an exception.

Why it matters
--------------
A resumed job goes on with the weights of the checkpoint and an optimizer that starts
anew: a jump in the loss, a warm-up that never was. All ranks agree, so that nothing
that compares ranks can show it, and no message is given.

Sick
----
The state is loaded first, and the optimizer wrapped behind that:

    rank 0 | optimizer_wrapped(optimizer=1)@t.py:9  state_dropped(optimizer=1,entries=6,step=12,loaded)@t.py:9
    rank 1 | optimizer_wrapped(optimizer=1)@t.py:9  state_dropped(optimizer=1,entries=6,step=12,loaded)@t.py:9

Four backward passes to a step, and Horovod expects one:

    rank 0 | optimizer_wrapped@t.py:9  unexpected_pass@t.py:14  fail=AssertionError@t.py:14  exit=1
    rank 1 | optimizer_wrapped@t.py:9  unexpected_pass@t.py:14  fail=AssertionError@t.py:14  exit=1

Well
----
The wrapped optimizer is the one that loads:

    rank 0 | optimizer_wrapped(optimizer=1)@t.py:9  all_reduce(4)
    rank 1 | optimizer_wrapped(optimizer=1)@t.py:9  all_reduce(4)

Unknown
-------
A rank without a journal may have lost its state:

    rank 0 | optimizer_wrapped(optimizer=1)@t.py:9  all_reduce(4)
    rank 1 | ?

Remedy
------
Wrap first, and load into the wrapped optimizer: `optimizer = hvd.DistributedOptimizer(
optimizer, …)`, then `optimizer.load_state_dict(saved)`, then
`hvd.broadcast_optimizer_state(optimizer, root_rank=0)`. To accumulate gradients, say so:
`backward_passes_per_step=4`. Clear gradients behind `step`, not between `backward` and it.

Known problems
--------------
State that is put in place by hand, without `load_state_dict`, is seen if the new
optimizer has some at its first step.

References
----------
- `horovod/torch/optimizer.py` (horovod/horovod), `DistributedOptimizer`
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital, pointers
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.horovod.wrapped_optimizers import (
    DroppedState,
    Misuse,
    dropped_states,
    misuses,
)
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.horovod import OptimizerWrapped
from distdoctor.model.run import Run, named

CODE = "DD415"
SEVERITY = Severity.ERROR
NEEDS = (OptimizerWrapped,)


def examine(run: Run) -> Iterator[Finding]:
    """State that a wrapped optimizer has lost, and what Horovod's refuses to do."""
    for lost in dropped_states(run):
        yield _of_state(lost, run)
    for misuse in misuses(run):
        yield _of_misuse(misuse, run)
    require_whole(run)


def _culprits(ranks: tuple[int, ...], run: Run) -> tuple[int, ...]:
    """Those ranks; none where all do the same."""
    return ranks if len(ranks) < run.world_size else ()


def _of_state(lost: DroppedState, run: Run) -> Finding:
    first, ranks = lost.dropped[0], lost.ranks
    steps = f", {first.step:.0f} steps old," if first.step > 0 else ""
    how = "was loaded" if first.loaded else "had come from training"
    places = [one.place for one in lost.dropped[:1] if one.place is not None]
    return Finding(
        message=(
            f"{capital(named(ranks))} went on without the optimizer's state: that of "
            f"{first.entries} parameters{steps} {how}, and "
            "hvd.DistributedOptimizer, which wrapped the optimizer after that, does "
            "not take it over"
        ),
        culprits=_culprits(ranks, run),
        exhibits=lost.dropped[:1],
        locations=tuple(
            Location(place, ranks, Role.CULPRIT, "wraps the optimizer")
            for place in places
        ),
        certainty=Certainty.PROVED,
        severity=None if first.loaded else Severity.WARNING,
        details={"parameters": first.entries, "step": first.step},
    )


def _of_misuse(misuse: Misuse, run: Run) -> Finding:
    ranks, first, passes = misuse.ranks, misuse.refused[0], misuse.refused[0].passes
    what = (
        "cleared gradients while Horovod was averaging them: zero_grad stands between "
        "backward and step"
        if misuse.cleared
        else "ran backward again before step, on an optimizer that was made with "
        f"backward_passes_per_step={passes}"
    )
    made = [one.place for one in misuse.wrapped[:1] if one.place is not None]
    return Finding(
        message=f"{capital(named(ranks))} {what}",
        culprits=_culprits(ranks, run),
        exhibits=(first,),
        locations=(
            *pointers(
                [first.place] if first.place is not None else [],
                ranks,
                "clears them" if misuse.cleared else "the pass that was refused",
            ),
            *(
                Location(place, ranks, Role.CULPRIT, "wraps the optimizer")
                for place in made
            ),
        ),
        certainty=Certainty.PROVED,
        details={"backward_passes_per_step": passes},
    )
