"""Who came to which operation, by the events of a timeline.

Rank 0 writes down when a rank announces a tensor. An operation begins once all have,
so that one whose negotiation is open lacks somebody, or all but the end of the file.

The writer keeps its last event back until it has the next one. So a job that was killed
while it waited lacks just one event of its timeline; one that ended by itself may lack
many, and then shows as open what was not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from distdoctor.model.events import MOST_RANKS
from distdoctor.postmortem.horovod_timeline.timeline_events import BEGAN, TraceEvent

_MOST_OPEN = 20_000
_MOST_NAMES = 500_000
_MOST_SIZES = 64
_NEGOTIATE = "NEGOTIATE_"
_UNNAMED = re.compile(r"\.noname\.\d+$")


@dataclass(slots=True)
class Negotiating:
    """An operation to which not all ranks had come.

    Attributes:
        tensor: Its name, as Horovod has it, such as "allreduce.loss"; empty: lost.
        op: As Horovod calls the operation, such as "ALLREDUCE".
        began: When the first rank came, in µs from Horovod's start.
        came: Ranks that had come; none: those that have done the operation before are
            not written down (the response cache).
        members: How many ranks it needed when it was done before; 0: not known.
        again: It was done before.
    """

    tensor: str
    op: str
    began: int
    came: set[int] = field(default_factory=set)
    members: int = 0
    again: bool = False


@dataclass(slots=True)
class TimelineEnd:
    """How things stood where a timeline ends.

    Attributes:
        began: When Horovod started, in µs since 1970; -1: not told.
        last: When the last event was, in µs from the start.
        negotiating: Open negotiations, the oldest first.
        running: Tensors whose operation was begun, and is not told to have ended.
        sizes: How many ranks came to each of the negotiations that were completed.
        ranks: The largest rank that ever came, and 1; 0: none did.
        moved: When an operation last began or ended, or a new one was announced.
        longest: The longest time that a negotiation took, in µs, but for the first one.
        last_is_mark: The last event is a mark of a cycle: nobody's coming is kept back.
        last_is_opening: The last event opens a negotiation; what is kept back is the
            coming of who opened it.
        events: How many there were, without marks.
    """

    began: int = -1
    last: int = 0
    negotiating: list[Negotiating] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    ranks: int = 0
    moved: int = 0
    longest: int = 0
    last_is_mark: bool = False
    last_is_opening: bool = False
    events: int = 0


def end_of(events: Iterable[TraceEvent]) -> TimelineEnd:
    """Follow a timeline to its end.

    Args:
        events: In the order of the file.

    Returns:
        What was open there. Events that do not fit each other are passed over.
    """
    follower = _Follower()
    for event in events:
        follower.take(event)
    return follower.ended()


class _Follower:
    def __init__(self) -> None:
        self.end = TimelineEnd()
        self._names: dict[int, str] = {}
        self._open: dict[int, Negotiating] = {}
        self._running: dict[int, int] = {}  # by tensor, how deep
        self._members: dict[int, int] = {}  # by tensor, of its last full negotiation
        self._closed = 0

    def take(self, event: TraceEvent) -> None:
        end = self.end
        if event.phase == "M":
            if event.name == BEGAN:
                end.began = event.at
            elif event.tensor >= 0 and len(self._names) < _MOST_NAMES:
                self._names[event.tensor] = event.name
            return
        if event.phase == "i":
            end.last, end.last_is_mark = max(end.last, event.at), True
            return
        if event.tensor < 0 or event.phase not in {"B", "E", "X"}:
            return
        end.events += 1
        end.last = max(end.last, event.at)
        end.last_is_mark = end.last_is_opening = False
        if event.phase == "B":
            self._begin(event)
        elif event.phase == "E":
            self._finish(event)
        else:
            self._come(event)

    def _begin(self, event: TraceEvent) -> None:
        tensor = event.tensor
        self.end.moved = event.at
        if not event.name.startswith(_NEGOTIATE):
            self._close(tensor, event.at)
            if tensor in self._running or len(self._running) < _MOST_OPEN:
                self._running[tensor] = self._running.get(tensor, 0) + 1
            return
        self._running.pop(tensor, None)
        if len(self._open) >= _MOST_OPEN and tensor not in self._open:
            return
        again = tensor in self._members
        self._open[tensor] = Negotiating(
            self._names.get(tensor, ""),
            event.name.removeprefix(_NEGOTIATE),
            event.at,
            members=self._members.get(tensor, 0),
            again=again,
        )
        self.end.last_is_opening = not again

    def _finish(self, event: TraceEvent) -> None:
        self.end.moved = event.at
        if event.tensor in self._open:
            self._close(event.tensor, event.at)
        elif depth := self._running.get(event.tensor):
            if depth > 1:
                self._running[event.tensor] = depth - 1
            else:
                self._forget(event.tensor)

    def _come(self, event: TraceEvent) -> None:
        one = self._open.get(event.tensor)
        name = event.name
        if one is None or not (name.isascii() and name.isdigit() and len(name) < 8):
            return
        rank = int(name)
        if rank < MOST_RANKS:
            one.came.add(rank)
            self.end.ranks = max(self.end.ranks, rank + 1)

    def _close(self, tensor: int, at: int) -> None:
        one = self._open.pop(tensor, None)
        if one is None:
            return
        if self._closed:
            self.end.longest = max(self.end.longest, at - one.began)
        self._closed += 1
        came = len(one.came)
        if came and len(self.end.sizes) < _MOST_SIZES:
            self.end.sizes.add(came)
        if tensor in self._members or len(self._members) < _MOST_NAMES:
            self._members[tensor] = came or self._members.get(tensor, 0)

    def _forget(self, tensor: int) -> None:
        """An operation has ended; one that has no name of its own comes once."""
        del self._running[tensor]
        if _UNNAMED.search(self._names.get(tensor, "")):
            self._names.pop(tensor, None)
            self._members.pop(tensor, None)

    def ended(self) -> TimelineEnd:
        end = self.end
        end.negotiating = sorted(self._open.values(), key=lambda one: one.began)
        end.running = [self._names.get(tensor, "") for tensor in self._running]
        return end
