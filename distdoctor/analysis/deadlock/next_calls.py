"""What a rank that stands still would have done next.

Nobody can know; but training goes in rounds, and where the rank has made this very call
before, the calls that followed it then are what it was about to make.
"""

from __future__ import annotations

import numpy as np

from distdoctor.model.events import BLOCKED
from distdoctor.model.run import Run

_ALIKE = ["group", "signature", "site"]  # columns of one and the same call
_MOST_CALLS = 20_000  # looked back
_CONTEXT = 16  # calls that may tell one occasion from another


def next_calls(run: Run, rank: int, count: int = 2) -> list[int]:
    """Positions in `Run.calls` of what followed a rank's last call the time before.

    Of several such times it is the one that most of the preceding calls agree with,
    and of these the latest.

    Args:
        run: The run.
        rank: One that waits in its last call, or was stopped before it; of others
            nothing is said.
        count: How many calls, at most.

    Returns:
        The positions in order; empty if it never made that call before.
    """
    rows = np.asarray(run.rows_of(rank)[-_MOST_CALLS:], dtype=np.intp)
    if not len(rows):
        return []
    last = run.calls[rows[-1]]
    if last["state"] not in BLOCKED or not last["site"]:
        return []
    rows = rows[run.calls["thread"][rows] == last["thread"]]
    keys = run.calls[_ALIKE][rows]
    like = np.flatnonzero(keys[:-1] == keys[-1])
    if len(like) > 1 and like[-1] == len(rows) - 2:
        like = like[:-1]  # that was followed by the very call in question
    for back in range(1, min(_CONTEXT, len(rows))):
        closer = like[like >= back]
        closer = closer[keys[closer - back] == keys[-1 - back]]
        if not len(closer):
            break
        like = closer
    if not len(like):
        return []
    return [int(row) for row in rows[like[-1] + 1 :][:count]]
