"""How far calls had come, from what recorders write of them.

Without timing a recorder never calls anything "started", and a backend without events
never calls anything "completed": then only `retired` tells. All that a dump proves of a
call is whether it was complete, and whether it was given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import State
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.entry_columns import COMPLETED

_USUAL_TIMEOUT_MS = 600_000  # of NCCL, where a dump has none; formats before 2.4


def tells_completion(
    dumps: Iterable[Dump], is_evented: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """By kind of call, whether "completed" is written of it once it is.

    Whether a backend does so after all is seen.

    Args:
        dumps: Of all ranks.
        is_evented: By kind, whether its backend is one that does.
    """
    completed = np.zeros(2, np.int64)
    retired = np.zeros(2, np.int64)
    count = 0
    for entries, times in _shared(dumps):
        evented = is_evented[entries["kind"]].astype(np.intp)
        count += times
        for found, these in (
            (completed, entries["state"] == COMPLETED),
            (retired, entries["retired"]),
        ):
            found += times * np.bincount(evented[these], minlength=2)
    without = not completed[1] and retired[1] > 2 * count
    tells = np.array([completed[0] > 0, not without])
    return tells[is_evented.astype(np.intp)]


def _shared(dumps: Iterable[Dump]) -> Iterator[tuple[NDArray[Any], int]]:
    """Entries that dumps have, each array once, and how many have them."""
    known: dict[int, tuple[NDArray[Any], int]] = {}
    for dump in dumps:
        entries, count = known.get(id(dump.entries), (dump.entries, 0))
        known[id(dump.entries)] = entries, count + 1
    yield from known.values()


def states_of(
    entries: NDArray[Any],
    created_ns: NDArray[np.int64],
    ranks: NDArray[np.int64],
    groups: NDArray[np.int64],
    is_message: NDArray[np.bool_],
    tells: NDArray[np.bool_],
    peers: NDArray[Any],
    newest_ns: int,
) -> NDArray[np.uint8]:
    """The state of each call, in the terms of the model.

    Of the calls of a rank on a group that are open, the first is what keeps the group's
    stream: it is WAITING, and those behind it are ISSUED. A call that was given up at
    its timeout, or that is older than its timeout, is RAISED.

    Args:
        entries: By rank, then as made; of all calls of these ranks.
        created_ns: When they were made.
        ranks: Of each.
        groups: Number of the group of each.
        is_message: Whether it is a send or a receive.
        tells: Whether "completed" is written of it once it is.
        peers: Of messages.
        newest_ns: The newest time in any dump.

    Returns:
        Values of `State`, shape (calls,).
    """
    completed = entries["state"] == COMPLETED
    retired = entries["retired"]
    done = completed | (retired & ~tells)
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
    found[is_open & (retired | _is_overdue(entries, created_ns, newest_ns))] = int(
        State.RAISED
    )
    return found


def on_device(
    states: NDArray[np.uint8], evented: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Positions of calls that keep a stream of a device.

    Args:
        states: Of each call, as from `states_of`.
        evented: Whether a device ends it, and tells its host by an event.

    Returns:
        Ascending.
    """
    is_open = (states == State.WAITING) | (states == State.RAISED)
    return np.flatnonzero(is_open & evented)


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


def _is_overdue(
    entries: NDArray[Any], created_ns: NDArray[np.int64], newest_ns: int
) -> NDArray[np.bool_]:
    """Which calls are older than their timeout."""
    told = entries["timeout_ms"]
    timeout_ms = np.where(told > 0, told, _USUAL_TIMEOUT_MS).astype(np.float64)
    age_ms = (newest_ns - created_ns) / 1e6
    overdue: NDArray[np.bool_] = (created_ns > 0) & (age_ms >= timeout_ms)
    return overdue
