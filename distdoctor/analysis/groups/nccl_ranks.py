"""By which backend ranks communicate."""

from __future__ import annotations

from distdoctor.model.events import Started
from distdoctor.model.run import Run


def ranks_on_nccl(run: Run) -> frozenset[int]:
    """Ranks that communicate by NCCL.

    There a call returns, and a wait for it, when the GPU has been told of it.

    Args:
        run: The run that is judged.
    """
    return frozenset(
        rank
        for rank in run.seen
        if any("nccl" in start.backend for start in run.of(Started, rank))
    )
