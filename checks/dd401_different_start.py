"""Replicas began with different weights.

What it is
----------
Ranks that average their gradients make the same change in each step, and stay alike
only if they began alike. Here they did not: each rank made its own model, with its own
random numbers, and nobody broadcast one of them; or DistributedDataParallel made them
alike, and some rank changed its own before the first step, by loading a checkpoint or by
initialising a layer anew. Parameters are judged one by one: those whose gradients are
averaged are shared, and the others, such as experts, are each rank's own.

Why it matters
--------------
Nothing is said. The loss falls, but each gradient is the mean of gradients at different
weights, which is the gradient of no model: it learns worse than on one rank, and the
checkpoint is that of one rank among several.

Sick
----
Gradients are averaged by hand, and each rank has its own seed:

    rank 0 | trained(names=w+b,numels=6+2)@t.py:4  optimised(kind=SGD)@t.py:5  all_reduce(6)  all_reduce(2)  weights(step=1,prints=1+2,gradients=7+8)@t.py:9
    rank 1 | trained(names=w+b,numels=6+2)@t.py:4  optimised(kind=SGD)@t.py:5  all_reduce(6)  all_reduce(2)  weights(step=1,prints=3+4,gradients=7+8)@t.py:9

A layer that ranks share began differently, beside an expert of each rank's own:

    rank 0 | trained(names=s+e,numels=40+6)@t.py:4  all_reduce(40)  weights(step=1,prints=1+5,gradients=3+5)@t.py:9  all_reduce(40)  weights(step=2,prints=2+5,gradients=4+5)@t.py:9
    rank 1 | trained(names=s+e,numels=40+6)@t.py:4  all_reduce(40)  weights(step=1,prints=7+6,gradients=3+6)@t.py:9  all_reduce(40)  weights(step=2,prints=8+6,gradients=4+6)@t.py:9

Rank 0 loads a checkpoint after the model was wrapped:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=9,gradients=5)@t.py:9
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5)@t.py:9

Horovod averages the gradients of a Keras model, whose variables nobody has broadcast:

    rank 0 | variable_prints(names=w,sizes=6,prints=1)@t.py:9  all_reduce(6)  variable_prints(step=1,names=w,sizes=6,prints=3)@t.py:9  all_reduce(6)  variable_prints(step=2,names=w,sizes=6,prints=5)@t.py:9
    rank 1 | variable_prints(names=w,sizes=6,prints=2)@t.py:9  all_reduce(6)  variable_prints(step=1,names=w,sizes=6,prints=4)@t.py:9  all_reduce(6)  variable_prints(step=2,names=w,sizes=6,prints=6)@t.py:9

Well
----
The weights are broadcast after the first step, and alike from then on:

    rank 0 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  broadcast(6)  all_reduce(6)  weights(step=2,prints=3,gradients=6)
    rank 1 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=2,gradients=5)  broadcast(6)  all_reduce(6)  weights(step=2,prints=3,gradients=6)

Each rank trains a model of its own, and only a metric is averaged:

    rank 0 | trained(names=w,numels=6)  all_reduce(1)  weights(step=1,prints=1,gradients=5)
    rank 1 | trained(names=w,numels=6)  all_reduce(1)  weights(step=1,prints=2,gradients=6)

The shared layer began alike, and each rank has an expert of its own:

    rank 0 | trained(names=s+e,numels=40+6)  all_reduce(40)  weights(step=1,prints=1+5,gradients=3+5)  all_reduce(40)  weights(step=2,prints=2+5,gradients=4+5)
    rank 1 | trained(names=s+e,numels=40+6)  all_reduce(40)  weights(step=1,prints=1+6,gradients=3+6)  all_reduce(40)  weights(step=2,prints=2+6,gradients=4+6)

Both ranks hold their own part of a model, as in tensor parallelism:

    rank 0 | trained(names=w,numels=6)  all_reduce(9)  weights(step=1,prints=1,gradients=5)
    rank 1 | trained(names=w,numels=6)  all_reduce(9)  weights(step=1,prints=2,gradients=6)

All load a checkpoint after the model was wrapped:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=9,gradients=5)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=9,gradients=5)

Unknown
-------
A rank without a journal may have begun with other weights:

    rank 0 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)
    rank 1 | ?

Remedy
------
Broadcast parameters and buffers from rank 0 after the model is made (or wrap it in
DistributedDataParallel, which does), and after anything that one rank alone changes.
Load checkpoints before wrapping, or on every rank.

Known problems
--------------
Weights are compared at the first step that an optimizer makes, by fingerprints; what is
made alike before that was never apart. Which parameters ranks share is known by equal
gradients or by what is averaged, so a model whose gradients are exchanged in a way
nothing recognises is not compared at all.

References
----------
- torch's note on how DDP works – https://docs.pytorch.org/docs/stable/notes/ddp.html
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`, its
  `init_sync`
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places, some
from distdoctor.analysis.horovod.trained_variables import (
    VariableHistory,
    different_starts,
)
from distdoctor.analysis.replicas.replica_divergence import DivergenceCause
from distdoctor.analysis.replicas.replica_findings import findings
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.replicas import Weights
from distdoctor.model.run import Run, named

CODE = "DD401"
SEVERITY = Severity.ERROR
NEEDS = (Weights,)


def examine(run: Run) -> Iterator[Finding]:
    """Replicas whose weights differ at the first step, and stay so."""
    yield from findings(run, DivergenceCause.START)
    for history, positions in different_starts(run):
        yield _of_variables(history, positions)
    require_whole(run)


def _of_variables(history: VariableHistory, positions: tuple[int, ...]) -> Finding:
    ranks = tuple(range(len(history.looks[0])))
    first, last = history.looks[0], history.looks[-1]
    names = history.names(positions)
    when = f"after step {first[0].step}" if first[0].step else "before the first step"
    return Finding(
        message=(
            f"{named(ranks).capitalize()} have different values of {len(names)} of "
            f"{len(first[0].names)} variables ({some(names)}) {when} of their "
            f"optimizer already, and at all {len(history.looks)} times that were "
            f"looked at up to step {last[0].step}, though they average the gradients: "
            "nothing has made them equal"
        ),
        exhibits=(*first[:2], *last[:2]),
        locations=tuple(places(first, ranks, "makes the first step")),
        details={
            "variables": list(names),
            "steps": [look[0].step for look in history.looks],
        },
    )
