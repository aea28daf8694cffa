"""Which files several ranks wrote at the same time, or read while one wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.model.events import SETUP, WORLD
from distdoctor.model.named_calls import BY_NAME
from distdoctor.model.observations.checkpoints import ReadBack, Written
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Clash:
    """A file that ranks wrote anew with nothing that put them in an order.

    Attributes:
        path: Its name.
        written: One event of each rank. If it is one rank's alone, others read the file
            with nothing that made them wait for it.
        read: By whom it was read; none: nobody did.
    """

    path: str
    written: tuple[Written, ...]
    read: tuple[ReadBack, ...]


def clashes(run: Run) -> Iterator[Clash]:
    """Files that ranks wrote, or read, between the same two meetings of all ranks.

    Not those written under a lock, nor by ranks that had sent each other messages or
    keys of the store since the meeting, which may have put them in an order; nor by
    ranks that were simulated, which run one after the other.

    Args:
        run: The run that is judged.

    Yields:
        A clash for each file.
    """
    if run.simulated or not run.has(Written):
        return
    written: dict[tuple[str, int], dict[int, Written]] = {}
    at_once: dict[tuple[str, int], list[ReadBack]] = {}
    read: dict[str, list[ReadBack]] = {}
    for rank in run.seen:
        told: Sequence[tuple[int, Written | ReadBack]]
        told = run.told(Written, ReadBack, rank=rank)
        if not told:
            continue
        meeting = _Meetings(run, rank)
        for position, event in told:
            before = meeting.before(position)
            key = (event.path, -1 if before is None else before)
            if isinstance(event, ReadBack):
                read.setdefault(event.path, []).append(event)
                if before is not None and not event.waited:
                    at_once.setdefault(key, []).append(event)
            elif before is not None and not event.locked:
                written.setdefault(key, {}).setdefault(rank, event)
    reported: set[str] = set()
    for key, by_rank in written.items():
        path, _ = key
        others = [one for one in at_once.get(key, ()) if one.rank not in by_rank]
        if path in reported or not (len(by_rank) > 1 or others):
            continue
        reported.add(path)
        events = tuple(by_rank[rank] for rank in sorted(by_rank))
        everyones = read.get(path, ()) if len(by_rank) > 1 else others
        yield Clash(path, events, tuple(everyones))


class _Meetings:
    """How often a rank has met all others by one of its calls."""

    def __init__(self, run: Run, rank: int) -> None:
        calls = run.calls[run.rows_of(rank)]
        everyone = {
            number
            for number, group in enumerate(run.groups)
            if group.name in {WORLD, SETUP, BY_NAME}
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
