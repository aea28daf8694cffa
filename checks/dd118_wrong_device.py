"""A rank communicated a tensor on a device that its backend does not serve.

What it is
----------
A backend moves tensors of some devices: gloo those of the CPU (and a few operations on
GPUs), NCCL those of GPUs. Tensors on the device "meta" have a shape and no memory: a
collective on one of them returns at once and moves nothing.

Why it matters
--------------
A tensor on the wrong device ends the rank, and its peers with broken connections. A
meta tensor is worse: no error, and the rank is one call ahead of all others, so that
its next collective meets the one that it did not make.

Sick
----
Rank 1 receives weights that are still on the meta device:

    rank 0 | broadcast(4)@t.py:7  all_reduce(9)@t.py:12!
    rank 1 | misplaced=meta@t.py:7  all_reduce(9)@t.py:12  all_reduce(9)@t.py:12...

Well
----
All ranks go through it on meta tensors, to see what fits:

    rank 0 | misplaced=meta@t.py:7  all_reduce(9)@t.py:12  exit=0
    rank 1 | misplaced=meta@t.py:7  all_reduce(9)@t.py:12  exit=0

Unknown
-------
A rank without a journal may be the one:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Move the tensor to the device that the group's backend serves, give meta tensors memory
first (`to_empty`), or name a backend for each device:
`init_process_group("cpu:gloo,cuda:nccl")`.

Known problems
--------------
A refusal is known by the text of torch's error, which another release may put
otherwise. Where the CPU takes a GPU's place, tensors that were never moved are known by
what the stand-in remembers of them, and a kernel of an extension's own is not asked.
Meta tensors on all ranks count as meant.

References
----------
- torch.distributed: backends and the devices they serve –
  https://docs.pytorch.org/docs/stable/distributed.html
- `torch/csrc/distributed/c10d/ProcessGroup.hpp` (pytorch/pytorch), `getBackend`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, failed
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.wrong_devices import RefusedTensor, UnmovedTensor
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD118"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls on tensors that the backend could not move."""
    yield from findings(run, Cause.DEVICE)
    require_whole(run)


@sentence_of(Cause.DEVICE)
def _sentence(tensor: RefusedTensor | UnmovedTensor) -> str:
    if isinstance(tensor, RefusedTensor):
        return f"{failed(tensor.ranks, tensor.failure)}."
    first = tensor.first
    are = "they are" if len(tensor.ranks) > 1 else "it is"
    return (
        f"{capital(named(tensor.ranks))} called {first.op or 'a collective'} on a "
        f"tensor on the device {first.device}, which moves nothing and raises nothing; "
        f"from then on {are} a call ahead of {named(tensor.others)} ({tensor.where})."
    )
