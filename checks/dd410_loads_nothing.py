"""A model was given a checkpoint, and it did not reach it, or not on all ranks.

What it is
----------
`load_state_dict(strict=False)` passes over names that do not fit. A checkpoint that was
saved from a wrapped model has `module.` before each name (`_orig_mod.` if it was
compiled), and then none fits. Or the load stands under `if rank == 0:` behind the
wrapping, when nothing makes the ranks equal any more.

Why it matters
--------------
There is no error. Training goes on from random weights, or from weights that differ
between ranks, and the curves only look somewhat worse.

Sick
----
All names of the state have a prefix that those of the model lack:

    rank 0 | given(what=model,missing=9,unexpected=9,prefix=module.,explained=9)@t.py:20
    rank 1 | given(what=model,missing=9,unexpected=9,prefix=module.,explained=9)@t.py:20

No name is the same; the state was that of the whole checkpoint, for instance:

    rank 0 | given(what=model,missing=9,unexpected=3)@t.py:20
    rank 1 | given(what=model,missing=9,unexpected=3)@t.py:20

The names were sorted out before, so that nothing was left to load:

    rank 0 | given(what=model,missing=9,unexpected=9,explained=9,lacking=module.,empty)
    rank 1 | given(what=model,missing=9,unexpected=9,explained=9,lacking=module.,empty)

Rank 0 loads after the model was wrapped, and tells the others only which epoch it is:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5
           | loaded()@t.py:9  given(what=model,matched=2)@t.py:9  broadcast(1)
           | weights(step=1,prints=9,gradients=5)@t.py:12
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  weights(prints=1)@t.py:5
           | .                .                               broadcast(1)
           | weights(step=1,prints=1,gradients=5)@t.py:12

Well
----
A new head is left out on purpose:

    rank 0 | given(what=model,matched=7,missing=2,unexpected=2)
    rank 1 | given(what=model,matched=7,missing=2,unexpected=2)

It was tried, and tried again under other names:

    rank 0 | given(what=model,missing=9,unexpected=9)  given(what=model,matched=9)
    rank 1 | given(what=model,missing=9,unexpected=9)  given(what=model,matched=9)

Rank 0 loads, and hands on what it has loaded:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)
           | loaded  given(what=model,matched=2)  broadcast(6)
           | weights(step=1,prints=9,gradients=5)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)
           | .       .                          broadcast(6)
           | weights(step=1,prints=9,gradients=5)

A network that follows another is given that one's weights:

    rank 0 | given(what=model,matched=9,own)
    rank 1 | given(what=model,matched=9,own)

Unknown
-------
A rank without a journal may be the one that loads something else:

    rank 0 | given(what=model,matched=9)
    rank 1 | ?

Remedy
------
Save `model.module.state_dict()`, or strip the prefix before loading; look at what
`load_state_dict(strict=False)` returns. Load on every rank, or on rank 0 before the
model is wrapped.

Known problems
--------------
It is judged by names: a state whose names fit and whose values are those of another
model passes. A model that was given a tenth of the names or less counts as not reached,
which a backbone that is taken over by a few layers on purpose may be, too.

References
----------
- pytorch: the prefix `module.` of a wrapped model's names –
  https://github.com/pytorch/pytorch/issues/3805
- examples: strict=False loads a model that is not the one meant –
  https://github.com/pytorch/examples/issues/1029
- `torch/nn/modules/utils.py` (pytorch/pytorch),
  `consume_prefix_in_state_dict_if_present`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.checkpoints.lost_loads import in_vain
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replicas.replica_divergence import DivergenceCause
from distdoctor.analysis.replicas.replica_findings import findings
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.checkpoints import Given
from distdoctor.model.run import Run

CODE = "DD410"
SEVERITY = Severity.ERROR
NEEDS = (Given,)


def examine(run: Run) -> Iterator[Finding]:
    """Loads that changed nothing, and those of some ranks only."""
    yield from in_vain(run)
    yield from findings(run, DivergenceCause.LOADED)
    require_whole(run)
