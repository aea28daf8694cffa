"""The optimizer's state differs between replicas.

What it is
----------
Momentum and the moments of Adam are a part of what each step computes. Replicas with the
same weights and the same gradients, but another state, make different steps: one rank
alone loaded the optimizer's checkpoint, or cleared the state, or made a step more in a
warm-up.

Why it matters
--------------
Weights are broadcast by every wrapper, the optimizer's state by none. The replicas part
in the first step after that, and stay apart.

Sick
----
Rank 0 alone restores the optimizer's moments, and rank 1 lacks them:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5,states=8)@t.py:9  weights(step=2,prints=2,gradients=6,states=9)@t.py:9  trail(before=1+2,gradients=5+6,after=2+3)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5,states=0)@t.py:9  weights(step=2,prints=4,gradients=6,states=7)@t.py:9  trail(before=1+4,gradients=5+6,after=4+5)

The same, of ranks that were killed before they told of each step:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5,states=8)@t.py:9  weights(step=2,prints=2,gradients=6,states=9)@t.py:9
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5,states=0)@t.py:9  weights(step=2,prints=4,gradients=6,states=7)@t.py:9

Rank 0 alone restores it, and the learning rate that is in it:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  loaded(state)@t.py:7  weights(step=1,prints=1,gradients=5,states=8,settings=3)@t.py:9  weights(step=2,prints=2,gradients=6,states=9,settings=3)@t.py:9  trail(before=1+2,gradients=5+6,after=2+3)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=1,prints=1,gradients=5,states=0,settings=4)@t.py:9  weights(step=2,prints=4,gradients=6,states=7,settings=4)@t.py:9  trail(before=1+4,gradients=5+6,after=4+5)

Rank 1 clears the state that all have built up:

    rank 0 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=2,prints=1,gradients=5,states=8)@t.py:9  weights(step=3,prints=2,gradients=6,states=9)@t.py:9  trail(before=7+1+2,gradients=4+5+6,after=1+2+3)
    rank 1 | trained(names=w,numels=6,wrapped)@t.py:4  optimised(kind=Adam)@t.py:6  weights(prints=1)@t.py:5  weights(step=2,prints=1,gradients=5,states=0)@t.py:9  weights(step=3,prints=4,gradients=6,states=7)@t.py:9  trail(before=7+1+4,gradients=4+5+6,after=1+4+5)

Well
----
All restore it:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5,states=8)  trail(before=1,gradients=5,after=2)
    rank 1 | trained(names=w,numels=6,wrapped)  weights(prints=1)  weights(step=1,prints=1,gradients=5,states=8)  trail(before=1,gradients=5,after=2)

Each rank keeps the state of some parameters, and sends what it makes of them:

    rank 0 | trained(names=w+v,numels=6+6,wrapped)  weights(prints=1+2)  weights(step=1,prints=1+2,gradients=5+6,states=8+0)  trail(before=1,gradients=5,after=2)
    rank 1 | trained(names=w+v,numels=6+6,wrapped)  weights(prints=1+2)  weights(step=1,prints=1+2,gradients=5+6,states=0+9)  trail(before=1,gradients=5,after=2)

Unknown
-------
A rank without a journal may have another state:

    rank 0 | trained(names=w,numels=6,wrapped)  weights(prints=1)
    rank 1 | ?

Remedy
------
Load the optimizer's checkpoint on every rank (`map_location` keeps it off the others'
devices), or broadcast what rank 0 loaded: `dist.broadcast_object_list([state])`, and
`optimizer.load_state_dict` on all.

Known problems
--------------
The state is not compared itself at each step: that it differs is seen by a step that
parts with equal weights and gradients, and where the difference is too small for that,
nothing shows. Under `Join` with Adam the moments of a rank that ran out of data really
part from the others', which is no load that was forgotten.

References
----------
- `horovod/torch/functions.py` (horovod/horovod), `broadcast_optimizer_state`
- speculators: only rank 0 loads the checkpoint under DDP –
  https://github.com/vllm-project/speculators/pull/926
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replicas.replica_divergence import DivergenceCause
from distdoctor.analysis.replicas.replica_findings import findings
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.replicas import Weights
from distdoctor.model.run import Run

CODE = "DD408"
SEVERITY = Severity.ERROR
NEEDS = (Weights,)


def examine(run: Run) -> Iterator[Finding]:
    """Replicas that part in a step because of the optimizer's state."""
    yield from findings(run, DivergenceCause.STATE)
    require_whole(run)
