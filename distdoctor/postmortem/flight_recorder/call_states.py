"""How far calls had come, from what recorders write of them.

Without timing a recorder never calls anything "started", and a backend without events
never calls anything "completed": then only `retired` tells. All that a dump proves of a
call is whether it was complete, and whether it was given up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import State
from distdoctor.postmortem.flight_recorder.decoding import COMPLETED

_USUAL_TIMEOUT_MS = 600_000  # of NCCL, where a dump has none; formats before 2.4


def states_of(
    entries: NDArray[Any],
    ranks: NDArray[np.int64],
    groups: NDArray[np.int64],
    is_message: NDArray[np.bool_],
    evented: NDArray[np.bool_],
    peers: NDArray[Any],
) -> NDArray[np.uint8]:
    """The state of each call, in the terms of the model.

    Of the calls of a rank on a group that are open, the first is what keeps the group's
    stream: it is WAITING, and those behind it are ISSUED. A call that was given up at
    its timeout, or that is older than its timeout, is RAISED.

    Args:
        entries: By rank, then as made.
        ranks: Of each.
        groups: Number of the group of each.
        is_message: Whether it is a send or a receive.
        evented: Whether its backend tells what is complete.
        peers: Of messages.

    Returns:
        Values of `State`, shape (calls,).
    """
    completed = entries["state"] == COMPLETED
    retired = entries["retired"]
    for kind in (True, False):  # whether this backend tells after all is seen
        mine = evented == kind
        if (completed & mine).any():
            evented = evented | mine
        elif kind and np.count_nonzero(retired & mine) > 2 * len(np.unique(ranks)):
            evented = evented & ~mine
    done = completed | (retired & ~evented)
    channel = _channels(ranks, groups, np.where(is_message, peers, -2))
    positions = np.arange(len(entries))
    # A group's calls end in order: what lies before a complete one is complete.
    last_done = np.full(int(channel.max(initial=0)) + 1, -1)
    np.maximum.at(last_done, channel[done], positions[done])
    done |= ~is_message & ~retired & (positions < last_done[channel])
    is_open = ~done
    found = np.full(len(entries), int(State.DONE), np.uint8)
    found[is_open] = int(State.ISSUED)
    first = np.full(len(last_done), len(entries))
    np.minimum.at(first, channel[is_open], positions[is_open])
    found[is_open & (positions == first[channel])] = int(State.WAITING)
    found[is_open & (retired | _is_overdue(entries))] = int(State.RAISED)
    return found


def _channels(
    ranks: NDArray[np.int64], groups: NDArray[np.int64], peers: NDArray[Any]
) -> NDArray[np.int64]:
    """A number for each rank, group and peer, the same for the same; -2: no message."""
    _, rank = np.unique(ranks, return_inverse=True)
    per_group = int(peers.max(initial=-2)) + 3
    per_rank = per_group * (int(groups.max(initial=0)) + 1)
    found: NDArray[np.int64] = rank.reshape(-1) * per_rank + groups * per_group
    found += peers.astype(np.int64) + 2
    if int(found.max(initial=0)) > 4 * len(found):
        _, dense = np.unique(found, return_inverse=True)
        return dense.reshape(-1)
    return found


def _is_overdue(entries: NDArray[Any]) -> NDArray[np.bool_]:
    """Which calls are older than their timeout, by the newest time in any dump."""
    newest = max(
        entries["created_ns"].max(initial=0), entries["completed_ns"].max(initial=0)
    )
    timeout = np.where(
        entries["timeout_ms"] > 0, entries["timeout_ms"], _USUAL_TIMEOUT_MS
    ).astype(np.float64)
    age_ms = (newest - entries["created_ns"]) / 1e6
    overdue: NDArray[np.bool_] = (entries["created_ns"] > 0) & (age_ms >= timeout)
    return overdue
