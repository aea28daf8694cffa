"""How many ranks the job has, whoever it was that joined them."""

from __future__ import annotations

_size = [1]


def size() -> int:
    """The world size; 1 before the process has joined a job."""
    return _size[0]


def set_size(ranks: int) -> None:
    """Note that the process has joined a job.

    Args:
        ranks: The job's number of ranks.
    """
    _size[0] = ranks
