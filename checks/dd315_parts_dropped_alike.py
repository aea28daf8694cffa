"""Ranks drop the same elements of the parts of an activation that they cut among them.

What it is
----------
Ranks share the work of one model, as in tensor and sequence parallelism, and each holds
a part of some activations: its heads, its columns, its positions. Their streams of random
numbers are the same, so that dropout has the same mask for each part.

Why it matters
--------------
In one process, each head and each position has a mask of its own. Here those of the first
rank return on all others, and the more ranks, the fewer of them are left: dropout does
less against overfitting than its rate says. Results are not wrong.

Sick
----
Each has a part of its own, and the same elements are left of them:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=6,left=8,known=18446744073709551615,kept=6148914691236517205)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=64,given=7,left=9,known=18446744073709551615,kept=6148914691236517205)@t.py:9

Well
----
Each draws its own:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=6,left=8,known=18446744073709551615,kept=6148914691236517205)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=64,given=7,left=9,known=18446744073709551615,kept=6148914691236517204)@t.py:9

Both have the same, of which they are to drop the same:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=7,left=9,known=18446744073709551615,kept=6148914691236517205)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=64,given=7,left=9,known=18446744073709551615,kept=6148914691236517205)@t.py:9

Too few elements were seen to tell whether their masks are alike by chance:

    rank 0 | all_gather(32)  within  dropped(elements=4,given=6,left=8,known=15,kept=5)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=4,given=7,left=9,known=15,kept=5)@t.py:9

They are stages of a pipeline, which send to each other:

    rank 0 | send(32,peer=1)  within  dropped(elements=64,given=6,left=8,known=18446744073709551615,kept=6148914691236517205)@t.py:9
    rank 1 | recv(32,peer=0)  dropped(elements=64,given=7,left=9,known=18446744073709551615,kept=6148914691236517205)@t.py:9

Unknown
-------
A rank without a journal may drop the same:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | ?

Remedy
------
Draw dropout of what is cut over a tensor-parallel group from a stream that each of its
ranks seeds differently, and only dropout of what they all hold from one that they seed
alike: Megatron's `get_cuda_rng_tracker().fork()`, or a `torch.Generator` and
`torch.get_rng_state` by hand. DTensor does so by itself.

Known problems
--------------
Masks that a program makes by hand, or that fused attention makes, are not seen, nor
dropout in compiled code. Of ranks with models that are replicas of each other, DD309
tells.

References
----------
- Megatron-LM: model_parallel_cuda_manual_seed, with one seed for copies and another for
  parts – https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/random.py
- PyTorch: random operations on DTensor –
  https://github.com/pytorch/pytorch/blob/main/torch/distributed/tensor/_random.py
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rng.dropped_elements import masks_finding, parts_alike
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.rng import Dropped
from distdoctor.model.run import Run

CODE = "DD315"
SEVERITY = Severity.NOTE
NEEDS = (Dropped,)

_WHAT = "drop the same elements of different activations, for one model"


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that drop the same of different parts."""
    for masks in parts_alike(run):
        yield masks_finding(masks, _WHAT)
    require_whole(run)
