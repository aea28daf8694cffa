"""Which send met which receive.

The messages of one channel (group, sender, receiver, tag) are taken in the order in
which they were sent: the n-th send and the n-th receive are one message. Which message
a receive from any source took is not known, so what may have gone to one is kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import State
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Rows, Run

SEND, RECEIVE, FROM_ANY = CODE_OF["send"], CODE_OF["recv"], CODE_OF["recv_any"]
"""Codes of the operations that move messages."""

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Box:
    """Calls about messages that a receive from any source may take.

    Attributes:
        sends: Sends into it, as positions in `Run.calls`.
        receives: Receives out of it, from any source or from a known one.
    """

    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a run; rows are positions in `Run.calls`.

    A channel is left out if one of its ends was not seen whole: nothing can be counted.

    Attributes:
        sends: Sends that have a receive.
        receives: Their receives, in the same order.
        unreceived: Sends without a receive, ascending.
        unsent: Receives without a send, ascending.
        boxes: What receives from any source make uncertain, by group, receiver, tag.
        number: By row of a send or a receive without its other side, the how-manieth
            on its side of its channel it is, from 1.
    """

    sends: Rows
    receives: Rows
    unreceived: Rows
    unsent: Rows
    boxes: dict[tuple[int, int, int], Box]
    number: dict[int, int]


@memoize
def messages(run: Run) -> Messages:
    """The messages of a run, matched once.

    Args:
        run: The run that is judged.

    Returns:
        The messages of all channels.
    """
    return _match(run)


def peer_of(run: Run, row: int) -> int | None:
    """The global rank on the other side; None for any source, or one not in the group.

    Args:
        run: The run.
        row: A send or a receive, as a position in `Run.calls`.

    Returns:
        The rank, or None.
    """
    record = run.calls[row]
    ranks = run.groups[record["group"]].ranks
    known = 0 <= record["peer"] < len(ranks)
    return ranks[record["peer"]] if known else None


def _match(run: Run) -> Messages:
    rows = run.with_op(SEND, RECEIVE, FROM_ANY)
    calls = run.calls[rows]
    # What never reached the backend is no message: refused, or raised at once. A
    # recorder tells no waits, and what it has as given up was given up at its timeout.
    at_once = (calls["state"] == State.RAISED) & (calls["wait_ns"] == 0)
    at_once &= (calls["enter_ns"] > 0) & (run.calls_from == "run")
    never = (calls["state"] == State.REFUSED) | at_once
    rows, calls = rows[~never], calls[~never]
    peers = _peers(run, calls)
    sending = calls["op"] == SEND
    keys = np.stack(
        [
            calls["group"],
            np.where(sending, peers, calls["rank"]),  # receiver
            calls["tag"],
            np.where(sending, calls["rank"], peers),  # sender
        ],
        axis=1,
    ).astype(np.int64)
    boxes = _boxes(rows, calls, keys)
    half_seen = [*run.unseen, *run.partial]
    sure = (peers != _NOBODY) & ~np.isin(keys[:, 1], half_seen)
    sure &= ~np.isin(keys[:, 3], half_seen)
    if boxes:
        sure &= [(int(g), int(r), int(t)) not in boxes for g, r, t, _ in keys]
    rows, keys, sending = rows[sure], keys[sure], sending[sure]
    _, channel = np.unique(keys, axis=0, return_inverse=True)
    channel = channel.reshape(-1)  # numpy 2.0 gives it another shape
    sends, receives = rows[sending], rows[~sending]
    sent = _numbered(channel[sending])
    received = _numbered(channel[~sending])
    _, a, b = np.intersect1d(sent, received, return_indices=True)
    alone_a = np.setdiff1d(np.arange(len(sends)), a)
    alone_b = np.setdiff1d(np.arange(len(receives)), b)
    by_row = np.argsort(receives[b])
    number = dict(zip(sends[alone_a].tolist(), sent[alone_a].tolist(), strict=True))
    number |= dict(
        zip(receives[alone_b].tolist(), received[alone_b].tolist(), strict=True)
    )
    return Messages(
        sends=sends[a][by_row],
        receives=receives[b][by_row],
        unreceived=sends[alone_a],
        unsent=receives[alone_b],
        boxes=boxes,
        number={row: key % _PER_CHANNEL for row, key in number.items()},
    )


_PER_CHANNEL = 1 << 32


def _numbered(channel: Rows) -> NDArray[np.int64]:
    """Channel and place in it (from 1) of each call, as one number."""
    order = np.argsort(channel, kind="stable")
    ordered = channel[order].astype(np.int64)
    starts = np.searchsorted(ordered, ordered)
    numbers = np.empty(len(channel), np.int64)
    numbers[order] = ordered * _PER_CHANNEL + np.arange(len(channel)) - starts + 1
    return numbers


def _peers(run: Run, calls: NDArray[np.void]) -> NDArray[np.int64]:
    """Global rank of the other side of each call."""
    peers = np.full(len(calls), _NOBODY, np.int64)
    for group in np.unique(calls["group"]):
        ranks = np.array(run.groups[group].ranks, np.int64)
        known = (calls["group"] == group) & (calls["peer"] >= 0)
        known &= (calls["peer"] < len(ranks)) & (calls["op"] != FROM_ANY)
        peers[known] = ranks[calls["peer"][known]]
    return peers


def _boxes(
    rows: Rows, calls: NDArray[np.void], keys: NDArray[np.int64]
) -> dict[tuple[int, int, int], Box]:
    from_any = calls["op"] == FROM_ANY
    if not from_any.any():
        return {}
    boxes = {(int(g), int(r), int(t)): Box() for g, r, t, _ in keys[from_any]}
    for row, call, (group, receiver, tag, _) in zip(rows, calls, keys, strict=True):
        box = boxes.get((int(group), int(receiver), int(tag)))
        if box is not None:
            (box.sends if call["op"] == SEND else box.receives).append(int(row))
    return boxes
