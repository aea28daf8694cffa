"""Which ranks keep more memory with each step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from distdoctor.model.observations.memory import Memory, Retained
from distdoctor.model.run import Run

LEAST_GROWTH_KIB = 32 * 1024
"""Of memory, over the steps that are judged; allocators keep some for themselves."""

LEAST_SAMPLES = 16
"""Behind the first pass, in which caches fill."""

_PARTS = 4

_JUMPS_OF = 8
"""One of so many differences between samples may be a jump."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory of a rank that grows without end.

    Attributes:
        memory: What was seen.
        device: It is that of the GPU.
        first: Number of the first step that was judged.
        last: Of the last.
        kib: By how much it grew between them.
    """

    memory: Memory
    device: bool
    first: int
    last: int
    kib: int


def retained(run: Run) -> dict[int, Retained]:
    """By rank, the last word on graphs of autograd that were kept.

    Args:
        run: The run that is judged.

    Returns:
        Ranks of which nothing was kept are left out.
    """
    found = {}
    for rank in run.seen:
        if events := run.of(Retained, rank):
            outlived = [one for one in events if one.outlived]
            found[rank] = (outlived or events)[-1]
    return found


def growths(run: Run) -> dict[int, Growth]:
    """Ranks whose memory grew in each part of the run behind the first pass.

    Args:
        run: The run that is judged.

    Returns:
        By rank, the growth of the device's memory, or else of the process's.
    """
    found = {}
    for rank in run.seen:
        for memory in run.of(Memory, rank)[-1:]:
            for device in (False, True):
                growth = _growth(memory, device)
                if growth is not None:
                    found[rank] = growth
    return found


def _growth(memory: Memory, device: bool) -> Growth | None:
    kib = memory.device_kib if device else memory.own_kib
    begin = _behind_the_first_pass(memory)
    steps, kib = memory.steps[begin:], kib[begin:]
    if len(kib) < LEAST_SAMPLES or len(kib) != len(steps):
        return None
    size = len(kib) // _PARTS
    parts = [median(kib[at * size : (at + 1) * size]) for at in range(_PARTS)]
    rises = [after - before for before, after in pairwise(parts)]
    total = kib[-1] - kib[0]
    # Steadily: what levels off is a cache, or what an allocator keeps. What grows by a
    # few jumps is what a new part of the job needs, such as kernels that CUDA loads.
    if total < LEAST_GROWTH_KIB or min(rises) < max(rises) / 2 or min(rises) <= 0:
        return None
    by_step = sorted(after - before for before, after in pairwise(kib))
    if sum(by_step[-max(2, len(by_step) // _JUMPS_OF) :]) > total / 2:
        return None
    return Growth(memory, device, steps[0], steps[-1], total)


def _behind_the_first_pass(memory: Memory) -> int:
    """Where the second pass begins; of a job without loaders, the second half."""
    if memory.passes and memory.passes[-1] > 1:
        return next(at for at, passes in enumerate(memory.passes) if passes > 1)
    return len(memory.steps) // 2
