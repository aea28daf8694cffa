"""Which files several ranks wrote at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.model.events import SETUP, WORLD
from distdoctor.model.observed.written import ReadBack, Written
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Clash:
    """A file that ranks wrote anew with nothing that put them in an order.

    Attributes:
        path: Its name.
        written: One event of each rank.
        read: By whom it was read; none: nobody did.
    """

    path: str
    written: tuple[Written, ...]
    read: tuple[ReadBack, ...]


def clashes(run: Run) -> Iterator[Clash]:
    """Files that ranks wrote between the same two meetings of all ranks.

    Not those written under a lock, nor by ranks that had sent each other messages or
    keys of the store since the meeting, which may have put them in an order; nor by
    ranks that were simulated, which run one after the other.
    """
    if run.simulated:
        return
    written: dict[tuple[str, int], dict[int, Written]] = {}
    for rank in run.seen:
        meeting = _Meetings(run, rank)
        for position, event in run.life.get(rank, ()):
            if isinstance(event, Written) and not event.locked:
                before = meeting.before(position)
                if before is not None:
                    key = (event.path, before)
                    written.setdefault(key, {}).setdefault(rank, event)
    read: dict[str, list[ReadBack]] = {}
    for rank in run.seen:
        for one in run.of(ReadBack, rank):
            read.setdefault(one.path, []).append(one)
    told: set[str] = set()
    for (path, _), by_rank in written.items():
        if len(by_rank) > 1 and path not in told:
            told.add(path)
            events = tuple(by_rank[rank] for rank in sorted(by_rank))
            yield Clash(path, events, tuple(read.get(path, ())))


class _Meetings:
    """How often a rank has met all others by one of its calls."""

    def __init__(self, run: Run, rank: int) -> None:
        calls = run.calls[run.rows_of(rank)]
        everyone = {
            number
            for number, group in enumerate(run.groups)
            if group.name in {WORLD, SETUP}
        }
        meets = np.isin(calls["group"], list(everyone)) & (calls["ordinal"] > 0)
        self._count = np.concatenate([[0], np.cumsum(meets)])
        self._others = np.concatenate([[0], np.cumsum(~meets)])

    def before(self, position: int) -> int | None:
        """Meetings before a call's number; None if other calls followed the last."""
        count = int(self._count[position])
        last = int(np.searchsorted(self._count, count))  # right behind that meeting
        if self._others[position] != self._others[last]:
            return None
        return count
