"""The weights of replicas drift apart in the course of training.

What it is
----------
Replicas began with the same weights, and from some step on they have different ones. A
rank left out a step of the optimizer that the others made; the step is not the same
everywhere (it draws random numbers, say); or each rank changed weights in its own way
between two steps. Where gradients, hyperparameters or the optimizer's state explain it,
other checks tell it.

Why it matters
--------------
Data parallelism assumes one model. After the first difference gradients are averaged
that belong to different weights, and it only grows: nothing ever makes them alike again.

Sick
----
Rank 1 skips a step because its loss looked too high, after the gradients were averaged:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=2,gradients=6)@t.py:9  weights(step=3,prints=3,gradients=7)@t.py:9  trail(before=1-3,gradients=5-7,after=2-4)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=2,gradients=7)@t.py:9  trail(before=1+2,gradients=5+7,after=2+8)

The optimizer adds noise, drawn from each rank's own generator:

    rank 0 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)@t.py:9  all_reduce(6)  weights(step=2,prints=2,gradients=6)@t.py:9  trail(before=1+2,gradients=5+6,after=2+3)
    rank 1 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)@t.py:9  all_reduce(6)  weights(step=2,prints=7,gradients=6)@t.py:9  trail(before=1+7,gradients=5+6,after=7+8)

After step 1 each rank initialises the layer anew:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=4,gradients=6)@t.py:9  trail(before=1+4,gradients=5+6,after=2+5)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9  weights(step=2,prints=7,gradients=6)@t.py:9  trail(before=1+7,gradients=5+6,after=2+8)

Ranks share some layers, as in tensor parallelism, and what each holds whole drifts:

    rank 0 | trained(names=n,numels=6)  holds(names=n+w,sizes=6+8,sharded)  all_reduce(32)  within  weights(step=1,prints=1)  weights(step=2,prints=2)  weights(step=3,prints=3)@t.py:9
    rank 1 | trained(names=n,numels=6)  holds(names=n+w,sizes=6+8,sharded)  all_reduce(32)  within  weights(step=1,prints=1)  weights(step=2,prints=7)  weights(step=3,prints=8)@t.py:9

Well
----
Experts are whole on each rank, and are given samples of their own:

    rank 0 | trained(names=n,numels=6)  holds(names=n+w,sizes=6+8,sharded)  all_to_all(32)  within  weights(step=1,prints=1)  weights(step=2,prints=2)  weights(step=3,prints=3)
    rank 1 | trained(names=n,numels=6)  holds(names=n+w,sizes=6+8,sharded)  all_to_all(32)  within  weights(step=1,prints=1)  weights(step=2,prints=7)  weights(step=3,prints=8)

Ranks share some layers, and what each holds whole is the same again in time:

    rank 0 | trained(names=n,numels=6)  holds(names=n+w,sizes=6+8,sharded)  all_reduce(32)  within  weights(step=1,prints=1)  weights(step=2,prints=2)  weights(step=3,prints=3)
    rank 1 | trained(names=n,numels=6)  holds(names=n+w,sizes=6+8,sharded)  all_reduce(32)  within  weights(step=1,prints=1)  weights(step=2,prints=7)  weights(step=3,prints=3)

Local SGD: each rank makes steps of its own, and the weights are averaged now and then:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  weights(step=2,prints=2,gradients=6)  trail(before=1-2+9,gradients=5-7,after=2+3+4)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=8)  weights(step=2,prints=5,gradients=9)  trail(before=1+5+9,gradients=8+9+4,after=5+6+7)

All ranks clip their weights after each step, alike:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1+3,gradients=5+6,after=2+4)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1+3,gradients=5+6,after=2+4)

A rank has fewer steps, because its data ended:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1-2,gradients=5+6,after=2+3)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5)  trail(before=1,gradients=5,after=2)

Unknown
-------
Gradients are the same at some steps, and weights part at others, with their gradients:

    rank 0 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  all_reduce(6)  weights(step=2,prints=2,gradients=6)  weights(step=3,prints=3,gradients=7)
    rank 1 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  all_reduce(6)  weights(step=2,prints=2,gradients=8)  weights(step=3,prints=4,gradients=9)

A rank without a journal may have drifted:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)
    rank 1 | ?

Remedy
------
Whatever decides whether, or how, a step is made must be decided alike on all ranks:
`all_reduce` the flag, and draw random numbers for weights from a generator that is
seeded alike. What one rank changes is broadcast before the next step. Ranks that share
layers are to read the same samples: give their sampler number and rank of the mesh's
data-parallel dimension; and where each sees a part of a sequence, add up over them the
gradients of what they all hold (`SequenceParallel` in a plan of `parallelize_module`).

Known problems
--------------
After a first difference others follow, and only the first is explained; of two faults
one is told at a time. Differences of rounding alone are left out up to 1e-5. Under
`Join` a rank without data makes fewer steps, and with Adam its moments and weights
really part from the others' behind it: what is told then is true, though the loop is as
meant.

References
----------
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`, note
  on optimizers that change all replicas alike
- `torch/distributed/algorithms/join.py` (pytorch/pytorch), `Join`
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replicas.replica_divergence import DivergenceCause
from distdoctor.analysis.replicas.replica_findings import findings, require_explained
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.replicas import Weights
from distdoctor.model.run import Run

CODE = "DD402"
SEVERITY = Severity.ERROR
NEEDS = (Weights,)

_CAUSES = (
    DivergenceCause.OUTSIDE_ALL,
    DivergenceCause.SKIPPED,
    DivergenceCause.ADDED,
    DivergenceCause.STEP,
    DivergenceCause.WHOLE,
    DivergenceCause.UNSEEN,
)


def examine(run: Run) -> Iterator[Finding]:
    """Replicas that were alike, and are no more."""
    yield from findings(run, *_CAUSES)
    require_explained(run)
    require_whole(run)
