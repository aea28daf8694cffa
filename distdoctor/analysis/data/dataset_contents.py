"""What the datasets of ranks hold that read, by their indices, parts of one dataset."""

from __future__ import annotations

import numpy as np

from distdoctor.analysis.data.passes import LoopMeeting, held
from distdoctor.model.run import Run

_FEWEST = 4  # indices that tell whether ranks have each their own
_NEARLY_ALL = 0.9


def are_apart(meeting: LoopMeeting) -> bool:
    """Whether the indices are split among the ranks, as of one dataset.

    Args:
        meeting: One epoch of a loop.

    Returns:
        Whether they are; False where indices are not known, or are few.
    """
    if not all(len(one.samples) for one in meeting.passes):
        return False
    lengths = {one.read.length for one in meeting.passes}
    once = [
        np.unique(one.samples[: len(one.samples) - one.batch]) for one in meeting.passes
    ]
    together = np.concatenate(once)
    if len(lengths) != 1 or len(together) < _FEWEST:
        return False
    return len(np.unique(together)) == len(together)


def are_reordered(run: Run, meeting: LoopMeeting) -> bool:
    """Whether all datasets hold the same rows, each in an order of its own.

    Args:
        run: The run that is judged.
        meeting: One epoch of a loop.

    Returns:
        Whether it is known that they do.
    """
    holdings = [held(run, one) for one in meeting.passes]
    bags = {one.bags if one is not None else () for one in holdings}
    rows = {one.rows if one is not None else () for one in holdings}
    return len(bags) == 1 and len(rows) > 1 and any(next(iter(bags)))


def share_of_others(run: Run, meeting: LoopMeeting) -> float:
    """Share of what datasets hold that differs in all rows that are known.

    Args:
        run: The run that is judged.
        meeting: One epoch of a loop.

    Returns:
        From 0.0 (nothing, or it is not known) to 1.0, the greatest of all ranks.
    """
    first = held(run, meeting.passes[0])
    if first is None or not first.names or not first.rows:
        return 0.0
    most = 0.0
    wide = len(first.rows) // len(first.names)
    mine = np.array(first.rows, np.uint64).reshape(len(first.names), wide)
    for one in meeting.passes[1:]:
        other = held(run, one)
        if other is None or other.names != first.names:
            return 0.0
        if len(other.rows) != len(first.rows):  # short datasets of several lengths
            return 0.0
        theirs = np.array(other.rows, np.uint64).reshape(mine.shape)
        differ = (mine != theirs).mean(axis=1) > _NEARLY_ALL
        most = max(most, float(differ.mean()))
    return most
