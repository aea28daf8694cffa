"""A job on several ranks does not compute what the same job on one rank does.

What it is
----------
Data, tensor, sequence, pipeline, expert and context parallelism cut one computation into
parts. Put together again, the parts give the gradients and weights of the computation on
one rank, but for roundings. Here they do not: a gradient is not summed over a group, or
is divided by the wrong number, or a part of the batch is left out.

Why it matters
--------------
Nothing fails. The loss goes down, and all ranks may agree with each other to the last
bit. The model that comes out is another one, and mostly a worse one.

Sick
----
Each rank has the gradient of its own slice of the sequence, whose sum is never taken:

    rank 0 | compared(how=reference,steps=1)
           | departed(name=norm.weight,kind=term,factor=1,among=0+1,of=6,excess=900)@t.py:40
    rank 1 | departed(name=norm.weight,kind=term,factor=1,among=0+1,of=6,excess=700)@t.py:40

Gradients are divided by the number of copies, and not by that of ranks:

    rank 0 | compared(how=reference,steps=1)
           | departed(name=expert.weight,kind=times,factor=2,of=6,excess=900)@t.py:12
    rank 1 | departed(name=expert.weight,kind=times,factor=2,of=6,excess=900)@t.py:12

A rank's part of the batch is left out of the loss:

    rank 0 | compared(how=reference,steps=1)
           | departed(name=w,kind=otherwise,of=1,excess=5000)@t.py:12
    rank 1 | departed(name=w,kind=otherwise,of=1,excess=4000)@t.py:12

Gradients are the same, and the weights after a step are not:

    rank 0 | compared(how=reference,steps=2)
    rank 1 | departed(step=2,what=weights,name=w,kind=unchanged,of=3,excess=60)@t.py:12

A module of rank 1 gives another thing in the forward pass (the positions of its slice
begin anew):

    rank 0 | compared(how=reference,steps=1)
           | departed(name=w,kind=otherwise,of=2,excess=500)@t.py:12
           | forward_compared(modules=4,parted,module=attn,behind=norm)@t.py:30
    rank 1 | departed(name=w,kind=otherwise,of=2,excess=600)@t.py:12
           | forward_compared(modules=4,parted,module=attn,behind=norm)@t.py:30

Modules and losses are right, and ranks clip by the norm of their own part:

    rank 0 | compared(how=reference,steps=1)
           | departed(name=w,kind=times,factor=1.3,of=2,excess=500)@t.py:12
           | forward_compared(modules=4)
           | loss_compared(here=2.5,there=2.5,relation=same)@t.py:51
           | backward_compared(right)
    rank 1 | departed(name=w,kind=times,factor=1.5,of=2,excess=600)@t.py:12
           | forward_compared(modules=4)
           | loss_compared(here=2.5,there=2.5,relation=same)@t.py:51
           | backward_compared(right)

Well
----
All gradients and weights of the steps that were compared are the reference's:

    rank 0 | compared(how=reference,steps=4)
    rank 1 | barrier

Unknown
-------
A rank without a journal may be the one that departs:

    rank 0 | compared(how=reference,steps=4)
    rank 1 | ?

Remedy
------
Look at what is done with the gradients of the parameters named: over which group they
are summed, and by what they are divided. What each rank has a part of (a slice of the
sequence, the tokens of its experts, a share of the batch) is to be summed over the ranks
that have the other parts; what each has as a whole is not. A mean over all is the sum
divided by the number of what is averaged, not by the number of copies.

Known problems
--------------
Only the first steps are compared, and of them what the optimizer finds. Parts are found
in the reference by the values they begin with; what begins with one value everywhere,
and is cut unlike all else, is not compared unless the project's settings say where it
lies. The lines are those between which the fault lies: that which calls the first module
that parts, or made the parameter, begins the backward pass, communicates, or steps.
What is meant to be another computation on several ranks (another global batch, dropout,
BatchNorm of each rank's own samples, hooks that send less than gradients) is not judged,
and of gradients that are sent in 16 bits only what those can hold.

References
----------
- TTrace, which found such faults in training frameworks by comparing with a reference –
  https://arxiv.org/abs/2506.09280
- `megatron/core/distributed/finalize_model_grads.py` (NVIDIA/Megatron-LM), which sums
  gradients of LayerNorm over the tensor-parallel group under sequence parallelism
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.comparison.departed_tensors import (
    in_words,
    locations,
    parted,
)
from distdoctor.analysis.comparison.parting_ways import ranks_at_fault, ways_in_words
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.comparison import Compared, Departed
from distdoctor.model.run import Run

CODE = "DD552"
SEVERITY = Severity.ERROR
NEEDS = (Compared,)


def examine(run: Run) -> Iterator[Finding]:
    """Tensors that are not their part of the reference's; one finding for all."""
    found = parted(run)
    if found:
        yield _finding(run, found)
    require_whole(run)


def _finding(run: Run, found: Sequence[Departed]) -> Finding:
    first = found[0]
    return Finding(
        culprits=ranks_at_fault(run, found),
        message=" ".join(filter(None, [in_words(found), ways_in_words(run, found)])),
        exhibits=tuple(found[:2]),
        locations=locations(run, found),
        details={
            "step": first.step,
            "what": first.what,
            "tensors": list(dict.fromkeys(one.name for one in found)),
            "kind": first.kind,
            "factor": first.factor,
            "group": list(first.among),
            "excess": max(one.excess for one in found),
        },
    )
