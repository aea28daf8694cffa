"""Ranks drop different elements of an activation of which each has a copy.

What it is
----------
Ranks share the work of one model, as in tensor parallelism, and each holds the whole of
some activations. Dropout goes over such a copy on each of them, and their streams of
random numbers have parted: each rank sets other elements to zero.

Why it matters
--------------
The copies are no copies any more. What the ranks compute from them is added up as if it
came from one activation, so that it is the output of no network: the model trains on
noise that one process would not have, and parameters of which each rank has a copy get
gradients of their own and part.

Sick
----
Both are given the same, and leave other elements of it:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=64,given=7,left=9)@t.py:9

Well
----
They draw the same for what they have copies of:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9

Each has a part of its own, and draws for it:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=6,left=8)@t.py:9
    rank 1 | all_gather(32)  within  dropped(elements=64,given=7,left=9)@t.py:9

They average gradients, and what is dropped is of a table that all have:

    rank 0 | wrap=ddp:a  all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | wrap=ddp:a  all_gather(32)  within  dropped(elements=64,given=7,left=9)@t.py:9

They read samples of their own, and what is dropped is of a table that all have:

    rank 0 | fed(step=1,inputs=3)  all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | fed(step=1,inputs=4)  all_gather(32)  within  dropped(elements=64,given=7,left=9)@t.py:9

They exchange nothing while they compute, and are models of their own:

    rank 0 | dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | dropped(elements=64,given=7,left=9)@t.py:9

Unknown
-------
A rank without a journal may drop what it likes:

    rank 0 | all_gather(32)  within  dropped(elements=64,given=7,left=8)@t.py:9
    rank 1 | ?

Remedy
------
Draw dropout of what all ranks of a tensor-parallel group hold from a stream that they
seed alike, and only dropout of what is cut over them from one that each seeds
differently: Megatron's `get_cuda_rng_tracker().fork()`, or a `torch.Generator` and
`torch.get_rng_state` by hand. DTensor does so by itself. Seed by the number of the
data-parallel replica, not by the rank: `torch.manual_seed(seed + dp_rank)`.

Known problems
--------------
Masks that a program makes by hand, or that fused attention makes, are not seen, nor
dropout in compiled code. Ranks that drop apart what they have gathered, each for its own
columns of the next layer alone, are told, too: the copies are not added up there, but one
process would drop the same for all columns.

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
from distdoctor.analysis.rng.dropped_elements import copies_apart, masks_finding
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.rng import Dropped
from distdoctor.model.run import Run

CODE = "DD314"
SEVERITY = Severity.ERROR
NEEDS = (Dropped,)

_WHAT = "drop different elements of an activation of which each has the same copy"


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that do not drop the same of the same."""
    for masks in copies_apart(run):
        yield masks_finding(masks, _WHAT)
    require_whole(run)
